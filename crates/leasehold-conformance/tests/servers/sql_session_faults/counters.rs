//! Faults of the token counter: other transactions in its way, and a clock that is set back.

use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::{WallClock, eventually};

use crate::sql_session_faults::fixture::{
    DatabaseKind, Fixture, LASTING, ManualTransaction, TechniqueFixture, acquire,
};

fn number(rows: &[Vec<Option<String>>]) -> u64 {
    rows[0][0].as_ref().expect("a value").parse().expect("a number")
}

/// A deadlock (1213, 40P01), caused by a trigger: the increment is retried while the lock stays
/// held.
async fn counter_meets_a_deadlock(kind: DatabaseKind) {
    for table in Fixture::new(kind).await.techniques() {
        let (locks, other) = (table.open_locks(LASTING).await, table.open_locks(LASTING).await);
        let first = locks.mutex("a").lock().await.expect("a lock");
        let before = first.token();
        let _ = first.release().await.expect("a release");
        cause_deadlock(&table).await;
        let guard = locks.mutex("a").try_lock().await.expect("a retried increment").expect("the lock is free");
        assert!(guard.token() > before, "{}", table.technique);
        let what = if kind == DatabaseKind::MariaDb { "times" } else { "last_value" };
        let met = table.fixture.query_as_admin(&format!("SELECT {what} FROM {}", table.qualified_name("_met"))).await;
        assert!(number(&met) > 2, "{}: the deadlock occurred", table.technique);
        assert!(other.mutex("a").try_lock().await.expect("an answer").is_none(), "{}", table.technique);
        assert!(guard.is_held());
    }
}

/// Makes the next two increments of the counter fail with a deadlock.
async fn cause_deadlock(table: &TechniqueFixture) {
    let (met, deadlock, tokens) =
        (table.qualified_name("_met"), table.qualified_name("_deadlock"), table.qualified_name("_tokens"));
    let statements = match table.fixture.kind {
        // This counter survives a rollback.
        DatabaseKind::MariaDb => vec![
            format!("CREATE TABLE {met} (times INT) ENGINE = MyISAM"),
            format!("INSERT INTO {met} VALUES (0)"),
            format!(
                "CREATE TRIGGER {deadlock} BEFORE INSERT ON {tokens} FOR EACH ROW BEGIN \
                 UPDATE {met} SET times = times + 1; IF (SELECT times FROM {met}) <= 2 THEN \
                 SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'Deadlock found'; END IF; END"
            ),
        ],
        DatabaseKind::Postgres => vec![
            format!("CREATE SEQUENCE {met}"),
            format!("GRANT ALL ON SEQUENCE {met} TO PUBLIC"),
            format!(
                "CREATE FUNCTION {deadlock}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                 IF nextval('{met}') <= 2 THEN RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01'; END IF; \
                 RETURN NEW; END $$"
            ),
            format!(
                "CREATE TRIGGER {deadlock} BEFORE INSERT ON {tokens} FOR EACH ROW \
                 EXECUTE FUNCTION {deadlock}()"
            ),
        ],
    };
    for statement in statements {
        table.fixture.query_as_admin(&statement).await;
    }
}

/// Identifies the current wait for a row lock, if any.
async fn waiting_statement(table: &TechniqueFixture) -> Option<String> {
    let sql = match table.fixture.kind {
        DatabaseKind::MariaDb => {
            "SELECT variable_value FROM information_schema.global_status \
            WHERE variable_name = 'Innodb_row_lock_waits'"
        }
        DatabaseKind::Postgres => {
            "SELECT pid || ' ' || query_start FROM pg_stat_activity \
             WHERE wait_event_type = 'Lock' AND query LIKE '%_tokens%'"
        }
    };
    table.fixture.query_as_admin(sql).await.first().and_then(|row| row[0].clone())
}

/// Waits for a row-lock wait other than this one.
async fn until_other_statement_waits(table: &TechniqueFixture, than: Option<String>) -> Option<String> {
    eventually(TEST_TIMEOUT, || async {
        let now = waiting_statement(table).await;
        if now.is_some() && now != than { Ok(now) } else { Err(format!("{now:?}")) }
    })
    .await
}

/// Another transaction keeps the counter locked until the lock timeout (1205, 55P03): the increment
/// is retried, and `try_lock` succeeds.
async fn counter_row_stays_locked(kind: DatabaseKind) {
    for table in Fixture::on_own_server(kind).await.techniques() {
        if (kind, table.technique) == (DatabaseKind::Postgres, "session") {
            // This session waits for locks without a timeout, so there is none here either.
            continue;
        }
        let locks = table.open_locks(LASTING).await;
        let first = locks.mutex("a").lock().await.expect("a lock");
        let before = first.token();
        let _ = first.release().await.expect("a release");
        let before_all = waiting_statement(&table).await;
        let blocker = ManualTransaction::begin(
            &table.fixture.database,
            &format!("SELECT * FROM {}_tokens FOR UPDATE", table.name),
        )
        .await;
        let trying = tokio::spawn({
            let mutex = locks.mutex("a");
            async move { mutex.try_lock().await }
        });
        let first = until_other_statement_waits(&table, before_all).await;
        // The server timed out the first increment, and the client retried it.
        until_other_statement_waits(&table, first).await;
        assert!(!trying.is_finished(), "{}", table.technique);
        blocker.commit().await;
        let guard = trying.await.expect("no panic").expect("a retried increment").expect("the lock is free");
        assert!(guard.token() > before && guard.is_held(), "{}", table.technique);
    }
}

/// The database's clock goes back by an hour: the holder keeps its lock, and the next token is
/// higher.
async fn counter_survives_a_clock_set_back(kind: DatabaseKind) {
    let clock = WallClock::new().expect("a clock");
    for table in Fixture::with_clock(kind, &clock).await.techniques() {
        clock.set_offset(0).expect("the right time");
        let (locks, other) = (table.open_locks(LASTING).await, table.open_locks(LASTING).await);
        let guard = locks.mutex("a").lock().await.expect("a lock");
        let token = guard.token();
        clock.set_offset(-3600).expect("a moved clock");
        let now = match kind {
            DatabaseKind::MariaDb => "SELECT UNIX_TIMESTAMP()",
            DatabaseKind::Postgres => "SELECT extract(epoch FROM clock_timestamp())::bigint",
        };
        eventually(TEST_TIMEOUT, || async {
            let now = number(&table.fixture.query_as_admin(now).await);
            if now + 3000 < token.0 / 1_000_000 { Ok(()) } else { Err(format!("{now}: not set back")) }
        })
        .await;
        assert!(other.mutex("a").try_lock().await.expect("an answer").is_none(), "{}", table.technique);
        assert!(guard.is_held());
        let _ = guard.release().await.expect("a release");
        let next = acquire(&other, "a").await;
        assert!(next.token() > token, "{}: {} after {token}", table.technique, next.token());
    }
}

crate::sql_session_faults::on_both! { counter_meets_a_deadlock counter_row_stays_locked counter_survives_a_clock_set_back }
