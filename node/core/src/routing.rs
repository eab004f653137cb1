//! Which partition a record belongs to, which shard a partition, and where a record goes now.
//!
//! What this file keeps true: the hashes are part of the data format: they never change, so a key
//! stays with its partition and a partition with its shard across versions and machines. A record
//! is never refused because its partition is frozen, moving or its owner dead; it goes to another
//! open partition of the topic, or to the ingress WAL. A partition that the client named is never
//! changed for another one.

use crate::ids::{NodeId, PartitionIndex, PartitionKey, ShardIndex};
use crate::meta::{MetaState, Topic};
use alloc::vec::Vec;

/// The one hash: FNV-1a over the bytes, 64 bits, then the finaliser of MurmurHash3 (two rounds of
/// xor-shift and multiply), because FNV alone leaves the high bits of short keys poorly mixed.
#[must_use]
pub fn hash(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in bytes {
        hash ^= u64::from(*byte);
        hash = hash.wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

/// Maps a hash onto `0..buckets` by its high bits: `floor(hash * buckets / 2^64)`.
fn bucket(hash: u64, buckets: u32) -> u32 {
    let scaled = (u128::from(hash) * u128::from(buckets)) >> 64;
    u32::try_from(scaled).expect("below the number of buckets")
}

/// The partition of a key in a topic of `partitions` partitions.
///
/// # Panics
/// When `partitions` is 0: no topic has none.
#[must_use]
pub fn partition_of(key: &[u8], partitions: u32) -> PartitionIndex {
    assert!(partitions > 0, "a topic has partitions");
    PartitionIndex(bucket(hash(key), partitions))
}

/// The shard that owns a partition on a node with `shards` shards: the hash of topic incarnation
/// and index, little endian.
///
/// # Panics
/// When `shards` is 0: no node has none.
#[must_use]
pub fn shard_of(key: PartitionKey, shards: u32) -> ShardIndex {
    assert!(shards > 0, "a node has shards");
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&key.topic.0.to_le_bytes());
    bytes[8..].copy_from_slice(&key.partition.0.to_le_bytes());
    ShardIndex(bucket(hash(&bytes), shards))
}

/// What a producer says about where a record belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish<'a> {
    /// It named the partition.
    Pinned(PartitionIndex),
    /// It gave a key.
    Keyed(&'a [u8]),
    /// It left it to us.
    Any,
}

/// Where a record goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Straight into this partition, which is owned here and open.
    Append(PartitionIndex),
    /// Into the ingress WAL, for this partition.
    Wal {
        /// The partition.
        partition: PartitionIndex,
        /// The client named it, so it may not be changed later either.
        pinned: bool,
    },
    /// The partition that was named does not exist.
    UnknownPartition {
        /// How many there are.
        partitions: u32,
    },
}

/// Bytes of records without a key after which the next partition takes over: enough for large
/// group commits, little enough that partitions fill evenly.
pub const STICKY_BYTES: u64 = 1 << 20;

/// The partition that records without a key stick to: one a topic and shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sticky {
    at: Option<PartitionIndex>,
    bytes: u64,
}

/// Where a shard stands when it routes.
pub struct Here<'a> {
    /// The applied metadata.
    pub state: &'a MetaState,
    /// The topic, of the same state.
    pub topic: &'a Topic,
    /// This node.
    pub node: &'a NodeId,
    /// This shard; its own partitions are preferred, because they cost no crossing.
    pub shard: ShardIndex,
    /// Number of shards of this node.
    pub shards: u32,
    /// Whether a partition is open here for appends now (owned, not frozen, not stopped, lease in
    /// hand where it needs one).
    pub open: &'a dyn Fn(PartitionIndex) -> bool,
}

impl Here<'_> {
    /// Decides about one record, or about one batch of records without key, of `bytes` bytes.
    #[must_use]
    pub fn route(&self, wish: Wish<'_>, bytes: u64, sticky: &mut Sticky) -> Route {
        match wish {
            Wish::Pinned(partition) => self.pinned(partition),
            Wish::Keyed(key) => self.keyed(key),
            Wish::Any => self.any(bytes, sticky),
        }
    }

    fn pinned(&self, partition: PartitionIndex) -> Route {
        let partitions = self.partitions();
        if partition.0 >= partitions {
            return Route::UnknownPartition { partitions };
        }
        if self.is_open(partition) {
            return Route::Append(partition);
        }
        Route::Wal {
            partition,
            pinned: true,
        }
    }

    fn keyed(&self, key: &[u8]) -> Route {
        let hash = hash(key);
        let partition = PartitionIndex(bucket(hash, self.partitions()));
        if self.is_open(partition) {
            return Route::Append(partition);
        }
        let owner = &self.topic.partitions[partition.0 as usize].owner;
        if owner != self.node && self.state.is_alive(owner) {
            return Route::Wal {
                partition,
                pinned: false,
            };
        }
        // Frozen here, or its owner is dead: a sibling takes it, the same one for the same key as
        // long as the siblings stay the same.
        match pick(
            &self.all().filter(|p| self.is_open(*p)).collect::<Vec<_>>(),
            hash,
        ) {
            Some(sibling) => Route::Append(sibling),
            None => Route::Wal {
                partition: live_sibling(self.state, self.topic, partition, hash)
                    .unwrap_or(partition),
                pinned: false,
            },
        }
    }

    fn any(&self, bytes: u64, sticky: &mut Sticky) -> Route {
        if sticky.bytes < STICKY_BYTES
            && let Some(at) = sticky.at
            && self.is_open(at)
        {
            sticky.bytes += bytes;
            return Route::Append(at);
        }
        let near = |p: PartitionIndex| shard_of(self.key(p), self.shards) == self.shard;
        let open: Vec<PartitionIndex> = self.all().filter(|p| self.is_open(*p)).collect();
        let mut choice: Vec<PartitionIndex> = open.iter().copied().filter(|p| near(*p)).collect();
        if choice.is_empty() {
            choice = open;
        }
        let local = !choice.is_empty();
        if !local {
            // Nothing is open here: one that lives elsewhere, by way of the WAL. A local one that
            // is frozen is as good as any.
            let alive = |p: &PartitionIndex| {
                self.state
                    .is_alive(&self.topic.partitions[p.0 as usize].owner)
            };
            if sticky.bytes < STICKY_BYTES
                && let Some(at) = sticky.at
                && at.0 < self.partitions()
                && alive(&at)
            {
                sticky.bytes += bytes;
                return Route::Wal {
                    partition: at,
                    pinned: false,
                };
            }
            choice = self.all().filter(alive).collect();
            if choice.is_empty() {
                choice = self.all().collect();
            }
        }
        // The next one after the last, round robin; each shard starts at another place.
        let next = match sticky.at {
            Some(last) => choice.iter().copied().find(|p| *p > last),
            None => pick(&choice, hash(&self.shard.0.to_le_bytes())),
        };
        let partition = next.unwrap_or(choice[0]);
        *sticky = Sticky {
            at: Some(partition),
            bytes,
        };
        if local {
            Route::Append(partition)
        } else {
            Route::Wal {
                partition,
                pinned: false,
            }
        }
    }

    fn is_open(&self, partition: PartitionIndex) -> bool {
        self.topic
            .partitions
            .get(partition.0 as usize)
            .is_some_and(|a| a.owner == *self.node)
            && (self.open)(partition)
    }

    fn key(&self, partition: PartitionIndex) -> PartitionKey {
        PartitionKey {
            topic: self.topic.id,
            partition,
        }
    }

    fn partitions(&self) -> u32 {
        u32::try_from(self.topic.partitions.len()).expect("bounded by PARTITIONS_MAX")
    }

    fn all(&self) -> impl Iterator<Item = PartitionIndex> + use<> {
        (0..self.partitions()).map(PartitionIndex)
    }
}

fn pick(from: &[PartitionIndex], hash: u64) -> Option<PartitionIndex> {
    let count = u32::try_from(from.len()).expect("bounded by PARTITIONS_MAX");
    // Other bits than those that chose the partition, or all keys of one would meet in one.
    (count > 0).then(|| from[bucket(hash.rotate_left(32), count) as usize])
}

/// Another partition of the topic whose owner is alive, chosen by `hash`; for records whose
/// partition's owner is dead.
#[must_use]
pub fn live_sibling(
    state: &MetaState,
    topic: &Topic,
    not: PartitionIndex,
    hash: u64,
) -> Option<PartitionIndex> {
    let live: Vec<PartitionIndex> = topic
        .partitions
        .iter()
        .zip(0..)
        .filter(|(assignment, index)| *index != not.0 && state.is_alive(&assignment.owner))
        .map(|(_, index)| PartitionIndex(index))
        .collect();
    pick(&live, hash)
}

#[cfg(test)]
mod tests;
