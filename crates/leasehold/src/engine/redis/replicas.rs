//! Waits until replicas have what was written. It uses connections of its own, since `WAIT` blocks
//! the one on which it is sent.
//!
//! A server replicates in order. So once a replica has a small write that followed a grant, it also
//! has the grant. One such write serves all grants before it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Value};
use tokio::sync::oneshot;

use super::config::{Address, Config, Topology};
use super::{connect, error, nodes, wire};
use crate::error::{Error, ErrorKind, Result};

/// How long replicas may take.
const PATIENCE: Duration = Duration::from_millis(500);

/// The requests that wait for replicas, by server.
#[derive(Debug)]
pub(crate) struct Replicas {
    config: Arc<Config>,
    lines: Mutex<HashMap<Address, Arc<Line>>>,
}

/// One server.
#[derive(Debug)]
struct Line {
    address: Address,
    pen: tokio::sync::Mutex<Option<Pen>>,
    queue: Mutex<Queue>,
}

/// A connection, and a key on this server to write. In a cluster the key is in any slot of the
/// node, but not in the lock's: that slot may be moving.
#[derive(Debug)]
struct Pen {
    connection: MultiplexedConnection,
    key: String,
}

/// Why the number of replicas is unknown.
#[derive(Clone, Debug)]
struct No {
    kind: ErrorKind,
    why: String,
    retryable: bool,
}

#[derive(Debug, Default)]
struct Queue {
    running: bool,
    waiting: Vec<oneshot::Sender<std::result::Result<i64, No>>>,
}

impl Replicas {
    /// `None` without `replicas=`.
    pub(crate) fn new(config: &Arc<Config>) -> Option<Self> {
        (config.replicas > 0).then(|| Self { config: Arc::clone(config), lines: Mutex::default() })
    }

    /// Waits until enough replicas have everything that this server has answered so far.
    ///
    /// # Errors
    /// `Unavailable` if they do not in time: the write stands, but may be lost with the server.
    pub(crate) async fn have_it(&self, address: &Address, otherwise: &str) -> Result<()> {
        let line = self.line(address);
        let (told, heard) = oneshot::channel();
        let start = {
            let mut queue = line.queue();
            queue.waiting.push(told);
            !std::mem::replace(&mut queue.running, true)
        };
        if start {
            tokio::spawn(serve(Arc::clone(&self.config), Arc::clone(&line)));
        }
        let wanted = self.config.replicas;
        let unsure = |no: No| {
            let message = format!("{address}: {}; with replicas={wanted} {otherwise}", no.why);
            let error = Error::new(no.kind, message).effect_unknown().at_engine(error::NAME);
            if no.retryable { error.retryable() } else { error }
        };
        let too_few = |why| No { kind: ErrorKind::Unavailable, why, retryable: true };
        match heard.await {
            Ok(Ok(have)) if have >= i64::from(wanted) => Ok(()),
            Ok(Ok(have)) => {
                Err(unsure(too_few(format!("{have} of {wanted} replicas acknowledged it within {PATIENCE:?}"))))
            }
            Ok(Err(no)) => Err(unsure(no)),
            Err(_) => Err(unsure(too_few("nobody asked the replicas".to_owned()))),
        }
    }

    fn line(&self, address: &Address) -> Arc<Line> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Line { address: address.clone(), pen: tokio::sync::Mutex::default(), queue: Mutex::default() };
        Arc::clone(lines.entry(address.clone()).or_insert_with(|| Arc::new(new())))
    }
}

impl Line {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves all requests that wait, again and again until there are none.
async fn serve(config: Arc<Config>, line: Arc<Line>) {
    loop {
        let waiting = {
            let mut queue = line.queue();
            queue.running = !queue.waiting.is_empty();
            std::mem::take(&mut queue.waiting)
        };
        if waiting.is_empty() {
            return;
        }
        // All failures but a missing permission may be temporary.
        let retryable = |error: &Error| error.kind() != ErrorKind::Denied;
        let no = |error: Error| No { kind: error.kind(), retryable: retryable(&error), why: error.said() };
        let answer = ask(&config, &line).await.map_err(no);
        for told in waiting {
            // The request may have timed out.
            let _ = told.send(answer.clone());
        }
    }
}

/// How many replicas have the present state.
async fn ask(config: &Config, line: &Line) -> Result<i64> {
    let mut kept = line.pen.lock().await;
    let mut pen = match kept.take() {
        Some(pen) => pen,
        None => pick_up(config, &line.address).await?,
    };
    let mut both = Pipeline::new();
    both.cmd("SET").arg(&pen.key).arg(1).arg("PX").arg(60_000);
    both.cmd("WAIT").arg(config.replicas).arg(PATIENCE.as_millis() as u64);
    let answers = config.clock.timeout(PATIENCE * 2, pen.connection.send_packed_commands(&both, 0, 2)).await;
    let answers = answers.map_err(|_| error::unreachable(&line.address, "no answer to WAIT"))?;
    let answers = answers.map_err(|cause| error::step(&line.address, cause))?;
    let answers = answers.into_iter().map(Value::extract_error).collect::<redis::RedisResult<Vec<_>>>();
    // If the key's slot has moved to another node, the next call chooses another slot.
    let answers = answers.map_err(|cause| error::step(&line.address, cause))?;
    *kept = Some(pen);
    let have = answers.last().and_then(wire::integer);
    have.ok_or_else(|| Error::new(ErrorKind::Corrupt, "WAIT answered no number"))
}

async fn pick_up(config: &Config, address: &Address) -> Result<Pen> {
    let mut connection = connect::node(config, address, None).await?;
    let slot = match config.topology {
        Topology::Cluster(_) => Some(own_slot(config, &mut connection, address).await?),
        _ => None,
    };
    Ok(Pen { connection, key: wire::beside(&config.prefix, 's', slot) })
}

/// Any slot of the node.
async fn own_slot(config: &Config, connection: &mut MultiplexedConnection, address: &Address) -> Result<u16> {
    let mut ask = redis::cmd("CLUSTER");
    ask.arg("SLOTS");
    let asked = config.clock.timeout(PATIENCE, connection.send_packed_command(&ask)).await;
    let answer = asked.map_err(|_| error::unreachable(address, "no answer to CLUSTER SLOTS"))?;
    let answer = answer.and_then(Value::extract_error).map_err(|cause| error::step(address, cause))?;
    let slots = nodes::read_slots(&answer, address).ok_or_else(|| error::odd(address, &answer))?;
    let own: Vec<u16> = (0..).zip(slots).filter(|(_, at)| at.as_ref() == Some(address)).map(|(slot, _)| slot).collect();
    let dice = crate::random::bits() % own.len().max(1) as u128;
    own.get(dice as usize)
        .copied()
        .ok_or_else(|| Error::new(ErrorKind::Unavailable, format!("{address} has no slots (any more)")).retryable())
}
