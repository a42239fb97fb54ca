//! Tests the report with made-up histories and verdicts.
#![allow(clippy::expect_used, reason = "a test: what fails here is the finding")]

mod html;
mod markup;
mod sample;
mod text;
