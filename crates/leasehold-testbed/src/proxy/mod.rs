//! A TCP proxy inside the test that does to connections what networks do.
//!
//! Every control holds from the moment its method returns, on connections that are open and on
//! those to come: the rules are looked at under one lock together with each write, so that not a
//! byte slips through afterwards. (Bytes written before are on their way and do arrive.)
//!
//! The proxy works on a thread of its own: a test that blocks its runtime does not stop it.
//! It sees chunks as they come out of the socket, not requests. A client that writes each request
//! in one piece of less than 64 KiB, and waits for the reply, sends one chunk for each.
//!
//! What is held back is at most 1 MiB in each direction of each of at most 1024 connections; then
//! the proxy stops reading, as a full network would.

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

/// A proxy on a port of this host, loopback's if nothing else is said, before one server; ends its connections and itself when dropped.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<SharedRules>,
    thread: Option<(oneshot::Sender<()>, thread::JoinHandle<()>)>,
}

impl Proxy {
    /// Starts a proxy that passes everything on to `target`. The target need not be up yet; while
    /// it is not, connections to the proxy are closed at once.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if no port or thread can be had.
    pub async fn start(target: SocketAddr) -> Result<Self> {
        Self::start_on(Ipv4Addr::LOCALHOST.into(), target).await
    }

    /// The same on another address of this host, such as one end of a [`VirtualLinks`](crate::VirtualLinks).
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if no port or thread can be had.
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

    /// Where clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Closes all connections that clients have made so far. New ones may come.
    pub fn cut(&self) {
        self.shared.cut();
    }

    /// Closes new connections at once; those that are open go on.
    pub fn refuse(&self, on: bool) {
        self.shared.update(|rules| rules.refuses = on);
    }

    /// Holds all bytes back, and the ends of connections, too: a network that has gone silent.
    /// What was held back arrives when this is turned off.
    pub fn freeze(&self, on: bool) {
        self.shared.update(|rules| rules.is_frozen = on);
    }

    /// Holds each chunk back for `delay`, requests and replies alike: the round trip becomes twice
    /// that longer. Chunks that are already held go by the new delay.
    pub fn delay(&self, delay: Duration) {
        self.shared.update(|rules| rules.delay = delay);
    }

    /// Passes requests on and swallows the replies.
    ///
    /// A stream cannot lose bytes in its middle: a connection that lost a reply stays mute after
    /// this is turned off, until somebody closes it. New ones, and those that lost nothing, answer.
    pub fn drop_replies(&self, on: bool) {
        self.shared.update(|rules| rules.drops_replies = on);
    }

    /// Once: the next chunk from a client goes to the server, and when the reply comes, the
    /// client's connection is closed instead. What was asked for has happened, and the client
    /// cannot know.
    pub fn cut_after_request(&self) {
        self.shared.update(|rules| rules.cut_after_request = true);
    }

    /// Sends each chunk from a client twice. Both replies are passed on as they come.
    pub fn duplicate_requests(&self, on: bool) {
        self.shared.update(|rules| rules.duplicates_requests = on);
    }

    /// Once: the next chunk from a client goes to the server twice, and when the first reply comes,
    /// the client's connection is closed instead: it cannot take the second reply for that of its
    /// next request.
    pub fn duplicate_and_cut(&self) {
        self.shared.update(|rules| rules.duplicate_and_cut = true);
    }

    /// Takes back a [`Proxy::cut_after_request`] and a [`Proxy::duplicate_and_cut`] that nobody has met yet.
    pub fn cancel_pending_cuts(&self) {
        self.shared.update(|rules| (rules.cut_after_request, rules.duplicate_and_cut) = (false, false));
    }

    /// Silences the older or the newer half of the open connections: nothing passes any more in either direction, and neither side hears of
    /// the other's end, as when a machine loses its power. A silent one stays so until its client gives it up; new connections are not touched.
    pub fn silence_half(&self, older: bool) {
        self.shared.update(|rules| {
            let half = rules.open_connections.len().div_ceil(2);
            let skipped = if older { 0 } else { rules.open_connections.len() - half };
            let chosen: Vec<u64> = rules.open_connections.iter().copied().skip(skipped).take(half).collect();
            rules.silent_connections.extend(chosen);
        });
    }

    /// The same for one connection, by its number: it was the so-and-so-manieth that was [accepted](ProxyCounts::accepted).
    pub fn silence(&self, number: u64) {
        self.shared.update(|rules| {
            rules.silent_connections.extend(rules.open_connections.contains(&number).then_some(number))
        });
    }

    /// Replaces a text in all replies to come, for servers that tell clients of other servers. Only what comes in one chunk is found.
    ///
    /// # Errors
    ///
    /// [`Error::Protocol`] if the two are not of one length: what counts bytes would be wrong.
    pub fn replace_in_replies(&self, from: &str, to: &str) -> Result<()> {
        if from.is_empty() || from.len() != to.len() {
            let problem = format!("{from:?} cannot stand for {to:?}: their lengths differ");
            return Err(Error::Protocol { peer: "a proxy".to_owned(), problem });
        }
        self.shared.update(|rules| rules.reply_replacements.push((from.into(), to.into())));
        Ok(())
    }

    /// What has gone through so far.
    pub fn counts(&self) -> ProxyCounts {
        self.shared.counts()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.thread.take() {
            drop(stop);
            // It panicked, if anything; its connections are closed all the same.
            let _ = thread.join();
            self.shared.close();
        }
    }
}
