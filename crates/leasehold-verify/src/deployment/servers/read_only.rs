//! A Redis that refuses writes.

use std::net::SocketAddr;

use super::out_of_memory::command_with_retry;
use crate::deployment::RunError;
use crate::rng::Rng;

/// Why a Redis server refuses writes during the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadOnlyCause {
    /// It is a replica of a master that does not exist, and answers `READONLY`.
    Replica,
    /// It has fewer replicas than it needs to accept writes, and answers `NOREPLICAS`.
    TooFewReplicas,
}

impl ReadOnlyCause {
    /// A random cause, for a server whose replication no Sentinel or cluster manages.
    pub(super) fn random(rng: &mut Rng) -> Self {
        if rng.one_in(2) { Self::Replica } else { Self::TooFewReplicas }
    }

    /// The cause in words.
    pub(super) fn description(self) -> &'static str {
        match self {
            Self::Replica => "a replica of a master that does not exist",
            Self::TooFewReplicas => "fewer replicas than writes need",
        }
    }

    /// Makes the server refuse writes.
    pub(super) async fn apply(self, addr: SocketAddr) -> Result<(), RunError> {
        match self {
            // Nothing listens on port 1, so the replica finds no master.
            Self::Replica => command_with_retry(addr, &["REPLICAOF", "127.0.0.1", "1"]).await.map(drop),
            Self::TooFewReplicas => {
                command_with_retry(addr, &["CONFIG", "SET", "min-replicas-to-write", "9"]).await.map(drop)
            }
        }
    }

    /// Makes the server accept writes again.
    pub(super) async fn revert(self, addr: SocketAddr) -> Result<(), RunError> {
        match self {
            Self::Replica => command_with_retry(addr, &["REPLICAOF", "NO", "ONE"]).await.map(drop),
            Self::TooFewReplicas => {
                command_with_retry(addr, &["CONFIG", "SET", "min-replicas-to-write", "0"]).await.map(drop)
            }
        }
    }
}
