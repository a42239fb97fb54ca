//! A session that somebody keeps open by hand, and what it has locked.

use mysql_async::prelude::Queryable;

use super::shared_server::{DatabaseKind, TestDatabase};

/// A transaction that somebody keeps open by hand, as the user of the locks.
pub(crate) struct ManualTransaction {
    /// The server's number of its connection.
    pub(crate) id: u64,
    connection: ManualConnection,
}

enum ManualConnection {
    MariaDb(mysql_async::Conn),
    Postgres(tokio_postgres::Client),
}

impl ManualTransaction {
    /// Begins one with this statement.
    pub(crate) async fn begin(home: &TestDatabase, sql: &str) -> Self {
        match home.kind {
            DatabaseKind::MariaDb => {
                let opts = mysql_async::Opts::from_url(&home.url()).expect("a URL");
                let mut hand = mysql_async::Conn::new(opts).await.expect("a connection");
                hand.query_drop("BEGIN").await.expect("a transaction");
                hand.query_drop(sql).await.expect("rows");
                Self { id: hand.id().into(), connection: ManualConnection::MariaDb(hand) }
            }
            DatabaseKind::Postgres => {
                let (hand, line) =
                    tokio_postgres::connect(&home.url(), tokio_postgres::NoTls).await.expect("a connection");
                tokio::spawn(line);
                let id: i32 = hand.query_one("SELECT pg_backend_pid()", &[]).await.expect("a row").get(0);
                hand.batch_execute(&format!("BEGIN; {sql}")).await.expect("a transaction");
                Self { id: id.unsigned_abs().into(), connection: ManualConnection::Postgres(hand) }
            }
        }
    }

    /// Ends the transaction, and the session.
    pub(crate) async fn commit(self) {
        match self.connection {
            ManualConnection::MariaDb(mut hand) => hand.query_drop("COMMIT").await.expect("a commit"),
            ManualConnection::Postgres(hand) => hand.batch_execute("COMMIT").await.expect("a commit"),
        }
    }
}
