//! Redis servers for the tests of the rules.

pub(super) use crate::assert_level;
use std::collections::HashMap;
use std::time::Duration;

use super::super::facts::{ClockOffset, Deployment, Echo, Info, MasterFacts, NodeFacts, Requirements, RoundTrips};
use super::super::keys::KeyScan;
use super::super::query::QueryError;

/// For tests: what a URL with default options requires of the servers.
pub(super) fn requirements() -> Requirements {
    Requirements {
        ttl: Duration::from_secs(30),
        prefix: "leasehold:".into(),
        simple: false,
        strict: false,
        replicas: 0,
        deployment: Deployment::Single,
    }
}

/// A master without replicas that loses nothing.
pub(super) fn healthy() -> NodeFacts {
    let info = "redis_version:7.0.15\r\nrun_id:abc\r\nuptime_in_seconds:86400\r\nrole:master\r\nconnected_slaves:0\r\n\
        used_memory:1000000\r\nmaxmemory:100000000\r\nmaxmemory_policy:noeviction\r\ntotal_system_memory:8000000000\r\n\
        evicted_keys:0\r\naof_enabled:1\r\ncluster_enabled:0\r\n";
    let settings = [
        ("maxmemory", "100000000"),
        ("maxmemory-policy", "noeviction"),
        ("save", "3600 1"),
        ("appendfsync", "always"),
        ("min-replicas-to-write", "0"),
        ("min-replicas-max-lag", "10"),
        ("client-output-buffer-limit", "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60"),
        ("slowlog-log-slower-than", "10000"),
        ("cluster-node-timeout", "15000"),
        ("cluster-require-full-coverage", "yes"),
    ];
    let echo = Echo { receivers: 1, received: true };
    NodeFacts {
        address: "h:6379".into(),
        info: Ok(Info::parse(info)),
        is_master: Ok(true),
        settings: settings.map(|(key, value)| (key, Ok(value.to_owned()))).into(),
        clock_offset: Ok(ClockOffset { ahead_us: 150, uncertainty: Duration::from_micros(100) }),
        round_trips: Ok(RoundTrips { count: 100, p50: Duration::from_micros(90), p99: Duration::from_micros(200) }),
        slow_log: Ok(vec![]),
        scripts: Ok(()),
        script_time: Ok(()),
        master: Some(MasterFacts {
            lock_keys: Ok(()),
            echo: Some(Ok(echo)),
            tracking: Some(Ok(())),
            keys: Some(Ok(KeyScan { examined: 3, is_complete: true, ..KeyScan::default() })),
            epoch: None,
        }),
    }
}

/// A server that refuses every query.
pub(super) fn refusing_node() -> NodeFacts {
    let error = || QueryError::Refused("NOPERM this user has no permissions".into());
    NodeFacts {
        address: "h:6379".into(),
        info: Err(error()),
        is_master: Err(error()),
        settings: HashMap::new(),
        clock_offset: Err(error()),
        round_trips: Err(error()),
        slow_log: Err(error()),
        scripts: Err(error()),
        script_time: Err(error()),
        master: Some(MasterFacts {
            lock_keys: Err(error()),
            echo: Some(Err(error())),
            tracking: Some(Err(error())),
            keys: Some(Err(error())),
            epoch: None,
        }),
    }
}

impl NodeFacts {
    /// The same server, with this value in `INFO`.
    pub(super) fn with_info(mut self, key: &str, value: &str) -> Self {
        if let Ok(info) = &mut self.info {
            info.0.insert(key.into(), value.into());
        }
        self
    }

    /// The same server, with this value of a setting.
    pub(super) fn with_setting(mut self, key: &'static str, value: &str) -> Self {
        self.settings.insert(key, Ok(value.into()));
        self
    }

    /// The same server, which refuses to report this setting.
    pub(super) fn without_setting(mut self, key: &'static str) -> Self {
        self.settings.insert(key, Err(QueryError::Refused("NOPERM no CONFIG for you".into())));
        self
    }

    /// The same server, with one more replica; `line` is its value in `INFO`.
    pub(super) fn with_replica(self, line: &str) -> Self {
        let count = self.info_number("connected_slaves").unwrap();
        self.with_info("connected_slaves", &(count + 1).to_string()).with_info(&format!("slave{count}"), line)
    }
}
