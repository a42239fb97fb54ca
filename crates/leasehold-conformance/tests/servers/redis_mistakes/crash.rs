//! SETNX and EXPIRE as two commands, with a crash between them.

use std::path::Path;
use std::time::Duration;

use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::Actor;
use leasehold_testbed::process::Binary;

use super::timeline::{LOCK, Timeline, client, process};
use crate::redis_faults::manual_time::ManualTime;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn setnx_and_expire_apart_with_a_crash_between() {
    let steps = Timeline::start("SETNX and EXPIRE apart, with a crash between");
    let time = ManualTime::new();
    let server = time.redis_config().start().await.expect("a server");
    let mut naive = steps.textbook_client("B", server.addr()).await;

    steps.begin_section("the textbook");
    let cli = Binary::new("redis-cli", "redis-tools").find().expect("redis-cli");
    let script = r#""$0" -p "$1" SETNX lock A && read -r _ && "$0" -p "$1" EXPIRE lock 2"#;
    let arguments = ["-c", script, &cli.to_string_lossy(), &server.port().to_string()];
    let mut job = Actor::spawn(Path::new("/bin/sh"), &arguments, &[]).expect("a shell");
    let reply = job.recv(TEST_TIMEOUT).await.expect("redis-cli's output");
    steps.record_call("A (a shell script)", "SETNX lock A", &reply);
    assert_eq!(reply, 1);
    job.sigkill().expect("a killed shell");
    steps.record_event("A is killed (SIGKILL) before its EXPIRE lock 2");
    assert_eq!(naive.run("SETNX lock B").await, "0");
    assert_eq!(naive.run("TTL lock").await, "-1");
    steps.record_conclusion("the lock has no holder and no expiry: no client can ever acquire it");

    steps.begin_section("leasehold");
    let mut holder = process(&server.url(), LONG_TTL).await;
    let locks = client(&server.url(), LONG_TTL).await;
    let token = steps.lock_in_process("A (a process, TTL 600 s)", &mut holder).await;
    holder.process().sigkill().expect("a killed process");
    steps.record_event("A is killed (SIGKILL)");
    steps.assert_busy("B", &locks).await;
    let later = LONG_TTL + Duration::from_secs(1);
    time.advance(later);
    let next = locks.mutex(LOCK).timeout(TEST_TIMEOUT).lock().await.expect("the lock of the killed process");
    steps.record_call(
        "B",
        "lock().await",
        format!("token {}, {:.1} s after A's death", next.token(), later.as_secs_f64()),
    );
    assert!(next.token().0 > token);
    steps.record_conclusion("the lock and its expiry are written by one script: no lock is without an expiry");

    steps.begin_section("the textbook, after all that time");
    assert_eq!(naive.run("SETNX lock B").await, "0");
    assert_eq!(naive.run("TTL lock").await, "-1");
    steps.finish();
}
