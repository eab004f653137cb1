//! What the tests share: directories on a real disk, an executor, small records.
#![allow(dead_code, missing_docs, unreachable_pub)]

pub mod power;

use glommio::{LocalExecutorBuilder, Placement};
use narad_core::ids::{CopyId, Epoch, Offset, PartitionIndex, PartitionKey, TopicId, WallMs};
use narad_storage::{Log, Options, Record};
use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

// As `build.rs` asks the linker to.
narad_wire::runtime_hooks!();

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A directory under the build directory that is removed when the test passes.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new(name: &str) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("{name}-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

/// Runs a test body on an executor of its own.
pub fn run<F, T>(dir: &Dir, body: impl FnOnce(PathBuf) -> F + Send + 'static) -> T
where
    F: Future<Output = T> + 'static,
    T: Send + 'static,
{
    let path = dir.path().to_path_buf();
    LocalExecutorBuilder::new(Placement::Unbound)
        .io_memory(256 << 10)
        .spawn(move || async move {
            narad_storage::prepare_executor(&path).await.unwrap();
            body(path).await
        })
        .unwrap()
        .join()
        .unwrap()
}

pub fn key() -> PartitionKey {
    PartitionKey {
        topic: TopicId(7),
        partition: PartitionIndex(3),
    }
}

pub fn copy(epoch: u64) -> CopyId {
    CopyId {
        key: key(),
        epoch: Epoch(epoch),
    }
}

pub fn options() -> Options {
    Options {
        segment_bytes: 64 << 10,
        extent_bytes: 64 << 10,
        cache_bytes: 16 << 10,
        reserve_bytes: 0,
        staging_reserve_bytes: 0,
        ..Options::default()
    }
}

/// Record number `n`, `len` bytes long, recognisable.
pub fn record(n: u64, len: usize) -> Record {
    let mut value = format!("record {n} ").into_bytes();
    value.resize(len.max(value.len()), b'.');
    Record {
        time: WallMs(1_000_000 + n),
        key: n.is_multiple_of(3).then(|| format!("k{n}").into_bytes()),
        value,
    }
}

pub fn records(from: u64, count: u64, len: usize) -> Vec<Record> {
    (from..from + count).map(|n| record(n, len)).collect()
}

/// Everything visible, with the number of skipped offsets.
pub async fn read_all(log: &Log) -> (Vec<(u64, Record)>, u64) {
    let (mut out, mut skipped, mut next) = (Vec::new(), 0, Offset(0));
    loop {
        let batch = log.read(next, 100, 50_000).await.unwrap();
        skipped += batch.skipped;
        if batch.next == next {
            return (out, skipped);
        }
        next = batch.next;
        out.extend(batch.records.iter().map(|(o, r)| (o.0, r.to_record())));
    }
}

/// Asserts that the visible records are exactly numbers `0..count` of `record`.
pub async fn expect_numbers(log: &Log, numbers: impl IntoIterator<Item = u64>, len: usize) {
    let (got, _) = read_all(log).await;
    let want: Vec<_> = numbers.into_iter().map(|n| (n, record(n, len))).collect();
    assert_eq!(got.len(), want.len());
    assert_eq!(got, want);
}

/// What a power cut would leave if the disk had written everything so far: a copy of the directory.
pub fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            match fs::copy(entry.path(), target) {
                // A file that is being replaced.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                other => drop(other.unwrap()),
            }
        }
    }
}

/// Segment files of a directory, sorted.
pub fn segment_files(dir: &Path) -> Vec<PathBuf> {
    let mut out: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "seg"))
        .collect();
    out.sort();
    out
}

pub fn patch(file: &Path, at: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let file = fs::OpenOptions::new().write(true).open(file).unwrap();
    file.write_all_at(bytes, at).unwrap();
    file.sync_all().unwrap();
}
