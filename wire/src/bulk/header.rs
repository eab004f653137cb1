//! Request and response headers of the bulk channel.
//!
//! What this file keeps true: both headers have a fixed size, name their magic and version, and
//! end in a CRC32C of everything before it; a header that fails any check is refused before a
//! field of it is believed. All numbers are little-endian.
//!
//! | request | bytes | | response | bytes |
//! | --- | --- | --- | --- | --- |
//! | magic `NRDQ` | 4 | | magic `NRDA` | 4 |
//! | version (1) | 2 | | version (1) | 2 |
//! | kind (1: range) | 2 | | status | 2 |
//! | topic incarnation | 8 | | CRC of the request that it answers | 4 |
//! | partition | 4 | | zero | 4 |
//! | flags (1: drain) | 4 | | from | 8 |
//! | move id | 8 | | bytes that follow | 8 |
//! | token | 8 | | durable length at the source | 8 |
//! | segment base, segment epoch | 16 | | zero | 4 |
//! | from, length | 16 | | CRC32C of bytes 0..44 | 4 |
//! | zero | 4 | | | |
//! | CRC32C of bytes 0..76 | 4 | | | |

use narad_core::copy::SegmentId;
use narad_core::ids::{Epoch, MoveId, Offset, PartitionIndex, PartitionKey, TopicId};

/// Bytes of a request header.
pub const REQUEST_BYTES: usize = 80;
/// Bytes of a response header.
pub const RESPONSE_BYTES: usize = 48;
/// Version of both headers.
pub const VERSION: u16 = 1;

const REQUEST_MAGIC: [u8; 4] = *b"NRDQ";
const RESPONSE_MAGIC: [u8; 4] = *b"NRDA";
const KIND_RANGE: u16 = 1;
const FLAG_DRAIN: u32 = 1;

/// A request for bytes of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeRequest {
    /// The partition.
    pub key: PartitionKey,
    /// The move whose copy session this is.
    pub move_id: MoveId,
    /// What the session's manifest named as bulk token.
    pub token: u64,
    /// The segment.
    pub segment: SegmentId,
    /// First byte; a multiple of 512.
    pub from: u64,
    /// Bytes wanted; a multiple of 512, at least 512, at most
    /// [`RANGE_MAX_BYTES`](crate::limits::RANGE_MAX_BYTES).
    pub len: u64,
    /// The partition is frozen and waits for these bytes: no rate limit applies to them.
    pub drain: bool,
}

/// How a request was answered. The numbers are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum BulkStatus {
    /// The bytes follow.
    Ok = 0,
    /// Malformed header, misaligned or too long range. The connection ends.
    BadRequest = 1,
    /// No open session of this partition and move.
    NoSession = 2,
    /// The session exists, the token is another one.
    WrongToken = 3,
    /// The session has published no such segment.
    NoSegment = 4,
    /// The range reaches beyond the published durable length (which the response carries).
    BeyondDurable = 5,
    /// The segment could not be opened or read at the source.
    Io = 6,
    /// All serving threads are taken; try again shortly. The connection ends.
    Busy = 7,
    /// A newer version of the header. The connection ends.
    Unsupported = 8,
    /// The node is stopping. The connection ends.
    Stopping = 9,
}

impl BulkStatus {
    fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            0 => Self::Ok,
            1 => Self::BadRequest,
            2 => Self::NoSession,
            3 => Self::WrongToken,
            4 => Self::NoSegment,
            5 => Self::BeyondDurable,
            6 => Self::Io,
            7 => Self::Busy,
            8 => Self::Unsupported,
            9 => Self::Stopping,
            _ => return None,
        })
    }

    /// Whether the server ends the connection after this answer.
    #[must_use]
    pub fn ends_connection(self) -> bool {
        match self {
            Self::BadRequest | Self::Busy | Self::Unsupported | Self::Stopping => true,
            Self::Ok
            | Self::NoSession
            | Self::WrongToken
            | Self::NoSegment
            | Self::BeyondDurable
            | Self::Io => false,
        }
    }

    /// One sentence for a person.
    #[must_use]
    pub fn explain(self) -> &'static str {
        match self {
            Self::Ok => "the bytes follow",
            Self::BadRequest => "the source could not make sense of the request",
            Self::NoSession => "the source has no open copy session of this move; open it again",
            Self::WrongToken => "the copy session has another token; open the session again",
            Self::NoSegment => "the copy session has published no such segment; refresh it",
            Self::BeyondDurable => {
                "the range reaches beyond what is durable at the source; refresh the session"
            }
            Self::Io => "the source could not read the segment; see its log",
            Self::Busy => "all bulk streams of the source are taken; try again shortly",
            Self::Unsupported => "the source runs an older version; upgrade it first",
            Self::Stopping => "the source is shutting down",
        }
    }
}

/// A response header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// Outcome.
    pub status: BulkStatus,
    /// CRC of the request that it answers; 0 when that could not be read.
    pub request_crc: u32,
    /// First byte, as requested.
    pub from: u64,
    /// Bytes that follow; 0 unless the status is `Ok`.
    pub len: u64,
    /// Durable length of the segment as published; 0 where that is not known.
    pub durable_len: u64,
}

/// Why a header was not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Not a bulk header at all.
    #[error("bad magic {0:02x?}: the other side does not speak the bulk protocol")]
    Magic([u8; 4]),
    /// Bytes changed on the way.
    #[error("header checksum mismatch")]
    Checksum,
    /// A version, kind or status that this program does not know.
    #[error("unknown {what} {number}: the other side may run a newer version")]
    Unknown {
        /// Which field.
        what: &'static str,
        /// Its value.
        number: u16,
    },
}

struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.out[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (head, tail) = self.bytes.split_at(N);
        self.bytes = tail;
        head.try_into().expect("split at N")
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

fn checked<'a>(bytes: &'a [u8], magic: [u8; 4]) -> Result<Reader<'a>, HeaderError> {
    let mut reader = Reader { bytes };
    let found: [u8; 4] = reader.take();
    if found != magic {
        return Err(HeaderError::Magic(found));
    }
    let (body, crc) = bytes.split_at(bytes.len() - 4);
    if crc32c::crc32c(body).to_le_bytes() != crc {
        return Err(HeaderError::Checksum);
    }
    let version = reader.u16();
    if version != VERSION {
        return Err(HeaderError::Unknown {
            what: "version",
            number: version,
        });
    }
    Ok(reader)
}

impl RangeRequest {
    /// The header, and the CRC that its answer will name.
    #[must_use]
    pub fn encode(&self) -> ([u8; REQUEST_BYTES], u32) {
        let mut bytes = [0; REQUEST_BYTES];
        let mut w = Writer {
            out: &mut bytes,
            at: 0,
        };
        w.put(&REQUEST_MAGIC);
        w.put(&VERSION.to_le_bytes());
        w.put(&KIND_RANGE.to_le_bytes());
        w.put(&self.key.topic.0.to_le_bytes());
        w.put(&self.key.partition.0.to_le_bytes());
        let flags = if self.drain { FLAG_DRAIN } else { 0 };
        w.put(&flags.to_le_bytes());
        w.put(&self.move_id.0.to_le_bytes());
        w.put(&self.token.to_le_bytes());
        w.put(&self.segment.base.0.to_le_bytes());
        w.put(&self.segment.epoch.0.to_le_bytes());
        w.put(&self.from.to_le_bytes());
        w.put(&self.len.to_le_bytes());
        w.put(&[0; 4]);
        let crc = crc32c::crc32c(&bytes[..REQUEST_BYTES - 4]);
        bytes[REQUEST_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        (bytes, crc)
    }

    /// Reads a header; the second part is its CRC.
    ///
    /// # Errors
    /// [`HeaderError`] when it cannot be believed.
    pub fn decode(bytes: &[u8; REQUEST_BYTES]) -> Result<(Self, u32), HeaderError> {
        let mut r = checked(bytes, REQUEST_MAGIC)?;
        let kind = r.u16();
        if kind != KIND_RANGE {
            return Err(HeaderError::Unknown {
                what: "kind",
                number: kind,
            });
        }
        let topic = TopicId(r.u64());
        let partition = PartitionIndex(r.u32());
        // Flags of a newer peer that are not known here change nothing.
        let drain = r.u32() & FLAG_DRAIN != 0;
        let request = Self {
            key: PartitionKey { topic, partition },
            move_id: MoveId(r.u64()),
            token: r.u64(),
            segment: SegmentId {
                base: Offset(r.u64()),
                epoch: Epoch(r.u64()),
            },
            from: r.u64(),
            len: r.u64(),
            drain,
        };
        let _zero = r.u32();
        Ok((request, r.u32()))
    }
}

impl Response {
    /// The header.
    #[must_use]
    pub fn encode(&self) -> [u8; RESPONSE_BYTES] {
        let mut bytes = [0; RESPONSE_BYTES];
        let mut w = Writer {
            out: &mut bytes,
            at: 0,
        };
        w.put(&RESPONSE_MAGIC);
        w.put(&VERSION.to_le_bytes());
        w.put(&(self.status as u16).to_le_bytes());
        w.put(&self.request_crc.to_le_bytes());
        w.put(&[0; 4]);
        w.put(&self.from.to_le_bytes());
        w.put(&self.len.to_le_bytes());
        w.put(&self.durable_len.to_le_bytes());
        w.put(&[0; 4]);
        let crc = crc32c::crc32c(&bytes[..RESPONSE_BYTES - 4]);
        bytes[RESPONSE_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// [`HeaderError`] when it cannot be believed.
    pub fn decode(bytes: &[u8; RESPONSE_BYTES]) -> Result<Self, HeaderError> {
        let mut r = checked(bytes, RESPONSE_MAGIC)?;
        let number = r.u16();
        let status = BulkStatus::from_number(number).ok_or(HeaderError::Unknown {
            what: "status",
            number,
        })?;
        let request_crc = r.u32();
        let _zero = r.u32();
        Ok(Self {
            status,
            request_crc,
            from: r.u64(),
            len: r.u64(),
            durable_len: r.u64(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> RangeRequest {
        RangeRequest {
            key: PartitionKey {
                topic: TopicId(7),
                partition: PartitionIndex(3),
            },
            move_id: MoveId(99),
            token: 0xfeed_f00d,
            segment: SegmentId {
                base: Offset(1_000),
                epoch: Epoch(2),
            },
            from: 512,
            len: 1 << 20,
            drain: true,
        }
    }

    #[test]
    fn headers_survive_the_wire() {
        let (bytes, crc) = request().encode();
        assert_eq!(RangeRequest::decode(&bytes), Ok((request(), crc)));
        let response = Response {
            status: BulkStatus::BeyondDurable,
            request_crc: crc,
            from: 512,
            len: 0,
            durable_len: 4096,
        };
        assert_eq!(Response::decode(&response.encode()), Ok(response));
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let (good, _) = request().encode();
        let answer = Response {
            status: BulkStatus::Ok,
            request_crc: 1,
            from: 2,
            len: 3,
            durable_len: 4,
        }
        .encode();
        for at in 0..REQUEST_BYTES {
            let mut bad = good;
            bad[at] ^= 0x10;
            assert!(RangeRequest::decode(&bad).is_err(), "byte {at}");
        }
        for at in 0..RESPONSE_BYTES {
            let mut bad = answer;
            bad[at] ^= 0x10;
            assert!(Response::decode(&bad).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_newer_version_is_told_from_damage() {
        let (mut bytes, _) = request().encode();
        bytes[4] = 2;
        let crc = crc32c::crc32c(&bytes[..REQUEST_BYTES - 4]);
        bytes[REQUEST_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(
            RangeRequest::decode(&bytes),
            Err(HeaderError::Unknown {
                what: "version",
                number: 2
            })
        );
    }
}
