//! A session with an open transaction, and the rows that it locks.

use mysql_async::prelude::Queryable;

use super::shared_server::{DatabaseKind, TestDatabase};

/// A transaction kept open by hand, as the user of the locks.
pub(crate) struct ManualTransaction {
    /// The server's id of its connection.
    pub(crate) id: u64,
    connection: ManualConnection,
}

enum ManualConnection {
    MariaDb(mysql_async::Conn),
    Postgres(tokio_postgres::Client),
}

impl ManualTransaction {
    /// Begins a transaction with this statement.
    pub(crate) async fn begin(home: &TestDatabase, sql: &str) -> Self {
        match home.kind {
            DatabaseKind::MariaDb => {
                let opts = mysql_async::Opts::from_url(&home.url()).expect("a URL");
                let mut raw = mysql_async::Conn::new(opts).await.expect("a connection");
                raw.query_drop("BEGIN").await.expect("a transaction");
                raw.query_drop(sql).await.expect("rows");
                Self { id: raw.id().into(), connection: ManualConnection::MariaDb(raw) }
            }
            DatabaseKind::Postgres => {
                let (raw, connection) =
                    tokio_postgres::connect(&home.url(), tokio_postgres::NoTls).await.expect("a connection");
                tokio::spawn(connection);
                let id: i32 = raw.query_one("SELECT pg_backend_pid()", &[]).await.expect("a row").get(0);
                raw.batch_execute(&format!("BEGIN; {sql}")).await.expect("a transaction");
                Self { id: id.unsigned_abs().into(), connection: ManualConnection::Postgres(raw) }
            }
        }
    }

    /// Commits the transaction and closes the session.
    pub(crate) async fn commit(self) {
        match self.connection {
            ManualConnection::MariaDb(mut raw) => raw.query_drop("COMMIT").await.expect("a commit"),
            ManualConnection::Postgres(raw) => raw.batch_execute("COMMIT").await.expect("a commit"),
        }
    }
}
