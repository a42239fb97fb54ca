//! `leasehold verify`: workers use locks while faults are injected; every call is recorded, and a
//! checker judges the recorded history.
//!
//! | module | what it does |
//! |---|---|
//! | [`runner`] | the conductor of one test run: starts the workers, causes the faults, writes the history |
//! | [`deployment`] | the engine's servers and network, and their faults |
//! | [`worker`] | a process that acquires locks, uses the resource, and records its calls |
//! | [`fenced_resource`] | the resource that the locks protect |
//! | [`matrix`] | test runs of every engine under every fault |
//! | [`history`] | the file format of a recorded test run: one JSON value per line |
//! | [`guarantees`] | the guarantees of each engine: the one table that decides what is checked |
//! | [`checker`] | turns a history into a [`verdict::Verdict`]; reads no clock and no file |
//! | [`verdict`] | which guarantees held, with figures, and each violation in words |
//! | [`report`] | the verdict as text, as JSON, and as one HTML page with the timeline |

pub mod checker;
pub mod deployment;
pub mod fenced_resource;
pub mod guarantees;
pub mod history;
pub mod matrix;
pub mod report;
pub mod rng;
pub mod runner;
pub mod verdict;
pub mod worker;
