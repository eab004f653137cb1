//! Bytes of a copy: from the source's bulk channel into the staged files.
//!
//! What this file keeps true: bytes are staged in order and verified as they arrive; what was staged
//! before a failure stays, and what was staged a moment ago survives a crash, without a pause for it;
//! memory is bounded by the writes in flight; only an unfrozen copy waits for the rate limit.

use super::courtesy::Courtesy;
use super::interrupt::Interrupt;
use super::limits::{AHEAD, CHECKPOINT_MS, CHUNK_BYTES, RANGE_BYTES, RENEW_MS, STREAMS};
use super::source::{NotMember, Source};
use super::throttle::Throttle;
use crate::metrics::{Direction, DirectionLabel, Metrics};
use narad_core::ids::{HandoffId, MoveId, PartitionKey};
use narad_core::moves::target::CopyRange;
use narad_storage::{StageError, Staging};
use narad_wire::bulk::{BulkError, BulkStream, RangeRequest};
use std::cell::Cell;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Why a copy stopped early.
#[derive(Debug, thiserror::Error)]
pub(super) enum CopyError {
    /// The wire.
    #[error(transparent)]
    Bulk(#[from] BulkError),
    /// The staged files, or bytes that do not verify.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// The source's address is not known.
    #[error(transparent)]
    Source(#[from] NotMember),
    /// The source sent fewer bytes than were asked for.
    #[error("the source sent {got} bytes where {want} were asked for")]
    Short {
        /// Bytes that came.
        got: usize,
        /// Bytes asked for.
        want: usize,
    },
    /// The worker does not want it any more.
    #[error("the copy was stopped")]
    Interrupted,
}

/// What one copy is done with.
pub(super) struct Receive<'a> {
    /// Bulk address of the source.
    pub(super) addr: &'a str,
    pub(super) key: PartitionKey,
    pub(super) move_id: MoveId,
    pub(super) token: u64,
    pub(super) throttle: Option<&'a Throttle>,
    pub(super) courtesy: &'a Courtesy,
    /// The frozen source, whose freeze is renewed as bytes arrive.
    pub(super) renew: Option<(&'a Source, HandoffId)>,
    pub(super) interrupt: &'a Interrupt,
    pub(super) live_bytes: &'a Cell<u64>,
    pub(super) metrics: &'a Metrics,
    /// Whether what the source told of these ranges is saved: before, nothing of them is made durable.
    pub(super) vouched: &'a dyn Fn() -> bool,
}

/// The ranges in pieces, each small enough to be asked for at once. Made as they are wanted: how
/// many there are is what a peer has claimed.
fn pieces(ranges: &[CopyRange], template: RangeRequest) -> impl Iterator<Item = RangeRequest> + '_ {
    ranges.iter().flat_map(move |range| {
        let whole = range.to.saturating_sub(range.from);
        (0..whole.div_ceil(RANGE_BYTES)).map(move |nth| {
            let from = range.from + nth * RANGE_BYTES;
            RangeRequest {
                segment: range.segment,
                from,
                len: RANGE_BYTES.min(range.to - from),
                ..template
            }
        })
    })
}

impl Receive<'_> {
    /// Copies the ranges; on a failure what came before it is staged. `streams` are kept for the
    /// next copy; a kept one that the source has closed meanwhile is replaced once.
    pub(super) async fn run(
        &self,
        streams: &mut Vec<BulkStream>,
        staging: &mut Staging,
        ranges: &[CopyRange],
    ) -> Result<u64, CopyError> {
        let kept = !streams.is_empty();
        let before = self.live_bytes.get();
        let mut result = self.copy(streams, staging, ranges).await;
        let untouched = self.live_bytes.get() == before;
        if kept && untouched && matches!(result, Err(CopyError::Bulk(_))) {
            streams.clear();
            result = self.copy(streams, staging, ranges).await;
        }
        if result.is_err() {
            // Requests that were not read to their end must not be answered into the next copy.
            streams.clear();
        }
        result
    }

    async fn copy(
        &self,
        streams: &mut Vec<BulkStream>,
        staging: &mut Staging,
        ranges: &[CopyRange],
    ) -> Result<u64, CopyError> {
        let Some(first) = ranges.first() else {
            return Ok(0);
        };
        let template = RangeRequest {
            key: self.key,
            move_id: self.move_id,
            token: self.token,
            segment: first.segment,
            from: 0,
            len: 0,
            drain: self.renew.is_some(),
        };
        let lanes = pieces(ranges, template).take(STREAMS).count();
        self.connect(streams, lanes).await?;
        let mut waiting = pieces(ranges, template).peekable();
        let mut asked: VecDeque<RangeRequest> = VecDeque::new();
        let lanes = streams.len().max(1);
        let (mut next_ask, mut next_read) = (0, 0);
        let mut copied = 0;
        let (mut renewed, mut saved) = (Instant::now(), Instant::now());
        while !(waiting.peek().is_none() && asked.is_empty()) {
            while asked.len() < lanes * AHEAD
                && let Some(piece) = waiting.peek().copied()
            {
                waiting.next();
                streams[next_ask % lanes].request(piece).await?;
                asked.push_back(piece);
                next_ask += 1;
            }
            let Some(piece) = asked.pop_front() else {
                break;
            };
            self.read_piece(&mut streams[next_read % lanes], staging, piece)
                .await?;
            next_read += 1;
            copied += piece.len;
            self.renew_if_due(&mut renewed);
            let due = saved.elapsed() >= Duration::from_millis(CHECKPOINT_MS);
            if due && self.renew.is_none() && (self.vouched)() {
                staging.checkpoint();
                saved = Instant::now();
            }
        }
        Ok(copied)
    }

    async fn connect(&self, streams: &mut Vec<BulkStream>, lanes: usize) -> Result<(), CopyError> {
        while streams.len() < lanes {
            let stream = self
                .interrupt
                .race(BulkStream::connect(self.addr))
                .await??;
            streams.push(stream);
        }
        Ok(())
    }

    async fn read_piece(
        &self,
        stream: &mut BulkStream,
        staging: &mut Staging,
        piece: RangeRequest,
    ) -> Result<(), CopyError> {
        let mut at = piece.from;
        let end = piece.from + piece.len;
        while at < end {
            self.courtesy.look();
            let most = self.throttle.map_or(CHUNK_BYTES, Throttle::chunk_bytes);
            let want = usize::try_from(end - at).map_or(most, |left| left.min(most));
            let mut buffer = staging.buffer(want);
            let got = self
                .interrupt
                .race(stream.read_into(buffer.as_mut()))
                .await??;
            if got != want {
                return Err(CopyError::Short { got, want });
            }
            staging.set_gate(self.throttle.map(|throttle| throttle.gate().clone()));
            staging.write(piece.segment, at, buffer).await?;
            at += got as u64;
            if let Some(throttle) = self.throttle {
                // The sources pace what they send; this binds when several send to this node.
                self.interrupt.race(throttle.take(got as u64)).await?;
            }
            self.live_bytes.set(self.live_bytes.get() + got as u64);
            self.metrics
                .copied_bytes
                .get_or_create(&DirectionLabel {
                    direction: Direction::In,
                })
                .inc_by(got as u64);
        }
        Ok(())
    }

    /// The drain makes progress: the source's freeze lives on. Nobody waits for the answer.
    fn renew_if_due(&self, renewed: &mut Instant) {
        let Some((source, handoff_id)) = self.renew else {
            return;
        };
        let ttl_ms = source.ctx.config.moves.freeze_ttl_ms;
        if renewed.elapsed() < Duration::from_millis(RENEW_MS.min(ttl_ms / 5)) {
            return;
        }
        *renewed = Instant::now();
        let source = source.clone();
        glommio::spawn_local(async move {
            if let Err(error) = source.renew(handoff_id).await {
                tracing::debug!(key = %source.key, ?error, "freeze not renewed");
            }
        })
        .detach();
    }
}

#[cfg(test)]
#[path = "receive_tests.rs"]
mod tests;
