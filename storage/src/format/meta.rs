//! The partition meta file: two slots, of which the newest intact one counts.
//!
//! What this file keeps true: a torn write of one slot leaves the other; a slot is bound to its copy,
//! so a meta file that was moved by hand is not believed.

use super::list::MAX_END;
use super::segment::Owner;
use super::{FormatError, put, u32_at, u64_at};
use crate::limits::{FORMAT_VERSION, META_SLOT_BYTES};
use narad_core::copy::InstallMark;
use narad_core::ids::{Epoch, HandoffId, MoveId, Offset};

const MAGIC: &[u8; 8] = b"NARADMET";
const CRC_AT: usize = META_SLOT_BYTES - 4;
const FLAG_FENCE: u32 = 1;
const FLAG_INSTALLED: u32 = 2;
const FLAG_HANDOFF: u32 = 4;

/// What a partition (or WAL) remembers besides its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Whose it is.
    pub owner: Owner,
    /// Epoch of the copy.
    pub epoch: Epoch,
    /// Counts the writes; the slot with the higher one is newer.
    pub generation: u64,
    /// Retention's lower bound.
    pub start: Offset,
    /// High-watermark at the time of writing.
    pub hwm: Offset,
    /// Offset after the last record known durable at the time of writing.
    pub durable_end: Offset,
    /// The consumers' committed offset (for a WAL: everything below is delivered).
    pub frontier: Offset,
    /// Records from `.0` up to `.1` are hidden until an append passes `.1`.
    pub fence: Option<(Offset, Offset)>,
    /// How the copy was installed, until its flip is known.
    pub install: Option<InstallMark>,
}

impl Meta {
    /// The slot in which this generation belongs.
    #[must_use]
    pub const fn slot(&self) -> u64 {
        self.generation % 2
    }

    /// The slot's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; META_SLOT_BYTES];
        put(&mut bytes, 0, MAGIC);
        put(&mut bytes, 8, &FORMAT_VERSION.to_le_bytes());
        let mut flags = 0;
        self.owner.encode(&mut bytes, 16);
        put(&mut bytes, 32, &self.epoch.0.to_le_bytes());
        put(&mut bytes, 40, &self.generation.to_le_bytes());
        put(&mut bytes, 48, &self.start.0.to_le_bytes());
        put(&mut bytes, 56, &self.hwm.0.to_le_bytes());
        put(&mut bytes, 64, &self.durable_end.0.to_le_bytes());
        put(&mut bytes, 72, &self.frontier.0.to_le_bytes());
        if let Some((from, to)) = self.fence {
            flags |= FLAG_FENCE;
            put(&mut bytes, 80, &from.0.to_le_bytes());
            put(&mut bytes, 88, &to.0.to_le_bytes());
        }
        if let Some(mark) = self.install {
            flags |= FLAG_INSTALLED;
            put(&mut bytes, 96, &mark.move_id.0.to_le_bytes());
            if let Some(handoff) = mark.handoff_id {
                flags |= FLAG_HANDOFF;
                put(&mut bytes, 104, &handoff.0.to_le_bytes());
            }
        }
        put(&mut bytes, 12, &flags.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..CRC_AT]);
        put(&mut bytes, CRC_AT, &crc.to_le_bytes());
        bytes
    }

    /// Reads one slot.
    ///
    /// # Errors
    /// [`FormatError`] when the bytes are not a slot that this version knows.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        if bytes.len() < META_SLOT_BYTES || &bytes[..8] != MAGIC {
            return Err(FormatError::Damaged("no meta slot"));
        }
        if crc32c::crc32c(&bytes[..CRC_AT]) != u32_at(bytes, CRC_AT) {
            return Err(FormatError::Damaged("meta slot has a wrong checksum"));
        }
        let version = u32_at(bytes, 8);
        if version > FORMAT_VERSION {
            return Err(FormatError::Newer(version));
        }
        let flags = u32_at(bytes, 12);
        let offset = |at| Offset(u64_at(bytes, at));
        let offsets = [48, 56, 64, 72, 80, 88].map(|at| u64_at(bytes, at));
        if offsets.iter().any(|at| *at > MAX_END) || u64_at(bytes, 40) == u64::MAX {
            return Err(FormatError::Damaged("meta slot has impossible numbers"));
        }
        Ok(Self {
            owner: Owner::decode(bytes, 16).ok_or(FormatError::Damaged("unknown kind of meta"))?,
            epoch: Epoch(u64_at(bytes, 32)),
            generation: u64_at(bytes, 40),
            start: offset(48),
            hwm: offset(56),
            durable_end: offset(64),
            frontier: offset(72),
            fence: (flags & FLAG_FENCE != 0).then(|| (offset(80), offset(88))),
            install: (flags & FLAG_INSTALLED != 0).then(|| InstallMark {
                move_id: MoveId(u64_at(bytes, 96)),
                handoff_id: (flags & FLAG_HANDOFF != 0).then(|| HandoffId(u64_at(bytes, 104))),
            }),
        })
    }
}

/// What the meta file as a whole says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetaFile {
    /// The newest intact slot.
    pub newest: Option<Meta>,
    /// Slots that hold something but are damaged.
    pub damaged: usize,
}

/// Reads a meta file of any length.
///
/// # Errors
/// [`FormatError::Newer`] when a slot was written by a newer version: then nothing may be believed.
pub fn decode_file(bytes: &[u8]) -> Result<MetaFile, FormatError> {
    let mut out = MetaFile::default();
    for slot in 0..2 {
        let bytes = bytes.get(slot * META_SLOT_BYTES..).unwrap_or(&[]);
        let bytes = &bytes[..bytes.len().min(META_SLOT_BYTES)];
        match Meta::decode(bytes) {
            Ok(meta) => {
                if out.newest.is_none_or(|n| n.generation < meta.generation) {
                    out.newest = Some(meta);
                }
            }
            Err(FormatError::Newer(version)) => return Err(FormatError::Newer(version)),
            Err(FormatError::Damaged(_)) => {
                out.damaged += usize::from(bytes.iter().any(|b| *b != 0));
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use narad_core::ids::{PartitionIndex, PartitionKey, TopicId};

    fn meta(generation: u64) -> Meta {
        Meta {
            owner: Owner::Partition(PartitionKey {
                topic: TopicId(1),
                partition: PartitionIndex(2),
            }),
            epoch: Epoch(3),
            generation,
            start: Offset(4),
            hwm: Offset(9),
            durable_end: Offset(12),
            frontier: Offset(5),
            fence: Some((Offset(9), Offset(12))),
            install: Some(InstallMark {
                move_id: MoveId(6),
                handoff_id: Some(HandoffId(7)),
            }),
        }
    }

    #[test]
    fn the_newest_intact_slot_counts_whichever_is_torn() {
        let (old, new) = (meta(8), meta(9));
        let mut file = old.encode();
        file.extend(new.encode());
        assert_eq!(decode_file(&file).unwrap().newest, Some(new));
        for torn in (META_SLOT_BYTES..2 * META_SLOT_BYTES).step_by(512) {
            let mut bad = file.clone();
            bad[torn..].fill(0xa5);
            let got = decode_file(&bad).unwrap();
            assert_eq!((got.newest, got.damaged), (Some(old), 1), "{torn}");
        }
        assert_eq!(decode_file(&[]).unwrap(), MetaFile::default());
        assert_eq!(decode_file(&file[..5000]).unwrap().newest, Some(old));
    }

    #[test]
    fn a_newer_version_is_told_apart_from_damage() {
        let mut bytes = meta(1).encode();
        bytes[8] = 2;
        assert_eq!(decode_file(&bytes).unwrap().damaged, 1);
        let crc = crc32c::crc32c(&bytes[..CRC_AT]);
        put(&mut bytes, CRC_AT, &crc.to_le_bytes());
        assert_eq!(decode_file(&bytes), Err(FormatError::Newer(2)));
    }
}
