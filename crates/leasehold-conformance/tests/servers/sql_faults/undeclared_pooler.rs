//! A pooler in transaction mode that the URL does not declare: the sessions that it shares with
//! other programs stay unchanged.

use leasehold::{ErrorKind, Locks};
use leasehold_testbed::Server;
use leasehold_testbed::postgres::{self, PgBouncer, PoolMode};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use crate::sql_faults::fixture::{LASTING, acquire, open_locks, until_queued};

/// Another program, whose transactions use the same server sessions.
struct OtherProgram(Client);

impl OtherProgram {
    async fn connect(pooler: &Server) -> Self {
        let (client, connection) = tokio_postgres::connect(&pooler.url(), NoTls).await.expect("a connection");
        tokio::spawn(connection);
        Self(client)
    }

    /// Session state: settings, prepared statements, channels.
    async fn session_state(&self) -> Vec<String> {
        let mut found = Vec::new();
        for sql in [
            "SHOW lock_timeout",
            "SHOW default_transaction_isolation",
            "SHOW statement_timeout",
            "SELECT count(*) FROM pg_prepared_statements",
            "SELECT count(*) FROM pg_listening_channels()",
        ] {
            let rows = self.0.simple_query(sql).await.expect("an answer");
            let row = rows.iter().find_map(|message| match message {
                SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
                _ => None,
            });
            found.push(format!("{sql}: {row:?}"));
        }
        found
    }
}

/// Without `pooler=transaction` the engine refuses to open and says what to add; with it, locks
/// work. Either way, the next session of another program is unchanged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_programs_sessions_are_left_unchanged() {
    let server = postgres::start().await.expect("a server");
    // With a single session, the neighbour sees every leftover. And with a few.
    for size in [1, 3] {
        let pooler = PgBouncer::new(&server, PoolMode::Transaction).pool_size(size).start().await.expect("a pooler");
        let neighbour = OtherProgram::connect(&pooler).await;
        let before = neighbour.session_state().await;
        let error = Locks::open(&pooler.url()).await.expect_err("its sessions are shared");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("add pooler=transaction"), "{error}");
        assert_eq!(neighbour.session_state().await, before, "pool of {size}: refused");
        let url = format!("{}?pooler=transaction", pooler.url());
        let (one, two) = (open_locks(&url, LASTING).await, open_locks(&url, LASTING).await);
        let guard = acquire(&one, "a").await;
        let waiting = tokio::spawn(async move { acquire(&two, "a").await });
        until_queued(&one, "a", 1).await;
        let _ = guard.release().await.expect("a release");
        let _ = waiting.await.expect("no panic").release().await.expect("a release");
        for _ in 0..3 {
            assert_eq!(neighbour.session_state().await, before, "pool of {size}: used");
        }
    }
}

/// A pooler in session mode does not share sessions, and needs no option.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_in_session_mode_needs_no_option() {
    let server = postgres::start().await.expect("a server");
    let pooler = PgBouncer::new(&server, PoolMode::Session).pool_size(12).start().await.expect("a pooler");
    let (one, two) = (open_locks(&pooler.url(), LASTING).await, open_locks(&pooler.url(), LASTING).await);
    let guard = acquire(&one, "a").await;
    let waiting = tokio::spawn(async move { acquire(&two, "a").await });
    until_queued(&one, "a", 1).await;
    let _ = guard.release().await.expect("a release");
    assert!(waiting.await.expect("no panic").is_held());
}
