//! The server that all benches of a run share, and its statistics.

use std::collections::HashMap;
use std::time::Duration;

use leasehold_testbed::redis::{Reply, Resp, start};
use leasehold_testbed::{Server, redis};

use super::Oops;

/// The commands with which clients run a script.
const SCRIPTS: [&str; 4] = ["eval", "evalsha", "eval_ro", "evalsha_ro"];

/// A server, and a connection for its statistics.
pub(crate) struct Bench {
    server: Server,
    asker: Resp,
    /// The factor by which everything is shortened.
    pub(crate) scale: u32,
}

impl Bench {
    pub(crate) async fn start(scale: u32) -> Result<Self, Oops> {
        let server = start().await?;
        let asker = redis::Resp::connect(server.addr()).await?;
        Ok(Self { server, asker, scale })
    }

    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    /// How often each command was called so far, and the time in it.
    pub(crate) async fn calls(&mut self) -> Result<Calls, Oops> {
        calls(&mut self.asker).await
    }

    /// The CPU time that the server has used.
    pub(crate) async fn cpu(&mut self) -> Result<Duration, Oops> {
        cpu(&mut self.asker).await
    }
}

/// How often each command was called on a server so far, and the time in it.
pub(crate) async fn calls(asker: &mut Resp) -> Result<Calls, Oops> {
    let text = info(asker, "commandstats").await?;
    let mut calls = HashMap::new();
    for line in text.lines() {
        let Some((name, fields)) = line.strip_prefix("cmdstat_").and_then(|line| line.split_once(':')) else {
            continue;
        };
        let field = |wanted: &str| {
            let mut pairs = fields.split(',').filter_map(|pair| pair.split_once('='));
            pairs.find(|(key, _)| *key == wanted).and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
        };
        calls.insert(name.to_owned(), (field("calls"), field("usec")));
    }
    Ok(Calls(calls))
}

/// The CPU time that a server has used.
pub(crate) async fn cpu(asker: &mut Resp) -> Result<Duration, Oops> {
    let text = info(asker, "cpu").await?;
    let mut used = 0.0;
    for wanted in ["used_cpu_sys:", "used_cpu_user:"] {
        let value =
            text.lines().find_map(|line| line.strip_prefix(wanted)).ok_or("the server does not tell its CPU time")?;
        used += value.parse::<f64>()?;
    }
    Ok(Duration::from_secs_f64(used))
}

async fn info(asker: &mut Resp, section: &str) -> Result<String, Oops> {
    match asker.command(&["INFO", section]).await? {
        Reply::Bulk(text) => Ok(text),
        other => Err(format!("INFO {section} answered {other:?}").into()),
    }
}

/// The server's count of commands, and the microseconds in them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calls(HashMap<String, (u64, u64)>);

impl Calls {
    /// The calls since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let then = |name: &str| earlier.0.get(name).copied().unwrap_or((0, 0));
        let less = |(name, &(calls, usec)): (&String, &(u64, u64))| {
            (name.clone(), (calls.saturating_sub(then(name).0), usec.saturating_sub(then(name).1)))
        };
        Self(self.0.iter().map(less).collect())
    }

    /// The calls of this server and another one.
    pub(crate) fn and(mut self, other: Self) -> Self {
        for (name, (calls, usec)) in other.0 {
            let sum = self.0.entry(name).or_default();
            *sum = (sum.0 + calls, sum.1 + usec);
        }
        self
    }

    /// How often a command was called, including calls by scripts.
    pub(crate) fn of(&self, name: &str) -> u64 {
        self.sum(&[name]).0
    }

    fn sum(&self, names: &[&str]) -> (u64, u64) {
        let each = names.iter().map(|&name| self.0.get(name).copied().unwrap_or((0, 0)));
        each.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// How many scripts ran.
    pub(crate) fn scripts(&self) -> u64 {
        self.sum(&SCRIPTS).0
    }

    /// The server's time in scripts.
    pub(crate) fn in_scripts(&self) -> Duration {
        Duration::from_micros(self.sum(&SCRIPTS).1)
    }

    /// How often a bare `SET` or a script was sent: the simple locks consist of them. Their scripts
    /// do not call `SET`.
    pub(crate) fn sent(&self) -> u64 {
        self.scripts() + self.sum(&["set"]).0
    }

    /// The server's time in bare `SET`s and scripts.
    pub(crate) fn in_sent(&self) -> Duration {
        self.in_scripts() + Duration::from_micros(self.sum(&["set"]).1)
    }
}
