//! A lock whose value is its expiry by the client's wall clock, as in the old Redis SETNX
//! documentation.

use std::path::Path;
use std::time::Duration;

use leasehold_conformance::actor_process::ActorProcess;
use leasehold_conformance::protocol::{ActorCommand, ActorReport, LockRequest};
use leasehold_conformance::test_context::LONG_TTL;
use leasehold_testbed::redis;

use super::timeline::{LOCK, TextbookClient, Timeline, elapsed_text, now, process};

/// The clock error in seconds.
const SKEW: i64 = 600;

/// The wall clock in seconds since 1970, shifted by `skew`.
#[allow(clippy::disallowed_methods, reason = "this is the mistake")]
fn clock(skew: i64) -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock after 1970");
    i64::try_from(since.as_secs()).expect("a clock before 2200") + skew
}

/// Parses a number from a Redis reply.
fn number(reply: &str) -> i64 {
    reply.parse().expect("a number")
}

/// A client whose clock is ahead finds every lock expired.
async fn show_stolen_lock(steps: &Timeline, a: &mut TextbookClient<'_>, b: &mut TextbookClient<'_>) {
    assert_eq!(a.run(&format!("SETNX lock {}", clock(0) + 60)).await, "1");
    assert_eq!(b.run(&format!("SETNX lock {}", clock(SKEW) + 60)).await, "0");
    let end = number(&b.run("GET lock").await);
    let over = clock(SKEW) - end;
    steps.record_event(&format!("B, by its own clock: the lock expired {over} s ago"));
    assert!(over > 0);
    let old = number(&b.run(&format!("GETSET lock {}", clock(SKEW) + 60)).await);
    assert_eq!(old, end, "no other client was faster, so B believes that it holds the lock");
    assert!(clock(0) < end, "by the real time, A still holds the lock");
    steps.record_conclusion(&format!("A's lock lasts {} s more, and B is inside, too", end - clock(0)));
}

/// A client whose clock is ahead locks for longer than it intends.
async fn show_overlong_lock(steps: &Timeline, c: &mut TextbookClient<'_>, d: &mut TextbookClient<'_>) {
    assert_eq!(c.run(&format!("SETNX other {}", clock(SKEW) + 1)).await, "1");
    steps.record_event("C wanted the lock for 1 s, and has ended");
    assert_eq!(d.run(&format!("SETNX other {}", clock(0) + 1)).await, "0");
    let left = number(&d.run("GET other").await) - clock(0);
    assert!(left > SKEW / 2);
    steps.record_conclusion(&format!("by D's clock, the lock expires in {left} s: a lock of 1 s lasts ten minutes"));
}

/// A process with a skewed wall clock; it verifies the skew.
async fn process_with_skewed_clock(
    steps: &Timeline,
    who: &str,
    url: &str,
    skew: i64,
    server: &mut TextbookClient<'_>,
) -> ActorProcess {
    let faked = format!("{skew:+}");
    // The loader replaces $LIB with the machine's library directory.
    let library = "/usr/$LIB/faketime/libfaketimeMT.so.1";
    let env = [("LD_PRELOAD", library), ("FAKETIME", &faked), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")];
    let exe = Path::new(env!("CARGO_BIN_EXE_leasehold-actor"));
    let mut actor = ActorProcess::open_with(exe, &env, url, Duration::from_secs(1)).await;
    let wall = i64::try_from(actor.wall_clock_ms().await / 1000).expect("a time");
    let time = server.run_silently("TIME").await;
    let right = number(time.split(' ').next().expect("seconds"));
    steps.record_call(who, "its clock", format!("{wall}; the server's: {right}"));
    assert!((wall - right - skew).abs() < 60, "the clock is not skewed: is the Debian package `faketime` installed?");
    actor
}

/// Another process tries the lock, which another client must hold.
async fn assert_busy(steps: &Timeline, who: &str, actor: &mut ActorProcess) {
    actor
        .send(&ActorCommand::Lock(LockRequest { wait_ms: Some(0), ..LockRequest::exclusive_with_retries(LOCK) }))
        .await;
    let answer = actor.wait_for_report("an answer", |report| match report {
        ActorReport::Busy { .. } => Some("None"),
        ActorReport::Granted { .. } => Some("a guard"),
        _ => None,
    });
    let answer = answer.await;
    steps.record_call(who, "try_lock().await", answer);
    assert_eq!(answer, "None");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expiry_by_a_skewed_client_clock() {
    let steps = Timeline::start("An expiry by a skewed client clock");
    let server = redis::start().await.expect("a server");
    let mut a = steps.textbook_client("A (its clock is right)", server.addr()).await;
    let mut b = steps.textbook_client("B (10 minutes ahead)", server.addr()).await;
    let mut c = steps.textbook_client("C (10 minutes ahead)", server.addr()).await;
    let mut d = steps.textbook_client("D (its clock is right)", server.addr()).await;

    steps.begin_section("the textbook");
    show_stolen_lock(&steps, &mut a, &mut b).await;
    show_overlong_lock(&steps, &mut c, &mut d).await;

    steps.begin_section("leasehold");
    let url = server.url();
    let mut right = process(&url, LONG_TTL).await;
    let mut ahead =
        process_with_skewed_clock(&steps, "B (a process, TTL 1 s, 10 minutes ahead)", &url, SKEW, &mut d).await;
    let mut behind =
        process_with_skewed_clock(&steps, "C (a process, TTL 1 s, 10 minutes behind)", &url, -SKEW, &mut d).await;
    let first = steps.lock_in_process("A (a process)", &mut right).await;
    assert_busy(&steps, "B", &mut ahead).await;
    assert_busy(&steps, "C", &mut behind).await;
    let outcome = right.release(LOCK).await;
    steps.record_call("A", "release().await", &outcome);
    assert_eq!(outcome, "released");
    let token = steps.lock_in_process("B", &mut ahead).await;
    let server_time = number(&d.run_silently("TIME").await.replace(' ', "")[..10]);
    let granted = i64::try_from(token / 1_000_000).expect("a time");
    assert!(token > first && (server_time - granted).abs() < 60, "the token is not the server's time: {token}");
    ahead.process().sigkill().expect("a killed process");
    let killed = now();
    steps.record_event("B is killed (SIGKILL)");
    let (last, _) = behind.acquire(LockRequest::exclusive_with_retries(LOCK)).await;
    steps.record_call("C", "lock().await", format!("token {last}, {} after B's death", elapsed_text(killed)));
    assert!(last > token);
    steps.record_conclusion("the server reads its own clock in the script; a client's wall clock is never read");
    steps.finish();
}
