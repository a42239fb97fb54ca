//! The library on engines that need no server. One program, so that it is linked once.

mod blocking;
mod examples;
mod file;
mod library;
mod quorum;
mod schedule;
