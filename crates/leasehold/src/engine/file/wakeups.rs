//! Notifications between clients, which make a waiter check its state. They are only hints:
//! correctness does not depend on their arrival.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram as StdDatagram;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::net::UnixDatagram;
use tokio::sync::Notify;

use super::error;
use super::folder::{Folder, socket_file};
use super::lock_files::LockFile;
use crate::clock::Instant;
use crate::engine::LossBroadcaster;
use crate::types::{ClaimId, FORMAT, Result};

/// What a notification reports about a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notification {
    /// The state changed, and the claim may hold the lock now: check it. A notification is never
    /// proof of a grant. It may arrive late, from a process that was stopped after it had left the
    /// lock's file, when the grant is long over.
    CheckState,
    /// The claim was evicted.
    ForceReleased,
    /// An operator requests that the claim's holder releases it.
    ReleaseRequested,
}

/// After this many notifications at once, the socket may have been full (it holds ten by default),
/// and others may have been lost.
const OVERFLOW_THRESHOLD: u32 = 10;

/// How often an eviction's notification is sent again to a client whose socket is full.
const MAX_SEND_RETRIES: u32 = 5;
const SEND_RETRY_PAUSE: Duration = Duration::from_millis(1);

/// The length of a message: its format, the notification and its claim.
const MESSAGE_LEN: usize = 18;

impl Notification {
    fn encode(self, claim: ClaimId) -> [u8; MESSAGE_LEN] {
        let mut message = [0; MESSAGE_LEN];
        message[0] = FORMAT as u8;
        message[1] = match self {
            Self::CheckState => 1,
            Self::ForceReleased => 2,
            Self::ReleaseRequested => 3,
        };
        message[2..18].copy_from_slice(&claim.bits().to_le_bytes());
        message
    }

    fn decode(message: &[u8]) -> Option<(ClaimId, Self)> {
        let message: &[u8; MESSAGE_LEN] = message.try_into().ok()?;
        let claim = u128::from_le_bytes(message[2..18].try_into().ok()?);
        let notification = match (u32::from(message[0]), message[1]) {
            (FORMAT, 1) => Self::CheckState,
            (FORMAT, 2) => Self::ForceReleased,
            (FORMAT, 3) => Self::ReleaseRequested,
            _ => return None,
        };
        Some((ClaimId::from_bits(claim), notification))
    }
}

/// One queued claim of this process, and what notifications reported about it.
#[derive(Debug, Default)]
pub(super) struct Subscriber {
    notified: Notify,
    state: Mutex<SubscriberState>,
}

#[derive(Debug, Default)]
struct SubscriberState {
    /// The claim was evicted since it was last seen waiting.
    is_force_released: bool,
    /// The clients to watch.
    watched_clients: Vec<u128>,
    position: Option<QueuePosition>,
    /// A wait began and has no answer yet, or failed: its caller may not know of an eviction.
    has_unanswered_wait: bool,
}

/// Where a claim was last seen waiting.
#[derive(Debug)]
pub(super) struct QueuePosition {
    /// Does not keep the file open: a process may wait for more locks than it can have open files.
    /// Once it was opened again, an absence proves nothing.
    pub(super) file: Weak<Mutex<LockFile>>,
    /// Until then only an eviction, or its own release, removes the claim from this file.
    pub(super) expires_at: Instant,
}

impl Subscriber {
    fn state(&self) -> MutexGuard<'_, SubscriberState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a notification, including one that arrived before the call.
    pub(super) async fn notified(&self) {
        self.notified.notified().await;
    }

    /// A wait of the claim begins.
    pub(super) fn begin_wait(&self) {
        self.state().has_unanswered_wait = true;
    }

    /// Whether a wait of the claim has no answer.
    pub(super) fn has_unanswered_wait(&self) -> bool {
        self.state().has_unanswered_wait
    }

    /// Whether the claim was evicted.
    pub(super) fn is_force_released(&self) -> bool {
        self.state().is_force_released
    }

    /// The clients to watch.
    pub(super) fn watched_clients(&self) -> Vec<u128> {
        self.state().watched_clients.clone()
    }
}

/// The queued claims of this process, and the socket that notifies other processes.
#[derive(Debug)]
pub(super) struct Wakeups {
    subscribers: Mutex<HashMap<ClaimId, Arc<Subscriber>>>,
    pub(super) loss_events: LossBroadcaster,
    socket: StdDatagram,
    #[cfg(test)]
    pub(super) notified_count: std::sync::atomic::AtomicU64,
}

impl Wakeups {
    pub(super) fn new(folder: &Folder) -> Result<Self> {
        let output = StdDatagram::unbound().and_then(|output| output.set_nonblocking(true).map(|()| output));
        let output = output.map_err(|e| error::io_error_at(folder.clients.as_path(), "make a socket for", e))?;
        Ok(Self {
            subscribers: Mutex::default(),
            loss_events: LossBroadcaster::default(),
            socket: output,
            #[cfg(test)]
            notified_count: Default::default(),
        })
    }

    fn subscribers(&self) -> MutexGuard<'_, HashMap<ClaimId, Arc<Subscriber>>> {
        self.subscribers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens for notifications of a queued claim, which watches `ahead`, until `unsubscribe`.
    pub(super) fn subscribe(&self, claim: ClaimId, ahead: Vec<u128>, position: QueuePosition) {
        let subscriber = Arc::clone(self.subscribers().entry(claim).or_default());
        *subscriber.state() =
            SubscriberState { watched_clients: ahead, position: Some(position), ..SubscriberState::default() };
    }

    /// A queued claim is not in this file any more: if its position there has not expired, it was
    /// evicted, and the notification may have been lost.
    pub(super) fn was_force_released(&self, claim: ClaimId, file: &Arc<Mutex<LockFile>>, now: Instant) -> bool {
        let Some(subscriber) = self.subscriber(claim) else { return false };
        let mut state = subscriber.state();
        let is_same = |position: &QueuePosition| position.file.upgrade().is_some_and(|known| Arc::ptr_eq(&known, file));
        state.is_force_released |=
            state.position.as_ref().is_some_and(|position| is_same(position) && now < position.expires_at);
        state.is_force_released
    }

    /// The listening claim, if it listens.
    pub(super) fn subscriber(&self, claim: ClaimId) -> Option<Arc<Subscriber>> {
        self.subscribers().get(&claim).cloned()
    }

    /// Stops listening for a claim that does not wait any more.
    pub(super) fn unsubscribe(&self, claim: ClaimId) {
        self.subscribers().remove(&claim);
    }

    /// Notifies a claim of this process.
    pub(super) fn notify_local(&self, claim: ClaimId, notification: Notification) {
        if notification == Notification::ReleaseRequested {
            return self.loss_events.report_release_request(claim);
        }
        if let Some(subscriber) = self.subscriber(claim) {
            if notification == Notification::ForceReleased {
                subscriber.state().is_force_released = true;
            }
            subscriber.notified.notify_one();
        }
        if notification == Notification::ForceReleased {
            self.loss_events.report_lost(claim);
        }
    }

    /// Makes all queued claims check their state, because notifications may have been lost; after
    /// evictions also all holders.
    fn notify_all(&self, with_holders: bool) {
        self.subscribers().values().for_each(|subscriber| subscriber.notified.notify_one());
        if with_holders {
            self.loss_events.report_resync();
        }
    }

    /// Notifies a claim of another process.
    pub(super) fn notify_remote(&self, folder: &Folder, client: u128, claim: ClaimId, notification: Notification) {
        #[cfg(test)]
        self.notified_count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let message = notification.encode(claim);
        let mut result = self.send(folder, client, &message);
        // A full socket: an eviction is rare, and worth a moment's wait.
        for _ in 0..MAX_SEND_RETRIES {
            let is_full = result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
            if notification == Notification::CheckState || !is_full {
                break;
            }
            std::thread::sleep(SEND_RETRY_PAUSE);
            result = self.send(folder, client, &message);
        }
        if let Err(error) = result {
            tracing::debug!(%error, "a notification was not delivered; its client finds the change at its next check");
        }
    }

    fn send(&self, folder: &Folder, client: u128, message: &[u8]) -> io::Result<usize> {
        let (clients, name) = (&folder.clients, socket_file(client));
        if !clients.is_shared() {
            return self.socket.send_to(message, clients.path_by_handle(&name));
        }
        // A member of the group may have put a link in place of the socket: the message goes to a
        // socket in this folder, or nowhere.
        let socket = clients.open_socket(&name)?;
        self.socket.send_to(message, format!("/proc/self/fd/{}", socket.as_raw_fd()))
    }

    /// Opens this client's own socket.
    pub(super) fn open_socket(folder: &Folder, client: u128) -> Result<UnixDatagram> {
        let (clients, name) = (&folder.clients, socket_file(client));
        let socket = UnixDatagram::bind(clients.path_by_handle(&name));
        let socket = socket.and_then(|socket| clients.share_socket(&name).map(|()| socket));
        socket.map_err(|e| error::io_error_at(clients.as_path(), "make a socket in", e))
    }

    /// Forwards arriving notifications until it is dropped.
    pub(super) async fn forward_notifications(self: Arc<Self>, socket: UnixDatagram) {
        let mut message = [0; 64];
        let (mut burst, mut has_evictions) = (0, false);
        loop {
            let received = match socket.try_recv(&mut message) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if burst >= OVERFLOW_THRESHOLD {
                        self.notify_all(has_evictions);
                    }
                    (burst, has_evictions) = (0, false);
                    socket.recv(&mut message).await
                }
                other => other,
            };
            burst += 1;
            match received {
                Ok(length) => match Notification::decode(&message[..length]) {
                    Some((claim, notification)) => {
                        has_evictions |= notification == Notification::ForceReleased;
                        self.notify_local(claim, notification);
                    }
                    None => tracing::debug!("a notification in an unknown format"),
                },
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!(%error, "the notification socket failed; waiters poll instead");
                    return;
                }
            }
        }
    }
}
