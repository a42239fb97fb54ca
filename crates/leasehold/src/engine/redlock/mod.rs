//! Redlock: locks on a majority of independent Redis servers, with a token that fences.
mod config;
pub(crate) mod doctor;
mod engine;
mod error;
mod inspect;
mod node;
mod open;
mod wire;

use std::sync::Arc;

pub use self::engine::RedlockEngine;

use self::config::Config;
use super::{Capabilities, Engine, EngineUrl, Fencing};
use crate::clock::Clock;
use crate::error::Result;

/// What it can do.
pub const CAPABILITIES: Capabilities = Capabilities {
    reentry: true,
    fencing: Fencing::Durable,
    inspection: true,
    eviction: true,
    survives: "any client's crash, cut or pause; the death, hang or cut of any minority of its servers",
    breaks: "servers that restart without their data (strict makes them abstain), clocks that jump on a majority",
    ..Capabilities::exclusive_only("redlock")
};

/// Opens what the URL names.
pub(crate) async fn open(url: &EngineUrl, clock: &Clock) -> Result<Arc<dyn Engine>> {
    Ok(RedlockEngine::open(Config::read(url)?, clock).await?)
}
