//! How long the owner of a moving partition has been dead, as its target sees it.
//!
//! What this file keeps true: one and the same death is waited out whole, from the moment at which
//! this node has applied it; another death, or a life in between, begins anew; the worker is told
//! once, and told when it no longer holds.

use super::TargetInput;
use crate::ids::{DeathGeneration, MonoMs, PartitionKey};
use crate::meta::{MemberStatus, MetaState};

/// See the file's description.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnerWatch {
    wait_ms: u64,
    seen: Option<(DeathGeneration, MonoMs)>,
    told: bool,
}

impl OwnerWatch {
    /// Nothing is known yet. A death is waited out for `wait_ms`.
    #[must_use]
    pub const fn new(wait_ms: u64) -> Self {
        Self {
            wait_ms,
            seen: None,
            told: false,
        }
    }

    /// Looks at what is applied here at `now`: what the worker of `key` is to learn, if anything is
    /// new. Wanted after every applied version and now and then as time passes.
    pub fn look(
        &mut self,
        key: PartitionKey,
        state: &MetaState,
        now: MonoMs,
    ) -> Option<TargetInput> {
        let dead = state
            .assignment(key)
            .and_then(|a| state.members.get(&a.owner))
            .filter(|member| member.status == MemberStatus::Dead)
            .map(|member| member.deaths);
        let Some(deaths) = dead else {
            let was = self.seen.take().is_some();
            self.told = false;
            return was.then_some(TargetInput::OwnerAlive);
        };
        match self.seen {
            Some((seen, since)) if seen == deaths => {
                if self.told || now.since(since) < self.wait_ms {
                    return None;
                }
                self.told = true;
                Some(TargetInput::OwnerDeadLongEnough { deaths })
            }
            _ => {
                let first = self.seen.replace((deaths, now)).is_none();
                self.told = false;
                (!first).then_some(TargetInput::OwnerAlive)
            }
        }
    }

    /// The same with instants by their distance from `now`: two that decide alike are equal.
    #[must_use]
    pub fn rebased(&self, now: MonoMs) -> Self {
        Self {
            seen: self.seen.map(|(deaths, at)| (deaths, at.rebased(now))),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{NodeId, NodeIncarnation, PartitionIndex, RaftIndex, TopicId, TopicName};
    use crate::meta::{Command, TopicSettings};

    fn applied(state: &mut MetaState, command: &Command) {
        let index = RaftIndex(state.applied.0 + 1);
        let _ = state.apply(index, command);
    }

    fn one_owner() -> (MetaState, PartitionKey, NodeId) {
        let mut state = MetaState::default();
        let id = NodeId("a".into());
        let register = Command::Register {
            id: id.clone(),
            addr: "h:1".into(),
            bulk_addr: "h:2".into(),
            http_addr: "h:3".into(),
            incarnation: NodeIncarnation(1),
            disk: 1,
            shards: 1,
            version: "1".into(),
        };
        applied(&mut state, &register);
        let create = Command::CreateTopic {
            name: TopicName("t".into()),
            partitions: 1,
            parent: None,
            settings: TopicSettings::default(),
        };
        applied(&mut state, &create);
        let key = PartitionKey {
            topic: TopicId(state.applied.0),
            partition: PartitionIndex(0),
        };
        (state, key, id)
    }

    #[test]
    fn one_death_is_waited_out_whole_and_told_once() {
        let (mut state, key, id) = one_owner();
        let mut watch = OwnerWatch::new(100);
        assert_eq!(watch.look(key, &state, MonoMs(0)), None);
        let (dead, alive) = deaths_of(&state, &id);
        applied(&mut state, &dead);
        assert_eq!(watch.look(key, &state, MonoMs(10)), None);
        assert_eq!(watch.look(key, &state, MonoMs(109)), None);
        let told = watch.look(key, &state, MonoMs(110));
        assert!(matches!(
            told,
            Some(TargetInput::OwnerDeadLongEnough { .. })
        ));
        assert_eq!(watch.look(key, &state, MonoMs(500)), None);
        applied(&mut state, &alive);
        let told = watch.look(key, &state, MonoMs(510));
        assert_eq!(told, Some(TargetInput::OwnerAlive));
    }

    #[test]
    fn another_death_is_waited_out_anew_even_when_the_life_between_was_not_seen() {
        let (mut state, key, id) = one_owner();
        let mut watch = OwnerWatch::new(100);
        let (dead, alive) = deaths_of(&state, &id);
        applied(&mut state, &dead);
        assert_eq!(watch.look(key, &state, MonoMs(0)), None);
        applied(&mut state, &alive);
        let (dead, _) = deaths_of(&state, &id);
        applied(&mut state, &dead);
        let told = watch.look(key, &state, MonoMs(200));
        assert_eq!(told, Some(TargetInput::OwnerAlive));
        assert_eq!(watch.look(key, &state, MonoMs(299)), None);
        let told = watch.look(key, &state, MonoMs(300));
        assert!(matches!(
            told,
            Some(TargetInput::OwnerDeadLongEnough { .. })
        ));
    }

    fn deaths_of(state: &MetaState, id: &NodeId) -> (Command, Command) {
        let member = &state.members[id];
        let (id, incarnation) = (id.clone(), member.incarnation);
        let dead = Command::MarkDead {
            id: id.clone(),
            incarnation,
            deaths: member.deaths,
        };
        let alive = Command::MarkAlive {
            id,
            incarnation,
            deaths: DeathGeneration(member.deaths.0 + 1),
        };
        (dead, alive)
    }
}
