//! `leasehold verify`: load, faults, a recorded history, a checker, and a report that a person can look at.
//!
//! | module | what it does |
//! |---|---|
//! | [`conduct`] | starts the workers, causes the faults, writes the history |
//! | [`deploy`] | where the engine is, and all that can be done to its servers and its network |
//! | [`worker`] | a process that takes locks, uses the resource, and writes down what it saw |
//! | [`resource`] | what the locks protect |
//! | [`matrix`] | every engine under every fault |
//! | [`history`] | what was done, by whom, when, and what came of it: one JSON value per line |
//! | [`guarantees`] | what is promised where: the one table that decides what is judged |
//! | [`check`] | pure: a history in, a [`verdict::Verdict`] out |
//! | [`verdict`] | which promises were kept, with figures, and each violation in words |
//! | [`report`] | the verdict as text, as JSON, and as one HTML page with the timeline |

pub mod check;
pub mod conduct;
pub mod deploy;
pub mod dice;
pub mod guarantees;
pub mod history;
pub mod matrix;
pub mod report;
pub mod resource;
pub mod verdict;
pub mod worker;
