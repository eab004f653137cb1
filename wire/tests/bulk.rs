//! The bulk channel on real files (O_DIRECT, a real disk) and real sockets.
//!
//! What this file keeps true: a copy is byte-exact, leaves the page cache alone, and nothing is
//! sent that the session does not allow.

use glommio::LocalExecutor;
use narad_core::copy::SegmentId;
use narad_core::ids::{Epoch, MoveId, Offset, PartitionIndex, PartitionKey, TopicId};
use narad_wire::bulk::{
    BulkError, BulkOptions, BulkServer, BulkStatus, BulkStream, CopyPath, RangeRequest,
    SessionTable,
};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const TOKEN: u64 = 0x5eed;
const MOVE: MoveId = MoveId(40);

fn dir(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("bulk-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Bytes that differ from place to place, so that a shifted or repeated chunk shows.
fn bytes(len: usize, seed: u64) -> Vec<u8> {
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

fn segment_file(path: &Path, content: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(content).unwrap();
    file.sync_all().unwrap();
}

fn key() -> PartitionKey {
    PartitionKey {
        topic: TopicId(3),
        partition: PartitionIndex(1),
    }
}

fn segment(base: u64) -> SegmentId {
    SegmentId {
        base: Offset(base),
        epoch: Epoch(1),
    }
}

fn range(base: u64, from: u64, len: u64) -> RangeRequest {
    RangeRequest {
        key: key(),
        move_id: MOVE,
        token: TOKEN,
        segment: segment(base),
        from,
        len,
    }
}

struct Source {
    dir: PathBuf,
    sessions: Arc<SessionTable>,
    server: BulkServer,
    addr: String,
}

impl Source {
    fn start(name: &str, change: impl FnOnce(&mut BulkOptions)) -> Self {
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

    fn offer(&self, base: u64, content: &[u8]) -> PathBuf {
        let path = self.dir.join(format!("{base}.seg"));
        segment_file(&path, content);
        self.sessions.open(key(), MOVE, TOKEN).unwrap();
        self.publish(base, &path, content.len() as u64);
        path
    }

    fn publish(&self, base: u64, path: &Path, len: u64) {
        let published = vec![(segment(base), path.to_owned(), len)];
        assert!(self.sessions.publish(key(), MOVE, published));
    }

    fn end(self) {
        self.server.stop();
        std::fs::remove_dir_all(&self.dir).unwrap();
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    LocalExecutor::default().run(future)
}

async fn copy(addr: &str, base: u64, len: u64, range_len: u64) -> Vec<u8> {
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

/// Pages of the file in the page cache.
fn cached_pages(path: &Path) -> (usize, usize) {
    use nix::libc;
    let file = File::open(path).unwrap();
    let len = usize::try_from(file.metadata().unwrap().len()).unwrap();
    let pages = len.div_ceil(4096);
    let mut seen = vec![0u8; pages];
    // SAFETY: a read-only private mapping of a whole file, unmapped before the file is closed;
    // mincore writes one byte a page into a buffer of that many.
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ,
            libc::MAP_PRIVATE,
            file.as_raw_fd(),
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        assert_eq!(libc::mincore(at, len, seen.as_mut_ptr()), 0);
        libc::munmap(at, len);
    }
    (seen.iter().filter(|page| **page & 1 == 1).count(), pages)
}

fn drop_from_cache(path: &Path) {
    let file = File::open(path).unwrap();
    nix::fcntl::posix_fadvise(
        &file,
        0,
        0,
        nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED,
    )
    .unwrap();
}

fn copies_exactly_without_the_page_cache(path: CopyPath) {
    let source = Source::start(path.as_str(), |o| o.path = Some(path));
    assert_eq!(source.server.path(), path);
    let content = bytes((9 << 20) + 512 * 7, 1);
    let file = source.offer(0, &content);
    drop_from_cache(&file);
    let (before, pages) = cached_pages(&file);
    let len = content.len() as u64;
    let got = run(copy(&source.addr, 0, len, 5 << 20));
    assert!(got == content, "the copy differs");
    let (after, _) = cached_pages(&file);
    assert!(
        after <= before,
        "the copy put {after} of {pages} pages into the page cache, {before} were there"
    );
    // A reader through the cache shows that the check can fail.
    std::fs::read(&file).unwrap();
    assert!(cached_pages(&file).0 > after);
    let stats = source.server.stats();
    assert_eq!((stats.sent_bytes, stats.ranges), (len, 2));
    source.end();
}

#[test]
fn splice_copies_exactly_without_the_page_cache() {
    copies_exactly_without_the_page_cache(CopyPath::Splice);
}

#[test]
fn pread_copies_exactly_without_the_page_cache() {
    copies_exactly_without_the_page_cache(CopyPath::PreadSend);
}

#[test]
fn the_probe_finds_splice_on_a_disk_and_says_so_where_it_cannot_look() {
    let source = Source::start("probe", |_| {});
    assert_eq!(source.server.path(), CopyPath::Splice);
    let left: Vec<_> = std::fs::read_dir(&source.dir).unwrap().collect();
    assert!(left.is_empty(), "the probe leaves nothing behind");
    let content = bytes(1 << 20, 2);
    source.offer(0, &content);
    assert!(run(copy(&source.addr, 0, 1 << 20, 1 << 20)) == content);
    source.end();
    let nowhere = Source::start("nowhere", |o| o.dir.push("missing"));
    assert_eq!(nowhere.server.path(), CopyPath::PreadSend);
    nowhere.offer(0, &content);
    assert!(run(copy(&nowhere.addr, 0, 1 << 20, 1 << 20)) == content);
    nowhere.end();
}

#[test]
fn concurrent_streams_do_not_mix() {
    let source = Source::start("concurrent", |_| {});
    let contents: Vec<Vec<u8>> = (0..4)
        .map(|i| bytes((3 << 20) + 512 * i, 10 + i as u64))
        .collect();
    source.sessions.open(key(), MOVE, TOKEN).unwrap();
    let mut published = Vec::new();
    for (base, content) in (0u64..).zip(&contents) {
        let path = source.dir.join(format!("{base}.seg"));
        segment_file(&path, content);
        published.push((segment(base), path, content.len() as u64));
    }
    source.sessions.publish(key(), MOVE, published);
    let got = run(async {
        let copies = (0u64..).zip(&contents).map(|(base, content)| {
            copy(&source.addr, base, content.len() as u64, 700 << 10 & !511)
        });
        futures::future::join_all(copies).await
    });
    assert!(got == contents, "a copy differs");
    source.end();
}

async fn refused(stream: &mut BulkStream, request: RangeRequest) -> (BulkStatus, u64) {
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

#[test]
fn refusals_are_typed_and_leave_the_stream_usable() {
    let source = Source::start("refusals", |_| {});
    let content = bytes(8192, 3);
    let file = source.offer(0, &content);
    // The file is longer than what is durable: the rest must not leave the node.
    let mut longer = content.clone();
    longer.extend_from_slice(&bytes(8192, 4));
    segment_file(&file, &longer);
    run(async {
        let mut s = BulkStream::connect(&source.addr).await.unwrap();
        let beyond = refused(&mut s, range(0, 8192, 512)).await;
        assert_eq!(beyond, (BulkStatus::BeyondDurable, 8192));
        let across = refused(&mut s, range(0, 4096, 8192)).await;
        assert_eq!(across, (BulkStatus::BeyondDurable, 8192));
        let mut wrong = range(0, 0, 512);
        wrong.token ^= 1;
        assert_eq!(refused(&mut s, wrong).await.0, BulkStatus::WrongToken);
        let mut other = range(0, 0, 512);
        other.move_id = MoveId(41);
        assert_eq!(refused(&mut s, other).await.0, BulkStatus::NoSession);
        let nothing = refused(&mut s, range(77, 0, 512)).await;
        assert_eq!(nothing.0, BulkStatus::NoSegment);
        // Refused and granted ranges in one pipeline keep their order.
        s.request(range(0, 0, 4096)).await.unwrap();
        s.request(range(77, 0, 512)).await.unwrap();
        s.request(range(0, 4096, 4096)).await.unwrap();
        let mut buf = vec![0; 8192];
        assert_eq!(s.read_into(&mut buf[..4096]).await.unwrap(), 4096);
        assert!(matches!(
            s.read_into(&mut buf[4096..]).await,
            Err(BulkError::Refused {
                status: BulkStatus::NoSegment,
                ..
            })
        ));
        assert_eq!(s.read_into(&mut buf[4096..]).await.unwrap(), 4096);
        assert!(buf == content);
        source.sessions.close(key(), MOVE);
        let closed = refused(&mut s, range(0, 0, 512)).await;
        assert_eq!(closed.0, BulkStatus::NoSession);
        source.sessions.open(key(), MOVE, TOKEN).unwrap();
        let gone = source.dir.join("gone.seg");
        source.publish(0, &gone, 8192);
        assert_eq!(refused(&mut s, range(0, 0, 512)).await.0, BulkStatus::Io);
        // A malformed range ends the stream, with a typed answer first.
        assert_eq!(
            refused(&mut s, range(0, 1, 512)).await.0,
            BulkStatus::BadRequest
        );
        let after = s.request(range(0, 0, 512)).await;
        assert!(matches!(after, Err(BulkError::Broken)));
    });
    assert_eq!(source.server.stats().refused, 9);
    source.end();
}

#[test]
fn a_file_that_grows_between_requests_is_followed() {
    let source = Source::start("grow", |_| {});
    let all = bytes(6 << 20, 5);
    let file = source.offer(0, &all[..1 << 20]);
    run(async {
        let mut s = BulkStream::connect(&source.addr).await.unwrap();
        let mut got = Vec::new();
        let mut buf = vec![0; 1 << 20];
        for step in 0..6u64 {
            if step > 0 {
                let mut out = File::options().append(true).open(&file).unwrap();
                let at = usize::try_from(step << 20).unwrap();
                out.write_all(&all[at..at + (1 << 20)]).unwrap();
                out.sync_all().unwrap();
                let early = refused(&mut s, range(0, step << 20, 1 << 20)).await;
                assert_eq!(early, (BulkStatus::BeyondDurable, step << 20));
                source.publish(0, &file, (step + 1) << 20);
            }
            s.request(range(0, step << 20, 1 << 20)).await.unwrap();
            assert_eq!(s.read_into(&mut buf).await.unwrap(), 1 << 20);
            got.extend_from_slice(&buf);
        }
        assert!(got == all);
    });
    source.end();
}

#[test]
fn a_broken_range_says_how_many_bytes_came() {
    let source = Source::start("broken", |_| {});
    let content = bytes(2 << 20, 6);
    let file = source.offer(0, &content);
    // Published, but not there: the source finds out in the middle of the range.
    source.publish(0, &file, 4 << 20);
    run(async {
        let mut s = BulkStream::connect(&source.addr).await.unwrap();
        s.request(range(0, 0, 4 << 20)).await.unwrap();
        let mut buf = vec![0; 512 << 10];
        let mut got = Vec::new();
        let broken = loop {
            match s.read_into(&mut buf).await {
                Ok(n) => got.extend_from_slice(&buf[..n]),
                Err(error) => break error,
            }
        };
        let BulkError::Interrupted {
            request, received, ..
        } = broken
        else {
            panic!("{broken:?}");
        };
        assert_eq!(request, range(0, 0, 4 << 20));
        assert_eq!(received, 2 << 20);
        assert!(got == content);
        assert!(matches!(
            s.read_into(&mut buf).await,
            Err(BulkError::Broken)
        ));
    });
    assert_eq!(source.server.stats().interrupted, 1);
    source.end();
}

#[test]
fn closing_the_session_stops_a_range_under_way() {
    let source = Source::start("close", |_| {});
    let len = 32u64 << 20;
    source.offer(0, &bytes(usize::try_from(len).unwrap(), 7));
    run(async {
        let mut s = BulkStream::connect(&source.addr).await.unwrap();
        s.request(range(0, 0, len)).await.unwrap();
        let mut buf = vec![0; 64 << 10];
        s.read_into(&mut buf).await.unwrap();
        // The server is stuck on full socket buffers, which hold less than the range.
        source.sessions.close(key(), MOVE);
        let mut came = buf.len() as u64;
        loop {
            match s.read_into(&mut buf).await {
                Ok(n) => came += n as u64,
                Err(BulkError::Interrupted { received, .. }) => {
                    assert!(received >= came && received < len, "{received}");
                    break;
                }
                Err(other) => panic!("{other:?}"),
            }
        }
    });
    source.end();
}

#[test]
fn idle_streams_end_at_both_sides() {
    let source = Source::start("idle", |o| o.idle = Duration::from_millis(100));
    source.offer(0, &bytes(4096, 8));
    run(async {
        let mut s = BulkStream::connect(&source.addr).await.unwrap();
        s.request(range(0, 0, 4096)).await.unwrap();
        let mut buf = vec![0; 4096];
        s.read_into(&mut buf).await.unwrap();
        while source.server.stats().streams > 0 {
            glommio::timer::sleep(Duration::from_millis(5)).await;
        }
        let _ = s.request(range(0, 0, 4096)).await;
        assert!(matches!(
            s.read_into(&mut buf).await,
            Err(BulkError::Interrupted { received: 0, .. })
        ));
        // A source that says nothing: the listener's backlog takes the connection, nobody answers.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = silent.local_addr().unwrap().to_string();
        let mut s = BulkStream::connect_with(&addr, Duration::from_millis(50))
            .await
            .unwrap();
        s.request(range(0, 0, 4096)).await.unwrap();
        assert!(matches!(
            s.read_into(&mut buf).await,
            Err(BulkError::Interrupted { received: 0, .. })
        ));
    });
    source.end();
}

#[test]
fn too_many_streams_are_turned_away_with_a_reason() {
    let source = Source::start("busy", |o| o.max_streams = 2);
    source.offer(0, &bytes(4096, 9));
    run(async {
        let mut buf = vec![0; 4096];
        let mut held = Vec::new();
        for _ in 0..2 {
            let mut s = BulkStream::connect(&source.addr).await.unwrap();
            s.request(range(0, 0, 4096)).await.unwrap();
            assert_eq!(s.read_into(&mut buf).await.unwrap(), 4096);
            held.push(s);
        }
        let mut third = BulkStream::connect(&source.addr).await.unwrap();
        let answer = refused(&mut third, range(0, 0, 4096)).await;
        assert_eq!(answer.0, BulkStatus::Busy);
        held.clear();
        while source.server.stats().streams > 0 {
            glommio::timer::sleep(Duration::from_millis(5)).await;
        }
        let mut fourth = BulkStream::connect(&source.addr).await.unwrap();
        fourth.request(range(0, 0, 4096)).await.unwrap();
        assert_eq!(fourth.read_into(&mut buf).await.unwrap(), 4096);
    });
    source.end();
}

#[test]
fn garbage_gets_a_typed_answer_and_an_end() {
    let source = Source::start("garbage", |_| {});
    let mut raw = TcpStream::connect(&source.addr).unwrap();
    raw.write_all(&[0xaa; narad_wire::bulk::header::REQUEST_BYTES])
        .unwrap();
    let mut answer = Vec::new();
    raw.read_to_end(&mut answer).unwrap();
    let header = answer.as_slice().try_into().unwrap();
    let response = narad_wire::bulk::header::Response::decode(header).unwrap();
    assert_eq!(response.status, BulkStatus::BadRequest);
    // Half a header and then nothing: the thread ends with the connection.
    let mut half = TcpStream::connect(&source.addr).unwrap();
    half.write_all(&[1; 10]).unwrap();
    drop(half);
    while source.server.stats().streams > 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    source.end();
}

#[test]
fn stopping_ends_streams_and_threads() {
    let source = Source::start("stop", |_| {});
    let len = 32u64 << 20;
    source.offer(0, &bytes(usize::try_from(len).unwrap(), 11));
    let addr = source.addr.clone();
    run(async {
        let mut s = BulkStream::connect(&addr).await.unwrap();
        s.request(range(0, 0, len)).await.unwrap();
        let mut buf = vec![0; 64 << 10];
        s.read_into(&mut buf).await.unwrap();
        // Returns although a thread is blocked on a socket that nobody reads.
        source.end();
        let end = loop {
            if let Err(error) = s.read_into(&mut buf).await {
                break error;
            }
        };
        assert!(matches!(end, BulkError::Interrupted { .. }), "{end:?}");
        assert!(BulkStream::connect(&addr).await.is_err());
    });
}

#[test]
fn a_rate_limit_slows_and_lifting_it_speeds_up_again() {
    let source = Source::start("rate", |_| {});
    let len = 8u64 << 20;
    source.offer(0, &bytes(usize::try_from(len).unwrap(), 12));
    let time = |source: &Source| {
        let start = std::time::Instant::now();
        run(copy(&source.addr, 0, len, len));
        start.elapsed()
    };
    let free = time(&source);
    // Eight chunks of 1 MiB at eight times the free run's time for all of them: the first goes at
    // once, seven wait their turn.
    let rate = (len as f64 / (8.0 * free.as_secs_f64().max(0.005))) as u64;
    source.server.set_rate_bytes_per_s(rate);
    let limited = time(&source);
    assert!(limited > free * 4, "{limited:?} against {free:?}");
    source.server.set_rate_bytes_per_s(0);
    let again = time(&source);
    assert!(again < limited / 2, "{again:?} against {limited:?}");
    source.end();
}
