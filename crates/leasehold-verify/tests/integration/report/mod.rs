//! The report of histories that are made up here, with verdicts that are made up, too.
#![allow(clippy::expect_used, reason = "a test: what fails here is the finding")]

mod page;
mod sample;
mod text;
mod tree;
