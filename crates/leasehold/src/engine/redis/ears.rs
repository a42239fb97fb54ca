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
                    Some(Message::Evicted(claim, reason)) => {
                        tracing::warn!(?claim, reason, "evicted");
                        self.mailbox.look(claim);
                        self.losses.post(claim);
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
    bell: Arc<Notify>,
}

/// How many watches are kept that may have been forgotten.
const KEPT: usize = 1024;

impl Watches {
    fn all(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Watch>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What will ring when the key changes, and whether the server will tell.
    pub(crate) fn watch(&self, key: &str) -> (Arc<Notify>, bool) {
        let mut all = self.all();
        if all.len() >= KEPT {
            all.retain(|_, watch| Arc::strong_count(&watch.bell) > 1);
        }
        let watch = all.entry(key.as_bytes().to_vec()).or_default();
        (Arc::clone(&watch.bell), watch.armed)
    }

    /// The server will tell.
    pub(crate) fn armed(&self, key: &str) {
        if let Some(watch) = self.all().get_mut(key.as_bytes()) {
            watch.armed = true;
        }
    }

    fn changed(&self, key: &[u8]) {
        if let Some(watch) = self.all().get_mut(key) {
            watch.armed = false;
            watch.bell.notify_waiters();
        }
    }

    fn all_changed(&self) {
        for watch in self.all().values_mut() {
            watch.armed = false;
            watch.bell.notify_waiters();
        }
    }
}
