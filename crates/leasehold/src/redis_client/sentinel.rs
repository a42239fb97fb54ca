//! Which server is the master, according to the Sentinels.
//! [`sentinel_election`](crate::logic::sentinel_election) describes which Sentinel counts if they
//! disagree, and what happens if one hangs, dies, answers wrongly or is deployed again.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, PushInfo, Value};
use tokio::sync::Notify;

use super::config::{Address, Config};
use super::{connect, error, values};
use crate::logic::sentinel_election::{FollowedMaster, MasterChoice, MasterReport};
use crate::types::{Error, ErrorKind, Result};

/// Events that Sentinels publish when a master is replaced: at the end of the fail-over, and as
/// soon as the new server is the master.
const MASTER_CHANGE_CHANNELS: [&str; 2] = ["+switch-master", "+promoted-slave"];
/// How often to query a Sentinel that publishes nothing, and how long to wait before a failed one
/// is tried again.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// How much longer to wait for the other Sentinels once most have answered.
const GRACE: Duration = Duration::from_millis(200);

/// The Sentinels of one master, and which of their elections is followed.
#[derive(Debug)]
pub struct Sentinels {
    addresses: Vec<Address>,
    name: String,
    followed: Mutex<FollowedMaster<Address>>,
}

/// The master, and the number of the election that made it so; see
/// [`FollowedMaster::election_number`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ElectedMaster {
    pub(super) master: Address,
    pub(super) number: u64,
}

impl Sentinels {
    pub(super) fn new(addresses: &[Address], name: &str) -> Self {
        let followed = Mutex::new(FollowedMaster::new(addresses.len()));
        Self { addresses: addresses.to_vec(), name: name.to_owned(), followed }
    }

    fn followed(&self) -> MutexGuard<'_, FollowedMaster<Address>> {
        lock(&self.followed)
    }

    /// Queries all Sentinels at once. It waits for most of them and a moment longer.
    ///
    /// - If those that answered know only older elections, it waits for all, or for the connect
    ///   timeout.
    /// - If no election was followed so far, it waits for all, too: a client that knows no election
    ///   cannot distinguish an old one from the newest. Once most have answered, it waits for a
    ///   quarter of the connect timeout at most, because one Sentinel that hangs must not keep the
    ///   client out.
    ///
    /// [`sentinel_election`](crate::logic::sentinel_election) describes which one counts.
    ///
    /// # Errors
    /// `Unavailable` if no Sentinel responds, or if those that do name an older election than the
    /// one that was followed.
    pub(super) async fn find_master(&self, config: &Config) -> Result<ElectedMaster> {
        let asked = self.addresses.iter().map(|address| self.connect_and_ask(config, address));
        let mut asked: FuturesUnordered<_> = asked.collect();
        let (mut named, mut failed) = (Vec::new(), None);
        let mut most_have_answered = None;
        loop {
            let (enough, first) = {
                let followed = self.followed();
                (followed.has_enough_answers(&named), followed.current().is_none())
            };
            if first && named.len() > self.addresses.len() / 2 {
                most_have_answered.get_or_insert_with(|| config.clock.now());
            }
            let timeout = match most_have_answered {
                _ if enough => Some(GRACE),
                Some(since) => {
                    Some((since.saturating_add(config.connect_timeout / 4)).duration_since(config.clock.now()))
                }
                None => None,
            };
            let next = match timeout {
                Some(timeout) => config.clock.timeout(timeout, asked.next()).await.unwrap_or(None),
                None => asked.next().await,
            };
            match next {
                Some(Ok(report)) => named.push(report),
                Some(Err(error)) => failed = Some(error),
                None => break,
            }
        }
        if named.is_empty() {
            return Err(self.no_answer_error(failed));
        }
        let mut followed = self.followed();
        let choice = followed.choose(config.clock.now(), &named);
        match followed.current() {
            Some(current) if choice != MasterChoice::WaitForMajority => {
                Ok(ElectedMaster { master: current.master.clone(), number: followed.election_number() })
            }
            current => Err(self.older_election_error(current, &named)),
        }
    }

    fn no_answer_error(&self, failed: Option<Error>) -> Error {
        let (kind, cause) = failed
            .map_or((ErrorKind::Unavailable, String::new()), |error| (error.kind(), error.message_without_location()));
        let message = format!("no Sentinel names the master {:?} ({cause})", self.name);
        match kind {
            ErrorKind::Denied => Error::new(kind, message),
            _ => Error::new(ErrorKind::Unavailable, message).retryable(),
        }
        .at_engine(error::NAME)
    }

    fn older_election_error(&self, current: Option<&MasterReport<Address>>, named: &[MasterReport<Address>]) -> Error {
        let epoch = |report: &MasterReport<Address>| report.epoch.map_or("?".to_owned(), |epoch| epoch.to_string());
        let said: Vec<_> = named.iter().map(|report| format!("{} (epoch {})", report.master, epoch(report))).collect();
        let known = current.map(|report| format!("{} (epoch {})", report.master, epoch(report))).unwrap_or_default();
        let message = format!(
            "the Sentinels that answer name an older master of {:?}, {}, than the last one, {known}; waiting until they \
             agree",
            self.name,
            said.join(", ")
        );
        Error::new(ErrorKind::Unavailable, message).retryable().at_engine(error::NAME)
    }

    async fn connect_and_ask(&self, config: &Config, address: &Address) -> Result<MasterReport<Address>> {
        let reply =
            async { query_master(&mut connect::to_sentinel(config, address).await?, address, &self.name).await };
        with_timeout(config, address, reply).await
    }

    /// Returns when the Sentinels have held a new election. The old master may still be alive, and
    /// accept writes that will be lost. It may also be the new master, and have missed the writes
    /// in between.
    pub(super) async fn until_replaced(&self, config: &Config, current: &ElectedMaster) {
        let said: LastAnswers = Mutex::new(vec![None; self.addresses.len()]);
        let change = Notify::new();
        let mut listening: FuturesUnordered<_> =
            (0..self.addresses.len()).map(|at| self.watch_sentinel(config, at, &said, &change)).collect();
        loop {
            tokio::select! {
                Some(never) = listening.next() => match never {},
                () = change.notified() => {
                    let named: Vec<_> = lock(&said).iter().flatten().cloned().collect();
                    let mut followed = self.followed();
                    let _ = followed.choose(config.clock.now(), &named);
                    let same = followed.current().is_some_and(|now| now.master == current.master);
                    if !same || followed.election_number() != current.number {
                        return;
                    }
                }
            }
        }
    }

    /// Keeps the last answer of this Sentinel up to date.
    async fn watch_sentinel(
        &self,
        config: &Config,
        at: usize,
        last_answers: &LastAnswers,
        change: &Notify,
    ) -> Infallible {
        loop {
            let Err(error) = self.watch_sentinel_once(config, at, last_answers, change).await;
            // Its last answer may be long out of date.
            lock(last_answers)[at] = None;
            tracing::debug!(%error, "cannot subscribe to a Sentinel");
            config.clock.sleep(POLL_INTERVAL).await;
        }
    }

    async fn watch_sentinel_once(
        &self,
        config: &Config,
        at: usize,
        last_answers: &LastAnswers,
        change: &Notify,
    ) -> Result<Infallible> {
        let address = &self.addresses[at];
        let changed = Arc::new(Notify::new());
        let notify = Arc::clone(&changed);
        let on_push: connect::PushHandler = Arc::new(move |_: PushInfo| notify.notify_one());
        let mut connection = with_timeout(config, address, async {
            let mut connection = connect::to_sentinel_with_pushes(config, address, on_push).await?;
            for channel in MASTER_CHANGE_CHANNELS {
                connection.subscribe(channel).await.map_err(|cause| error::step_error(address, cause))?;
            }
            Ok(connection)
        })
        .await?;
        loop {
            let named = with_timeout(config, address, query_master(&mut connection, address, &self.name)).await?;
            lock(last_answers)[at] = Some(named);
            change.notify_one();
            // Any message, and the end of the connection as well, is a reason to query again.
            let _ = config.clock.timeout(POLL_INTERVAL, changed.notified()).await;
        }
    }
}

/// The last answer of each Sentinel.
type LastAnswers = Mutex<Vec<Option<MasterReport<Address>>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn with_timeout<T>(config: &Config, address: &Address, request: impl Future<Output = Result<T>>) -> Result<T> {
    let timeout = config.connect_timeout;
    let asked = config.clock.timeout(timeout, request).await;
    asked.unwrap_or_else(|_| Err(error::unreachable(address, &format!("no answer within {timeout:?}"))))
}

async fn query_master(
    connection: &mut MultiplexedConnection,
    address: &Address,
    name: &str,
) -> Result<MasterReport<Address>> {
    let mut pipeline = Pipeline::new();
    pipeline.cmd("SENTINEL").arg("get-master-addr-by-name").arg(name);
    pipeline.cmd("SENTINEL").arg("MASTER").arg(name);
    let failed = |cause| error::step_error(address, cause);
    let answers = connection.send_packed_commands(&pipeline, 0, 2).await.map_err(failed)?;
    let mut answers = answers.into_iter();
    let named = answers.next().unwrap_or(Value::Nil).extract_error().map_err(failed)?;
    let named: Option<(String, u16)> = redis::from_redis_value(named).map_err(|cause| failed(cause.into()))?;
    let (host, port) = named
        .ok_or_else(|| Error::new(ErrorKind::Unavailable, format!("{address} knows no such master")).retryable())?;
    // A Sentinel that does not report its epoch counts less than those that do.
    let fields = answers.next().and_then(|fields| redis::from_redis_value::<HashMap<String, String>>(fields).ok());
    let epoch = fields.and_then(|fields| fields.get("config-epoch")?.parse().ok());
    Ok(MasterReport { master: Address { host, port }, epoch })
}

/// Refuses a server that is not a master: the Sentinels, or the server itself, may not have noticed
/// a fail-over yet.
pub(super) async fn ensure_master(connection: &mut MultiplexedConnection, address: &Address) -> Result<()> {
    let role = connection.send_packed_command(&redis::cmd("ROLE")).await;
    let role = role.and_then(Value::extract_error).map_err(|cause| error::step_error(address, cause))?;
    let master = matches!(&role, Value::Array(parts) if parts.first().and_then(values::bytes) == Some(b"master"));
    if master {
        return Ok(());
    }
    let message = format!("{address} is not the master (yet), although Sentinels name it");
    Err(Error::new(ErrorKind::Unavailable, message).retryable().at_engine(error::NAME))
}
