//! The library on the memory engine: on a manual clock where time matters, and on the system's
//! clock where threads, processes or signals matter.
#![cfg(feature = "memory")]
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod cancel;
mod election;
mod errors;
mod events;
mod guard;
mod keeper;
mod metrics;
mod multi_lock;
mod open;
mod primitives;
mod records;
mod renewal;
mod shutdown;
mod spy;
mod stopped_process;
mod time;
