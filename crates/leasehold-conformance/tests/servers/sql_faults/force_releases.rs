//! Force releases without notifications: the holder and the next waiter detect the changed row long
//! before a renewal or heartbeat is due.

use leasehold::{Effect, ErrorKind, LostReason};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::eventually;
use tokio::time::timeout;

use crate::sql_faults::fixture::{BOTH, Fixture, LASTING, acquire, open_locks, until_queued};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn polling_clients_notice_a_force_release_early() {
    for kind in BOTH {
        let fixture = Fixture::new(kind).await;
        let url = format!("{}?wake=poll", fixture.url());
        let (one, two, other) =
            (open_locks(&url, LASTING).await, open_locks(&url, LASTING).await, open_locks(&url, LASTING).await);
        let held = acquire(&one, "a").await;
        let beside = acquire(&one, "b").await;
        let next = tokio::spawn(async move { acquire(&two, "a").await });
        until_queued(&other, "a", 1).await;
        let claim = other.inspect("a").await.expect("a view").holders[0].claim;
        let fence = other.force_release("a", claim).await.expect("a force release").fence_token.expect("a token");
        assert_eq!(
            timeout(TEST_TIMEOUT, held.lost()).await.expect("the holder learns of the loss"),
            LostReason::Revoked,
            "{kind:?}"
        );
        let next = timeout(TEST_TIMEOUT, next).await.expect("the waiter gets the lock").expect("no panic");
        assert!(held.token() < fence && fence < next.token(), "{kind:?}");
        assert!(beside.is_held(), "other locks are unaffected");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_force_released_waiter_gets_an_error_when_clients_poll() {
    for kind in BOTH {
        let fixture = Fixture::new(kind).await;
        let url = format!("{}?wake=poll", fixture.url());
        let (one, two) = (open_locks(&url, LASTING).await, open_locks(&url, LASTING).await);
        let held = acquire(&one, "a").await;
        let waits = tokio::spawn(async move { two.mutex("a").timeout(LASTING).lock().await });
        until_queued(&one, "a", 1).await;
        let claim = one.inspect("a").await.expect("a view").waiters[0].claim;
        one.force_release("a", claim).await.expect("a force release");
        let ended =
            timeout(TEST_TIMEOUT, waits).await.expect("the waiter learns of the force release").expect("no panic");
        assert_eq!(ended.expect_err("the waiter was force-released").kind(), ErrorKind::ForceReleased, "{kind:?}");
        until_queued(&one, "a", 0).await;
        assert!(held.is_held());
    }
}

/// A deleted row is not a force release: its waiter queues again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_row_is_deleted_queues_again() {
    for kind in BOTH {
        let fixture = Fixture::new(kind).await;
        let (one, two) =
            (fixture.open_locks(LASTING).await, open_locks(&format!("{}?wake=poll", fixture.url()), LASTING).await);
        let held = acquire(&one, "a").await;
        let waits = tokio::spawn(async move { acquire(&two, "a").await });
        until_queued(&one, "a", 1).await;
        fixture.query_as_admin(&format!("DELETE FROM {}", fixture.table())).await;
        let next = timeout(TEST_TIMEOUT, waits).await.expect("the waiter gets the lock").expect("no panic");
        assert!(next.token() > held.token(), "{kind:?}");
    }
}

/// The reply to a force release is lost. The retry finds no such claim, and must not report that
/// nothing changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_to_a_force_release_is_an_unknown_outcome() {
    for kind in BOTH {
        let fixture = Fixture::new(kind).await;
        let one = fixture.open_locks(LASTING).await;
        let (two, proxy) = fixture.open_through_proxy(LASTING).await;
        eventually(TEST_TIMEOUT, || async {
            let held = acquire(&one, "a").await;
            // A client with a waiter has cached the row, so its next statement writes.
            let waits = tokio::spawn({
                let two = two.clone();
                async move { while two.mutex("a").lock().await.is_err() {} }
            });
            until_queued(&one, "a", 1).await;
            proxy.cut_after_request();
            let forced = two.force_release("a", held.claim_id()).await;
            proxy.cancel_pending_cuts();
            timeout(TEST_TIMEOUT, waits).await.expect("the waiter gets the lock").expect("no panic");
            match forced {
                Err(error) if error.effect() == Effect::Unknown => Ok(()),
                Err(error) => Err(error.to_string()),
                Ok(forced) if forced.contender.is_some() => Err("another statement was cut".to_owned()),
                Ok(_) => panic!("{kind:?}: the claim was force released, but the reply says that nothing changed"),
            }
        })
        .await;
    }
}

/// A caller gives up on a force release whose first reply is lost. When the connection is replaced,
/// the request is not repeated: its caller was told that the outcome is unknown, and must not end a
/// claim long after that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abandoned_force_release_is_not_repeated() {
    for kind in BOTH {
        let fixture = Fixture::new(kind).await;
        let one = fixture.open_locks(LASTING).await;
        let held = acquire(&one, "a").await;
        let (two, proxy) = fixture.open_through_proxy(LASTING).await;
        // Opens a connection, on which the force release reads the row.
        two.list("").await.expect("a list");
        proxy.drop_replies(true);
        let before = proxy.counts().request_bytes;
        let abandoned = tokio::spawn({
            let (two, claim) = (two.clone(), held.claim_id());
            async move { two.force_release("a", claim).await }
        });
        eventually(TEST_TIMEOUT, || async {
            let sent = proxy.counts().request_bytes - before;
            if sent > 0 { Ok(()) } else { Err("no request so far") }
        })
        .await;
        abandoned.abort();
        let _ = abandoned.await;
        proxy.drop_replies(false);
        proxy.cut();
        // The requests for one lock are applied in order: this one comes after a repeated one.
        assert!(two.mutex("a").try_lock().await.expect("an answer").is_none(), "{kind:?}");
        let holders = one.inspect("a").await.expect("a view").holders;
        assert_eq!(holders.iter().map(|holder| holder.claim).collect::<Vec<_>>(), [held.claim_id()], "{kind:?}");
        assert!(held.is_held());
    }
}
