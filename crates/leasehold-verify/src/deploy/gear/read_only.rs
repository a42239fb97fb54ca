//! A Redis that refuses writes.

use std::net::SocketAddr;

use super::evict::insist;
use crate::deploy::Trouble;
use crate::dice::Dice;

/// Why it refuses writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadOnly {
    /// It follows a master that does not exist: `READONLY`.
    Replica,
    /// It has fewer replicas than writes need: `NOREPLICAS`.
    TooFewReplicas,
}

impl ReadOnly {
    /// Either, where no Sentinel or cluster manages replication.
    pub(super) fn any(dice: &mut Dice) -> Self {
        if dice.one_in(2) { Self::Replica } else { Self::TooFewReplicas }
    }

    /// A description in words.
    pub(super) fn about(self) -> &'static str {
        match self {
            Self::Replica => "a replica of a master that is not there",
            Self::TooFewReplicas => "fewer replicas than writes need",
        }
    }

    pub(super) async fn begin(self, addr: SocketAddr) -> Result<(), Trouble> {
        match self {
            // Nothing listens on port 1.
            Self::Replica => insist(addr, &["REPLICAOF", "127.0.0.1", "1"]).await.map(drop),
            Self::TooFewReplicas => insist(addr, &["CONFIG", "SET", "min-replicas-to-write", "9"]).await.map(drop),
        }
    }

    pub(super) async fn end(self, addr: SocketAddr) -> Result<(), Trouble> {
        match self {
            Self::Replica => insist(addr, &["REPLICAOF", "NO", "ONE"]).await.map(drop),
            Self::TooFewReplicas => insist(addr, &["CONFIG", "SET", "min-replicas-to-write", "0"]).await.map(drop),
        }
    }
}
