//! The server handles a request whose reply is lost, or handles it twice: one grant, one release,
//! no leak.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::Locks;
use leasehold::clock::ManualClock;
use leasehold_conformance::overlap_probe::OverlapProbe;
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};
use leasehold_testbed::{Proxy, eventually};

use crate::redis_faults::fixture::{Fixture, await_guard, inspect, release, spawn_lock, until_empty, until_waiting};
use crate::redis_faults::manual_time::{LONGER, ManualTime, advance_until};

/// The holders of a lock, by their tokens.
async fn holder_tokens(locks: &Locks, name: &str) -> Vec<Option<leasehold::Token>> {
    inspect(locks, name).await.holders.iter().map(|holder| holder.token).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_an_attempt_is_one_grant() {
    let fixture = Fixture::shared().await;
    let other = fixture.locks(LONG_TTL).await;
    let (locks, proxy) = fixture.proxied_locks(LONG_TTL).await;
    for _ in 0..5 {
        proxy.cut_after_request();
        let guard = locks.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("the lock");
        assert_eq!(holder_tokens(&other, "a").await, [Some(guard.token())]);
        release(guard).await;
        assert!(holder_tokens(&other, "a").await.is_empty());
    }
    assert!(proxy.counts().accepted >= 6, "each round used a new connection");
    // The reply to a waiter's attempt is lost: it has one position in the queue.
    let held = other.mutex("a").lock().await.expect("a lock");
    proxy.cut_after_request();
    let waits = spawn_lock(&locks, "a");
    until_waiting(&other, "a", 1).await;
    eventually(TEST_TIMEOUT, || async {
        if proxy.counts().accepted >= 7 { Ok(()) } else { Err("not reconnected so far") }
    })
    .await;
    release(held).await;
    release(await_guard(waits).await).await;
    until_empty(&other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_try_lock_leaves_no_claim() {
    let fixture = Fixture::shared().await;
    let other = fixture.locks(LONG_TTL).await;
    let (locks, proxy) = fixture.proxied_locks(LONG_TTL).await;
    for _ in 0..5 {
        proxy.cut_after_request();
        let error = locks.mutex("a").try_lock().await.expect_err("the reply was lost");
        assert_eq!(error.effect(), leasehold::Effect::Unknown, "{error}");
        until_empty(&other).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_a_release_is_a_release() {
    let fixture = Fixture::shared().await;
    let other = fixture.locks(LONG_TTL).await;
    let (locks, proxy) = fixture.proxied_locks(LONG_TTL).await;
    for round in 0..6 {
        let held = locks.mutex("a").lock().await.expect("a lock");
        let waits = (round % 2 == 1).then(|| spawn_lock(&other, "a"));
        until_waiting(&other, "a", round % 2).await;
        proxy.cut_after_request();
        release(held).await;
        if let Some(waits) = waits {
            let next = await_guard(waits).await;
            assert_eq!(
                holder_tokens(&other, "a").await,
                [Some(next.token())],
                "the repeated release did not affect the next holder"
            );
            release(next).await;
        }
        until_empty(&other).await;
    }
}

/// The reply to a release and all later replies on the connection are lost: the client detects the
/// dead connection and reports the release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_on_a_mute_connection_is_a_release() {
    let (fixture, manual_clock) = (Fixture::shared().await, ManualClock::running());
    let other = fixture.locks(LONG_TTL).await;
    let (locks, proxy) = fixture.proxied_locks_with(LONG_TTL, manual_clock.clock(), "connect-timeout=500ms").await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    proxy.drop_replies(true);
    let releasing = tokio::spawn(held.release());
    until_empty(&other).await;
    let next = other.mutex("a").lock().await.expect("the lock is free");
    proxy.drop_replies(false);
    // The client's timeout has passed.
    manual_clock.advance(Duration::from_secs(5));
    advance_until(&manual_clock, || if releasing.is_finished() { Ok(()) } else { Err("no outcome so far") }).await;
    let outcome = releasing.await.expect("no panic").expect("a release");
    assert_eq!(outcome, leasehold::ReleaseOutcome::Released);
    assert!(next.is_held());
    assert_eq!(holder_tokens(&other, "a").await, [Some(next.token())]);
    release(next).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_a_renewal_loses_nothing() {
    let (fixture, manual_clock) = (Fixture::shared().await, ManualClock::running());
    let other = fixture.locks(LONG_TTL).await;
    let (locks, proxy) = fixture.proxied_locks_with(LONG_TTL, manual_clock.clock(), "").await;
    let mut held = Vec::new();
    // Enough for a renewal group, and some outside it.
    for number in 0..24 {
        held.push(locks.mutex(format!("alone {number}")).lock().await.expect("a lock"));
        held.push(locks.rwlock("together").read().await.expect("a lock"));
    }
    for _ in 0..3 {
        let connections = proxy.counts().accepted;
        proxy.cut_after_request();
        manual_clock.advance(LONG_TTL / 3);
        let before = locks.clock().now();
        eventually(TEST_TIMEOUT, || async {
            if proxy.counts().accepted > connections { Ok(()) } else { Err("no renewal was interrupted so far") }
        })
        .await;
        // Leases that the reconnect did not renew are retried a little later.
        advance_until(&manual_clock, || {
            let old = held.iter().filter(|guard| guard.deadline() < before.saturating_add(LONG_TTL * 9 / 10)).count();
            if old == 0 { Ok(()) } else { Err(format!("{old} were not renewed")) }
        })
        .await;
        assert!(held.iter().all(leasehold::Guard::is_held));
    }
    for guard in held {
        release(guard).await;
    }
    until_empty(&other).await;
}

/// A waiter's heartbeat is granted the lock, and the reply is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_a_heartbeat_gives_one_grant() {
    let time = ManualTime::new();
    let fixture = Fixture::with_config(time.redis_config()).await;
    let watcher = fixture.locks(LONG_TTL).await;
    let mut actor = fixture.actor_process(LONG_TTL).await;
    let (locks, proxy) = fixture.proxied_locks_with(LONGER, time.clients_clock(), "").await;
    actor.acquire(leasehold_conformance::protocol::LockRequest::exclusive("a")).await;
    let waits = spawn_lock(&locks, "a");
    until_waiting(&watcher, "a", 1).await;
    actor.process().sigkill().expect("a killed process");
    let connections = proxy.counts().accepted;
    // The next request is the first waiter's heartbeat when the dead holder's lease expires.
    proxy.cut_after_request();
    time.advance(LONG_TTL + Duration::from_secs(1));
    let got = time.advance_until_granted(waits).await;
    assert_eq!(holder_tokens(&watcher, "a").await, [Some(got.token())]);
    assert!(proxy.counts().accepted > connections, "a reply was lost");
    release(got).await;
    until_empty(&watcher).await;
}

/// Connections break after random requests under load: no two holders overlap, every client is
/// served, and no claim is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_lost_replies_keep_exclusion_and_leave_no_claims() {
    const ROUNDS: u32 = 20;
    const CONNECTIONS: u64 = 10;
    let fixture = Fixture::shared().await;
    let other = fixture.locks(LONG_TTL).await;
    let (locks, proxy) = fixture.proxied_locks(LONG_TTL).await;
    let (probe, over) = (Arc::new(OverlapProbe::default()), Arc::new(AtomicBool::new(false)));
    let proxy = Arc::new(proxy);
    let cutter = tokio::spawn({
        let (proxy, probe, over): (Arc<Proxy>, _, _) = (Arc::clone(&proxy), Arc::clone(&probe), Arc::clone(&over));
        async move {
            // Some work is done between two cuts, so that they hit different requests.
            let mut cuts = 0;
            while !over.load(Ordering::SeqCst) {
                let entered = probe.visit_count();
                proxy.cut_after_request();
                cuts += 1;
                eventually(TEST_TIMEOUT, || async {
                    let on = probe.visit_count() > entered + cuts % 5 || over.load(Ordering::SeqCst);
                    if on { Ok(()) } else { Err("no client is served any more") }
                })
                .await;
            }
        }
    });
    let work = |number: u32| {
        let (locks, probe) = (if number == 0 { other.clone() } else { locks.clone() }, Arc::clone(&probe));
        let proxy = Arc::clone(&proxy);
        tokio::spawn(async move {
            // The work continues until enough connections were cut.
            let mut done = 0;
            while done < ROUNDS || proxy.counts().accepted <= CONNECTIONS {
                done += 1;
                let guard = locks.mutex("a").lock().await.expect("the lock");
                probe.visit(1).await;
                assert!(guard.is_held());
                release(guard).await;
            }
            done
        })
    };
    let mut done = 0;
    for task in (0..8).map(work).collect::<Vec<_>>() {
        done += task.await.expect("no panic");
    }
    over.store(true, Ordering::SeqCst);
    cutter.await.expect("no panic");
    assert_eq!((probe.max_concurrent(), probe.visit_count()), (1, done), "one at a time");
    assert!(proxy.counts().accepted > CONNECTIONS, "connections were cut: {:?}", proxy.counts());
    until_empty(&other).await;
}

/// Every request reaches the server twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicated_request_takes_effect_once() {
    let fixture = Fixture::new().await;
    let other = fixture.locks(LONG_TTL).await;
    let (locks, proxy) = fixture.proxied_locks(LONG_TTL).await;
    // Both replies must arrive before the next request: the client skips a reply without a pending
    // request.
    let settled = |expected: u64| {
        let (fixture, proxy) = (&fixture, &proxy);
        async move {
            let scripts = eventually(TEST_TIMEOUT, || async {
                let scripts = fixture.calls().await.scripts();
                if scripts == expected { Ok(scripts) } else { Err(format!("{scripts} scripts")) }
            })
            .await;
            assert_eq!(scripts, expected);
            proxy.duplicate_requests(false);
        }
    };
    let mut last = leasehold::Token(0);
    for round in 0..5 {
        fixture.reset_stats().await;
        proxy.duplicate_requests(true);
        let held = locks.mutex("a").lock().await.expect("a lock");
        settled(2).await;
        assert!(held.token() > last);
        last = held.token();
        assert_eq!(holder_tokens(&other, "a").await, [Some(last)], "round {round}");
        let waits = spawn_lock(&other, "a");
        until_waiting(&other, "a", 1).await;
        fixture.reset_stats().await;
        proxy.duplicate_requests(true);
        release(held).await;
        settled(2).await;
        let next = await_guard(waits).await;
        assert_eq!(
            holder_tokens(&other, "a").await,
            [Some(next.token())],
            "the repeated release did not affect the next holder"
        );

        fixture.reset_stats().await;
        proxy.duplicate_requests(true);
        let waits = spawn_lock(&locks, "a");
        settled(2).await;
        until_waiting(&other, "a", 1).await;
        release(next).await;
        let got = await_guard(waits).await;
        last = got.token();
        assert_eq!(holder_tokens(&other, "a").await, [Some(last)]);
        release(got).await;
        until_empty(&other).await;
    }
}
