//! Power cuts: every image that a disk could hold after a cut recovers to a log with every acked record
//! and none that was not sent.

mod common;

use common::*;
use narad_core::ids::Offset;
use narad_storage::fault::{self, Op, Probe};
use narad_storage::{Log, Options};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// One thing that happened to the disk, in order.
#[derive(Clone, Debug)]
enum Event {
    /// Known to the file system, durable with the next sync of file or directory.
    Create(PathBuf),
    Write(PathBuf, u64, Vec<u8>),
    /// The file is at least, or exactly, this long from here on.
    Grow(PathBuf, u64),
    Truncate(PathBuf, u64),
    Sync(PathBuf),
    Replace(PathBuf, Vec<u8>),
    Remove(PathBuf),
    SyncDir,
    /// So many records were acked.
    Acked(u64),
}

/// Records what happens below one directory.
#[derive(Clone)]
struct Recorder {
    root: PathBuf,
    events: Rc<RefCell<Vec<Event>>>,
}

impl Recorder {
    fn start(root: &Path) -> Self {
        let recorder = Self {
            root: root.to_path_buf(),
            events: Rc::default(),
        };
        fault::set(Box::new(recorder.clone()));
        recorder
    }

    fn push(&self, path: &Path, event: Event) {
        if path.starts_with(&self.root) {
            self.events.borrow_mut().push(event);
        }
    }

    fn acked(&self, count: u64) {
        self.events.borrow_mut().push(Event::Acked(count));
    }
}

impl Probe for Recorder {
    fn before(&mut self, op: &Op<'_>) -> std::io::Result<()> {
        // A write may reach the disk from the moment at which it is issued.
        if let Op::Write { path, pos, bytes } = op {
            self.push(path, Event::Write(path.to_path_buf(), *pos, bytes.to_vec()));
        }
        Ok(())
    }

    fn after(&mut self, op: &Op<'_>) {
        let file = |p: &&Path| p.to_path_buf();
        match op {
            Op::Open { path, create: true } => self.push(path, Event::Create(file(path))),
            Op::Sync { path } => self.push(path, Event::Sync(file(path))),
            Op::Allocate { path, len } => self.push(path, Event::Grow(file(path), *len)),
            Op::Truncate { path, len } => self.push(path, Event::Truncate(file(path), *len)),
            Op::Replace { path, bytes } => {
                self.push(path, Event::Replace(file(path), bytes.to_vec()));
            }
            Op::Remove { path } => self.push(path, Event::Remove(file(path))),
            Op::SyncDir { path } => self.push(path, Event::SyncDir),
            _ => {}
        }
    }
}

/// Small deterministic random numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

type Files = BTreeMap<PathBuf, Vec<u8>>;

fn apply(files: &mut Files, event: &Event) {
    match event {
        Event::Create(path) => {
            files.entry(path.clone()).or_default();
        }
        Event::Write(path, pos, bytes) => write(files, path, *pos, bytes),
        Event::Grow(path, len) => {
            let file = files.entry(path.clone()).or_default();
            file.resize(file.len().max(*len as usize), 0);
        }
        Event::Truncate(path, len) => {
            files
                .entry(path.clone())
                .or_default()
                .resize(*len as usize, 0);
        }
        Event::Replace(path, bytes) => {
            files.insert(path.clone(), bytes.clone());
        }
        Event::Remove(path) => {
            files.remove(path);
        }
        Event::Sync(_) | Event::SyncDir | Event::Acked(_) => {}
    }
}

fn write(files: &mut Files, path: &Path, pos: u64, bytes: &[u8]) {
    let file = files.entry(path.to_path_buf()).or_default();
    let end = pos as usize + bytes.len();
    file.resize(file.len().max(end), 0);
    file[pos as usize..end].copy_from_slice(bytes);
}

/// What a disk may hold when the power goes after `events`: what was synced, and of the rest any subset
/// of sectors, in any order.
fn image(events: &[Event], dice: &mut Dice) -> Files {
    let mut files = Files::new();
    let mut pending: Vec<Event> = Vec::new();
    for event in events {
        match event {
            Event::Sync(synced) => {
                let (now, later) = pending.into_iter().partition(|e| match e {
                    Event::Create(p)
                    | Event::Write(p, ..)
                    | Event::Grow(p, _)
                    | Event::Truncate(p, _) => p == synced,
                    _ => false,
                });
                pending = later;
                let now: Vec<Event> = now;
                now.iter().for_each(|e| apply(&mut files, e));
            }
            Event::Replace(..) | Event::SyncDir => {
                // Durable when it returned; so are the names in that directory.
                pending.retain(|e| {
                    let name = matches!(e, Event::Create(_) | Event::Remove(_));
                    if name {
                        apply(&mut files, e);
                    }
                    !name
                });
                apply(&mut files, event);
            }
            Event::Acked(_) => {}
            other => pending.push(other.clone()),
        }
    }
    for event in &pending {
        match event {
            Event::Write(path, pos, bytes) => {
                let mode = dice.roll(4);
                for (i, sector) in bytes.chunks(512).enumerate() {
                    let arrives = match mode {
                        0 => false,
                        1 => true,
                        _ => dice.roll(2) == 0,
                    };
                    if arrives {
                        write(&mut files, path, pos + 512 * i as u64, sector);
                    }
                }
            }
            other if dice.roll(2) == 0 => apply(&mut files, other),
            _ => {}
        }
    }
    files
}

fn store(files: &Files, from: &Path, to: &Path) {
    for (path, bytes) in files {
        let target = to.join(path.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::write(target, bytes).unwrap();
    }
}

fn small() -> Options {
    Options {
        segment_bytes: 24 << 10,
        extent_bytes: 8 << 10,
        cache_bytes: 0,
        ..options()
    }
}

/// Works on a log for a while: groups of different sizes, meta, retention of nothing, sealing.
async fn work(root: &Path, events: &Recorder, from: u64, rounds: u64) -> u64 {
    let mut next = from;
    let (log, _) = Log::open(root, copy(1), &small()).await.unwrap();
    for round in 0..rounds {
        let group = 1 + (round * 7) % 5;
        let appends: Vec<_> = (0..group)
            .map(|i| {
                log.append(
                    records(next + i, 1, 200 + (round as usize * 137) % 900),
                    None,
                )
            })
            .collect();
        let results = futures::future::join_all(appends).await;
        assert!(results.iter().all(Result::is_ok));
        next += group;
        events.acked(next);
        if round % 4 == 3 {
            log.set_frontier(Offset(next / 2));
            log.persist_meta().await.unwrap();
        }
    }
    next
}

fn acked(events: &[Event]) -> u64 {
    events
        .iter()
        .rev()
        .find_map(|e| match e {
            Event::Acked(n) => Some(*n),
            _ => None,
        })
        .unwrap_or(0)
}

async fn check(at: &Path, acked: u64, sent: u64, what: &str) -> Log {
    fs::create_dir_all(at.join("partitions/t7-p3-e1")).unwrap();
    let (log, report) = Log::open(at, copy(1), &small()).await.unwrap();
    assert_eq!(report.damage, [], "{what}: {report:?}");
    let (end, hwm) = (log.end().0, log.hwm().0);
    assert!(
        acked <= end && end <= sent,
        "{what}: {acked} <= {end} <= {sent}: {report:?}"
    );
    assert_eq!(end, hwm, "{what}");
    let (got, skipped) = read_all(&log).await;
    assert_eq!((got.len() as u64, skipped), (end, 0), "{what}: {report:?}");
    for (offset, found) in got {
        assert_eq!(found, record(offset, found.value.len()), "{what}");
    }
    log
}

#[test]
fn every_image_after_a_cut_recovers_with_all_acked_and_nothing_invented() {
    images_recover(0x9e37_79b9_7f4a_7c15);
}

/// The same with other dice, beside it.
#[test]
fn more_images_recover() {
    images_recover(0x2545_f491_4f6c_dd1d);
}

fn images_recover(seed: u64) {
    let images: u64 = std::env::var("NARAD_POWER_IMAGES")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(1000);
    let dir = Dir::new("power");
    run(&dir, move |root| async move {
        let live = root.join("live");
        let log = Log::create(&live, copy(1), &small()).await.unwrap();
        drop(log);
        let events = Recorder::start(&live);
        let sent = work(&live, &events, 0, 24).await;
        fault::clear();
        let recorded = events.events.borrow().clone();
        let mut dice = Dice(seed);
        for n in 0..images {
            let cut = dice.roll(recorded.len() as u64 + 1) as usize;
            let files = image(&recorded[..cut], &mut dice);
            let at = root.join(format!("image-{n}"));
            store(&files, &live, &at);
            let acked = acked(&recorded[..cut]);
            let log = check(&at, acked, sent, &format!("image {n}, cut at {cut}")).await;
            // Now and then the power goes again while the recovered log works.
            if n % 16 == 0 {
                let end = log.end().0;
                drop(log);
                let before = at.join("before");
                copy_tree(&at.join("partitions"), &before.join("partitions"));
                let again = Recorder::start(&before);
                let sent = work(&before, &again, end, 3).await;
                fault::clear();
                let second = again.events.borrow().clone();
                let cut = dice.roll(second.len() as u64 + 1) as usize;
                let mut all = files_of(&before, &at);
                all.extend(second[..cut].iter().cloned());
                let files = image(&all, &mut dice);
                let twice = at.join("twice");
                store(&files, &before, &twice);
                let least = self::acked(&second[..cut]).max(end);
                check(
                    &twice,
                    least,
                    sent,
                    &format!("image {n}, second cut at {cut}"),
                )
                .await;
            }
            // The list may just be written in the background.
            let _ = fs::remove_dir_all(&at);
        }
    });
}

/// A recovered directory as events: everything in it is durable. (Recovery synced it.)
fn files_of(base: &Path, recovered: &Path) -> Vec<Event> {
    let dir = recovered.join("partitions/t7-p3-e1");
    let mut out = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = base
            .join("partitions/t7-p3-e1")
            .join(path.file_name().unwrap());
        out.push(Event::Replace(name, fs::read(path).unwrap()));
    }
    out
}
