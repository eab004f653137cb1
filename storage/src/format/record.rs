//! Records inside a frame's payload.
//!
//! What this file keeps true: decoding a payload of any content ends with records or an error, and
//! what was encoded is decoded to the same records.

use crate::limits::RECORD_HEAD_MAX_BYTES;
use narad_core::ids::WallMs;

/// One record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// When it was accepted, milliseconds since the Unix epoch.
    pub time: WallMs,
    /// The key, where the client gave one.
    pub key: Option<Vec<u8>>,
    /// The content.
    pub value: Vec<u8>,
}

impl Record {
    /// Bytes of key and value.
    #[must_use]
    pub fn content_len(&self) -> usize {
        self.key.as_ref().map_or(0, Vec::len) + self.value.len()
    }

    /// Bytes in a payload whose first record has the time `first`.
    #[must_use]
    pub fn encoded_len(&self, first: WallMs) -> usize {
        self.as_ref().head_len(first) + self.content_len()
    }

    /// Hands the record's bytes, piece by piece, to `out`.
    pub fn encode(&self, first: WallMs, out: &mut impl FnMut(&[u8])) {
        let mut head = [0; RECORD_HEAD_MAX_BYTES];
        let head_len = self.as_ref().put_head(first, &mut head);
        out(&head[..head_len]);
        if let Some(key) = &self.key {
            out(key);
        }
        out(&self.value);
    }

    /// As borrowed.
    #[must_use]
    pub fn as_ref(&self) -> RecordRef<'_> {
        RecordRef {
            time: self.time,
            key: self.key.as_deref(),
            value: &self.value,
        }
    }
}

/// One record, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordRef<'a> {
    /// When it was accepted.
    pub time: WallMs,
    /// The key.
    pub key: Option<&'a [u8]>,
    /// The content.
    pub value: &'a [u8],
}

impl RecordRef<'_> {
    /// Bytes of key and value.
    #[must_use]
    pub fn content_len(&self) -> usize {
        self.key.map_or(0, <[u8]>::len) + self.value.len()
    }

    /// What stands before key and value in a payload whose first record has the time `first`.
    fn head(&self, first: WallMs) -> [u64; 3] {
        [
            zigzag(self.time.0.wrapping_sub(first.0)),
            self.key.map_or(0, |k| k.len() as u64 + 1),
            self.value.len() as u64,
        ]
    }

    /// Bytes of that.
    pub(crate) fn head_len(&self, first: WallMs) -> usize {
        self.head(first).into_iter().map(varint_len).sum()
    }

    /// Writes that to the beginning of `out`, and says how many bytes it takes. It goes straight to where it will be: reading back
    /// what was just written byte by byte waits for all writes before it, the content of the record before among them.
    ///
    /// # Panics
    /// When `out` is shorter than that.
    pub(crate) fn put_head(&self, first: WallMs, out: &mut [u8]) -> usize {
        let values = self.head(first).into_iter();
        values.fold(0, |at, value| put_varint(out, at, value))
    }

    /// An owned copy.
    #[must_use]
    pub fn to_record(&self) -> Record {
        Record {
            time: self.time,
            key: self.key.map(<[u8]>::to_vec),
            value: self.value.to_vec(),
        }
    }
}

/// Reads records out of a payload; ends at its end or at the first malformed record.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
    first: WallMs,
    left: u32,
}

impl<'a> Records<'a> {
    /// Reads `count` records whose first has the time `first`.
    #[must_use]
    pub const fn new(payload: &'a [u8], first: WallMs, count: u32) -> Self {
        Self {
            rest: payload,
            first,
            left: count,
        }
    }

    /// Bytes of the payload that were not read yet.
    pub(crate) const fn rest_len(&self) -> usize {
        self.rest.len()
    }

    fn take(&mut self, len: u64) -> Option<&'a [u8]> {
        let len = usize::try_from(len).ok()?;
        let (head, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(head)
    }

    fn one(&mut self) -> Option<RecordRef<'a>> {
        let time = WallMs(self.first.0.wrapping_add(unzigzag(varint(&mut self.rest)?)));
        let key_len = varint(&mut self.rest)?;
        let value_len = varint(&mut self.rest)?;
        let key = match key_len {
            0 => None,
            n => Some(self.take(n - 1)?),
        };
        let value = self.take(value_len)?;
        Some(RecordRef { time, key, value })
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = RecordRef<'a>;

    fn next(&mut self) -> Option<RecordRef<'a>> {
        self.left = self.left.checked_sub(1)?;
        let record = self.one();
        if record.is_none() {
            self.left = 0;
        }
        record
    }
}

const fn zigzag(delta: u64) -> u64 {
    (delta << 1) ^ (((delta as i64) >> 63) as u64)
}

const fn unzigzag(coded: u64) -> u64 {
    (coded >> 1) ^ (coded & 1).wrapping_neg()
}

fn put_varint(out: &mut [u8], mut at: usize, mut value: u64) -> usize {
    while value >= 0x80 {
        out[at] = value as u8 | 0x80;
        value >>= 7;
        at += 1;
    }
    out[at] = value as u8;
    at + 1
}

/// Bytes that [`put_varint`] writes: seven bits each.
const fn varint_len(value: u64) -> usize {
    (u64::BITS - (value | 1).leading_zeros()).div_ceil(7) as usize
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for (i, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            *bytes = &bytes[i + 1..];
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::batch::Batch;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn records_round_trip(parts in prop::collection::vec(
            (any::<u64>(), prop::option::of(prop::collection::vec(any::<u8>(), 0..20)),
             prop::collection::vec(any::<u8>(), 0..300)), 1..20)) {
            let records: Vec<Record> = parts.into_iter()
                .map(|(t, key, value)| Record { time: WallMs(t), key, value }).collect();
            let batch = Batch::from(records.clone());
            let back: Vec<Record> = Records::new(batch.payload(), records[0].time, records.len() as u32)
                .map(|r| r.to_record()).collect();
            prop_assert_eq!(back, records);
        }

        #[test]
        fn any_bytes_decode_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), n in 0u32..50) {
            prop_assert!(Records::new(&bytes, WallMs(5), n).count() <= n as usize);
            let batch = Batch::decode(&bytes, WallMs(5), n);
            prop_assert_eq!(batch.iter().count(), batch.len());
            for index in 0..batch.len() + 2 {
                prop_assert_eq!(batch.get(index), batch.iter().nth(index));
            }
        }
    }
}
