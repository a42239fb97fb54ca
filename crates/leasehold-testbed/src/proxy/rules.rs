//! The rules that a test sets for a proxy's connections, and the proxy's counts.

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

/// How many connections and bytes a proxy has handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProxyCounts {
    /// Connections accepted and not closed at once; also the number of the last of them.
    pub accepted: u64,
    /// Connections closed at once, because the test refuses them or there are 1024 already.
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

/// The rules; the methods of [`Proxy`](super::Proxy) that set them describe them.
#[derive(Debug, Default)]
pub(super) struct ProxyRules {
    pub(super) refuses: bool,
    pub(super) is_frozen: bool,
    pub(super) delay: Duration,
    pub(super) drops_replies: bool,
    pub(super) cut_after_request: bool,
    pub(super) duplicate_and_cut: bool,
    pub(super) duplicates_requests: bool,
    /// The numbers of the open connections.
    pub(super) open_connections: BTreeSet<u64>,
    /// The numbers of the open connections that the test has silenced.
    pub(super) silent_connections: BTreeSet<u64>,
    /// What replies must not contain, and what replaces it; both of equal length.
    pub(super) reply_replacements: Vec<(Vec<u8>, Vec<u8>)>,
    /// How many cuts there were: a connection accepted before the last one must not write.
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
    /// `listener` must be in non-blocking mode.
    pub(super) fn new(listener: TcpListener) -> Self {
        Self { listener, rules: Mutex::default(), changed: watch::Sender::new(()) }
    }

    /// Locks the rules. The lock is held during each write to a socket, so that a rule applies to
    /// every byte from the moment it is set.
    pub(super) fn rules(&self) -> MutexGuard<'_, ProxyRules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the rules, and wakes all connections.
    pub(super) fn update(&self, set: impl FnOnce(&mut ProxyRules)) {
        set(&mut self.rules());
        self.changed.send_replace(());
    }

    /// A receiver that is notified of every change of the rules.
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

    /// Closes all connections, including those that only the kernel has accepted so far.
    pub(super) fn cut(&self) {
        self.update(|rules| {
            while let Ok((stream, _)) = self.listener.accept() {
                shut_down_socket(&stream);
                rules.counts.accepted += 1;
            }
            rules.cut_epoch += 1;
        });
    }

    /// Accepts the next connection that is not refused; returns it with the number of cuts so far
    /// and the connection's own number.
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

    /// Waits while the proxy is frozen; `false` if the connection, accepted after `epoch` cuts, is
    /// cut meanwhile.
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
