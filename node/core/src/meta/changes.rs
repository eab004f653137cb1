//! What of the partitions is another between two versions of the metadata.
//!
//! What this file keeps true: a partition that is left out has the same assignment in both; where topics came
//! or went, nothing is left out.

use super::MetaState;
use crate::ids::{PartitionIndex, PartitionKey};
use alloc::sync::Arc;
use alloc::vec::Vec;

impl MetaState {
    /// The partitions whose assignments differ from those in `old`, in key order; `None` when topics were made
    /// or deleted in between, and everything has to be looked at. The cost is that of comparing the topics that
    /// changed.
    #[must_use]
    pub fn changed_since(&self, old: &Self) -> Option<Vec<PartitionKey>> {
        if !self.topics.keys().eq(old.topics.keys()) {
            return None;
        }
        let mut changed = Vec::new();
        for (new, old) in self.topics.values().zip(old.topics.values()) {
            if Arc::ptr_eq(new, old) {
                continue;
            }
            if new.partitions.len() != old.partitions.len() {
                return None;
            }
            let both = new.partitions.iter().zip(&old.partitions);
            for (index, (new_one, old_one)) in (0u32..).zip(both) {
                if new_one != old_one {
                    changed.push(PartitionKey {
                        topic: new.id,
                        partition: PartitionIndex(index),
                    });
                }
            }
        }
        Some(changed)
    }
}
