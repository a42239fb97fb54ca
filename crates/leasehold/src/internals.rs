//! What leasehold's own crates use of the inside. They reach it through the crate
//! `leasehold-internals`, which has no stable interface.

/// The pure decisions.
pub mod logic {
    pub use crate::logic::*;
}
/// Random bits and delays.
pub mod random {
    pub use crate::random::*;
}
