//! Fuzzes the reader of a segment of Raft's log; see `src/raft/store/frame_checks.rs`.
#![no_main]
#![allow(dead_code)]

/// Where the reader looks for its bounds.
mod raft {
    pub(crate) use super::limits;
}

#[path = "../../src/raft/store/frame.rs"]
mod frame;
#[path = "../../src/raft/store/frame_checks.rs"]
mod frame_checks;
#[path = "../../src/raft/limits.rs"]
mod limits;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| frame_checks::segment(bytes));
