//! What a founder with an empty metadata log does: found the cluster, wait, enter a cluster that
//! exists, or refuse.
//!
//! What this file keeps true: a cluster is founded only when every founder was asked and none has
//! ever taken part in one; a vote without a log is a trace of one; when so many founders have lost
//! their disks that the rest are no majority, nobody founds a second cluster beside what is left.

use crate::ids::NodeId;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// What a founder has on its disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FounderDisk {
    /// No entry, no snapshot, no vote.
    Empty,
    /// Nothing but the founding entry, which is the same on every founder.
    Founding,
    /// A vote of some term, and no entry: the log is gone, or was never written.
    Voted,
    /// The metadata of a cluster, whose voters are these.
    Runs {
        /// As this founder knows them.
        voters: BTreeSet<NodeId>,
    },
}

/// What follows for the founder that asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// These have not answered yet.
    Ask(Vec<NodeId>),
    /// There is no cluster: it may be founded.
    Found,
    /// There is a cluster; its leader decides about this node.
    Exists {
        /// Who has its metadata.
        at: NodeId,
    },
    /// There was a cluster, and the disks of so many of its voters are empty that the others cannot
    /// elect a leader.
    Lost {
        /// Who has its metadata.
        at: NodeId,
        /// Whose disks are empty, the asker's included.
        empty: Vec<NodeId>,
        /// How many voters there are.
        voters: usize,
    },
    /// One has voted and has no log: nobody may found beside it.
    Voted {
        /// Who.
        at: NodeId,
    },
}

/// Judges what the founders answered to `me`, which has no log; `mine` is its own disk. Who has not
/// answered is missing in `answers`.
#[must_use]
pub fn judge(
    me: &NodeId,
    mine: &FounderDisk,
    founders: &[NodeId],
    answers: &BTreeMap<NodeId, FounderDisk>,
) -> Verdict {
    let runs = answers.iter().find_map(|(id, disk)| match disk {
        FounderDisk::Runs { voters } => Some((id, voters)),
        _ => None,
    });
    if let Some((at, voters)) = runs {
        let is_empty = |id: &&NodeId| *id == me || answers.get(*id) == Some(&FounderDisk::Empty);
        let empty: Vec<NodeId> = voters.iter().filter(is_empty).cloned().collect();
        let majority = voters.len() / 2 + 1;
        if voters.contains(me) && voters.len() - empty.len() < majority {
            let (at, voters) = (at.clone(), voters.len());
            return Verdict::Lost { at, empty, voters };
        }
        return Verdict::Exists { at: at.clone() };
    }
    if *mine == FounderDisk::Voted {
        return Verdict::Voted { at: me.clone() };
    }
    let voted = answers
        .iter()
        .find(|(_, disk)| **disk == FounderDisk::Voted);
    if let Some((at, _)) = voted {
        return Verdict::Voted { at: at.clone() };
    }
    let missing: Vec<NodeId> = founders
        .iter()
        .filter(|id| *id != me && !answers.contains_key(*id))
        .cloned()
        .collect();
    if missing.is_empty() {
        Verdict::Found
    } else {
        Verdict::Ask(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use FounderDisk::{Empty, Founding, Voted};
    use alloc::format;
    use alloc::vec;

    fn node(n: u32) -> NodeId {
        NodeId(format!("n{n}"))
    }

    fn runs(voters: &[u32]) -> FounderDisk {
        FounderDisk::Runs {
            voters: voters.iter().map(|n| node(*n)).collect(),
        }
    }

    fn verdict(mine: &FounderDisk, answers: &[(u32, FounderDisk)]) -> Verdict {
        let founders = [node(1), node(2), node(3)];
        let answers = answers
            .iter()
            .map(|(n, disk)| (node(*n), disk.clone()))
            .collect();
        judge(&node(1), mine, &founders, &answers)
    }

    #[test]
    fn a_cluster_is_founded_only_when_all_say_that_there_is_none() {
        assert_eq!(verdict(&Empty, &[]), Verdict::Ask(vec![node(2), node(3)]));
        assert_eq!(verdict(&Empty, &[(2, Empty)]), Verdict::Ask(vec![node(3)]));
        assert_eq!(
            verdict(&Empty, &[(2, Empty), (3, Founding)]),
            Verdict::Found
        );
        let alone = judge(&node(1), &Empty, &[node(1)], &BTreeMap::new());
        assert_eq!(alone, Verdict::Found);
    }

    #[test]
    fn a_vote_without_a_log_is_the_trace_of_a_cluster() {
        let two = Verdict::Voted { at: node(2) };
        assert_eq!(verdict(&Empty, &[(2, Voted), (3, Empty)]), two);
        let own = Verdict::Voted { at: node(1) };
        assert_eq!(verdict(&Voted, &[(2, Empty), (3, Empty)]), own);
        assert_eq!(judge(&node(1), &Voted, &[node(1)], &BTreeMap::new()), own);
        // The cluster itself decides where it can be found.
        let exists = Verdict::Exists { at: node(3) };
        assert_eq!(
            verdict(&Voted, &[(2, Founding), (3, runs(&[1, 2, 3]))]),
            exists
        );
    }

    #[test]
    fn one_wiped_founder_is_the_clusters_business_and_two_of_three_are_its_loss() {
        let all = runs(&[1, 2, 3]);
        let exists = Verdict::Exists { at: node(3) };
        assert_eq!(verdict(&Empty, &[(3, all.clone())]), exists);
        assert_eq!(verdict(&Empty, &[(2, all.clone()), (3, all.clone())]), {
            Verdict::Exists { at: node(2) }
        });
        assert_eq!(
            verdict(&Empty, &[(2, Empty), (3, all.clone())]),
            Verdict::Lost {
                at: node(3),
                empty: vec![node(1), node(2)],
                voters: 3
            }
        );
        // The founders that have votes no more lose nobody anything.
        assert_eq!(
            verdict(&Empty, &[(2, Empty), (3, runs(&[3, 4, 5]))]),
            exists
        );
        // Five voters, of which only two are known to be empty.
        assert_eq!(
            verdict(&Empty, &[(2, Empty), (3, runs(&[1, 2, 3, 4, 5]))]),
            exists
        );
        // A founder that has its founding entry has lost nothing.
        assert_eq!(verdict(&Empty, &[(2, Founding), (3, all)]), exists);
    }
}
