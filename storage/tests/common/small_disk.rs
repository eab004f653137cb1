//! A small disk that is really full sooner or later: an ext4 on a loop device.
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "each test binary uses its own part"
)]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted file system that is unmounted at the end.
pub struct Mount(pub PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Makes one of so many bytes in the file `image` and mounts it. `None` where this user may not; that is told
/// past the test harness, which would keep it to itself.
pub fn small_disk(image: &Path, at: &Path, bytes: u64) -> Option<Mount> {
    disk_with_blocks(image, at, bytes, 512)
}

/// The same on a disk whose logical blocks are so long.
pub fn disk_with_blocks(image: &Path, at: &Path, bytes: u64, block: u64) -> Option<Mount> {
    match make(image, at, bytes, block) {
        Ok(mount) => Some(mount),
        Err(reason) => {
            let test = std::thread::current().name().unwrap_or("a test").to_owned();
            let mut out = std::io::stderr();
            let _ = writeln!(
                out,
                "NOT RUN: {test}: no loop device can be mounted here: {reason}"
            );
            None
        }
    }
}

fn make(image: &Path, at: &Path, bytes: u64, block: u64) -> Result<Mount, String> {
    std::fs::create_dir_all(at).expect("the target directory can be written");
    let file = std::fs::File::create(image).expect("the image can be made");
    file.set_len(bytes).expect("it is sparse");
    let block = block.to_string();
    let device = run(Command::new("losetup")
        .args(["--find", "--show", "--sector-size", &block])
        .arg(image))?;
    let mounted = run(Command::new("mkfs.ext4").args(["-q", "-F", &device]))
        .and_then(|_| run(Command::new("mount").arg(&device).arg(at)));
    // The system lets go of the device once it is unmounted, or now.
    let _ = run(Command::new("losetup").args(["--detach", &device]));
    mounted.map(|_| Mount(at.to_path_buf()))
}

fn run(command: &mut Command) -> Result<String, String> {
    match command.output() {
        Ok(out) if out.status.success() => {
            Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
        }
        Ok(out) => Err(String::from_utf8_lossy(&out.stderr).trim().to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
