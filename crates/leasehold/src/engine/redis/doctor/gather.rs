//! All facts about one server.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;

use super::super::config::{Address, Config};
use super::super::connect;
use super::ask::{Known, Link, No, ask, words};
use super::facts::{Aim, Info, Kind, MasterFacts, Node, Slow};
use super::rules::{self, Expected};
use super::{keys, probe, sample};
use crate::doctor::Finding;
use crate::error::Result;

/// The settings that the rules need.
const SETTINGS: [&str; 10] = [
    "maxmemory",
    "maxmemory-policy",
    "save",
    "appendfsync",
    "min-replicas-to-write",
    "min-replicas-max-lag",
    "client-output-buffer-limit",
    "slowlog-log-slower-than",
    "cluster-node-timeout",
    "cluster-require-full-coverage",
];

/// Asks one server for all facts. In a cluster, `slots` are the slots that it serves.
///
/// # Errors
/// Only if it is unreachable.
pub(super) async fn node(config: &Config, address: &Address, aim: &Aim, slots: &[RangeInclusive<u16>]) -> Result<Node> {
    let link = &Link::new(config, connect::node(config, address, None).await?);
    let info = ask::<String>(link, &words(&["INFO"])).await.map(|text| Info::read(&text));
    let is_master = is_master(link, &info).await;
    let mut settings = HashMap::new();
    for key in SETTINGS {
        settings.insert(key, setting(link, key).await);
    }
    let (scripts, script_time) = (probe::scripts(link).await, probe::script_time(link).await);
    // If the role is unknown, the server is asked as a master: a replica then refuses, which is a
    // fact, too.
    let master = match is_master {
        Ok(false) => None,
        _ => Some(master(config, address, link, aim, slots).await),
    };
    Ok(Node {
        address: address.to_string(),
        info,
        is_master,
        settings,
        clock: sample::clock(link).await,
        trips: sample::trips(link).await,
        slow: slow_log(link).await,
        scripts,
        script_time,
        master,
    })
}

async fn master(
    config: &Config,
    address: &Address,
    link: &Link,
    aim: &Aim,
    slots: &[RangeInclusive<u16>],
) -> MasterFacts {
    // The textbook lock sends no notifications, and neither does one server of several.
    let tells = !aim.simple && aim.kind != Kind::Redlock;
    MasterFacts {
        layout: probe::layout(link, aim, slots).await,
        echo: if tells { Some(probe::echo(link, config, address, aim).await) } else { None },
        tracking: if tells { Some(probe::tracking(link).await) } else { None },
        keys: if aim.simple { None } else { Some(keys::look(link, aim).await) },
        epoch: if aim.kind == Kind::Redlock && aim.strict { Some(probe::epoch(link, aim).await) } else { None },
    }
}

async fn is_master(link: &Link, info: &Known<Info>) -> Known<bool> {
    if let Ok(Some(role)) = info.as_ref().map(|info| info.0.get("role")) {
        return Ok(role == "master");
    }
    let role: Vec<Value> = ask(link, &words(&["ROLE"])).await?;
    match role.first().map(redis::from_redis_value_ref::<String>) {
        Some(Ok(role)) => Ok(role == "master"),
        _ => Err(No::missing("its role")),
    }
}

async fn setting(link: &Link, key: &str) -> Known<String> {
    let mut answer: HashMap<String, String> = ask(link, &words(&["CONFIG", "GET", key])).await?;
    answer.remove(key).ok_or_else(|| No::missing(key))
}

async fn slow_log(link: &Link) -> Known<Vec<Slow>> {
    let lines: Vec<Vec<Value>> = ask(link, &words(&["SLOWLOG", "GET", "128"])).await?;
    Ok(lines.iter().filter_map(|line| slow(line)).collect())
}

/// `[id, at, microseconds, [command, arguments …], …]`
fn slow(line: &[Value]) -> Option<Slow> {
    let number = |at: usize| redis::from_redis_value_ref::<u64>(line.get(at)?).ok();
    let Value::Array(words) = line.get(3)? else { return None };
    let command: String = redis::from_redis_value_ref(words.first()?).ok()?;
    Some(Slow { at: number(1)?, took: Duration::from_micros(number(2)?), command })
}

/// The replicas of a server, if it reports them: one of them may be promoted.
pub(super) async fn replicas(config: &Config, address: &Address) -> Vec<Address> {
    let Ok(connection) = connect::node(config, address, None).await else { return Vec::new() };
    let info = ask::<String>(&Link::new(config, connection), &words(&["INFO", "replication"])).await;
    info.unwrap_or_default().lines().filter_map(replica).collect()
}

/// `slave0:ip=10.0.0.7,port=6379,state=online,…`
fn replica(line: &str) -> Option<Address> {
    let (number, rest) = line.trim_end().strip_prefix("slave")?.split_once(':')?;
    number.parse::<u32>().ok()?;
    let of = |key: &str| rest.split(',').find_map(|part| part.strip_prefix(key)?.strip_prefix('='));
    Some(Address { host: of("ip")?.to_owned(), port: of("port")?.parse().ok()? })
}

/// How many servers are asked concurrently.
const AT_ONCE: usize = 8;

/// A server to ask, its expected role, and the slots that it serves.
pub(super) type Server = (Address, Expected, Vec<RangeInclusive<u16>>);

/// Asks servers and judges them, one by one and in comparison. `silence` is how long a master must
/// be unreachable before another is promoted, where the servers have no setting for it.
pub(super) async fn servers(config: &Config, servers: &[Server], aim: &Aim, silence: Option<Duration>) -> Vec<Finding> {
    let (mut findings, mut nodes) = (Vec::new(), Vec::new());
    for some in servers.chunks(AT_ONCE) {
        let asked = join_all(some.iter().map(|(address, _, slots)| node(config, address, aim, slots))).await;
        for ((address, expected, _), answer) in some.iter().zip(asked) {
            match answer {
                Ok(node) => {
                    findings.extend(rules::node(&node, *expected, aim));
                    nodes.push(node);
                }
                Err(error) => findings.push(rules::access::unreachable(&address.to_string(), *expected, &error)),
            }
        }
    }
    findings.extend(rules::between(&nodes, silence));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_read_as_redis_writes_them() {
        let found = replica("slave0:ip=10.0.0.7,port=6380,state=online,offset=14,lag=1\r");
        assert_eq!(found.map(|address| address.to_string()).as_deref(), Some("10.0.0.7:6380"));
        for line in ["role:master", "slave_read_only:1", "connected_slaves:1", "slave0:ip=,port=x"] {
            assert_eq!(replica(line), None, "{line}");
        }
    }
}
