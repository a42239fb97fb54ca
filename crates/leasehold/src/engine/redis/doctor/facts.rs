//! The known facts of a deployment: plain data that the rules judge.

use std::collections::HashMap;
use std::time::Duration;

use super::super::config::{Config, Protocol};
use super::ask::{Known, No};
use super::keys::Keys;

/// The user's requirements of the deployment.
#[derive(Clone, Debug)]
pub(crate) struct Aim {
    pub(crate) ttl: Duration,
    pub(crate) prefix: String,
    /// The textbook lock, a single string key: no queues, no notifications.
    pub(crate) simple: bool,
    /// Strict mode: a server that may have lost leases waits for the longest.
    pub(crate) strict: bool,
    /// How many replicas must confirm a grant.
    pub(crate) replicas: u32,
    pub(crate) kind: Kind,
}

/// The topology, according to the URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Single,
    Sentinel,
    Cluster,
    /// One of several independent servers that vote.
    Redlock,
}

impl Aim {
    pub(crate) fn new(config: &Config, ttl: Duration, kind: Kind) -> Self {
        Self {
            ttl,
            prefix: config.prefix.clone(),
            simple: config.protocol == Protocol::Simple,
            strict: config.strict.is_some(),
            replicas: config.replicas,
            kind,
        }
    }

    /// How often leases are renewed.
    pub(crate) fn renewal(&self) -> Duration {
        self.ttl / 3
    }

    /// The permissions that a user needs, in the syntax of `ACL SETUSER`.
    pub(crate) fn permissions(&self) -> String {
        if self.kind == Kind::Redlock {
            return format!(
                "ACL SETUSER <user> ~{}* +evalsha +eval +time +get +set +del +info \
                 +scan +script|load; for doctor also +ping +role +type +pttl +config|get +slowlog|get",
                self.prefix
            );
        }
        let locks = if self.simple {
            format!("~{}* +evalsha +eval +time +get +set +del +pexpire +pttl", self.prefix)
        } else {
            let least = "+evalsha +eval +subscribe +publish +pubsub|numsub +time +hget +hset +hdel +expire +get +set +setrange +del";
            format!("~{0}* &{0}* {least} +hgetall +scan +exists +client +script|load", self.prefix)
        };
        let more = if self.kind == Kind::Cluster { " +cluster +asking" } else { "" };
        format!(
            "ACL SETUSER <user> {locks} +info +role +wait{more}; for doctor also +ping +scan +type +hlen +pttl \
             +config|get +slowlog|get"
        )
    }
}

/// The lines of `INFO`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Info(pub(crate) HashMap<String, String>);

impl Info {
    pub(crate) fn read(text: &str) -> Self {
        let pairs = text.lines().filter_map(|line| line.trim_end().split_once(':'));
        Self(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }
}

/// One replica, as its master reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Follower {
    pub(crate) address: String,
    pub(crate) online: bool,
    /// Seconds since it last reported its offset.
    pub(crate) lag: u64,
}

/// The difference between the server's clock and ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockGap {
    /// How many microseconds it is ahead of ours.
    pub(crate) ahead: i64,
    /// The error of that: half of a round trip.
    pub(crate) error: Duration,
}

/// The durations of small queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trips {
    pub(crate) count: usize,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

/// One entry of the slow log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slow {
    /// Seconds since 1970, on the server's clock.
    pub(crate) at: u64,
    pub(crate) took: Duration,
    /// Only the command's name: its arguments are private.
    pub(crate) command: String,
}

/// A message that we sent to ourselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Echo {
    /// How many receivers the server reported.
    pub(crate) receivers: u64,
    pub(crate) heard: bool,
}

/// Facts that only a master can provide: they need writes, or are about the locks themselves.
#[derive(Clone, Debug)]
pub(crate) struct MasterFacts {
    /// The result of a script that writes, reads and removes the keys of locks.
    pub(crate) layout: Known<()>,
    /// `None` where no notifications are needed.
    pub(crate) echo: Option<Known<Echo>>,
    /// Whether it reports changes of keys (client tracking); `None` where the engine does not use
    /// that.
    pub(crate) tracking: Option<Known<()>>,
    /// `None` where any key may be a lock.
    pub(crate) keys: Option<Known<Keys>>,
    /// The record of strict mode; `None` where the engine does not use it.
    pub(crate) epoch: Option<Known<Epoch>>,
}

/// The record that strict mode keeps on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Epoch {
    /// The server's time in microseconds.
    pub(crate) now: u64,
    /// In the format of `scripts/strict.lua`; `None` if there is no record.
    pub(crate) record: Option<String>,
}

/// One server.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) address: String,
    pub(crate) info: Known<Info>,
    pub(crate) is_master: Known<bool>,
    pub(crate) settings: HashMap<&'static str, Known<String>>,
    pub(crate) clock: Known<ClockGap>,
    pub(crate) trips: Known<Trips>,
    pub(crate) slow: Known<Vec<Slow>>,
    pub(crate) scripts: Known<()>,
    pub(crate) script_time: Known<()>,
    pub(crate) master: Option<MasterFacts>,
}

impl Node {
    /// A line of `INFO`.
    pub(crate) fn info(&self, key: &str) -> Known<&str> {
        let info = self.info.as_ref().map_err(No::clone)?;
        info.0.get(key).map(String::as_str).ok_or_else(|| No::missing(key))
    }

    /// A number in `INFO`.
    pub(crate) fn number(&self, key: &str) -> Known<u64> {
        self.info(key)?.parse().map_err(|_| No::missing(key))
    }

    /// The answer to `CONFIG GET`.
    pub(crate) fn setting(&self, key: &'static str) -> Known<&str> {
        match self.settings.get(key) {
            Some(Ok(value)) => Ok(value),
            Some(Err(no)) => Err(no.clone()),
            None => Err(No::missing(key)),
        }
    }

    /// A number from `CONFIG GET`.
    pub(crate) fn set_number(&self, key: &'static str) -> Known<u64> {
        self.setting(key)?.parse().map_err(|_| No::missing(key))
    }

    /// The replicas that are connected.
    pub(crate) fn followers(&self) -> Known<Vec<Follower>> {
        let info = self.info.as_ref().map_err(No::clone)?;
        let count = self.number("connected_slaves")?;
        let followers = (0..count).filter_map(|index| follower(info.0.get(&format!("slave{index}"))?));
        Ok(followers.collect())
    }

    /// Whether a restart loses nothing. That requires that each write is on disk before its reply.
    pub(crate) fn forgets_nothing(&self) -> Known<bool> {
        Ok(self.number("aof_enabled")? == 1 && self.setting("appendfsync")? == "always")
    }
}

/// `ip=127.0.0.1,port=6380,state=online,offset=14,lag=0`
fn follower(line: &str) -> Option<Follower> {
    let parts: HashMap<_, _> = line.split(',').filter_map(|part| part.split_once('=')).collect();
    Some(Follower {
        address: format!("{}:{}", parts.get("ip")?, parts.get("port")?),
        online: *parts.get("state")? == "online",
        lag: parts.get("lag")?.parse().ok()?,
    })
}
