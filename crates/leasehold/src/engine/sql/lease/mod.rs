//! The lease table.

mod engine;
mod inspect;
mod lot;
mod news;
mod round;
mod state;
mod step;
mod wire;

pub(super) use self::engine::LeaseEngine;
