//! A connection is ended by the server, in each state.

use std::collections::HashSet;

use crate::sql_held_faults::site::{Hand, Kind, LASTING, Site, lock, told, waits};

/// Holding: the holder is told long before its TTL, and the lock is the next one's, with a higher token.
async fn of_a_holder(kind: Kind) {
    for table in Site::new(kind).await.tables() {
        let (locks, other) = (table.locks(LASTING).await, table.locks(LASTING).await);
        let guard = locks.mutex("a").lock().await.expect("a lock");
        assert!(other.mutex("a").try_lock().await.expect("an answer").is_none());
        assert!(table.site.end(|_| true).await > 0);
        told(&guard).await;
        let next = lock(&other, "a").await;
        assert!(next.token() > guard.token(), "{}", table.technique);
        let outcome = guard.release().await.expect("an outcome");
        assert_ne!(outcome, leasehold::Outcome::Released);
        assert!(next.is_held());
        // The one who lost it can have it again.
        let _ = next.release().await.expect("a release");
        drop(lock(&locks, "a").await);
    }
}

/// Holding, while another waits: that one has the lock at once, and the holder may not have been told yet. The token tells them apart.
async fn of_a_holder_for_whom_another_waits(kind: Kind) {
    for table in Site::new(kind).await.tables() {
        let (locks, other) = (table.locks(LASTING).await, table.locks(LASTING).await);
        let guard = locks.mutex("a").lock().await.expect("a lock");
        let waiter = tokio::spawn(async move { lock(&other, "a").await });
        table.site.until("waits", waits).await;
        assert!(table.site.end(|connection| !waits(connection)).await > 0);
        let next = waiter.await.expect("no panic");
        assert!(next.token() > guard.token(), "{}", table.technique);
        let fence = leasehold::fence::Fence::default();
        fence.admit("a", next.token()).expect("the newest");
        assert!(fence.admit("a", guard.token()).is_err(), "{}: the old one is refused", table.technique);
        told(&guard).await;
        assert!(next.is_held());
    }
}

/// Waiting: the place is lost, and nothing else.
async fn of_a_waiter(kind: Kind) {
    for table in Site::new(kind).await.tables() {
        let (locks, other) = (table.locks(LASTING).await, table.locks(LASTING).await);
        let guard = locks.mutex("a").lock().await.expect("a lock");
        let waiter = tokio::spawn(async move { lock(&other, "a").await });
        // One that is told to end may be seen for a while yet.
        let mut ended = HashSet::new();
        for _ in 0..3 {
            // One may be seen while its statement is prepared, and then not for a moment.
            while table.site.end(|one| waits(one) && ended.insert(one.id)).await == 0 {
                table.site.until("waits", |one| waits(one) && !ended.contains(&one.id)).await;
            }
        }
        table.site.until("waits", |one| waits(one) && !ended.contains(&one.id)).await;
        assert!(guard.is_held() && !waiter.is_finished());
        let token = guard.token();
        let _ = guard.release().await.expect("a release");
        let next = waiter.await.expect("no panic");
        assert!(next.token() > token);
    }
}

/// Between the lock and its counter: there was no grant, and the claim asks again.
async fn between_lock_and_token(kind: Kind) {
    for table in Site::new(kind).await.tables() {
        let locks = table.locks(LASTING).await;
        let first = locks.mutex("a").lock().await.expect("a lock");
        let before = first.token();
        let _ = first.release().await.expect("a release");
        // Somebody keeps the counter.
        let tokens = format!("{}_tokens", table.name);
        let hand = Hand::lock(&table.site.home, &format!("SELECT * FROM {tokens} FOR UPDATE")).await;
        let asking = tokio::spawn({
            let locks = locks.clone();
            async move { lock(&locks, "a").await }
        });
        let counts = |connection: &leasehold_testbed::mariadb::Connection| {
            connection.query.as_deref().is_some_and(|query| query.contains(&tokens) && query.contains("INSERT"))
                && connection.state != "idle"
                && connection.state != "Sleep"
        };
        table.site.until("raises the counter", counts).await;
        assert!(!asking.is_finished());
        assert!(table.site.end(|one| one.id != hand.id).await > 0);
        hand.commit().await;
        let guard = asking.await.expect("no panic");
        assert!(guard.token() > before && guard.is_held(), "{}", table.technique);
        let other = table.locks(LASTING).await;
        assert!(other.mutex("a").try_lock().await.expect("an answer").is_none());
    }
}

/// Idle, between two locks: nobody notices.
async fn of_one_that_rests(kind: Kind) {
    for table in Site::new(kind).await.tables() {
        let locks = table.locks(LASTING).await;
        let mut last = 0;
        for _ in 0..3 {
            let guard = locks.mutex("a").try_lock().await.expect("an answer").expect("a free lock");
            assert!(guard.token().0 > last);
            last = guard.token().0;
            let _ = guard.release().await.expect("a release");
            table.site.end(|_| true).await;
        }
    }
}

crate::sql_held_faults::on_both! { of_a_holder of_a_holder_for_whom_another_waits of_a_waiter between_lock_and_token of_one_that_rests }
