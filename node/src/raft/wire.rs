//! The messages between the Raft parts of two nodes, as bytes that the shell carries.
//!
//! Keeps true: no message is longer than [`MAX_MESSAGE_BYTES`]; bytes of a peer never panic, they are refused.

use super::limits::{MAX_MESSAGE_BYTES, MAX_SNAPSHOT_BYTES, SNAPSHOT_CHUNK_BYTES};
use super::types::{SnapshotMeta, TypeConfig, Vote};
use openraft::raft::SnapshotResponse;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What a message asks for. The numbers go over the wire and are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum RaftMessageKind {
    /// Entries, or a heartbeat.
    AppendEntries = 1,
    /// A vote.
    Vote = 2,
    /// Whether a vote would be granted.
    PreVote = 3,
    /// A piece of a snapshot.
    SnapshotChunk = 4,
    /// The leader hands over.
    TransferLeader = 5,
    /// The leader's read index, after it confirmed itself.
    ReadIndex = 6,
}

impl RaftMessageKind {
    /// The kind with number `number`, if this release knows it.
    pub fn from_number(number: u16) -> Option<RaftMessageKind> {
        use RaftMessageKind::*;
        [
            AppendEntries,
            Vote,
            PreVote,
            SnapshotChunk,
            TransferLeader,
            ReadIndex,
        ]
        .into_iter()
        .find(|kind| kind.number() == number)
    }

    /// Its number on the wire.
    pub fn number(self) -> u16 {
        self as u16
    }
}

/// One request. The answer is plain bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaftMessage {
    /// What it asks for.
    pub kind: RaftMessageKind,
    /// The request, at most [`MAX_MESSAGE_BYTES`] long.
    pub body: Vec<u8>,
}

/// Why bytes of a peer were refused.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Too long to be looked at.
    #[error("a message of {0} bytes is longer than a Raft message may be")]
    TooLong(usize),
    /// Not what its kind says.
    #[error("the message does not parse: {0}")]
    Malformed(String),
}

pub(super) fn to_bytes<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain data serialises")
}

pub(super) fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    if bytes.len() > MAX_MESSAGE_BYTES {
        return Err(DecodeError::TooLong(bytes.len()));
    }
    serde_json::from_slice(bytes).map_err(|error| DecodeError::Malformed(error.to_string()))
}

/// What comes before the data of a snapshot chunk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ChunkHeader {
    /// The sending leader's vote.
    pub(super) vote: Vote,
    /// What the snapshot covers.
    pub(super) meta: SnapshotMeta,
    /// One sending of one snapshot.
    pub(super) session: u64,
    /// Where the data belongs, in bytes.
    pub(super) offset: u64,
    /// Length of the whole snapshot, in bytes.
    pub(super) total: u64,
    /// CRC32C of the whole snapshot.
    pub(super) crc: u32,
}

/// Header length (u32, little endian), header as JSON, data.
pub(super) fn encode_chunk(header: &ChunkHeader, data: &[u8]) -> Vec<u8> {
    let json = to_bytes(header);
    let mut out = Vec::with_capacity(4 + json.len() + data.len());
    out.extend_from_slice(&(json.len() as u32).to_le_bytes());
    out.extend_from_slice(&json);
    out.extend_from_slice(data);
    out
}

pub(super) fn decode_chunk(bytes: &[u8]) -> Result<(ChunkHeader, &[u8]), DecodeError> {
    let short = || DecodeError::Malformed("a snapshot chunk ends early".to_owned());
    if bytes.len() > MAX_MESSAGE_BYTES {
        return Err(DecodeError::TooLong(bytes.len()));
    }
    let len = bytes
        .first_chunk::<4>()
        .map(|word| u32::from_le_bytes(*word) as usize)
        .ok_or_else(short)?;
    let json = bytes[4..].get(..len).ok_or_else(short)?;
    let data = &bytes[4 + len..];
    let header: ChunkHeader = from_bytes(json)?;
    let end = header.offset.checked_add(data.len() as u64);
    if header.total > MAX_SNAPSHOT_BYTES
        || data.len() > SNAPSHOT_CHUNK_BYTES
        || end.is_none_or(|end| end > header.total)
    {
        return Err(DecodeError::Malformed(
            "a snapshot chunk is outside its bounds".to_owned(),
        ));
    }
    Ok((header, data))
}

/// Answer to a snapshot chunk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum ChunkReply {
    /// Taken; the next byte wanted.
    Next(u64),
    /// Installed, or refused for a higher vote.
    Done(SnapshotResponse<TypeConfig>),
    /// This session is not known here any more: start over.
    Restart,
}

/// Answer to a read index request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum ReadIndexReply {
    /// Everything that was committed before the request is at or below this index.
    Index(u64),
    /// Asked the wrong node; the leader's id and address, if it is known.
    NotLeader(Option<(String, String)>),
    /// It could not confirm that it still leads.
    Unconfirmed(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_keep_their_numbers() {
        for number in 0..64 {
            if let Some(kind) = RaftMessageKind::from_number(number) {
                assert_eq!(kind.number(), number);
            }
        }
        assert_eq!(
            RaftMessageKind::from_number(4),
            Some(RaftMessageKind::SnapshotChunk)
        );
        assert_eq!(RaftMessageKind::from_number(7), None);
    }

    #[test]
    fn bad_chunks_are_refused_and_do_not_panic() {
        let meta = SnapshotMeta::default();
        let header = ChunkHeader {
            vote: Vote::new(1, "a".into()),
            meta,
            session: 1,
            offset: 2,
            total: 5,
            crc: 0,
        };
        let good = encode_chunk(&header, b"abc");
        let (read, data) = decode_chunk(&good).unwrap();
        assert_eq!((read.offset, data), (2, &b"abc"[..]));
        for len in 0..good.len() - 3 {
            assert!(decode_chunk(&good[..len]).is_err(), "{len} bytes");
        }
        assert!(
            decode_chunk(&encode_chunk(&header, b"abcd")).is_err(),
            "past the end"
        );
        let far = ChunkHeader {
            offset: u64::MAX,
            ..header
        };
        assert!(
            decode_chunk(&encode_chunk(&far, b"abc")).is_err(),
            "overflow"
        );
        assert!(decode_chunk(&[0xff; 64]).is_err());
    }
}
