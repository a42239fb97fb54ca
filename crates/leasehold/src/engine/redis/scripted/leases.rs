//! What happens to leases when answers are late, lost or malformed.

use std::time::Duration;

use super::server::{Deed, TRIP};
use super::{TTL, millis, with};
use crate::error::{Effect, ErrorKind};
use crate::guard::Outcome;
use crate::lease::LostReason;
use crate::logic::lease::call_timeout;

#[test]
fn an_answer_that_does_not_come_is_not_waited_for_longer_than_a_call_may_take() {
    with(async |server| {
        let locks = server.open(TTL).await.unwrap();
        server.script(|seen| if seen.what == "attempt" { Deed::Hang } else { Deed::Answer });
        let start = server.clock.now();
        let error = locks.mutex("a").try_lock().await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown), "{error}");
        assert!(server.clock.now().since(start) <= call_timeout(TTL) + millis(5));

        let start = server.clock.now();
        let error = locks.mutex("a").wait(millis(700)).lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(server.clock.now().since(start) <= millis(700 + 250 + 5));
    });
}

#[test]
fn leases_are_renewed_after_a_third_of_their_ttl() {
    with(async |server| {
        let locks = server.open(TTL).await.unwrap();
        let start = server.clock.now();
        let guard = locks.mutex("a").lock().await.unwrap();
        server.clock.sleep(TTL * 10).await;
        assert!(guard.is_held());
        let mut times = vec![start];
        times.extend(server.seen("renew").iter().map(|seen| seen.at));
        assert!((30..=40).contains(&times.len()), "{}", times.len());
        for pair in times.windows(2) {
            let gap = pair[1].since(pair[0]);
            assert!(gap >= TTL / 4 && gap <= TTL / 3 + TRIP * 3, "{gap:?}");
        }
    });
}

#[test]
fn after_a_reconnect_every_lease_is_renewed_at_once() {
    with(async |server| {
        let locks = server.open(TTL).await.unwrap();
        let mut guards = Vec::new();
        for name in ["a", "b", "c"] {
            guards.push(locks.mutex(name).lock().await.unwrap());
        }
        assert!(server.seen("renew").is_empty());
        server.clock.sleep(TTL / 10).await;
        server.cut();
        let cut = server.clock.now();
        server.clock.sleep(TTL / 10).await;
        let renewed = server.seen("renew");
        let claims: usize = renewed.iter().map(|seen| seen.claims.len()).sum();
        assert_eq!(claims, 3, "long before a third of the TTL");
        assert!(renewed.iter().all(|seen| seen.at.since(cut) <= millis(50)), "{renewed:?}");
        assert!(guards.iter().all(crate::Guard::is_held));
    });
}

#[test]
fn a_lost_reply_is_asked_for_again_with_the_same_claim() {
    with(async |server| {
        let locks = server.open(TTL).await.unwrap();
        server.script({
            let mut lost = false;
            move |seen| match seen.what {
                "attempt" if !std::mem::replace(&mut lost, true) => Deed::Lose,
                _ => Deed::Answer,
            }
        });
        let guard = locks.mutex("a").wait(TTL).lock().await.unwrap();
        let asked = server.seen("attempt");
        assert_eq!(asked.len(), 2);
        assert_eq!(asked[0].claims, asked[1].claims);
        assert_eq!(guard.token().0, 1, "the first request had been done");

        // The same for a release: that the claim is no longer there means that the release was
        // done.
        server.script({
            let mut lost = false;
            move |seen| match seen.what {
                "release" if !std::mem::replace(&mut lost, true) => Deed::Lose,
                _ => Deed::Answer,
            }
        });
        assert_eq!(guard.release().await.unwrap(), Outcome::Released);
        assert_eq!(server.seen("release").len(), 2);
    });
}

#[test]
fn a_silent_server_ends_a_lease_at_its_deadline() {
    with(async |server| {
        let locks = server.open(TTL).await.unwrap();
        let sent = server.clock.now();
        let guard = locks.mutex("a").lock().await.unwrap();
        server.script(|_| Deed::Hang);
        assert_eq!(guard.lost().await, LostReason::Expired);
        let told = server.clock.now();
        assert!(told.since(guard.deadline()) <= millis(2) && told < sent.after(TTL).before(TTL / 100));
        assert!(!server.holders().is_empty(), "the server lets others in later than that");
    });
}

#[test]
fn what_the_server_has_forgotten_is_lost_with_the_next_renewal() {
    with(async |server| {
        let locks = server.open(TTL).await.unwrap();
        let guard = locks.mutex("a").lock().await.unwrap();
        server.script(|seen| if seen.what == "renew" { Deed::Say(b"$1\r\n0\r\n") } else { Deed::Answer });
        assert_eq!(guard.lost().await, LostReason::Taken);
    });
}

/// Any malformed answer is an error at most, and grants nothing.
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
        with(async |server| {
            let locks = server.open(TTL).await.unwrap();
            let guard = locks.mutex("b").lock().await.unwrap();
            server.script(move |seen| match seen.what {
                "attempt" | "renew" | "release" | "look" => Deed::Say(word),
                _ => Deed::Answer,
            });
            let got = locks.mutex("a").wait(millis(500)).lock().await;
            assert!(got.is_err(), "{at}: {got:?}");
            let told = tokio::spawn({
                let watch = guard.watch();
                async move { watch.lost().await }
            });
            server.clock.sleep(TTL * 2).await;
            assert!(!guard.is_held() && told.is_finished(), "{at}: nothing that renewed it was understood");
            assert!(guard.release().await.is_ok_and(|outcome| matches!(outcome, Outcome::WasLost(_))), "{at}");
        });
    }
}

#[test]
fn a_server_that_refuses_every_script_is_not_asked_without_pause() {
    with(async |server| {
        let locks = server.open(TTL).await.unwrap();
        server.script(|seen| if seen.what == "attempt" { Deed::Refuse("LOADING wait") } else { Deed::Answer });
        let wait = Duration::from_secs(8);
        let error = locks.mutex("a").wait(wait).lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let asked = server.seen("attempt").len();
        assert!((4..=20).contains(&asked), "pauses double from 10 ms: {asked}");
    });
}
