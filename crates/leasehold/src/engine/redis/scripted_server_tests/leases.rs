//! What happens to leases when answers are late, lost or malformed.

use std::time::Duration;

use super::server::{Reaction, TRIP};
use super::{TTL, millis, with_server};
use crate::core::guard::ReleaseOutcome;
use crate::engine::LostReason;
use crate::logic::lease::call_timeout;
use crate::types::{Effect, ErrorKind};

#[test]
fn a_call_without_an_answer_ends_at_its_timeout() {
    with_server(async |server| {
        let locks = server.open(TTL).await.unwrap();
        server.on_request(|request| if request.kind == "attempt" { Reaction::Hang } else { Reaction::Answer });
        let start = server.clock.now();
        let error = locks.mutex("a").try_lock().await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown), "{error}");
        assert!(server.clock.now().duration_since(start) <= call_timeout(TTL) + millis(5));

        let start = server.clock.now();
        let error = locks.mutex("a").timeout(millis(700)).lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(server.clock.now().duration_since(start) <= millis(700 + 250 + 5));
    });
}

#[test]
fn leases_are_renewed_after_a_third_of_their_ttl() {
    with_server(async |server| {
        let locks = server.open(TTL).await.unwrap();
        let start = server.clock.now();
        let guard = locks.mutex("a").lock().await.unwrap();
        server.clock.sleep(TTL * 10).await;
        assert!(guard.is_held());
        let mut times = vec![start];
        times.extend(server.requests("renew").iter().map(|request| request.at));
        assert!((30..=40).contains(&times.len()), "{}", times.len());
        for pair in times.windows(2) {
            let gap = pair[1].duration_since(pair[0]);
            assert!(gap >= TTL / 4 && gap <= TTL / 3 + TRIP * 3, "{gap:?}");
        }
    });
}

#[test]
fn after_a_reconnect_every_lease_is_renewed_at_once() {
    with_server(async |server| {
        let locks = server.open(TTL).await.unwrap();
        let mut guards = Vec::new();
        for name in ["a", "b", "c"] {
            guards.push(locks.mutex(name).lock().await.unwrap());
        }
        assert!(server.requests("renew").is_empty());
        server.clock.sleep(TTL / 10).await;
        server.disconnect_all();
        let cut = server.clock.now();
        server.clock.sleep(TTL / 10).await;
        let renewed = server.requests("renew");
        let claims: usize = renewed.iter().map(|request| request.claims.len()).sum();
        assert_eq!(claims, 3, "long before a third of the TTL");
        assert!(renewed.iter().all(|request| request.at.duration_since(cut) <= millis(50)), "{renewed:?}");
        assert!(guards.iter().all(crate::Guard::is_held));
    });
}

#[test]
fn a_lost_reply_is_retried_with_the_same_claim() {
    with_server(async |server| {
        let locks = server.open(TTL).await.unwrap();
        server.on_request({
            let mut lost = false;
            move |request| match request.kind {
                "attempt" if !std::mem::replace(&mut lost, true) => Reaction::LoseAnswer,
                _ => Reaction::Answer,
            }
        });
        let guard = locks.mutex("a").timeout(TTL).lock().await.unwrap();
        let asked = server.requests("attempt");
        assert_eq!(asked.len(), 2);
        assert_eq!(asked[0].claims, asked[1].claims);
        assert_eq!(guard.token().0, 1, "the first request had been done");

        // The same for a release: that the claim is no longer there means that the release was
        // done.
        server.on_request({
            let mut lost = false;
            move |request| match request.kind {
                "release" if !std::mem::replace(&mut lost, true) => Reaction::LoseAnswer,
                _ => Reaction::Answer,
            }
        });
        assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
        assert_eq!(server.requests("release").len(), 2);
    });
}

#[test]
fn a_lease_ends_at_its_deadline_when_the_server_hangs() {
    with_server(async |server| {
        let locks = server.open(TTL).await.unwrap();
        let sent = server.clock.now();
        let guard = locks.mutex("a").lock().await.unwrap();
        server.on_request(|_| Reaction::Hang);
        assert_eq!(guard.lost().await, LostReason::Expired);
        let lost_at = server.clock.now();
        assert!(
            lost_at.duration_since(guard.deadline()) <= millis(2)
                && lost_at < sent.saturating_add(TTL).saturating_sub(TTL / 100)
        );
        assert!(!server.holders().is_empty(), "the server lets others in later than that");
    });
}

#[test]
fn a_lease_the_server_forgot_is_lost_at_the_next_renewal() {
    with_server(async |server| {
        let locks = server.open(TTL).await.unwrap();
        let guard = locks.mutex("a").lock().await.unwrap();
        server.on_request(
            |request| if request.kind == "renew" { Reaction::SendRaw(b"$1\r\n0\r\n") } else { Reaction::Answer },
        );
        assert_eq!(guard.lost().await, LostReason::Revoked);
    });
}

/// Any malformed answer is an error at most, and never a grant.
#[test]
fn nonsense_is_an_error() {
    const WORDS: [&[u8]; 14] = [
        b"_\r\n",
        b"+OK\r\n",
        b":-1\r\n",
        b"*0\r\n",
        b"*1\r\n:0\r\n",
        b"*2\r\n:7\r\n:1\r\n",
        b"*4\r\n:1\r\n:-5\r\n:-5\r\n:-5\r\n",
        b"*2\r\n:2\r\n$5\r\nwhat?\r\n",
        b"$0\r\n\r\n",
        b"$3\r\n\xff\xfe\xfd\r\n",
        b"%1\r\n+a\r\n:1\r\n",
        b"#t\r\n",
        b",1.5\r\n",
        b"?!\r\n",
    ];
    for (at, word) in WORDS.into_iter().enumerate() {
        with_server(async |server| {
            let locks = server.open(TTL).await.unwrap();
            let guard = locks.mutex("b").lock().await.unwrap();
            server.on_request(move |request| match request.kind {
                "attempt" | "renew" | "release" | "heartbeat" => Reaction::SendRaw(word),
                _ => Reaction::Answer,
            });
            let got = locks.mutex("a").timeout(millis(500)).lock().await;
            assert!(got.is_err(), "{at}: {got:?}");
            let loss_task = tokio::spawn({
                let watch = guard.watcher();
                async move { watch.lost().await }
            });
            server.clock.sleep(TTL * 2).await;
            assert!(!guard.is_held() && loss_task.is_finished(), "{at}: no valid answer renewed it");
            assert!(
                guard.release().await.is_ok_and(|outcome| matches!(outcome, ReleaseOutcome::AlreadyLost(_))),
                "{at}"
            );
        });
    }
}

#[test]
fn a_server_that_refuses_every_script_is_retried_with_pauses() {
    with_server(async |server| {
        let locks = server.open(TTL).await.unwrap();
        server.on_request(
            |request| if request.kind == "attempt" { Reaction::Refuse("LOADING wait") } else { Reaction::Answer },
        );
        let wait = Duration::from_secs(8);
        let error = locks.mutex("a").timeout(wait).lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let asked = server.requests("attempt").len();
        assert!((4..=20).contains(&asked), "pauses double from 10 ms: {asked}");
    });
}
