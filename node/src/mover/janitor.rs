//! Clearing away staging that no move needs any more.
//!
//! What this file keeps true: staged bytes go only behind a barrier, when the topic is gone, when
//! this node owns the partition, or when the owner has said that it serves (until then they may be
//! the last copy); what a running move may adopt is kept.

use super::limits::KEEP_STAGING_MS;
use super::source::Source;
use super::{Mover, told};
use narad_core::ids::{Epoch, MoveId, NodeId, PartitionIndex, PartitionKey, TopicId};
use narad_core::meta::MetaState;
use narad_storage::layout;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

/// What is to be done with a staging directory.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    /// A move of the partition to this node is recorded.
    Keep,
    /// Nobody can want it.
    Delete,
    /// It goes when its age and the owner allow.
    AskOwner { owner: NodeId, epoch: Epoch },
}

fn fate(me: &NodeId, state: &MetaState, key: PartitionKey) -> Fate {
    let Some(assignment) = state.assignment(key) else {
        return if key.topic <= TopicId(state.applied.0) {
            Fate::Delete
        } else {
            Fate::Keep
        };
    };
    if assignment.target.as_ref().is_some_and(|t| t.node == *me) {
        return Fate::Keep;
    }
    if assignment.owner == *me && assignment.opened {
        return Fate::Delete;
    }
    Fate::AskOwner {
        owner: assignment.owner.clone(),
        epoch: assignment.epoch,
    }
}

impl Mover {
    /// Looks at everything staged, in the background.
    pub(super) fn sweep(self: Rc<Self>) {
        glommio::spawn_local(async move {
            if let Err(why) = self.sweep_now().await {
                tracing::debug!(why, "left-over staging is looked at again later");
            }
        })
        .detach();
    }

    async fn sweep_now(&self) -> Result<(), String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let found = layout::scan(&self.root).await.map_err(|e| text(&e))?;
        let idle = |key| !self.running.borrow().contains_key(&key);
        let left: Vec<_> = found
            .stagings
            .into_iter()
            .filter(|staging| idle(staging.key))
            .collect();
        let asides: Vec<_> = found
            .asides
            .into_iter()
            .filter_map(|path| Some((key_of(&path)?, path)))
            .filter(|(key, _)| idle(*key))
            .collect();
        if left.is_empty() && asides.is_empty() {
            return Ok(());
        }
        self.ctx.barrier().await.map_err(|e| text(&e))?;
        let state = self.ctx.state();
        for staging in left {
            let gone = self.may_go(&state, staging.key, &staging.path).await;
            // A move may have begun while the owner was asked.
            if gone && idle(staging.key) {
                layout::delete_staging(&self.root, staging.key, staging.move_id)
                    .await
                    .map_err(|e| text(&e))?;
                tracing::info!(key = %staging.key, move_id = %staging.move_id, "left-over staging deleted");
            }
        }
        for (key, path) in asides {
            if self.may_go(&state, key, &path).await && idle(key) {
                layout::delete_asides(&self.root, key)
                    .await
                    .map_err(|e| text(&e))?;
                tracing::info!(%key, "bytes that were set aside are deleted: the partition is served");
            }
        }
        // Looked at anew, because moves may have begun meanwhile, and newer than any of them: a move
        // that runs here is applied here.
        let recorded = self
            .ctx
            .state()
            .assignments()
            .filter_map(|(key, a)| Some((key, a.target.as_ref()?.move_id)))
            .collect();
        told::forget_others(&self.root, recorded).await;
        Ok(())
    }

    async fn may_go(&self, state: &MetaState, key: PartitionKey, path: &Path) -> bool {
        match fate(&self.ctx.id, state, key) {
            Fate::Keep => false,
            Fate::Delete => true,
            Fate::AskOwner { owner, epoch } => {
                old_enough(path) && self.serves(key, owner, epoch).await
            }
        }
    }

    async fn serves(&self, key: PartitionKey, owner: NodeId, epoch: Epoch) -> bool {
        let source = Source {
            ctx: self.ctx.clone(),
            pool: self.pool.clone(),
            key,
            move_id: MoveId(0),
            owner,
        };
        matches!(source.serves(epoch).await, Ok(true))
    }
}

/// The partition that a directory's name begins with: `tT-pP-…`.
fn key_of(path: &Path) -> Option<PartitionKey> {
    let mut parts = path.file_name()?.to_str()?.split('-');
    let topic = parts.next()?.strip_prefix('t')?.parse().ok()?;
    let partition = parts.next()?.strip_prefix('p')?.parse().ok()?;
    Some(PartitionKey {
        topic: TopicId(topic),
        partition: PartitionIndex(partition),
    })
}

/// Nothing in the directory changed for long enough. An unreadable time counts as new.
fn old_enough(path: &Path) -> bool {
    let modified = std::fs::metadata(path).and_then(|meta| meta.modified());
    modified
        .ok()
        .and_then(|time| SystemTime::now().duration_since(time).ok())
        .is_some_and(|age| age >= Duration::from_millis(KEEP_STAGING_MS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use narad_core::ids::{RaftIndex, TopicName};
    use narad_core::meta::{Assignment, MoveTarget, Topic, TopicSettings};
    use std::sync::Arc;

    fn state(owner: &str, target: Option<&str>, opened: bool) -> MetaState {
        let node = |name: &str| NodeId(name.into());
        let mut state = MetaState {
            applied: RaftIndex(9),
            ..MetaState::default()
        };
        let topic = Topic {
            id: TopicId(3),
            name: TopicName("t".into()),
            parent: None,
            settings: TopicSettings::default(),
            partitions: vec![Assignment {
                owner: node(owner),
                epoch: Epoch(2),
                target: target.map(|name| MoveTarget {
                    node: node(name),
                    move_id: MoveId(7),
                    handoff: None,
                    manual: false,
                }),
                opened,
                ended: vec![],
                changed: RaftIndex(7),
                born: Epoch(1),
            }],
        };
        state.topics.insert(TopicId(3), Arc::new(topic));
        state
    }

    #[test]
    fn staging_goes_only_when_nobody_can_need_it() {
        let me = NodeId("b".into());
        let key = |topic| PartitionKey {
            topic: TopicId(topic),
            partition: PartitionIndex(0),
        };
        let of = |state: &MetaState| fate(&me, state, key(3));
        assert_eq!(of(&state("a", Some("b"), true)), Fate::Keep);
        assert_eq!(of(&state("b", None, true)), Fate::Delete);
        let ask = Fate::AskOwner {
            owner: NodeId("a".into()),
            epoch: Epoch(2),
        };
        assert_eq!(of(&state("a", None, true)), ask);
        assert_eq!(of(&state("a", Some("c"), true)), ask);
        let known = state("a", None, true);
        assert_eq!(fate(&me, &known, key(4)), Fate::Delete);
        assert_eq!(
            fate(&me, &known, key(10)),
            Fate::Keep,
            "a topic that is not applied here yet"
        );
    }

    #[test]
    fn a_directory_tells_its_partition() {
        let key = |name: &str| key_of(Path::new(name));
        let expected = PartitionKey {
            topic: TopicId(5),
            partition: PartitionIndex(2),
        };
        assert_eq!(key("/x/aside/t5-p2-m9-0"), Some(expected));
        for foreign in ["/x/lost+found", "/x/t5", "/x/5-2", "/"] {
            assert_eq!(key(foreign), None, "{foreign}");
        }
    }
}
