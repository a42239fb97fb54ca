//! Waiting until replicas have what was written, on connections of their own: WAIT stalls the one that it is sent on.
//!
//! A server replicates in order. So a small write that comes after a grant, once a replica has it, shows that the replica has the
//! grant, too; and one such write serves all grants before it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Value};
use tokio::sync::oneshot;

use super::config::{Address, Config};
use super::{connect, error, wire};
use crate::error::{Error, ErrorKind, Result};

/// How long replicas may take.
const PATIENCE: Duration = Duration::from_millis(500);

/// Those who wait, by server and key.
#[derive(Debug)]
pub(crate) struct Replicas {
    config: Arc<Config>,
    lines: Mutex<HashMap<(Address, String), Arc<Line>>>,
}

/// One key of one server.
#[derive(Debug)]
struct Line {
    address: Address,
    key: String,
    connection: tokio::sync::Mutex<Option<MultiplexedConnection>>,
    queue: Mutex<Queue>,
}

/// Why nobody knows.
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
    /// `None` if nobody asked for it.
    pub(crate) fn new(config: &Arc<Config>) -> Option<Self> {
        (config.replicas > 0).then(|| Self { config: Arc::clone(config), lines: Mutex::default() })
    }

    /// Waits until enough replicas have all that this server has answered us so far.
    ///
    /// # Errors
    /// `Unavailable` if they do not in time: the write stands, but may be lost with the server.
    pub(crate) async fn have_it(&self, address: &Address, slot: Option<u16>) -> Result<()> {
        let key = wire::beside(&self.config.prefix, 's', slot);
        let line = self.line(address, key);
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
            let message = format!("{address}: {}; with replicas={wanted} the lock does not count as held", no.why);
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

    fn line(&self, address: &Address, key: String) -> Arc<Line> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let line = lines.entry((address.clone(), key.clone())).or_insert_with(|| {
            Arc::new(Line {
                address: address.clone(),
                key,
                connection: tokio::sync::Mutex::default(),
                queue: Mutex::default(),
            })
        });
        Arc::clone(line)
    }
}

impl Line {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks for all who wait, again and again until nobody does.
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
        let no = |error: Error| No { kind: error.kind(), retryable: error.is_retryable(), why: error.said() };
        let answer = ask(&config, &line).await.map_err(no);
        for told in waiting {
            // Whoever has given up does not hear it.
            let _ = told.send(answer.clone());
        }
    }
}

/// How many replicas have the present state.
async fn ask(config: &Config, line: &Line) -> Result<i64> {
    let mut kept = line.connection.lock().await;
    let mut connection = match kept.take() {
        Some(connection) => connection,
        None => connect::node(config, &line.address, None).await?,
    };
    let mut both = Pipeline::new();
    both.cmd("SET").arg(&line.key).arg(1).arg("PX").arg(60_000);
    both.cmd("WAIT").arg(config.replicas).arg(PATIENCE.as_millis() as u64);
    let answers = tokio::time::timeout(PATIENCE * 2, connection.send_packed_commands(&both, 0, 2)).await;
    let answers = answers.map_err(|_| error::unreachable(&line.address, "no answer to WAIT"))?;
    let answers = answers.map_err(|cause| error::step(&line.address, cause))?;
    *kept = Some(connection);
    let have = match answers.into_iter().map(Value::extract_error).collect::<redis::RedisResult<Vec<_>>>() {
        Ok(answers) => answers.last().and_then(wire::integer),
        Err(cause) => return Err(error::step(&line.address, cause)),
    };
    have.ok_or_else(|| Error::new(ErrorKind::Corrupt, "WAIT answered no number"))
}
