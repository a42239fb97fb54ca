//! A connection is ended by the server, in each state.

use std::collections::HashSet;

use crate::sql_session_faults::fixture::{
    DatabaseKind, Fixture, LASTING, ManualTransaction, acquire, assert_lost, is_waiting,
};

/// Holding: the holder is told long before its TTL, and the lock is the next one's, with a higher token.
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
        // The one who lost it can have it again.
        let _ = next.release().await.expect("a release");
        drop(acquire(&locks, "a").await);
    }
}

/// Holding, while another waits: that one has the lock at once, and the holder may not have been told yet. The token tells them apart.
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
        fence.admit("a", next.token()).expect("the newest");
        assert!(fence.admit("a", guard.token()).is_err(), "{}: the old one is refused", table.technique);
        assert_lost(&guard).await;
        assert!(next.is_held());
    }
}

/// Waiting: the place is lost, and nothing else.
async fn a_killed_waiter_only_loses_its_position(kind: DatabaseKind) {
    for table in Fixture::new(kind).await.techniques() {
        let (locks, other) = (table.open_locks(LASTING).await, table.open_locks(LASTING).await);
        let guard = locks.mutex("a").lock().await.expect("a lock");
        let waiter = tokio::spawn(async move { acquire(&other, "a").await });
        // One that is told to end may be seen for a while yet.
        let mut ended = HashSet::new();
        for _ in 0..3 {
            // One may be seen while its statement is prepared, and then not for a moment.
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

/// Between the lock and its counter: there was no grant, and the claim asks again.
async fn killed_between_lock_and_token_grants_nothing(kind: DatabaseKind) {
    for table in Fixture::new(kind).await.techniques() {
        let locks = table.open_locks(LASTING).await;
        let first = locks.mutex("a").lock().await.expect("a lock");
        let before = first.token();
        let _ = first.release().await.expect("a release");
        // Somebody keeps the counter.
        let tokens = format!("{}_tokens", table.name);
        let hand =
            ManualTransaction::begin(&table.fixture.database, &format!("SELECT * FROM {tokens} FOR UPDATE")).await;
        let asking = tokio::spawn({
            let locks = locks.clone();
            async move { acquire(&locks, "a").await }
        });
        let counts = |connection: &leasehold_testbed::mariadb::Connection| {
            connection.query.as_deref().is_some_and(|query| query.contains(&tokens) && query.contains("INSERT"))
                && connection.state != "idle"
                && connection.state != "Sleep"
        };
        table.fixture.until_connection("raises the counter", counts).await;
        assert!(!asking.is_finished());
        assert!(table.fixture.kill_connections(|one| one.id != hand.id).await > 0);
        hand.commit().await;
        let guard = asking.await.expect("no panic");
        assert!(guard.token() > before && guard.is_held(), "{}", table.technique);
        let other = table.open_locks(LASTING).await;
        assert!(other.mutex("a").try_lock().await.expect("an answer").is_none());
    }
}

/// Idle, between two locks: no call fails.
async fn a_killed_idle_connection_is_replaced(kind: DatabaseKind) {
    for table in Fixture::new(kind).await.techniques() {
        let locks = table.open_locks(LASTING).await;
        let mut last = 0;
        for _ in 0..3 {
            let guard = locks.mutex("a").try_lock().await.expect("an answer").expect("a free lock");
            assert!(guard.token().0 > last);
            last = guard.token().0;
            let _ = guard.release().await.expect("a release");
            table.fixture.kill_idle_connections().await;
        }
    }
}

crate::sql_session_faults::on_both! { a_killed_holder_learns_of_its_loss a_killed_holder_is_succeeded_by_the_waiter a_killed_waiter_only_loses_its_position killed_between_lock_and_token_grants_nothing a_killed_idle_connection_is_replaced }
