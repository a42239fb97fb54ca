//! Which server is the master, as the Sentinels say.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, PushInfo, Value};
use tokio::sync::Notify;

use super::config::{Address, Config};
use super::{connect, error, wire};
use crate::error::{Error, ErrorKind, Result};

/// What the Sentinels tell when a master is replaced: at the end of it, and as soon as the new one is one.
const NEWS: [&str; 2] = ["+switch-master", "+promoted-slave"];
/// How often a Sentinel is asked that tells nothing, and how long one is left alone that does not answer.
const LOOK: Duration = Duration::from_secs(5);
/// How much longer the others may take once most have answered.
const GRACE: Duration = Duration::from_millis(50);

/// Who is the master, and by which of the Sentinels' elections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Elected {
    pub(crate) master: Address,
    pub(crate) epoch: u64,
}

/// Asks all Sentinels at once, and waits for most of them. One may not have heard of the last election yet, so the latest that any
/// of them knows counts.
pub(crate) async fn elected(config: &Config, sentinels: &[Address], name: &str) -> Result<Elected> {
    let asked = sentinels.iter().map(|address| connect_and_ask(config, address, name));
    let mut asked: FuturesUnordered<_> = asked.collect();
    let (mut words, mut failed) = (Vec::new(), None);
    loop {
        let next = if words.len() > sentinels.len() / 2 {
            config.clock.timeout(GRACE, asked.next()).await.unwrap_or(None)
        } else {
            asked.next().await
        };
        match next {
            Some(Ok(word)) => words.push(word),
            Some(Err(error)) => failed = Some(error),
            None => break,
        }
    }
    words.into_iter().max_by_key(|word| word.epoch).ok_or_else(|| {
        let (kind, cause) =
            failed.map_or((ErrorKind::Unavailable, String::new()), |error| (error.kind(), error.said()));
        let message = format!("no Sentinel could say which server is the master {name:?} ({cause})");
        match kind {
            ErrorKind::Denied => Error::new(kind, message),
            _ => Error::new(ErrorKind::Unavailable, message).retryable(),
        }
        .at_engine(error::NAME)
    })
}

async fn connect_and_ask(config: &Config, address: &Address, name: &str) -> Result<Elected> {
    let asking = async { ask(&mut connect::sentinel(config, address).await?, address, name).await };
    bounded(config, address, asking).await
}

async fn bounded<T>(config: &Config, address: &Address, asking: impl Future<Output = Result<T>>) -> Result<T> {
    let most = config.connect_timeout;
    let asked = config.clock.timeout(most, asking).await;
    asked.unwrap_or_else(|_| Err(error::unreachable(address, &format!("no answer within {most:?}"))))
}

async fn ask(connection: &mut MultiplexedConnection, address: &Address, name: &str) -> Result<Elected> {
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
    // A Sentinel that does not tell counts less than those that do.
    let facts = answers.next().and_then(|facts| redis::from_redis_value::<HashMap<String, String>>(facts).ok());
    let epoch = facts.and_then(|facts| facts.get("config-epoch")?.parse().ok()).unwrap_or(0);
    Ok(Elected { epoch, master: Address { host, port } })
}

/// Ends when the Sentinels have elected anew. The old master may well be alive, and take writes that will be lost; or it may be the
/// new one, which has missed what came between.
pub(crate) async fn until_replaced(config: &Config, sentinels: &[Address], name: &str, current: &Elected) {
    let hint = Arc::new(Notify::new());
    let mut listening: FuturesUnordered<_> =
        sentinels.iter().map(|address| listen(config, address, name, current, &hint)).collect();
    loop {
        tokio::select! {
            Some(never) = listening.next() => match never {},
            () = hint.notified() => {
                if elected(config, sentinels, name).await.is_ok_and(|elected| elected != *current) {
                    return;
                }
            }
        }
    }
}

/// Gives a hint whenever this Sentinel does, for ever.
async fn listen(config: &Config, address: &Address, name: &str, current: &Elected, hint: &Arc<Notify>) -> Infallible {
    loop {
        let Err(error) = listen_once(config, address, name, current, hint).await;
        tracing::debug!(%error, "a Sentinel cannot be listened to");
        config.clock.sleep(LOOK).await;
    }
}

async fn listen_once(
    config: &Config,
    address: &Address,
    name: &str,
    current: &Elected,
    hint: &Arc<Notify>,
) -> Result<Infallible> {
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
        if bounded(config, address, ask(&mut connection, address, name)).await? != *current {
            hint.notify_one();
        }
        // Any message, also that the connection has ended, is a reason to ask again.
        let _ = config.clock.timeout(LOOK, news.notified()).await;
    }
}

/// Refuses a server that is not a master: the Sentinels may not have noticed yet, or it may not.
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
