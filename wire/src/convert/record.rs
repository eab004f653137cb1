//! Records on the wire.

use crate::error::WireError;
use narad_core::ids::WallMs;
use narad_schema::common_capnp::record;

/// A record that belongs to its holder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Record time; 0 lets the accepting node's clock decide.
    pub time: WallMs,
    /// The key; `None` is no key, which is not the same as an empty one.
    pub key: Option<Vec<u8>>,
    /// The value.
    pub value: Vec<u8>,
}

impl Record {
    /// A record without key and time.
    #[must_use]
    pub fn new(value: impl Into<Vec<u8>>) -> Self {
        Self {
            time: WallMs(0),
            key: None,
            value: value.into(),
        }
    }

    /// Gives it a key.
    #[must_use]
    pub fn key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Bytes of key and value.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.key.as_ref().map_or(0, Vec::len) + self.value.len()
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

/// A record inside a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordRef<'a> {
    /// Record time; 0 lets the accepting node's clock decide.
    pub time: WallMs,
    /// The key.
    pub key: Option<&'a [u8]>,
    /// The value.
    pub value: &'a [u8],
}

impl RecordRef<'_> {
    /// Bytes of key and value.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.key.map_or(0, <[u8]>::len) + self.value.len()
    }

    /// A copy that belongs to its holder.
    #[must_use]
    pub fn to_record(&self) -> Record {
        Record {
            time: self.time,
            key: self.key.map(<[u8]>::to_vec),
            value: self.value.to_vec(),
        }
    }
}

/// Looks at a record without copying it.
///
/// # Errors
/// [`WireError::Protocol`] when the bytes are no valid record.
pub fn record_ref(reader: record::Reader<'_>) -> Result<RecordRef<'_>, WireError> {
    let key = if reader.has_key() {
        Some(reader.get_key()?)
    } else {
        None
    };
    Ok(RecordRef {
        time: WallMs(reader.get_time_ms()),
        key,
        value: reader.get_value()?,
    })
}

/// Copies a record out of a message.
///
/// # Errors
/// [`WireError::Protocol`] when the bytes are no valid record.
pub fn read_record(reader: record::Reader<'_>) -> Result<Record, WireError> {
    Ok(record_ref(reader)?.to_record())
}

/// Writes a record.
pub fn write_record(mut builder: record::Builder<'_>, record: RecordRef<'_>) {
    if let Some(key) = record.key {
        builder.set_key(key);
    }
    builder.set_value(record.value);
    builder.set_time_ms(record.time.0);
}

/// Copies a list of records out of a message.
///
/// # Errors
/// [`WireError::Protocol`] when the bytes are no valid list.
pub fn read_records(
    list: capnp::struct_list::Reader<'_, record::Owned>,
) -> Result<Vec<Record>, WireError> {
    list.iter().map(read_record).collect()
}

/// Bytes of keys and values in a list, without copying.
///
/// # Errors
/// [`WireError::Protocol`] when the bytes are no valid list.
pub fn records_bytes(
    list: capnp::struct_list::Reader<'_, record::Owned>,
) -> Result<usize, WireError> {
    let mut bytes = 0usize;
    for record in list.iter() {
        bytes = bytes.saturating_add(record_ref(record)?.bytes());
    }
    Ok(bytes)
}

/// Writes records into a list of exactly their number.
///
/// # Panics
/// When the list has another length.
pub fn write_records<'a>(
    mut list: capnp::struct_list::Builder<'_, record::Owned>,
    records: impl ExactSizeIterator<Item = RecordRef<'a>>,
) {
    assert_eq!(
        list.len() as usize,
        records.len(),
        "the list was made for another number of records"
    );
    for (index, record) in (0u32..).zip(records) {
        write_record(list.reborrow().get(index), record);
    }
}
