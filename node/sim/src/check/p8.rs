//! P8: no produce fails or waits because of a move.
//!
//! What this file keeps true: on every confirmed node, for every partition of a topic that it
//! knows, the real routing answers with an open partition or the WAL, and never with one that is
//! frozen or fenced.

use super::Check;
use crate::world::World;
use narad_core::ids::{PartitionIndex, ShardIndex};
use narad_core::routing::{Here, Route, Sticky, Wish};

impl World {
    /// At every moment.
    pub(crate) fn check_ways(&mut self) {
        for n in 0..self.nodes.len() {
            let node = &self.nodes[n];
            if !node.up || !node.confirmed || node.removed {
                continue;
            }
            let state = &self.state_of(n).state;
            for topic in state.topics.values() {
                let open = |partition: PartitionIndex| {
                    let key = narad_core::ids::PartitionKey {
                        topic: topic.id,
                        partition,
                    };
                    self.may_append(n, self.number_of(key))
                };
                let here = Here {
                    state,
                    topic,
                    node: &node.id,
                    shard: ShardIndex(0),
                    shards: 1,
                    open: &open,
                };
                let pinned = (0..self.setup.partitions).map(|p| Wish::Pinned(PartitionIndex(p)));
                for wish in pinned.chain([Wish::Any, Wish::Keyed(b"k")]) {
                    let stuck = match here.route(wish, 1, &mut Sticky::default()) {
                        Route::Append(partition) => !open(partition),
                        Route::Wal { .. } => false,
                        Route::UnknownPartition { .. } => true,
                    };
                    if stuck {
                        let what = format!("{} has no way for {wish:?}", node.id);
                        self.violate(Check::P8, what);
                        return;
                    }
                }
            }
        }
    }
}
