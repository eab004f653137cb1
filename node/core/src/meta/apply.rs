//! Placeholder body follows.
