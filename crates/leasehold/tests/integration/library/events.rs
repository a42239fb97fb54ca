//! The events and spans that the library emits to `tracing`.

use std::fmt::Write;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::library::renewal::locks_with_spy;
use crate::library::spy::{Call, ScriptedReply};
use crate::library::time::{TTL, advance_in_steps, locks_on_manual_clock, run_until_idle};

/// A `tracing` subscriber that stores each span and event of the library as a line.
#[derive(Clone, Default)]
struct LogCapture(Arc<Mutex<Vec<String>>>);

/// A line, to which each field of a span or an event is appended.
struct LogLine(String);

impl Visit for LogLine {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl LogCapture {
    fn record_line(&self, kind: &str, metadata: &Metadata<'_>, fields: impl FnOnce(&mut LogLine)) {
        let mut line = LogLine(format!("{kind} {} {}", metadata.level(), metadata.name()));
        fields(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    /// Whether one line contains all these parts.
    fn contains(&self, parts: &[&str]) -> bool {
        self.0.lock().unwrap().iter().any(|line| parts.iter().all(|part| line.contains(part)))
    }
}

impl Subscriber for LogCapture {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("leasehold")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.record_line("span", span.metadata(), |line| span.record(line));
        Id::from_u64(self.0.lock().unwrap().len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.record_line("event", event.metadata(), |line| event.record(line));
    }
}

/// Whether this process runs only the test at `path`. If not, runs that test in a process of its
/// own, which must succeed, and returns `false`. (Other tests of a process, without a subscriber,
/// may make `tracing` disable events for all threads.)
fn runs_alone(path: &'static str) -> bool {
    const ALONE: &str = "LEASEHOLD_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", crate::test_name(path), "--nocapture"]).env(ALONE, "1").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "the test was run");
    false
}

#[tokio::test]
async fn requests_losses_failures_and_force_releases_are_logged() {
    if !runs_alone(concat!(module_path!(), "::requests_losses_failures_and_force_releases_are_logged")) {
        return;
    }
    let log = LogCapture::default();
    let _listening = tracing::subscriber::set_default(log.clone());
    let (manual_clock, spy, locks) = locks_with_spy().await;
    let guard = locks.mutex("stock:42").lock().await.unwrap();
    assert!(
        log.contains(&["span DEBUG acquire", "name=stock:42", "mode=exclusive", "engine=\"memory\""]),
        "{:?}",
        log.0
    );

    spy.reply_next(Call::Renew, ScriptedReply::Fail(true));
    advance_in_steps(&manual_clock, TTL / 3, std::time::Duration::from_millis(100)).await;
    assert!(log.contains(&["event WARN", "could not be renewed", "leases=1"]), "{:?}", log.0);

    assert!(!log.contains(&["lock lost"]));
    manual_clock.advance(TTL);
    run_until_idle().await;
    assert!(!guard.is_held());
    assert!(
        log.contains(&["event WARN", "lock lost", "name=stock:42", "token=1", "reason=\"expired\""]),
        "{:?}",
        log.0
    );

    let force_released = locks.mutex("b").lock().await.unwrap();
    let claim = locks.inspect("b").await.unwrap().holders[0].claim;
    locks.force_release("b", claim).await.unwrap();
    assert!(log.contains(&["event WARN", "force released", "name=b"]), "{:?}", log.0);
    drop(force_released);
}

#[tokio::test]
async fn secrets_are_not_logged() {
    if !runs_alone(concat!(module_path!(), "::secrets_are_not_logged")) {
        return;
    }
    let log = LogCapture::default();
    let _listening = tracing::subscriber::set_default(log.clone());
    let (_manual_clock, locks) = locks_on_manual_clock().await;
    let owner = leasehold::Owner::new();
    let guard = locks.mutex("a").owner(&owner).lock().await.unwrap();
    let claim = locks.inspect("a").await.unwrap().holders[0].claim;
    locks.force_release("a", claim).await.unwrap();
    run_until_idle().await;
    assert!(log.contains(&["force released"]));
    let claim_id = format!("{:032x}", claim.bits());
    assert!(
        !log.contains(&[&claim_id]) && !log.contains(&[&owner.to_string()]),
        "a reader of the log could release or acquire the lock with these"
    );
    drop(guard);
}
