//! The known facts of a deployment: plain data that the rules judge.

use std::collections::HashMap;
use std::time::Duration;

use super::keys::KeyScan;
use super::query::{Fact, QueryError};
use leasehold_internals::redis::{Config, Epoch as StoredEpoch, Protocol};

/// What the URL and the options of the examination demand of the servers.
#[derive(Clone, Debug)]
pub(crate) struct Requirements {
    /// The TTL that the locks will have.
    pub(crate) ttl: Duration,
    /// What the names of all of leasehold's keys begin with.
    pub(crate) prefix: String,
    /// `protocol=simple`: a lock is a single string key, without queue and notifications.
    pub(crate) simple: bool,
    /// Strict mode: a server that may have lost leases grants no lock until the longest lease is
    /// over.
    pub(crate) strict: bool,
    /// The number of replicas that must acknowledge a grant.
    pub(crate) replicas: u32,
    pub(crate) deployment: Deployment,
}

/// The topology, according to the URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deployment {
    Single,
    Sentinel,
    Cluster,
    /// One of several independent servers that vote.
    Redlock,
}

impl Requirements {
    pub(crate) fn new(config: &Config, ttl: Duration, deployment: Deployment) -> Self {
        Self {
            ttl,
            prefix: config.prefix.clone(),
            simple: config.protocol == Protocol::Simple,
            strict: config.strict.is_some(),
            replicas: config.replicas,
            deployment,
        }
    }

    /// The time between two renewals of a lease.
    pub(crate) fn renewal_interval(&self) -> Duration {
        self.ttl / 3
    }

    /// The permissions that a user needs, in the syntax of `ACL SETUSER`.
    pub(crate) fn permissions(&self) -> String {
        if self.deployment == Deployment::Redlock {
            return format!(
                "ACL SETUSER <user> ~{}* +evalsha +eval +time +get +set +del +info \
                 +scan +script|load; for doctor also +ping +role +type +pttl +config|get +slowlog|get",
                self.prefix
            );
        }
        let locks = if self.simple {
            format!("~{}* +evalsha +eval +time +get +set +del +pexpire +pttl", self.prefix)
        } else {
            let least =
                "+evalsha +eval +subscribe +publish +pubsub|numsub +time +hget +hset +hdel +expire +get +set +del";
            format!("~{0}* &{0}* {least} +hgetall +scan +exists +client +script|load", self.prefix)
        };
        let more = if self.deployment == Deployment::Cluster { " +cluster +asking" } else { "" };
        format!(
            "ACL SETUSER <user> {locks} +info +role +wait{more}; for doctor also +ping +scan +type +hlen +pttl \
             +config|get +slowlog|get"
        )
    }
}

/// The lines of a reply such as that to `INFO`: keys and values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Info(pub(crate) HashMap<String, String>);

impl Info {
    /// Parses lines of `key:value`; ignores all others.
    pub(crate) fn parse(text: &str) -> Self {
        let pairs = text.lines().filter_map(|line| line.trim_end().split_once(':'));
        Self(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }
}

/// One replica, as its master reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replica {
    pub(crate) address: String,
    /// Whether it has copied the master's data, and follows its writes.
    pub(crate) is_online: bool,
    /// Seconds since it last acknowledged the master's writes.
    pub(crate) lag: u64,
}

/// The difference between the server's clock and this host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockOffset {
    /// How many microseconds the server's clock is ahead of this host's; negative if it is behind.
    pub(crate) ahead_us: i64,
    /// How wrong `ahead_us` may be: half of the round trip in which it was measured.
    pub(crate) uncertainty: Duration,
}

/// The measured durations of small queries to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoundTrips {
    pub(crate) count: usize,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

/// One entry of the slow log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlowLogEntry {
    /// Seconds since 1970, on the server's clock.
    pub(crate) logged_at: u64,
    /// How long the command ran.
    pub(crate) duration: Duration,
    /// Only the command's name: its arguments are private.
    pub(crate) command: String,
}

/// The result of publishing a message to a channel that the doctor has subscribed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Echo {
    /// How many receivers the server reported.
    pub(crate) receivers: u64,
    /// Whether the message arrived.
    pub(crate) received: bool,
}

/// Facts that only a master can provide: they need writes, or are about the locks themselves.
#[derive(Clone, Debug)]
pub(crate) struct MasterFacts {
    /// Whether a script could write, read and remove the keys of probe locks.
    pub(crate) lock_keys: Fact<()>,
    /// Whether published messages arrive; `None` where the engine does not use them.
    pub(crate) echo: Option<Fact<Echo>>,
    /// Whether it reports changes of keys (client tracking); `None` where the engine does not use
    /// that.
    pub(crate) tracking: Option<Fact<()>>,
    /// The keys with leasehold's prefix; `None` with `protocol=simple`, where any key may be a
    /// lock.
    pub(crate) keys: Option<Fact<KeyScan>>,
    /// The record of strict mode; `None` where the engine does not use it.
    pub(crate) epoch: Option<Fact<Epoch>>,
}

/// The record that strict mode keeps on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Epoch {
    /// The server's time when it was read, in microseconds since 1970.
    pub(crate) now: u64,
    /// What is stored; `None` if there is no record.
    pub(crate) stored: Option<StoredEpoch>,
}

/// What is known of one server.
#[derive(Clone, Debug)]
pub(crate) struct NodeFacts {
    pub(crate) address: String,
    pub(crate) info: Fact<Info>,
    pub(crate) is_master: Fact<bool>,
    /// The replies to `CONFIG GET`, by setting.
    pub(crate) settings: HashMap<&'static str, Fact<String>>,
    pub(crate) clock_offset: Fact<ClockOffset>,
    pub(crate) round_trips: Fact<RoundTrips>,
    pub(crate) slow_log: Fact<Vec<SlowLogEntry>>,
    /// Whether EVAL and EVALSHA work.
    pub(crate) scripts: Fact<()>,
    /// Whether a script can read the server's clock.
    pub(crate) script_time: Fact<()>,
    /// `None` for a replica.
    pub(crate) master: Option<MasterFacts>,
}

impl NodeFacts {
    /// The value of a line of `INFO`.
    pub(crate) fn info(&self, key: &str) -> Fact<&str> {
        let info = self.info.as_ref().map_err(QueryError::clone)?;
        info.0.get(key).map(String::as_str).ok_or_else(|| QueryError::missing(key))
    }

    /// The value of a line of `INFO`, as a number.
    pub(crate) fn info_number(&self, key: &str) -> Fact<u64> {
        self.info(key)?.parse().map_err(|_| QueryError::missing(key))
    }

    /// The value of a setting, from `CONFIG GET`.
    pub(crate) fn setting(&self, key: &'static str) -> Fact<&str> {
        match self.settings.get(key) {
            Some(Ok(value)) => Ok(value),
            Some(Err(error)) => Err(error.clone()),
            None => Err(QueryError::missing(key)),
        }
    }

    /// The value of a setting, from `CONFIG GET`, as a number.
    pub(crate) fn setting_number(&self, key: &'static str) -> Fact<u64> {
        self.setting(key)?.parse().map_err(|_| QueryError::missing(key))
    }

    /// The replicas that are connected.
    pub(crate) fn connected_replicas(&self) -> Fact<Vec<Replica>> {
        let info = self.info.as_ref().map_err(QueryError::clone)?;
        let count = self.info_number("connected_slaves")?;
        let followers = (0..count).filter_map(|index| parse_replica(info.0.get(&format!("slave{index}"))?));
        Ok(followers.collect())
    }

    /// Whether a restart loses no data, because each write is on disk before its reply.
    pub(crate) fn is_durable(&self) -> Fact<bool> {
        Ok(self.info_number("aof_enabled")? == 1 && self.setting("appendfsync")? == "always")
    }
}

/// Parses a replica's line of `INFO`: `ip=127.0.0.1,port=6380,state=online,offset=14,lag=0`
fn parse_replica(line: &str) -> Option<Replica> {
    let parts: HashMap<_, _> = line.split(',').filter_map(|part| part.split_once('=')).collect();
    Some(Replica {
        address: format!("{}:{}", parts.get("ip")?, parts.get("port")?),
        is_online: *parts.get("state")? == "online",
        lag: parts.get("lag")?.parse().ok()?,
    })
}
