//! What `redis:` costs and survives on real servers: lost messages, replies and data, dead and
//! unresponsive clients, unreachable servers. The suite covers the behaviour itself.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "tests report failures by panicking")]

mod clock_back;
mod cost;
mod deaths;
#[cfg(feature = "nightly")]
mod fairness;
pub(crate) mod fixture;
mod formats;
mod isolation;
mod leftovers;
mod lock_record;
mod lost_messages;
mod lost_replies;
pub(crate) mod manual_time;
mod monitor;
#[cfg(feature = "nightly")]
mod mute_connection;
mod reconnect;
mod scripts;
#[cfg(feature = "nightly")]
mod soak;
mod tokens;
mod unreachable;
