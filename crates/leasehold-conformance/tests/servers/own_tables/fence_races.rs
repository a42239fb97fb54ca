//! Concurrent transactions of several holders at each isolation level: no stale write commits after
//! a newer one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold::Token;
use leasehold::fence::{AdmitError, FenceTable};

use crate::own_tables::fence::create_fence;
use crate::own_tables::fixture::{DatabaseFixture, ISOLATION_LEVELS, IsolationLevel, unique_name, wait_until_waiting};
use crate::own_tables::on_both;

/// Creates a journal table: one row per write, in write order.
async fn create_journal<S: DatabaseFixture>(conn: &mut S::Conn) -> String {
    let name = unique_name("journal");
    S::execute(conn, &format!("CREATE TABLE {name} (place BIGINT PRIMARY KEY, token BIGINT NOT NULL)")).await;
    name
}

/// Writes a row in its own transaction, retrying on conflicts. Returns whether the fence admitted
/// the token.
async fn write_fenced_row<S: DatabaseFixture>(
    conn: &mut S::Conn,
    fence: &FenceTable,
    resource: &str,
    journal: &str,
    token: u64,
    level: IsolationLevel,
) -> bool {
    loop {
        let mut tx = S::begin(conn, level).await;
        match fence.admit(&mut tx, resource, Token(token)).await {
            Ok(()) => {}
            Err(error) if error.is_retryable() => {
                S::rollback(tx).await;
                continue;
            }
            Err(AdmitError::Stale(_)) => {
                S::rollback(tx).await;
                return false;
            }
            Err(error) => panic!("{error}"),
        }
        let line = format!("INSERT INTO {journal} SELECT COALESCE(MAX(place), 0) + 1, {token} FROM {journal}");
        if S::execute_in(&mut tx, &line).await.is_err() {
            S::rollback(tx).await;
        } else if S::commit(tx).await.is_ok() {
            return true;
        }
    }
}

/// The old holder's transaction begins and reads before the newer holder's, and calls `admit` after
/// that one commits.
async fn a_transaction_that_began_earlier_is_still_stale<S: DatabaseFixture>(fixture: S) {
    let (mut old, mut new) = (fixture.connect().await, fixture.connect().await);
    let (fence, aside) = (create_fence::<S>(&mut old).await, create_journal::<S>(&mut old).await);
    for level in ISOLATION_LEVELS {
        let (resource, journal) = (unique_name("r"), create_journal::<S>(&mut old).await);
        assert!(write_fenced_row::<S>(&mut old, &fence, &resource, &journal, 1, level).await);
        let mut tx = S::begin(&mut old, level).await;
        // The read takes the snapshot. It reads a table that the other transaction does not write,
        // so that nothing waits.
        S::execute_in(&mut tx, &format!("SELECT COUNT(*) FROM {aside}")).await.expect("read");
        assert!(write_fenced_row::<S>(&mut new, &fence, &resource, &journal, 2, level).await);
        let error = fence.admit(&mut tx, &resource, Token(1)).await.expect_err("the stale token is rejected");
        assert!(error.stale_token().is_some() || error.is_retryable(), "{level:?}: {error}");
        S::rollback(tx).await;
        assert!(!write_fenced_row::<S>(&mut old, &fence, &resource, &journal, 1, level).await, "{level:?}");
        let lines = S::query_numbers(&mut new, &format!("SELECT token FROM {journal} ORDER BY place")).await;
        assert_eq!(lines, [1, 2], "{level:?}");
    }
}

/// The fence admits the old holder first; the new holder waits until that transaction ends.
async fn a_newer_holder_waits_for_the_older_transaction<S: DatabaseFixture>(fixture: S) {
    let (mut old, mut new, mut observer) = (fixture.connect().await, fixture.connect().await, fixture.connect().await);
    let fence = create_fence::<S>(&mut old).await;
    for level in ISOLATION_LEVELS {
        let (resource, journal) = (unique_name("r"), create_journal::<S>(&mut old).await);
        let ended = Arc::new(AtomicBool::new(false));
        let mut tx = S::begin(&mut old, level).await;
        fence.admit(&mut tx, &resource, Token(1)).await.expect("admitted");
        let newer = tokio::spawn({
            let (fence, resource, ended) = (fence.clone(), resource.clone(), Arc::clone(&ended));
            async move {
                let mut tx = S::begin(&mut new, level).await;
                let answer = fence.admit(&mut tx, &resource, Token(2)).await;
                assert!(ended.load(Ordering::SeqCst), "{level:?}: admitted during the older transaction");
                match answer {
                    Ok(()) => S::commit(tx).await.expect("committed"),
                    Err(error) => {
                        assert!(error.is_retryable(), "{error}");
                        S::rollback(tx).await;
                    }
                }
                new
            }
        });
        let start = fence.statements(<S::Conn as leasehold::database::Session>::DIALECT)[0]
            .chars()
            .take(30)
            .collect::<String>();
        wait_until_waiting::<S>(&mut observer, &start).await;
        S::execute_in(&mut tx, &format!("INSERT INTO {journal} VALUES (1, 1)")).await.expect("written");
        ended.store(true, Ordering::SeqCst);
        S::commit(tx).await.expect("committed");
        new = newer.await.expect("no panic");
        assert!(write_fenced_row::<S>(&mut new, &fence, &resource, &journal, 2, level).await);
        assert!(!write_fenced_row::<S>(&mut old, &fence, &resource, &journal, 1, level).await);
        let lines = S::query_numbers(&mut new, &format!("SELECT token FROM {journal} ORDER BY place")).await;
        assert_eq!(lines, [1, 2], "{level:?}");
    }
}

/// Eight clients write tokens in mixed order; the tokens in the journal never decrease.
async fn concurrent_writes_have_rising_tokens<S: DatabaseFixture>(fixture: S) {
    let mut conn = fixture.connect().await;
    let fence = create_fence::<S>(&mut conn).await;
    for level in ISOLATION_LEVELS {
        let (resource, journal) = (unique_name("r"), create_journal::<S>(&mut conn).await);
        let clients = (0..8u64).map(|client| {
            let (fixture, fence, resource, journal) =
                (fixture.clone(), fence.clone(), resource.clone(), journal.clone());
            tokio::spawn(async move {
                let mut conn = fixture.connect().await;
                for round in 0..20u64 {
                    // Most tokens rise with time; every third one is late.
                    let token = (round * 8 + client + 1).saturating_sub(if (round + client) % 3 == 0 { 24 } else { 0 });
                    write_fenced_row::<S>(&mut conn, &fence, &resource, &journal, token, level).await;
                }
            })
        });
        for client in clients.collect::<Vec<_>>() {
            client.await.expect("no panic");
        }
        let lines = S::query_numbers(&mut conn, &format!("SELECT token FROM {journal} ORDER BY place")).await;
        assert!(lines.is_sorted(), "{level:?}: {lines:?}");
        assert!(lines.len() >= 8, "{level:?}: {lines:?}");
    }
}

/// The control: without a fence the old holder's write is the last.
async fn without_a_fence_the_stale_write_wins<S: DatabaseFixture>(fixture: S) {
    let (mut old, mut new) = (fixture.connect().await, fixture.connect().await);
    let journal = create_journal::<S>(&mut old).await;
    let mut tx = S::begin(&mut old, IsolationLevel::ReadCommitted).await;
    S::execute_in(&mut tx, "SELECT 1").await.expect("the old holder pauses after this");
    S::execute(&mut new, &format!("INSERT INTO {journal} VALUES (1, 2)")).await;
    S::execute_in(&mut tx, &format!("UPDATE {journal} SET token = 1 WHERE place = 1")).await.expect("written");
    S::commit(tx).await.expect("committed");
    assert_eq!(S::query_number(&mut new, &format!("SELECT token FROM {journal}")).await, 1);
}

/// Two resources locked in opposite orders: one transaction fails with a retryable error.
async fn a_deadlock_is_reported_as_retryable<S: DatabaseFixture>(fixture: S) {
    let (mut one, mut other) = (fixture.connect().await, fixture.connect().await);
    let fence = create_fence::<S>(&mut one).await;
    for resource in ["a", "b"] {
        let mut tx = S::begin(&mut one, IsolationLevel::ReadCommitted).await;
        fence.admit(&mut tx, resource, Token(1)).await.expect("admitted");
        S::commit(tx).await.expect("committed");
    }
    let mut first = S::begin(&mut one, IsolationLevel::ReadCommitted).await;
    let mut second = S::begin(&mut other, IsolationLevel::ReadCommitted).await;
    fence.admit(&mut first, "a", Token(2)).await.expect("admitted");
    fence.admit(&mut second, "b", Token(2)).await.expect("admitted");
    let half = |mut tx, resource| {
        let fence = &fence;
        async move {
            let answer = fence.admit(&mut tx, resource, Token(2)).await;
            match &answer {
                Ok(()) => S::commit(tx).await.expect("committed"),
                Err(_) => S::rollback(tx).await,
            }
            answer
        }
    };
    let (first, second) = tokio::join!(half(first, "b"), half(second, "a"));
    let failed = [first, second].into_iter().filter_map(Result::err).collect::<Vec<_>>();
    assert!(failed.len() == 1 && failed[0].is_retryable(), "{failed:?}");
}

on_both!(
    a_transaction_that_began_earlier_is_still_stale,
    a_newer_holder_waits_for_the_older_transaction,
    concurrent_writes_have_rising_tokens,
    without_a_fence_the_stale_write_wins,
    a_deadlock_is_reported_as_retryable,
);
