//! One interface to both databases. All tests share one server of each; each test has its own
//! tables.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use leasehold::database::{Connection, IntoValue, PostgresValue, Transaction};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::{Server, mariadb, postgres};
use mysql_async::prelude::Queryable;
use mysql_async::{IsolationLevel as MysqlLevel, TxOpts};
use tokio::sync::OnceCell;
use tokio_postgres::{IsolationLevel as PostgresLevel, NoTls};

/// A transaction isolation level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IsolationLevel {
    ReadCommitted,
    RepeatableRead,
    Serializable,
}

pub(crate) const ISOLATION_LEVELS: [IsolationLevel; 3] =
    [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead, IsolationLevel::Serializable];

/// A name that no other test uses.
pub(crate) fn unique_name(prefix: &str) -> String {
    static NEXT_NAME: AtomicU32 = AtomicU32::new(0);
    format!("{prefix}_{}", NEXT_NAME.fetch_add(1, Ordering::Relaxed))
}

pub(crate) trait DatabaseFixture: Clone + Send + Sync + 'static {
    type Row: Send + Sync;
    type Value: Send + Sync;
    /// A number as a value of this database, converted from `i64`.
    type Number: IntoValue<Self::Value> + From<i64> + Send;
    type Conn: Connection<Row = Self::Row, Value = Self::Value> + Send + 'static;
    type Tx<'a>: Transaction<Row = Self::Row, Value = Self::Value> + Send;

    fn addr(&self) -> SocketAddr;
    /// The same server at another address.
    fn via(&self, addr: SocketAddr) -> Self;
    fn connect(&self) -> impl Future<Output = Self::Conn> + Send;
    fn begin(conn: &mut Self::Conn, level: IsolationLevel) -> impl Future<Output = Self::Tx<'_>> + Send;
    fn execute(conn: &mut Self::Conn, sql: &str) -> impl Future<Output = ()> + Send;
    fn execute_in(tx: &mut Self::Tx<'_>, sql: &str) -> impl Future<Output = Result<(), String>> + Send;
    fn commit(tx: Self::Tx<'_>) -> impl Future<Output = Result<(), String>> + Send;
    fn rollback(tx: Self::Tx<'_>) -> impl Future<Output = ()> + Send;
    fn query_numbers(conn: &mut Self::Conn, sql: &str) -> impl Future<Output = Vec<i64>> + Send;
    /// A number from a row.
    fn column_value(row: &Self::Row, column: &str) -> i64;
    /// Whether a statement with this prefix waits for a lock.
    fn is_waiting(conn: &mut Self::Conn, prefix: &str) -> impl Future<Output = bool> + Send;

    /// Whether a statement with this prefix is still running.
    fn is_running(conn: &mut Self::Conn, prefix: &str) -> impl Future<Output = bool> + Send;

    fn query_number(conn: &mut Self::Conn, sql: &str) -> impl Future<Output = i64> + Send {
        async { Self::query_numbers(conn, sql).await.first().copied().expect("a row") }
    }
}

/// Waits until a statement with this prefix waits for a lock.
pub(crate) async fn wait_until_waiting<S: DatabaseFixture>(conn: &mut S::Conn, prefix: &str) {
    let waits = async {
        while !S::is_waiting(conn, prefix).await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, waits).await.expect("a statement that waits");
}

#[derive(Clone)]
pub(crate) struct Postgres(SocketAddr);

impl Postgres {
    pub(crate) async fn start() -> Self {
        static SERVER: OnceCell<Server> = OnceCell::const_new();
        Self(SERVER.get_or_init(|| async { postgres::start().await.expect("a PostgreSQL") }).await.addr())
    }
}

impl DatabaseFixture for Postgres {
    type Row = tokio_postgres::Row;
    type Value = PostgresValue;
    type Number = i64;
    type Conn = tokio_postgres::Client;
    type Tx<'a> = tokio_postgres::Transaction<'a>;

    fn addr(&self) -> SocketAddr {
        self.0
    }

    fn via(&self, addr: SocketAddr) -> Self {
        Self(addr)
    }

    async fn connect(&self) -> Self::Conn {
        use postgres::{DATABASE, PASSWORD, USER};
        let url = format!("postgres://{USER}:{PASSWORD}@{}/{DATABASE}", self.0);
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("a connection");
        tokio::spawn(connection);
        client
    }

    async fn begin(conn: &mut Self::Conn, level: IsolationLevel) -> Self::Tx<'_> {
        let level = match level {
            IsolationLevel::ReadCommitted => PostgresLevel::ReadCommitted,
            IsolationLevel::RepeatableRead => PostgresLevel::RepeatableRead,
            IsolationLevel::Serializable => PostgresLevel::Serializable,
        };
        conn.build_transaction().isolation_level(level).start().await.expect("a transaction")
    }

    async fn execute(conn: &mut Self::Conn, sql: &str) {
        conn.batch_execute(sql).await.expect(sql);
    }

    async fn execute_in(tx: &mut Self::Tx<'_>, sql: &str) -> Result<(), String> {
        tx.batch_execute(sql).await.map_err(|error| format!("{error:?}"))
    }

    async fn commit(tx: Self::Tx<'_>) -> Result<(), String> {
        tx.commit().await.map_err(|error| format!("{error:?}"))
    }

    async fn rollback(tx: Self::Tx<'_>) {
        tx.rollback().await.expect("rolled back");
    }

    async fn query_numbers(conn: &mut Self::Conn, sql: &str) -> Vec<i64> {
        conn.query(sql, &[]).await.expect(sql).iter().map(|row| row.get(0)).collect()
    }

    fn column_value(row: &tokio_postgres::Row, column: &str) -> i64 {
        row.get(column)
    }

    async fn is_waiting(conn: &mut Self::Conn, start: &str) -> bool {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND starts_with(query, $1)";
        conn.query_one(sql, &[&start]).await.expect(sql).get::<_, i64>(0) > 0
    }

    async fn is_running(conn: &mut Self::Conn, start: &str) -> bool {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND starts_with(query, $1)";
        conn.query_one(sql, &[&start]).await.expect(sql).get::<_, i64>(0) > 0
    }
}

#[derive(Clone)]
pub(crate) struct Mariadb(SocketAddr);

/// The MariaDB server that these tests share with others.
pub(crate) async fn mariadb_server() -> &'static Server {
    static SERVER: OnceCell<Server> = OnceCell::const_new();
    SERVER.get_or_init(|| async { mariadb::start().await.expect("a MariaDB") }).await
}

impl Mariadb {
    pub(crate) async fn start() -> Self {
        Self(mariadb_server().await.addr())
    }
}

impl DatabaseFixture for Mariadb {
    type Row = mysql_async::Row;
    type Value = mysql_async::Value;
    type Number = i64;
    type Conn = mysql_async::Conn;
    type Tx<'a> = mysql_async::Transaction<'a>;

    fn addr(&self) -> SocketAddr {
        self.0
    }

    fn via(&self, addr: SocketAddr) -> Self {
        Self(addr)
    }

    async fn connect(&self) -> Self::Conn {
        use mariadb::{DATABASE, PASSWORD, USER};
        let url = format!("mysql://{USER}:{PASSWORD}@{}/{DATABASE}?prefer_socket=false", self.0);
        mysql_async::Conn::from_url(url).await.expect("a connection")
    }

    async fn begin(conn: &mut Self::Conn, level: IsolationLevel) -> Self::Tx<'_> {
        let level = match level {
            IsolationLevel::ReadCommitted => MysqlLevel::ReadCommitted,
            IsolationLevel::RepeatableRead => MysqlLevel::RepeatableRead,
            IsolationLevel::Serializable => MysqlLevel::Serializable,
        };
        let mut options = TxOpts::new();
        options.with_isolation_level(Some(level));
        conn.start_transaction(options).await.expect("a transaction")
    }

    async fn execute(conn: &mut Self::Conn, sql: &str) {
        conn.query_drop(sql).await.expect(sql);
    }

    async fn execute_in(tx: &mut Self::Tx<'_>, sql: &str) -> Result<(), String> {
        tx.query_drop(sql).await.map_err(|error| format!("{error:?}"))
    }

    async fn commit(tx: Self::Tx<'_>) -> Result<(), String> {
        tx.commit().await.map_err(|error| format!("{error:?}"))
    }

    async fn rollback(tx: Self::Tx<'_>) {
        tx.rollback().await.expect("rolled back");
    }

    async fn query_numbers(conn: &mut Self::Conn, sql: &str) -> Vec<i64> {
        conn.query(sql).await.expect(sql)
    }

    fn column_value(row: &mysql_async::Row, column: &str) -> i64 {
        row.get(column).expect(column)
    }

    async fn is_waiting(conn: &mut Self::Conn, start: &str) -> bool {
        let start = start.replace('"', "`");
        let sql = "SELECT COUNT(*) FROM information_schema.processlist WHERE LEFT(info, ?) = ?";
        let found: Option<i64> = conn.exec_first(sql, (start.len(), start)).await.expect(sql);
        found.is_some_and(|count| count > 0)
    }

    async fn is_running(conn: &mut Self::Conn, start: &str) -> bool {
        // The process list contains every statement that has not ended.
        Self::is_waiting(conn, start).await
    }
}
