//! The servers and Sentinels of a test, each at an address.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::DuplexStream;

use super::super::engine::RedisEngine;
use crate::Locks;
use crate::clock::Clock;
use crate::engine::EngineUrl;
use crate::redis_client::{Address, Config, Dialer, Transport};
use crate::types::Result;

/// What accepts connections at an address.
pub(super) trait Host: Send + Sync {
    /// Accepts a connection, or refuses it.
    fn accept(self: Arc<Self>) -> io::Result<DuplexStream>;
}

/// Connects to hosts by their addresses, like `h:6379`. A connection to any other address is refused.
pub(super) struct Network(BTreeMap<&'static str, Arc<dyn Host>>);

impl Network {
    pub(super) fn new(hosts: impl IntoIterator<Item = (&'static str, Arc<dyn Host>)>) -> Arc<Self> {
        Arc::new(Self(hosts.into_iter().collect()))
    }

    /// Opens locks at this URL.
    pub(super) async fn open(self: &Arc<Self>, url: &str, ttl: Duration, clock: &Clock) -> Result<Locks> {
        let mut config = Config::read(&EngineUrl::parse(url)?)?.with_clock(clock);
        config.transport = Transport::InMemory(Arc::clone(self) as _);
        let engine = RedisEngine::open(config, clock).await?;
        Ok(Locks::builder().clock(clock.clone()).ttl(ttl).open_engine(engine))
    }
}

impl Dialer for Network {
    fn dial(&self, address: &Address) -> io::Result<DuplexStream> {
        let host = self.0.get(&*address.to_string()).ok_or(io::ErrorKind::ConnectionRefused)?;
        Arc::clone(host).accept()
    }
}
