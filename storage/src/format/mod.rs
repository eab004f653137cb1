//! The bytes of every file, read and written nowhere else. `FORMAT.md` has the tables.
//!
//! What this module keeps true: all integers are little-endian, every structure carries a CRC32C,
//! and decoding never panics whatever the bytes are.

pub mod batch;
pub(crate) mod crc;
pub mod frame;
pub mod list;
pub mod meta;
pub mod record;
pub mod segment;

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Why a structure on the disk is not usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatError {
    /// Not this structure, or its checksum is wrong.
    Damaged(&'static str),
    /// Written by a newer version.
    Newer(u32),
}
