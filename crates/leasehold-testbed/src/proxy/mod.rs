//! A TCP proxy inside the test that causes network faults.
//!
//! Every control takes effect before its method returns, on open and on new connections. Rules are
//! read under one lock together with each write, so that no byte passes afterwards. (Bytes written
//! before do arrive.)
//!
//! The proxy has its own thread: a test that blocks its runtime does not stop it. It handles chunks
//! as it reads them from the socket, not requests. A client that writes each request in one piece
//! of less than 64 KiB, and waits for the reply, sends one chunk per request.
//!
//! The proxy holds back at most 1 MiB in each direction of each of at most 1024 connections. Then
//! it stops reading, as a congested network does.

mod connection;
mod pipe;
mod rules;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    sync::Arc,
    thread,
    time::Duration,
};

use tokio::{runtime, sync::oneshot};

pub use rules::ProxyCounts;
use rules::SharedRules;

use crate::{Error, Result};

/// A proxy before one server, on a port of this host (loopback by default). Dropping it closes its
/// connections and ends it.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<SharedRules>,
    thread: Option<(oneshot::Sender<()>, thread::JoinHandle<()>)>,
}

impl Proxy {
    /// Starts a proxy that forwards all bytes to `target`. While the target is down, connections to
    /// the proxy are closed at once.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if no port or thread is available.
    pub async fn start(target: SocketAddr) -> Result<Self> {
        Self::start_on(Ipv4Addr::LOCALHOST.into(), target).await
    }

    /// Like [`start`](Self::start), on another address of this host, such as one end of a
    /// [`VirtualLinks`](crate::VirtualLinks).
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if no port or thread is available.
    pub async fn start_on(address: IpAddr, target: SocketAddr) -> Result<Self> {
        let starting = || Error::io("starting a proxy");
        let listener = TcpListener::bind((address, 0)).map_err(starting())?;
        listener.set_nonblocking(true).map_err(starting())?;
        let addr = listener.local_addr().map_err(starting())?;
        let shared = listener.try_clone().map(SharedRules::new).map_err(starting())?;
        let shared = Arc::new(shared);
        let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(starting())?;
        let listener = {
            let _context = runtime.enter();
            tokio::net::TcpListener::from_std(listener).map_err(starting())?
        };
        let (stop, stopped) = oneshot::channel();
        let served = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name(format!("testbed-proxy-{}", addr.port()))
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = connection::accept_connections(listener, served, target) => {}
                        _ = stopped => {}
                    }
                });
            })
            .map_err(starting())?;
        Ok(Self { addr, shared, thread: Some((stop, thread)) })
    }

    /// The address for clients.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Closes all open connections, once. New connections are accepted.
    pub fn cut(&self) {
        self.shared.cut();
    }

    /// While `on`, closes new connections at once; open connections continue.
    pub fn refuse(&self, on: bool) {
        self.shared.update(|rules| rules.refuses = on);
    }

    /// While `on`, holds back all bytes, and the ends of connections, too, as an unresponsive
    /// network does. They arrive when this is turned off.
    pub fn freeze(&self, on: bool) {
        self.shared.update(|rules| rules.is_frozen = on);
    }

    /// Delays each chunk by `delay`, in both directions, so a round trip is longer by twice that.
    /// The new delay also applies to chunks that are already held back.
    pub fn delay(&self, delay: Duration) {
        self.shared.update(|rules| rules.delay = delay);
    }

    /// While `on`, forwards requests and drops their replies.
    ///
    /// A stream cannot lose bytes in its middle. So a connection that lost a reply forwards no more
    /// replies after this is turned off, until it is closed. New connections, and those that lost
    /// no reply, work.
    pub fn drop_replies(&self, on: bool) {
        self.shared.update(|rules| rules.drops_replies = on);
    }

    /// Loses one reply: the next chunk from a client goes to the server, and when the reply
    /// arrives, the client's connection is closed instead. The request was executed, and the client
    /// cannot know.
    pub fn cut_after_request(&self) {
        self.shared.update(|rules| rules.cut_after_request = true);
    }

    /// While `on`, sends each chunk from a client twice, and forwards both replies.
    pub fn duplicate_requests(&self, on: bool) {
        self.shared.update(|rules| rules.duplicates_requests = on);
    }

    /// Duplicates one request: the next chunk from a client goes to the server twice. When the
    /// first reply arrives, the client's connection is closed instead, so that it cannot mistake
    /// the second reply for that of its next request.
    pub fn duplicate_and_cut(&self) {
        self.shared.update(|rules| rules.duplicate_and_cut = true);
    }

    /// Cancels a [`Proxy::cut_after_request`] and a [`Proxy::duplicate_and_cut`] that have had no
    /// effect yet.
    pub fn cancel_pending_cuts(&self) {
        self.shared.update(|rules| (rules.cut_after_request, rules.duplicate_and_cut) = (false, false));
    }

    /// Silences the older half of the open connections, or the newer half if not `older`, as a
    /// power failure does: no bytes pass in either direction, and neither side learns that the
    /// other closes. A silenced connection stays silent until its client closes it. New connections
    /// are not affected.
    pub fn silence_half(&self, older: bool) {
        self.shared.update(|rules| {
            let half = rules.open_connections.len().div_ceil(2);
            let skipped = if older { 0 } else { rules.open_connections.len() - half };
            let chosen: Vec<u64> = rules.open_connections.iter().copied().skip(skipped).take(half).collect();
            rules.silent_connections.extend(chosen);
        });
    }

    /// Silences one open connection until its client closes it: no bytes pass in either direction.
    /// `number` is its number in the order of [acceptance](ProxyCounts::accepted), from 1.
    pub fn silence(&self, number: u64) {
        self.shared.update(|rules| {
            rules.silent_connections.extend(rules.open_connections.contains(&number).then_some(number))
        });
    }

    /// Replaces a text in all later replies, for servers that redirect clients to other servers.
    /// Finds the text only inside one chunk.
    ///
    /// # Errors
    ///
    /// [`Error::Protocol`] if the lengths differ: byte counts in the protocol would be wrong.
    pub fn replace_in_replies(&self, from: &str, to: &str) -> Result<()> {
        if from.is_empty() || from.len() != to.len() {
            let problem = format!("{to:?} cannot replace {from:?}: their lengths differ");
            return Err(Error::Protocol { peer: "a proxy".to_owned(), problem });
        }
        self.shared.update(|rules| rules.reply_replacements.push((from.into(), to.into())));
        Ok(())
    }

    /// The numbers of connections and bytes so far.
    pub fn counts(&self) -> ProxyCounts {
        self.shared.counts()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.thread.take() {
            drop(stop);
            // The result is ignored: even if the thread panicked, its connections are closed.
            let _ = thread.join();
            self.shared.close();
        }
    }
}
