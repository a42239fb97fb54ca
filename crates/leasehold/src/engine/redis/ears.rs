//! What is done with whatever the servers say by themselves.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::{PushInfo, PushKind, Value};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

use super::bundles::Bundles;
use super::config::Address;
use super::link::{Live, Owner};
use super::mailbox::Mailbox;
use super::wire::{self, Message};
use crate::clock::Clock;
use crate::engine::LossBoard;

/// Hears for all claims of one client.
#[derive(Debug)]
pub(crate) struct Ears {
    clock: Clock,
    inbox: String,
    pub(crate) mailbox: Mailbox,
    pub(crate) losses: LossBoard,
    pub(crate) watches: Watches,
    pub(crate) bundles: Bundles,
    /// Rung when a cluster's map may be wrong.
    pub(crate) stale: Arc<Notify>,
    /// Told of each server that we have (again) reached.
    pub(crate) reached: Option<UnboundedSender<Address>>,
}

impl Ears {
    pub(crate) fn new(clock: &Clock, inbox: &str, reached: Option<UnboundedSender<Address>>) -> Self {
        Self {
            clock: clock.clone(),
            inbox: inbox.to_owned(),
            mailbox: Mailbox::default(),
            losses: LossBoard::default(),
            watches: Watches::default(),
            bundles: Bundles::default(),
            stale: Arc::default(),
            reached,
        }
    }

    /// Messages may have been missed, and locks lost.
    fn doubt(&self) {
        self.mailbox.look_all();
        self.watches.all_changed();
        self.bundles.doubt(self.clock.now());
        self.losses.doubt();
    }
}

impl Owner for Ears {
    fn message(&self, info: PushInfo) {
        match (info.kind, &info.data[..]) {
            (PushKind::Message | PushKind::SMessage, [channel, text]) => {
                if wire::bytes(channel) != Some(self.inbox.as_bytes()) {
                    return;
                }
                match wire::bytes(text).and_then(Message::read) {
                    Some(Message::Granted(claim, token, place)) => self.mailbox.granted(claim, token, place),
                    Some(Message::Look(claim)) => self.mailbox.look(claim),
                    Some(Message::Evicted(claim, place, reason)) => {
                        tracing::warn!(?claim, reason, "evicted");
                        self.mailbox.evicted(claim, place);
                        self.losses.post(claim);
                    }
                    Some(Message::ReleaseRequested(claim, reason)) => {
                        tracing::info!(?claim, reason, "asked to release");
                        self.losses.request_release(claim);
                    }
                    None => tracing::warn!("a message that is not understood came to our inbox"),
                }
            }
            (PushKind::Invalidate, [Value::Array(keys)]) => {
                for key in keys.iter().filter_map(wire::bytes) {
                    self.watches.changed(key);
                }
            }
            (PushKind::Invalidate, _) => self.watches.all_changed(),
            _ => {}
        }
    }

    fn up(&self, live: &Live, again: bool) {
        if again {
            self.doubt();
        }
        if let Some(reached) = &self.reached {
            // Nobody listens any more only while the engine is going away.
            let _ = reached.send(live.address.clone());
        }
    }

    fn down(&self) {
        self.stale.notify_one();
    }

    fn moved(&self) {
        self.doubt();
    }
}

/// Locks of which somebody wants to know when they change. The server tells of a change once (client tracking), and must be
/// asked to tell again.
#[derive(Debug, Default)]
pub(crate) struct Watches(Mutex<HashMap<Vec<u8>, Watch>>);

#[derive(Debug, Default)]
struct Watch {
    /// Whether the server will tell.
    armed: bool,
    /// How often it has changed: what was asked for before the last change will not be told again.
    changes: u64,
    bell: Arc<Notify>,
}

/// How many watches are kept that may have been forgotten.
const KEPT: usize = 1024;

impl Watches {
    fn all(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Watch>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What will ring when the key changes, and `None` if the server will tell; otherwise how often it has changed, for
    /// [`armed`](Self::armed).
    pub(crate) fn watch(&self, key: &str) -> (Arc<Notify>, Option<u64>) {
        let mut all = self.all();
        if all.len() >= KEPT {
            all.retain(|_, watch| Arc::strong_count(&watch.bell) > 1);
        }
        let watch = all.entry(key.as_bytes().to_vec()).or_default();
        (Arc::clone(&watch.bell), (!watch.armed).then_some(watch.changes))
    }

    /// The server will tell, unless it has done so since.
    pub(crate) fn armed(&self, key: &str, changes: u64) {
        if let Some(watch) = self.all().get_mut(key.as_bytes()) {
            watch.armed = watch.changes == changes;
        }
    }

    fn changed(&self, key: &[u8]) {
        if let Some(watch) = self.all().get_mut(key) {
            watch.changed();
        }
    }

    fn all_changed(&self) {
        for watch in self.all().values_mut() {
            watch.changed();
        }
    }
}

impl Watch {
    fn changed(&mut self) {
        self.armed = false;
        self.changes += 1;
        self.bell.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_comes_before_we_know_that_it_is_watched_for_is_not_watched_for_again() {
        let watches = Watches::default();
        let (_, asked) = watches.watch("k");
        // The server has been asked, and told already, before our task runs again.
        watches.changed(b"k");
        watches.armed("k", asked.unwrap());
        assert!(watches.watch("k").1.is_some());
    }
}
