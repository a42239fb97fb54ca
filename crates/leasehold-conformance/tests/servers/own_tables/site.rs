//! Both databases in the same words. All tests share a server of each; each has tables of its own.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use leasehold::database::{Connection, IntoValue, PostgresValue, Transaction};
use leasehold_conformance::world::SOON;
use leasehold_testbed::{Server, mariadb, postgres};
use mysql_async::prelude::Queryable;
use mysql_async::{IsolationLevel as MysqlLevel, TxOpts};
use tokio::sync::OnceCell;
use tokio_postgres::{IsolationLevel as PostgresLevel, NoTls};

/// How far transactions are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    ReadCommitted,
    RepeatableRead,
    Serializable,
}

pub(crate) const LEVELS: [Level; 3] = [Level::ReadCommitted, Level::RepeatableRead, Level::Serializable];

/// A name that no other test has.
pub(crate) fn fresh(what: &str) -> String {
    static MADE: AtomicU32 = AtomicU32::new(0);
    format!("{what}_{}", MADE.fetch_add(1, Ordering::Relaxed))
}

pub(crate) trait Site: Clone + Send + Sync + 'static {
    type Row: Send + Sync;
    type Value: Send + Sync;
    /// A number, as a value for this database: `i64`.
    type Number: IntoValue<Self::Value> + From<i64> + Send;
    type Conn: Connection<Row = Self::Row, Value = Self::Value> + Send + 'static;
    type Tx<'a>: Transaction<Row = Self::Row, Value = Self::Value> + Send;

    fn addr(&self) -> SocketAddr;
    /// The same server, reached by another way.
    fn by(&self, addr: SocketAddr) -> Self;
    fn connect(&self) -> impl Future<Output = Self::Conn> + Send;
    fn begin(conn: &mut Self::Conn, level: Level) -> impl Future<Output = Self::Tx<'_>> + Send;
    fn run(conn: &mut Self::Conn, sql: &str) -> impl Future<Output = ()> + Send;
    fn write(tx: &mut Self::Tx<'_>, sql: &str) -> impl Future<Output = Result<(), String>> + Send;
    fn commit(tx: Self::Tx<'_>) -> impl Future<Output = Result<(), String>> + Send;
    fn rollback(tx: Self::Tx<'_>) -> impl Future<Output = ()> + Send;
    fn numbers(conn: &mut Self::Conn, sql: &str) -> impl Future<Output = Vec<i64>> + Send;
    /// A number out of a row.
    fn field(row: &Self::Row, column: &str) -> i64;
    /// Whether somebody waits in a statement that begins so.
    fn waiting(conn: &mut Self::Conn, start: &str) -> impl Future<Output = bool> + Send;

    /// Whether a statement that starts like this has not ended.
    fn running(conn: &mut Self::Conn, start: &str) -> impl Future<Output = bool> + Send;

    fn number(conn: &mut Self::Conn, sql: &str) -> impl Future<Output = i64> + Send {
        async { Self::numbers(conn, sql).await.first().copied().expect("a row") }
    }
}

/// Waits until a statement that begins so waits.
pub(crate) async fn until_waiting<S: Site>(conn: &mut S::Conn, start: &str) {
    let waits = async {
        while !S::waiting(conn, start).await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, waits).await.expect("a statement that waits");
}

#[derive(Clone)]
pub(crate) struct Postgres(SocketAddr);

impl Postgres {
    pub(crate) async fn start() -> Self {
        static SERVER: OnceCell<Server> = OnceCell::const_new();
        Self(SERVER.get_or_init(|| async { postgres::start().await.expect("a PostgreSQL") }).await.addr())
    }
}

impl Site for Postgres {
    type Row = tokio_postgres::Row;
    type Value = PostgresValue;
    type Number = i64;
    type Conn = tokio_postgres::Client;
    type Tx<'a> = tokio_postgres::Transaction<'a>;

    fn addr(&self) -> SocketAddr {
        self.0
    }

    fn by(&self, addr: SocketAddr) -> Self {
        Self(addr)
    }

    async fn connect(&self) -> Self::Conn {
        use postgres::{DATABASE, PASSWORD, USER};
        let url = format!("postgres://{USER}:{PASSWORD}@{}/{DATABASE}", self.0);
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("a connection");
        tokio::spawn(connection);
        client
    }

    async fn begin(conn: &mut Self::Conn, level: Level) -> Self::Tx<'_> {
        let level = match level {
            Level::ReadCommitted => PostgresLevel::ReadCommitted,
            Level::RepeatableRead => PostgresLevel::RepeatableRead,
            Level::Serializable => PostgresLevel::Serializable,
        };
        conn.build_transaction().isolation_level(level).start().await.expect("a transaction")
    }

    async fn run(conn: &mut Self::Conn, sql: &str) {
        conn.batch_execute(sql).await.expect(sql);
    }

    async fn write(tx: &mut Self::Tx<'_>, sql: &str) -> Result<(), String> {
        tx.batch_execute(sql).await.map_err(|error| format!("{error:?}"))
    }

    async fn commit(tx: Self::Tx<'_>) -> Result<(), String> {
        tx.commit().await.map_err(|error| format!("{error:?}"))
    }

    async fn rollback(tx: Self::Tx<'_>) {
        tx.rollback().await.expect("rolled back");
    }

    async fn numbers(conn: &mut Self::Conn, sql: &str) -> Vec<i64> {
        conn.query(sql, &[]).await.expect(sql).iter().map(|row| row.get(0)).collect()
    }

    fn field(row: &tokio_postgres::Row, column: &str) -> i64 {
        row.get(column)
    }

    async fn waiting(conn: &mut Self::Conn, start: &str) -> bool {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND starts_with(query, $1)";
        conn.query_one(sql, &[&start]).await.expect(sql).get::<_, i64>(0) > 0
    }

    async fn running(conn: &mut Self::Conn, start: &str) -> bool {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND starts_with(query, $1)";
        conn.query_one(sql, &[&start]).await.expect(sql).get::<_, i64>(0) > 0
    }
}

#[derive(Clone)]
pub(crate) struct Mariadb(SocketAddr);

/// The MariaDB that these tests and others share.
pub(crate) async fn mariadb_server() -> &'static Server {
    static SERVER: OnceCell<Server> = OnceCell::const_new();
    SERVER.get_or_init(|| async { mariadb::start().await.expect("a MariaDB") }).await
}

impl Mariadb {
    pub(crate) async fn start() -> Self {
        Self(mariadb_server().await.addr())
    }
}

impl Site for Mariadb {
    type Row = mysql_async::Row;
    type Value = mysql_async::Value;
    type Number = i64;
    type Conn = mysql_async::Conn;
    type Tx<'a> = mysql_async::Transaction<'a>;

    fn addr(&self) -> SocketAddr {
        self.0
    }

    fn by(&self, addr: SocketAddr) -> Self {
        Self(addr)
    }

    async fn connect(&self) -> Self::Conn {
        use mariadb::{DATABASE, PASSWORD, USER};
        let url = format!("mysql://{USER}:{PASSWORD}@{}/{DATABASE}?prefer_socket=false", self.0);
        mysql_async::Conn::from_url(url).await.expect("a connection")
    }

    async fn begin(conn: &mut Self::Conn, level: Level) -> Self::Tx<'_> {
        let level = match level {
            Level::ReadCommitted => MysqlLevel::ReadCommitted,
            Level::RepeatableRead => MysqlLevel::RepeatableRead,
            Level::Serializable => MysqlLevel::Serializable,
        };
        let mut options = TxOpts::new();
        options.with_isolation_level(Some(level));
        conn.start_transaction(options).await.expect("a transaction")
    }

    async fn run(conn: &mut Self::Conn, sql: &str) {
        conn.query_drop(sql).await.expect(sql);
    }

    async fn write(tx: &mut Self::Tx<'_>, sql: &str) -> Result<(), String> {
        tx.query_drop(sql).await.map_err(|error| format!("{error:?}"))
    }

    async fn commit(tx: Self::Tx<'_>) -> Result<(), String> {
        tx.commit().await.map_err(|error| format!("{error:?}"))
    }

    async fn rollback(tx: Self::Tx<'_>) {
        tx.rollback().await.expect("rolled back");
    }

    async fn numbers(conn: &mut Self::Conn, sql: &str) -> Vec<i64> {
        conn.query(sql).await.expect(sql)
    }

    fn field(row: &mysql_async::Row, column: &str) -> i64 {
        row.get(column).expect(column)
    }

    async fn waiting(conn: &mut Self::Conn, start: &str) -> bool {
        let start = start.replace('"', "`");
        let sql = "SELECT COUNT(*) FROM information_schema.processlist WHERE LEFT(info, ?) = ?";
        let found: Option<i64> = conn.exec_first(sql, (start.len(), start)).await.expect(sql);
        found.is_some_and(|count| count > 0)
    }

    async fn running(conn: &mut Self::Conn, start: &str) -> bool {
        // It tells of all that have not ended.
        Self::waiting(conn, start).await
    }
}
