//! How an entry is a record of the log underneath, and the identity file.
//!
//! What this file keeps true: an entry survives the round trip; a WAL whose memory of used sequences is
//! lost gets a new identity, so that its entries are never taken for old ones.

use super::WalEntry;
use crate::disk;
use crate::error::StorageError;
use crate::format::batch::Batch;
use crate::format::record::{Record, RecordRef};
use crate::format::segment::{Owner, SegmentHeader, parse_file_name};
use crate::format::{FormatError, put, u32_at, u64_at};
use crate::limits::FORMAT_VERSION;
use narad_core::ids::{PartitionIndex, TopicId, WalId};
use std::io::Read as _;
use std::path::Path;

const IDENTITY_FILE: &str = "identity";
const IDENTITY_MAGIC: &[u8; 8] = b"NARADWID";
/// Bytes of the route in front of the key.
pub(super) const ROUTE: usize = 14;
const FLAG_PINNED: u8 = 1;
const FLAG_KEY: u8 = 2;

impl WalEntry {
    pub(crate) fn from_record(record: RecordRef<'_>) -> Option<Self> {
        let (route, key) = record.key?.split_at_checked(ROUTE)?;
        Some(Self {
            topic: TopicId(u64_at(route, 0)),
            partition: PartitionIndex(u32_at(route, 8)),
            pinned: route[12] & FLAG_PINNED != 0,
            record: Record {
                time: record.time,
                key: (route[12] & FLAG_KEY != 0).then(|| key.to_vec()),
                value: record.value.to_vec(),
            },
        })
    }
}

/// Entries as records of the log underneath: the route goes in front of the key. `content` is about what
/// they take.
pub(crate) fn batch(entries: &[WalEntry], content: usize) -> Batch {
    let mut batch = Batch::with_capacity(entries.len(), content);
    let mut routed = Vec::new();
    for entry in entries {
        routed.clear();
        routed.extend_from_slice(&entry.topic.0.to_le_bytes());
        routed.extend_from_slice(&entry.partition.0.to_le_bytes());
        let pinned = if entry.pinned { FLAG_PINNED } else { 0 };
        let keyed = if entry.record.key.is_some() {
            FLAG_KEY
        } else {
            0
        };
        routed.extend_from_slice(&[pinned | keyed, 0]);
        routed.extend_from_slice(entry.record.key.as_deref().unwrap_or(&[]));
        batch.push(RecordRef {
            key: Some(&routed),
            ..entry.record.as_ref()
        });
    }
    batch
}

pub(crate) fn encode_identity(id: WalId) -> Vec<u8> {
    let mut bytes = vec![0; 28];
    put(&mut bytes, 0, IDENTITY_MAGIC);
    put(&mut bytes, 8, &FORMAT_VERSION.to_le_bytes());
    put(&mut bytes, 16, &id.0.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..24]);
    put(&mut bytes, 24, &crc.to_le_bytes());
    bytes
}

pub(crate) fn decode_identity(bytes: &[u8]) -> Result<WalId, FormatError> {
    if bytes.len() != 28 || &bytes[..8] != IDENTITY_MAGIC {
        return Err(FormatError::Damaged("no identity"));
    }
    if crc32c::crc32c(&bytes[..24]) != u32_at(bytes, 24) {
        return Err(FormatError::Damaged("identity has a wrong checksum"));
    }
    let version = u32_at(bytes, 8);
    if version > FORMAT_VERSION {
        return Err(FormatError::Newer(version));
    }
    Ok(WalId(u64_at(bytes, 16)))
}

/// The identity that the directory has, if any.
pub(crate) fn known_identity(dir: &Path) -> std::io::Result<Result<Option<WalId>, u32>> {
    let file = disk::read_small_now(&dir.join(IDENTITY_FILE), 4096)?;
    match file.map(|bytes| decode_identity(&bytes)) {
        Some(Ok(id)) => {
            // Without its meta and its segments a WAL has forgotten which sequences it used.
            let names = disk::list_dir_now(dir)?;
            let used = names
                .iter()
                .any(|n| n == "meta" || parse_file_name(n).is_some());
            return Ok(Ok(used.then_some(id)));
        }
        Some(Err(FormatError::Newer(version))) => return Ok(Err(version)),
        Some(Err(FormatError::Damaged(_))) | None => {}
    }
    for name in disk::list_dir_now(dir)? {
        if parse_file_name(&name).is_none() {
            continue;
        }
        let mut head = [0; 64];
        let whole = std::fs::File::open(dir.join(&name))?.read_exact(&mut head);
        if whole.is_ok()
            && let Ok(header) = SegmentHeader::decode(&head)
            && let Owner::Wal(id) = header.ident.owner
        {
            return Ok(Ok(Some(id)));
        }
    }
    Ok(Ok(None))
}

/// The identity of the WAL in a directory, drawn now when there is none.
pub(super) async fn identity(dir: &Path) -> Result<WalId, StorageError> {
    let (path, file) = (dir.to_path_buf(), dir.join(IDENTITY_FILE));
    let known = disk::blocking("read", &file, move || known_identity(&path)).await?;
    match known {
        Ok(Some(id)) => Ok(id),
        Err(found) => Err(StorageError::NewerVersion {
            path: file,
            found,
            supported: FORMAT_VERSION,
        }),
        Ok(None) => {
            let id = disk::blocking("draw", Path::new("/dev/urandom"), || {
                let mut bytes = [0; 8];
                std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
                Ok(WalId(u64::from_le_bytes(bytes).max(1)))
            })
            .await?;
            disk::replace_file(&file, encode_identity(id)).await?;
            Ok(id)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use narad_core::ids::WallMs;

    #[test]
    fn entries_round_trip_with_and_without_key() {
        for key in [None, Some(vec![]), Some(b"k".to_vec())] {
            for pinned in [false, true] {
                let entry = WalEntry {
                    topic: TopicId(5),
                    partition: PartitionIndex(6),
                    pinned,
                    record: Record {
                        time: WallMs(7),
                        key: key.clone(),
                        value: b"v".to_vec(),
                    },
                };
                let one = batch(std::slice::from_ref(&entry), 0);
                let back = one.get(0).and_then(WalEntry::from_record);
                assert_eq!(back, Some(entry));
            }
        }
    }

    #[test]
    fn an_identity_is_checked() {
        let bytes = encode_identity(WalId(77));
        assert_eq!(decode_identity(&bytes), Ok(WalId(77)));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(decode_identity(&bad), Ok(WalId(77)), "bit {bit}");
        }
    }
}
