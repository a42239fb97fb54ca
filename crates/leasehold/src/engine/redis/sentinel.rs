//! Which server is the master, according to the Sentinels. [`election`](crate::logic::election)
//! describes which Sentinel counts if they disagree, and what happens if one hangs, dies, answers
//! wrongly or is deployed again.

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
use super::{connect, error, wire};
use crate::error::{Error, ErrorKind, Result};
use crate::logic::election::{Choice, Followed, Named};

/// Events that Sentinels publish when a master is replaced: at the end of the fail-over, and as
/// soon as the new server is the master.
const NEWS: [&str; 2] = ["+switch-master", "+promoted-slave"];
/// How often a Sentinel that publishes nothing is asked, and how long to wait before a failed one
/// is tried again.
const LOOK: Duration = Duration::from_secs(5);
/// How much longer to wait for the other Sentinels once most have answered.
const GRACE: Duration = Duration::from_millis(200);

/// The Sentinels of one master, and which of their elections is followed.
#[derive(Debug)]
pub(crate) struct Sentinels {
    addresses: Vec<Address>,
    name: String,
    followed: Mutex<Followed<Address>>,
}

/// The master, and the number of the election that made it so; see [`Followed::number`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Elected {
    pub(crate) master: Address,
    pub(crate) number: u64,
}

impl Sentinels {
    pub(crate) fn new(addresses: &[Address], name: &str) -> Self {
        let followed = Mutex::new(Followed::new(addresses.len()));
        Self { addresses: addresses.to_vec(), name: name.to_owned(), followed }
    }

    fn followed(&self) -> MutexGuard<'_, Followed<Address>> {
        lock(&self.followed)
    }

    /// Asks all Sentinels at once. It waits for most of them and a moment longer.
    ///
    /// - If those that answered know only older elections, it waits for all, or for the connect
    ///   timeout.
    /// - If no election was followed so far, it waits for all, too: a client that knows no election
    ///   cannot tell an old one from the newest. Once most have answered, it waits for a quarter of
    ///   the connect timeout at most, because one Sentinel that hangs must not keep the client out.
    ///
    /// [`election`](crate::logic::election) describes which one counts.
    ///
    /// # Errors
    /// `Unavailable` if no Sentinel responds, or if those that do name an older election than the
    /// one that was followed.
    pub(crate) async fn elected(&self, config: &Config) -> Result<Elected> {
        let asked = self.addresses.iter().map(|address| self.connect_and_ask(config, address));
        let mut asked: FuturesUnordered<_> = asked.collect();
        let (mut named, mut failed) = (Vec::new(), None);
        let mut most_have_answered = None;
        loop {
            let (enough, first) = {
                let followed = self.followed();
                (followed.is_enough(&named), followed.current().is_none())
            };
            if first && named.len() > self.addresses.len() / 2 {
                most_have_answered.get_or_insert_with(|| config.clock.now());
            }
            let patience = match most_have_answered {
                _ if enough => Some(GRACE),
                Some(since) => Some((since.after(config.connect_timeout / 4)).since(config.clock.now())),
                None => None,
            };
            let next = match patience {
                Some(patience) => config.clock.timeout(patience, asked.next()).await.unwrap_or(None),
                None => asked.next().await,
            };
            match next {
                Some(Ok(one)) => named.push(one),
                Some(Err(error)) => failed = Some(error),
                None => break,
            }
        }
        if named.is_empty() {
            return Err(self.no_answer(failed));
        }
        let mut followed = self.followed();
        let choice = followed.hear(config.clock.now(), &named);
        match followed.current() {
            Some(current) if choice != Choice::Older => {
                Ok(Elected { master: current.master.clone(), number: followed.number() })
            }
            current => Err(self.older(current, &named)),
        }
    }

    fn no_answer(&self, failed: Option<Error>) -> Error {
        let (kind, cause) =
            failed.map_or((ErrorKind::Unavailable, String::new()), |error| (error.kind(), error.said()));
        let message = format!("no Sentinel could say which server is the master {:?} ({cause})", self.name);
        match kind {
            ErrorKind::Denied => Error::new(kind, message),
            _ => Error::new(ErrorKind::Unavailable, message).retryable(),
        }
        .at_engine(error::NAME)
    }

    fn older(&self, current: Option<&Named<Address>>, named: &[Named<Address>]) -> Error {
        let epoch = |one: &Named<Address>| one.epoch.map_or("?".to_owned(), |epoch| epoch.to_string());
        let said: Vec<_> = named.iter().map(|one| format!("{} (epoch {})", one.master, epoch(one))).collect();
        let known = current.map(|one| format!("{} (epoch {})", one.master, epoch(one))).unwrap_or_default();
        let message = format!(
            "the Sentinels that answer name an older master of {:?}, {}, than the last one, {known}; waiting until they \
             agree",
            self.name,
            said.join(", ")
        );
        Error::new(ErrorKind::Unavailable, message).retryable().at_engine(error::NAME)
    }

    async fn connect_and_ask(&self, config: &Config, address: &Address) -> Result<Named<Address>> {
        let asking = async { ask(&mut connect::sentinel(config, address).await?, address, &self.name).await };
        bounded(config, address, asking).await
    }

    /// Returns when the Sentinels have held a new election. The old master may still be alive, and
    /// accept writes that will be lost. It may also be the new master, and have missed the writes
    /// in between.
    pub(crate) async fn until_replaced(&self, config: &Config, current: &Elected) {
        let said: Said = Mutex::new(vec![None; self.addresses.len()]);
        let change = Notify::new();
        let mut listening: FuturesUnordered<_> =
            (0..self.addresses.len()).map(|at| self.listen(config, at, &said, &change)).collect();
        loop {
            tokio::select! {
                Some(never) = listening.next() => match never {},
                () = change.notified() => {
                    let named: Vec<_> = lock(&said).iter().flatten().cloned().collect();
                    let mut followed = self.followed();
                    let _ = followed.hear(config.clock.now(), &named);
                    let same = followed.current().is_some_and(|now| now.master == current.master);
                    if !same || followed.number() != current.number {
                        return;
                    }
                }
            }
        }
    }

    /// Keeps the last answer of this Sentinel up to date, for ever.
    async fn listen(&self, config: &Config, at: usize, said: &Said, change: &Notify) -> Infallible {
        loop {
            let Err(error) = self.listen_once(config, at, said, change).await;
            // Its last answer may be long out of date.
            lock(said)[at] = None;
            tracing::debug!(%error, "a Sentinel cannot be listened to");
            config.clock.sleep(LOOK).await;
        }
    }

    async fn listen_once(&self, config: &Config, at: usize, said: &Said, change: &Notify) -> Result<Infallible> {
        let address = &self.addresses[at];
        let news = Arc::new(Notify::new());
        let told = Arc::clone(&news);
        let hear: connect::Hear = Arc::new(move |_: PushInfo| told.notify_one());
        let mut connection = bounded(config, address, async {
            let mut connection = connect::telling_sentinel(config, address, hear).await?;
            for channel in NEWS {
                connection.subscribe(channel).await.map_err(|cause| error::step(address, cause))?;
            }
            Ok(connection)
        })
        .await?;
        loop {
            let named = bounded(config, address, ask(&mut connection, address, &self.name)).await?;
            lock(said)[at] = Some(named);
            change.notify_one();
            // Any message, and the end of the connection as well, is a reason to ask again.
            let _ = config.clock.timeout(LOOK, news.notified()).await;
        }
    }
}

/// The last answer of each Sentinel.
type Said = Mutex<Vec<Option<Named<Address>>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn bounded<T>(config: &Config, address: &Address, asking: impl Future<Output = Result<T>>) -> Result<T> {
    let most = config.connect_timeout;
    let asked = config.clock.timeout(most, asking).await;
    asked.unwrap_or_else(|_| Err(error::unreachable(address, &format!("no answer within {most:?}"))))
}

async fn ask(connection: &mut MultiplexedConnection, address: &Address, name: &str) -> Result<Named<Address>> {
    let mut both = Pipeline::new();
    both.cmd("SENTINEL").arg("get-master-addr-by-name").arg(name);
    both.cmd("SENTINEL").arg("MASTER").arg(name);
    let failed = |cause| error::step(address, cause);
    let answers = connection.send_packed_commands(&both, 0, 2).await.map_err(failed)?;
    let mut answers = answers.into_iter();
    let named = answers.next().unwrap_or(Value::Nil).extract_error().map_err(failed)?;
    let named: Option<(String, u16)> = redis::from_redis_value(named).map_err(|cause| failed(cause.into()))?;
    let (host, port) = named
        .ok_or_else(|| Error::new(ErrorKind::Unavailable, format!("{address} knows no such master")).retryable())?;
    // A Sentinel that does not report its epoch counts less than those that do.
    let facts = answers.next().and_then(|facts| redis::from_redis_value::<HashMap<String, String>>(facts).ok());
    let epoch = facts.and_then(|facts| facts.get("config-epoch")?.parse().ok());
    Ok(Named { master: Address { host, port }, epoch })
}

/// Refuses a server that is not a master: the Sentinels, or the server itself, may not have noticed
/// a fail-over yet.
pub(crate) async fn is_master(connection: &mut MultiplexedConnection, address: &Address) -> Result<()> {
    let role = connection.send_packed_command(&redis::cmd("ROLE")).await;
    let role = role.and_then(Value::extract_error).map_err(|cause| error::step(address, cause))?;
    let master = matches!(&role, Value::Array(parts) if parts.first().and_then(wire::bytes) == Some(b"master"));
    if master {
        return Ok(());
    }
    let message = format!("{address} is said to be the master, and is not (yet)");
    Err(Error::new(ErrorKind::Unavailable, message).retryable().at_engine(error::NAME))
}
