//! Bare statements on a table like ours, by the same client libraries with the engines' settings.

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, Statement as MyStatement};
use tokio_postgres::{Client, NoTls, Statement as PgStatement};

use super::server::{BenchServer, DatabaseKind};
use crate::redis::{BoxError, TTL};

/// The clock of MariaDB, in microseconds.
const MY_NOW: &str = "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)";
/// The clock of PostgreSQL, in microseconds.
const PG_NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// A connection and its prepared statements.
pub(crate) enum Baseline {
    MySql { conn: Box<Conn>, upsert: MyStatement, free: MyStatement, poll: MyStatement },
    Postgres { client: Client, upsert: PgStatement, free: PgStatement, poll: PgStatement },
}

/// Creates the table, as the engine creates its own.
pub(crate) async fn create_table(bench: &BenchServer) -> Result<(), BoxError> {
    bench.open_locks("").await?.close().await?;
    let make = match bench.database {
        DatabaseKind::MySql => "CREATE TABLE IF NOT EXISTS floor LIKE leasehold",
        DatabaseKind::Postgres => {
            "CREATE TABLE IF NOT EXISTS floor (LIKE leasehold INCLUDING ALL) \
             WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01); GRANT ALL ON floor TO PUBLIC"
        }
    };
    bench.query_as_admin(make).await.map(drop)
}

/// A connection to MariaDB with the engine's settings.
pub(super) async fn connect_mysql(url: &str) -> Result<Conn, BoxError> {
    let options = OptsBuilder::from_opts(Opts::from_url(url)?).prefer_socket(false).tcp_nodelay(true);
    let mut conn = Conn::new(options).await?;
    conn.query_drop("SET SESSION time_zone = '+00:00', autocommit = 1, sql_mode = 'STRICT_ALL_TABLES'").await?;
    conn.query_drop("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await?;
    Ok(conn)
}

/// A connection to PostgreSQL with the engine's settings.
pub(super) async fn connect_postgres(url: &str) -> Result<Client, BoxError> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    // The connection's task ends when the client is dropped.
    tokio::spawn(connection);
    Ok(client)
}

impl Baseline {
    pub(crate) async fn open(bench: &BenchServer) -> Result<Self, BoxError> {
        match bench.database {
            DatabaseKind::MySql => Self::open_mysql(&bench.url()).await,
            DatabaseKind::Postgres => Self::open_postgres(&bench.url()).await,
        }
    }

    async fn open_mysql(url: &str) -> Result<Self, BoxError> {
        let mut conn = connect_mysql(url).await?;
        let upsert = "INSERT INTO floor (name, version, token, busy, state) VALUES (?, ?, ?, ?, ?) ON DUPLICATE KEY UPDATE \
                      version = VALUES(version), token = VALUES(token), busy = VALUES(busy), state = VALUES(state)";
        let free = "UPDATE floor SET version = ?, token = ?, busy = 0, state = ? WHERE name = ?";
        let ttl = TTL.as_micros();
        let poll = format!(
            "INSERT INTO floor (name, version, token, busy, state) \
             VALUES (?, 1, LAST_INSERT_ID(1), {MY_NOW} + {ttl}, ?) ON DUPLICATE KEY UPDATE \
             state = IF(busy <= {MY_NOW}, VALUES(state), state), version = IF(busy <= {MY_NOW}, version + 1, version), \
             token = IF(busy <= {MY_NOW}, LAST_INSERT_ID(token + 1), token), \
             busy = IF(busy <= {MY_NOW}, VALUES(busy), busy)"
        );
        let (upsert, free, poll) = (conn.prep(upsert).await?, conn.prep(free).await?, conn.prep(poll).await?);
        Ok(Self::MySql { conn: Box::new(conn), upsert, free, poll })
    }

    /// Connects to PostgreSQL, and prepares the bare statements that a lease table needs at least.
    async fn open_postgres(url: &str) -> Result<Self, BoxError> {
        let client = connect_postgres(url).await?;
        let upsert = "INSERT INTO floor (name, version, token, busy, state) VALUES ($1, $2, $3, $4, $5) \
                      ON CONFLICT (name) DO UPDATE SET version = excluded.version, token = excluded.token, \
                      busy = excluded.busy, state = excluded.state RETURNING token";
        let free = "UPDATE floor SET version = $2, token = $3, busy = 0, state = $4 WHERE name = $1";
        let ttl = TTL.as_micros();
        let poll = format!(
            "INSERT INTO floor AS l (name, version, token, busy, state) VALUES ($1, 1, 1, {PG_NOW} + {ttl}, $2) \
             ON CONFLICT (name) DO UPDATE SET version = l.version + 1, token = l.token + 1, busy = excluded.busy, \
             state = excluded.state WHERE l.busy <= {PG_NOW} RETURNING l.token"
        );
        let upsert = client.prepare(upsert).await?;
        let (free, poll) = (client.prepare(free).await?, client.prepare(&poll).await?);
        Ok(Self::Postgres { client, upsert, free, poll })
    }

    /// Writes a row as if it were acquired, and then as if it were released.
    pub(crate) async fn run_cycle(
        &mut self,
        name: &str,
        token: i64,
        [taken, given]: [&str; 2],
    ) -> Result<(), BoxError> {
        let until = token + TTL.as_micros() as i64;
        match self {
            Self::MySql { conn, upsert, .. } => {
                conn.exec_drop(&*upsert, (name, token, token, until, taken)).await?;
            }
            Self::Postgres { client, upsert, .. } => {
                let rows = client.query(&*upsert, &[&name, &token, &token, &until, &taken]).await?;
                std::hint::black_box(rows.first().map(|row| row.get::<_, i64>(0)));
            }
        }
        self.release(name, token, given).await
    }

    /// Writes the row as free, if it still has this token.
    pub(crate) async fn release(&mut self, name: &str, token: i64, state: &str) -> Result<(), BoxError> {
        let changed = match self {
            Self::MySql { conn, free, .. } => {
                conn.exec_drop(&*free, (token + 1, token, state, name)).await?;
                conn.affected_rows()
            }
            Self::Postgres { client, free, .. } => {
                client.execute(&*free, &[&name, &(token + 1), &token, &state]).await?
            }
        };
        if changed == 1 { Ok(()) } else { Err("the baseline's row is missing".into()) }
    }

    /// Writes the row as held if it is free; returns its new token, and `None` if it is held.
    pub(crate) async fn try_acquire(&mut self, name: &str, state: &str) -> Result<Option<i64>, BoxError> {
        match self {
            Self::MySql { conn, poll, .. } => {
                conn.exec_drop(&*poll, (name, state)).await?;
                let token = conn.last_insert_id().and_then(|token| i64::try_from(token).ok());
                Ok(token.filter(|_| conn.affected_rows() > 0))
            }
            Self::Postgres { client, poll, .. } => {
                let rows = client.query(&*poll, &[&name, &state]).await?;
                Ok(rows.first().map(|row| row.get(0)))
            }
        }
    }
}
