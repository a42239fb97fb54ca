//! SETNX first, EXPIRE second, and nothing in between; so one thinks.

use std::path::Path;
use std::time::Duration;

use leasehold_conformance::world::{LONG, SOON};
use leasehold_testbed::Actor;
use leasehold_testbed::process::Binary;

use super::story::{LOCK, Story, client, process};
use crate::redis_faults::time::Time;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn setnx_and_expire_apart_with_a_crash_between() {
    let story = Story::begin("SETNX and EXPIRE apart, with a crash between");
    let time = Time::new();
    let server = time.redis().start().await.expect("a server");
    let mut naive = story.naive("B", server.addr()).await;

    story.part("the textbook");
    let cli = Binary::new("redis-cli", "redis-tools").find().expect("redis-cli");
    let script = r#""$0" -p "$1" SETNX lock A && read -r _ && "$0" -p "$1" EXPIRE lock 2"#;
    let arguments = ["-c", script, &cli.to_string_lossy(), &server.port().to_string()];
    let mut job = Actor::spawn(Path::new("/bin/sh"), &arguments, &[]).expect("a shell");
    let reply = job.recv(SOON).await.expect("redis-cli's output");
    story.says("A (a shell script)", "SETNX lock A", &reply);
    assert_eq!(reply, 1);
    job.sigkill().expect("a killed shell");
    story.tell("A is killed (SIGKILL) before its EXPIRE lock 2");
    assert_eq!(naive.does("SETNX lock B").await, "0");
    assert_eq!(naive.does("TTL lock").await, "-1");
    story.so("no expiry, no holder: nobody will ever get it");

    story.part("leasehold");
    let mut holder = process(&server.url(), LONG).await;
    let locks = client(&server.url(), LONG).await;
    let token = story.lock_in("A (a process, TTL 600 s)", &mut holder).await;
    holder.process().sigkill().expect("a killed process");
    story.tell("A is killed (SIGKILL)");
    story.busy("B", &locks).await;
    let later = LONG + Duration::from_secs(1);
    time.pass(later);
    let next = locks.mutex(LOCK).wait(SOON).lock().await.expect("the lock of the dead");
    story.says("B", "lock().await", format!("token {}, {:.1} s after A's death", next.token(), later.as_secs_f64()));
    assert!(next.token().0 > token);
    story.so("record and expiry are one script: there is no lock without its end");

    story.part("the textbook, all that time later");
    assert_eq!(naive.does("SETNX lock B").await, "0");
    assert_eq!(naive.does("TTL lock").await, "-1");
    story.end();
}
