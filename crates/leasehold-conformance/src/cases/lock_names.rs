//! No two names collide, whatever they look like to a file system, a key space or a URL.

use leasehold::{ErrorKind, Locks};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::short_leases::repetitions;
use crate::test_context::{LONG_TTL, TestContext};

/// Names that an engine may confuse with each other, with its own files and keys, or with something
/// outside.
pub(super) fn confusable_names() -> Vec<String> {
    let long = "x".repeat(511);
    let mut names: Vec<String> = [
        "a", "A", "a ", " a", "a.", ".a", ".", "..", "...", "/", "//", "a/", "/a", "a/b", "a//b", "a%2Fb", "a%2fb", "a%252Fb",
        "a\\b", "../x", "../../x", "x/../x", "..%2Fx", "/etc/passwd", "../../etc/passwd", "~", "~root", "$HOME", "%", "%%",
        "%00", "%2E", "%2e", "-", "--", "-rf", "--help", "*", "?", "[a]", "a*", "a?", "a:b", "a:b{c}", "{a}", "{a}b", "a}b{",
        "a'b", "a\"b", "a`b", "a;b", "a|b", "a&b", "a=b", "a,b", "a#b", "a@b", "a+b", "a b", "a+b ", "a%20b", "a_b", "a-b",
        "a.lock", "a.tmp", ".a.tmp", "a~", "a.token", "a.tokens", "a.queue", "a.wait", "lock", "tmp", "queue", "token", "index",
        "\u{e9}", "e\u{301}", "\u{fc}", "u\u{308}", "\u{df}", "ss", "\u{17f}", "s", "\u{130}", "i", "I", "\u{131}", "K",
        "\u{212a}", "\u{3a9}", "\u{2126}", "a\u{200b}", "a\u{200d}", "a\u{feff}", "\u{202e}abc", "abc", "cba", "\u{5d0}\u{5d1}",
        "\u{1f511}", "\u{1f468}\u{200d}\u{1f469}", "\u{1f468}", "\u{4f60}\u{597d}", "NUL", "CON", "aux", "con.txt", "C:", "C:\\",
        "0", "00", "0x0", "null", "None", "true", "a\u{2044}b", "a\u{2215}b", "a\u{ff0f}b", "SELECT 1", "'; --",
    ]
    .map(str::to_owned)
    .to_vec();
    // The longest names, equal except for the last byte, or in everything that fits into a file
    // name.
    names.extend(["a", "b"].map(|last| format!("{long}{last}")));
    names.extend([254, 255, 256].map(|length| "x".repeat(length)));
    names.extend(["\u{e9}".repeat(256), "/".repeat(512), "%".repeat(512), "../".repeat(170)]);
    names
}

/// Holds all locks at once, checks that each excludes itself, and releases them.
async fn check_distinct(locks: &Locks, other: &Locks, names: &[String]) -> Result<(), String> {
    let mut guards = Vec::new();
    for name in names {
        let guard = locks.mutex(name).try_lock().await.map_err(|error| error.to_string())?;
        guards.push(guard.ok_or_else(|| format!("{name:?} collides with another of {names:?}"))?);
    }
    for name in names {
        let second = other.mutex(name).try_lock().await.map_err(|error| error.to_string())?;
        if second.is_some() {
            return Err(format!("{name:?} does not exclude itself"));
        }
    }
    if locks.capabilities().inspection {
        let mut listed: Vec<_> = locks.list("").await.map_err(|error| error.to_string())?;
        listed.retain(|view| names.iter().any(|name| name == view.name.as_str()));
        if listed.len() != names.len() || listed.iter().any(|view| view.holders.len() != 1) {
            return Err(format!("wrong list: {listed:?}"));
        }
    }
    for guard in guards {
        let _ = guard.release().await.map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// More than a hundred confusable names are held at the same time.
pub async fn confusable_names_do_not_collide(context: &TestContext) {
    let (locks, other) = (context.open_locks().await, context.open_locks().await);
    let names = confusable_names();
    let mut once = names.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), names.len(), "the names are unique");
    check_distinct(&locks, &other, &names).await.unwrap_or_else(|problem| panic!("{problem}"));
}

/// Two names made of characters with a meaning to engines.
fn name_pair() -> impl Strategy<Value = (String, String)> {
    let part = prop_oneof![
        prop::sample::select(vec!["a", "A", "/", ".", "..", "%", "2F", "~", "-", ":", "{", "}", " ", "\\", "_", "\u{301}", "e"])
            .prop_map(str::to_owned),
        any::<char>().prop_filter("no control characters", |c| !c.is_control()).prop_map(String::from),
    ];
    let name = prop::collection::vec(part, 1..8).prop_map(|parts| parts.concat());
    (name.clone(), name).prop_filter("two names", |(a, b)| a != b)
}

/// Random pairs of names are held at the same time.
pub async fn random_names_do_not_collide(context: &TestContext) {
    let (locks, other) = (context.open_locks().await, context.open_locks().await);
    let runtime = tokio::runtime::Handle::current();
    let mut runner = TestRunner::new(Config { cases: repetitions(40, 400), failure_persistence: None, ..Config::default() });
    let result = tokio::task::block_in_place(|| {
        runner.run(&name_pair(), |(a, b)| {
            runtime.block_on(check_distinct(&locks, &other, &[a, b])).map_err(TestCaseError::fail)
        })
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

/// An invalid name is rejected without an engine call.
pub async fn bad_names_are_refused_before_any_call(context: &TestContext) {
    let (locks, flaky) = context.open_flaky(LONG_TTL).await;
    for name in ["", "a\nb", "a\0b", "\u{7f}", "a\u{85}", "\t", &"x".repeat(513), &"\u{e9}".repeat(257)] {
        let errors = [
            locks.mutex(name).lock().await.map(drop),
            locks.mutex(name).try_lock().await.map(drop),
            locks.multi_lock([name]).lock().await.map(drop),
            locks.election(name).campaign().await.map(drop),
        ];
        for error in errors {
            let error = error.expect_err("a bad name");
            assert_eq!(error.kind(), ErrorKind::InvalidName, "{name:?}: {error}");
        }
    }
    assert_eq!(flaky.total_calls(), 0);
}
