//! Every bound of the simulator.
//!
//! What this file keeps true: a run ends.

/// Rounds of a fair continuation: a move takes about ten, and a handoff that nobody finishes runs
/// out after ten seconds, one a round.
pub const FAIR_ROUNDS: usize = 160;
/// States of one exhaustive model: the numbers of all of them are kept.
pub const STATES_MAX: usize = 8_000_000;
/// States of one level that wait to be expanded, whole, in memory: about a gigabyte.
pub const LEVEL_MAX: usize = 150_000;
/// Tries of the shrinker.
pub const SHRINK_TRIES_MAX: usize = 20_000;
/// Local steps of a worker that are taken as one: the longest row of them is shorter.
pub const CHAIN_MAX: usize = 6;
/// Leases that consumers hold at once.
pub const HELD_MAX: usize = 4;
/// Rounds of a fair continuation that one freeze may last: its time to live, and the answer.
pub const FREEZE_ROUNDS: u32 = 20;
/// Actions of a walk, unless something else is asked for.
pub const WALK_STEPS: usize = 400;
/// Heartbeats that wait at a leader that cannot confirm itself.
pub const BEATS_WAITING: usize = 1;
/// Steps of a scenario until a worker gets where it is wanted.
pub const PLAY_STEPS_MAX: usize = 60;
