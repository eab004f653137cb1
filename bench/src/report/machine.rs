//! Where a benchmark ran: host, kernel, processor, disk, and which commit was measured.
//!
//! What this file keeps true: what cannot be found out is said to be `unknown`, never guessed; looking
//! changes nothing.

use serde::Serialize;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

const UNKNOWN: &str = "unknown";

/// Where a benchmark ran.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Name of the host.
    pub host: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Model of the processor.
    pub processor: String,
    /// Processors that this process may use.
    pub processors: usize,
    /// Memory, in bytes; 0 when unknown.
    pub memory_bytes: u64,
    /// Load average of the last minute when the run began: what else the machine does.
    pub load: String,
    /// The disk of the measured directory.
    pub disk: Disk,
    /// The commit that was built.
    pub commit: String,
    /// `release`, or `debug`, whose figures mean nothing.
    pub build: &'static str,
    /// When the run began, in ms since the Unix epoch.
    pub began_ms: u64,
}

/// The disk under a directory.
#[derive(Clone, Debug, Serialize)]
pub struct Disk {
    /// Name of the device, as in `nvme0n1`.
    pub device: String,
    /// What its maker calls it.
    pub model: String,
    /// File system.
    pub filesystem: String,
    /// Logical block, in bytes; 0 when unknown.
    pub logical_block_bytes: u64,
    /// `write back` has a volatile cache that a sync has to flush.
    pub write_cache: String,
}

impl Machine {
    /// Of the machine that this process runs on, and of the disk under `dir`.
    #[must_use]
    pub fn of(dir: &Path) -> Self {
        Self {
            host: line("/proc/sys/kernel/hostname"),
            kernel: line("/proc/sys/kernel/osrelease"),
            processor: field("/proc/cpuinfo", "model name").unwrap_or_else(|| UNKNOWN.into()),
            processors: std::thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: field("/proc/meminfo", "MemTotal")
                .and_then(|v| v.trim_end_matches(" kB").parse::<u64>().ok())
                .map_or(0, |kib| kib << 10),
            load: line("/proc/loadavg")
                .split(' ')
                .next()
                .unwrap_or(UNKNOWN)
                .to_owned(),
            disk: Disk::of(dir),
            commit: env!("NARAD_COMMIT").to_owned(),
            build: if cfg!(debug_assertions) {
                "debug"
            } else {
                "release"
            },
            began_ms: std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |d| d.as_millis() as u64),
        }
    }

    /// Two lines for people.
    #[must_use]
    pub fn text(&self) -> String {
        let disk = &self.disk;
        format!(
            "{}, Linux {}, {} x {}, {:.1} GiB, load {}, commit {} ({})\n\
             disk {} ({}), {}, block {}, cache {}",
            self.host,
            self.kernel,
            self.processors,
            self.processor,
            self.memory_bytes as f64 / f64::from(1 << 30),
            self.load,
            self.commit,
            self.build,
            disk.device,
            disk.model,
            disk.filesystem,
            disk.logical_block_bytes,
            disk.write_cache,
        )
    }
}

impl Disk {
    /// Of the disk under `dir`.
    #[must_use]
    pub fn of(dir: &Path) -> Self {
        let unknown = Self {
            device: UNKNOWN.into(),
            model: UNKNOWN.into(),
            filesystem: UNKNOWN.into(),
            logical_block_bytes: 0,
            write_cache: UNKNOWN.into(),
        };
        let Ok(meta) = fs::metadata(dir) else {
            return unknown;
        };
        let number = format!(
            "{}:{}",
            nix::sys::stat::major(meta.dev()),
            nix::sys::stat::minor(meta.dev())
        );
        let filesystem = filesystem(&number).unwrap_or_else(|| UNKNOWN.into());
        let Ok(block) = fs::canonicalize(format!("/sys/dev/block/{number}")) else {
            return Self {
                filesystem,
                ..unknown
            };
        };
        // A partition has no queue of its own; the disk that it is on has.
        let whole = Some(block.join("queue"))
            .filter(|q| q.exists())
            .map_or_else(|| block.join(".."), |_| block.clone());
        let name = |path: &Path| {
            path.file_name()
                .map_or_else(|| UNKNOWN.into(), |n| n.to_string_lossy().into_owned())
        };
        let entry = |parts: &str| -> String { line(whole.join(parts)) };
        Self {
            device: name(&block),
            model: entry("device/model"),
            filesystem,
            logical_block_bytes: entry("queue/logical_block_size").parse().unwrap_or(0),
            write_cache: entry("queue/write_cache"),
        }
    }
}

/// A small file as one line.
fn line(path: impl Into<PathBuf>) -> String {
    let text = fs::read_to_string(path.into()).unwrap_or_default();
    match text.trim() {
        "" => UNKNOWN.into(),
        text => text.to_owned(),
    }
}

/// The value behind `name:` in a file of such lines.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

/// Kind of the file system on the device with this number.
fn filesystem(number: &str) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find_map(|mount| {
        let (places, kind) = mount.split_once(" - ")?;
        let device = places.split(' ').nth(2)?;
        (device == number).then(|| kind.split(' ').next().unwrap_or(UNKNOWN).to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::Machine;

    #[test]
    fn this_machine_is_described() {
        let machine = Machine::of(&std::env::current_dir().unwrap());
        assert!(machine.processors > 0 && machine.memory_bytes > 0);
        assert!(!machine.kernel.is_empty() && !machine.commit.is_empty());
        assert_eq!(machine.text().lines().count(), 2);
        let nowhere = Machine::of(std::path::Path::new("/no such directory"));
        assert_eq!(nowhere.disk.device, "unknown");
    }
}
