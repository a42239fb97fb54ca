//! The behaviour suite that every engine passes, chosen by what the engine says it can do.
//!
//! An engine's tests are one line in `tests/`, after its [`Subject`] says how a fresh instance is made:
//!
//! ```text
//! leasehold_conformance::suite!(memory, Memory);
//! ```
//!
//! | module | what it gives |
//! |---|---|
//! | [`cases`] | the cases, one file per promise, and the one list of them |
//! | [`subject`] | [`Subject`] and [`Instance`]: what an engine's tests supply |
//! | [`test_context`] | [`TestContext`]: what a case works with: clients, engines, processes |
//! | [`short_leases`] | leases and waits that are short, on a machine that may be slow |
//! | [`requirement`] | what a case needs of the engine, and how an engine without it must refuse |
//! | [`flaky`] | an engine around a real one that loses requests and replies |
//! | [`limited`] | an engine around a real one that can do less |
//! | [`model`] | random sequences of operations, compared with the memory engine step by step |
//! | [`actor_process`], [`protocol`] | the separate process that takes locks, is killed and is stopped |
//! | [`overlap_probe`], [`register`] | what finds two holders at once, and what a fenced resource is |
//!
//! A case that does not apply to an engine says so, and checks instead that the engine refuses what it cannot do.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "this is a test: what fails here is the finding")]
#![allow(clippy::missing_panics_doc, reason = "panicking is how a case speaks")]

pub mod actor_process;
pub mod cases;
pub mod flaky;
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
