//! What `redis:` costs and what it survives, on real servers: lost messages, replies and data, dead and silent clients,
//! servers that are away. The behaviour itself is the suite's.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "a test: what fails here is the finding")]

mod apart;
mod away;
mod clock_back;
mod cost;
mod deaths;
#[cfg(feature = "nightly")]
mod fairness;
mod leftovers;
mod messages;
mod monitor;
#[cfg(feature = "nightly")]
mod mute;
mod reconnect;
mod record;
mod replies;
mod scripts;
pub(crate) mod site;
#[cfg(feature = "nightly")]
mod soak;
pub(crate) mod time;
mod tokens;
