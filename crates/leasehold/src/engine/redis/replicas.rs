//! Waits until replicas have the latest writes. It uses connections of its own, since `WAIT` blocks
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

use crate::redis_client::{Address, Config, Topology, connect, error, keys, parse_slots, values};
use crate::types::{Error, ErrorKind, Result};

/// How long replicas may take.
const ACK_TIMEOUT: Duration = Duration::from_millis(500);

/// The requests that wait for replicas, by server.
#[derive(Debug)]
pub(crate) struct ReplicaAcks {
    config: Arc<Config>,
    servers: Mutex<HashMap<Address, Arc<AckServer>>>,
}

/// One server.
#[derive(Debug)]
struct AckServer {
    address: Address,
    wait_connection: tokio::sync::Mutex<Option<WaitConnection>>,
    pending: Mutex<PendingWaits>,
}

/// A connection, and a key on this server to write. In a cluster the key is in any slot of the
/// node, but not in the lock's: that slot may be moving.
#[derive(Debug)]
struct WaitConnection {
    connection: MultiplexedConnection,
    key: String,
}

/// Why the number of replicas is unknown.
#[derive(Clone, Debug)]
struct AckError {
    kind: ErrorKind,
    message: String,
    retryable: bool,
}

#[derive(Debug, Default)]
struct PendingWaits {
    is_running: bool,
    waiting: Vec<oneshot::Sender<std::result::Result<i64, AckError>>>,
}

impl ReplicaAcks {
    /// `None` without `replicas=`.
    pub(crate) fn new(config: &Arc<Config>) -> Option<Self> {
        (config.replicas > 0).then(|| Self { config: Arc::clone(config), servers: Mutex::default() })
    }

    /// Waits until enough replicas have everything that this server has answered so far.
    ///
    /// # Errors
    /// `Unavailable` if they do not in time: the write is stored, but may be lost with the server.
    pub(crate) async fn wait_acknowledged(&self, address: &Address, consequence: &str) -> Result<()> {
        let server = self.server(address);
        let (reply_sender, reply_receiver) = oneshot::channel();
        let start = {
            let mut queue = server.pending();
            queue.waiting.push(reply_sender);
            !std::mem::replace(&mut queue.is_running, true)
        };
        if start {
            tokio::spawn(serve_waits(Arc::clone(&self.config), Arc::clone(&server)));
        }
        let wanted = self.config.replicas;
        let to_error = |failure: AckError| {
            let message = format!("{address}: {}; with replicas={wanted} {consequence}", failure.message);
            let error = Error::new(failure.kind, message).effect_unknown().at_engine(error::NAME);
            if failure.retryable { error.retryable() } else { error }
        };
        let too_few = |reason| AckError { kind: ErrorKind::Unavailable, message: reason, retryable: true };
        match reply_receiver.await {
            Ok(Ok(acknowledged)) if acknowledged >= i64::from(wanted) => Ok(()),
            Ok(Ok(acknowledged)) => Err(to_error(too_few(format!(
                "{acknowledged} of {wanted} replicas acknowledged it within {ACK_TIMEOUT:?}"
            )))),
            Ok(Err(failure)) => Err(to_error(failure)),
            Err(_) => Err(to_error(too_few("the replicas were not queried".to_owned()))),
        }
    }

    fn server(&self, address: &Address) -> Arc<AckServer> {
        let mut lines = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || AckServer {
            address: address.clone(),
            wait_connection: tokio::sync::Mutex::default(),
            pending: Mutex::default(),
        };
        Arc::clone(lines.entry(address.clone()).or_insert_with(|| Arc::new(new())))
    }
}

impl AckServer {
    fn pending(&self) -> MutexGuard<'_, PendingWaits> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves all waiting requests until there are none left.
async fn serve_waits(config: Arc<Config>, server: Arc<AckServer>) {
    loop {
        let waiting = {
            let mut queue = server.pending();
            queue.is_running = !queue.waiting.is_empty();
            std::mem::take(&mut queue.waiting)
        };
        if waiting.is_empty() {
            return;
        }
        // All failures but a missing permission may be temporary.
        let retryable = |error: &Error| error.kind() != ErrorKind::Denied;
        let to_ack_error = |error: Error| AckError {
            kind: error.kind(),
            retryable: retryable(&error),
            message: error.message_without_location(),
        };
        let answer = count_acknowledged(&config, &server).await.map_err(to_ack_error);
        for reply_sender in waiting {
            // The request may have timed out.
            let _ = reply_sender.send(answer.clone());
        }
    }
}

/// How many replicas have the present state.
async fn count_acknowledged(config: &Config, server: &AckServer) -> Result<i64> {
    let mut wait_connection = server.wait_connection.lock().await;
    let mut connection = match wait_connection.take() {
        Some(connection) => connection,
        None => open_wait_connection(config, &server.address).await?,
    };
    let mut pipeline = Pipeline::new();
    pipeline.cmd("SET").arg(&connection.key).arg(1).arg("PX").arg(60_000);
    pipeline.cmd("WAIT").arg(config.replicas).arg(ACK_TIMEOUT.as_millis() as u64);
    let answers =
        config.clock.timeout(ACK_TIMEOUT * 2, connection.connection.send_packed_commands(&pipeline, 0, 2)).await;
    let answers = answers.map_err(|_| error::unreachable(&server.address, "no answer to WAIT"))?;
    let answers = answers.map_err(|cause| error::step_error(&server.address, cause))?;
    let answers = answers.into_iter().map(Value::extract_error).collect::<redis::RedisResult<Vec<_>>>();
    // If the key's slot has moved to another node, the next call chooses another slot.
    let answers = answers.map_err(|cause| error::step_error(&server.address, cause))?;
    *wait_connection = Some(connection);
    let acknowledged = answers.last().and_then(values::integer);
    acknowledged.ok_or_else(|| Error::new(ErrorKind::Corrupt, "the reply to WAIT is not a number"))
}

async fn open_wait_connection(config: &Config, address: &Address) -> Result<WaitConnection> {
    let mut connection = connect::to_node(config, address, None).await?;
    let slot = match config.topology {
        Topology::Cluster(_) => Some(own_slot(config, &mut connection, address).await?),
        _ => None,
    };
    Ok(WaitConnection { connection, key: keys::auxiliary_key(&config.prefix, 's', slot) })
}

/// Any slot of the node.
async fn own_slot(config: &Config, connection: &mut MultiplexedConnection, address: &Address) -> Result<u16> {
    let mut ask = redis::cmd("CLUSTER");
    ask.arg("SLOTS");
    let asked = config.clock.timeout(ACK_TIMEOUT, connection.send_packed_command(&ask)).await;
    let answer = asked.map_err(|_| error::unreachable(address, "no answer to CLUSTER SLOTS"))?;
    let answer = answer.and_then(Value::extract_error).map_err(|cause| error::step_error(address, cause))?;
    let slots = parse_slots(&answer, address).ok_or_else(|| error::unexpected_answer(address, &answer))?;
    let own: Vec<u16> = (0..).zip(slots).filter(|(_, at)| at.as_ref() == Some(address)).map(|(slot, _)| slot).collect();
    let rng = crate::random::random_bits() % own.len().max(1) as u128;
    own.get(rng as usize)
        .copied()
        .ok_or_else(|| Error::new(ErrorKind::Unavailable, format!("{address} has no slots (any more)")).retryable())
}
