//! Copy sessions as the bulk channel knows them: what may be sent to whom.
//!
//! What this file keeps true: a range is granted only while its session is open, for the right
//! token, below the durable length published last; published lengths of one segment never shrink.
//! The table is shared between the shards, which own the sessions, and the serving threads.

use super::header::{BulkStatus, RangeRequest};
use crate::limits;
use narad_core::copy::SegmentId;
use narad_core::ids::{MoveId, PartitionKey};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

/// One segment that a session offers.
#[derive(Clone, Debug)]
struct Offered {
    path: Arc<PathBuf>,
    durable_len: u64,
}

#[derive(Debug)]
struct Session {
    token: u64,
    segments: HashMap<SegmentId, Offered>,
}

/// What a shard publishes of one segment: which, where, and how many bytes are durable.
pub type Published = (SegmentId, PathBuf, u64);

/// No more sessions can be opened on this node now; try again when a move has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this node serves {0} copy sessions already; try again when a move has ended")]
pub struct TableFull(pub usize);

/// A granted range.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) path: Arc<PathBuf>,
    pub(crate) durable_len: u64,
}

/// The copy sessions of one node. Shared by `Arc`; every method takes a short lock and does no I/O.
#[derive(Debug, Default)]
pub struct SessionTable {
    sessions: Mutex<HashMap<(PartitionKey, MoveId), Session>>,
}

impl SessionTable {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(PartitionKey, MoveId), Session>> {
        self.sessions
            .lock()
            .expect("no holder of this lock can panic")
    }

    /// Opens a session, or opens it again: what it had published stands when the token is the
    /// same and is forgotten when it is another one.
    ///
    /// # Errors
    /// [`TableFull`] when the node serves as many sessions as it can.
    pub fn open(&self, key: PartitionKey, move_id: MoveId, token: u64) -> Result<(), TableFull> {
        let mut sessions = self.lock();
        let known = sessions.get(&(key, move_id));
        if known.is_some_and(|session| session.token == token) {
            return Ok(());
        }
        if known.is_none() && sessions.len() >= limits::BULK_MAX_SESSIONS {
            return Err(TableFull(sessions.len()));
        }
        sessions.insert(
            (key, move_id),
            Session {
                token,
                segments: HashMap::new(),
            },
        );
        Ok(())
    }

    /// Offers these segments up to these durable lengths, and no others: a segment that is not
    /// named any more (retention has deleted it) is withdrawn. A length below the one published
    /// before is ignored: durable bytes do not become less. False when the session is not open.
    pub fn publish(&self, key: PartitionKey, move_id: MoveId, segments: Vec<Published>) -> bool {
        let mut sessions = self.lock();
        let Some(session) = sessions.get_mut(&(key, move_id)) else {
            return false;
        };
        let before = std::mem::take(&mut session.segments);
        for (id, path, durable_len) in segments {
            let known = before.get(&id).map_or(0, |offered| offered.durable_len);
            session.segments.insert(
                id,
                Offered {
                    path: Arc::new(path),
                    durable_len: durable_len.max(known),
                },
            );
        }
        true
    }

    /// Ends a session: no range that starts after this call is granted, and a range under way
    /// stops at its next chunk.
    pub fn close(&self, key: PartitionKey, move_id: MoveId) {
        self.lock().remove(&(key, move_id));
    }

    /// Ends every session of a partition.
    pub fn close_all(&self, key: PartitionKey) {
        self.lock().retain(|(of, _), _| *of != key);
    }

    /// Number of open sessions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether no session is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether this range may be sent now. The second part of a refusal is the durable length,
    /// where that is known.
    pub(crate) fn grant(&self, request: &RangeRequest) -> Result<Grant, (BulkStatus, u64)> {
        let aligned = request.from.is_multiple_of(limits::BULK_ALIGN)
            && request.len.is_multiple_of(limits::BULK_ALIGN);
        if !aligned || request.len == 0 || request.len > limits::RANGE_MAX_BYTES {
            return Err((BulkStatus::BadRequest, 0));
        }
        let sessions = self.lock();
        let session = sessions
            .get(&(request.key, request.move_id))
            .ok_or((BulkStatus::NoSession, 0))?;
        if session.token != request.token {
            return Err((BulkStatus::WrongToken, 0));
        }
        let offered = session
            .segments
            .get(&request.segment)
            .ok_or((BulkStatus::NoSegment, 0))?;
        let end = request
            .from
            .checked_add(request.len)
            .ok_or((BulkStatus::BadRequest, 0))?;
        if end > offered.durable_len {
            return Err((BulkStatus::BeyondDurable, offered.durable_len));
        }
        Ok(Grant {
            path: offered.path.clone(),
            durable_len: offered.durable_len,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use narad_core::ids::{Epoch, Offset, PartitionIndex, TopicId};

    fn key() -> PartitionKey {
        PartitionKey {
            topic: TopicId(1),
            partition: PartitionIndex(0),
        }
    }

    fn segment(base: u64) -> SegmentId {
        SegmentId {
            base: Offset(base),
            epoch: Epoch(1),
        }
    }

    fn ask(from: u64, len: u64, token: u64) -> RangeRequest {
        RangeRequest {
            key: key(),
            move_id: MoveId(5),
            token,
            segment: segment(0),
            from,
            len,
            drain: false,
        }
    }

    fn status(table: &SessionTable, request: &RangeRequest) -> BulkStatus {
        table
            .grant(request)
            .map_or_else(|(s, _)| s, |_| BulkStatus::Ok)
    }

    #[test]
    fn only_published_durable_bytes_of_an_open_session_are_granted() {
        let table = SessionTable::new();
        assert_eq!(status(&table, &ask(0, 512, 9)), BulkStatus::NoSession);
        table.open(key(), MoveId(5), 9).unwrap();
        assert_eq!(status(&table, &ask(0, 512, 9)), BulkStatus::NoSegment);
        assert!(table.publish(key(), MoveId(5), vec![(segment(0), "/a".into(), 1024)]));
        assert_eq!(status(&table, &ask(512, 512, 9)), BulkStatus::Ok);
        assert_eq!(status(&table, &ask(512, 512, 8)), BulkStatus::WrongToken);
        assert_eq!(
            status(&table, &ask(512, 1024, 9)),
            BulkStatus::BeyondDurable
        );
        for (from, len) in [(1, 512), (0, 100), (0, 0), (u64::MAX - 511, 512)] {
            assert_eq!(
                status(&table, &ask(from, len, 9)),
                BulkStatus::BadRequest,
                "{from}+{len}"
            );
        }
        assert_eq!(
            status(&table, &ask(0, limits::RANGE_MAX_BYTES + 512, 9)),
            BulkStatus::BadRequest
        );
        table.close(key(), MoveId(5));
        assert_eq!(status(&table, &ask(0, 512, 9)), BulkStatus::NoSession);
        assert!(!table.publish(key(), MoveId(5), vec![]));
    }

    #[test]
    fn lengths_grow_segments_can_be_withdrawn_and_a_new_token_forgets() {
        let table = SessionTable::new();
        table.open(key(), MoveId(5), 9).unwrap();
        table.publish(key(), MoveId(5), vec![(segment(0), "/a".into(), 2048)]);
        table.publish(key(), MoveId(5), vec![(segment(0), "/a".into(), 1024)]);
        assert_eq!(status(&table, &ask(1024, 1024, 9)), BulkStatus::Ok);
        table.open(key(), MoveId(5), 9).unwrap();
        assert_eq!(status(&table, &ask(0, 512, 9)), BulkStatus::Ok);
        table.publish(key(), MoveId(5), vec![]);
        assert_eq!(status(&table, &ask(0, 512, 9)), BulkStatus::NoSegment);
        table.publish(key(), MoveId(5), vec![(segment(0), "/a".into(), 2048)]);
        table.open(key(), MoveId(5), 10).unwrap();
        assert_eq!(status(&table, &ask(0, 512, 10)), BulkStatus::NoSegment);
    }

    #[test]
    fn the_table_is_bounded() {
        let table = SessionTable::new();
        for id in 0..limits::BULK_MAX_SESSIONS as u64 {
            table.open(key(), MoveId(id), 1).unwrap();
        }
        assert!(table.open(key(), MoveId(u64::MAX), 1).is_err());
        assert!(table.open(key(), MoveId(0), 1).is_ok());
        table.close_all(key());
        assert!(table.is_empty());
    }
}
