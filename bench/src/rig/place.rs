//! A directory of a run.
//!
//! What this file keeps true: nothing outside a directory that the run has made is touched, and that one
//! is removed.

use std::io;
use std::path::{Path, PathBuf};

/// Removed when it is dropped.
#[derive(Debug)]
pub struct Place(PathBuf);

impl Place {
    /// Makes one below `parent`.
    ///
    /// # Errors
    /// The system's.
    pub fn new(parent: &Path) -> io::Result<Self> {
        let dir = parent.join(format!("narad-bench-raw-{}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        Ok(Self(dir))
    }

    /// Its path.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("narad-bench: {} stays: {error}", self.0.display());
        }
    }
}
