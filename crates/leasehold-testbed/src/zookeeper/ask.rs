//! ZooKeeper's four-letter words.

use std::{collections::HashMap, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{Error, Result};

/// How long an answer may take.
const BOUND: Duration = crate::BOUND;
/// The longest answer that is read.
const LONGEST_ANSWER: u64 = 16 * 1024 * 1024;
/// How a server answers that has no leader.
const NOT_SERVING: &str = "This ZooKeeper instance is not currently serving requests";

/// What a server does, by its own word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// It is no member of an ensemble.
    Standalone,
    /// It leads its ensemble.
    Leader,
    /// It follows a leader.
    Follower,
    /// It follows a leader, and has no vote.
    Observer,
    /// It listens, but serves nobody: it has no leader.
    Looking,
}

/// Says a four-letter word such as `mntr` to a server and gives all that it answers.
///
/// # Errors
///
/// [`Error::Io`] or [`Error::TimedOut`].
pub async fn ask(addr: SocketAddr, word: &str) -> Result<String> {
    let asking = format!("asking {addr} for {word}");
    let conversation = async {
        let mut stream = TcpStream::connect(addr).await?;
        stream.write_all(word.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(LONGEST_ANSWER).read_to_end(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    match timeout(BOUND, conversation).await {
        Ok(answer) => answer.map_err(Error::io(asking)),
        Err(_) => Err(Error::TimedOut {
            awaited: format!("answer of {addr} to {word}"),
            bound: BOUND,
            seen: "silence".to_owned(),
        }),
    }
}

/// What `mntr` says, such as `zk_server_state` and `zk_num_alive_connections`; empty while the
/// server serves nobody.
///
/// # Errors
///
/// As [`ask`].
pub async fn facts(addr: SocketAddr) -> Result<HashMap<String, String>> {
    Ok(parse(&ask(addr, "mntr").await?))
}

/// What a server does, by its own word.
///
/// # Errors
///
/// As [`ask`]; [`Error::Protocol`] if it is no ZooKeeper.
pub async fn role(addr: SocketAddr) -> Result<Role> {
    let answer = ask(addr, "srvr").await?;
    let mode = answer.lines().find_map(|line| line.strip_prefix("Mode: "));
    match mode.map(str::trim) {
        Some("standalone") => Ok(Role::Standalone),
        Some("leader") => Ok(Role::Leader),
        Some("follower") => Ok(Role::Follower),
        Some("observer") => Ok(Role::Observer),
        None if answer.starts_with(NOT_SERVING) => Ok(Role::Looking),
        _ => Err(Error::Protocol { peer: format!("ZooKeeper at {addr}"), problem: format!("srvr gave {answer:?}") }),
    }
}

/// Lines of a key, a tab, and a value.
fn parse(answer: &str) -> HashMap<String, String> {
    let pairs = answer.lines().filter_map(|line| line.split_once('\t'));
    pairs.map(|(key, value)| (key.to_owned(), value.trim_end().to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_keys_and_values_and_a_server_without_a_leader_has_none() {
        let facts = parse("zk_version\t3.8.0-a, built on b\nzk_server_state\tleader\n");
        assert_eq!(facts.len(), 2);
        assert_eq!(facts["zk_server_state"], "leader");
        assert_eq!(facts["zk_version"], "3.8.0-a, built on b");
        assert!(parse(NOT_SERVING).is_empty());
    }
}
