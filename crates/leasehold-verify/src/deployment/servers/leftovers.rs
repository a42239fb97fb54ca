//! Finds what servers still store after all clients have ended, beyond the locks that an inspection
//! shows: keys that never expire, claims without a majority, nodes of sessions that were not
//! closed.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold::Locks;
use leasehold_testbed::redis::{Reply, RespClient};
use leasehold_testbed::zookeeper;

use crate::deployment::{RunError, format};

/// A list of leftovers: each is a place, and what was found there.
pub(in crate::deployment) type Leftovers = Vec<(String, String)>;

/// The prefix of all of leasehold's keys.
const KEY_PREFIX: &str = "leasehold:";
/// The prefix of records' keys, which never expire by design.
const RECORD_PREFIX: &str = "leasehold:r";
/// The reply of `PTTL` for a key that never expires.
const NO_EXPIRY: i64 = -1;
/// The TTL of the client that inspects one node: it gives up an inspection after a third of it.
const INSPECTION_TIMEOUT: Duration = Duration::from_secs(15);

/// Finds keys of leasehold on these Redis servers that never expire, except records.
pub(super) async fn unexpiring_keys(servers: &[SocketAddr]) -> Result<Leftovers, RunError> {
    let mut left = Leftovers::new();
    for (at, addr) in servers.iter().enumerate() {
        let mut client = RespClient::connect(*addr).await?;
        for key in scan_keys(&mut client).await? {
            let stays = client.command(&["PTTL", &key]).await? == Reply::Integer(NO_EXPIRY);
            if stays && !key.starts_with(RECORD_PREFIX) {
                left.push((
                    format!("the keys on {}", format::server_name(at, servers.len())),
                    format!("{key:?} never expires"),
                ));
            }
        }
    }
    Ok(left)
}

/// All keys of leasehold on this server.
async fn scan_keys(client: &mut RespClient) -> Result<Vec<String>, RunError> {
    let odd = || RunError::new("unexpected reply of Redis to SCAN");
    let (mut keys, mut cursor) = (Vec::new(), "0".to_owned());
    loop {
        let answer = client.command(&["SCAN", &cursor, "MATCH", &format!("{KEY_PREFIX}*"), "COUNT", "1000"]).await?;
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

/// Finds claims to these locks on any of Redlock's servers. Each server is inspected alone, because
/// an inspection of all of them ignores a claim without a majority.
pub(super) async fn leftover_claims(
    servers: &[SocketAddr],
    options: &str,
    locks: &[String],
) -> Result<Leftovers, RunError> {
    let mut left = Leftovers::new();
    for (at, addr) in servers.iter().enumerate() {
        let inspection = async {
            let one = Locks::builder().ttl(INSPECTION_TIMEOUT).open(&format!("redlock://{addr}{options}")).await?;
            for lock in locks {
                left.extend(one.inspect(lock).await?.holders.iter().map(|contender| {
                    let what =
                        format!("a claim of process {} ({})", contender.holder.pid, contender.holder.description);
                    (format!("{lock} on {}", format::server_name(at, servers.len())), what)
                }));
            }
            one.close().await
        };
        inspection.await.map_err(|error: leasehold::Error| RunError::new(error.to_string()))?;
    }
    Ok(left)
}

/// Finds the ephemeral ZooKeeper nodes below a path, as these servers report them.
pub(super) async fn ephemeral_nodes(servers: &[SocketAddr], path: &str) -> Result<Leftovers, RunError> {
    let mut left = Leftovers::new();
    for addr in servers {
        let answer = zookeeper::send_word(*addr, "dump").await?;
        let nodes = answer.lines().filter_map(|line| line.strip_prefix('\t')).map(str::trim);
        let left_nodes = nodes.filter(|node| node.starts_with(path));
        left.extend(left_nodes.map(|node| (node.to_owned(), "its session has not ended".to_owned())));
    }
    left.sort_unstable();
    left.dedup();
    Ok(left)
}
