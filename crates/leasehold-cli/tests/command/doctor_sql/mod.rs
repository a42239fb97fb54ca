//! `doctor` on databases: real servers, configured well and badly.
#![allow(clippy::unwrap_used, reason = "tests")]

#[cfg(feature = "nightly")]
mod galera;
mod mysql;
mod postgres;

use crate::common::TestFolder;
use crate::common::doctor_report::checks_at_level;
use leasehold_testbed::Server;
use serde_json::Value;

/// The text of this part of a finding: `found`, `means` or `fix`.
fn text_of<'a>(finding: &'a Value, part: &str) -> &'a str {
    finding[part].as_str().unwrap()
}

/// The checks with this level, each once, except those that depend on this machine's speed.
fn checks_except_latency(report: &Value, level: &str) -> Vec<String> {
    let mut all = checks_at_level(report, level);
    all.retain(|check| check != "round-trip");
    all.sort();
    all.dedup();
    all
}

/// The URL of the first server, with the addresses of all these servers as its hosts.
fn multi_host_url(servers: &[&Server]) -> String {
    let hosts: Vec<_> = servers.iter().map(|server| server.addr().to_string()).collect();
    servers[0].url().replace(&hosts[0], &hosts.join(","))
}

/// Acquires a lock and releases it, so that there is a table.
async fn acquire_and_release(url: &str) {
    let args: Vec<_> = ["run", "--engine", url, "job", "--", "true"].map(ToOwned::to_owned).into();
    let ran = tokio::task::spawn_blocking(move || TestFolder::new().run(args)).await.unwrap();
    assert_eq!(ran.exit_code(), 0, "{}", ran.stderr());
}
