//! The behaviour suite for all engines; an engine's capabilities select its cases.
//!
//! An engine's tests are one line in `tests/`, after an implementation of [`Subject`] that creates
//! fresh instances:
//!
//! ```text
//! leasehold_conformance::suite!(memory, Memory);
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`cases`] | the cases, one file per guarantee, and their list |
//! | [`subject`] | [`Subject`] and [`Instance`], which an engine's tests provide |
//! | [`test_context`] | [`TestContext`]: clients, engines and processes for a case |
//! | [`short_leases`] | short leases and waits on a machine that may be slow |
//! | [`requirement`] | capabilities that a case needs, and how an engine without them must refuse |
//! | [`flaky`] | an engine wrapper that loses requests and replies |
//! | [`formats`] | assertions on locks and records in an unknown format |
//! | [`limited`] | an engine wrapper with fewer capabilities |
//! | [`model`] | random sequences of operations, compared with the memory engine step by step |
//! | [`actor_process`], [`protocol`] | a separate process that holds locks, is killed and stopped |
//! | [`overlap_probe`], [`register`] | a detector of overlapping holders, and a fenced resource |
//!
//! A case that does not apply to an engine checks instead that the engine rejects the unsupported
//! calls.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests report failures by panicking")]
#![allow(clippy::missing_panics_doc, reason = "a case fails by panicking")]

pub mod actor_process;
pub mod cases;
pub mod flaky;
pub mod formats;
pub mod limited;
pub mod model;
pub mod overlap_probe;
pub mod protocol;
pub mod register;
pub mod requirement;
pub mod short_leases;
pub mod subject;
pub mod test_context;

mod run;

pub use self::cases::{CASES, Case};
pub use self::flaky::{Fault, FlakyEngine, Method};
pub use self::run::run;
pub use self::subject::{Instance, Subject};
pub use self::test_context::TestContext;
