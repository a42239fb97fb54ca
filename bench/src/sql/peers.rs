//! Other libraries' locks: processes that run one load, while the server counts.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::contest::Stretch;
use super::server::{Base, Bench};
use crate::redis::Oops;

/// Our names for them, and the arguments that select them in our program.
pub(crate) fn of(base: Base) -> [(&'static str, &'static str); 1] {
    match base {
        Base::MySql => [("distributed-lock-mysql 0.2.0", "distributed-lock-mysql")],
        Base::Postgres => [("distributed-lock-postgres 0.2.0", "distributed-lock-postgres")],
    }
}

/// 64 of its tasks contend for one lock for this long; or the reason why it cannot do that.
pub(crate) async fn stretch(
    bench: &Bench,
    program: &Path,
    peer: &str,
    time: Duration,
) -> Result<Result<Stretch, String>, Oops> {
    let mut command = Command::new(program);
    command.args([&bench.url(), peer, "turns", &time.as_secs_f64().to_string()]);
    let before = bench.statements().await?;
    let said = command.stderr(Stdio::piped()).output()?;
    let statements = bench.statements().await?.since(before);
    if !said.status.success() {
        let text = String::from_utf8_lossy(&said.stderr);
        return Ok(Err(text.lines().next_back().unwrap_or("it failed").trim().to_owned()));
    }
    let said: Value = serde_json::from_slice(&said.stdout)?;
    if let Some(no) = said["no"].as_str() {
        return Ok(Err(no.to_owned()));
    }
    let number = |key: &str| said[key].as_f64().ok_or_else(|| format!("{peer} said {said}"));
    let hand_offs = number("hand_offs")?;
    Ok(Ok(Stretch { hand_offs_per_second: number("per_second")?, statements_per_hand_off: statements / hand_offs }))
}
