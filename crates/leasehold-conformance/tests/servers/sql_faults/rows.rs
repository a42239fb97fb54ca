//! What others do to our table.

use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::engine::Renewal;
use leasehold::{Effect, ErrorKind};
use leasehold_conformance::world::{SOON, granted};
use leasehold_testbed::eventually;
use leasehold_testbed::postgres::{PgBouncer, PoolMode};

use crate::sql_faults::site::{BOTH, Hand, Kind, LONG, SHORT, Site, is_free, lock, stay_held};

/// Somebody keeps our row locked in an open transaction. Who tries is told so, and that nothing was done; who has waited all the time has the lock
/// when that transaction is over. PostgreSQL says it in time for a short TTL, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_stays_locked_is_said_and_waited_for() {
    for (kind, ttl) in [(Kind::MariaDb, LONG), (Kind::Postgres, LONG), (Kind::Postgres, Duration::from_secs(5))] {
        let site = Site::new(kind).await;
        let (tries, waits) = (site.locks(ttl).await, site.locks(LONG).await);
        let _ = lock(&tries, "a").await.release().await.expect("a release");
        let hand = Hand::lock(&site, "SELECT * FROM leasehold WHERE name = 'a' FOR UPDATE").await;
        let waiting = tokio::spawn(async move { lock(&waits, "a").await });
        blocked(&site).await;
        let error = tries.mutex("a").try_lock().await.expect_err("it is locked");
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true), "{kind:?}: {error}");
        assert_eq!(error.effect(), Effect::None, "{kind:?}: {error}");
        assert!(error.to_string().contains("somebody keeps our row locked"), "{kind:?}, {ttl:?}: {error}");
        assert!(!waiting.is_finished(), "{kind:?}");
        hand.commit().await;
        assert!(waiting.await.expect("no panic").is_held(), "{kind:?}");
    }
}

/// However many statements are stuck at rows that somebody keeps locked, and however soon we stop waiting for them: there are never more connections
/// than the URL says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_stay_locked_cost_no_more_connections() {
    for kind in BOTH {
        let site = Site::new(kind).await;
        let locks = crate::sql_faults::site::locks(&format!("{}?connections=4&wake=poll", site.url()), SHORT).await;
        let names = ["a", "b", "c", "d", "e", "f"];
        for name in names {
            let guard = locks.mutex(name).ttl(LONG).lock().await.expect("a lock");
            let _ = guard.release().await.expect("a release");
        }
        let hand = Hand::lock(&site, "SELECT * FROM leasehold FOR UPDATE").await;
        let mut tries = tokio::task::JoinSet::new();
        for name in names {
            let locks = locks.clone();
            tries.spawn(async move {
                for _ in 0..4 {
                    let _ = locks.mutex(name).try_lock().await.expect_err("it is locked");
                }
            });
        }
        let mut most = 0;
        while !tries.is_empty() {
            if let Some(ended) = tries.try_join_next() {
                ended.expect("no panic");
            }
            // Ours, and the one by hand.
            most = most.max(site.at_most(4, 4 + 1).await);
        }
        assert!(most > 0, "{kind:?}: no statement was seen");
        hand.commit().await;
        for name in names {
            let guard = locks.mutex(name).ttl(LONG).wait(SOON).lock().await.expect("a lock");
            assert!(guard.is_held(), "{kind:?}");
        }
    }
}

/// One row is kept locked for longer than its holder's renewals wait: that one is lost in time, and the client's others are not. MySQL gives up
/// too late for this TTL, and behind a pooler PostgreSQL never does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_stays_locked_costs_no_other_lock() {
    for (kind, ttl) in [(Kind::MariaDb, Duration::from_millis(3500)), (Kind::Postgres, Duration::from_secs(9))] {
        let site = Site::new(kind).await;
        let pooler = match kind {
            Kind::MariaDb => None,
            Kind::Postgres => {
                let pooler = PgBouncer::new(&site.server, PoolMode::Transaction).pool_size(8);
                Some(pooler.start().await.expect("a pooler"))
            }
        };
        let url = pooler.as_ref().map_or_else(|| site.url(), |pooler| format!("{}?pooler=transaction", pooler.url()));
        let locks = crate::sql_faults::site::locks(&url, ttl).await;
        let stuck = lock(&locks, "a").await;
        let mut kept = Vec::new();
        for name in ["b", "c", "d", "e", "f", "g"] {
            kept.push(lock(&locks, name).await);
        }
        let hand = Hand::lock(&site, "SELECT * FROM leasehold WHERE name = 'a' FOR UPDATE").await;
        tokio::time::timeout(SOON, stuck.lost()).await.expect("it cannot be renewed");
        stay_held(&kept, ttl * 2).await;
        hand.commit().await;
        assert!(lock(&locks, "a").await.is_held(), "{kind:?}");
    }
}

/// The same as the keeper asks: whoever is renewed together with the one whose row is locked is answered in the time that the keeper waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_waits_for_no_other() {
    let ttl = Duration::from_secs(15);
    let site = Site::new(Kind::Postgres).await;
    let pooler = PgBouncer::new(&site.server, PoolMode::Transaction).pool_size(8).start().await.expect("a pooler");
    let url = format!("{}?pooler=transaction", pooler.url());
    let engine = leasehold::engine::open(&url, &Clock::system()).await.expect("an engine");
    let (stuck, kept) = (granted(&engine, "a", ttl).await, granted(&engine, "b", ttl).await);
    let hand = Hand::lock(&site, "SELECT * FROM leasehold WHERE name = 'a' FOR UPDATE").await;
    let renewals = tokio::time::timeout(ttl / 3, engine.renew(vec![stuck, kept])).await;
    let renewals = renewals.expect("in time").expect("answers");
    assert!(matches!(renewals[..], [Renewal::Unknown, Renewal::Renewed(_)]), "{renewals:?}");
    hand.commit().await;
}

/// A claim in a hurry leaves nothing behind on its connection: who comes next has a server that waits as long as it may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_ttl_leaves_no_hurry_behind() {
    let site = Site::new(Kind::Postgres).await;
    // One connection for statements: both claims have the same.
    let locks = crate::sql_faults::site::locks(&format!("{}?connections=2", site.url()), LONG).await;
    let _ = lock(&locks, "a").await.release().await.expect("a release");
    let _ = locks.mutex("b").ttl(SHORT).lock().await.expect("a lock").release().await.expect("a release");
    let hand = Hand::lock(&site, "SELECT * FROM leasehold WHERE name = 'a' FOR UPDATE").await;
    let (clock, asked) = (Clock::system(), Clock::system().now());
    let error = locks.mutex("a").try_lock().await.expect_err("it is locked");
    assert!(error.to_string().contains("somebody keeps our row locked"), "{error}");
    let waited = clock.now().since(asked);
    assert!(waited >= Duration::from_millis(900), "given up after {waited:?}");
    hand.commit().await;
}

/// Waits until a statement of ours is under way and does not end.
async fn blocked(site: &Site) {
    eventually(SOON, || async {
        let all = site.connections().await;
        let stuck = |query: &String| query.contains("INSERT INTO") && query.contains("leasehold");
        if all.iter().any(|one| one.query.as_ref().is_some_and(stuck)) { Ok(()) } else { Err(format!("{all:?}")) }
    })
    .await;
}

/// A table that is dropped is made anew; whoever held knows it before anybody else is let in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_table_is_made_anew() {
    for kind in BOTH {
        let site = Site::new(kind).await;
        let (one, two) = (site.locks(SHORT).await, site.locks(SHORT).await);
        let guard = lock(&one, "a").await;
        let token = guard.token();
        site.ask(&format!("DROP TABLE {}", site.table())).await;
        let lost = tokio::time::timeout(SOON, guard.lost()).await;
        assert!(lost.is_ok(), "{kind:?}: the next renewal finds nothing");
        assert!(lock(&two, "a").await.token() > token, "{kind:?}: tokens rise even so");
    }
}

/// A row that cannot be read is an error that names it, and hides no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_row_says_so() {
    for kind in BOTH {
        let site = Site::new(kind).await;
        let locks = site.locks(LONG).await;
        let (_a, _b) = (lock(&locks, "a").await, lock(&locks, "b").await);
        // Another version, as every writer makes one: a renewal that is on its way does not write over it.
        site.ask(&format!("UPDATE {} SET state = '{{', version = version + 1 WHERE name = 'a'", site.table())).await;
        let other = site.locks(LONG).await;
        let error = other.mutex("a").try_lock().await.expect_err("damaged");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{kind:?}: {error}");
        assert!(error.to_string().contains("\"a\""), "{kind:?}: {error}");
        let views = other.list("").await.expect("a list");
        assert_eq!(views.len(), 2, "{kind:?}");
        assert!(views[0].trouble.is_some() && views[1].trouble.is_none(), "{kind:?}: {views:?}");
    }
}

/// A holder whose row is deleted by hand learns it, and lets go in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_row_is_a_lost_lock() {
    for kind in BOTH {
        let site = Site::new(kind).await;
        let (one, two) = (site.locks(SHORT).await, site.locks(LONG).await);
        let guard = lock(&one, "a").await;
        site.ask(&format!("DELETE FROM {}", site.table())).await;
        tokio::time::timeout(Duration::from_secs(10), guard.lost()).await.expect("the next renewal finds nothing");
        assert!(is_free(&two, "a").await, "{kind:?}");
    }
}

/// A message of a grant that is over, delivered late, lets nobody in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_message_lets_nobody_in() {
    let site = Site::new(Kind::Postgres).await;
    let (one, two) = (site.locks(LONG).await, site.locks(LONG).await);
    let guard = lock(&one, "a").await;
    let waiting = tokio::spawn(async move { lock(&two, "a").await });
    crate::sql_faults::site::queued(&one, "a", 1).await;
    let waiter = "state::jsonb->'waiters'->0";
    // Whose grant it speaks of is the waiter's own, with a token that was given before.
    let sql = format!(
        "SELECT pg_notify('leasehold_' || ({waiter}->>'in'), 'g ' || ({waiter}->>'id') || ' {} a ' || \
         (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) FROM leasehold",
        guard.token()
    );
    site.ask(&sql).await;
    let token = guard.token();
    let _ = guard.release().await.expect("a release");
    assert!(waiting.await.expect("no panic").token() > token);
}

/// Statements that the server refuses because another was first (40001) are asked again, and nobody notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_that_meet_are_asked_again() {
    let strict =
        leasehold_testbed::postgres::Postgres::new().setting("default_transaction_isolation", "repeatable read");
    let site = Site { kind: Kind::Postgres, server: strict.start().await.expect("a server") };
    // Nothing is set for the session then, so that the server's own isolation level counts.
    let url = format!("{}?pooler=transaction&poll=1ms", site.url());
    let refused = async || {
        let rows = site.ask("SELECT xact_rollback FROM pg_stat_database WHERE datname = 'test'").await;
        rows[0][0].as_ref().expect("a number").parse::<u64>().expect("a number")
    };
    let before = refused().await;
    eventually(Duration::from_secs(60), || async {
        let mut clients = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let url = url.clone();
            clients.spawn(async move {
                let locks = crate::sql_faults::site::locks(&url, LONG).await;
                for _ in 0..10 {
                    let _ = lock(&locks, "a").await.release().await.expect("a release");
                }
            });
        }
        clients.join_all().await;
        if refused().await > before { Ok(()) } else { Err("no two met") }
    })
    .await;
}

/// A table that cannot be made for a reason of the server's own: it is told when the engine is opened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn why_a_table_cannot_be_made_is_told() {
    let site = Site::new(Kind::Postgres).await;
    for sql in [
        "CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'ask the committee'; END $$",
        "CREATE EVENT TRIGGER refuse ON ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION refuse()",
    ] {
        site.ask(sql).await;
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
async fn a_deadlock_is_asked_again() {
    let site = Site::new(Kind::Postgres).await;
    let locks = site.locks(LONG).await;
    let _ = lock(&locks, "a").await.release().await.expect("a release");
    for sql in [
        "CREATE SEQUENCE met",
        "GRANT ALL ON SEQUENCE met TO PUBLIC",
        "CREATE FUNCTION deadlock() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF nextval('met') <= 2 THEN RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01'; END IF; RETURN NEW; END $$",
        "CREATE TRIGGER deadlock BEFORE UPDATE ON leasehold FOR EACH ROW EXECUTE FUNCTION deadlock()",
    ] {
        site.ask(sql).await;
    }
    let guard = lock(&locks, "a").await;
    let token = guard.token();
    let _ = guard.release().await.expect("a release");
    assert!(lock(&locks, "a").await.token() > token);
    let met = site.ask("SELECT last_value FROM met").await;
    assert!(met[0][0].as_ref().expect("a number").parse::<u64>().expect("a number") > 2, "it was met");
}

/// The same on MySQL (1213). There a trigger takes away the number by which a take answers, so that it is met by the give-back only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlock_on_mysql_is_asked_again() {
    let site = Site::new(Kind::MariaDb).await;
    let locks = site.locks(LONG).await;
    let guard = lock(&locks, "a").await;
    let token = guard.token();
    for sql in [
        // What is counted there stays when the statement is undone.
        "CREATE TABLE met (times INT) ENGINE = MyISAM",
        "INSERT INTO met VALUES (0)",
        "CREATE TRIGGER deadlock BEFORE UPDATE ON leasehold FOR EACH ROW BEGIN UPDATE met SET times = times + 1; \
         IF (SELECT times FROM met) <= 2 THEN SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'Deadlock found'; END IF; END",
    ] {
        site.ask(sql).await;
    }
    assert_eq!(guard.release().await.expect("an answer"), leasehold::Outcome::Released);
    site.ask("DROP TRIGGER deadlock").await;
    let met = site.ask("SELECT times FROM met").await;
    assert!(met[0][0].as_ref().expect("a number").parse::<u64>().expect("a number") > 2, "it was met");
    assert!(lock(&locks, "a").await.token() > token);
}
