//! The report of `doctor`, parsed.

use leasehold_testbed::Server;
use leasehold_testbed::redis::{Redis, Reply, Resp};
use serde_json::Value;

use super::{Place, Ran};

/// A Redis that records no slow commands, because the machine may be slow.
pub(crate) fn plain() -> Redis {
    Redis::new().args(&["--slowlog-max-len", "0"])
}

/// The same, with durable writes.
pub(crate) fn durable() -> Redis {
    plain().args(&["--appendonly", "yes", "--appendfsync", "always"])
}

/// Runs `doctor` on this engine.
pub(crate) async fn examine(url: &str, more: &[&str]) -> Ran {
    let args: Vec<_> = ["doctor", "--engine", url].iter().chain(more).map(|&word| word.to_owned()).collect();
    // This thread must not block, because it also serves the server's process.
    tokio::task::spawn_blocking(move || Place::new().run(args)).await.unwrap()
}

/// The exit code and the report.
pub(crate) async fn report(url: &str) -> (i32, Value) {
    report_with(url, &[]).await
}

/// The same, with more arguments.
pub(crate) async fn report_with(url: &str, more: &[&str]) -> (i32, Value) {
    let ran = examine(url, &[&["--json"], more].concat()).await;
    assert_eq!(ran.err(), "");
    let report: Value = serde_json::from_str(&ran.out()).unwrap_or_else(|error| panic!("{error}: {}", ran.out()));
    for finding in report["findings"].as_array().unwrap() {
        assert_ne!(finding["found"], "", "{finding}");
        assert_ne!(finding["means"], "", "{finding}");
        assert_eq!(finding["fix"] == "", finding["level"] == "ok", "{finding}");
    }
    (ran.code(), report)
}

/// The findings of a check.
pub(crate) fn of<'a>(report: &'a Value, check: &str) -> Vec<&'a Value> {
    report["findings"].as_array().unwrap().iter().filter(|finding| finding["check"] == check).collect()
}

/// Asserts that a check has this level; returns its finding.
#[track_caller]
pub(crate) fn found<'a>(report: &'a Value, check: &str, level: &str) -> &'a Value {
    let all = of(report, check);
    assert!(
        !all.is_empty() && all.iter().all(|finding| finding["level"] == level),
        "{check} is not {level}: {report:#}"
    );
    all[0]
}

/// The checks with this level.
pub(crate) fn checks(report: &Value, level: &str) -> Vec<String> {
    let all = report["findings"].as_array().unwrap().iter().filter(|finding| finding["level"] == level);
    all.map(|finding| finding["check"].as_str().unwrap().to_owned()).collect()
}

/// Sends a command that must succeed.
pub(crate) async fn command(server: &Server, words: &[&str]) -> Reply {
    let reply = Resp::connect(server.addr()).await.unwrap().command(words).await.unwrap();
    assert!(!matches!(reply, Reply::Error(_)), "{words:?}: {reply:?}");
    reply
}
