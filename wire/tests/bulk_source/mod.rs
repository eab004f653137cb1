//! A source of bulk ranges with real files on a real disk, and a receiver that copies.

#![allow(dead_code, unreachable_pub)]

use glommio::LocalExecutor;
use narad_core::copy::SegmentId;
use narad_core::ids::{Epoch, MoveId, Offset, PartitionIndex, PartitionKey, TopicId};
use narad_wire::bulk::{
    BulkError, BulkOptions, BulkServer, BulkStatus, BulkStream, RangeRequest, SessionTable,
};
use std::fs::File;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

// As `build.rs` asks the linker to.
narad_wire::runtime_hooks!();

pub const TOKEN: u64 = 0x5eed;
pub const MOVE: MoveId = MoveId(40);

pub fn dir(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("bulk-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Bytes that differ from place to place, so that a shifted or repeated chunk shows.
pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut out = Vec::with_capacity(len);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len);
    out
}

pub fn segment_file(path: &Path, content: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(content).unwrap();
    file.sync_all().unwrap();
}

pub fn key() -> PartitionKey {
    PartitionKey {
        topic: TopicId(3),
        partition: PartitionIndex(1),
    }
}

pub fn segment(base: u64) -> SegmentId {
    SegmentId {
        base: Offset(base),
        epoch: Epoch(1),
    }
}

pub fn range(base: u64, from: u64, len: u64) -> RangeRequest {
    RangeRequest {
        key: key(),
        move_id: MOVE,
        token: TOKEN,
        segment: segment(base),
        from,
        len,
        drain: false,
    }
}

pub struct Source {
    pub dir: PathBuf,
    pub sessions: Arc<SessionTable>,
    pub server: BulkServer,
    pub addr: String,
}

impl Source {
    pub fn start(name: &str, change: impl FnOnce(&mut BulkOptions)) -> Self {
        let dir = dir(name);
        let sessions = Arc::new(SessionTable::new());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let mut options = BulkOptions::new(&dir);
        change(&mut options);
        let server = BulkServer::start(listener, sessions.clone(), options).unwrap();
        Self {
            dir,
            sessions,
            server,
            addr,
        }
    }

    pub fn offer(&self, base: u64, content: &[u8]) -> PathBuf {
        let path = self.dir.join(format!("{base}.seg"));
        segment_file(&path, content);
        self.sessions.open(key(), MOVE, TOKEN).unwrap();
        self.publish(base, &path, content.len() as u64);
        path
    }

    pub fn publish(&self, base: u64, path: &Path, len: u64) {
        let published = vec![(segment(base), path.to_owned(), len)];
        assert!(self.sessions.publish(key(), MOVE, published));
    }

    pub fn end(self) {
        self.server.stop();
        std::fs::remove_dir_all(&self.dir).unwrap();
    }
}

pub fn run<T>(future: impl Future<Output = T>) -> T {
    LocalExecutor::default().run(future)
}

pub async fn copy(addr: &str, base: u64, len: u64, range_len: u64) -> Vec<u8> {
    let mut stream = BulkStream::connect(addr).await.unwrap();
    let mut out = Vec::new();
    let mut buf = vec![0; 300 << 10];
    let mut asked = 0;
    while (out.len() as u64) < len {
        while asked < len && stream.outstanding() < 4 {
            let next = range_len.min(len - asked);
            stream.request(range(base, asked, next)).await.unwrap();
            asked += next;
        }
        let (request, at) = stream.position().unwrap();
        assert_eq!((request.segment, at), (segment(base), out.len() as u64));
        let n = stream.read_into(&mut buf).await.unwrap();
        assert!(n > 0);
        out.extend_from_slice(&buf[..n]);
    }
    assert_eq!(stream.read_into(&mut buf).await.unwrap(), 0);
    out
}

pub async fn refused(stream: &mut BulkStream, request: RangeRequest) -> (BulkStatus, u64) {
    stream.request(request).await.unwrap();
    let mut buf = vec![0; 4096];
    match stream.read_into(&mut buf).await {
        Err(BulkError::Refused {
            request: of,
            status,
            durable_len,
        }) => {
            assert_eq!(of, request);
            (status, durable_len)
        }
        other => panic!("not refused: {other:?}"),
    }
}
