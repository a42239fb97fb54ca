//! `doctor` on databases: real servers, configured well and badly.
#![allow(clippy::unwrap_used, reason = "tests")]

#[cfg(feature = "nightly")]
mod galera;
mod mysql;
mod postgres;

use crate::common::Place;
use crate::common::examined::checks;
use leasehold_testbed::Server;
use serde_json::Value;

fn says<'a>(finding: &'a Value, part: &str) -> &'a str {
    finding[part].as_str().unwrap()
}

/// The checks with this level, each once, except those about how slow this machine is.
fn all(report: &Value, level: &str) -> Vec<String> {
    let mut all = checks(report, level);
    all.retain(|check| check != "round-trip");
    all.sort();
    all.dedup();
    all
}

/// The addresses of several servers in one URL.
fn together(servers: &[&Server]) -> String {
    let hosts: Vec<_> = servers.iter().map(|server| server.addr().to_string()).collect();
    servers[0].url().replace(&hosts[0], &hosts.join(","))
}

/// Acquires a lock and releases it, so that there is a table.
async fn take(url: &str) {
    let args: Vec<_> = ["run", "--engine", url, "job", "--", "true"].map(ToOwned::to_owned).into();
    let ran = tokio::task::spawn_blocking(move || Place::new().run(args)).await.unwrap();
    assert_eq!(ran.code(), 0, "{}", ran.err());
}
