//! The exact statements that the engine sends for an uncontended lock, sent bare: by the same
//! client library, over one connection, without any code around them.

use leasehold::engine::sql::{Dialect, bare_statements};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Statement as MyStatement};
use tokio_postgres::{Client, Statement as PgStatement};

use super::baseline::{connect_mysql, connect_postgres};
use super::server::{BenchServer, DatabaseKind};
use crate::redis::{BoxError, TTL};

/// How many milliseconds PostgreSQL waits for a locked row.
const LOCK_WAIT_MS: &str = "1000";

/// A connection and its prepared statements.
pub(crate) enum ExactStatements {
    MySql { conn: Box<Conn>, take: MyStatement, clear: MyStatement },
    Postgres { client: Client, take: PgStatement, clear: PgStatement },
}

impl ExactStatements {
    pub(crate) async fn open(bench: &BenchServer) -> Result<Self, BoxError> {
        match bench.database {
            DatabaseKind::MySql => {
                let [take, clear] = bare_statements(Dialect::MySql, "floor");
                let mut conn = connect_mysql(&bench.url()).await?;
                let (take, clear) = (conn.prep(take).await?, conn.prep(clear).await?);
                Ok(Self::MySql { conn: Box::new(conn), take, clear })
            }
            DatabaseKind::Postgres => {
                let [take, clear] = bare_statements(Dialect::Postgres, "floor");
                let client = connect_postgres(&bench.url()).await?;
                let (take, clear) = (client.prepare(&take).await?, client.prepare(&clear).await?);
                Ok(Self::Postgres { client, take, clear })
            }
        }
    }

    /// Writes the row as held, then as released.
    pub(crate) async fn run_cycle(&mut self, name: &str, [taken, given]: [&str; 2]) -> Result<(), BoxError> {
        let (ttl, skew) = (TTL.as_micros() as i64, 0_i64);
        let changed = match self {
            Self::MySql { conn, take, clear } => {
                let values = (name, ttl, taken, skew, taken, skew, skew, skew);
                conn.exec_drop(&*take, values).await?;
                let token =
                    conn.last_insert_id().filter(|_| conn.affected_rows() > 0).ok_or("the lock was not free")?;
                conn.exec_drop(&*clear, (token, given, name, token)).await?;
                conn.affected_rows()
            }
            Self::Postgres { client, take, clear } => {
                let rows = client.query(&*take, &[&name, &ttl, &taken, &skew, &LOCK_WAIT_MS]).await?;
                let token: i64 = rows.first().ok_or("the lock was not free")?.get(0);
                client.execute(&*clear, &[&name, &token, &token, &given, &LOCK_WAIT_MS]).await?
            }
        };
        if changed == 1 { Ok(()) } else { Err("another client changed the row".into()) }
    }
}
