//! Queries as superuser.

use std::{path::Path, time::Duration};

use mysql_async::{Conn, OptsBuilder, Row, Value, prelude::Queryable};
use tokio::time::timeout;

use super::{DATABASE, USER, server_spec::SOCKET};
use crate::{
    Error, Result, Server,
    connection::{self, Connection},
};

/// The timeout of a reply. Only a failing test waits this long.
const REPLY_TIMEOUT: Duration = crate::TEST_TIMEOUT;
const MEGABYTE: usize = 1024 * 1024;

/// Runs one statement in the database [`DATABASE`] as root, on a new connection, and returns the
/// rows.
///
/// It uses the socket in the server's folder, so a [proxy](crate::Proxy) or TLS does not affect it.
///
/// # Errors
///
/// [`Error::Refused`] with the server's message; [`Error::TimedOut`] without a reply.
pub async fn query(server: &Server, statement: &str) -> Result<Vec<Vec<Option<String>>>> {
    query_by_socket(server.dir(), statement).await
}

/// The connections of the user [`USER`], oldest first.
///
/// # Errors
///
/// As [`query()`].
pub async fn connections(server: &Server) -> Result<Vec<Connection>> {
    let statement =
        format!("SELECT id, command, info FROM information_schema.processlist WHERE user = '{USER}' ORDER BY id");
    connection::from_rows(query(server, &statement).await?)
        .ok_or_else(|| Error::Protocol { peer: "mariadbd".to_owned(), problem: "unexpected rows".to_owned() })
}

/// Ends a connection from the server's side.
///
/// # Errors
///
/// As [`query()`]; also if there is no such connection.
pub async fn kill_connection(server: &Server, id: u64) -> Result<()> {
    query(server, &format!("KILL CONNECTION {id}")).await.map(drop)
}

/// `Ok` if the server whose data is in `dir` responds.
pub(super) async fn check_answers(dir: &Path) -> std::result::Result<(), String> {
    query_by_socket(dir, "SELECT 1").await.map(drop).map_err(|error| error.to_string())
}

pub(super) async fn query_by_socket(dir: &Path, statement: &str) -> Result<Vec<Vec<Option<String>>>> {
    match timeout(REPLY_TIMEOUT, query_without_timeout(dir, statement)).await {
        Ok(answer) => {
            answer.map_err(|error| Error::Refused { request: statement.to_owned(), answer: error.to_string() })
        }
        Err(_) => Err(Error::TimedOut {
            awaited: format!("reply to {statement:?}"),
            bound: REPLY_TIMEOUT,
            observed: "silence".to_owned(),
        }),
    }
}

async fn query_without_timeout(dir: &Path, statement: &str) -> mysql_async::Result<Vec<Vec<Option<String>>>> {
    let options = OptsBuilder::default()
        .socket(Some(dir.join(SOCKET).to_string_lossy()))
        .user(Some("root"))
        .db_name(Some(DATABASE))
        // With these values the client sends no query for them, which a server may refuse.
        .max_allowed_packet(Some(MEGABYTE))
        .wait_timeout(Some(60));
    let mut connection = Conn::new(options).await?;
    let rows: Vec<Row> = connection.query(statement).await?;
    connection.disconnect().await?;
    Ok(rows
        .into_iter()
        .map(|row| row.unwrap_raw().into_iter().map(|value| value.and_then(value_text)).collect())
        .collect())
}

/// The text protocol has only text and NULL.
fn value_text(value: Value) -> Option<String> {
    match value {
        Value::NULL => None,
        Value::Bytes(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        other => Some(other.as_sql(true)),
    }
}
