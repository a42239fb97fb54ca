//! A connection to MySQL or MariaDB.

use mysql_async::prelude::{Protocol, Queryable};
use mysql_async::{
    ClientIdentity, Conn, Error as Native, Opts, OptsBuilder, Params, QueryResult, Row, SslOpts, Statement,
    Value as Cell,
};

use super::config::Config;
use super::connection::{Reply, Value};
use super::error::{Failure, is_wrong_protocol, root_cause};

/// A connection, set up as our statements need it.
pub struct MySqlConnection {
    conn: Conn,
    is_closed: bool,
    /// Our prepared statements: the driver would parse the text each time. `None`: there are too
    /// many.
    prepared: Option<Vec<(String, Statement)>>,
}

/// How many statements of a connection are kept here: fewer than the driver keeps, which closes
/// those that it drops.
const MAX_PREPARED: usize = 12;

/// The settings of every session:
/// - a time zone without summer time, so that `NOW` is unambiguous;
/// - lock timeouts that end a statement before the client stops waiting for it
///   ([`ROW_LOCK_TIMEOUT`](super::connection::ROW_LOCK_TIMEOUT); there are only whole seconds);
/// - no gap locks;
/// - no other time limit for statements, because waiting on a wake-up lock is a statement of
///   several seconds. (MariaDB and MySQL name that setting differently, and each skips the
///   other's.)
const SETUP: &str = "SET NAMES utf8mb4; SET SESSION time_zone = '+00:00', autocommit = 1, sql_mode = 'STRICT_ALL_TABLES', \
    innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, wait_timeout = 28800 \
    /*M!100101 , max_statement_time = 0 */ /*!50708 , max_execution_time = 0 */; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";

impl MySqlConnection {
    pub(super) async fn open(config: &Config) -> Result<Self, Failure> {
        let mut last = Failure::Unreachable("the URL names no server".into());
        for (host, port) in &config.servers {
            match config.clock.timeout(config.connect_timeout, Self::connect(config, host, *port)).await {
                Ok(Ok(link)) => return Ok(link),
                Ok(Err(failure)) => last = failure,
                Err(_) => last = Failure::Unreachable(format!("no answer within {:?}", config.connect_timeout)),
            }
        }
        Err(last)
    }

    async fn connect(config: &Config, host: &str, port: u16) -> Result<Self, Failure> {
        if config.tls.is_some() {
            // The client library uses the process-wide provider; the first one installed stays.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let conn = Conn::new(options(config, host, port)).await.map_err(connect_failure)?;
        let mut link = Self { conn, is_closed: false, prepared: Some(Vec::new()) };
        link.execute_batch(SETUP).await?;
        if !config.allows_read_only && link.is_read_only().await? {
            return Err(Failure::refused(1290, "the server is read-only"));
        }
        Ok(link)
    }

    /// Whether an administrator has forbidden writes. Some users could write all the same.
    async fn is_read_only(&mut self) -> Result<bool, Failure> {
        let reply = self.run("SELECT @@global.read_only", &[]).await?;
        let value = reply.value();
        // A number; in newer versions a text.
        Ok(value.and_then(Value::int) != Some(0) && value.and_then(Value::text) != Some("OFF"))
    }

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

    /// A statement without values is sent as text: it is not prepared, and the server shows it as
    /// it is.
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

    /// The prepared statement, if statements are kept here.
    async fn prepare(&mut self, sql: &str) -> Result<Option<Statement>, Failure> {
        let Some(prepared) = &mut self.prepared else { return Ok(None) };
        if let Some((_, statement)) = prepared.iter().find(|(text, _)| text == sql) {
            return Ok(Some(statement.clone()));
        }
        if prepared.len() == MAX_PREPARED {
            // From now on the driver keeps track of which statements still exist.
            self.prepared = None;
            return Ok(None);
        }
        let statement = self.conn.prep(sql).await.map_err(statement_failure)?;
        prepared.push((sql.to_owned(), statement.clone()));
        Ok(Some(statement))
    }

    pub(super) async fn execute_batch(&mut self, sql: &str) -> Result<(), Failure> {
        let result = self.conn.query_drop(sql).await.map_err(statement_failure);
        if let Err(failure) = &result {
            self.is_closed |= matches!(failure, Failure::ConnectionLost(_));
        }
        result
    }

    pub(super) fn id(&self) -> i64 {
        i64::from(self.conn.id())
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    pub(super) async fn close(self) {
        if let Err(error) = self.conn.disconnect().await {
            tracing::debug!(%error, "a connection could not be closed cleanly");
        }
    }
}

async fn collect_reply<P: Protocol>(mut result: QueryResult<'_, '_, P>) -> Result<Reply, Failure> {
    let (changed, insert_id) = (result.affected_rows(), result.last_insert_id().unwrap_or(0));
    let rows: Vec<Row> =
        if result.is_empty() { Vec::new() } else { result.collect().await.map_err(statement_failure)? };
    result.drop_result().await.map_err(statement_failure)?;
    Ok(Reply { rows: rows.into_iter().map(row).collect(), rows_changed: changed, insert_id })
}

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

fn row(row: Row) -> Vec<Value> {
    let cell = |cell| match cell {
        Cell::NULL => Value::Null,
        Cell::Int(int) => Value::Int(int),
        Cell::UInt(int) => i64::try_from(int).map_or_else(|_| Value::Text(int.to_string()), Value::Int),
        Cell::Bytes(bytes) => Value::Text(String::from_utf8_lossy(&bytes).into_owned()),
        other => Value::Text(other.as_sql(true)),
    };
    row.unwrap().into_iter().map(cell).collect()
}

fn statement_failure(error: Native) -> Failure {
    match error {
        Native::Server(error) => Failure::refused(error.code, error.message),
        other => Failure::ConnectionLost(root_cause(&other)),
    }
}

fn connect_failure(error: Native) -> Failure {
    match error {
        Native::Server(error) => Failure::refused(error.code, error.message),
        other if is_wrong_protocol(&other.to_string()) || is_wrong_protocol(&root_cause(&other)) => {
            Failure::WrongProtocol(root_cause(&other))
        }
        other => Failure::Unreachable(root_cause(&other)),
    }
}
