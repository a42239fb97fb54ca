//! Runs `leasehold doctor`, and finds things in its report.

use leasehold_testbed::Server;
use leasehold_testbed::redis::{Redis, Reply, RespClient};
use serde_json::Value;

use super::{CommandOutput, TestFolder};

/// A Redis that records no slow commands, because the machine may be slow.
pub(crate) fn plain_redis() -> Redis {
    Redis::new().args(&["--slowlog-max-len", "0"])
}

/// A Redis with durable writes that records no slow commands.
pub(crate) fn durable_redis() -> Redis {
    plain_redis().args(&["--appendonly", "yes", "--appendfsync", "always"])
}

/// Runs `doctor` on this engine, with more arguments.
pub(crate) async fn run_doctor(url: &str, more: &[&str]) -> CommandOutput {
    let args: Vec<_> = ["doctor", "--engine", url].iter().chain(more).map(|&word| word.to_owned()).collect();
    // The test's thread must not block, because it also serves the server's process.
    tokio::task::spawn_blocking(move || TestFolder::new().run(args)).await.unwrap()
}

/// Runs `doctor --json` on this engine; returns the exit code and the report.
pub(crate) async fn doctor_report(url: &str) -> (i32, Value) {
    doctor_report_with(url, &[]).await
}

/// Runs `doctor --json` on this engine with more arguments; returns the exit code and the report.
pub(crate) async fn doctor_report_with(url: &str, more: &[&str]) -> (i32, Value) {
    let ran = run_doctor(url, &[&["--json"], more].concat()).await;
    assert_eq!(ran.stderr(), "");
    let report: Value = serde_json::from_str(&ran.stdout()).unwrap_or_else(|error| panic!("{error}: {}", ran.stdout()));
    for finding in report["findings"].as_array().unwrap() {
        assert_ne!(finding["found"], "", "{finding}");
        assert_ne!(finding["means"], "", "{finding}");
        assert_eq!(finding["fix"] == "", finding["level"] == "ok", "{finding}");
    }
    (ran.exit_code(), report)
}

/// The findings of this check in a report.
pub(crate) fn findings_of<'a>(report: &'a Value, check: &str) -> Vec<&'a Value> {
    report["findings"].as_array().unwrap().iter().filter(|finding| finding["check"] == check).collect()
}

/// Asserts that all findings of a check have this level, and that there is one; returns the first.
#[track_caller]
pub(crate) fn assert_finding<'a>(report: &'a Value, check: &str, level: &str) -> &'a Value {
    let all = findings_of(report, check);
    assert!(
        !all.is_empty() && all.iter().all(|finding| finding["level"] == level),
        "{check} is not {level}: {report:#}"
    );
    all[0]
}

/// The checks of all findings with this level, in the order of the report.
pub(crate) fn checks_at_level(report: &Value, level: &str) -> Vec<String> {
    let all = report["findings"].as_array().unwrap().iter().filter(|finding| finding["level"] == level);
    all.map(|finding| finding["check"].as_str().unwrap().to_owned()).collect()
}

/// Sends a command to a Redis; panics if it is refused. Returns the reply.
pub(crate) async fn redis_command(server: &Server, words: &[&str]) -> Reply {
    let reply = RespClient::connect(server.addr()).await.unwrap().command(words).await.unwrap();
    assert!(!matches!(reply, Reply::Error(_)), "{words:?}: {reply:?}");
    reply
}
