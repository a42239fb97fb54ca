//! The server did what was asked, and its reply is lost; or it was asked twice. It is one grant, one release, and no leak.

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
    let site = Fixture::shared().await;
    let other = site.locks(LONG_TTL).await;
    let (locks, proxy) = site.proxied_locks(LONG_TTL).await;
    for _ in 0..5 {
        proxy.cut_after_request();
        let guard = locks.mutex("a").timeout(TEST_TIMEOUT).lock().await.expect("the lock");
        assert_eq!(holder_tokens(&other, "a").await, [Some(guard.token())]);
        release(guard).await;
        assert!(holder_tokens(&other, "a").await.is_empty());
    }
    assert!(proxy.counts().accepted >= 6, "each round cost a connection");
    // In a queue, too.
    let held = other.mutex("a").lock().await.expect("a lock");
    proxy.cut_after_request();
    let waits = spawn_lock(&locks, "a");
    until_waiting(&other, "a", 1).await;
    eventually(TEST_TIMEOUT, || async {
        if proxy.counts().accepted >= 7 { Ok(()) } else { Err("not connected again so far") }
    })
    .await;
    release(held).await;
    release(await_guard(waits).await).await;
    until_empty(&other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_try_lock_leaves_no_claim() {
    let site = Fixture::shared().await;
    let other = site.locks(LONG_TTL).await;
    let (locks, proxy) = site.proxied_locks(LONG_TTL).await;
    for _ in 0..5 {
        proxy.cut_after_request();
        let error = locks.mutex("a").try_lock().await.expect_err("the reply was lost");
        assert_eq!(error.effect(), leasehold::Effect::Unknown, "{error}");
        until_empty(&other).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_a_release_is_a_release() {
    let site = Fixture::shared().await;
    let other = site.locks(LONG_TTL).await;
    let (locks, proxy) = site.proxied_locks(LONG_TTL).await;
    for round in 0..6 {
        let held = locks.mutex("a").lock().await.expect("a lock");
        let waits = (round % 2 == 1).then(|| spawn_lock(&other, "a"));
        until_waiting(&other, "a", round % 2).await;
        proxy.cut_after_request();
        release(held).await;
        if let Some(waits) = waits {
            let next = await_guard(waits).await;
            assert_eq!(holder_tokens(&other, "a").await, [Some(next.token())], "the second request did not touch it");
            release(next).await;
        }
        until_empty(&other).await;
    }
}

/// As above, where everything behind the release is swallowed: the client finds out by itself that it gets no answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_on_a_mute_connection_is_a_release() {
    let (site, hand) = (Fixture::shared().await, ManualClock::running());
    let other = site.locks(LONG_TTL).await;
    let (locks, proxy) = site.proxied_locks_with(LONG_TTL, hand.clock(), "connect-timeout=500ms").await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    proxy.drop_replies(true);
    let releasing = tokio::spawn(held.release());
    until_empty(&other).await;
    let next = other.mutex("a").lock().await.expect("it is free");
    proxy.drop_replies(false);
    // The client has waited for long enough.
    hand.advance(Duration::from_secs(5));
    advance_until(&hand, || if releasing.is_finished() { Ok(()) } else { Err("no answer so far") }).await;
    let outcome = releasing.await.expect("no panic").expect("a release");
    assert_eq!(outcome, leasehold::ReleaseOutcome::Released);
    assert!(next.is_held());
    assert_eq!(holder_tokens(&other, "a").await, [Some(next.token())]);
    release(next).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_a_renewal_loses_nothing() {
    let (site, hand) = (Fixture::shared().await, ManualClock::running());
    let other = site.locks(LONG_TTL).await;
    let (locks, proxy) = site.proxied_locks_with(LONG_TTL, hand.clock(), "").await;
    let mut held = Vec::new();
    // Enough for a bundle, and some that are not in one.
    for number in 0..24 {
        held.push(locks.mutex(format!("alone {number}")).lock().await.expect("a lock"));
        held.push(locks.rwlock("together").read().await.expect("a lock"));
    }
    for _ in 0..3 {
        let lines = proxy.counts().accepted;
        proxy.cut_after_request();
        hand.advance(LONG_TTL / 3);
        let before = locks.clock().now();
        eventually(TEST_TIMEOUT, || async {
            if proxy.counts().accepted > lines { Ok(()) } else { Err("no renewal was cut so far") }
        })
        .await;
        // What was not renewed with the new connection is tried again a little later.
        advance_until(&hand, || {
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

/// The look of a waiter is granted the lock, and the reply is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_a_heartbeat_gives_one_grant() {
    let time = ManualTime::new();
    let site = Fixture::with_config(time.redis_config()).await;
    let watcher = site.locks(LONG_TTL).await;
    let mut player = site.actor_process(LONG_TTL).await;
    let (locks, proxy) = site.proxied_locks_with(LONGER, time.clients_clock(), "").await;
    player.acquire(leasehold_conformance::protocol::LockRequest::exclusive("a")).await;
    let waits = spawn_lock(&locks, "a");
    until_waiting(&watcher, "a", 1).await;
    player.process().sigkill().expect("a killed process");
    let lines = proxy.counts().accepted;
    // The next that is asked is the first in line's look when the dead one's lease ends.
    proxy.cut_after_request();
    time.advance(LONG_TTL + Duration::from_secs(1));
    let got = time.advance_until_granted(waits).await;
    assert_eq!(holder_tokens(&watcher, "a").await, [Some(got.token())]);
    assert!(proxy.counts().accepted > lines, "a reply was lost");
    release(got).await;
    until_empty(&watcher).await;
}

/// Connections break after any request, while many work: nobody meets anybody, everybody is served, nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_lost_replies_keep_exclusion_and_leave_no_claims() {
    const ROUNDS: u32 = 20;
    const CONNECTIONS: u64 = 10;
    let site = Fixture::shared().await;
    let other = site.locks(LONG_TTL).await;
    let (locks, proxy) = site.proxied_locks(LONG_TTL).await;
    let (room, over) = (Arc::new(OverlapProbe::default()), Arc::new(AtomicBool::new(false)));
    let proxy = Arc::new(proxy);
    let cutter = tokio::spawn({
        let (proxy, room, over): (Arc<Proxy>, _, _) = (Arc::clone(&proxy), Arc::clone(&room), Arc::clone(&over));
        async move {
            // Between two cuts some work is done, so that it is not always the same request that is hit.
            let mut cuts = 0;
            while !over.load(Ordering::SeqCst) {
                let entered = room.visit_count();
                proxy.cut_after_request();
                cuts += 1;
                eventually(TEST_TIMEOUT, || async {
                    let on = room.visit_count() > entered + cuts % 5 || over.load(Ordering::SeqCst);
                    if on { Ok(()) } else { Err("nobody is served any more") }
                })
                .await;
            }
        }
    });
    let work = |number: u32| {
        let (locks, room) = (if number == 0 { other.clone() } else { locks.clone() }, Arc::clone(&room));
        let proxy = Arc::clone(&proxy);
        tokio::spawn(async move {
            // However fast the work goes, it goes on until enough connections were cut.
            let mut done = 0;
            while done < ROUNDS || proxy.counts().accepted <= CONNECTIONS {
                done += 1;
                let guard = locks.mutex("a").lock().await.expect("the lock");
                room.visit(1).await;
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
    assert_eq!((room.max_concurrent(), room.visit_count()), (1, done), "one at a time");
    assert!(proxy.counts().accepted > CONNECTIONS, "connections were cut: {:?}", proxy.counts());
    until_empty(&other).await;
}

/// Every request of a cycle reaches the server twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicated_request_takes_effect_once() {
    let site = Fixture::new().await;
    let other = site.locks(LONG_TTL).await;
    let (locks, proxy) = site.proxied_locks(LONG_TTL).await;
    // Both replies must have come before the next request: a reply that nobody waits for is passed over.
    let settled = |asked: u64| {
        let (site, proxy) = (&site, &proxy);
        async move {
            let scripts = eventually(TEST_TIMEOUT, || async {
                let scripts = site.calls().await.scripts();
                if scripts == asked { Ok(scripts) } else { Err(format!("{scripts} scripts")) }
            })
            .await;
            assert_eq!(scripts, asked);
            proxy.duplicate_requests(false);
        }
    };
    let mut last = leasehold::Token(0);
    for round in 0..5 {
        site.reset_stats().await;
        proxy.duplicate_requests(true);
        let held = locks.mutex("a").lock().await.expect("a lock");
        settled(2).await;
        assert!(held.token() > last);
        last = held.token();
        assert_eq!(holder_tokens(&other, "a").await, [Some(last)], "round {round}");
        let waits = spawn_lock(&other, "a");
        until_waiting(&other, "a", 1).await;
        site.reset_stats().await;
        proxy.duplicate_requests(true);
        release(held).await;
        settled(2).await;
        let next = await_guard(waits).await;
        assert_eq!(holder_tokens(&other, "a").await, [Some(next.token())], "the second release did not touch it");

        site.reset_stats().await;
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
