//! The lease table.

mod bells;
mod engine;
mod inspect;
mod lot;
mod news;
mod round;
mod state;
mod step;
mod trial;
mod watch;
mod wire;

pub(super) use self::engine::LeaseEngine;
pub(super) use self::trial::{damage, take_back};
