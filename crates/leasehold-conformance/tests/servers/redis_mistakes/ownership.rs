//! Deleting a lock that another client holds by now.

use std::time::Duration;

use leasehold::{Locks, ReleaseOutcome};
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::redis::{Reply, RespClient};
use leasehold_testbed::{Proxy, Server, eventually, redis};

use tokio::time::timeout;

use super::timeline::{LOCK, TextbookClient, Timeline, client, process};
use crate::redis_faults::manual_time::ManualTime;

/// A TTL that the test waits out.
const SHORT: Duration = Duration::from_secs(1);

/// A's lock expires and B acquires it.
async fn let_expire_and_reacquire(steps: &Timeline, a: &mut TextbookClient<'_>, b: &mut TextbookClient<'_>) {
    a.wait_expired("lock").await;
    steps.record_event("A is slow: its lock expires");
    assert_eq!(b.run("SET lock B NX PX 60000").await, "OK");
}

/// A deletes B's lock, and C acquires it beside B.
async fn delete_and_grant_again(steps: &Timeline, a: &mut TextbookClient<'_>, c: &mut TextbookClient<'_>) {
    assert_eq!(a.run("DEL lock").await, "1");
    assert_eq!(c.run("SET lock C NX PX 60000").await, "OK");
    steps.record_conclusion("A has deleted B's lock: B and C are both inside");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn del_without_looking_whose_it_is() {
    let steps = Timeline::start("DEL without looking whose it is");
    let server = redis::start().await.expect("a server");
    let mut a = steps.textbook_client("A", server.addr()).await;
    let mut b = steps.textbook_client("B", server.addr()).await;
    let mut c = steps.textbook_client("C", server.addr()).await;

    steps.begin_section("the textbook");
    assert_eq!(a.run("SET lock A NX PX 300").await, "OK");
    let_expire_and_reacquire(&steps, &mut a, &mut b).await;
    delete_and_grant_again(&steps, &mut a, &mut c).await;

    steps.begin_section("leasehold");
    let mut slow = process(&server.url(), SHORT).await;
    let locks = client(&server.url(), LONG_TTL).await;
    let others = client(&server.url(), LONG_TTL).await;
    let token = steps.lock_in_process("A (a process, TTL 1 s)", &mut slow).await;
    slow.process().sigstop().expect("a stopped process");
    steps.record_event("A is stopped (SIGSTOP) for longer than its TTL");
    let guard = steps.lock_here("B", &locks).await;
    assert!(guard.token().0 > token);
    slow.process().sigcont().expect("a running process");
    steps.record_event("A resumes (SIGCONT)");
    let outcome = slow.release(LOCK).await;
    steps.record_call("A", "release().await", format!("AlreadyLost({outcome})"));
    assert_eq!(outcome, "expired");
    steps.assert_held("B", &locks, &guard).await;
    steps.assert_busy("C", &others).await;
    steps.record_conclusion("a release names its claim: it ends that claim or none, and A learns which");
    steps.finish();
}

/// What a release looks like on the server: one command that contains all others.
async fn show_release_on_the_server(steps: &Timeline, server: &Server) {
    let locks = client(&server.url(), LONG_TTL).await;
    let guard = locks.mutex("another").lock().await.expect("a lock");
    let mut monitor = RespClient::connect(server.addr()).await.expect("a connection");
    assert_eq!(monitor.command(&["MONITOR"]).await.expect("a reply"), Reply::Simple("OK".to_owned()));
    assert_eq!(guard.release().await.expect("a release"), ReleaseOutcome::Released);
    let mut marker = RespClient::connect(server.addr()).await.expect("a connection");
    marker.command(&["ECHO", "the end"]).await.expect("a reply");
    let (mut commands, mut inside) = (Vec::new(), Vec::new());
    loop {
        let Reply::Simple(line) = monitor.reply().await.expect("a line") else { panic!("no line of MONITOR") };
        match line.split('"').nth(1).expect("a command") {
            "ECHO" => break,
            command if line.contains(" lua] ") => inside.push(command.to_owned()),
            command => commands.push(command.to_owned()),
        }
    }
    let seen = format!("{} (in it: {})", commands.join(" "), inside.join(" "));
    steps.record_call("MONITOR", "release().await as the server sees it", seen);
    assert_eq!(commands, ["EVALSHA"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn get_compare_del_not_atomic() {
    let steps = Timeline::start("GET, compare, DEL: not atomic");
    let time = ManualTime::new();
    let server = time.redis_config().start().await.expect("a server");
    let mut a = steps.textbook_client("A", server.addr()).await;
    let mut b = steps.textbook_client("B", server.addr()).await;
    let mut c = steps.textbook_client("C", server.addr()).await;

    steps.begin_section("the textbook");
    assert_eq!(a.run("SET lock A NX PX 600000").await, "OK");
    assert_eq!(a.run("GET lock").await, "A");
    steps.record_event("A compares the value with its own: they are equal, so it will delete the key");
    time.advance(LONG_TTL + Duration::from_secs(1));
    let_expire_and_reacquire(&steps, &mut a, &mut b).await;
    delete_and_grant_again(&steps, &mut a, &mut c).await;

    steps.begin_section("leasehold");
    show_release_on_the_server(&steps, &server).await;
    let network = Proxy::start(server.addr()).await.expect("a proxy");
    let slow = Locks::builder().ttl(LONG_TTL).clock(time.clients_clock());
    let slow = slow.open(&format!("redis://{}/", network.addr())).await.expect("the server");
    let locks = client(&server.url(), LONG_TTL).await;
    let others = client(&server.url(), LONG_TTL).await;
    let mine = steps.lock_here("A (TTL 600 s)", &slow).await;
    assert!(mine.is_held());
    let before = network.counts();
    network.freeze(true);
    steps.record_event("the network stops delivering, and A, which holds the lock, sends its release");
    let mut release = Box::pin(mine.release());
    tokio::select! {
        biased;
        outcome = &mut release => panic!("the release returned without a reply: {outcome:?}"),
        () = std::future::ready(()) => {}
    }
    time.advance(LONG_TTL + Duration::from_secs(1));
    let guard = steps.lock_here("B", &locks).await;
    let outcome = timeout(TEST_TIMEOUT, release).await.expect("the call returns");
    let error = outcome.expect_err("the release gets no reply");
    steps.record_call("A", "release().await", format!("error: {error}"));
    assert_eq!(network.counts().request_bytes, before.request_bytes, "the release reached the server");
    network.freeze(false);
    eventually(TEST_TIMEOUT, || async {
        let answered = network.counts().reply_bytes > before.reply_bytes;
        if answered { Ok(()) } else { Err("no reply so far") }
    })
    .await;
    steps.record_event("the network recovers: A's release arrives at the server, too late");
    steps.assert_busy("C", &others).await;
    steps.assert_held("B", &locks, &guard).await;
    steps.record_conclusion("compare and delete are one script: no other command runs in between");
    steps.finish();
}
