//! The server that all benches of a run share, and its statistics.

use std::collections::HashMap;
use std::time::Duration;

use leasehold_testbed::redis::{Reply, RespClient, start};
use leasehold_testbed::{Server, redis};

use super::BoxError;

/// The commands with which clients run a script.
const SCRIPT_COMMANDS: [&str; 4] = ["eval", "evalsha", "eval_ro", "evalsha_ro"];

/// A server, and a connection for its statistics.
pub(crate) struct BenchServer {
    server: Server,
    stats_connection: RespClient,
    /// By how much the numbers of rounds and cycles are divided: 1 for a full run.
    pub(crate) scale: u32,
}

impl BenchServer {
    pub(crate) async fn start(scale: u32) -> Result<Self, BoxError> {
        let server = start().await?;
        let stats = redis::RespClient::connect(server.addr()).await?;
        Ok(Self { server, stats_connection: stats, scale })
    }

    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    /// How often each command was called on the server so far, and the time spent in it.
    pub(crate) async fn command_calls(&mut self) -> Result<CommandCalls, BoxError> {
        command_calls(&mut self.stats_connection).await
    }

    /// The CPU time that the server has used.
    pub(crate) async fn cpu_time(&mut self) -> Result<Duration, BoxError> {
        cpu_time(&mut self.stats_connection).await
    }
}

/// How often each command was called so far on the server of this connection, and the time spent in
/// it.
pub(crate) async fn command_calls(connection: &mut RespClient) -> Result<CommandCalls, BoxError> {
    let text = query_info(connection, "commandstats").await?;
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
    Ok(CommandCalls(calls))
}

/// The CPU time that a server has used.
pub(crate) async fn cpu_time(connection: &mut RespClient) -> Result<Duration, BoxError> {
    let text = query_info(connection, "cpu").await?;
    let mut used = 0.0;
    for wanted in ["used_cpu_sys:", "used_cpu_user:"] {
        let value =
            text.lines().find_map(|line| line.strip_prefix(wanted)).ok_or("the server does not report its CPU time")?;
        used += value.parse::<f64>()?;
    }
    Ok(Duration::from_secs_f64(used))
}

async fn query_info(connection: &mut RespClient, section: &str) -> Result<String, BoxError> {
    match connection.command(&["INFO", section]).await? {
        Reply::Bulk(text) => Ok(text),
        other => Err(format!("INFO {section} answered {other:?}").into()),
    }
}

/// For each command, how often a server has executed it, and the microseconds spent in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommandCalls(HashMap<String, (u64, u64)>);

impl CommandCalls {
    /// The calls since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let then = |name: &str| earlier.0.get(name).copied().unwrap_or((0, 0));
        let less = |(name, &(calls, usec)): (&String, &(u64, u64))| {
            (name.clone(), (calls.saturating_sub(then(name).0), usec.saturating_sub(then(name).1)))
        };
        Self(self.0.iter().map(less).collect())
    }

    /// The sum of the calls of two servers.
    pub(crate) fn plus(mut self, other: Self) -> Self {
        for (name, (calls, usec)) in other.0 {
            let sum = self.0.entry(name).or_default();
            *sum = (sum.0 + calls, sum.1 + usec);
        }
        self
    }

    /// How often a command was called, including calls by scripts.
    pub(crate) fn count_of(&self, name: &str) -> u64 {
        self.sum(&[name]).0
    }

    fn sum(&self, names: &[&str]) -> (u64, u64) {
        let each = names.iter().map(|&name| self.0.get(name).copied().unwrap_or((0, 0)));
        each.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// How many scripts ran.
    pub(crate) fn script_count(&self) -> u64 {
        self.sum(&SCRIPT_COMMANDS).0
    }

    /// The server's time in scripts.
    pub(crate) fn script_time(&self) -> Duration {
        Duration::from_micros(self.sum(&SCRIPT_COMMANDS).1)
    }

    /// How often a bare `SET` or a script was sent: the simple locks consist of them. Their scripts
    /// do not call `SET`.
    pub(crate) fn sent_count(&self) -> u64 {
        self.script_count() + self.sum(&["set"]).0
    }

    /// The server's time in bare `SET`s and scripts.
    pub(crate) fn sent_time(&self) -> Duration {
        self.script_time() + Duration::from_micros(self.sum(&["set"]).1)
    }
}
