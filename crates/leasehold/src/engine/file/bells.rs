//! Notifications between clients, which make a waiter check its state. They are only hints:
//! correctness does not depend on their arrival.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram as StdDatagram;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::UnixDatagram;
use tokio::sync::Notify;

use super::error;
use super::folder::{Folder, bell_file};
use crate::claim::ClaimId;
use crate::engine::LossBoard;
use crate::error::Result;

/// What a notification reports about a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ring {
    /// The state changed, and the claim may hold the lock now: check it. A notification is never
    /// proof of a grant. It may come late, from a process that was stopped after it had left the
    /// lock's file, when the grant is long over.
    Look,
    /// The claim was evicted.
    Evicted,
    /// An operator asks the claim's holder to release it.
    ReleaseRequested,
}

/// After this many notifications at once, the socket may have been full (it holds ten by default),
/// and others may have been lost.
const BURST: u32 = 10;

/// The length of a message: the notification and its claim; the other bytes are unused.
const LENGTH: usize = 33;

impl Ring {
    fn encode(self, claim: ClaimId) -> [u8; LENGTH] {
        let mut message = [0; LENGTH];
        message[0] = match self {
            Self::Look => 1,
            Self::Evicted => 3,
            Self::ReleaseRequested => 4,
        };
        message[1..17].copy_from_slice(&claim.bits().to_le_bytes());
        message
    }

    fn decode(message: &[u8]) -> Option<(ClaimId, Self)> {
        let message: &[u8; LENGTH] = message.try_into().ok()?;
        let claim = u128::from_le_bytes(message[1..17].try_into().ok()?);
        let ring = match message[0] {
            // Earlier versions report a grant with the second one, with its token and end.
            1 | 2 => Self::Look,
            3 => Self::Evicted,
            4 => Self::ReleaseRequested,
            _ => return None,
        };
        Some((ClaimId::from_bits(claim), ring))
    }
}

/// One queued claim of this process, and what notifications reported about it.
#[derive(Debug, Default)]
pub(super) struct Ear {
    rung: Notify,
    heard: Mutex<Heard>,
}

#[derive(Debug, Default)]
struct Heard {
    /// The claim was evicted since it was last seen waiting.
    evicted: bool,
    /// The clients to watch.
    ahead: Vec<u128>,
}

impl Ear {
    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a notification, including one that came before the call.
    pub(super) async fn rung(&self) {
        self.rung.notified().await;
    }

    /// Whether the claim was evicted.
    pub(super) fn is_evicted(&self) -> bool {
        self.heard().evicted
    }

    /// The clients to watch.
    pub(super) fn ahead(&self) -> Vec<u128> {
        self.heard().ahead.clone()
    }
}

/// The queued claims of this process, and the socket that notifies other processes.
#[derive(Debug)]
pub(super) struct Bells {
    ears: Mutex<HashMap<ClaimId, Arc<Ear>>>,
    pub(super) evicted: LossBoard,
    out: StdDatagram,
    #[cfg(test)]
    pub(super) rung: std::sync::atomic::AtomicU64,
}

impl Bells {
    pub(super) fn new(folder: &Folder) -> Result<Self> {
        let out = StdDatagram::unbound().and_then(|out| out.set_nonblocking(true).map(|()| out));
        let out = out.map_err(|e| error::at(folder.clients.as_path(), "make a socket for", e))?;
        Ok(Self {
            ears: Mutex::default(),
            evicted: LossBoard::default(),
            out,
            #[cfg(test)]
            rung: Default::default(),
        })
    }

    fn ears(&self) -> MutexGuard<'_, HashMap<ClaimId, Arc<Ear>>> {
        self.ears.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens for notifications of a queued claim, which watches `ahead`, until `forget`.
    pub(super) fn listen(&self, claim: ClaimId, ahead: Vec<u128>) {
        let ear = Arc::clone(self.ears().entry(claim).or_default());
        *ear.heard() = Heard { evicted: false, ahead };
    }

    /// The listening claim, if it listens.
    pub(super) fn ear(&self, claim: ClaimId) -> Option<Arc<Ear>> {
        self.ears().get(&claim).cloned()
    }

    /// Stops listening for a claim that does not wait any more.
    pub(super) fn forget(&self, claim: ClaimId) {
        self.ears().remove(&claim);
    }

    /// Notifies a claim of this process.
    pub(super) fn ring_here(&self, claim: ClaimId, ring: Ring) {
        if ring == Ring::ReleaseRequested {
            return self.evicted.request_release(claim);
        }
        if let Some(ear) = self.ear(claim) {
            if ring == Ring::Evicted {
                ear.heard().evicted = true;
            }
            ear.rung.notify_one();
        }
        if ring == Ring::Evicted {
            self.evicted.post(claim);
        }
    }

    /// Makes all queued claims check their state, because notifications may have been lost.
    fn ring_all(&self) {
        self.ears().values().for_each(|ear| ear.rung.notify_one());
    }

    /// Notifies a claim of another process.
    pub(super) fn ring_there(&self, folder: &Folder, client: u128, claim: ClaimId, ring: Ring) {
        #[cfg(test)]
        self.rung.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        if let Err(error) = self.send(folder, client, &ring.encode(claim)) {
            tracing::debug!(%error, "a bell was not heard; its client looks by itself");
        }
    }

    fn send(&self, folder: &Folder, client: u128, message: &[u8]) -> io::Result<usize> {
        let (clients, name) = (&folder.clients, bell_file(client));
        if !clients.is_shared() {
            return self.out.send_to(message, clients.path_by_handle(&name));
        }
        // A member of the group may have put a link in place of the socket: the message goes to a
        // socket in this folder, or nowhere.
        let socket = clients.socket(&name)?;
        self.out.send_to(message, format!("/proc/self/fd/{}", socket.as_raw_fd()))
    }

    /// Opens this client's own socket.
    pub(super) fn open(folder: &Folder, client: u128) -> Result<UnixDatagram> {
        let (clients, name) = (&folder.clients, bell_file(client));
        let bell = UnixDatagram::bind(clients.path_by_handle(&name));
        let bell = bell.and_then(|bell| clients.share_socket(&name).map(|()| bell));
        bell.map_err(|e| error::at(clients.as_path(), "make a socket in", e))
    }

    /// Forwards arriving notifications until it is dropped.
    pub(super) async fn attend(self: Arc<Self>, bell: UnixDatagram) {
        let mut message = [0; 64];
        let mut burst = 0;
        loop {
            let heard = match bell.try_recv(&mut message) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if burst >= BURST {
                        self.ring_all();
                    }
                    burst = 0;
                    bell.recv(&mut message).await
                }
                other => other,
            };
            burst += 1;
            match heard {
                Ok(length) => match Ring::decode(&message[..length]) {
                    Some((claim, ring)) => self.ring_here(claim, ring),
                    None => tracing::debug!("a ring that is none of ours"),
                },
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!(%error, "our bell is broken; waiters look by themselves");
                    return;
                }
            }
        }
    }
}
