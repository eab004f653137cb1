//! Deterministic simulator and model checks of Narad: the real decision code of `narad-core` in a
//! world of modelled disks, networks and clocks, with the promises P1 to P9 checked at every step.
//!
//! What this crate keeps true: no randomness, clock or thread decides anything inside the world;
//! a run is a setup and a list of actions.

pub mod action;
pub mod bytes;
pub mod check;
pub mod disk;
pub mod explore;
pub mod hash;
pub mod labs;
pub mod limits;
pub mod models;
pub mod mutation;
pub mod play;
pub mod report;
pub mod rng;
pub mod scenarios;
pub mod setup;
pub mod walk;
pub mod world;
