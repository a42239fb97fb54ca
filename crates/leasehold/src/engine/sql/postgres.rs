//! A connection to PostgreSQL, through the client library tokio-postgres.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{
    AsyncMessage, CancelToken, Client, Config as Options, Error as Native, Row, RowStream, Statement,
};

use super::config::{Config, Technique};
use super::connection::{ROW_LOCK_TIMEOUT, Reply, Value};
use super::error::{ErrorClass, Failure, is_wrong_protocol, root_cause};
use super::tls::Tls;
use crate::clock::Clock;

/// A connection with the session settings that leasehold's statements need.
pub struct PostgresConnection {
    client: Client,
    /// The server's process id for this session.
    id: i64,
    /// The prepared statements, by their text. `None`: statements are not prepared, because a
    /// pooler may give the session to another program.
    prepared: Option<HashMap<String, Statement>>,
    /// The task that reads from and writes to the socket; it ends with the connection.
    driver: JoinHandle<()>,
    /// The payloads of notifications; `None` once they were taken.
    notifications: Option<UnboundedReceiver<String>>,
    clock: Clock,
}

/// Settings that are part of the login. Statements end before the client stops waiting for them
/// ([`ROW_LOCK_TIMEOUT`]), and read what was committed before they began. Since no session is
/// changed *after* the login, no other program inherits the settings from a pooler, which refuses
/// or ignores them.
///
/// `default_transaction_read_only` is left alone: an administrator may have set it on a former
/// primary.
const STARTUP_OPTIONS: &str = "-c lock_timeout=1s -c default_transaction_isolation=read\\ committed";

/// The same settings as statements, for a pooler in session mode that refuses [`STARTUP_OPTIONS`].
/// Only for a session that certainly belongs to this client.
const SETUP: &str = "SET SESSION lock_timeout = '1s'; SET SESSION default_transaction_isolation = 'read committed'";

/// How long a connection is idle before the kernel probes it (TCP keepalive). A connection of the
/// lease table is closed if it gets no answer for twice that.
const KEEPALIVE: Duration = Duration::from_secs(10);

impl PostgresConnection {
    /// Connects to the first server in the URL that accepts writes, and logs in.
    pub(super) async fn open(config: &Config) -> Result<Self, Failure> {
        if config.has_transaction_pooler {
            return Self::log_in(config, false).await;
        }
        match Self::log_in(config, true).await {
            // Some poolers refuse a login with options: log in without them.
            Err(failure)
                if matches!(failure.class(config.dialect), Some(ErrorClass::TransactionPooler | ErrorClass::Other)) =>
            {
                let mut connection = Self::log_in(config, false).await?;
                if config.technique != Technique::Row {
                    connection.execute_batch(SETUP).await?;
                }
                Ok(connection)
            }
            opened => opened,
        }
    }

    /// Connects and logs in; sends [`STARTUP_OPTIONS`] if `with_startup_options` is set.
    async fn log_in(config: &Config, with_startup_options: bool) -> Result<Self, Failure> {
        let mut options = options(config);
        if with_startup_options {
            options.options(STARTUP_OPTIONS);
        }
        let tls = Tls::new(config.tls.as_ref()).map_err(Failure::Unreachable)?;
        let timeout = config.connect_timeout * u32::try_from(config.servers.len()).unwrap_or(1);
        let connected = config.clock.timeout(timeout, options.connect(tls)).await;
        let late = || Failure::Unreachable(format!("no answer within {timeout:?}"));
        let (client, mut transport) = connected.map_err(|_| late())?.map_err(connect_failure)?;
        let (sender, notifications) = unbounded_channel();
        let driver = tokio::spawn(async move {
            let mut messages = futures_util::stream::poll_fn(move |cx| transport.poll_message(cx));
            drive(&mut messages, &sender).await;
        });
        // The lease table prepares no statements until it knows that there is no transaction
        // pooler: see `mark_own_session`.
        let prepared = (!config.has_transaction_pooler && config.technique != Technique::Row).then(HashMap::new);
        let mut connection =
            Self { client, id: 0, prepared, driver, notifications: Some(notifications), clock: config.clock.clone() };
        let within = config.connect_timeout;
        // A pooler accepts a login even if it has no connection to give.
        let silence = format!(
            "the login succeeded, but the server did not respond within {within:?}: a pooler may have all its connections in use"
        );
        match config.clock.timeout(within, connection.fetch_id()).await {
            Ok(Ok(())) => Ok(connection),
            Ok(Err(failure)) => Err(failure),
            Err(_) => {
                connection.abort();
                Err(Failure::Unreachable(silence))
            }
        }
    }

    /// Asks for the server's process id of this session.
    async fn fetch_id(&mut self) -> Result<(), Failure> {
        let reply = self.run("SELECT pg_backend_pid()::bigint", &[]).await?;
        self.id = reply.value().and_then(Value::int).unwrap_or(0);
        Ok(())
    }

    /// Notes that no pooler gives the session to other programs: statements are prepared from now
    /// on.
    pub(super) fn mark_own_session(&mut self) {
        self.prepared.get_or_insert_default();
    }

    /// Runs one statement, and returns its rows.
    pub(super) async fn run(&mut self, sql: &str, values: &[Value]) -> Result<Reply, Failure> {
        let parameters: Vec<(&(dyn ToSql + Sync), Type)> = values
            .iter()
            .map(|value| match value {
                Value::Null => (&None::<&str> as &(dyn ToSql + Sync), Type::TEXT),
                Value::Int(int) => (int as &(dyn ToSql + Sync), Type::INT8),
                Value::Text(text) => (text as &(dyn ToSql + Sync), Type::TEXT),
            })
            .collect();
        let Some(prepared) = &mut self.prepared else {
            return collect_reply(self.client.query_typed_raw(sql, parameters).await.map_err(statement_failure)?).await;
        };
        let statement = match prepared.get(sql) {
            Some(statement) => statement.clone(),
            None => {
                let types: Vec<Type> = parameters.iter().map(|(_, of)| of.clone()).collect();
                let statement = self.client.prepare_typed(sql, &types).await.map_err(statement_failure)?;
                prepared.insert(sql.to_owned(), statement.clone());
                statement
            }
        };
        let parameters = parameters.into_iter().map(|(cell, _)| cell);
        collect_reply(self.client.query_raw(&statement, parameters).await.map_err(statement_failure)?).await
    }

    /// Runs statements that have no parameters and return no rows.
    pub(super) async fn execute_batch(&mut self, sql: &str) -> Result<(), Failure> {
        self.client.batch_execute(sql).await.map_err(statement_failure)
    }

    /// The payloads of notifications on the channels to which this connection listens. `None` if
    /// they were taken before.
    pub(super) fn take_notifications(&mut self) -> Option<UnboundedReceiver<String>> {
        self.notifications.take()
    }

    /// The server's process id for this session.
    pub(super) fn id(&self) -> i64 {
        self.id
    }

    /// Whether the connection has ended, which the client library notices at once.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Returns when the connection has ended.
    pub(super) async fn wait_closed(&mut self) {
        if !self.driver.is_finished() {
            // The result does not matter: the task may also have been aborted.
            let _ = (&mut self.driver).await;
        }
    }

    /// A handle that can cancel this connection's current statement, by way of another connection.
    pub(super) fn cancel_token(&self) -> CancelToken {
        self.client.cancel_token()
    }

    /// Closes the connection at once, even during a statement.
    pub(super) fn abort(self) {
        self.driver.abort();
    }

    /// Ends the session, and waits up to [`ROW_LOCK_TIMEOUT`] until the connection has ended.
    pub(super) async fn close(mut self) {
        // Dropping the client makes the driver send the end of the session, and then finish.
        let (client, driver) = (self.client, &mut self.driver);
        drop(client);
        let _ = self.clock.timeout(ROW_LOCK_TIMEOUT, driver).await;
    }
}

/// The client library's options for this URL.
fn options(config: &Config) -> Options {
    let mut options = Options::new();
    for (host, port) in &config.servers {
        options.host(host).port(*port);
    }
    if config.servers.len() > 1 {
        options.target_session_attrs(TargetSessionAttrs::ReadWrite);
    }
    options
        .user(&config.login.user)
        .dbname(&config.database)
        .application_name("leasehold")
        .connect_timeout(config.connect_timeout)
        .keepalives_idle(KEEPALIVE)
        .ssl_mode(if config.tls.is_some() { SslMode::Require } else { SslMode::Disable });
    if config.technique == Technique::Row {
        // Only for the lease table, whose sessions hold no locks. With the other techniques the
        // session is the lock, and should survive a network interruption that is shorter than the
        // TTL.
        options.keepalives_interval(KEEPALIVE / 2).keepalives_retries(2).tcp_user_timeout(KEEPALIVE * 2);
    }
    if let Some(password) = &config.login.password {
        options.password(password);
    }
    options
}

/// Runs the connection until it ends, and forwards the payloads of notifications.
async fn drive<S>(messages: &mut S, notifications: &UnboundedSender<String>)
where
    S: futures_util::Stream<Item = Result<AsyncMessage, Native>> + Unpin,
{
    while let Some(message) = messages.next().await {
        match message {
            Ok(AsyncMessage::Notification(note)) => {
                // Fails if the receiver was dropped, which is fine.
                let _ = notifications.send(note.payload().to_owned());
            }
            Ok(AsyncMessage::Notice(notice)) => tracing::debug!(%notice, "notice from PostgreSQL"),
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, "a connection to PostgreSQL ended");
                return;
            }
        }
    }
}

/// Reads all rows of a result.
async fn collect_reply(answer: RowStream) -> Result<Reply, Failure> {
    let mut answer = std::pin::pin!(answer);
    let mut rows = Vec::new();
    while let Some(found) = answer.next().await {
        rows.push(convert_row(&found.map_err(statement_failure)?)?);
    }
    Ok(Reply { rows, rows_changed: answer.rows_affected().unwrap_or(0), insert_id: 0 })
}

/// The values of a row; an error for a type that leasehold's statements never return.
fn convert_row(row: &Row) -> Result<Vec<Value>, Failure> {
    let value = |(index, column): (usize, &tokio_postgres::Column)| {
        let unexpected = |error: Native| Failure::UnexpectedReply(error.to_string());
        Ok(match *column.type_() {
            Type::INT8 => row.try_get::<_, Option<i64>>(index).map_err(unexpected)?.map_or(Value::Null, Value::Int),
            Type::INT4 => row
                .try_get::<_, Option<i32>>(index)
                .map_err(unexpected)?
                .map_or(Value::Null, |int| Value::Int(int.into())),
            Type::BOOL => row
                .try_get::<_, Option<bool>>(index)
                .map_err(unexpected)?
                .map_or(Value::Null, |flag| Value::Int(flag.into())),
            Type::VOID => Value::Null,
            _ => row.try_get::<_, Option<String>>(index).map_err(unexpected)?.map_or(Value::Null, Value::Text),
        })
    };
    row.columns().iter().enumerate().map(value).collect()
}

/// Converts an error during a statement.
fn statement_failure(error: Native) -> Failure {
    match error.as_db_error() {
        Some(db_error) => Failure::refused(db_error.code().code(), db_error.message()),
        None => Failure::ConnectionLost(root_cause(&error)),
    }
}

/// Converts an error during connecting and logging in.
fn connect_failure(error: Native) -> Failure {
    match error.as_db_error() {
        Some(db_error) => Failure::refused(db_error.code().code(), db_error.message()),
        None if is_wrong_protocol(&error.to_string()) || is_wrong_protocol(&root_cause(&error)) => {
            Failure::WrongProtocol(root_cause(&error))
        }
        // The server asks for a password, and the client has none: no SQLSTATE was sent.
        None if root_cause(&error).contains("password missing") => {
            Failure::refused("28P01", "it asks for a password, and none is given")
        }
        None => Failure::Unreachable(root_cause(&error)),
    }
}
