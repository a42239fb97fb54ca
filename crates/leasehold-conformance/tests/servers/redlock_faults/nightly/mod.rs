//! What takes many seconds, and variants of what the other modules show.

mod clocks;
mod eviction;
mod forgetful;
mod hung;
mod lines;
mod options;
mod pairs;
mod reentry;
mod review;
