//! Records that belong together: in memory as they lie in a frame on the disk.
//!
//! What this file keeps true: a batch holds exactly the payload that its frame will have, so that appending
//! it copies no record once more; a large one lies in aligned memory with room for the frame's header in
//! front, and is written from there; a record taken out of a batch keeps the batch's memory alive.

use super::crc;
use super::record::{Record, RecordRef, Records};
use crate::aligned::Aligned;
use crate::limits::{
    COMBINE_MIN_BYTES, CRC_STEP_BYTES, DIRECT_MIN_BYTES, FRAME_HEADER_BYTES, RECORD_HEAD_BYTES,
    TRIM_BLOCK_BYTES,
};
use narad_core::ids::WallMs;
use std::sync::Arc;

/// Records in the order in which they will be in the log. Made record by record, or from a vector.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Bytes,
    /// Bytes of the payload so far.
    payload_len: usize,
    /// Where each record but the first begins in the payload.
    starts: Vec<u32>,
    count: usize,
    first_time: WallMs,
    earliest: WallMs,
    last_time: WallMs,
    content: usize,
    largest: usize,
    /// Checksum of the first `crc_at` bytes of the payload, without a seed.
    crc: u32,
    crc_at: usize,
}

#[derive(Debug)]
enum Bytes {
    /// The payload.
    Heap(Vec<u8>),
    /// Room for a header, the payload, and room for padding.
    Aligned(Aligned),
}

impl Default for Bytes {
    fn default() -> Self {
        Self::Heap(Vec::new())
    }
}

impl Batch {
    /// An empty batch with room for `records` records with `content` bytes of keys and values in all.
    /// More may be added.
    #[must_use]
    pub fn with_capacity(records: usize, content: usize) -> Self {
        let payload = content + records * RECORD_HEAD_BYTES;
        let bytes = if payload < DIRECT_MIN_BYTES {
            Bytes::Heap(Vec::with_capacity(payload))
        } else {
            Bytes::Aligned(Aligned::new(room(payload)))
        };
        Self {
            bytes,
            starts: Vec::with_capacity(records.saturating_sub(1)),
            ..Self::default()
        }
    }

    /// The records of a frame's payload, copied; ends early at a malformed one.
    pub(crate) fn decode(payload: &[u8], first_time: WallMs, count: u32) -> Self {
        // A record has at least three bytes.
        let at_most = (count as usize).min(payload.len() / 3);
        let mut batch = Self {
            bytes: Bytes::Heap(payload.to_vec()),
            payload_len: payload.len(),
            starts: Vec::with_capacity(at_most.saturating_sub(1)),
            first_time,
            last_time: first_time,
            ..Self::default()
        };
        let mut records = Records::new(payload, first_time, count);
        loop {
            let start = payload.len() - records.rest_len();
            let Some(record) = records.next() else {
                return batch;
            };
            batch.note(start, &record);
        }
    }

    /// Adds a record.
    ///
    /// # Panics
    /// When the batch grows beyond 4 GiB; whoever takes records from others bounds them far below.
    pub fn push(&mut self, record: RecordRef<'_>) {
        if self.count == 0 {
            self.first_time = record.time;
        }
        let start = self.payload_len;
        let head_len = record.head_len(self.first_time);
        self.reserve(head_len + record.content_len());
        record.put_head(self.first_time, self.next(head_len));
        if let Some(key) = record.key {
            self.put(key);
        }
        self.put(record.value);
        self.note(start, &record);
        while self.sums_up() && self.payload_len - self.crc_at >= CRC_STEP_BYTES {
            // Soon after it was copied, while the processor has it at hand.
            let next = self.crc_at + CRC_STEP_BYTES;
            let step = &self.payload()[self.crc_at..next];
            (self.crc, self.crc_at) = (crc32c::crc32c_append(self.crc, step), next);
        }
    }

    /// Whether its checksum is made while it is filled.
    fn sums_up(&self) -> bool {
        matches!(&self.bytes, Bytes::Aligned(aligned) if aligned.bytes().len() > COMBINE_MIN_BYTES)
    }

    fn note(&mut self, start: usize, record: &RecordRef<'_>) {
        if self.count > 0 {
            let start = u32::try_from(start).expect("a batch is far below 4 GiB");
            self.starts.push(start);
        }
        self.earliest = match self.count {
            0 => record.time,
            _ => self.earliest.min(record.time),
        };
        self.count += 1;
        self.last_time = self.last_time.max(record.time);
        self.content += record.content_len();
        self.largest = self.largest.max(record.content_len());
    }

    fn reserve(&mut self, more: usize) {
        let Bytes::Aligned(aligned) = &mut self.bytes else {
            return;
        };
        if room(self.payload_len + more) > aligned.bytes().len() {
            let mut larger = Aligned::new(room(2 * self.payload_len + more));
            let used = FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + self.payload_len;
            larger.bytes_mut()[used.clone()].copy_from_slice(&aligned.bytes()[used]);
            *aligned = larger;
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        match &mut self.bytes {
            Bytes::Heap(heap) => {
                heap.extend_from_slice(bytes);
                self.payload_len += bytes.len();
            }
            Bytes::Aligned(_) => self.next(bytes.len()).copy_from_slice(bytes),
        }
    }

    /// The next bytes of the payload, for which there is room; they count from now on.
    fn next(&mut self, len: usize) -> &mut [u8] {
        let before = self.payload_len;
        self.payload_len += len;
        match &mut self.bytes {
            Bytes::Heap(heap) => {
                heap.resize(self.payload_len, 0);
                &mut heap[before..]
            }
            Bytes::Aligned(aligned) => {
                let at = FRAME_HEADER_BYTES + before;
                &mut aligned.bytes_mut()[at..at + len]
            }
        }
    }

    /// Number of records.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether there is no record.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of keys and values.
    #[must_use]
    pub const fn content_len(&self) -> usize {
        self.content
    }

    /// Bytes of key and value of the largest record.
    #[must_use]
    pub const fn largest(&self) -> usize {
        self.largest
    }

    /// The bytes that a frame with these records has behind its header.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Heap(heap) => heap,
            Bytes::Aligned(aligned) => {
                &aligned.bytes()[FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + self.payload_len]
            }
        }
    }

    pub(crate) const fn payload_len(&self) -> usize {
        self.payload_len
    }

    pub(crate) const fn first_time(&self) -> WallMs {
        self.first_time
    }

    pub(crate) const fn last_time(&self) -> WallMs {
        self.last_time
    }

    /// The earliest and the latest time of its records.
    #[must_use]
    pub const fn times(&self) -> (WallMs, WallMs) {
        (self.earliest, self.last_time)
    }

    /// Memory that it takes, in bytes.
    pub(crate) fn memory(&self) -> usize {
        let bytes = match &self.bytes {
            Bytes::Heap(heap) => heap.capacity(),
            Bytes::Aligned(aligned) => aligned.bytes().len(),
        };
        size_of::<Self>() + bytes + self.starts.capacity() * size_of::<u32>()
    }

    /// The record at this place, if there are so many.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<RecordRef<'_>> {
        let start = match index.checked_sub(1) {
            None => 0,
            Some(before) => *self.starts.get(before)? as usize,
        };
        Records::new(&self.payload()[start..], self.first_time, 1)
            .next()
            .filter(|_| index < self.count)
    }

    /// The records, in order.
    pub fn iter(&self) -> impl Iterator<Item = RecordRef<'_>> {
        let count = u32::try_from(self.count).expect("a batch is far below 4 GiB");
        Records::new(self.payload(), self.first_time, count)
    }

    /// Copies of the records, each with memory of its own.
    #[must_use]
    pub fn to_records(&self) -> Vec<Record> {
        self.iter().map(|record| record.to_record()).collect()
    }

    fn plain_crc(&self) -> u32 {
        crc32c::crc32c_append(self.crc, &self.payload()[self.crc_at..])
    }

    /// Checksum that goes on from `before` with the payload.
    pub(crate) fn crc(&self, before: u32) -> u32 {
        if self.payload_len < COMBINE_MIN_BYTES || self.crc_at == 0 {
            return crc32c::crc32c_append(before, self.payload());
        }
        crc::join(before, self.plain_crc(), self.payload_len)
    }

    /// Whether it can be written from where it is.
    pub(crate) const fn is_aligned(&self) -> bool {
        matches!(self.bytes, Bytes::Aligned(_))
    }

    /// Takes the memory out to be written: the frame with this header and zeros behind it up to `len`
    /// bytes. The batch has no records until [`Self::put_back`].
    ///
    /// # Panics
    /// When it is not aligned, or `len` is more than the frame and one block of padding.
    pub(crate) fn take_frame(&mut self, header: &[u8; FRAME_HEADER_BYTES], len: usize) -> Aligned {
        let Bytes::Aligned(mut aligned) = std::mem::take(&mut self.bytes) else {
            unreachable!("only an aligned batch is written from where it is");
        };
        aligned.trim(len);
        let bytes = aligned.bytes_mut();
        bytes[..FRAME_HEADER_BYTES].copy_from_slice(header);
        bytes[FRAME_HEADER_BYTES + self.payload_len..].fill(0);
        aligned
    }

    pub(crate) fn put_back(&mut self, aligned: Aligned) {
        self.bytes = Bytes::Aligned(aligned);
    }

    /// Its memory was taken and did not come back.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(&self.bytes, Bytes::Heap(heap) if heap.len() < self.payload_len)
    }
}

/// Memory for a frame with this payload, whatever the disk's block is.
const fn room(payload: usize) -> usize {
    (FRAME_HEADER_BYTES + payload).next_multiple_of(TRIM_BLOCK_BYTES as usize)
}

impl<'a> FromIterator<RecordRef<'a>> for Batch {
    fn from_iter<I: IntoIterator<Item = RecordRef<'a>>>(records: I) -> Self {
        let records: Vec<RecordRef<'_>> = records.into_iter().collect();
        let content = records.iter().map(RecordRef::content_len).sum();
        let mut batch = Self::with_capacity(records.len(), content);
        records.into_iter().for_each(|record| batch.push(record));
        batch
    }
}

impl From<Vec<Record>> for Batch {
    fn from(records: Vec<Record>) -> Self {
        records.iter().map(Record::as_ref).collect()
    }
}

/// One record of a log, in memory that it shares with its neighbours.
#[derive(Clone, Debug)]
pub struct StoredRecord {
    batch: Arc<Batch>,
    index: u32,
}

impl StoredRecord {
    /// The record at this place of the batch, if there are so many.
    #[must_use]
    pub fn new(batch: &Arc<Batch>, index: usize) -> Option<Self> {
        // Every record was seen when it was added; it is not decoded here once more.
        (index < batch.len()).then_some(())?;
        Some(Self {
            batch: batch.clone(),
            index: u32::try_from(index).ok()?,
        })
    }

    /// Time, key and value.
    ///
    /// # Panics
    /// Never: the record was there when this was made, and a batch does not change while it is shared.
    #[must_use]
    pub fn get(&self) -> RecordRef<'_> {
        self.batch
            .get(self.index as usize)
            .expect("a shared batch does not change")
    }

    /// A copy with memory of its own.
    #[must_use]
    pub fn to_record(&self) -> Record {
        self.get().to_record()
    }

    /// Bytes of key and value.
    #[must_use]
    pub fn content_len(&self) -> usize {
        self.get().content_len()
    }

    /// Memory that it keeps alive, shared with its neighbours, in bytes.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.batch.memory()
    }
}

impl From<Record> for StoredRecord {
    fn from(record: Record) -> Self {
        let batch = Arc::new(std::iter::once(record.as_ref()).collect());
        Self { batch, index: 0 }
    }
}

impl PartialEq for StoredRecord {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for StoredRecord {}

/// Lets go of memory that a few records would keep alive: where less than a quarter of a batch is in
/// `records`, these get copies of their own. So what a reader holds is bounded by what it asked for.
pub(crate) fn release_neighbours<K>(records: &mut [(K, StoredRecord)]) {
    let mut rest = records;
    while let Some((_, first)) = rest.first() {
        let batch = first.batch.clone();
        let same = |(_, record): &&(K, StoredRecord)| Arc::ptr_eq(&record.batch, &batch);
        let count = rest.iter().take_while(same).count();
        let (run, after) = rest.split_at_mut(count);
        let held: usize = run.iter().map(|(_, record)| record.content_len()).sum();
        if 4 * (held + run.len() * RECORD_HEAD_BYTES) < batch.payload_len() {
            let own: Arc<Batch> = Arc::new(run.iter().map(|(_, record)| record.get()).collect());
            for (index, (_, record)) in (0..).zip(run.iter_mut()) {
                *record = StoredRecord {
                    batch: own.clone(),
                    index,
                };
            }
        }
        rest = after;
    }
}
