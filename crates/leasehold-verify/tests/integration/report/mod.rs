//! Tests the report with made-up histories and verdicts.
#![allow(clippy::expect_used, reason = "a test: what fails here is the finding")]

mod page;
mod sample;
mod text;
mod tree;
