//! What servers of our own still have when nobody is there any more.
//!
//! A lock that nobody has is seen by whoever looks at locks. This is about the rest: keys that would stay for ever, claims that no majority has, nodes of
//! sessions that nobody ended.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold::Locks;
use leasehold_testbed::redis::{Reply, Resp};
use leasehold_testbed::zookeeper;

use crate::deploy::{Trouble, words};

/// What was found: where, and what it is.
pub(in crate::deploy) type Left = Vec<(String, String)>;

/// What all keys of ours begin with.
const PREFIX: &str = "leasehold:";
/// What those of records do, which stay until they are removed.
const RECORDS: &str = "leasehold:r";
/// What `PTTL` says of a key that never ends.
const NEVER: i64 = -1;
/// A third of it is how long a look at one node may take.
const LOOKING: Duration = Duration::from_secs(15);

/// Keys of ours on these servers that never end.
pub(super) async fn keys(servers: &[SocketAddr]) -> Result<Left, Trouble> {
    let mut left = Left::new();
    for (at, addr) in servers.iter().enumerate() {
        let mut client = Resp::connect(*addr).await?;
        for key in scan(&mut client).await? {
            let stays = client.command(&["PTTL", &key]).await? == Reply::Integer(NEVER);
            if stays && !key.starts_with(RECORDS) {
                left.push((format!("the keys on {}", words::server(at, servers.len())), format!("{key:?} never ends")));
            }
        }
    }
    Ok(left)
}

async fn scan(client: &mut Resp) -> Result<Vec<String>, Trouble> {
    let odd = || Trouble::new("Redis does not say which keys it has");
    let (mut keys, mut cursor) = (Vec::new(), "0".to_owned());
    loop {
        let answer = client.command(&["SCAN", &cursor, "MATCH", &format!("{PREFIX}*"), "COUNT", "1000"]).await?;
        let Reply::Array(parts) = answer else { return Err(odd()) };
        let [Reply::Bulk(next), Reply::Array(found)] = parts.as_slice() else { return Err(odd()) };
        keys.extend(found.iter().filter_map(|key| match key {
            Reply::Bulk(key) => Some(key.clone()),
            _ => None,
        }));
        if next == "0" {
            return Ok(keys);
        }
        cursor.clone_from(next);
    }
}

/// Claims to these locks on any of Redlock's servers, each asked by itself: where all are asked, what no majority can have does not count.
pub(super) async fn claims(servers: &[SocketAddr], options: &str, locks: &[String]) -> Result<Left, Trouble> {
    let mut left = Left::new();
    for (at, addr) in servers.iter().enumerate() {
        let asked = async {
            let one = Locks::builder().ttl(LOOKING).open(&format!("redlock://{addr}{options}")).await?;
            for lock in locks {
                left.extend(one.inspect(lock).await?.holders.iter().map(|party| {
                    let what = format!("a claim of process {} ({})", party.holder.pid, party.holder.text);
                    (format!("{lock} on {}", words::server(at, servers.len())), what)
                }));
            }
            one.close().await
        };
        asked.await.map_err(|error: leasehold::Error| Trouble::new(error.to_string()))?;
    }
    Ok(left)
}

/// Nodes below a path that would end with a session, by the word of these members.
pub(super) async fn nodes(servers: &[SocketAddr], path: &str) -> Result<Left, Trouble> {
    let mut left = Left::new();
    for addr in servers {
        let answer = zookeeper::ask(*addr, "dump").await?;
        let nodes = answer.lines().filter_map(|line| line.strip_prefix('\t')).map(str::trim);
        let ours = nodes.filter(|node| node.starts_with(path));
        left.extend(ours.map(|node| (node.to_owned(), "its session has not ended".to_owned())));
    }
    left.sort_unstable();
    left.dedup();
    Ok(left)
}
