//! Queries as superuser.

use std::{path::Path, time::Duration};

use tokio::time::timeout;
use tokio_postgres::{Config, NoTls, SimpleQueryMessage};

use super::{ADMIN, DATABASE, USER};
use crate::{
    Error, Result, Server,
    connection::{self, Connection},
};

/// The timeout of a reply. Only a failing test waits this long.
const REPLY_TIMEOUT: Duration = crate::TEST_TIMEOUT;

/// Runs statements in the database [`DATABASE`] as [`ADMIN`], on a new connection, and returns the
/// rows.
///
/// It uses the socket in the server's folder, so a [proxy](crate::Proxy) or TLS does not affect it.
///
/// # Errors
///
/// [`Error::Refused`] with the server's message; [`Error::TimedOut`] without a reply.
pub async fn query(server: &Server, statements: &str) -> Result<Vec<Vec<Option<String>>>> {
    query_with_config(&socket_config(server.dir(), server.port()), statements).await
}

/// The connections of the user [`USER`], oldest first.
///
/// # Errors
///
/// As [`query()`].
pub async fn connections(server: &Server) -> Result<Vec<Connection>> {
    let statement =
        format!("SELECT pid, state, query FROM pg_stat_activity WHERE usename = '{USER}' ORDER BY backend_start, pid");
    connection::from_rows(query(server, &statement).await?)
        .ok_or_else(|| Error::Protocol { peer: "postgres".to_owned(), problem: "unexpected rows".to_owned() })
}

/// Ends a connection from the server's side.
///
/// # Errors
///
/// As [`query()`]; [`Error::Refused`] if there is no such connection.
pub async fn kill_connection(server: &Server, id: u64) -> Result<()> {
    let statement = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = {id}");
    let killed = query(server, &statement).await?;
    match killed.first() {
        Some(row) if row[..] == [Some("t".to_owned())] => Ok(()),
        _ => Err(Error::Refused { request: statement, answer: "there is no such connection".to_owned() }),
    }
}

/// `Ok` if the server whose data is in `dir` responds.
pub(super) async fn check_answers(dir: &Path, port: u16) -> std::result::Result<(), String> {
    query_with_config(&socket_config(dir, port), "SELECT 1").await.map(drop).map_err(|error| error.to_string())
}

fn socket_config(dir: &Path, port: u16) -> Config {
    let mut config = Config::new();
    config.host_path(dir).port(port).user(ADMIN).dbname(DATABASE);
    config
}

pub(super) async fn query_with_config(config: &Config, statements: &str) -> Result<Vec<Vec<Option<String>>>> {
    match timeout(REPLY_TIMEOUT, query_without_timeout(config, statements)).await {
        Ok(answer) => {
            answer.map_err(|error| Error::Refused { request: statements.to_owned(), answer: error_message(&error) })
        }
        Err(_) => Err(Error::TimedOut {
            awaited: format!("reply to {statements:?}"),
            bound: REPLY_TIMEOUT,
            observed: "silence".to_owned(),
        }),
    }
}

async fn query_without_timeout(
    config: &Config,
    statements: &str,
) -> std::result::Result<Vec<Vec<Option<String>>>, tokio_postgres::Error> {
    let (client, connection) = config.connect(NoTls).await?;
    let reply = async {
        let answer = client.simple_query(statements).await;
        // Dropping the client closes the connection.
        drop(client);
        answer
    };
    let (answer, closed) = tokio::join!(reply, connection);
    let messages = answer?;
    closed?;
    let rows = messages.into_iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    Ok(rows.map(|row| (0..row.len()).map(|n| row.get(n).map(str::to_owned)).collect()).collect())
}

/// The server's message, which the error's `Display` omits.
fn error_message(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(answer) => answer.to_string(),
        None => match std::error::Error::source(error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}
