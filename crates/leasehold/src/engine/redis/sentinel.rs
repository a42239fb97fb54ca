//! Which server is the master, as the Sentinels say.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::Value;
use redis::aio::MultiplexedConnection;

use super::config::{Address, Config};
use super::{connect, error, wire};
use crate::error::{Error, ErrorKind, Result};

/// Asks all Sentinels at once; the first who knows counts.
pub(crate) async fn master(config: &Config, sentinels: &[Address], name: &str) -> Result<Address> {
    let mut asked: FuturesUnordered<_> = sentinels.iter().map(|address| ask(config, address, name)).collect();
    let mut failed = None;
    while let Some(answer) = asked.next().await {
        match answer {
            Ok(master) => return Ok(master),
            Err(error) => failed = Some(error),
        }
    }
    let cause = failed.map(|error| error.said()).unwrap_or_default();
    let message = format!("no Sentinel knows a master named {name:?} ({cause})");
    Err(Error::new(ErrorKind::Unavailable, message).retryable().at_engine(error::NAME))
}

async fn ask(config: &Config, address: &Address, name: &str) -> Result<Address> {
    let most = config.connect_timeout;
    let asking = async {
        let mut connection = connect::sentinel(config, address).await?;
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("get-master-addr-by-name").arg(name);
        let answer: Option<(String, u16)> =
            ask.query_async(&mut connection).await.map_err(|cause| error::step(address, cause))?;
        let (host, port) = answer
            .ok_or_else(|| Error::new(ErrorKind::Unavailable, format!("{address} knows no such master")).retryable())?;
        Ok(Address { host, port })
    };
    let asked = tokio::time::timeout(most, asking).await;
    asked.unwrap_or_else(|_| Err(error::unreachable(address, &format!("no answer within {most:?}"))))
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
