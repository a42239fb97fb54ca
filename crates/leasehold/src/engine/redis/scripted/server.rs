//! A server in memory that a test scripts: it answers, late or never, refuses, sends malformed
//! answers, or ends the connection.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::io::{AsyncWriteExt, BufReader, DuplexStream};
use tokio::sync::Notify;

use super::super::wire::Scripts;
use super::network::{Host, Network};
use super::resp;
use crate::Locks;
use crate::claim::ClaimId;
use crate::clock::{Clock, Moment};
use crate::error::Result;

/// The shortest time for an answer.
pub(super) const TRIP: Duration = Duration::from_millis(1);

/// What the server does with one request.
#[derive(Clone, Debug)]
pub(super) enum Deed {
    Answer,
    /// Does it, and answers after this time.
    After(Duration),
    Refuse(&'static str),
    /// Does nothing, and sends this.
    Say(&'static [u8]),
    /// Does it, and ends the connection instead of answering.
    Lose,
    Cut,
    /// Reads, and sends nothing more.
    Hang,
}

/// What happens to a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Welcome {
    Open,
    Refused,
    /// Accepted, and then never answered.
    Mute,
}

/// A request, as it arrived.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) at: Moment,
    pub(super) what: &'static str,
    pub(super) claims: Vec<ClaimId>,
}

#[derive(Debug)]
pub(super) struct Held {
    pub(super) claim: ClaimId,
    pub(super) token: u64,
    pub(super) ttl: Duration,
    pub(super) until: Moment,
}

type Choose<T, A> = Box<dyn FnMut(A) -> T + Send>;

pub(super) struct State {
    welcome: Choose<Welcome, usize>,
    pub(super) deed: Choose<Deed, Seen>,
    dials: Vec<Moment>,
    pub(super) seen: Vec<Seen>,
    pub(super) locks: BTreeMap<Vec<u8>, Held>,
    pub(super) token: u64,
}

pub(super) struct Scripted {
    pub(super) clock: Clock,
    pub(super) scripts: BTreeMap<String, &'static str>,
    /// Its `run_id`.
    pub(super) run: String,
    state: Mutex<State>,
    cut: Notify,
    /// Each connection that is served has a copy.
    connected: Arc<()>,
}

impl Scripted {
    /// A server; its `run_id` is this number, twice.
    pub(super) fn new(number: u64) -> Arc<Self> {
        let scripts = Scripts::new(false);
        let named = [
            (&scripts.attempt, "attempt"),
            (&scripts.look, "look"),
            (&scripts.release, "release"),
            (&scripts.renew, "renew"),
        ];
        let state = State {
            welcome: Box::new(|_| Welcome::Open),
            deed: Box::new(|_| Deed::Answer),
            dials: Vec::new(),
            seen: Vec::new(),
            locks: BTreeMap::new(),
            token: 0,
        };
        Arc::new(Self {
            clock: Clock::tokio(),
            scripts: named.iter().map(|(script, name)| (script.sha().to_owned(), *name)).collect(),
            run: format!("{number:08x}{number:08x}"),
            state: Mutex::new(state),
            cut: Notify::new(),
            connected: Arc::new(()),
        })
    }

    /// Opens locks on this server.
    pub(super) async fn open(self: &Arc<Self>, ttl: Duration) -> Result<Locks> {
        Network::new([("h:6379", Arc::clone(self) as _)]).open("redis://h", ttl, &self.clock).await
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("one thread")
    }

    /// From now on, does this with each request.
    pub(super) fn script(&self, deed: impl FnMut(Seen) -> Deed + Send + 'static) {
        self.state().deed = Box::new(deed);
    }

    /// From now on, does this with each connection; the closure gets the number of earlier ones.
    pub(super) fn welcome(&self, welcome: impl FnMut(usize) -> Welcome + Send + 'static) {
        self.state().welcome = Box::new(welcome);
    }

    /// Ends all connections.
    pub(super) fn cut(&self) {
        self.cut.notify_waiters();
    }

    /// When connections were requested.
    pub(super) fn dials(&self) -> Vec<Moment> {
        self.state().dials.clone()
    }

    /// How many connections are open.
    pub(super) fn connections(&self) -> usize {
        Arc::strong_count(&self.connected) - 1
    }

    /// The requests of this kind so far.
    pub(super) fn seen(&self, what: &str) -> Vec<Seen> {
        self.state().seen.iter().filter(|seen| seen.what == what).cloned().collect()
    }

    /// The claims that hold a lock, by the server's state.
    pub(super) fn holders(&self) -> Vec<ClaimId> {
        let now = self.clock.now();
        self.state().locks.values().filter(|held| held.until > now).map(|held| held.claim).collect()
    }
}

impl Host for Scripted {
    fn accept(self: Arc<Self>) -> std::io::Result<DuplexStream> {
        let welcome = {
            let mut state = self.state();
            let before = state.dials.len();
            state.dials.push(self.clock.now());
            (state.welcome)(before)
        };
        if welcome == Welcome::Refused {
            return Err(std::io::ErrorKind::ConnectionRefused.into());
        }
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        match welcome {
            Welcome::Mute => drop(tokio::spawn(async move {
                let _open = theirs;
                std::future::pending::<()>().await;
            })),
            _ => drop(tokio::spawn(serve(self, theirs))),
        }
        Ok(ours)
    }
}

/// Serves one connection until its end.
async fn serve(server: Arc<Scripted>, stream: DuplexStream) {
    let _connected = Arc::clone(&server.connected);
    let (read, mut write) = tokio::io::split(stream);
    let mut read = BufReader::new(read);
    loop {
        let words = tokio::select! {
            biased;
            () = server.cut.notified() => return,
            words = resp::request(&mut read) => match words {
                Some(words) => words,
                None => return,
            },
        };
        let (deed, what) = server.heard(&words);
        let answer = match deed {
            Deed::Answer | Deed::After(_) => server.perform(&words, what),
            Deed::Refuse(why) => format!("-{why}\r\n").into_bytes(),
            Deed::Say(bytes) => bytes.to_vec(),
            Deed::Lose => return drop(server.perform(&words, what)),
            Deed::Cut => return,
            Deed::Hang => std::future::pending().await,
        };
        let time = match deed {
            Deed::After(time) => time,
            _ if matches!(what, "load" | "subscribe") => Duration::ZERO,
            _ => TRIP,
        };
        tokio::select! {
            biased;
            () = server.cut.notified() => return,
            () = server.clock.sleep(time) => {}
        }
        if write.write_all(&answer).await.is_err() {
            return;
        }
    }
}
