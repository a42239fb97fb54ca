//! Tests the reports with simulated histories and written verdicts.
#![allow(clippy::expect_used, reason = "a test: what fails here is the finding")]

mod html;
mod markup;
mod sample;
mod text;
