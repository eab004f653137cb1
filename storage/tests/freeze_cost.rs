//! What a freeze costs at the target: counted, and the same for every size of the partition.
//!
//! What this file keeps true: between the last byte of the capture and the moment at which the log is open
//! under its new epoch there are at most three file syncs and two directory syncs, nothing is read back,
//! and nothing grows with the partition or with its active segment. A copy leaves the page cache alone.

mod common;

use common::{Dir, copy, key, options, records, run};
use narad_core::copy::{InstallMark, Manifest};
use narad_core::ids::{HandoffId, MoveId, Offset};
use narad_storage::fault::{self, Op, Probe};
use narad_storage::{Installed, Log, Options, RecoveryReport, StageBuf, Staging, layout};
use std::cell::RefCell;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::rc::Rc;

const MOVE: MoveId = MoveId(9);

/// What was asked of the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cost {
    file_syncs: u32,
    dir_syncs: u32,
    renames: u32,
    written: u64,
    read: u64,
    reserved: u32,
}

struct Counting(Rc<RefCell<Cost>>);

impl Probe for Counting {
    fn before(&mut self, op: &Op<'_>) -> io::Result<()> {
        let mut cost = self.0.borrow_mut();
        match op {
            Op::Sync { .. } => cost.file_syncs += 1,
            Op::SyncDir { .. } | Op::CreateDir { .. } => cost.dir_syncs += 1,
            Op::Replace { bytes, .. } => {
                cost.file_syncs += 1;
                cost.dir_syncs += 1;
                cost.renames += 1;
                cost.written += bytes.len() as u64;
            }
            Op::Rename { from, to } => {
                cost.renames += 1;
                cost.dir_syncs += 1 + u32::from(from.parent() != to.parent());
            }
            Op::Write { bytes, .. } => cost.written += bytes.len() as u64,
            Op::Read { len, .. } => cost.read += *len as u64,
            Op::Allocate { .. } | Op::Truncate { .. } => cost.reserved += 1,
            Op::Open { .. } | Op::Remove { .. } => {}
        }
        Ok(())
    }
}

/// What `work` asked of the disk.
async fn cost_of<T>(work: impl Future<Output = T>) -> (T, Cost) {
    let cost = Rc::new(RefCell::new(Cost::default()));
    fault::set(Box::new(Counting(cost.clone())));
    let result = work.await;
    fault::clear();
    let cost = *cost.borrow();
    (result, cost)
}

/// Copies what is not staged yet, without the page cache's bytes of the target.
async fn pass(log: &Log, staging: &mut Staging, manifest: &Manifest) {
    for segment in &manifest.segments {
        let staged = staging.progress();
        let have = staged.iter().find(|s| s.id == segment.id);
        let mut at = have.map_or(0, |s| s.durable_len);
        let file = std::fs::File::open(log.segment_path(segment.id).unwrap()).unwrap();
        while at < segment.durable_len {
            let len = (segment.durable_len - at).min(1 << 20) as usize;
            let mut buffer = StageBuf::new(len);
            file.read_exact_at(buffer.as_mut(), at).unwrap();
            staging.write(segment.id, at, buffer).await.unwrap();
            at += len as u64;
        }
    }
}

/// Pages of the file in the page cache, and pages of the file.
fn cached_pages(path: &Path) -> (usize, usize) {
    use nix::libc;
    use std::os::fd::AsRawFd as _;
    let file = std::fs::File::open(path).unwrap();
    let len = usize::try_from(file.metadata().unwrap().len()).unwrap();
    let pages = len.div_ceil(4096);
    let mut seen = vec![0u8; pages];
    // SAFETY: a read-only private mapping of a whole file, unmapped before the file is closed; mincore
    // writes one byte a page into a buffer of that many.
    unsafe {
        let (none, fd) = (std::ptr::null_mut(), file.as_raw_fd());
        let at = libc::mmap(none, len, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0);
        assert_ne!(at, libc::MAP_FAILED);
        assert_eq!(libc::mincore(at, len, seen.as_mut_ptr()), 0);
        libc::munmap(at, len);
    }
    (seen.iter().filter(|page| **page & 1 == 1).count(), pages)
}

struct Move {
    finish: Cost,
    open: Cost,
    segments: usize,
    /// Pages of the installed segments in the page cache, and pages of them.
    cached: (usize, usize),
}

/// Moves a log of `batches` batches with `tail` more after everything is prepared.
fn moved(name: &str, options: Options, batches: u64, tail: u64) -> Move {
    let dir = Dir::new(name);
    run(&dir, move |root| async move {
        let (a, b) = (root.join("a"), root.join("b"));
        let log = Log::create(&a, copy(1), &options).await.unwrap();
        for batch in 0..batches {
            log.append(records(batch * 100, 100, 2_000), None)
                .await
                .unwrap();
        }
        let staging = Staging::open_or_create(&b, key(), MOVE, &options);
        let mut staging = staging.await.unwrap();
        pass(&log, &mut staging, &log.manifest()).await;
        staging.prepare_install(copy(2), &b).await.unwrap();
        for batch in batches..batches + tail {
            log.append(records(batch * 100, 100, 2_000), None)
                .await
                .unwrap();
        }
        log.settle().await;
        let capture = log.manifest();
        pass(&log, &mut staging, &capture).await;
        let mark = InstallMark {
            move_id: MOVE,
            handoff_id: Some(HandoffId(3)),
        };
        let (installed, finish) = cost_of(async {
            staging.finish(&capture, mark, copy(2)).await.unwrap();
            staging.install(&b, copy(2)).await.unwrap()
        })
        .await;
        let (opened, open) = cost_of(Log::open(&b, copy(2), &options)).await;
        let (new, report) = opened.unwrap();
        assert_eq!(report.damage, []);
        assert_eq!(new.hwm(), Offset((batches + tail) * 100));
        let mut cached = (0, 0);
        for segment in &capture.segments {
            let (there, pages) = cached_pages(&new.segment_path(segment.id).unwrap());
            cached = (cached.0 + there, cached.1 + pages);
        }
        assert_eq!(layout::scan(&b).await.unwrap().copies.len(), 1);
        same_without_the_disk(&b, installed, &options, (&new, &report)).await;
        Move {
            finish,
            open,
            segments: capture.segments.len(),
            cached,
        }
    })
}

/// What an install says of its copy is what a look at the disk finds, and the log that is opened with it
/// takes records.
async fn same_without_the_disk(
    root: &Path,
    installed: Installed,
    options: &Options,
    (found, report): (&Log, &RecoveryReport),
) {
    let (known, cost) = cost_of(Log::open_installed(root, installed, options)).await;
    let (known, known_report) = known.unwrap();
    assert_eq!(cost, Cost::default());
    assert_eq!(
        (&known_report, known.manifest()),
        (report, found.manifest())
    );
    assert_eq!(known.frontier(), found.frontier());
    let before = known.hwm();
    known.append(records(0, 10, 100), None).await.unwrap();
    assert_eq!(known.hwm(), Offset(before.0 + 10));
}

/// Segments of 4 MiB, or a single one.
fn small_segments() -> Options {
    Options {
        segment_bytes: 4 << 20,
        ..options()
    }
}

fn one_segment() -> Options {
    Options {
        segment_bytes: 256 << 20,
        ..options()
    }
}

#[test]
fn without_a_tail_a_freeze_writes_two_small_files_and_renames() {
    let small = moved("freeze-small", small_segments(), 10, 0);
    let large = moved("freeze-large", small_segments(), 160, 0);
    assert!(large.segments >= 6 && large.segments >= 4 * small.segments);
    for one in [&small, &large] {
        let Cost {
            file_syncs,
            dir_syncs,
            renames,
            read,
            reserved,
            ..
        } = one.finish;
        assert_eq!(
            (file_syncs, dir_syncs, renames),
            (2, 2, 1),
            "{:?}",
            one.finish
        );
        assert_eq!((read, reserved), (0, 0), "{:?}", one.finish);
        assert_eq!(one.open, Cost::default(), "opening asks for nothing");
    }
    // The list names each segment in 72 bytes; that is all that grows.
    let more = large.finish.written - small.finish.written;
    assert!(more <= (72 * large.segments as u64).next_multiple_of(512));
    assert!(small.finish.written <= 8 << 10, "{:?}", small.finish);
}

#[test]
fn a_freeze_does_not_grow_with_the_active_segment() {
    let short = moved("freeze-short", one_segment(), 10, 0);
    let long = moved("freeze-long", one_segment(), 160, 0);
    assert_eq!((short.segments, long.segments), (1, 1));
    assert_eq!(short.finish, long.finish);
}

#[test]
fn a_tail_costs_one_sync_more() {
    for options in [small_segments(), one_segment()] {
        let one = moved("freeze-tail", options, 11, 1);
        let Cost {
            file_syncs,
            dir_syncs,
            read,
            ..
        } = one.finish;
        assert!(file_syncs <= 3 && dir_syncs <= 2, "{:?}", one.finish);
        assert_eq!(read, 0, "nothing is read back");
        assert_eq!(one.open, Cost::default());
    }
}

#[test]
fn a_copy_leaves_the_page_cache_alone() {
    let one = moved("freeze-cache", one_segment(), 100, 2);
    let (cached, pages) = one.cached;
    assert!(pages > 4_000, "{pages} pages");
    assert_eq!(cached, 0, "of {pages} pages");
}
