//! The bare baseline: `SET NX PX` and the compare-and-delete script, sent to all nodes at once by
//! the same client library.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::nodes::BenchNodes;
use crate::redis::BoxError;
use crate::redis::baseline::Baseline;

/// A connection to each node.
pub(crate) struct QuorumBaseline {
    nodes: Vec<Baseline>,
    /// How many nodes' replies a cycle waits for.
    needed_replies: usize,
    key: String,
}

impl QuorumBaseline {
    pub(crate) async fn open(nodes: &BenchNodes, count: usize, needed_replies: usize) -> Result<Self, BoxError> {
        let mut open = Vec::new();
        for url in nodes.urls(count) {
            open.push(Baseline::open(&url).await?);
        }
        Ok(Self { nodes: open, needed_replies, key: format!("bare-{needed_replies}-of-{count}") })
    }

    /// Acquires and releases the lock once. Replies that it does not wait for arrive later; each
    /// connection keeps the order of its replies.
    pub(crate) async fn run_cycle(&mut self) -> Result<(), BoxError> {
        let (key, wait) = (&self.key, self.needed_replies);
        let mut acquires: FuturesUnordered<_> = self.nodes.iter_mut().map(|node| node.acquire(key)).collect();
        for _ in 0..wait {
            if !acquires.next().await.ok_or("too few nodes")?? {
                return Err("the baseline's lock was held".into());
            }
        }
        drop(acquires);
        let mut releases: FuturesUnordered<_> = self.nodes.iter_mut().map(|node| node.release(key)).collect();
        for _ in 0..wait {
            if !releases.next().await.ok_or("too few nodes")?? {
                return Err("the baseline's lock was not its own".into());
            }
        }
        Ok(())
    }
}
