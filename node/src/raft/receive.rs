//! Receiving: what a peer sent, handed to Raft, and the answer as bytes.
//!
//! Keeps true: a peer's bytes are checked before Raft sees them; one snapshot at a time is collected, within its
//! bound, and installed only when it is complete and its checksum is right.

use super::machine::Machine;
use super::node::{BarrierError, RaftNode};
use super::types::{Snapshot, TypeConfig};
use super::wire::{
    ChunkHeader, ChunkReply, DecodeError, RaftMessage, RaftMessageKind, ReadIndexReply,
    decode_chunk, from_bytes, to_bytes,
};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::SnapshotResponse;

/// Why a message of a peer got no answer.
#[derive(Debug, thiserror::Error)]
pub enum RaftHandleError {
    /// The bytes are not what their kind says.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// Raft has stopped here: this node has to be restarted.
    #[error("Raft has stopped on this node: {0}")]
    Stopped(String),
    /// A snapshot arrived damaged.
    #[error(
        "the snapshot arrived damaged (checksum {found:08x}, sent {sent:08x}); it is sent again"
    )]
    DamagedSnapshot {
        /// CRC32C of what arrived.
        found: u32,
        /// CRC32C that the sender named.
        sent: u32,
    },
}

/// A snapshot that is arriving.
pub(super) struct Arriving {
    session: u64,
    data: Vec<u8>,
}

fn stopped(error: impl std::fmt::Display) -> RaftHandleError {
    RaftHandleError::Stopped(error.to_string())
}

impl<M: Machine> RaftNode<M> {
    /// Handles one message of a peer and returns the bytes of the answer. Dropping the future drops the answer
    /// only: what Raft was told, it was told.
    pub async fn handle(&self, message: RaftMessage) -> Result<Vec<u8>, RaftHandleError> {
        let RaftMessage { kind, body } = message;
        let raft = self.raft();
        match kind {
            RaftMessageKind::AppendEntries => Ok(to_bytes(
                &raft
                    .append_entries(from_bytes(&body)?)
                    .await
                    .map_err(stopped)?,
            )),
            RaftMessageKind::Vote => Ok(to_bytes(
                &raft.vote(from_bytes(&body)?).await.map_err(stopped)?,
            )),
            RaftMessageKind::PreVote => Ok(to_bytes(
                &raft.pre_vote(from_bytes(&body)?).await.map_err(stopped)?,
            )),
            RaftMessageKind::TransferLeader => Ok(to_bytes(
                &raft
                    .handle_transfer_leader(from_bytes(&body)?)
                    .await
                    .map_err(stopped)?,
            )),
            RaftMessageKind::SnapshotChunk => {
                let (header, data) = decode_chunk(&body)?;
                Ok(to_bytes(&self.take_chunk(header, data).await?))
            }
            RaftMessageKind::ReadIndex => Ok(to_bytes(&match self.leader_read_index().await {
                Ok(index) => ReadIndexReply::Index(index),
                Err(BarrierError::NotLeader { leader }) => ReadIndexReply::NotLeader(leader),
                Err(BarrierError::Unconfirmed(why)) => ReadIndexReply::Unconfirmed(why),
                Err(error @ (BarrierError::NotApplied { .. } | BarrierError::Stopped(_))) => {
                    return Err(stopped(error));
                }
            })),
        }
    }

    async fn take_chunk(
        &self,
        header: ChunkHeader,
        data: &[u8],
    ) -> Result<ChunkReply, RaftHandleError> {
        let known = self.raft().metrics().borrow_watched().vote.clone();
        if known > header.vote {
            self.arriving().take();
            return Ok(ChunkReply::Done(SnapshotResponse::<TypeConfig>::new(known)));
        }
        {
            let mut slot = self.arriving();
            if header.offset == 0 {
                *slot = Some(Arriving {
                    session: header.session,
                    data: Vec::new(),
                });
            }
            let Some(arriving) = slot
                .as_mut()
                .filter(|arriving| arriving.session == header.session)
            else {
                return Ok(ChunkReply::Restart);
            };
            let have = arriving.data.len() as u64;
            if header.offset > have {
                return Ok(ChunkReply::Restart);
            }
            if header.offset == have {
                arriving.data.extend_from_slice(data);
            }
            let have = arriving.data.len() as u64;
            if have < header.total {
                return Ok(ChunkReply::Next(have));
            }
        }
        let Some(arrived) = self.arriving().take() else {
            return Ok(ChunkReply::Restart);
        };
        let found = crc32c::crc32c(&arrived.data);
        if found != header.crc {
            return Err(RaftHandleError::DamagedSnapshot {
                found,
                sent: header.crc,
            });
        }
        let snapshot = Snapshot {
            meta: header.meta,
            snapshot: arrived.data,
        };
        let response = self
            .raft()
            .install_full_snapshot(header.vote, snapshot)
            .await
            .map_err(stopped)?;
        Ok(ChunkReply::Done(response))
    }
}
