//! Notifications between clients, sent over Unix datagram sockets: they make a waiter check its
//! state in the lock's file. They are only hints, and correctness does not depend on their arrival.

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
    /// The claim may hold the lock now: read its state. This is never proof of a grant. The sender
    /// may have been stopped after it unlocked the lock's file, so that the notification arrives
    /// when the grant is long over.
    CheckState,
    /// An operator force released the claim.
    ForceReleased,
    /// An operator requests that the claim's holder releases it.
    ReleaseRequested,
}

/// A socket holds ten notifications by default. If this many arrive at once, it may have been full,
/// and others may have been lost.
const OVERFLOW_THRESHOLD: u32 = 10;

/// How many times a notification of a force release or a release request is sent again to a client
/// whose socket is full.
const MAX_SEND_RETRIES: u32 = 5;
/// The pause before a notification is sent again.
const SEND_RETRY_PAUSE: Duration = Duration::from_millis(1);

/// The length of a message: byte 0 is its format, byte 1 the kind of notification, and bytes 2 to 17
/// are its claim.
const MESSAGE_LEN: usize = 18;

impl Notification {
    /// The message that reports this about a claim.
    pub(super) fn encode(self, claim: ClaimId) -> [u8; MESSAGE_LEN] {
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

    /// The claim and the notification in a message; `None` for an unknown format.
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

/// One queued claim of this process, and what it has learned since it queued.
#[derive(Debug, Default)]
pub(super) struct Subscriber {
    /// Notified when the claim must check its state.
    notified: Notify,
    state: Mutex<SubscriberState>,
}

/// What a queued claim has learned since it queued.
#[derive(Debug, Default)]
struct SubscriberState {
    /// Whether the claim was force released since it was last seen in the queue.
    is_force_released: bool,
    /// The clients ahead whose death the claim watches for.
    watched_clients: Vec<u128>,
    /// `None` until the claim was first seen in the queue.
    position: Option<QueuePosition>,
    /// Whether a call of [`Engine::wait`](crate::engine::Engine::wait) for the claim began and has
    /// no answer yet, or failed: then its caller may not know of a force release.
    has_unanswered_wait: bool,
}

/// The file in which a claim was last seen in the queue.
#[derive(Debug)]
pub(super) struct QueuePosition {
    /// The open lock file. It is weak, so that it does not keep the file open: a process may wait
    /// for more locks than it can have open files. If the file was opened again since, the claim's
    /// absence from it proves nothing.
    pub(super) file: Weak<Mutex<LockFile>>,
    /// When the queue position expires. Until then, only a force release or the claim's own release
    /// removes it from the file.
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

    /// Notes that a caller begins to wait for the claim.
    pub(super) fn begin_wait(&self) {
        self.state().has_unanswered_wait = true;
    }

    /// Whether a caller began to wait for the claim, and has no answer yet or got an error.
    pub(super) fn has_unanswered_wait(&self) -> bool {
        self.state().has_unanswered_wait
    }

    /// Whether the claim was force released since it was last seen in the queue.
    pub(super) fn is_force_released(&self) -> bool {
        self.state().is_force_released
    }

    /// The clients ahead whose death the claim watches for.
    pub(super) fn watched_clients(&self) -> Vec<u128> {
        self.state().watched_clients.clone()
    }
}

/// The queued claims of this process, which receive notifications, and the socket that sends
/// notifications to other processes.
#[derive(Debug)]
pub(super) struct Wakeups {
    subscribers: Mutex<HashMap<ClaimId, Arc<Subscriber>>>,
    pub(super) loss_events: LossBroadcaster,
    /// Only sends; [`forward_notifications`](Self::forward_notifications) receives on another one.
    socket: StdDatagram,
    /// How many notifications were sent to other clients.
    #[cfg(test)]
    pub(super) notified_count: std::sync::atomic::AtomicU64,
}

impl Wakeups {
    /// No subscribers yet, and a socket to send with.
    pub(super) fn new(folder: &Folder) -> Result<Self> {
        let socket = StdDatagram::unbound().and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
        let socket = socket.map_err(|e| error::io_error_at(folder.clients.as_path(), "make a socket for", e))?;
        Ok(Self {
            subscribers: Mutex::default(),
            loss_events: LossBroadcaster::default(),
            socket,
            #[cfg(test)]
            notified_count: Default::default(),
        })
    }

    fn subscribers(&self) -> MutexGuard<'_, HashMap<ClaimId, Arc<Subscriber>>> {
        self.subscribers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a claim is queued at `position` and watches these clients. It receives
    /// notifications until [`unsubscribe`](Self::unsubscribe).
    pub(super) fn subscribe(&self, claim: ClaimId, watched_clients: Vec<u128>, position: QueuePosition) {
        let subscriber = Arc::clone(self.subscribers().entry(claim).or_default());
        *subscriber.state() =
            SubscriberState { watched_clients, position: Some(position), ..SubscriberState::default() };
    }

    /// Whether a claim was force released that is not in this file's queue any more. It was if it
    /// was notified, or if its position in this file has not expired: the notification may have
    /// been lost.
    pub(super) fn was_force_released(&self, claim: ClaimId, file: &Arc<Mutex<LockFile>>, now: Instant) -> bool {
        let Some(subscriber) = self.subscriber(claim) else { return false };
        let mut state = subscriber.state();
        let is_same = |position: &QueuePosition| position.file.upgrade().is_some_and(|known| Arc::ptr_eq(&known, file));
        state.is_force_released |=
            state.position.as_ref().is_some_and(|position| is_same(position) && now < position.expires_at);
        state.is_force_released
    }

    /// The subscriber of a claim; `None` unless it is subscribed.
    pub(super) fn subscriber(&self, claim: ClaimId) -> Option<Arc<Subscriber>> {
        self.subscribers().get(&claim).cloned()
    }

    /// Drops the subscriber of a claim that does not wait any more.
    pub(super) fn unsubscribe(&self, claim: ClaimId) {
        self.subscribers().remove(&claim);
    }

    /// Delivers a notification to a claim of this process.
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

    /// Makes all queued claims of this process check their state, because notifications may have
    /// been lost. With `with_holders`, also makes the keeper renew all claims that hold.
    fn notify_all(&self, with_holders: bool) {
        self.subscribers().values().for_each(|subscriber| subscriber.notified.notify_one());
        if with_holders {
            self.loss_events.report_resync();
        }
    }

    /// Sends a notification to a claim of another client.
    pub(super) fn notify_remote(&self, folder: &Folder, client: u128, claim: ClaimId, notification: Notification) {
        #[cfg(test)]
        self.notified_count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let message = notification.encode(claim);
        let mut result = self.send(folder, client, &message);
        // If the receiver's socket is full, a waiter's notification is dropped, since the waiter
        // polls, too. The other notifications are rare, and sent again.
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

    /// Sends a message to a client's socket; returns the number of bytes sent.
    fn send(&self, folder: &Folder, client: u128, message: &[u8]) -> io::Result<usize> {
        let (clients, name) = (&folder.clients, socket_file(client));
        if !clients.is_shared() {
            return self.socket.send_to(message, clients.path_by_handle(&name));
        }
        // A member of the group may have put a link in place of the socket. So the message is sent
        // to the entry that was opened and checked to be a socket.
        let socket = clients.open_socket(&name)?;
        self.socket.send_to(message, format!("/proc/self/fd/{}", socket.as_raw_fd()))
    }

    /// Creates the socket on which this client receives notifications.
    pub(super) fn open_socket(folder: &Folder, client: u128) -> Result<UnixDatagram> {
        let (clients, name) = (&folder.clients, socket_file(client));
        let socket = UnixDatagram::bind(clients.path_by_handle(&name));
        let socket = socket.and_then(|socket| clients.share_socket(&name).map(|()| socket));
        socket.map_err(|e| error::io_error_at(clients.as_path(), "make a socket in", e))
    }

    /// Delivers the notifications that arrive on `socket`; ends only if the socket fails.
    pub(super) async fn forward_notifications(self: Arc<Self>, socket: UnixDatagram) {
        let mut message = [0; 64];
        // How many notifications arrived without a pause, and whether a force release was among
        // them.
        let (mut burst, mut has_force_releases) = (0, false);
        loop {
            let received = match socket.try_recv(&mut message) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if burst >= OVERFLOW_THRESHOLD {
                        self.notify_all(has_force_releases);
                    }
                    (burst, has_force_releases) = (0, false);
                    socket.recv(&mut message).await
                }
                other => other,
            };
            burst += 1;
            match received {
                Ok(length) => match Notification::decode(&message[..length]) {
                    Some((claim, notification)) => {
                        has_force_releases |= notification == Notification::ForceReleased;
                        self.notify_local(claim, notification);
                    }
                    None => tracing::debug!("ignored a notification in an unknown format"),
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
