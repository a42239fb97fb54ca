//! What others do to our table.

use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::{Effect, ErrorKind, LostReason};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::eventually;

use crate::sql_faults::fixture::{
    BOTH, DatabaseKind, Fixture, LASTING, ManualTransaction, SHORT, ShiftedClock, acquire, is_lock_free,
};

/// Somebody keeps our row locked in an open transaction. Who tries is told so, and that nothing was done; who has waited all the time has the lock
/// when that transaction is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_row_is_reported_and_waited_for() {
    for kind in BOTH {
        check_locked_row(kind, LASTING).await;
    }
}

/// The same with this TTL of who tries.
pub(super) async fn check_locked_row(kind: DatabaseKind, ttl: Duration) {
    let site = Fixture::new(kind).await;
    let (tries, waits) = (site.open_locks(ttl).await, site.open_locks(LASTING).await);
    let _ = acquire(&tries, "a").await.release().await.expect("a release");
    let hand = ManualTransaction::begin(&site.database, "SELECT * FROM leasehold WHERE name = 'a' FOR UPDATE").await;
    let waiting = tokio::spawn(async move { acquire(&waits, "a").await });
    until_statement_blocked(&site).await;
    let error = tries.mutex("a").try_lock().await.expect_err("it is locked");
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true), "{kind:?}: {error}");
    assert_eq!(error.effect(), Effect::None, "{kind:?}: {error}");
    assert!(error.to_string().contains("somebody keeps our row locked"), "{kind:?}, {ttl:?}: {error}");
    assert!(!waiting.is_finished(), "{kind:?}");
    hand.commit().await;
    assert!(waiting.await.expect("no panic").is_held(), "{kind:?}");
}

/// A claim in a hurry leaves nothing behind on its connection: who comes next has a server that waits as long as it may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_ttl_leaves_no_short_timeout_on_its_connection() {
    let site = Fixture::new(DatabaseKind::Postgres).await;
    // One connection for statements: both claims have the same.
    let locks = crate::sql_faults::fixture::open_locks(&format!("{}?connections=2", site.url()), LASTING).await;
    let _ = acquire(&locks, "a").await.release().await.expect("a release");
    let hasty = eventually(TEST_TIMEOUT, || async { locks.mutex("b").ttl(SHORT).lock().await }).await;
    // On a slow machine its time may be over: it is free then, too.
    let _ = hasty.release().await;
    let hand = ManualTransaction::begin(&site.database, "SELECT * FROM leasehold WHERE name = 'a' FOR UPDATE").await;
    let (clock, asked) = (Clock::system(), Clock::system().now());
    let error = locks.mutex("a").try_lock().await.expect_err("it is locked");
    assert!(error.to_string().contains("somebody keeps our row locked"), "{error}");
    let waited = clock.now().duration_since(asked);
    assert!(waited >= Duration::from_millis(900), "given up after {waited:?}");
    hand.commit().await;
}

/// Waits until a statement of ours is under way and does not end.
async fn until_statement_blocked(site: &Fixture) {
    eventually(TEST_TIMEOUT, || async {
        let all = site.connections().await;
        let stuck = |query: &String| query.contains("INSERT INTO") && query.contains("leasehold");
        if all.iter().any(|one| one.query.as_ref().is_some_and(stuck)) { Ok(()) } else { Err(format!("{all:?}")) }
    })
    .await;
}

/// A table that is dropped is made anew; whoever held knows it before anybody else is let in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_table_is_created_again() {
    for kind in BOTH {
        let site = Fixture::new(kind).await;
        let ahead = ShiftedClock::new();
        let (one, two) = (ahead.open_locks(&site.url(), LASTING).await, site.open_locks(LASTING).await);
        let guard = acquire(&one, "a").await;
        let token = guard.token();
        site.query_as_admin(&format!("DROP TABLE {}", site.table())).await;
        assert_eq!(ahead.lost(&guard, LASTING).await, LostReason::Revoked, "{kind:?}: the next renewal finds nothing");
        assert!(acquire(&two, "a").await.token() > token, "{kind:?}: tokens rise even so");
    }
}

/// A row that cannot be read is an error that names it, and hides no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_corrupt_row_is_reported() {
    for kind in BOTH {
        let site = Fixture::new(kind).await;
        let locks = site.open_locks(LASTING).await;
        let (_a, _b) = (acquire(&locks, "a").await, acquire(&locks, "b").await);
        // Another version, as every writer makes one: a renewal that is on its way does not write over it.
        site.query_as_admin(&format!(
            "UPDATE {} SET state = '{{', version = version + 1 WHERE name = 'a'",
            site.table()
        ))
        .await;
        let other = site.open_locks(LASTING).await;
        let error = other.mutex("a").try_lock().await.expect_err("damaged");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{kind:?}: {error}");
        assert!(error.to_string().contains("\"a\""), "{kind:?}: {error}");
        let views = other.list("").await.expect("a list");
        assert_eq!(views.len(), 2, "{kind:?}");
        assert!(views[0].damage.is_some() && views[1].damage.is_none(), "{kind:?}: {views:?}");
    }
}

/// A holder whose row is deleted by hand learns it, and lets go in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_learns_that_its_row_was_deleted() {
    for kind in BOTH {
        let site = Fixture::new(kind).await;
        let ahead = ShiftedClock::new();
        let (one, two) = (ahead.open_locks(&site.url(), LASTING).await, site.open_locks(LASTING).await);
        let guard = acquire(&one, "a").await;
        site.query_as_admin(&format!("DELETE FROM {}", site.table())).await;
        assert_eq!(ahead.lost(&guard, LASTING).await, LostReason::Revoked, "{kind:?}: the next renewal finds nothing");
        assert!(is_lock_free(&two, "a").await, "{kind:?}");
    }
}

/// A message of a grant that is over, delivered late, lets nobody in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outdated_notification_grants_no_lock() {
    let site = Fixture::new(DatabaseKind::Postgres).await;
    let (one, two) = (site.open_locks(LASTING).await, site.open_locks(LASTING).await);
    let guard = acquire(&one, "a").await;
    let waiting = tokio::spawn(async move { acquire(&two, "a").await });
    crate::sql_faults::fixture::until_queued(&one, "a", 1).await;
    let waiter = "state::jsonb->'waiters'->0";
    // Whose grant it speaks of is the waiter's own, with a token that was given before.
    let sql = format!(
        "SELECT pg_notify('leasehold_' || ({waiter}->>'in'), 'g ' || ({waiter}->>'id') || ' {} a ' || \
         (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) FROM leasehold",
        guard.token()
    );
    site.query_as_admin(&sql).await;
    let token = guard.token();
    let _ = guard.release().await.expect("a release");
    assert!(waiting.await.expect("no panic").token() > token);
}

/// A table that cannot be made for a reason of the server's own: it is told when the engine is opened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_creation_failure_is_reported() {
    let site = Fixture::new(DatabaseKind::Postgres).await;
    for sql in [
        "CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'ask the committee'; END $$",
        "CREATE EVENT TRIGGER refuse ON ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION refuse()",
    ] {
        site.query_as_admin(sql).await;
    }
    for technique in ["row", "for-update", "session"] {
        let error =
            leasehold::Locks::open(&format!("{}?technique={technique}", site.url())).await.expect_err("no table");
        assert!(error.to_string().contains("ask the committee"), "{technique}: {error}");
    }
}

/// A deadlock that the server reports (40P01), here through a trigger, since statements on one row do not make any: asked again, and
/// nobody notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlock_is_retried_on_postgres() {
    let site = Fixture::new(DatabaseKind::Postgres).await;
    let locks = site.open_locks(LASTING).await;
    let _ = acquire(&locks, "a").await.release().await.expect("a release");
    for sql in [
        "CREATE SEQUENCE met",
        "GRANT ALL ON SEQUENCE met TO PUBLIC",
        "CREATE FUNCTION deadlock() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF nextval('met') <= 2 THEN RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01'; END IF; RETURN NEW; END $$",
        "CREATE TRIGGER deadlock BEFORE UPDATE ON leasehold FOR EACH ROW EXECUTE FUNCTION deadlock()",
    ] {
        site.query_as_admin(sql).await;
    }
    let guard = acquire(&locks, "a").await;
    let token = guard.token();
    let _ = guard.release().await.expect("a release");
    assert!(acquire(&locks, "a").await.token() > token);
    assert!(site.number("SELECT last_value FROM met").await > 2, "it was met");
}

/// The same on MySQL (1213). There a trigger takes away the number by which a take answers, so that it is met by the give-back only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlock_is_retried_on_mysql() {
    let site = Fixture::new(DatabaseKind::MariaDb).await;
    let locks = site.open_locks(LASTING).await;
    let guard = acquire(&locks, "a").await;
    let token = guard.token();
    let (table, met, trigger) = (site.table(), site.qualified_name("met"), site.qualified_name("deadlock"));
    for sql in [
        // What is counted there stays when the statement is undone.
        format!("CREATE TABLE {met} (times INT) ENGINE = MyISAM"),
        format!("INSERT INTO {met} VALUES (0)"),
        format!(
            "CREATE TRIGGER {trigger} BEFORE UPDATE ON {table} FOR EACH ROW BEGIN UPDATE {met} SET times = times + 1; \
             IF (SELECT times FROM {met}) <= 2 THEN SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'Deadlock found'; END IF; END"
        ),
    ] {
        site.query_as_admin(&sql).await;
    }
    assert_eq!(guard.release().await.expect("an answer"), leasehold::ReleaseOutcome::Released);
    site.query_as_admin(&format!("DROP TRIGGER {trigger}")).await;
    assert!(site.number(&format!("SELECT times FROM {met}")).await > 2, "it was met");
    assert!(acquire(&locks, "a").await.token() > token);
}
