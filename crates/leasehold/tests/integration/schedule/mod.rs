//! Jobs by a timetable, on the engines that need no server: `memory:` on a clock that is moved by hand, `file:` on the real one.
#![cfg(all(feature = "schedule", feature = "memory", feature = "file"))]
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod control;
mod fleet;
mod model;
mod once;
mod policies;
mod world;
