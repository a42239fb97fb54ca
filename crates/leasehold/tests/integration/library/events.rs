//! The events and spans for `tracing`.

use std::fmt::Write;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::library::renewal::spied;
use crate::library::spy::{Call, Play};
use crate::library::time::{TTL, quiet, still, walk};

/// Stores spans and events as lines.
#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl Ear {
    fn note(&self, what: &str, metadata: &Metadata<'_>, fields: impl FnOnce(&mut Line)) {
        let mut line = Line(format!("{what} {} {}", metadata.level(), metadata.name()));
        fields(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn heard(&self, parts: &[&str]) -> bool {
        self.0.lock().unwrap().iter().any(|line| parts.iter().all(|part| line.contains(part)))
    }
}

impl Subscriber for Ear {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("leasehold")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.note("span", span.metadata(), |line| span.record(line));
        Id::from_u64(self.0.lock().unwrap().len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.note("event", event.metadata(), |line| event.record(line));
    }
}

/// Whether only the test at `path` runs in this process. If not, starts such a process, which must
/// succeed. Beside tests without a subscriber, `tracing` may disable events for all threads.
fn alone(path: &'static str) -> bool {
    const ALONE: &str = "LEASEHOLD_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    let output = again.args(["--exact", crate::test_name(path), "--nocapture"]).env(ALONE, "1").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "the test was run");
    false
}

#[tokio::test]
async fn requests_losses_failures_and_evictions_are_heard() {
    if !alone(concat!(module_path!(), "::requests_losses_failures_and_evictions_are_heard")) {
        return;
    }
    let ear = Ear::default();
    let _listening = tracing::subscriber::set_default(ear.clone());
    let (hand, spy, locks) = spied().await;
    let guard = locks.mutex("stock:42").lock().await.unwrap();
    assert!(ear.heard(&["span DEBUG acquire", "name=stock:42", "mode=exclusive", "engine=\"memory\""]), "{:?}", ear.0);

    spy.next(Call::Renew, Play::Fail(true));
    walk(&hand, TTL / 3, std::time::Duration::from_millis(100)).await;
    assert!(ear.heard(&["event WARN", "could not be renewed", "leases=1"]), "{:?}", ear.0);

    assert!(!ear.heard(&["lock lost"]));
    hand.advance(TTL);
    quiet().await;
    assert!(!guard.is_held());
    assert!(ear.heard(&["event WARN", "lock lost", "name=stock:42", "token=1", "reason=\"expired\""]), "{:?}", ear.0);

    let evicted = locks.mutex("b").lock().await.unwrap();
    let claim = locks.inspect("b").await.unwrap().holders[0].claim;
    locks.evict("b", claim).await.unwrap();
    assert!(ear.heard(&["event WARN", "claim evicted", "name=b"]), "{:?}", ear.0);
    drop(evicted);
}

#[tokio::test]
async fn secrets_are_not_heard() {
    if !alone(concat!(module_path!(), "::secrets_are_not_heard")) {
        return;
    }
    let ear = Ear::default();
    let _listening = tracing::subscriber::set_default(ear.clone());
    let (_hand, locks) = still().await;
    let owner = leasehold::Owner::new();
    let guard = locks.mutex("a").owner(&owner).lock().await.unwrap();
    let claim = locks.inspect("a").await.unwrap().holders[0].claim;
    locks.evict("a", claim).await.unwrap();
    quiet().await;
    assert!(ear.heard(&["claim evicted"]));
    let full = format!("{:032x}", claim.bits());
    assert!(!ear.heard(&[&full]) && !ear.heard(&[&owner.to_string()]), "whoever knows these could take the lock");
    drop(guard);
}
