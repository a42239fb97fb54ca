//! The rules of a test for its connections, and the counts.

use std::{
    collections::BTreeSet,
    future::poll_fn,
    io,
    net::TcpListener,
    os::fd::AsFd,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Poll, ready},
    time::Duration,
};

use rustix::net::{Shutdown, shutdown};
use tokio::{net::TcpStream, sync::watch};

/// More connections than this at once are refused.
const MAX_CONNECTIONS: u64 = 1024;

/// The counts of a proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProxyCounts {
    /// Connections accepted and kept.
    pub accepted: u64,
    /// Connections closed at once.
    pub refused: u64,
    /// Connections that are open now.
    pub open: u64,
    /// Bytes passed to the server; a chunk that is sent twice counts twice.
    pub request_bytes: u64,
    /// Bytes passed to clients.
    pub reply_bytes: u64,
    /// Bytes from the server that were dropped.
    pub dropped_bytes: u64,
}

#[derive(Debug, Default)]
pub(super) struct ProxyRules {
    pub(super) refuses: bool,
    pub(super) is_frozen: bool,
    pub(super) delay: Duration,
    pub(super) drops_replies: bool,
    pub(super) cut_after_request: bool,
    pub(super) duplicate_and_cut: bool,
    pub(super) duplicates_requests: bool,
    /// The open connections, by their numbers, and the permanently silenced ones.
    pub(super) open_connections: BTreeSet<u64>,
    pub(super) silent_connections: BTreeSet<u64>,
    /// The replacements in replies: pairs of equal length.
    pub(super) reply_replacements: Vec<(Vec<u8>, Vec<u8>)>,
    /// Counts the cuts: a connection from before the last cut must not write.
    pub(super) cut_epoch: u64,
    pub(super) counts: ProxyCounts,
}

impl ProxyRules {
    /// Applies the replacements to a chunk of a reply.
    pub(super) fn replace_in_reply(&self, bytes: &mut [u8]) {
        for (from, to) in &self.reply_replacements {
            let mut at = 0;
            while let Some(found) = bytes[at..].windows(from.len()).position(|window| window == from) {
                bytes[at + found..at + found + to.len()].copy_from_slice(to);
                at += found + to.len();
            }
        }
    }
}

/// The state that the test's thread and the proxy's thread share.
#[derive(Debug)]
pub(super) struct SharedRules {
    /// The listener, which the proxy's thread uses, too.
    listener: TcpListener,
    rules: Mutex<ProxyRules>,
    changed: watch::Sender<()>,
}

impl SharedRules {
    /// The listener must not block.
    pub(super) fn new(listener: TcpListener) -> Self {
        Self { listener, rules: Mutex::default(), changed: watch::Sender::new(()) }
    }

    /// Held together with each write, so that a rule holds from the moment it is set.
    pub(super) fn rules(&self) -> MutexGuard<'_, ProxyRules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn update(&self, set: impl FnOnce(&mut ProxyRules)) {
        set(&mut self.rules());
        self.changed.send_replace(());
    }

    /// Notifies tasks of rule changes.
    pub(super) fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    pub(super) fn counts(&self) -> ProxyCounts {
        self.rules().counts
    }

    /// Closes the listener.
    pub(super) fn close(&self) {
        shut_down_socket(&self.listener);
    }

    /// Closes all connections, including those that the kernel has accepted and we have not.
    pub(super) fn cut(&self) {
        self.update(|rules| {
            while let Ok((stream, _)) = self.listener.accept() {
                shut_down_socket(&stream);
                rules.counts.accepted += 1;
            }
            rules.cut_epoch += 1;
        });
    }

    /// Accepts the next connection to keep; returns it with its epoch and number.
    ///
    /// Accepting and reading the epoch are one step, as seen from [`SharedRules::cut`].
    pub(super) async fn accept(&self, listener: &tokio::net::TcpListener) -> io::Result<(TcpStream, u64, u64)> {
        poll_fn(|context| {
            let mut rules = self.rules();
            loop {
                let (stream, _) = ready!(listener.poll_accept(context))?;
                if rules.refuses || rules.counts.open >= MAX_CONNECTIONS {
                    shut_down_socket(&stream);
                    rules.counts.refused += 1;
                    continue;
                }
                rules.counts.accepted += 1;
                rules.counts.open += 1;
                let number = rules.counts.accepted;
                rules.open_connections.insert(number);
                return Poll::Ready(Ok((stream, rules.cut_epoch, number)));
            }
        })
        .await
    }

    /// Waits while the network is frozen; `false` if the connection of this epoch is cut meanwhile.
    pub(super) async fn wait_until_unfrozen(&self, epoch: u64) -> bool {
        let mut changes = self.subscribe();
        loop {
            {
                let rules = self.rules();
                if rules.cut_epoch != epoch || !rules.is_frozen {
                    return rules.cut_epoch == epoch;
                }
            }
            if changes.changed().await.is_err() {
                return false;
            }
        }
    }
}

/// Shuts a socket down for all processes that have it open. Dropping it is not enough: a child that
/// another test starts at that moment has a copy until its exec, which keeps the socket open.
fn shut_down_socket(socket: impl AsFd) {
    // It may be closed already.
    let _ = shutdown(socket, Shutdown::Both);
}
