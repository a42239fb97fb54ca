//! Bells: how one client tells another to look again. A ring is only a hint; nothing rests on its arrival.

use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixDatagram as StdDatagram;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::UnixDatagram;
use tokio::sync::{Notify, mpsc};

use super::error;
use super::folder::Folder;
use crate::claim::ClaimId;
use crate::error::Result;

/// What a ring says about a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ring {
    /// Its place has changed: look.
    Look,
    /// It was put out.
    Evicted,
}

const LOOK: u8 = 1;
const EVICTED: u8 = 2;

/// Who listens in this process, and the socket to ring others by.
#[derive(Debug)]
pub(super) struct Bells {
    listeners: Mutex<HashMap<ClaimId, Arc<Notify>>>,
    evicted: mpsc::UnboundedSender<ClaimId>,
    out: StdDatagram,
    #[cfg(test)]
    pub(super) rung: std::sync::atomic::AtomicU64,
}

impl Bells {
    pub(super) fn new(folder: &Folder) -> Result<(Self, mpsc::UnboundedReceiver<ClaimId>)> {
        let (evicted, losses) = mpsc::unbounded_channel();
        let out = StdDatagram::unbound().and_then(|out| out.set_nonblocking(true).map(|()| out));
        let out = out.map_err(|e| error::at(folder.clients(), "make a socket for", e))?;
        let bells = Self {
            listeners: Mutex::default(),
            evicted,
            out,
            #[cfg(test)]
            rung: Default::default(),
        };
        Ok((bells, losses))
    }

    fn listeners(&self) -> MutexGuard<'_, HashMap<ClaimId, Arc<Notify>>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens for a claim, until the listener is dropped.
    pub(super) fn listen(self: &Arc<Self>, claim: ClaimId) -> Listener {
        let bell = Arc::new(Notify::new());
        self.listeners().insert(claim, Arc::clone(&bell));
        Listener { bells: Arc::clone(self), claim, bell }
    }

    /// Rings in this process.
    pub(super) fn ring_here(&self, claim: ClaimId, ring: Ring) {
        if let Some(bell) = self.listeners().get(&claim) {
            bell.notify_one();
        }
        if ring == Ring::Evicted {
            // Nobody listens for losses once the keeper has ended.
            let _ = self.evicted.send(claim);
        }
    }

    /// Rings in another process.
    pub(super) fn ring_there(&self, folder: &Folder, client: u128, claim: ClaimId, ring: Ring) {
        #[cfg(test)]
        self.rung.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let mut message = [0; 17];
        message[0] = if ring == Ring::Look { LOOK } else { EVICTED };
        message[1..].copy_from_slice(&claim.bits().to_le_bytes());
        if let Err(error) = self.out.send_to(&message, folder.bell_path(client)) {
            tracing::debug!(%error, "a bell was not heard; its client looks by itself");
        }
    }

    /// Opens this client's own bell.
    pub(super) fn open(folder: &Folder, client: u128) -> Result<UnixDatagram> {
        UnixDatagram::bind(folder.bell_path(client)).map_err(|e| error::at(folder.clients(), "make a socket in", e))
    }

    /// Passes on what arrives, until it is dropped.
    pub(super) async fn attend(self: Arc<Self>, bell: UnixDatagram) {
        let mut message = [0; 32];
        loop {
            match bell.recv(&mut message).await {
                Ok(17) => {
                    let mut bits = [0; 16];
                    bits.copy_from_slice(&message[1..17]);
                    let ring = if message[0] == EVICTED { Ring::Evicted } else { Ring::Look };
                    self.ring_here(ClaimId::from_bits(u128::from_le_bytes(bits)), ring);
                }
                Ok(_) => tracing::debug!("a ring that is none of ours"),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!(%error, "our bell is broken; waiters look by themselves");
                    return;
                }
            }
        }
    }
}

/// Somebody who listens for one claim.
#[derive(Debug)]
pub(super) struct Listener {
    bells: Arc<Bells>,
    claim: ClaimId,
    bell: Arc<Notify>,
}

impl Listener {
    pub(super) async fn rung(&self) {
        self.bell.notified().await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut listeners = self.bells.listeners();
        if listeners.get(&self.claim).is_some_and(|bell| Arc::ptr_eq(bell, &self.bell)) {
            listeners.remove(&self.claim);
        }
    }
}
