//! Handles the push messages of the servers.

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

/// Receives the messages for all claims of one client.
#[derive(Debug)]
pub(crate) struct Ears {
    clock: Clock,
    inbox: String,
    pub(crate) mailbox: Mailbox,
    pub(crate) losses: LossBoard,
    pub(crate) watches: Watches,
    pub(crate) bundles: Bundles,
    /// Notified when a cluster's map may be wrong.
    pub(crate) stale: Arc<Notify>,
    /// Receives each server that we have reached, or reached again.
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
            // The receiver is gone only while the engine shuts down.
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

/// Locks that are watched for changes. The server reports one change (client tracking), and must
/// then be asked again.
#[derive(Debug, Default)]
pub(crate) struct Watches(Mutex<HashMap<Vec<u8>, Watch>>);

#[derive(Debug, Default)]
struct Watch {
    /// Whether the server will report the next change.
    armed: bool,
    /// How many changes there were: a request from before the last change has already been served.
    changes: u64,
    bell: Arc<Notify>,
}

/// Above this number, watches without a subscriber are removed.
const KEPT: usize = 1024;

impl Watches {
    fn all(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Watch>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is notified when the key changes; and `None` if the server will report the change,
    /// otherwise the number of changes so far, for [`armed`](Self::armed).
    pub(crate) fn watch(&self, key: &str) -> (Arc<Notify>, Option<u64>) {
        let mut all = self.all();
        if all.len() >= KEPT {
            all.retain(|_, watch| Arc::strong_count(&watch.bell) > 1);
        }
        let watch = all.entry(key.as_bytes().to_vec()).or_default();
        (Arc::clone(&watch.bell), (!watch.armed).then_some(watch.changes))
    }

    /// The server will report the next change, unless it has done so since.
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
        // The server has been asked, and has already reported a change, before our task runs again.
        watches.changed(b"k");
        watches.armed("k", asked.unwrap());
        assert!(watches.watch("k").1.is_some());
    }
}
