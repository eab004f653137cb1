//! A disk for tests that loses power: records what was written and synced, and builds the images that a
//! real disk could hold after a cut.
#![allow(dead_code, missing_docs, unreachable_pub)]

use narad_storage::fault::{self, Op, Probe};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// One thing that happened to the disk, in order.
#[derive(Clone, Debug)]
pub enum Event {
    /// Known to the file system, durable with the next sync of file or directory.
    Create(PathBuf),
    Write(PathBuf, u64, Vec<u8>),
    /// The file is at least, or exactly, this long from here on.
    Grow(PathBuf, u64),
    Truncate(PathBuf, u64),
    Sync(PathBuf),
    Replace(PathBuf, Vec<u8>),
    Remove(PathBuf),
    /// Names in this directory are durable.
    SyncDir(PathBuf),
    /// A directory is being renamed: it has the old name or the new one.
    Rename(PathBuf, PathBuf),
    /// The rename is durable.
    Renamed(PathBuf, PathBuf),
    /// So many records were acked.
    Acked(u64),
}

/// Records what happens below one directory.
#[derive(Clone)]
pub struct Recorder {
    root: PathBuf,
    pub events: Rc<RefCell<Vec<Event>>>,
}

impl Recorder {
    pub fn start(root: &Path) -> Self {
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

    pub fn acked(&self, count: u64) {
        self.events.borrow_mut().push(Event::Acked(count));
    }
}

impl Probe for Recorder {
    fn before(&mut self, op: &Op<'_>) -> std::io::Result<()> {
        // A write may reach the disk from the moment at which it is issued.
        match op {
            Op::Write { path, pos, bytes } => {
                self.push(path, Event::Write(path.to_path_buf(), *pos, bytes.to_vec()));
            }
            Op::Rename { from, to } => {
                self.push(from, Event::Rename(from.to_path_buf(), to.to_path_buf()));
            }
            _ => {}
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
            Op::SyncDir { path } => self.push(path, Event::SyncDir(file(path))),
            Op::Rename { from, to } => self.push(from, Event::Renamed(file(from), file(to))),
            _ => {}
        }
    }
}

/// Small deterministic random numbers.
pub struct Dice(pub u64);

/// How many images to build: `NARAD_POWER_IMAGES` or so many.
pub fn images(usual: u64) -> u64 {
    let set = std::env::var("NARAD_POWER_IMAGES").ok();
    set.and_then(|v| v.parse().ok()).unwrap_or(usual)
}

impl Dice {
    /// With this seed, mixed with the one in `NARAD_POWER_SEED`: other images each time.
    pub fn new(seed: u64) -> Self {
        let more = std::env::var("NARAD_POWER_SEED").ok();
        let more: u64 = more.and_then(|v| v.parse().ok()).unwrap_or(0);
        Self((seed ^ more.wrapping_mul(0x9e37_79b9_7f4a_7c15)).max(1))
    }

    pub fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

pub type Files = BTreeMap<PathBuf, Vec<u8>>;

pub fn apply(files: &mut Files, event: &Event) {
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
        Event::Rename(from, to) => {
            *files = std::mem::take(files)
                .into_iter()
                .map(|(path, bytes)| (renamed(&path, from, to), bytes))
                .collect();
        }
        Event::Sync(_) | Event::SyncDir(_) | Event::Renamed(..) | Event::Acked(_) => {}
    }
}

/// The path, when directory `from` is called `to`.
fn renamed(path: &Path, from: &Path, to: &Path) -> PathBuf {
    path.strip_prefix(from)
        .map_or_else(|_| path.to_path_buf(), |rest| to.join(rest))
}

pub fn write(files: &mut Files, path: &Path, pos: u64, bytes: &[u8]) {
    let file = files.entry(path.to_path_buf()).or_default();
    let end = pos as usize + bytes.len();
    file.resize(file.len().max(end), 0);
    file[pos as usize..end].copy_from_slice(bytes);
}

/// What a disk may hold when the power goes after `events`: what was synced, and of the rest any subset
/// of sectors, in any order.
pub fn image(events: &[Event], dice: &mut Dice) -> Files {
    let mut files = Files::new();
    let mut named: BTreeSet<PathBuf> = BTreeSet::new();
    let mut pending: Vec<Event> = Vec::new();
    for event in events {
        match event {
            // A file's sync makes its bytes durable, not its name.
            Event::Sync(synced) => {
                pending.retain(|e| {
                    let now = matches!(e, Event::Write(p, ..) | Event::Grow(p, _) | Event::Truncate(p, _) if p == synced);
                    if now {
                        apply(&mut files, e);
                    }
                    !now
                });
            }
            Event::Replace(at, _) | Event::SyncDir(at) => {
                // Durable when it returned; so are the names in that directory.
                let dir = match event {
                    Event::Replace(..) => at.parent().unwrap(),
                    _ => at,
                };
                pending.retain(|e| {
                    match e {
                        Event::Create(path) | Event::Remove(path) if path.parent() != Some(dir) => {
                            return true;
                        }
                        Event::Create(path) => drop(named.insert(path.clone())),
                        Event::Remove(path) => {
                            named.remove(path);
                            apply(&mut files, e);
                        }
                        _ => return true,
                    }
                    false
                });
                if let Event::Replace(path, _) = event {
                    named.insert(path.clone());
                }
                apply(&mut files, event);
            }
            Event::Renamed(from, to) => {
                let event = Event::Rename(from.clone(), to.clone());
                pending.retain(|e| !matches!(e, Event::Rename(f, t) if f == from && t == to));
                apply(&mut files, &event);
                named = named.iter().map(|p| renamed(p, from, to)).collect();
                pending = moved(&pending, from, to);
            }
            Event::Create(path) if named.contains(path) => {}
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
            _ if dice.roll(2) == 0 => {}
            Event::Create(path) => drop(named.insert(path.clone())),
            Event::Remove(path) => drop(named.remove(path)),
            Event::Rename(from, to) => {
                apply(&mut files, event);
                named = named.iter().map(|p| renamed(p, from, to)).collect();
            }
            other => apply(&mut files, other),
        }
    }
    for path in &named {
        files.entry(path.clone()).or_default();
    }
    files.retain(|path, _| named.contains(path));
    files
}

/// What is there when the process dies and the power stays: everything that was issued.
pub fn everything(events: &[Event]) -> Files {
    let mut files = Files::new();
    events.iter().for_each(|e| apply(&mut files, e));
    files
}

/// The same events in another directory.
pub fn moved(events: &[Event], from: &Path, to: &Path) -> Vec<Event> {
    let new = |p: &PathBuf| renamed(p, from, to);
    events
        .iter()
        .map(|event| match event {
            Event::Create(p) => Event::Create(new(p)),
            Event::Write(p, pos, bytes) => Event::Write(new(p), *pos, bytes.clone()),
            Event::Grow(p, len) => Event::Grow(new(p), *len),
            Event::Truncate(p, len) => Event::Truncate(new(p), *len),
            Event::Sync(p) => Event::Sync(new(p)),
            Event::Replace(p, bytes) => Event::Replace(new(p), bytes.clone()),
            Event::Remove(p) => Event::Remove(new(p)),
            Event::SyncDir(p) => Event::SyncDir(new(p)),
            Event::Rename(f, t) => Event::Rename(new(f), new(t)),
            Event::Renamed(f, t) => Event::Renamed(new(f), new(t)),
            Event::Acked(n) => Event::Acked(*n),
        })
        .collect()
}

pub fn store(files: &Files, from: &Path, to: &Path) {
    for (path, bytes) in files {
        let target = to.join(path.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::write(target, bytes).unwrap();
    }
}

pub fn acked(events: &[Event]) -> u64 {
    events
        .iter()
        .rev()
        .find_map(|e| match e {
            Event::Acked(n) => Some(*n),
            _ => None,
        })
        .unwrap_or(0)
}

/// A recovered directory as events: everything in it is durable. (Recovery synced it.)
pub fn files_of(dir: &Path) -> Vec<Event> {
    let mut out = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        out.push(Event::Replace(path, bytes));
    }
    out
}
