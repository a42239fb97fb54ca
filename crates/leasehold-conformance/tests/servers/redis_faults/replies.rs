//! The server did what was asked, and its reply is lost; or it was asked twice. It is one grant, one release, and no leak.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::Locks;
use leasehold::clock::ManualClock;
use leasehold_conformance::probe::Room;
use leasehold_conformance::world::{LONG, SOON};
use leasehold_testbed::{Proxy, eventually};

use crate::redis_faults::site::{Site, give_back, guard, spawn_lock, until_empty, until_waiting, view};
use crate::redis_faults::time::{LONGER, Time, until};

/// The holders of a lock, by their tokens.
async fn tokens(locks: &Locks, name: &str) -> Vec<Option<leasehold::Token>> {
    view(locks, name).await.holders.iter().map(|holder| holder.token).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_an_attempt_is_one_grant() {
    let site = Site::shared().await;
    let other = site.locks(LONG).await;
    let (locks, proxy) = site.proxied(LONG).await;
    for _ in 0..5 {
        proxy.cut_after_request();
        let guard = locks.mutex("a").wait(SOON).lock().await.expect("the lock");
        assert_eq!(tokens(&other, "a").await, [Some(guard.token())]);
        give_back(guard).await;
        assert!(tokens(&other, "a").await.is_empty());
    }
    assert!(proxy.counts().accepted >= 6, "each round cost a connection");
    // In a queue, too.
    let held = other.mutex("a").lock().await.expect("a lock");
    proxy.cut_after_request();
    let waits = spawn_lock(&locks, "a");
    until_waiting(&other, "a", 1).await;
    eventually(SOON, || async {
        if proxy.counts().accepted >= 7 { Ok(()) } else { Err("not connected again so far") }
    })
    .await;
    give_back(held).await;
    give_back(guard(waits).await).await;
    until_empty(&other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_a_try_leaves_nothing() {
    let site = Site::shared().await;
    let other = site.locks(LONG).await;
    let (locks, proxy) = site.proxied(LONG).await;
    for _ in 0..5 {
        proxy.cut_after_request();
        let error = locks.mutex("a").try_lock().await.expect_err("the reply was lost");
        assert_eq!(error.effect(), leasehold::Effect::Unknown, "{error}");
        until_empty(&other).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_a_release_is_a_release() {
    let site = Site::shared().await;
    let other = site.locks(LONG).await;
    let (locks, proxy) = site.proxied(LONG).await;
    for round in 0..6 {
        let held = locks.mutex("a").lock().await.expect("a lock");
        let waits = (round % 2 == 1).then(|| spawn_lock(&other, "a"));
        until_waiting(&other, "a", round % 2).await;
        proxy.cut_after_request();
        give_back(held).await;
        if let Some(waits) = waits {
            let next = guard(waits).await;
            assert_eq!(tokens(&other, "a").await, [Some(next.token())], "the second request did not touch it");
            give_back(next).await;
        }
        until_empty(&other).await;
    }
}

/// As above, where everything behind the release is swallowed: the client finds out by itself that it gets no answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_on_a_mute_connection_is_a_release() {
    let (site, hand) = (Site::shared().await, ManualClock::running());
    let other = site.locks(LONG).await;
    let (locks, proxy) = site.proxied_with(LONG, hand.clock(), "connect-timeout=500ms").await;
    let held = locks.mutex("a").lock().await.expect("a lock");
    proxy.drop_replies(true);
    let release = tokio::spawn(held.release());
    until_empty(&other).await;
    let next = other.mutex("a").lock().await.expect("it is free");
    proxy.drop_replies(false);
    // The client has waited for long enough.
    hand.advance(Duration::from_secs(5));
    until(&hand, || if release.is_finished() { Ok(()) } else { Err("no answer so far") }).await;
    let outcome = release.await.expect("no panic").expect("a release");
    assert_eq!(outcome, leasehold::Outcome::Released);
    assert!(next.is_held());
    assert_eq!(tokens(&other, "a").await, [Some(next.token())]);
    give_back(next).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_a_renewal_loses_nothing() {
    let (site, hand) = (Site::shared().await, ManualClock::running());
    let other = site.locks(LONG).await;
    let (locks, proxy) = site.proxied_with(LONG, hand.clock(), "").await;
    let mut held = Vec::new();
    // Enough for a bundle, and some that are not in one.
    for number in 0..24 {
        held.push(locks.mutex(format!("alone {number}")).lock().await.expect("a lock"));
        held.push(locks.rwlock("together").read().await.expect("a lock"));
    }
    for _ in 0..3 {
        let lines = proxy.counts().accepted;
        proxy.cut_after_request();
        hand.advance(LONG / 3);
        let before = locks.clock().now();
        eventually(SOON, || async {
            if proxy.counts().accepted > lines { Ok(()) } else { Err("no renewal was cut so far") }
        })
        .await;
        // What was not renewed with the new connection is tried again a little later.
        until(&hand, || {
            let old = held.iter().filter(|guard| guard.deadline() < before.after(LONG * 9 / 10)).count();
            if old == 0 { Ok(()) } else { Err(format!("{old} were not renewed")) }
        })
        .await;
        assert!(held.iter().all(leasehold::Guard::is_held));
    }
    for guard in held {
        give_back(guard).await;
    }
    until_empty(&other).await;
}

/// The look of a waiter is granted the lock, and the reply is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_a_look_is_one_grant() {
    let time = Time::new();
    let site = Site::of(time.redis()).await;
    let watcher = site.locks(LONG).await;
    let mut player = site.player(LONG).await;
    let (locks, proxy) = site.proxied_with(LONGER, time.clock(), "").await;
    player.lock(leasehold_conformance::protocol::Ask::exclusive("a")).await;
    let waits = spawn_lock(&locks, "a");
    until_waiting(&watcher, "a", 1).await;
    player.process().sigkill().expect("a killed process");
    let lines = proxy.counts().accepted;
    // The next that is asked is the first in line's look when the dead one's lease ends.
    proxy.cut_after_request();
    time.pass(LONG + Duration::from_secs(1));
    let got = time.granted(waits).await;
    assert_eq!(tokens(&watcher, "a").await, [Some(got.token())]);
    assert!(proxy.counts().accepted > lines, "a reply was lost");
    give_back(got).await;
    until_empty(&watcher).await;
}

/// Connections break after any request, while many work: nobody meets anybody, everybody is served, nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_at_random_leave_one_holder_and_nothing_behind() {
    const ROUNDS: u32 = 20;
    const CONNECTIONS: u64 = 10;
    let site = Site::shared().await;
    let other = site.locks(LONG).await;
    let (locks, proxy) = site.proxied(LONG).await;
    let (room, over) = (Arc::new(Room::default()), Arc::new(AtomicBool::new(false)));
    let proxy = Arc::new(proxy);
    let cutter = tokio::spawn({
        let (proxy, room, over): (Arc<Proxy>, _, _) = (Arc::clone(&proxy), Arc::clone(&room), Arc::clone(&over));
        async move {
            // Between two cuts some work is done, so that it is not always the same request that is hit.
            let mut cuts = 0;
            while !over.load(Ordering::SeqCst) {
                let entered = room.entered();
                proxy.cut_after_request();
                cuts += 1;
                eventually(SOON, || async {
                    let on = room.entered() > entered + cuts % 5 || over.load(Ordering::SeqCst);
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
                give_back(guard).await;
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
    assert_eq!((room.most(), room.entered()), (1, done), "one at a time");
    assert!(proxy.counts().accepted > CONNECTIONS, "connections were cut: {:?}", proxy.counts());
    until_empty(&other).await;
}

/// Every request of a cycle reaches the server twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_asked_twice_is_done_once() {
    let site = Site::new().await;
    let other = site.locks(LONG).await;
    let (locks, proxy) = site.proxied(LONG).await;
    // Both replies must have come before the next request: a reply that nobody waits for is passed over.
    let settled = |asked: u64| {
        let (site, proxy) = (&site, &proxy);
        async move {
            let scripts = eventually(SOON, || async {
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
        site.reset().await;
        proxy.duplicate_requests(true);
        let held = locks.mutex("a").lock().await.expect("a lock");
        settled(2).await;
        assert!(held.token() > last);
        last = held.token();
        assert_eq!(tokens(&other, "a").await, [Some(last)], "round {round}");
        let waits = spawn_lock(&other, "a");
        until_waiting(&other, "a", 1).await;
        site.reset().await;
        proxy.duplicate_requests(true);
        give_back(held).await;
        settled(2).await;
        let next = guard(waits).await;
        assert_eq!(tokens(&other, "a").await, [Some(next.token())], "the second release did not touch it");

        site.reset().await;
        proxy.duplicate_requests(true);
        let waits = spawn_lock(&locks, "a");
        settled(2).await;
        until_waiting(&other, "a", 1).await;
        give_back(next).await;
        let got = guard(waits).await;
        last = got.token();
        assert_eq!(tokens(&other, "a").await, [Some(last)]);
        give_back(got).await;
        until_empty(&other).await;
    }
}
