//! Interference with the lease table.

use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::{Effect, ErrorKind, LostReason};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::eventually;

use crate::sql_faults::fixture::{
    BOTH, DatabaseKind, Fixture, LASTING, ManualTransaction, SHORT, ShiftedClock, acquire, is_lock_free,
};

/// Another transaction keeps the row locked. A try fails with an error that says so and has no
/// effect; a waiter acquires the lock when that transaction ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_row_is_reported_and_waited_for() {
    for kind in BOTH {
        check_locked_row(kind, LASTING).await;
    }
}

/// Locks a lock's row in another transaction: a try with this TTL reports it, and a waiter waits.
pub(super) async fn check_locked_row(kind: DatabaseKind, ttl: Duration) {
    let fixture = Fixture::new(kind).await;
    let (tries, waits) = (fixture.open_locks(ttl).await, fixture.open_locks(LASTING).await);
    let _ = acquire(&tries, "a").await.release().await.expect("a release");
    let blocker =
        ManualTransaction::begin(&fixture.database, "SELECT * FROM leasehold WHERE name = 'a' FOR UPDATE").await;
    let waiting = tokio::spawn(async move { acquire(&waits, "a").await });
    until_statement_blocked(&fixture).await;
    let error = tries.mutex("a").try_lock().await.expect_err("the row is locked");
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true), "{kind:?}: {error}");
    assert_eq!(error.effect(), Effect::None, "{kind:?}: {error}");
    assert!(
        error.to_string().contains("another transaction holds a row lock on a table of leasehold"),
        "{kind:?}, {ttl:?}: {error}"
    );
    assert!(!waiting.is_finished(), "{kind:?}");
    blocker.commit().await;
    assert!(waiting.await.expect("no panic").is_held(), "{kind:?}");
}

/// A claim with a short TTL leaves no short lock timeout on its connection: the next claim gets the
/// full timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_ttl_leaves_no_short_timeout_on_its_connection() {
    let fixture = Fixture::new(DatabaseKind::Postgres).await;
    // One connection for statements, so both claims use the same.
    let locks = crate::sql_faults::fixture::open_locks(&format!("{}?connections=2", fixture.url()), LASTING).await;
    let _ = acquire(&locks, "a").await.release().await.expect("a release");
    let hasty = eventually(TEST_TIMEOUT, || async { locks.mutex("b").ttl(SHORT).lock().await }).await;
    // On a slow machine the lease may have expired; the lock is free then as well.
    let _ = hasty.release().await;
    let blocker =
        ManualTransaction::begin(&fixture.database, "SELECT * FROM leasehold WHERE name = 'a' FOR UPDATE").await;
    let (clock, start) = (Clock::system(), Clock::system().now());
    let error = locks.mutex("a").try_lock().await.expect_err("the row is locked");
    assert!(error.to_string().contains("another transaction holds a row lock on a table of leasehold"), "{error}");
    let waited = clock.now().duration_since(start);
    assert!(waited >= Duration::from_millis(900), "gave up after {waited:?}");
    blocker.commit().await;
}

/// Waits until a statement of the locks' user is blocked.
async fn until_statement_blocked(fixture: &Fixture) {
    eventually(TEST_TIMEOUT, || async {
        let all = fixture.connections().await;
        let stuck = |query: &String| query.contains("INSERT INTO") && query.contains("leasehold");
        if all.iter().any(|one| one.query.as_ref().is_some_and(stuck)) { Ok(()) } else { Err(format!("{all:?}")) }
    })
    .await;
}

/// A dropped table is created again; the holder learns of its loss before another client acquires
/// the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_table_is_created_again() {
    for kind in BOTH {
        let fixture = Fixture::new(kind).await;
        let ahead = ShiftedClock::new();
        let (one, two) = (ahead.open_locks(&fixture.url(), LASTING).await, fixture.open_locks(LASTING).await);
        let guard = acquire(&one, "a").await;
        let token = guard.token();
        fixture.query_as_admin(&format!("DROP TABLE {}", fixture.table())).await;
        assert_eq!(ahead.lost(&guard, LASTING).await, LostReason::Revoked, "{kind:?}: the next renewal finds no row");
        assert!(acquire(&two, "a").await.token() > token, "{kind:?}: tokens rise");
    }
}

/// An unreadable row causes an error that names it, and hides no other row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_corrupt_row_is_reported() {
    for kind in BOTH {
        let fixture = Fixture::new(kind).await;
        let locks = fixture.open_locks(LASTING).await;
        let (_a, _b) = (acquire(&locks, "a").await, acquire(&locks, "b").await);
        // With a new version, as every writer sets it, so that a renewal in flight does not
        // overwrite it.
        fixture
            .query_as_admin(&format!(
                "UPDATE {} SET state = '{{', version = version + 1 WHERE name = 'a'",
                fixture.table()
            ))
            .await;
        let other = fixture.open_locks(LASTING).await;
        let error = other.mutex("a").try_lock().await.expect_err("damaged");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{kind:?}: {error}");
        assert!(error.to_string().contains("\"a\""), "{kind:?}: {error}");
        let views = other.list("").await.expect("a list");
        assert_eq!(views.len(), 2, "{kind:?}");
        assert!(views[0].damage.is_some() && views[1].damage.is_none(), "{kind:?}: {views:?}");
    }
}

/// A holder whose row is deleted by hand learns of its loss in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_learns_that_its_row_was_deleted() {
    for kind in BOTH {
        let fixture = Fixture::new(kind).await;
        let ahead = ShiftedClock::new();
        let (one, two) = (ahead.open_locks(&fixture.url(), LASTING).await, fixture.open_locks(LASTING).await);
        let guard = acquire(&one, "a").await;
        fixture.query_as_admin(&format!("DELETE FROM {}", fixture.table())).await;
        assert_eq!(ahead.lost(&guard, LASTING).await, LostReason::Revoked, "{kind:?}: the next renewal finds no row");
        assert!(is_lock_free(&two, "a").await, "{kind:?}");
    }
}

/// A late notification of an ended grant grants no lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outdated_notification_grants_no_lock() {
    let fixture = Fixture::new(DatabaseKind::Postgres).await;
    let (one, two) = (fixture.open_locks(LASTING).await, fixture.open_locks(LASTING).await);
    let guard = acquire(&one, "a").await;
    let waiting = tokio::spawn(async move { acquire(&two, "a").await });
    crate::sql_faults::fixture::until_queued(&one, "a", 1).await;
    let waiter = "state::jsonb->'waiters'->0";
    // The notification names the waiter's own claim, with an earlier token.
    let sql = format!(
        "SELECT pg_notify('leasehold_' || ({waiter}->>'in'), '1 g ' || ({waiter}->>'id') || ' {} a ' || \
         (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) FROM leasehold",
        guard.token()
    );
    fixture.query_as_admin(&sql).await;
    let token = guard.token();
    let _ = guard.release().await.expect("a release");
    assert!(waiting.await.expect("no panic").token() > token);
}

/// If the server rejects the creation of the table, opening fails with the server's reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_creation_failure_is_reported() {
    let fixture = Fixture::new(DatabaseKind::Postgres).await;
    for sql in [
        "CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'ask the committee'; END $$",
        "CREATE EVENT TRIGGER refuse ON ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION refuse()",
    ] {
        fixture.query_as_admin(sql).await;
    }
    for technique in ["row", "for-update", "session"] {
        let error =
            leasehold::Locks::open(&format!("{}?technique={technique}", fixture.url())).await.expect_err("no table");
        assert!(error.to_string().contains("ask the committee"), "{technique}: {error}");
    }
}

/// A deadlock (40P01) is retried without an effect on the caller. A trigger causes it, because
/// statements on one row do not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlock_is_retried_on_postgres() {
    let fixture = Fixture::new(DatabaseKind::Postgres).await;
    let locks = fixture.open_locks(LASTING).await;
    let _ = acquire(&locks, "a").await.release().await.expect("a release");
    for sql in [
        "CREATE SEQUENCE met",
        "GRANT ALL ON SEQUENCE met TO PUBLIC",
        "CREATE FUNCTION deadlock() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF nextval('met') <= 2 THEN RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01'; END IF; RETURN NEW; END $$",
        "CREATE TRIGGER deadlock BEFORE UPDATE ON leasehold FOR EACH ROW EXECUTE FUNCTION deadlock()",
    ] {
        fixture.query_as_admin(sql).await;
    }
    let guard = acquire(&locks, "a").await;
    let token = guard.token();
    let _ = guard.release().await.expect("a release");
    assert!(acquire(&locks, "a").await.token() > token);
    assert!(fixture.number("SELECT last_value FROM met").await > 2, "the deadlock occurred");
}

/// A deadlock (1213) is retried on MySQL. There a trigger would clear the value that the acquire's
/// reply uses, so only the release meets it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlock_is_retried_on_mysql() {
    let fixture = Fixture::new(DatabaseKind::MariaDb).await;
    let locks = fixture.open_locks(LASTING).await;
    let guard = acquire(&locks, "a").await;
    let token = guard.token();
    let (table, met, trigger) = (fixture.table(), fixture.qualified_name("met"), fixture.qualified_name("deadlock"));
    for sql in [
        // This counter survives a rollback.
        format!("CREATE TABLE {met} (times INT) ENGINE = MyISAM"),
        format!("INSERT INTO {met} VALUES (0)"),
        format!(
            "CREATE TRIGGER {trigger} BEFORE UPDATE ON {table} FOR EACH ROW BEGIN UPDATE {met} SET times = times + 1; \
             IF (SELECT times FROM {met}) <= 2 THEN SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'Deadlock found'; END IF; END"
        ),
    ] {
        fixture.query_as_admin(&sql).await;
    }
    assert_eq!(guard.release().await.expect("an answer"), leasehold::ReleaseOutcome::Released);
    fixture.query_as_admin(&format!("DROP TRIGGER {trigger}")).await;
    assert!(fixture.number(&format!("SELECT times FROM {met}")).await > 2, "the deadlock occurred");
    assert!(acquire(&locks, "a").await.token() > token);
}
