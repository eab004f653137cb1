//! Faults on demand, and a record of what reached the disk, for tests.
//!
//! What this file keeps true: without the `failpoints` feature every function here is empty and costs
//! nothing; with it, a probe set on this thread sees each operation before it starts (and may fail it)
//! and again when it has succeeded.

use std::path::Path;

/// One operation on the disk.
#[derive(Clone, Copy, Debug)]
pub enum Op<'a> {
    /// Opens a file, making it when `create` is set.
    Open {
        /// The file.
        path: &'a Path,
        /// Made when missing.
        create: bool,
    },
    /// Writes bytes.
    Write {
        /// The file.
        path: &'a Path,
        /// Where.
        pos: u64,
        /// What.
        bytes: &'a [u8],
    },
    /// Reads bytes.
    Read {
        /// The file.
        path: &'a Path,
        /// Where.
        pos: u64,
        /// At most so many.
        len: usize,
    },
    /// Makes a file's bytes durable.
    Sync {
        /// The file.
        path: &'a Path,
    },
    /// Reserves space; the file becomes at least `len` long.
    Allocate {
        /// The file.
        path: &'a Path,
        /// Up to where.
        len: u64,
    },
    /// Sets a file's length.
    Truncate {
        /// The file.
        path: &'a Path,
        /// The length.
        len: u64,
    },
    /// Replaces a small file durably.
    Replace {
        /// The file.
        path: &'a Path,
        /// Its new content.
        bytes: &'a [u8],
    },
    /// Renames durably.
    Rename {
        /// Old name.
        from: &'a Path,
        /// New name.
        to: &'a Path,
    },
    /// Removes a file or a tree.
    Remove {
        /// What.
        path: &'a Path,
    },
    /// Makes a directory durably.
    CreateDir {
        /// The directory.
        path: &'a Path,
    },
    /// Makes a directory's entries durable.
    SyncDir {
        /// The directory.
        path: &'a Path,
    },
}

#[cfg(any(test, feature = "failpoints"))]
pub use active::{Probe, clear, set};

#[cfg(any(test, feature = "failpoints"))]
mod active {
    use super::Op;
    use std::cell::RefCell;
    use std::io;

    /// Sees the operations of this thread.
    pub trait Probe {
        /// Called before an operation; an error makes it fail without being tried.
        ///
        /// # Errors
        /// Whatever the test wants the operation to fail with.
        fn before(&mut self, op: &Op<'_>) -> io::Result<()> {
            let _ = op;
            Ok(())
        }

        /// Called when an operation has succeeded.
        fn after(&mut self, op: &Op<'_>) {
            let _ = op;
        }

        /// Free space to pretend, given the real one.
        fn available(&mut self, real: u64) -> u64 {
            real
        }
    }

    thread_local! {
        static PROBE: RefCell<Option<Box<dyn Probe>>> = const { RefCell::new(None) };
    }

    /// Sets the probe of this thread.
    pub fn set(probe: Box<dyn Probe>) {
        PROBE.with(|p| *p.borrow_mut() = Some(probe));
    }

    /// Removes the probe of this thread.
    pub fn clear() {
        PROBE.with(|p| *p.borrow_mut() = None);
    }

    pub(crate) fn before(op: &Op<'_>) -> io::Result<()> {
        PROBE.with(|p| p.borrow_mut().as_mut().map_or(Ok(()), |p| p.before(op)))
    }

    pub(crate) fn after(op: &Op<'_>) {
        PROBE.with(|p| {
            if let Some(p) = p.borrow_mut().as_mut() {
                p.after(op);
            }
        });
    }

    pub(crate) fn available(real: u64) -> u64 {
        PROBE.with(|p| p.borrow_mut().as_mut().map_or(real, |p| p.available(real)))
    }
}

#[cfg(any(test, feature = "failpoints"))]
pub(crate) use active::{after, available, before};

#[cfg(not(any(test, feature = "failpoints")))]
pub(crate) const fn before(_: &Op<'_>) -> std::io::Result<()> {
    Ok(())
}

#[cfg(not(any(test, feature = "failpoints")))]
pub(crate) const fn after(_: &Op<'_>) {}

#[cfg(not(any(test, feature = "failpoints")))]
pub(crate) const fn available(real: u64) -> u64 {
    real
}
