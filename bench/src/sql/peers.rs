//! Other libraries' locks: processes that run one load, while the server counts.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::contention::ContentionResult;
use super::server::{BenchServer, DatabaseKind};
use crate::redis::BoxError;

/// The peers of a database: the name of each in the report, and the argument that selects it in the
/// peers' program.
pub(crate) fn peers_of(database: DatabaseKind) -> [(&'static str, &'static str); 1] {
    match database {
        DatabaseKind::MySql => [("distributed-lock-mysql 0.2.0", "distributed-lock-mysql")],
        DatabaseKind::Postgres => [("distributed-lock-postgres 0.2.0", "distributed-lock-postgres")],
    }
}

/// Measures 64 tasks of a peer that contend for one lock, for `duration`; or returns the reason why
/// the peer cannot run this load.
pub(crate) async fn measure_peer(
    bench: &BenchServer,
    program: &Path,
    peer: &str,
    duration: Duration,
) -> Result<Result<ContentionResult, String>, BoxError> {
    let mut command = Command::new(program);
    command.args([&bench.url(), peer, "turns", &duration.as_secs_f64().to_string()]);
    let before = bench.statement_count().await?;
    let output = command.stderr(Stdio::piped()).output()?;
    let statements = bench.statement_count().await?.since(before);
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Ok(Err(text.lines().next_back().unwrap_or("it failed").trim().to_owned()));
    }
    let reply: Value = serde_json::from_slice(&output.stdout)?;
    if let Some(no) = reply["no"].as_str() {
        return Ok(Err(no.to_owned()));
    }
    let number = |key: &str| reply[key].as_f64().ok_or_else(|| format!("unexpected output of {peer}: {reply}"));
    let hand_offs = number("hand_offs")?;
    Ok(Ok(ContentionResult {
        hand_offs_per_second: number("per_second")?,
        statements_per_hand_off: statements / hand_offs,
    }))
}
