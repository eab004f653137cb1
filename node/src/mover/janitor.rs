//! Clearing away staging that no move needs any more.
//!
//! What this file keeps true: staged bytes go only behind a barrier, when the topic is gone, when
//! this node owns the partition, or when the owner has said that it serves (until then they may be
//! the last copy); what a running move may adopt is kept.

use super::limits::KEEP_STAGING_MS;
use super::source::Source;
use super::{Mover, told};
use narad_core::copies::{StagingFate, staging_fate};
use narad_core::ids::{Epoch, MoveId, NodeId, PartitionIndex, PartitionKey, TopicId};
use narad_core::meta::MetaState;
use narad_storage::layout;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

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
                self.unwanted.borrow_mut().remove(&staging.key);
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
        match staging_fate(&self.ctx.id, state, key) {
            StagingFate::Keep => false,
            StagingFate::Delete => true,
            StagingFate::AskOwner { owner, epoch } => {
                let unwanted = self.unwanted.borrow().contains(&key);
                (unwanted || old_enough(path)) && self.serves(key, owner, epoch).await
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
