//! Connects to the nodes: a majority must be reached, and all must be independent servers.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use redis::{Pipeline, Value};

use super::engine::RedlockEngine;
use super::error;
use super::node::Node;
use super::wire::parse_time;
use crate::redis_client::values::bytes;
use crate::types::{Error, ErrorKind, Result};

/// How much longer to wait for the other nodes once a majority is reached.
const STRAGGLER_TIMEOUT: Duration = Duration::from_millis(250);

/// Waits until a majority is reached, checks that no two of them are one server, and reads their
/// clocks.
pub(super) async fn connect_majority(engine: &RedlockEngine) -> Result<()> {
    let quorum = engine.config.quorum;
    let reach = |node| async move { (node, Node::wait_reached(node).await) };
    let mut reaching: FuturesUnordered<_> = engine.nodes.iter().map(|node| reach(&**node)).collect();
    let (mut reached, mut errors) = (Vec::new(), Vec::new());
    while reached.len() < quorum.majority && errors.len() <= quorum.tolerated_failures() {
        match reaching.next().await {
            Some((node, Ok(()))) => reached.push(node),
            Some((_, Err(error))) => errors.push(error),
            None => break,
        }
    }
    if reached.len() < quorum.majority {
        return Err(error::no_majority(&engine.config, &errors));
    }
    // Most often the others follow at once.
    let rest = async {
        while let Some((node, answer)) = reaching.next().await {
            if answer.is_ok() {
                reached.push(node);
            }
        }
    };
    let _ = engine.clock.timeout(STRAGGLER_TIMEOUT, rest).await;
    check_independent(&reached).await
}

/// Refuses two addresses of one server, which would vote twice. It does not wait again for nodes
/// that were not reached.
async fn check_independent(reached: &[&Node]) -> Result<()> {
    let mut pipeline = Pipeline::new();
    pipeline.cmd("TIME").cmd("INFO").arg("server");
    let pipeline = &pipeline;
    let answers = join_all(reached.iter().map(|node| async move {
        let answers = node.send_commands(pipeline, STRAGGLER_TIMEOUT).await?;
        if let Some(time) = answers.first().and_then(parse_time) {
            node.observe_clock(time);
        }
        Ok::<_, Error>((&node.address, answers))
    }));
    let mut known: Vec<(String, String)> = Vec::new();
    // A node that does not respond now is not compared; `doctor` compares again.
    for (address, answers) in answers.await.into_iter().flatten() {
        let Some(run) = answers.get(1).and_then(parse_run_id) else { continue };
        if let Some((_, other)) = known.iter().find(|(known, _)| *known == run) {
            let message =
                format!("{other} and {address} are one server, which would vote twice: name independent ones");
            return Err(Error::new(ErrorKind::InvalidUrl, message).at_engine(error::NAME));
        }
        known.push((run, address.to_string()));
    }
    Ok(())
}

fn parse_run_id(answer: &Value) -> Option<String> {
    let text = match answer {
        Value::VerbatimString { text, .. } => text.clone(),
        other => String::from_utf8_lossy(bytes(other)?).into_owned(),
    };
    text.lines().find_map(|connection| connection.strip_prefix("run_id:")).map(|run| run.trim().to_owned())
}
