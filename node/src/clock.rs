//! The node's two clocks. Fencing and time-outs use the monotonic one, which counts suspend
//! (CLOCK_BOOTTIME); record times use the wall clock.
//!
//! What this file keeps true: `narad-core` is handed time from here and from nowhere else.

use narad_core::ids::{MonoMs, WallMs};
use nix::time::{ClockId, clock_gettime};
use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds of CLOCK_BOOTTIME.
///
/// # Panics
/// When the kernel refuses the clock, which Linux has had since 2.6.39.
#[must_use]
pub fn mono_ms() -> MonoMs {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("CLOCK_BOOTTIME is there on Linux");
    let seconds = u64::try_from(now.tv_sec()).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec()).unwrap_or(0);
    MonoMs(seconds * 1_000 + nanos / 1_000_000)
}

/// Milliseconds since the Unix epoch; 0 when the clock stands before it.
#[must_use]
pub fn wall_ms() -> WallMs {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    WallMs(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
