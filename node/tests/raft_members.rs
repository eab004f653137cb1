//! Members that come and go: snapshots to joiners, learners that become voters, voters that leave; survivors of a
//! lost quorum, of whom one is chosen; a member that meets what a newer release wrote.

mod raft_support;

use narad::raft::limits::{MAX_MESSAGE_BYTES, MAX_PROPOSAL_BYTES};
use narad::raft::{MembershipError, RaftNode, rescue};
use raft_support::*;

const THREE: [&str; 3] = ["a", "b", "c"];

/// Waits until `node` has the log of the leader.
async fn caught_up(nodes: &[RaftNode<Ledger>], node: &RaftNode<Ledger>) {
    let index = leader(nodes).await.read_barrier().await.unwrap();
    node.wait_applied(index, HANG).await.unwrap();
}

#[test]
fn a_joiner_gets_a_snapshot_then_votes_then_leaves() {
    run(async {
        let mut cluster = Cluster::new("join");
        cluster.snapshot_every = 40;
        cluster.keep_entries = 10;
        let mut nodes = cluster.found(&THREE).await;
        // Three megabytes of state: several chunks.
        for number in 0..100 {
            write(&nodes, &format!("{number:03}{}", "x".repeat(8_000))).await;
        }
        let lead = leader(&nodes).await;
        until("the log is purged", || {
            lead.status().purged.is_some_and(|purged| purged > 40)
        })
        .await;
        let status = lead.status();
        assert!(status.snapshot >= status.purged);
        let segment_bytes: u64 = std::fs::read_dir(cluster.options(lead.id()).dir)
            .unwrap()
            .count() as u64;
        assert!(segment_bytes > 0);

        let joiner = cluster.start("d").await;
        lead.add_learner("d", peer("d")).await.unwrap();
        lead.add_learner("d", peer("d"))
            .await
            .expect("again is the same");
        caught_up(&nodes, &joiner).await;
        assert!(
            joiner.machine().borrow().restores >= 1,
            "it came by snapshot"
        );
        assert!(cluster.net.chunks.get() > 1, "in several chunks");
        assert_eq!(texts(&joiner), texts(&lead));
        assert_eq!(joiner.membership().learners.len(), 1);
        assert!(matches!(
            lead.promote("nobody").await,
            Err(MembershipError::Invalid(_))
        ));

        lead.promote("d").await.unwrap();
        lead.promote("d").await.expect("again is the same");
        let members = lead.membership();
        assert_eq!(
            (members.voters.len(), members.learners.len(), members.joint),
            (4, 0, false)
        );
        nodes.push(joiner);
        write(&nodes, "four").await;

        // The snapshot that came in is on its disk: it starts from there.
        let joiner = nodes.pop().unwrap();
        cluster.stop(joiner).await;
        write(&nodes, "without d").await;
        cluster.cut("d");
        let joiner = cluster.start("d").await;
        assert_eq!(joiner.machine().borrow().restores, 1);
        assert!(texts(&joiner).len() >= 60);
        cluster.heal();
        nodes.push(joiner);
        converge(&nodes).await;

        let lead = leader(&nodes).await;
        let leaves = THREE.into_iter().find(|id| *id != lead.id()).unwrap();
        lead.remove_voter(leaves).await.unwrap();
        assert!(!lead.membership().contains(leaves), "gone, not a learner");
        assert_eq!(lead.membership().voters.len(), 3);
        let at = nodes.iter().position(|node| node.id() == leaves).unwrap();
        cluster.stop(nodes.remove(at)).await;
        lead.transfer_leader("d", HANG).await.unwrap();
        write(&nodes, "led by d").await;
        assert_eq!(converge(&nodes).await.last().unwrap(), "led by d");
        assert!(cluster.net.largest.get() <= MAX_MESSAGE_BYTES);
    });
}

#[test]
fn a_learner_can_be_removed_and_a_member_can_move() {
    run(async {
        let cluster = Cluster::new("learner");
        let nodes = cluster.found(&THREE).await;
        let lead = leader(&nodes).await;
        lead.add_learner("d", peer("d"))
            .await
            .expect("a learner need not be up");
        assert!(matches!(
            lead.remove_learner("a").await,
            Err(MembershipError::Invalid(_))
        ));
        lead.remove_learner("d").await.unwrap();
        assert!(!lead.membership().contains("d"));
        for (id, address) in [("", "x:1"), ("e", "")] {
            let peer = narad::raft::RaftPeer {
                addr: address.to_owned(),
            };
            assert!(matches!(
                lead.add_learner(id, peer).await,
                Err(MembershipError::Invalid(_))
            ));
        }
        lead.add_learner(
            "d",
            narad::raft::RaftPeer {
                addr: "old.test:1".to_owned(),
            },
        )
        .await
        .unwrap();
        lead.set_address("d", peer("d")).await.unwrap();
        assert_eq!(lead.membership().peer("d"), Some(&peer("d")));
        let joiner = cluster.start("d").await;
        write(&nodes, "x").await;
        caught_up(&nodes, &joiner).await;
    });
}

#[test]
fn long_entries_to_a_follower_that_lags_stay_within_a_message() {
    run(async {
        let cluster = Cluster::new("long");
        let mut nodes = cluster.found(&THREE).await;
        write(&nodes, "x").await;
        let lead = leader(&nodes).await;
        let at = nodes
            .iter()
            .position(|node| node.id() != lead.id())
            .unwrap();
        let gone = nodes.remove(at);
        let id = gone.id().to_owned();
        cluster.stop(gone).await;
        for number in 0..12u8 {
            // Worst case on the wire: every byte of it doubles.
            lead.propose(vec![
                if number % 2 == 0 { 0xff } else { b'"' };
                MAX_PROPOSAL_BYTES
            ])
            .await
            .unwrap();
        }
        nodes.push(cluster.start(&id).await);
        let index = lead.read_barrier().await.unwrap();
        nodes
            .last()
            .unwrap()
            .wait_applied(index, HANG)
            .await
            .unwrap();
        assert_eq!(
            nodes.last().unwrap().machine().borrow().applied,
            lead.machine().borrow().applied
        );
        assert!(cluster.net.largest.get() <= MAX_MESSAGE_BYTES);
        assert!(cluster.net.largest.get() > MAX_PROPOSAL_BYTES);
    });
}

#[test]
fn a_removed_node_does_not_disturb_the_others() {
    run(async {
        let cluster = Cluster::new("removed");
        let nodes = cluster.found(&THREE).await;
        write(&nodes, "x").await;
        let lead = leader(&nodes).await;
        let leaves = nodes.iter().find(|node| node.id() != lead.id()).unwrap();
        lead.remove_voter(leaves.id()).await.unwrap();
        let term = lead.confirm_leadership().await.unwrap();
        // It never heard that it was removed; it keeps asking for votes for several election times.
        glommio::timer::sleep(std::time::Duration::from_secs(4)).await;
        let rest: Vec<_> = nodes
            .iter()
            .filter(|node| node.id() != leaves.id())
            .cloned()
            .collect();
        write(&rest, "y").await;
        assert_eq!(
            leader(&rest).await.confirm_leadership().await,
            Ok(term),
            "no election was forced"
        );
    });
}

#[test]
fn a_node_that_lost_its_directory_hurts_nobody_and_can_join_again() {
    run(async {
        let cluster = Cluster::new("wiped");
        let mut nodes = cluster.found(&THREE).await;
        for number in 0..20 {
            write(&nodes, &number.to_string()).await;
        }
        converge(&nodes).await;
        let lead = leader(&nodes).await;
        let at = nodes
            .iter()
            .position(|node| node.id() != lead.id())
            .unwrap();
        let gone = nodes.remove(at);
        let id = gone.id().to_owned();
        cluster.stop(gone).await;
        std::fs::remove_dir_all(cluster.options(&id).dir).unwrap();
        let empty = cluster.start(&id).await;
        for number in 20..40 {
            write(&nodes, &number.to_string()).await;
        }
        assert_eq!(lead.fatal(), None);
        assert_eq!(
            texts(&empty).len(),
            0,
            "it is not fed as if nothing had happened"
        );
        lead.remove_voter(&id).await.unwrap();
        lead.add_learner(&id, peer(&id)).await.unwrap();
        caught_up(&nodes, &empty).await;
        lead.promote(&id).await.unwrap();
        nodes.push(empty);
        assert_eq!(converge(&nodes).await.len(), 40);
    });
}

/// What is noted where the log of a chosen survivor was cut.
const NOTE: &str = "cut here";

async fn only_voter(cluster: &Cluster, id: &str) -> rescue::Standing {
    let dir = cluster.options(id).dir;
    rescue::make_only_voter(&dir, id, |_| NOTE.as_bytes().to_vec())
        .await
        .unwrap()
}

/// Five nodes of which d and e survive; with `behind`, d has missed what was committed last.
async fn survivors(cluster: &Cluster, behind: bool) -> Vec<String> {
    let mut nodes = cluster.found(&["a", "b", "c", "d", "e"]).await;
    for number in 0..5 {
        write(&nodes, &format!("early {number}")).await;
    }
    converge(&nodes).await;
    if behind {
        cluster.cut("d");
        nodes.retain(|node| node.id() != "d");
        for number in 0..5 {
            write(&nodes, &format!("late {number}")).await;
        }
    }
    let kept = converge(&nodes).await;
    if behind {
        let d = cluster.net_node("d");
        nodes.push(d);
    }
    for node in nodes {
        cluster.stop(node).await;
    }
    cluster.heal();
    kept
}

#[test]
fn another_survivor_with_the_same_log_follows_the_chosen_one_again() {
    run(async {
        let cluster = Cluster::new("rescue-right");
        let mut kept = survivors(&cluster, false).await;
        let standing = only_voter(&cluster, "d").await;
        let other = rescue::look(&cluster.options("e").dir, "e").await.unwrap();
        assert_eq!(standing.last_index, other.last_index);
        let nodes = vec![cluster.start("d").await, cluster.start("e").await];
        write(&nodes[..1], "new").await;
        nodes[0].add_learner("e", peer("e")).await.unwrap();
        nodes[0].promote("e").await.unwrap();
        kept.extend([NOTE.to_owned(), "new".to_owned()]);
        assert_eq!(converge(&nodes).await, kept);
    });
}

#[test]
fn a_survivor_that_had_more_than_the_chosen_one_takes_nothing_and_keeps_its_log() {
    run(async {
        let cluster = Cluster::new("rescue-wrong");
        let kept = survivors(&cluster, true).await;
        let had = rescue::look(&cluster.options("e").dir, "e").await.unwrap();
        let standing = only_voter(&cluster, "d").await;
        assert!(standing.last_index < had.last_index);
        let (d, e) = (cluster.start("d").await, cluster.start("e").await);
        // The commit mark on the disk may be a little behind.
        let known = texts(&e);
        assert!(known.len() > 5 && kept.starts_with(&known), "{known:?}");
        write(std::slice::from_ref(&d), "new").await;
        d.add_learner("e", peer("e")).await.unwrap();
        let leader = d.clone();
        until("it is told", || cluster.net.unfit.get() > 0).await;
        // However long the leader's log becomes.
        for number in 0..10 {
            write(std::slice::from_ref(&leader), &number.to_string()).await;
        }
        let refused = cluster.net.unfit.get();
        until("it is asked again", || cluster.net.unfit.get() > refused).await;
        assert_eq!(texts(&e), known);
        // That it has what both had before may be known. Behind that are eleven notes and its own admission.
        let lag = leader.lag("e");
        assert!(lag.is_none_or(|lag| lag >= 12), "{lag:?}");
        cluster.stop(e).await;
        let has = rescue::look(&cluster.options("e").dir, "e").await.unwrap();
        assert_eq!(
            (has.last_term, has.last_index),
            (had.last_term, had.last_index)
        );
    });
}

#[test]
fn a_proposal_of_a_newer_release_stops_the_node_before_it() {
    run(async {
        let cluster = Cluster::new("newer");
        let nodes = cluster.found(&["a"]).await;
        write(&nodes, "known").await;
        let proposed = nodes[0].propose(UNKNOWN.to_vec()).await;
        assert!(proposed.is_err_and(|error| error.is_unknown()));
        until("Raft stops", || nodes[0].fatal().is_some()).await;
        let why = nodes[0].fatal().unwrap();
        assert!(why.contains("of a newer release"), "{why}");
        assert_eq!(texts(&nodes[0]), ["known"]);
        assert!(nodes[0].propose(b"later".to_vec()).await.is_err());
        assert_eq!(texts(&nodes[0]), ["known"], "nothing behind it either");
        for node in nodes {
            cluster.stop(node).await;
        }
    });
}
