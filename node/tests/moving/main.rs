//! Moves under deaths, delays, orders and lost answers, on real processes: the hard cases by name.

#[path = "../support/client.rs"]
mod client;
#[path = "../support/mod.rs"]
mod support;

mod deaths;
mod frozen;
mod handoffs;
mod sources;
mod stage;
mod targets;
