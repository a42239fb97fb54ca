//! Queries the facts about each server, and has them judged.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;

use super::facts::{Deployment, Info, MasterFacts, NodeFacts, Requirements, SlowLogEntry};
use super::query::{Fact, QueryConnection, QueryError, query, redis_command};
use super::rules::{self, ExpectedRole};
use super::{keys, measure, probe};
use crate::Finding;
use leasehold::Result;
use leasehold_internals::redis::{Address, Config, connect};

/// The settings that the rules need, as `CONFIG GET` names them.
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

/// Queries all facts of one server. In a cluster, `slots` are the slots that it serves.
///
/// # Errors
/// Only if it is unreachable.
pub(super) async fn gather_node(
    config: &Config,
    address: &Address,
    requirements: &Requirements,
    slots: &[RangeInclusive<u16>],
) -> Result<NodeFacts> {
    let connection = &QueryConnection::new(config, connect::to_node(config, address, None).await?);
    let info = query::<String>(connection, &redis_command(&["INFO"])).await.map(|text| Info::parse(&text));
    let is_master = query_is_master(connection, &info).await;
    let mut settings = HashMap::new();
    for key in SETTINGS {
        settings.insert(key, query_setting(connection, key).await);
    }
    let (scripts, script_time) = (probe::check_scripts(connection).await, probe::check_script_time(connection).await);
    // A server with an unknown role is queried as a master: if it is a replica, its refusal is a
    // fact.
    let master = match is_master {
        Ok(false) => None,
        _ => Some(gather_master_facts(config, address, connection, requirements, slots).await),
    };
    Ok(NodeFacts {
        address: address.to_string(),
        info,
        is_master,
        settings,
        clock_offset: measure::measure_clock_offset(connection).await,
        round_trips: measure::measure_round_trips(connection).await,
        slow_log: query_slow_log(connection).await,
        scripts,
        script_time,
        master,
    })
}

/// Queries the facts that only a master can provide.
async fn gather_master_facts(
    config: &Config,
    address: &Address,
    connection: &QueryConnection,
    requirements: &Requirements,
    slots: &[RangeInclusive<u16>],
) -> MasterFacts {
    // The textbook lock and Redlock send no notifications.
    let has_notifications = !requirements.simple && requirements.deployment != Deployment::Redlock;
    MasterFacts {
        lock_keys: probe::check_lock_keys(connection, requirements, slots).await,
        echo: if has_notifications {
            Some(probe::check_echo(connection, config, address, requirements).await)
        } else {
            None
        },
        tracking: if has_notifications { Some(probe::check_tracking(connection).await) } else { None },
        keys: if requirements.simple { None } else { Some(keys::scan(connection, requirements).await) },
        epoch: if requirements.deployment == Deployment::Redlock && requirements.strict {
            Some(probe::read_epoch(connection, requirements).await)
        } else {
            None
        },
    }
}

/// Whether the server is a master, according to `INFO`, or else to `ROLE`.
async fn query_is_master(connection: &QueryConnection, info: &Fact<Info>) -> Fact<bool> {
    if let Ok(Some(role)) = info.as_ref().map(|info| info.0.get("role")) {
        return Ok(role == "master");
    }
    let role: Vec<Value> = query(connection, &redis_command(&["ROLE"])).await?;
    match role.first().map(redis::from_redis_value_ref::<String>) {
        Some(Ok(role)) => Ok(role == "master"),
        _ => Err(QueryError::missing("its role")),
    }
}

/// The value of a setting, from `CONFIG GET`.
async fn query_setting(connection: &QueryConnection, key: &str) -> Fact<String> {
    let mut answer: HashMap<String, String> = query(connection, &redis_command(&["CONFIG", "GET", key])).await?;
    answer.remove(key).ok_or_else(|| QueryError::missing(key))
}

/// The newest 128 entries of the slow log.
async fn query_slow_log(connection: &QueryConnection) -> Fact<Vec<SlowLogEntry>> {
    let lines: Vec<Vec<Value>> = query(connection, &redis_command(&["SLOWLOG", "GET", "128"])).await?;
    Ok(lines.iter().filter_map(|line| parse_slow_log_entry(line)).collect())
}

/// Parses an entry of the slow log: `[id, at, microseconds, [command, arguments …], …]`.
fn parse_slow_log_entry(line: &[Value]) -> Option<SlowLogEntry> {
    let number = |at: usize| redis::from_redis_value_ref::<u64>(line.get(at)?).ok();
    let Value::Array(words) = line.get(3)? else { return None };
    let command: String = redis::from_redis_value_ref(words.first()?).ok()?;
    Some(SlowLogEntry { logged_at: number(1)?, duration: Duration::from_micros(number(2)?), command })
}

/// The replicas that a server reports, one of which may be promoted; none if it does not respond.
pub(super) async fn list_replicas(config: &Config, address: &Address) -> Vec<Address> {
    let Ok(connection) = connect::to_node(config, address, None).await else { return Vec::new() };
    let info =
        query::<String>(&QueryConnection::new(config, connection), &redis_command(&["INFO", "replication"])).await;
    info.unwrap_or_default().lines().filter_map(parse_replica_address).collect()
}

/// Parses a replica's line of `INFO`: `slave0:ip=10.0.0.7,port=6379,state=online,…`; `None` for any
/// other line.
fn parse_replica_address(line: &str) -> Option<Address> {
    let (number, rest) = line.trim_end().strip_prefix("slave")?.split_once(':')?;
    number.parse::<u32>().ok()?;
    let of = |key: &str| rest.split(',').find_map(|part| part.strip_prefix(key)?.strip_prefix('='));
    Some(Address { host: of("ip")?.to_owned(), port: of("port")?.parse().ok()? })
}

/// The number of servers that are queried concurrently.
const MAX_CONCURRENT_SERVERS: usize = 8;

/// A server to query, its expected role, and the slots that it serves.
pub(super) type ServerToExamine = (Address, ExpectedRole, Vec<RangeInclusive<u16>>);

/// Queries servers and judges them, each alone and in comparison. `failover_delay` is how long a
/// master must be unreachable before another is promoted, where the servers have no setting for it.
pub(super) async fn examine_servers(
    config: &Config,
    servers: &[ServerToExamine],
    requirements: &Requirements,
    failover_delay: Option<Duration>,
) -> Vec<Finding> {
    let (mut findings, mut nodes) = (Vec::new(), Vec::new());
    for some in servers.chunks(MAX_CONCURRENT_SERVERS) {
        let replies =
            join_all(some.iter().map(|(address, _, slots)| gather_node(config, address, requirements, slots))).await;
        for ((address, expected, _), answer) in some.iter().zip(replies) {
            match answer {
                Ok(node) => {
                    findings.extend(rules::judge_node(&node, *expected, requirements));
                    nodes.push(node);
                }
                Err(error) => findings.push(rules::access::judge_unreachable(&address.to_string(), *expected, &error)),
            }
        }
    }
    findings.extend(rules::judge_together(&nodes, failover_delay));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_read_as_redis_writes_them() {
        let found = parse_replica_address("slave0:ip=10.0.0.7,port=6380,state=online,offset=14,lag=1\r");
        assert_eq!(found.map(|address| address.to_string()).as_deref(), Some("10.0.0.7:6380"));
        for line in ["role:master", "slave_read_only:1", "connected_slaves:1", "slave0:ip=,port=x"] {
            assert_eq!(parse_replica_address(line), None, "{line}");
        }
    }
}
