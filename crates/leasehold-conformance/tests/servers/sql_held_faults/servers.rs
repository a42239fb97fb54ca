//! The server dies, takes no writes, or has no connection to spare.

use std::sync::Arc;
use std::time::Duration;

use leasehold::ErrorKind;
use leasehold_conformance::world::SOON;
use leasehold_testbed::Data;
use leasehold_testbed::mariadb::Galera;
use leasehold_testbed::postgres::{PgBouncer, PoolMode, Postgres};

use crate::sql_held_faults::site::{Kind, LONG, Site, told};

/// Killed and started again: all locks are lost and told, and tokens rise.
async fn dies(kind: Kind) {
    for technique in 0..2 {
        let table = Site::new(kind).await.tables().swap_remove(technique);
        let locks = table.locks(LONG).await;
        let (held, waited) = (locks.mutex("a").lock().await.expect("a lock"), locks.mutex("b").lock().await);
        let waited = waited.expect("a lock");
        let waiter = tokio::spawn({
            let mutex = locks.mutex("b").ttl(LONG).wait(Duration::from_secs(60));
            async move { mutex.lock().await }
        });
        let url = table.url();
        let mut site = Arc::into_inner(table.site).expect("the only one");
        site.server.kill().expect("a dead server");
        told(&held).await;
        told(&waited).await;
        site.server.restart(Data::Keep).await.expect("a server");
        let next = waiter.await.expect("no panic").expect("asked again");
        assert!(next.token() > waited.token());
        let again = locks.mutex("a").wait(SOON).lock().await.expect("a lock");
        assert!(again.token() > held.token(), "{url}");
    }
}

/// Read-only: the error says so, and nothing stays locked.
async fn takes_no_writes(kind: Kind) {
    if kind == Kind::Postgres {
        return standby().await;
    }
    for table in Site::new(kind).await.tables() {
        let locks = table.locks(LONG).await;
        let guard = locks.mutex("a").lock().await.expect("a lock");
        let token = guard.token();
        let _ = guard.release().await.expect("a release");
        table.site.ask("SET GLOBAL read_only = ON").await;
        let error = locks.mutex("a").try_lock().await.expect_err("no writes");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("takes no writes"), "{error}");
        table.site.ask("SET GLOBAL read_only = OFF").await;
        let other = table.locks(LONG).await;
        let next = other.mutex("a").wait(SOON).lock().await.expect("nothing stays locked");
        assert!(next.token() > token);
    }
}

/// A standby takes no writes.
async fn standby() {
    for table in Site::new(Kind::Postgres).await.tables() {
        let locks = table.locks(LONG).await;
        drop(locks.mutex("a").lock().await.expect("a lock"));
        let standby = Postgres::replica_of(&table.site.server).start().await.expect("a standby");
        let addr = table.site.server.addr().to_string();
        let url = table.url().replace(&addr, &standby.addr().to_string());
        let error = match leasehold::Locks::builder().ttl(LONG).open(&url).await {
            Ok(locks) => locks.mutex("a").try_lock().await.expect_err("no writes"),
            Err(error) => error,
        };
        assert!(error.to_string().contains("takes no writes"), "{}: {error}", table.technique);
    }
}

/// More locks than connections: who waits is served when one is given back, and who tries is told why not.
async fn has_few_connections(kind: Kind) {
    for table in Site::new(kind).await.tables() {
        let url = format!("{}&connections=3&connect-timeout=2s", table.url());
        let locks = leasehold::Locks::builder().ttl(LONG).open(&url).await.expect("an engine");
        let (one, two) = (locks.mutex("1").lock().await.expect("a lock"), locks.mutex("2").lock().await);
        let error = locks.mutex("3").try_lock().await.expect_err("no connection is left");
        assert!(error.to_string().contains("connections="), "{error}");
        let third = tokio::spawn({
            let mutex = locks.mutex("3").wait(SOON);
            async move { mutex.lock().await }
        });
        // Waiters of one name need one connection, however many they are.
        let _ = one.release().await.expect("a release");
        let third = third.await.expect("no panic").expect("a lock");
        assert!(third.is_held() && two.expect("a lock").is_held());
    }
}

/// The members of a Galera cluster do not share the locks of sessions: two would hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_galera_cluster_is_refused() {
    let cluster = Galera::start(1).await.expect("a cluster");
    for technique in ["session", "for-update"] {
        let url = format!("{}?technique={technique}", cluster.server(0).url());
        let error = leasehold::Locks::open(&url).await.expect_err("two would hold");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("technique=row"), "{error}");
    }
}

/// Behind a pooler in transaction mode nobody has a session of its own: what one locks, the next has, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_that_changes_sessions_is_refused() {
    let server = Postgres::new().start().await.expect("a server");
    let of = |mode, size| PgBouncer::new(&server, mode).pool_size(size).start();
    let (one, some) = (of(PoolMode::Transaction, 1).await, of(PoolMode::Transaction, 4).await);
    for pooler in [one.expect("a pooler"), some.expect("a pooler")] {
        for technique in ["session", "for-update"] {
            let url = format!("{}?technique={technique}", pooler.url());
            let error = leasehold::Locks::open(&url).await.expect_err("the lock would be anybody's");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            let said = error.to_string();
            assert!(said.contains("pooler=transaction") && said.contains("technique=row"), "{error}");
        }
    }
    // One that leaves sessions alone is none of that.
    let pooler = of(PoolMode::Session, 12).await.expect("a pooler");
    for technique in ["session", "for-update"] {
        let url = format!("{}?technique={technique}&table={}", pooler.url(), technique.replace('-', "_"));
        let locks = leasehold::Locks::builder().ttl(LONG).open(&url).await.expect("an engine");
        assert!(locks.mutex("a").lock().await.expect("a lock").is_held());
    }
}

/// A name whose key is another's merely excludes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_names_of_one_key_exclude_each_other() {
    let table = Site::new(Kind::Postgres).await.tables().swap_remove(0);
    let (locks, other) = (table.locks(LONG).await, table.locks(LONG).await);
    let guard = locks.mutex("a").lock().await.expect("a lock");
    let keys = table
        .site
        .ask("SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks WHERE locktype = 'advisory'")
        .await;
    let key = keys[0][0].clone().expect("a key");
    let _ = guard.release().await.expect("a release");
    // Whoever has the key: another name's lock looks no different.
    let site = Arc::clone(&table.site);
    let statement = format!("SELECT pg_advisory_lock({key}), pg_sleep(2)");
    let stranger = tokio::spawn(async move { site.ask(&statement).await });
    let mutex = locks.mutex("a");
    leasehold_testbed::eventually(SOON, || async {
        match mutex.try_lock().await {
            Ok(None) => Ok(()),
            other => Err(format!("not excluded: {other:?}")),
        }
    })
    .await;
    assert!(other.mutex("b").try_lock().await.expect("an answer").is_some(), "no other name is");
    let next = other.mutex("a").wait(SOON).lock().await.expect("the stranger is gone");
    assert!(next.is_held());
    stranger.await.expect("no panic");
}

crate::sql_held_faults::on_both! { dies takes_no_writes has_few_connections }
