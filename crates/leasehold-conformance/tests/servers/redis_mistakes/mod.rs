//! Demonstrates the classic mistakes. Each test makes one on a real server with the textbook's
//! commands, then runs leasehold through the same events.
//!
//! `docs/classic-mistakes.md` has a section with the timeline of each test. A test whose timeline
//! differs from the page fails (numbers aside). To update the page:
//! ```text
//! UPDATE_PAGE=1 cargo test --package leasehold-conformance --test servers \
//!     --features nightly redis_mistakes
//! ```
#![allow(clippy::expect_used, clippy::print_stdout, reason = "tests report failures by panicking")]

mod clocks;
mod crash;
#[cfg(feature = "nightly")]
mod failover;
mod ownership;
mod page;
mod timeline;
mod work;

use std::collections::BTreeSet;

/// Each test has a section whose heading, lowercased, is the test's name.
#[test]
fn every_section_of_the_page_has_its_test() {
    let mut tests = BTreeSet::new();
    for source in ["clocks", "crash", "failover", "ownership", "work"] {
        let file = format!("{}/tests/servers/redis_mistakes/{source}.rs", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(file).expect("a source");
        let (marked, rest): (Vec<_>, Vec<_>) = text.split("#[tokio::test").enumerate().partition(|(at, _)| *at > 0);
        assert!(!marked.is_empty(), "{source}.rs has no test, or tests are marked in another way: {}", rest.len());
        for (_, after) in marked {
            let name = after.split("async fn ").nth(1).and_then(|code| code.split('(').next());
            tests.insert(name.expect("a test's name").to_owned());
        }
    }
    let page = page::read();
    let sections: BTreeSet<_> = page::headings(&page).map(page::test_name).collect();
    assert_eq!(sections, tests, "left: sections of the page; right: tests");
}
