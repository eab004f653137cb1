//! Receiving: what a peer sent, handed to Raft, and the answer as bytes.
//!
//! Keeps true: a peer's bytes are checked before Raft sees them; one snapshot at a time is collected, within its
//! bound, and installed only when it is complete and its checksum is right; nothing is taken from a leader whose log
//! contradicts what is committed here. Raft takes that for impossible, and would answer that it has the leader's
//! entries; it happens when a lost quorum was replaced by a survivor that had less.

use super::machine::{Machine, Unfit};
use super::node::{BarrierError, RaftNode};
use super::types::{LogId, Snapshot, TypeConfig, Vote, term_of};
use super::wire::{
    ChunkHeader, ChunkReply, DecodeError, RaftMessage, RaftMessageKind, ReadIndexReply,
    decode_chunk, from_bytes, to_bytes,
};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::{AppendEntriesRequest, SnapshotResponse};

/// Why a message of a peer got no answer.
#[derive(Debug, thiserror::Error)]
pub enum RaftHandleError {
    /// The bytes are not what their kind says.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// Raft has stopped here: this node has to be restarted.
    #[error("Raft has stopped on this node: {0}")]
    Stopped(String),
    /// Nothing can be taken from this leader: this node must not go on.
    #[error(transparent)]
    Unfit(#[from] Unfit),
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
            RaftMessageKind::AppendEntries => {
                let request: AppendEntriesRequest<TypeConfig> = from_bytes(&body)?;
                let entries = request.entries.iter().map(|entry| entry.log_id);
                self.check_committed(
                    &request.vote,
                    request.prev_log_id.into_iter().chain(entries),
                )?;
                let answer = raft.append_entries(request).await.map_err(stopped)?;
                Ok(to_bytes(&answer))
            }
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

    /// Refuses positions of a leader's log that contradict what is committed here. Once one was seen, nothing is taken
    /// any more: what could be answered would be wrong.
    fn check_committed(
        &self,
        vote: &Vote,
        theirs: impl Iterator<Item = LogId>,
    ) -> Result<(), Unfit> {
        if let Some(unfit) = &*self.inner.unfit.borrow() {
            return Err(unfit.clone());
        }
        let (known, committed) = {
            let metrics = self.raft().metrics();
            let metrics = metrics.borrow_watched();
            (metrics.vote.clone(), metrics.local_committed)
        };
        // A former leader: it is told so, and what it had may be anything.
        let Some(committed) = committed.filter(|_| known <= *vote) else {
            return Ok(());
        };
        for id in theirs.take_while(|id| id.index <= committed.index) {
            let ours = self.inner.log.log_id_at(id.index);
            // Terms never fall along a log, which tells about entries too that are purged here.
            let later = term_of(&id) > term_of(&committed);
            if later || ours.is_some_and(|ours| ours != id) {
                return Err(self.unfit(Unfit::Diverged(format!(
                    "the leader's log has term {} at index {}, where this node has a committed entry of another term \
                     (it knows entries up to term {}, index {} to be committed)",
                    term_of(&id),
                    id.index,
                    term_of(&committed),
                    committed.index
                ))));
            }
        }
        Ok(())
    }

    fn unfit(&self, unfit: Unfit) -> Unfit {
        let mut slot = self.inner.unfit.borrow_mut();
        if slot.is_none() {
            tracing::error!(
                "{unfit}; nothing of the leader's log is taken, and nothing is deleted here"
            );
        }
        slot.get_or_insert(unfit).clone()
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
        self.check_committed(&header.vote, header.meta.last_log_id.into_iter())?;
        let applied = self.raft().metrics().borrow_watched().last_applied;
        let applied = applied.map_or((0, 0), |id| (term_of(&id), id.index));
        let checked = self
            .machine()
            .borrow()
            .check_snapshot(&arrived.data, applied);
        checked.map_err(|unfit| self.unfit(unfit))?;
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
