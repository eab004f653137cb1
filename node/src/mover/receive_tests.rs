//! Copies over real sockets and real files: bulk server, streams, staging, install.

use super::*;
use narad_core::copy::{InstallMark, Manifest, SegmentId, SegmentState};
use narad_core::ids::{CopyId, Epoch, Offset, PartitionIndex, TopicId, WallMs};
use narad_storage::{Log, Options, Record, layout};
use narad_wire::bulk::{BulkOptions, BulkServer, SessionTable};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[test]
fn pieces_cover_the_ranges_in_order_without_overlap() {
    let segment = |base| SegmentId {
        base: Offset(base),
        epoch: Epoch(1),
    };
    let ranges = [
        CopyRange {
            segment: segment(0),
            from: 512,
            to: 2 * RANGE_BYTES + 1_024,
        },
        CopyRange {
            segment: segment(9),
            from: 0,
            to: 512,
        },
    ];
    let template = RangeRequest {
        key: PartitionKey {
            topic: TopicId(1),
            partition: PartitionIndex(0),
        },
        move_id: MoveId(3),
        token: 4,
        segment: segment(0),
        from: 0,
        len: 0,
        drain: false,
    };
    let pieces: Vec<_> = pieces(&ranges, template).collect();
    assert_eq!(pieces.len(), 4);
    let mut at = 512;
    for piece in pieces.iter().take(3) {
        assert_eq!(piece.from, at);
        assert!(piece.len <= RANGE_BYTES && piece.token == 4);
        at += piece.len;
    }
    assert_eq!(at, ranges[0].to);
    assert_eq!((pieces[3].segment, pieces[3].len), (segment(9), 512));
}

const KEY: PartitionKey = PartitionKey {
    topic: TopicId(5),
    partition: PartitionIndex(1),
};
const MOVE: MoveId = MoveId(9);
const TOKEN: u64 = 77;

/// A directory on a real disk, removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let base = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/mover-tests");
        let path = base.join(format!("{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a directory for the test");
        Self(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn copy_id(epoch: u64) -> CopyId {
    CopyId {
        key: KEY,
        epoch: Epoch(epoch),
    }
}

fn small() -> Options {
    Options {
        segment_bytes: 3 << 20,
        ..Options::default()
    }
}

/// A source with a log, a session and a bulk server.
struct SourceNode {
    log: Log,
    sessions: Arc<SessionTable>,
    server: BulkServer,
    addr: String,
}

impl SourceNode {
    async fn start(root: &Path) -> Self {
        let log = Log::create(root, copy_id(1), &small()).await.expect("log");
        let sessions = Arc::new(SessionTable::new());
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("an address").to_string();
        let server = BulkServer::start(listener, sessions.clone(), BulkOptions::new(root))
            .expect("bulk server");
        sessions.open(KEY, MOVE, TOKEN).expect("room for a session");
        Self {
            log,
            sessions,
            server,
            addr,
        }
    }

    async fn append(&self, count: u64) {
        for batch in 0..count.div_ceil(100) {
            let records: Vec<_> = (0..100.min(count - batch * 100))
                .map(|i| Record {
                    time: WallMs(1_000 + batch),
                    key: None,
                    value: format!("{batch}/{i}:").repeat(60).into_bytes(),
                })
                .collect();
            self.log.append(records, None).await.expect("append");
        }
    }

    fn manifest(&self) -> Manifest {
        let manifest = self.log.manifest();
        let published = manifest
            .segments
            .iter()
            .filter_map(|s| Some((s.id, self.log.segment_path(s.id)?, s.durable_len)))
            .collect();
        self.sessions.publish(KEY, MOVE, published);
        manifest
    }
}

fn ranges_of(manifest: &Manifest, staged: &[SegmentState]) -> Vec<CopyRange> {
    let len = |id| {
        staged
            .iter()
            .find(|s| s.id == id)
            .map_or(0, |s| s.durable_len)
    };
    manifest
        .segments
        .iter()
        .map(|s| CopyRange {
            segment: s.id,
            from: len(s.id),
            to: s.durable_len,
        })
        .filter(|r| r.from < r.to)
        .collect()
}

struct Target {
    interrupt: Interrupt,
    live: Cell<u64>,
    metrics: Metrics,
    streams: Vec<BulkStream>,
}

impl Target {
    fn new() -> Self {
        Self {
            interrupt: Interrupt::default(),
            live: Cell::new(0),
            metrics: Metrics::new(),
            streams: Vec::new(),
        }
    }

    async fn copy(
        &mut self,
        addr: &str,
        staging: &mut Staging,
        ranges: &[CopyRange],
        throttle: Option<&Throttle>,
    ) -> Result<u64, CopyError> {
        let receive = Receive {
            addr,
            key: KEY,
            move_id: MOVE,
            token: TOKEN,
            throttle,
            courtesy: &Courtesy::new(Arc::default()),
            renew: None,
            interrupt: &self.interrupt,
            live_bytes: &self.live,
            metrics: &self.metrics,
            vouched: &|| true,
        };
        receive.run(&mut self.streams, staging, ranges).await
    }
}

fn on_executor<F: Future<Output = ()> + 'static>(
    dir: &Path,
    test: impl FnOnce() -> F + Send + 'static,
) {
    let dir = dir.to_path_buf();
    glommio::LocalExecutorBuilder::default()
        .spawn(move || async move {
            narad_storage::prepare_executor(&dir).await.expect("disk");
            test().await;
        })
        .expect("an executor")
        .join()
        .expect("the test passes");
}

async fn all_records(log: &Log) -> Vec<(Offset, Vec<u8>)> {
    let mut out = Vec::new();
    let mut from = log.start();
    while from < log.hwm() {
        let batch = log.read(from, 1_000, 1 << 20).await.expect("read");
        out.extend(
            batch
                .records
                .iter()
                .map(|(o, r)| (*o, r.get().value.to_vec())),
        );
        from = batch.next;
    }
    out
}

#[test]
fn a_copy_with_passes_and_a_drain_is_the_source_bit_for_bit() {
    let (from, to) = (Dir::new("copy-from"), Dir::new("copy-to"));
    let (source_root, root) = (from.0.clone(), to.0.clone());
    on_executor(&from.0, move || async move {
        let source = SourceNode::start(&source_root).await;
        source.append(20_000).await;
        let mut staging = Staging::open_or_create(&root, KEY, MOVE, &small())
            .await
            .expect("staging");
        let mut target = Target::new();
        let mut total = 0;
        for more in [3_000, 500, 0] {
            let manifest = source.manifest();
            let ranges = ranges_of(&manifest, &staging.progress());
            total += target
                .copy(&source.addr, &mut staging, &ranges, None)
                .await
                .expect("copied");
            staging.sync().await.expect("synced");
            source.append(more).await;
        }
        let capture = source.manifest();
        assert!(capture.segments.len() > 2, "several segments");
        assert_eq!(total, capture.total_bytes());
        let mark = InstallMark {
            move_id: MOVE,
            handoff_id: Some(HandoffId(12)),
        };
        staging
            .prepare_install(copy_id(2), &root)
            .await
            .expect("prepared");
        staging
            .finish(&capture, mark, copy_id(2))
            .await
            .expect("equal to the capture");
        staging.install(&root, copy_id(2)).await.expect("installed");
        let found = layout::scan(&root).await.expect("scan").copies;
        assert_eq!(found[0].install, Some(mark));
        assert_eq!((found[0].end, found[0].hwm), (capture.end(), capture.hwm));
        let (log, _) = Log::open(&root, copy_id(2), &small()).await.expect("open");
        assert_eq!(log.hwm(), source.log.hwm());
        assert_eq!(all_records(&log).await, all_records(&source.log).await);
        source.server.stop();
    });
}

#[test]
fn a_copy_of_nothing_asks_nobody() {
    let to = Dir::new("nothing-to");
    let root = to.0.clone();
    on_executor(&to.0, move || async move {
        let mut staging = Staging::open_or_create(&root, KEY, MOVE, &small())
            .await
            .expect("staging");
        // Nobody listens there: an empty drain costs no round trip.
        let copied = Target::new()
            .copy("127.0.0.1:1", &mut staging, &[], None)
            .await;
        assert_eq!(copied.expect("nothing to do"), 0);
    });
}

#[test]
fn a_copy_that_is_stopped_or_cut_off_goes_on_where_it_was() {
    let (from, to) = (Dir::new("cut-from"), Dir::new("cut-to"));
    let (source_root, root) = (from.0.clone(), to.0.clone());
    on_executor(&from.0, move || async move {
        let source = SourceNode::start(&source_root).await;
        source.append(20_000).await;
        let mut staging = Staging::open_or_create(&root, KEY, MOVE, &small())
            .await
            .expect("staging");
        let mut target = Target::new();
        let manifest = source.manifest();
        let ranges = ranges_of(&manifest, &[]);
        // The first segment only, then the session is gone, then the worker wants no more.
        target
            .copy(&source.addr, &mut staging, &ranges[..1], None)
            .await
            .expect("copied");
        source.sessions.close(KEY, MOVE);
        let rest = ranges_of(&manifest, &staging.progress());
        let cut = target.copy(&source.addr, &mut staging, &rest, None).await;
        assert!(matches!(cut, Err(CopyError::Bulk(_))), "{cut:?}");
        source.sessions.open(KEY, MOVE, TOKEN).expect("room");
        source.manifest();
        target.interrupt.stop();
        let stopped = target.copy(&source.addr, &mut staging, &rest, None).await;
        assert!(
            matches!(stopped, Err(CopyError::Interrupted)),
            "{stopped:?}"
        );
        staging.sync().await.expect("synced");
        drop(staging);
        let mut staging = Staging::open_or_create(&root, KEY, MOVE, &small())
            .await
            .expect("staging again");
        let staged: u64 = staging.progress().iter().map(|s| s.durable_len).sum();
        assert!(staged >= manifest.segments[0].durable_len);
        target.interrupt.arm();
        let rest = ranges_of(&manifest, &staging.progress());
        let copied = target
            .copy(&source.addr, &mut staging, &rest, None)
            .await
            .expect("goes on");
        assert_eq!(staged + copied, manifest.total_bytes());
        for (mine, theirs) in staging.progress().iter().zip(&manifest.segments) {
            assert_eq!(
                (mine.id, mine.durable_len, mine.digest),
                (theirs.id, theirs.durable_len, theirs.digest)
            );
        }
        source.server.stop();
    });
}

#[test]
fn a_limit_slows_a_copy_down_and_a_drain_ignores_it() {
    let (from, to) = (Dir::new("slow-from"), Dir::new("slow-to"));
    let (source_root, root) = (from.0.clone(), to.0.clone());
    on_executor(&from.0, move || async move {
        let source = SourceNode::start(&source_root).await;
        source.append(30_000).await;
        let manifest = source.manifest();
        let ranges = ranges_of(&manifest, &[]);
        let mut target = Target::new();
        let throttle = Throttle::new(std::sync::Arc::default());
        // Half of it a second: with the burst that is allowed it takes more than a second.
        let rate = manifest.total_bytes() / 2;
        throttle.set(Some(rate));
        let mut staging = Staging::open_or_create(&root, KEY, MOVE, &small())
            .await
            .expect("staging");
        let began = Instant::now();
        target
            .copy(&source.addr, &mut staging, &ranges, Some(&throttle))
            .await
            .expect("copied");
        let throttled = began.elapsed();
        staging.reset().await.expect("reset");
        let began = Instant::now();
        target
            .copy(&source.addr, &mut staging, &ranges, None)
            .await
            .expect("copied");
        assert!(throttled > began.elapsed(), "the limit is felt");
        assert!(throttled.as_secs_f64() * rate as f64 > manifest.total_bytes() as f64 * 0.5);
        source.server.stop();
    });
}

/// A wire that flips one byte of what the source sends, once, so far into the first connection.
fn bad_wire(to: String, at: usize) -> String {
    use std::io::{Read, Write};
    use std::sync::atomic::{AtomicBool, Ordering};
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address").to_string();
    let flipped = Arc::new(AtomicBool::new(false));
    std::thread::spawn(move || {
        // Ends with the test's process.
        while let Ok((target, _)) = listener.accept() {
            let Ok(source) = std::net::TcpStream::connect(&to) else {
                return;
            };
            let mut up = (
                target.try_clone().expect("a handle"),
                source.try_clone().expect("a handle"),
            );
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut up.0, &mut up.1);
                let _ = up.1.shutdown(std::net::Shutdown::Write);
            });
            let (mut down, flipped) = ((source, target), flipped.clone());
            std::thread::spawn(move || {
                let (mut buffer, mut seen) = (vec![0; 64 << 10], 0);
                while let Ok(got) = down.0.read(&mut buffer) {
                    if got == 0 {
                        break;
                    }
                    let here = (seen..seen + got).contains(&at);
                    if here && !flipped.swap(true, Ordering::SeqCst) {
                        buffer[at - seen] ^= 0x10;
                    }
                    seen += got;
                    if down.1.write_all(&buffer[..got]).is_err() {
                        break;
                    }
                }
                let _ = down.1.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    addr
}

#[test]
fn a_byte_that_is_flipped_on_the_wire_is_found_and_its_segment_goes_on() {
    let (from, to) = (Dir::new("flip-from"), Dir::new("flip-to"));
    let (source_root, root) = (from.0.clone(), to.0.clone());
    on_executor(&from.0, move || async move {
        let source = SourceNode::start(&source_root).await;
        source.append(20_000).await;
        let wire = bad_wire(source.addr.clone(), 700_000);
        let manifest = source.manifest();
        let mut staging = Staging::open_or_create(&root, KEY, MOVE, &small())
            .await
            .expect("staging");
        let mut target = Target::new();
        let ranges = ranges_of(&manifest, &[]);
        let found = target.copy(&wire, &mut staging, &ranges, None).await;
        assert!(
            matches!(found, Err(CopyError::Stage(_) | CopyError::Bulk(_))),
            "the flipped byte is found: {found:?}"
        );
        staging.sync().await.expect("synced");
        // What came before it is good, and the copy goes on from there over the same wire.
        let rest = ranges_of(&manifest, &staging.progress());
        target
            .copy(&wire, &mut staging, &rest, None)
            .await
            .expect("goes on");
        for (mine, theirs) in staging.progress().iter().zip(&manifest.segments) {
            assert_eq!(
                (mine.id, mine.durable_len, mine.digest),
                (theirs.id, theirs.durable_len, theirs.digest)
            );
        }
        source.server.stop();
    });
}
