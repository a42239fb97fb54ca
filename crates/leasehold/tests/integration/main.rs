//! Tests of the library on engines that need no server. One test binary, so that it is linked once.
#![allow(clippy::disallowed_methods, reason = "tests that wait for real time")]

use std::time::Duration;

/// The TTL of a lease that cannot end while a test runs.
const LONG_TTL: Duration = Duration::from_secs(600);

/// How long a test waits for an event on the real clock. Only a failing test waits this long.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// The name of a test for the command line of this binary, from its module path.
fn test_name(path: &'static str) -> &'static str {
    path.split_once("::").map_or(path, |(_, name)| name)
}

mod blocking;
mod file;
mod library;
mod quorum;
