//! A server that is short of connections: waiters give up theirs and keep their positions.

use std::sync::{Arc, Mutex, PoisonError};

use leasehold::Locks;
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::mariadb::{self, MariaDb};
use leasehold_testbed::postgres::{self, Postgres};
use leasehold_testbed::{Server, eventually};
use tokio::task::JoinSet;

use crate::sql_faults::fixture::{DatabaseKind, LASTING, acquire};

/// The number of waiting programs; each wants two connections.
const PROGRAMS: usize = 12;
/// PostgreSQL reserves three for the superuser, so eleven remain.
const CONNECTIONS: usize = 14;

/// A number from a statement. MariaDB may lack a connection even for the administrator.
async fn number(kind: DatabaseKind, server: &Server, sql: &str) -> Result<usize, String> {
    let rows = match kind {
        DatabaseKind::Postgres => postgres::query(server, sql).await,
        DatabaseKind::MariaDb => mariadb::query(server, sql).await,
    };
    let rows = rows.map_err(|error| error.to_string())?;
    Ok(rows.first().and_then(|row| row[0].as_ref()).map_or(0, |text| text.parse().expect("a number")))
}

/// As a program that starts and retries while it is refused.
async fn open_with_retry(server: &Server) -> Locks {
    let url = server.url();
    eventually(TEST_TIMEOUT, || async {
        Locks::builder().ttl(LASTING).open(&url).await.map_err(|error| error.to_string())
    })
    .await
}

/// More programs wait for one lock than the server has connections. All of them are served in the
/// order of arrival, and leave half of the connections unused.
async fn check_waiting_programs(kind: DatabaseKind) {
    let most = CONNECTIONS.to_string();
    let server = match kind {
        DatabaseKind::Postgres => Postgres::new().setting("max_connections", &most).start().await,
        DatabaseKind::MariaDb => MariaDb::new().setting("max_connections", &most).start().await,
    };
    let server = server.expect("a server");
    let holder = open_with_retry(&server).await;
    let guard = acquire(&holder, "a").await;
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut programs = JoinSet::new();
    for program in 0..PROGRAMS {
        let (locks, served) = (open_with_retry(&server).await, Arc::clone(&served));
        programs.spawn(async move {
            let guard = locks.mutex("a").lock().await.expect("the lock");
            served.lock().unwrap_or_else(PoisonError::into_inner).push(program);
            let _ = guard.release().await.expect("a release");
        });
        let queue = match kind {
            DatabaseKind::Postgres => {
                "SELECT jsonb_array_length(state::jsonb->'waiters') FROM leasehold WHERE name = 'a'"
            }
            DatabaseKind::MariaDb => "SELECT JSON_LENGTH(state, '$.waiters') FROM test.leasehold WHERE name = 'a'",
        };
        eventually(TEST_TIMEOUT, || async {
            let waiters = number(kind, &server, queue).await?;
            if waiters == program + 1 { Ok(()) } else { Err(format!("{waiters} wait")) }
        })
        .await;
    }
    let ours = match kind {
        DatabaseKind::Postgres => "SELECT count(*) FROM pg_stat_activity WHERE usename = 'leasehold'",
        DatabaseKind::MariaDb => "SELECT count(*) FROM information_schema.processlist WHERE user = 'leasehold'",
    };
    eventually(TEST_TIMEOUT, || async {
        let used = number(kind, &server, ours).await?;
        if used <= CONNECTIONS / 2 + 1 { Ok(()) } else { Err(format!("{used} connections of {CONNECTIONS}")) }
    })
    .await;
    // Another program can connect and sees all waiters.
    let observer = open_with_retry(&server).await;
    assert_eq!(observer.inspect("a").await.expect("a view").waiters.len(), PROGRAMS);
    drop(observer);
    let _ = guard.release().await.expect("a release");
    while let Some(ended) = programs.join_next().await {
        ended.expect("no panic");
    }
    let served = served.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert_eq!(served, (0..PROGRAMS).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_clients_give_up_connections_on_postgres() {
    check_waiting_programs(DatabaseKind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_clients_give_up_connections_on_mariadb() {
    check_waiting_programs(DatabaseKind::MariaDb).await;
}
