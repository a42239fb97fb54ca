//! The parts that all primitives share, over any engine: the acquire loop, the keeper and the
//! guard.

pub(crate) mod acquire;
pub(crate) mod guard;
pub(crate) mod keeper;
pub(crate) mod shared;
