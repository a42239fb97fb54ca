//! ZooKeeper's four-letter words.

use std::{collections::HashMap, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{Error, Result};

/// The timeout of a reply.
const REPLY_TIMEOUT: Duration = crate::TEST_TIMEOUT;
/// The maximum length of a reply.
const MAX_ANSWER_BYTES: u64 = 16 * 1024 * 1024;
/// The reply of a server without a leader.
const NOT_SERVING: &str = "This ZooKeeper instance is not currently serving requests";

/// The role that a server reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// The server is not a member of an ensemble.
    Standalone,
    /// The server leads its ensemble.
    Leader,
    /// The server follows a leader and votes.
    Follower,
    /// The server follows a leader, and has no vote.
    Observer,
    /// The server listens, but serves no clients: it has no leader.
    Looking,
}

/// Sends a four-letter word such as `mntr` to a server and returns its reply.
///
/// # Errors
///
/// [`Error::Io`] or [`Error::TimedOut`].
pub async fn send_word(addr: SocketAddr, word: &str) -> Result<String> {
    let action = format!("asking {addr} for {word}");
    let conversation = async {
        let mut stream = TcpStream::connect(addr).await?;
        stream.write_all(word.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    match timeout(REPLY_TIMEOUT, conversation).await {
        Ok(answer) => answer.map_err(Error::io(action)),
        Err(_) => Err(Error::TimedOut {
            awaited: format!("reply of {addr} to {word}"),
            bound: REPLY_TIMEOUT,
            observed: "silence".to_owned(),
        }),
    }
}

/// The values of `mntr`, such as `zk_server_state` and `zk_num_alive_connections`; empty while the
/// server serves no clients.
///
/// # Errors
///
/// As [`send_word`].
pub async fn monitor_values(addr: SocketAddr) -> Result<HashMap<String, String>> {
    Ok(parse_values(&send_word(addr, "mntr").await?))
}

/// Asks a server for its role, with the word `srvr`.
///
/// # Errors
///
/// As [`send_word`]; [`Error::Protocol`] if it is not ZooKeeper.
pub async fn role(addr: SocketAddr) -> Result<Role> {
    let answer = send_word(addr, "srvr").await?;
    let mode = answer.lines().find_map(|line| line.strip_prefix("Mode: "));
    match mode.map(str::trim) {
        Some("standalone") => Ok(Role::Standalone),
        Some("leader") => Ok(Role::Leader),
        Some("follower") => Ok(Role::Follower),
        Some("observer") => Ok(Role::Observer),
        None if answer.starts_with(NOT_SERVING) => Ok(Role::Looking),
        _ => {
            Err(Error::Protocol { peer: format!("ZooKeeper at {addr}"), problem: format!("srvr returned {answer:?}") })
        }
    }
}

/// Parses the reply of `mntr`: each line has a key, a tab, and a value.
fn parse_values(answer: &str) -> HashMap<String, String> {
    let pairs = answer.lines().filter_map(|line| line.split_once('\t'));
    pairs.map(|(key, value)| (key.to_owned(), value.trim_end().to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monitor_values_are_parsed_and_empty_without_a_leader() {
        let values = parse_values("zk_version\t3.8.0-a, built on b\nzk_server_state\tleader\n");
        assert_eq!(values.len(), 2);
        assert_eq!(values["zk_server_state"], "leader");
        assert_eq!(values["zk_version"], "3.8.0-a, built on b");
        assert!(parse_values(NOT_SERVING).is_empty());
    }
}
