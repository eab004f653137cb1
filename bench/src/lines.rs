//! Real text as records: the lines of a file or of all text files below a directory, again from the
//! beginning when they are used up.
//!
//! What this file keeps true: lines are handed out as the bytes that stand in the file; memory is
//! bounded by [`TEXT_MAX_BYTES`].

use crate::limits::{LINE_MAX_BYTES, TEXT_MAX_BYTES};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Lines in memory, handed out in order, for ever.
#[derive(Clone, Debug)]
pub struct Lines {
    text: Rc<[u8]>,
    at: usize,
}

/// Why there are no lines.
#[derive(Debug, thiserror::Error)]
pub enum LinesError {
    /// A file or directory could not be read.
    #[error("cannot read {path}: {error}; name a readable text file or directory with --input")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Nothing in it.
    #[error("{path} has no text; name a file with lines with --input")]
    Empty {
        /// Which.
        path: PathBuf,
    },
}

impl Lines {
    /// Loads a file, or the Rust and text files below a directory, up to [`TEXT_MAX_BYTES`].
    ///
    /// # Errors
    /// [`LinesError`].
    pub fn load(path: &Path) -> Result<Self, LinesError> {
        let mut text = Vec::new();
        let read = |path: &Path, error| LinesError::Read {
            path: path.to_owned(),
            error,
        };
        if path.is_dir() {
            load_below(path, &mut text).map_err(|error| read(path, error))?;
        } else {
            append(path, &mut text).map_err(|error| read(path, error))?;
        }
        if text.iter().all(|byte| *byte == b'\n') {
            return Err(LinesError::Empty {
                path: path.to_owned(),
            });
        }
        Ok(Self {
            text: text.into(),
            at: 0,
        })
    }

    /// The next line, without its end; longer ones than [`LINE_MAX_BYTES`] are handed out in parts.
    pub fn line(&mut self) -> &[u8] {
        if self.at >= self.text.len() {
            self.at = 0;
        }
        let rest = &self.text[self.at..];
        let bound = rest.len().min(LINE_MAX_BYTES);
        let found = rest[..bound].iter().position(|byte| *byte == b'\n');
        let from = self.at;
        let len = found.unwrap_or(bound);
        self.at += len + usize::from(found.is_some());
        &self.text[from..from + len]
    }
}

fn append(path: &Path, text: &mut Vec<u8>) -> std::io::Result<()> {
    let room = TEXT_MAX_BYTES.saturating_sub(text.len()) as u64;
    std::fs::File::open(path)?.take(room).read_to_end(text)?;
    if text.last().is_some_and(|byte| *byte != b'\n') {
        text.push(b'\n');
    }
    Ok(())
}

fn load_below(root: &Path, text: &mut Vec<u8>) -> std::io::Result<()> {
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(&directory)? {
            paths.push(entry?.path());
        }
        paths.sort();
        for path in paths.into_iter().rev() {
            if text.len() >= TEXT_MAX_BYTES {
                return Ok(());
            }
            let kind = std::fs::symlink_metadata(&path)?;
            let is_text = path
                .extension()
                .is_some_and(|end| end == "rs" || end == "md" || end == "txt");
            if kind.is_dir() {
                open.push(path);
            } else if kind.is_file() && is_text {
                append(&path, text)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../target")
            .join(format!("lines-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a directory");
        path
    }

    #[test]
    fn lines_come_in_order_and_again() {
        let dir = scratch("order");
        let file = dir.join("a.txt");
        std::fs::write(&file, b"one\n\ntwo").expect("written");
        let mut lines = Lines::load(&file).expect("loaded");
        let got: Vec<Vec<u8>> = (0..4).map(|_| lines.line().to_vec()).collect();
        assert_eq!(got, [&b"one"[..], b"", b"two", b"one"]);
        std::fs::remove_dir_all(dir).expect("removed");
    }

    #[test]
    fn a_directory_is_read_deep_and_long_lines_are_cut() {
        let dir = scratch("deep");
        std::fs::create_dir(dir.join("inner")).expect("made");
        std::fs::write(dir.join("inner/b.rs"), vec![b'x'; LINE_MAX_BYTES + 5]).expect("written");
        std::fs::write(dir.join("ignored.bin"), b"zzz\n").expect("written");
        let mut lines = Lines::load(&dir).expect("loaded");
        assert_eq!(lines.line().len(), LINE_MAX_BYTES);
        assert_eq!(lines.line().len(), 5);
        assert_eq!(lines.line()[0], b'x');
        std::fs::remove_dir_all(dir).expect("removed");
    }

    #[test]
    fn nothing_to_read_is_an_error() {
        let dir = scratch("empty");
        assert!(matches!(Lines::load(&dir), Err(LinesError::Empty { .. })));
        assert!(matches!(
            Lines::load(&dir.join("no")),
            Err(LinesError::Read { .. })
        ));
        std::fs::remove_dir_all(dir).expect("removed");
    }
}
