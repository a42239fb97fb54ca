use std::collections::BTreeMap;

use super::names::{Test, read_items};
use super::{unknown_names, unmatched_commands};

const SOURCE: &str = r#"
mod below;
#[cfg(feature = "nightly")]
#[path = "long_tests.rs"]
mod long;

#[tokio::test(start_paused = true)]
async fn a_waiter_times_out() {}

fn helper() {}

mod inner {
    #[cfg(unix)]
    #[test]
    fn a_lease_ends() {}
}

#[cfg(feature = "nightly")]
#[test]
fn everything() {}

suite!(redis, Redis);
leasehold_conformance::essentials!(mysql_session, MySql);
crate::faults::on_both! { a_cut a_kill }
"#;

#[test]
fn tests_are_read_with_their_modules() {
    let cases = ["reentry::another_owner_waits".to_owned()];
    let (tests, files) = read_items(SOURCE, &Test::new("suite", "engines::", false), &cases);
    let names: Vec<_> = tests.iter().map(|test| (test.name.as_str(), test.needs_nightly)).collect();
    let expected = [
        ("engines::a_waiter_times_out", false),
        ("engines::inner::a_lease_ends", false),
        ("engines::everything", true),
        ("engines::redis::reentry::another_owner_waits", false),
        ("engines::mysql_session::another_owner_waits", false),
        ("engines::mariadb::a_cut", false),
        ("engines::postgres::a_cut", false),
        ("engines::mariadb::a_kill", false),
        ("engines::postgres::a_kill", false),
    ];
    assert_eq!(names, expected);
    let files: Vec<_> =
        files.iter().map(|(file, test)| (file.as_str(), test.name.as_str(), test.needs_nightly)).collect();
    assert_eq!(files, [("below", "engines::below::", false), ("long_tests.rs", "engines::long::", true)]);
}

/// What is wrong with a page, in a workspace of one crate with two tests.
fn find_unmatched(page: &str) -> Vec<(usize, String)> {
    let short = Test::new("lib", "logic::backoff::tests::a_pause_is_short", false);
    let long = Test::new("servers", "faults::long::everything", true);
    let tests = BTreeMap::from([("leasehold".to_owned(), vec![short, long])]);
    [unmatched_commands(page, &tests), unknown_names(page, &tests)].concat()
}

#[test]
fn filters_that_match_a_test_are_accepted() {
    let page = "\
        `cargo test -p leasehold --lib backoff::` and `cargo test -p leasehold\n\
        --features nightly --test servers everything`, `cargo test …`\n\
        cargo test -p leasehold   # all\n\
        LEASEHOLD_SEED=7 cargo test --package leasehold --lib a_pause -- --nocapture\n\
        | defect | trial | `cargo test -p leasehold --lib a_pause`; `faults::long`, `max_hold` | `no::such` |\n";
    assert_eq!(find_unmatched(page), []);
}

#[test]
fn filters_that_match_no_test_are_found() {
    let page = "\
        `cargo test -p leasehold --lib mailbox::`\n\
        cargo test -p leasehold --test servers backoff::\n\
        cargo test -p leasehold --test servers everything\n\
        cargo test -p leases --lib backoff::\n\
        | defect | trial | `cargo test -p leasehold --lib a_pause`; `evict::a_waiter` | fix |\n";
    let expected = [
        "`mailbox::` matches no test of leasehold, lib",
        "`backoff::` matches no test of leasehold, servers",
        "`everything` matches only tests with `--features nightly`",
        "no crate leases",
        "`evict::a_waiter` matches no test of any crate",
    ];
    let expected = expected.iter().zip(1..).map(|(reason, line)| (line, (*reason).to_owned()));
    assert_eq!(find_unmatched(page), expected.collect::<Vec<_>>());
}
