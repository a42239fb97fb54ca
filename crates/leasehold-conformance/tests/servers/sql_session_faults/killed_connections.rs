//! The server closes a connection in each state.

use std::collections::HashSet;

use crate::sql_session_faults::fixture::{
    DatabaseKind, Fixture, LASTING, ManualTransaction, acquire, assert_lost, is_waiting,
};

/// While holding: the holder learns of the loss long before its TTL, and the next holder has a
/// higher token.
async fn a_killed_holder_learns_of_its_loss(kind: DatabaseKind) {
    for table in Fixture::new(kind).await.techniques() {
        let (locks, other) = (table.open_locks(LASTING).await, table.open_locks(LASTING).await);
        let guard = locks.mutex("a").lock().await.expect("a lock");
        assert!(other.mutex("a").try_lock().await.expect("an answer").is_none());
        assert!(table.fixture.kill_connections(|_| true).await > 0);
        assert_lost(&guard).await;
        let next = acquire(&other, "a").await;
        assert!(next.token() > guard.token(), "{}", table.technique);
        let outcome = guard.release().await.expect("an outcome");
        assert_ne!(outcome, leasehold::ReleaseOutcome::Released);
        assert!(next.is_held());
        // The former holder can acquire the lock again.
        let _ = next.release().await.expect("a release");
        drop(acquire(&locks, "a").await);
    }
}

/// While another client waits: the waiter acquires the lock at once, possibly before the holder
/// learns of its loss. The fence rejects the old token.
async fn a_killed_holder_is_succeeded_by_the_waiter(kind: DatabaseKind) {
    for table in Fixture::new(kind).await.techniques() {
        let (locks, other) = (table.open_locks(LASTING).await, table.open_locks(LASTING).await);
        let guard = locks.mutex("a").lock().await.expect("a lock");
        let waiter = tokio::spawn(async move { acquire(&other, "a").await });
        table.fixture.until_connection("waits", is_waiting).await;
        assert!(table.fixture.kill_connections(|connection| !is_waiting(connection)).await > 0);
        let next = waiter.await.expect("no panic");
        assert!(next.token() > guard.token(), "{}", table.technique);
        let fence = leasehold::fence::Fence::default();
        fence.admit("a", next.token()).expect("the newest token");
        assert!(fence.admit("a", guard.token()).is_err(), "{}: the old token is rejected", table.technique);
        assert_lost(&guard).await;
        assert!(next.is_held());
    }
}

/// While waiting: the client loses only its position.
async fn a_killed_waiter_only_loses_its_position(kind: DatabaseKind) {
    for table in Fixture::new(kind).await.techniques() {
        let (locks, other) = (table.open_locks(LASTING).await, table.open_locks(LASTING).await);
        let guard = locks.mutex("a").lock().await.expect("a lock");
        let waiter = tokio::spawn(async move { acquire(&other, "a").await });
        // A closed connection may be visible for a while.
        let mut ended = HashSet::new();
        for _ in 0..3 {
            // A connection may disappear for a moment after its statement was prepared.
            while table.fixture.kill_connections(|one| is_waiting(one) && ended.insert(one.id)).await == 0 {
                table.fixture.until_connection("waits", |one| is_waiting(one) && !ended.contains(&one.id)).await;
            }
        }
        table.fixture.until_connection("waits", |one| is_waiting(one) && !ended.contains(&one.id)).await;
        assert!(guard.is_held() && !waiter.is_finished());
        let token = guard.token();
        let _ = guard.release().await.expect("a release");
        let next = waiter.await.expect("no panic");
        assert!(next.token() > token);
    }
}

/// Between the lock and the counter: there is no grant, and the client retries.
async fn killed_between_lock_and_token_grants_nothing(kind: DatabaseKind) {
    for table in Fixture::new(kind).await.techniques() {
        let locks = table.open_locks(LASTING).await;
        let first = locks.mutex("a").lock().await.expect("a lock");
        let before = first.token();
        let _ = first.release().await.expect("a release");
        // Another transaction locks the counter.
        let tokens = format!("{}_tokens", table.name);
        let blocker =
            ManualTransaction::begin(&table.fixture.database, &format!("SELECT * FROM {tokens} FOR UPDATE")).await;
        let acquiring = tokio::spawn({
            let locks = locks.clone();
            async move { acquire(&locks, "a").await }
        });
        let counts = |connection: &leasehold_testbed::mariadb::Connection| {
            connection.query.as_deref().is_some_and(|query| query.contains(&tokens) && query.contains("INSERT"))
                && connection.state != "idle"
                && connection.state != "Sleep"
        };
        table.fixture.until_connection("raises the counter", counts).await;
        assert!(!acquiring.is_finished());
        assert!(table.fixture.kill_connections(|one| one.id != blocker.id).await > 0);
        blocker.commit().await;
        let guard = acquiring.await.expect("no panic");
        assert!(guard.token() > before && guard.is_held(), "{}", table.technique);
        let other = table.open_locks(LASTING).await;
        assert!(other.mutex("a").try_lock().await.expect("an answer").is_none());
    }
}

/// While idle between two locks: no call fails.
async fn a_killed_idle_connection_is_replaced(kind: DatabaseKind) {
    for table in Fixture::new(kind).await.techniques() {
        let locks = table.open_locks(LASTING).await;
        let mut last = 0;
        for _ in 0..3 {
            let guard = locks.mutex("a").try_lock().await.expect("an answer").expect("a free lock");
            assert!(guard.token().0 > last);
            last = guard.token().0;
            let _ = guard.release().await.expect("a release");
            table.fixture.kill_all_connections().await;
        }
    }
}

crate::sql_session_faults::on_both! { a_killed_holder_learns_of_its_loss a_killed_holder_is_succeeded_by_the_waiter a_killed_waiter_only_loses_its_position killed_between_lock_and_token_grants_nothing a_killed_idle_connection_is_replaced }
