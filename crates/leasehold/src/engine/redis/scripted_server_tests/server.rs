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
use crate::clock::{Clock, Instant};
use crate::types::{ClaimId, Result};

/// The shortest time for an answer.
pub(super) const TRIP: Duration = Duration::from_millis(1);

/// What the server does with one request.
#[derive(Clone, Debug)]
pub(super) enum Reaction {
    Answer,
    /// Does it, and answers after this time.
    AnswerAfter(Duration),
    Refuse(&'static str),
    /// Sends this, without executing the command.
    SendRaw(&'static [u8]),
    /// Does it, and ends the connection instead of answering.
    LoseAnswer,
    Disconnect,
    /// Reads, and sends no more answers.
    Hang,
}

/// What happens to a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectReaction {
    Accept,
    Refuse,
    /// Accepted, and then never answered.
    NeverAnswer,
}

/// A request, as it arrived.
#[derive(Clone, Debug)]
pub(super) struct ReceivedRequest {
    pub(super) at: Instant,
    pub(super) kind: &'static str,
    pub(super) claims: Vec<ClaimId>,
}

#[derive(Debug)]
pub(super) struct HeldLock {
    pub(super) parse_claim: ClaimId,
    pub(super) token: u64,
    pub(super) ttl: Duration,
    pub(super) expires_at: Instant,
}

type Chooser<T, A> = Box<dyn FnMut(A) -> T + Send>;

pub(super) struct ServerState {
    on_connect: Chooser<ConnectReaction, usize>,
    pub(super) on_request: Chooser<Reaction, ReceivedRequest>,
    connect_times: Vec<Instant>,
    pub(super) requests: Vec<ReceivedRequest>,
    pub(super) locks: BTreeMap<Vec<u8>, HeldLock>,
    pub(super) last_token: u64,
}

pub(super) struct ScriptedServer {
    pub(super) clock: Clock,
    pub(super) scripts: BTreeMap<String, &'static str>,
    /// Its `run_id`.
    pub(super) run: String,
    state: Mutex<ServerState>,
    disconnect: Notify,
    /// Each connection that is served has a copy.
    connected: Arc<()>,
}

impl ScriptedServer {
    /// A server; its `run_id` is this number, twice.
    pub(super) fn new(number: u64) -> Arc<Self> {
        let scripts = Scripts::new(false);
        let named = [
            (&scripts.attempt, "attempt"),
            (&scripts.heartbeat, "heartbeat"),
            (&scripts.release, "release"),
            (&scripts.renew, "renew"),
        ];
        let state = ServerState {
            on_connect: Box::new(|_| ConnectReaction::Accept),
            on_request: Box::new(|_| Reaction::Answer),
            connect_times: Vec::new(),
            requests: Vec::new(),
            locks: BTreeMap::new(),
            last_token: 0,
        };
        Arc::new(Self {
            clock: Clock::tokio(),
            scripts: named.iter().map(|(script, request_kind)| (script.sha().to_owned(), *request_kind)).collect(),
            run: format!("{number:08x}{number:08x}"),
            state: Mutex::new(state),
            disconnect: Notify::new(),
            connected: Arc::new(()),
        })
    }

    /// Opens locks on this server.
    pub(super) async fn open(self: &Arc<Self>, ttl: Duration) -> Result<Locks> {
        Network::new([("h:6379", Arc::clone(self) as _)]).open("redis://h", ttl, &self.clock).await
    }

    pub(super) fn state(&self) -> MutexGuard<'_, ServerState> {
        self.state.lock().expect("one thread")
    }

    /// From now on, does this with each request.
    pub(super) fn on_request(&self, reaction: impl FnMut(ReceivedRequest) -> Reaction + Send + 'static) {
        self.state().on_request = Box::new(reaction);
    }

    /// From now on, does this with each connection; the closure gets the number of earlier ones.
    pub(super) fn on_connect(&self, reaction: impl FnMut(usize) -> ConnectReaction + Send + 'static) {
        self.state().on_connect = Box::new(reaction);
    }

    /// Ends all connections.
    pub(super) fn disconnect_all(&self) {
        self.disconnect.notify_waiters();
    }

    /// When connections were requested.
    pub(super) fn connect_times(&self) -> Vec<Instant> {
        self.state().connect_times.clone()
    }

    /// How many connections are open.
    pub(super) fn connections(&self) -> usize {
        Arc::strong_count(&self.connected) - 1
    }

    /// The requests of this kind so far.
    pub(super) fn requests(&self, kind: &str) -> Vec<ReceivedRequest> {
        self.state().requests.iter().filter(|request| request.kind == kind).cloned().collect()
    }

    /// The claims that hold a lock, by the server's state.
    pub(super) fn holders(&self) -> Vec<ClaimId> {
        let now = self.clock.now();
        self.state().locks.values().filter(|held| held.expires_at > now).map(|held| held.parse_claim).collect()
    }
}

impl Host for ScriptedServer {
    fn accept(self: Arc<Self>) -> std::io::Result<DuplexStream> {
        let welcome = {
            let mut state = self.state();
            let before = state.connect_times.len();
            state.connect_times.push(self.clock.now());
            (state.on_connect)(before)
        };
        if welcome == ConnectReaction::Refuse {
            return Err(std::io::ErrorKind::ConnectionRefused.into());
        }
        let (client_side, server_side) = tokio::io::duplex(1 << 16);
        match welcome {
            ConnectReaction::NeverAnswer => drop(tokio::spawn(async move {
                let _open = server_side;
                std::future::pending::<()>().await;
            })),
            _ => drop(tokio::spawn(serve(self, server_side))),
        }
        Ok(client_side)
    }
}

/// Serves one connection until its end.
async fn serve(server: Arc<ScriptedServer>, stream: DuplexStream) {
    let _connected = Arc::clone(&server.connected);
    let (read, mut write) = tokio::io::split(stream);
    let mut read = BufReader::new(read);
    loop {
        let words = tokio::select! {
            biased;
            () = server.disconnect.notified() => return,
            words = resp::request(&mut read) => match words {
                Some(words) => words,
                None => return,
            },
        };
        let (reaction, kind) = server.heard(&words);
        let answer = match reaction {
            Reaction::Answer | Reaction::AnswerAfter(_) => server.perform(&words, kind),
            Reaction::Refuse(reason) => format!("-{reason}\r\n").into_bytes(),
            Reaction::SendRaw(bytes) => bytes.to_vec(),
            Reaction::LoseAnswer => return drop(server.perform(&words, kind)),
            Reaction::Disconnect => return,
            Reaction::Hang => std::future::pending().await,
        };
        let time = match reaction {
            Reaction::AnswerAfter(time) => time,
            _ if matches!(kind, "load" | "subscribe") => Duration::ZERO,
            _ => TRIP,
        };
        tokio::select! {
            biased;
            () = server.disconnect.notified() => return,
            () = server.clock.sleep(time) => {}
        }
        if write.write_all(&answer).await.is_err() {
            return;
        }
    }
}
