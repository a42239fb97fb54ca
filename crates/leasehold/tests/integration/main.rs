//! The library on engines that need no server. One program, so that it is linked once.
#![allow(clippy::disallowed_methods, reason = "tests that wait for real time")]

mod blocking;
mod examples;
mod file;
mod library;
mod quorum;
mod schedule;
