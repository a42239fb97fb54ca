//! Handles the push messages of the servers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::{PushInfo, PushKind, Value};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

use super::pending_grants::PendingGrants;
use super::renewal_groups::RenewalGroups;
use crate::clock::Clock;
use crate::engine::LossBroadcaster;
use crate::redis_client::{
    Address, ForceReleased, Granted, LinkListener, LiveConnection, Message, Recheck, ReleaseRequested, values,
};

/// Receives the messages for all claims of one client.
#[derive(Debug)]
pub(crate) struct Subscriber {
    clock: Clock,
    inbox: String,
    pub(crate) pending_grants: PendingGrants,
    pub(crate) losses: LossBroadcaster,
    pub(crate) key_watches: KeyWatches,
    pub(crate) renewal_groups: RenewalGroups,
    /// Notified when a cluster's map may be wrong.
    pub(crate) map_stale: Arc<Notify>,
    /// Receives each server that this client has reached, or reached again.
    pub(crate) reached_servers: Option<UnboundedSender<Address>>,
}

impl Subscriber {
    pub(crate) fn new(clock: &Clock, inbox: &str, reached_servers: Option<UnboundedSender<Address>>) -> Self {
        Self {
            clock: clock.clone(),
            inbox: inbox.to_owned(),
            pending_grants: PendingGrants::default(),
            losses: LossBroadcaster::default(),
            key_watches: KeyWatches::default(),
            renewal_groups: RenewalGroups::default(),
            map_stale: Arc::default(),
            reached_servers,
        }
    }

    /// Messages may have been missed, and locks lost.
    fn resync(&self) {
        self.pending_grants.request_recheck_all();
        self.key_watches.notify_all_changed();
        self.renewal_groups.require_resync(self.clock.now());
        self.losses.report_resync();
    }
}

impl LinkListener for Subscriber {
    fn on_message(&self, info: PushInfo) {
        match (info.kind, &info.data[..]) {
            (PushKind::Message | PushKind::SMessage, [channel, text]) => {
                if values::bytes(channel) != Some(self.inbox.as_bytes()) {
                    return;
                }
                match values::bytes(text).and_then(Message::read) {
                    Some(Message::Granted(Granted { claim, token, place })) => {
                        self.pending_grants.add_grant(claim, token, place)
                    }
                    Some(Message::Recheck(Recheck { claim })) => self.pending_grants.request_recheck(claim),
                    Some(Message::ForceReleased(ForceReleased { claim, place, reason })) => {
                        tracing::warn!(?claim, %reason, "force released");
                        self.pending_grants.set_force_released(claim, place);
                        self.losses.report_lost(claim);
                    }
                    Some(Message::ReleaseRequested(ReleaseRequested { claim, reason })) => {
                        tracing::info!(?claim, %reason, "release requested");
                        self.losses.report_release_request(claim);
                    }
                    None => tracing::warn!("the inbox received a message in an unknown format"),
                }
            }
            (PushKind::Invalidate, [Value::Array(keys)]) => {
                for key in keys.iter().filter_map(values::bytes) {
                    self.key_watches.notify_changed(key);
                }
            }
            (PushKind::Invalidate, _) => self.key_watches.notify_all_changed(),
            _ => {}
        }
    }

    fn on_connected(&self, live: &LiveConnection, again: bool) {
        if again {
            self.resync();
        }
        if let Some(reached) = &self.reached_servers {
            // The receiver is dropped only while the engine shuts down.
            let _ = reached.send(live.address.clone());
        }
    }

    fn on_disconnected(&self) {
        self.map_stale.notify_one();
    }

    fn on_slots_moved(&self) {
        self.resync();
    }
}

/// Locks that are watched for changes. The server reports one change (client tracking), and must
/// then be asked again.
#[derive(Debug, Default)]
pub(crate) struct KeyWatches(Mutex<HashMap<Vec<u8>, KeyWatch>>);

#[derive(Debug, Default)]
struct KeyWatch {
    /// Whether the server will report the next change.
    is_armed: bool,
    /// How many changes there were: a request from before the last change has already been served.
    change_count: u64,
    wakeup: Arc<Notify>,
}

/// Above this number, watches without a subscriber are removed.
const PRUNE_THRESHOLD: usize = 1024;

impl KeyWatches {
    fn entries(&self) -> MutexGuard<'_, HashMap<Vec<u8>, KeyWatch>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The notification for a change of the key; and `None` if the server will report the change,
    /// otherwise the number of changes so far, for [`mark_armed`](Self::mark_armed).
    pub(crate) fn watch(&self, key: &str) -> (Arc<Notify>, Option<u64>) {
        let mut all = self.entries();
        if all.len() >= PRUNE_THRESHOLD {
            all.retain(|_, watch| Arc::strong_count(&watch.wakeup) > 1);
        }
        let watch = all.entry(key.as_bytes().to_vec()).or_default();
        (Arc::clone(&watch.wakeup), (!watch.is_armed).then_some(watch.change_count))
    }

    /// The server will report the next change, unless it has done so since.
    pub(crate) fn mark_armed(&self, key: &str, changes: u64) {
        if let Some(watch) = self.entries().get_mut(key.as_bytes()) {
            watch.is_armed = watch.change_count == changes;
        }
    }

    fn notify_changed(&self, key: &[u8]) {
        if let Some(watch) = self.entries().get_mut(key) {
            watch.notify_changed();
        }
    }

    fn notify_all_changed(&self) {
        for watch in self.entries().values_mut() {
            watch.notify_changed();
        }
    }
}

impl KeyWatch {
    fn notify_changed(&mut self) {
        self.is_armed = false;
        self.change_count += 1;
        self.wakeup.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_reported_before_mark_armed_leaves_the_watch_unarmed() {
        let watches = KeyWatches::default();
        let (_, asked) = watches.watch("k");
        // The server has been asked, and has already reported a change, before the task runs again.
        watches.notify_changed(b"k");
        watches.mark_armed("k", asked.unwrap());
        assert!(watches.watch("k").1.is_some());
    }
}
