//! Scheduled jobs on the engines without a server: `memory:` on a manual clock, `file:` on the real
//! one.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod control;
mod fleet;
mod model;
mod once;
mod policies;
mod world;
