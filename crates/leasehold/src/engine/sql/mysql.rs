//! A connection to MySQL or MariaDB, through the client library mysql_async.

use mysql_async::prelude::{Protocol, Queryable};
use mysql_async::{
    ClientIdentity, Conn, Error as Native, Opts, OptsBuilder, Params, QueryResult, Row, SslOpts, Statement,
    Value as Cell,
};

use super::config::Config;
use super::connection::{Reply, Value};
use super::error::{Failure, is_wrong_protocol, root_cause};

/// A connection with the session settings that leasehold's statements need.
pub struct MySqlConnection {
    conn: Conn,
    /// Whether a statement found the connection broken.
    is_closed: bool,
    /// The prepared statements, by their text, so that the client library need not parse the text
    /// each time. `None`: there are more than [`MAX_PREPARED`], and the client library keeps them.
    prepared: Option<Vec<(String, Statement)>>,
}

/// How many prepared statements are kept here. The client library keeps more, so it does not drop
/// and close one of these.
const MAX_PREPARED: usize = 12;

/// The statements that set up every session:
/// - a time zone without summer time, so that `NOW` is unambiguous;
/// - lock timeouts that end a statement before the client stops waiting for it
///   ([`ROW_LOCK_TIMEOUT`](super::connection::ROW_LOCK_TIMEOUT); MySQL has only whole seconds);
/// - no gap locks;
/// - no other time limit for statements, because waiting on a wake-up lock is a statement of
///   several seconds. (MariaDB and MySQL name that setting differently, and each skips the
///   other's.)
const SETUP: &str = "SET NAMES utf8mb4; SET SESSION time_zone = '+00:00', autocommit = 1, sql_mode = 'STRICT_ALL_TABLES', \
    innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, wait_timeout = 28800 \
    /*M!100101 , max_statement_time = 0 */ /*!50708 , max_execution_time = 0 */; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";

impl MySqlConnection {
    /// Connects to the first server in the URL that can be reached and accepts writes.
    pub(super) async fn open(config: &Config) -> Result<Self, Failure> {
        let mut last = Failure::Unreachable("the URL names no server".into());
        for (host, port) in &config.servers {
            match config.clock.timeout(config.connect_timeout, Self::connect(config, host, *port)).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(failure)) => last = failure,
                Err(_) => last = Failure::Unreachable(format!("no answer within {:?}", config.connect_timeout)),
            }
        }
        Err(last)
    }

    /// Connects to one server and sets up the session. An error if the server is read-only and
    /// writes are needed.
    async fn connect(config: &Config, host: &str, port: u16) -> Result<Self, Failure> {
        if config.tls.is_some() {
            // The client library uses the process-wide provider. This fails if there is one
            // already.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let conn = Conn::new(options(config, host, port)).await.map_err(connect_failure)?;
        let mut connection = Self { conn, is_closed: false, prepared: Some(Vec::new()) };
        connection.execute_batch(SETUP).await?;
        if !config.allows_read_only && connection.is_read_only().await? {
            return Err(Failure::refused(1290, "the server is read-only"));
        }
        Ok(connection)
    }

    /// Whether an administrator has made the server read-only. That counts even if this user has a
    /// right to write all the same.
    async fn is_read_only(&mut self) -> Result<bool, Failure> {
        let reply = self.run("SELECT @@global.read_only", &[]).await?;
        let value = reply.value();
        // Old versions return a number, newer ones a text.
        Ok(value.and_then(Value::int) != Some(0) && value.and_then(Value::text) != Some("OFF"))
    }

    /// Runs one statement, and returns its rows.
    pub(super) async fn run(&mut self, sql: &str, values: &[Value]) -> Result<Reply, Failure> {
        let cell = |value: &Value| match value {
            Value::Null => Cell::NULL,
            Value::Int(int) => Cell::Int(*int),
            Value::Text(text) => Cell::Bytes(text.as_bytes().to_vec()),
        };
        let params =
            if values.is_empty() { Params::Empty } else { Params::Positional(values.iter().map(cell).collect()) };
        let result = self.query(sql, params).await;
        if let Err(failure) = &result {
            self.is_closed |= matches!(failure, Failure::ConnectionLost(_));
        }
        result
    }

    /// Runs one statement. Without parameters it is sent as text and not prepared, so that the
    /// server's process list shows its whole text.
    async fn query(&mut self, sql: &str, params: Params) -> Result<Reply, Failure> {
        if matches!(params, Params::Empty) {
            return collect_reply(self.conn.query_iter(sql).await.map_err(statement_failure)?).await;
        }
        match self.prepare(sql).await? {
            Some(statement) => {
                collect_reply(self.conn.exec_iter(statement, params).await.map_err(statement_failure)?).await
            }
            None => collect_reply(self.conn.exec_iter(sql, params).await.map_err(statement_failure)?).await,
        }
    }

    /// The prepared statement with this text; prepares it at the first use. `None` if the client
    /// library keeps the statements.
    async fn prepare(&mut self, sql: &str) -> Result<Option<Statement>, Failure> {
        let Some(prepared) = &mut self.prepared else { return Ok(None) };
        if let Some((_, statement)) = prepared.iter().find(|(text, _)| text == sql) {
            return Ok(Some(statement.clone()));
        }
        if prepared.len() == MAX_PREPARED {
            // From now on the client library keeps the statements.
            self.prepared = None;
            return Ok(None);
        }
        let statement = self.conn.prep(sql).await.map_err(statement_failure)?;
        prepared.push((sql.to_owned(), statement.clone()));
        Ok(Some(statement))
    }

    /// Runs statements that have no parameters and return no rows.
    pub(super) async fn execute_batch(&mut self, sql: &str) -> Result<(), Failure> {
        let result = self.conn.query_drop(sql).await.map_err(statement_failure);
        if let Err(failure) = &result {
            self.is_closed |= matches!(failure, Failure::ConnectionLost(_));
        }
        result
    }

    /// The server's `CONNECTION_ID()`.
    pub(super) fn id(&self) -> i64 {
        i64::from(self.conn.id())
    }

    /// Whether a statement found the connection broken. An idle connection that the server has
    /// closed shows that only at its next statement.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Ends the session and closes the connection.
    pub(super) async fn close(self) {
        if let Err(error) = self.conn.disconnect().await {
            tracing::debug!(%error, "a connection could not be closed cleanly");
        }
    }
}

/// Reads all rows of a result.
async fn collect_reply<P: Protocol>(mut result: QueryResult<'_, '_, P>) -> Result<Reply, Failure> {
    let (rows_changed, insert_id) = (result.affected_rows(), result.last_insert_id().unwrap_or(0));
    let rows: Vec<Row> =
        if result.is_empty() { Vec::new() } else { result.collect().await.map_err(statement_failure)? };
    result.drop_result().await.map_err(statement_failure)?;
    Ok(Reply { rows: rows.into_iter().map(convert_row).collect(), rows_changed, insert_id })
}

/// The client library's options for a connection to this server.
fn options(config: &Config, host: &str, port: u16) -> Opts {
    let tls = config.tls.as_ref().map(|tls| {
        let identity =
            tls.identity.as_ref().map(|(cert, key)| ClientIdentity::new(cert.clone().into(), key.clone().into()));
        SslOpts::default()
            .with_root_certs(vec![tls.ca.clone().into()])
            .with_disable_built_in_roots(true)
            .with_client_identity(identity)
    });
    OptsBuilder::default()
        .ip_or_hostname(host)
        .tcp_port(port)
        .user(Some(&config.login.user))
        .pass(config.login.password.as_deref())
        .db_name(Some(&config.database))
        .prefer_socket(false)
        .tcp_nodelay(true)
        .tcp_keepalive(Some(std::time::Duration::from_secs(10)))
        .client_found_rows(false)
        .connect_attribute("program_name", "leasehold")
        .ssl_opts(tls)
        .into()
}

/// The values of a row.
fn convert_row(row: Row) -> Vec<Value> {
    let cell = |cell| match cell {
        Cell::NULL => Value::Null,
        Cell::Int(int) => Value::Int(int),
        Cell::UInt(int) => i64::try_from(int).map_or_else(|_| Value::Text(int.to_string()), Value::Int),
        Cell::Bytes(bytes) => Value::Text(String::from_utf8_lossy(&bytes).into_owned()),
        other => Value::Text(other.as_sql(true)),
    };
    row.unwrap().into_iter().map(cell).collect()
}

/// Converts an error during a statement.
fn statement_failure(error: Native) -> Failure {
    match error {
        Native::Server(error) => Failure::refused(error.code, error.message),
        other => Failure::ConnectionLost(root_cause(&other)),
    }
}

/// Converts an error during connecting and logging in.
fn connect_failure(error: Native) -> Failure {
    match error {
        Native::Server(error) => Failure::refused(error.code, error.message),
        other if is_wrong_protocol(&other.to_string()) || is_wrong_protocol(&root_cause(&other)) => {
            Failure::WrongProtocol(root_cause(&other))
        }
        other => Failure::Unreachable(root_cause(&other)),
    }
}
