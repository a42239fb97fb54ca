//! The library on the memory engine: on a manual clock if time matters, on the real one if the
//! system does.
#![cfg(feature = "memory")]
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod all;
mod cancel;
mod election;
mod ending;
mod errors;
mod events;
mod guard;
mod keeper;
mod meter;
mod open;
mod primitives;
mod records;
mod renewal;
mod spy;
mod stopped;
mod time;
