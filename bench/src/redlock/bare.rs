//! The bare floor: `SET NX PX` and the compare-and-delete script, sent to all nodes at once by the
//! same client library.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::nodes::Nodes;
use crate::redis::Oops;
use crate::redis::floor::Floor;

/// A connection to each node.
pub(crate) struct Bare {
    nodes: Vec<Floor>,
    /// How many replies to wait for.
    wait: usize,
    key: String,
}

impl Bare {
    pub(crate) async fn open(nodes: &Nodes, count: usize, wait: usize) -> Result<Self, Oops> {
        let mut open = Vec::new();
        for url in nodes.urls(count) {
            open.push(Floor::open(&url).await?);
        }
        Ok(Self { nodes: open, wait, key: format!("bare-{wait}-of-{count}") })
    }

    /// Acquires and releases. The other replies arrive later, in order: a connection keeps the
    /// order of its replies.
    pub(crate) async fn cycle(&mut self) -> Result<(), Oops> {
        let (key, wait) = (&self.key, self.wait);
        let mut takes: FuturesUnordered<_> = self.nodes.iter_mut().map(|node| node.take(key)).collect();
        for _ in 0..wait {
            if !takes.next().await.ok_or("too few nodes")?? {
                return Err("the floor's lock was held".into());
            }
        }
        drop(takes);
        let mut gives: FuturesUnordered<_> = self.nodes.iter_mut().map(|node| node.give(key)).collect();
        for _ in 0..wait {
            if !gives.next().await.ok_or("too few nodes")?? {
                return Err("the floor's lock was not its own".into());
            }
        }
        Ok(())
    }
}
