//! The testbed's own commands to its servers.

use std::{collections::HashMap, net::SocketAddr, time::Duration};

use super::{Reply, RespClient};
use crate::{Error, Result, Server, try_eventually};

/// The time limit for a master to close its connections to its replicas. Only a failing test waits
/// this long.
const DROP_TIMEOUT: Duration = crate::TEST_TIMEOUT;

/// Opens a connection, and logs in if there is a password.
pub(super) async fn connect(addr: SocketAddr, password: Option<&str>) -> Result<RespClient> {
    let mut client = RespClient::connect(addr).await?;
    if let Some(password) = password {
        command(&mut client, &["AUTH", password]).await?;
    }
    Ok(client)
}

/// Sends a command; an error reply is an error.
pub(super) async fn command(client: &mut RespClient, arguments: &[&str]) -> Result<Reply> {
    match client.command(arguments).await? {
        Reply::Error(answer) => Err(Error::Refused { request: arguments.join(" "), answer }),
        reply => Ok(reply),
    }
}

/// Sends one command on a new connection.
pub(super) async fn command_once(addr: SocketAddr, password: Option<&str>, arguments: &[&str]) -> Result<Reply> {
    command(&mut connect(addr, password).await?, arguments).await
}

/// Reads lines of `key:value`, as `INFO` and `CLUSTER INFO` return them.
pub(super) async fn info_fields(
    addr: SocketAddr,
    password: Option<&str>,
    arguments: &[&str],
) -> Result<HashMap<String, String>> {
    let text = into_text(command_once(addr, password, arguments).await?)?;
    let pairs = text.lines().filter_map(|line| line.trim_end().split_once(':'));
    Ok(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
}

/// `Ok` if `fields` has all of these values, otherwise the first difference.
pub(super) fn check_fields(
    fields: &HashMap<String, String>,
    expected: &[(&str, &str)],
) -> std::result::Result<(), String> {
    let missing = expected.iter().find(|(key, value)| fields.get(*key).is_none_or(|found| found != value));
    match missing {
        None => Ok(()),
        Some((key, value)) => Err(format!("{key} is {:?}, not {value}", fields.get(*key))),
    }
}

/// `Ok` if the server at `addr` is a replica whose link to its master is up.
pub(super) async fn check_replica_linked(addr: SocketAddr, password: Option<&str>) -> std::result::Result<(), String> {
    let fields = info_fields(addr, password, &["INFO", "replication"]).await.map_err(|error| error.to_string())?;
    check_fields(&fields, &[("role", "slave"), ("master_link_status", "up")]).map_err(|seen| format!("{addr}: {seen}"))
}

/// Makes the master close its connections to its replicas, which must be paused so that they cannot
/// reconnect at once.
///
/// The pause alone would lose no writes: the kernel buffers the master's writes for a paused
/// replica, and delivers them when it resumes, even if the master has died meanwhile.
pub(super) async fn drop_replicas(master: &Server, password: Option<&str>) -> Result<()> {
    // Sentinels that have just promoted it close every connection to it, including this one.
    let words = ["CLIENT", "KILL", "TYPE", "replica"];
    try_eventually("master that drops its replicas", DROP_TIMEOUT, || command_once(master.addr(), password, &words))
        .await
        .map(drop)
}

/// Resumes the nodes whose numbers are in `paused`, unless they were killed meanwhile, and empties
/// the list.
pub(super) fn resume_paused(nodes: &mut [Server], paused: &mut Vec<usize>) -> Result<()> {
    let alive = paused.drain(..).filter(|&index| nodes[index].pid().is_some()).collect::<Vec<_>>();
    // A failure must not leave the others paused.
    let resumed: Vec<Result<()>> = alive.into_iter().map(|index| nodes[index].resume()).collect();
    resumed.into_iter().collect()
}

/// The text of a reply; an error for any other kind of reply.
pub(super) fn into_text(reply: Reply) -> Result<String> {
    match reply {
        Reply::Bulk(text) | Reply::Simple(text) => Ok(text),
        other => Err(unexpected_reply_error(&other)),
    }
}

/// The texts of an array reply; an error for any other kind of reply.
pub(super) fn into_texts(reply: Reply) -> Result<Vec<String>> {
    match reply {
        Reply::Array(items) => items.into_iter().map(into_text).collect(),
        other => Err(unexpected_reply_error(&other)),
    }
}

pub(super) fn unexpected_reply_error(reply: &Reply) -> Error {
    Error::Protocol { peer: "Redis".to_owned(), problem: format!("an unexpected reply {reply:?}") }
}
