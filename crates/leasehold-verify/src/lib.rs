//! `leasehold verify`: load, faults, a recorded history, a checker, and a report for people.
//!
//! | module | what it does |
//! |---|---|
//! | [`runner`] | starts the workers, causes the faults, writes the history |
//! | [`deployment`] | the engine's servers and network, and their faults |
//! | [`worker`] | a process that acquires locks, uses the resource, and records what it observed |
//! | [`fenced_resource`] | the resource that the locks protect |
//! | [`matrix`] | every engine under every fault |
//! | [`history`] | the calls, their workers, times and outcomes: one JSON value per line |
//! | [`guarantees`] | the guarantees of each engine: the one table that decides what is checked |
//! | [`checker`] | pure: a history in, a [`verdict::Verdict`] out |
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
