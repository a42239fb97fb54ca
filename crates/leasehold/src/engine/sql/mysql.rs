//! A connection to MySQL or MariaDB.

use mysql_async::prelude::{Protocol, Queryable};
use mysql_async::{
    ClientIdentity, Conn, Error as Native, Opts, OptsBuilder, Params, QueryResult, Row, SslOpts, Value as Cell,
};

use super::config::Config;
use super::error::Failure;
use super::link::{Reply, Value};

/// A connection, set up as our statements need it.
pub(super) struct MyLink {
    conn: Conn,
    closed: bool,
}

/// What every session is told first: a time zone without summer time, so that `NOW` is unambiguous; statements that end by
/// themselves; no gaps locked.
const SETUP: &str = "SET SESSION time_zone = '+00:00', autocommit = 1, sql_mode = 'STRICT_ALL_TABLES', \
    innodb_lock_wait_timeout = 5, wait_timeout = 28800; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";

impl MyLink {
    pub(super) async fn open(config: &Config) -> Result<Self, Failure> {
        let mut last = Failure::Unreachable("the URL names no server".into());
        for (host, port) in &config.servers {
            match tokio::time::timeout(config.connect_timeout, Self::to(config, host, *port)).await {
                Ok(Ok(link)) => return Ok(link),
                Ok(Err(failure)) => last = failure,
                Err(_) => last = Failure::Unreachable(format!("no answer within {:?}", config.connect_timeout)),
            }
        }
        Err(last)
    }

    async fn to(config: &Config, host: &str, port: u16) -> Result<Self, Failure> {
        if config.tls.is_some() {
            // The client library asks for the process's own; whoever was first stays.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let conn = Conn::new(options(config, host, port)).await.map_err(unreachable)?;
        let mut link = Self { conn, closed: false };
        link.script(SETUP).await?;
        if config.servers.len() > 1 {
            let reply = link.run("SELECT @@global.read_only", &[]).await?;
            if reply.value().and_then(Value::int) == Some(1) {
                return Err(Failure::refused(1290, "the server is read-only"));
            }
        }
        Ok(link)
    }

    pub(super) async fn run(&mut self, sql: &str, values: &[Value]) -> Result<Reply, Failure> {
        let cell = |value: &Value| match value {
            Value::Null => Cell::NULL,
            Value::Int(int) => Cell::Int(*int),
            Value::Text(text) => Cell::Bytes(text.as_bytes().to_vec()),
        };
        let params =
            if values.is_empty() { Params::Empty } else { Params::Positional(values.iter().map(cell).collect()) };
        let result = self.ask(sql, params).await;
        if let Err(failure) = &result {
            self.closed |= matches!(failure, Failure::Broken(_));
        }
        result
    }

    /// A statement without values goes as text: it is not prepared, and the server shows it as it is.
    async fn ask(&mut self, sql: &str, params: Params) -> Result<Reply, Failure> {
        if matches!(params, Params::Empty) {
            return gather(self.conn.query_iter(sql).await.map_err(failed)?).await;
        }
        gather(self.conn.exec_iter(sql, params).await.map_err(failed)?).await
    }

    pub(super) async fn script(&mut self, sql: &str) -> Result<(), Failure> {
        let result = self.conn.query_drop(sql).await.map_err(failed);
        if let Err(failure) = &result {
            self.closed |= matches!(failure, Failure::Broken(_));
        }
        result
    }

    pub(super) fn id(&self) -> i64 {
        i64::from(self.conn.id())
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) async fn close(self) {
        if let Err(error) = self.conn.disconnect().await {
            tracing::debug!(%error, "a connection did not end well");
        }
    }
}

async fn gather<P: Protocol>(mut result: QueryResult<'_, '_, P>) -> Result<Reply, Failure> {
    let (changed, insert_id) = (result.affected_rows(), result.last_insert_id().unwrap_or(0));
    let rows: Vec<Row> = if result.is_empty() { Vec::new() } else { result.collect().await.map_err(failed)? };
    result.drop_result().await.map_err(failed)?;
    Ok(Reply { rows: rows.into_iter().map(row).collect(), changed, insert_id })
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

fn failed(error: Native) -> Failure {
    match error {
        Native::Server(error) => Failure::refused(error.code, error.message),
        other => Failure::Broken(plain(&other)),
    }
}

fn unreachable(error: Native) -> Failure {
    match error {
        Native::Server(error) => Failure::refused(error.code, error.message),
        other => Failure::Unreachable(plain(&other)),
    }
}

/// The cause itself, without the library's own words around it.
fn plain(error: &Native) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
