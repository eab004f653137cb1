//! Which parts of a file hold data: space that was only reserved reads as zeros and need not be read.
//!
//! What this file keeps true: what is left out is what the file system itself says was never written, so
//! that a scan finds the same with it and without it.

use crate::disk;
use crate::error::StorageError;
use nix::errno::Errno;
use nix::unistd::{Whence, lseek64};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

/// Parts of the file below `upto` that hold data, from byte `from` on, in order. Where the file system cannot
/// tell, all of it.
pub(crate) async fn written(
    path: &Path,
    from: u64,
    upto: u64,
) -> Result<Vec<Range<u64>>, StorageError> {
    let file = path.to_path_buf();
    disk::blocking("look for data in", path, move || {
        written_now(&File::open(file)?, from, upto)
    })
    .await
}

fn written_now(file: &File, from: u64, upto: u64) -> io::Result<Vec<Range<u64>>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    let mut at = from;
    while at < upto {
        let begin = match seek(file, at, Whence::SeekData) {
            Ok(begin) => begin,
            // Nothing but reserved space up to the end.
            Err(Errno::ENXIO) => break,
            Err(Errno::EINVAL | Errno::EOPNOTSUPP) => at,
            Err(other) => return Err(other.into()),
        };
        if begin >= upto {
            break;
        }
        let end = seek(file, begin, Whence::SeekHole)
            .unwrap_or(upto)
            .min(upto);
        found.push(begin.max(at)..end);
        at = end;
    }
    Ok(found)
}

fn seek(file: &File, at: u64, whence: Whence) -> nix::Result<u64> {
    let at = i64::try_from(at).map_err(|_| Errno::ENXIO)?;
    lseek64(file, at, whence).map(|to| to as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt as _;

    #[test]
    fn data_is_found_wherever_it_is_and_reserved_space_is_left_out() {
        let path = std::env::temp_dir().join(format!("narad-extents-{}", std::process::id()));
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        let mib = 1 << 20;
        file.set_len(16 * mib).unwrap();
        assert_eq!(written_now(&file, 0, 0).unwrap(), []);
        file.write_all_at(&[7; 5000], 3 * mib).unwrap();
        file.write_all_at(&[7; 10], 9 * mib + 100).unwrap();
        file.sync_all().unwrap();
        let holds = |at: u64, from: u64, upto: u64| {
            let parts = written_now(&file, from, upto).unwrap();
            assert!(parts.iter().all(|p| p.start < p.end && p.start >= from));
            assert!(parts.iter().all(|p| p.end <= upto), "{parts:?}");
            assert!(parts.windows(2).all(|p| p[0].end <= p[1].start));
            parts.iter().any(|p| p.contains(&at))
        };
        for at in [3 * mib, 3 * mib + 4999, 9 * mib + 100, 9 * mib + 109] {
            assert!(holds(at, 0, 16 * mib), "{at}");
            assert!(holds(at, at, at + 1), "{at}");
            assert!(!holds(at, 0, at), "{at}");
        }
        let all: u64 = written_now(&file, 0, 16 * mib)
            .unwrap()
            .iter()
            .map(|p| p.end - p.start)
            .sum();
        assert!(all < 16 * mib, "{all}");
        std::fs::remove_file(path).unwrap();
    }
}
