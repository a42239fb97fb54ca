//! Locks in Redis or Valkey.

mod all;
mod bundles;
mod config;
mod connect;
mod ears;
mod engine;
mod error;
mod inspect;
mod link;
mod mailbox;
mod nodes;
mod renew;
mod replicas;
mod sentinel;
pub mod simple;
mod strict;
mod wire;

use std::sync::Arc;

pub use self::engine::RedisEngine;

use self::config::{Config, Protocol};
use super::{Capabilities, Engine, EngineUrl, Fairness, Fencing};
use crate::clock::Clock;
use crate::error::Result;

/// What it can do.
pub const CAPABILITIES: Capabilities = Capabilities {
    shared: true,
    permits: true,
    reentry: true,
    fairness: Fairness::Fifo,
    fencing: Fencing::Durable,
    inspection: true,
    eviction: true,
    survives: "any client's crash, cut or pause; a restart of the server with its data; lost messages and replies",
    breaks: "a fail-over or restart that forgets a grant (strict mode waits it out), a server clock that jumps forward",
    ..Capabilities::exclusive_only("redis")
};

/// Opens what the URL names.
pub(crate) async fn open(url: &EngineUrl, clock: &Clock) -> Result<Arc<dyn Engine>> {
    let config = Config::read(url)?;
    match config.protocol {
        Protocol::Full => Ok(RedisEngine::open(config, clock).await?),
        Protocol::Simple => Ok(simple::SimpleEngine::open(config, clock).await?),
    }
}
