//! Tests the reports with simulated histories and written verdicts.
#![allow(clippy::expect_used, reason = "tests report failures by panicking")]

mod html;
mod markup;
mod sample;
mod text;
