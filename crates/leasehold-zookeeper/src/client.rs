//! The user's handle on a session.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{oneshot, watch};

use crate::connector::Connector;
use crate::error::{Error, Result};
use crate::jute::{Reader, Writer};
use crate::multi::MultiWriter;
use crate::session::{Request, SessionCommand, WatchKind};
use crate::types::{SessionId, SessionState};
use crate::watch::{OneshotWatcher, StateWatcher};
use crate::wire::Header;

/// A session with an ensemble. Clones share it; dropping the last one closes it.
///
/// A method sends its request before it returns, that is, before its future is polled. The server
/// executes requests in the order in which they were made. Dropping the future does not cancel the
/// request.
///
/// ```no_run
/// use leasehold_zookeeper::Client;
/// # use leasehold_zookeeper::Error;
///
/// # async fn example() -> Result<(), Error> {
/// let client = Client::connect("zk1:2181,zk2:2181,zk3:2181").await?;
/// let (data, stat) = client.get_data("/config").await?;
/// println!("version {} has {} bytes", stat.version, data.len());
/// client.set_data("/config", b"new", Some(stat.version)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    requests: UnboundedSender<SessionCommand>,
    state: watch::Receiver<SessionState>,
    state_changes: Arc<AtomicU64>,
    id: SessionId,
    timeout: Duration,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({}, {:?}, {:?})", self.id, self.timeout, self.state())
    }
}

/// A server's reply to one request.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The whole frame of the reply; an error if the server reported one, or if no reply came.
    pub(crate) frame: Result<Vec<u8>>,
    /// The watch that the request has set; `None` if it asked for none, or the server set none.
    pub(crate) watcher: Option<OneshotWatcher>,
}

impl Answer {
    /// Parses what follows the header of the reply with `read`.
    pub(crate) fn read<T>(self, read: impl FnOnce(&mut Reader<'_>) -> Result<T>) -> Result<T> {
        let frame = self.frame?;
        read(&mut Reader::new(frame.get(Header::LENGTH..).unwrap_or_default()))
    }
}

impl Client {
    pub(crate) fn new(
        requests: UnboundedSender<SessionCommand>,
        (state, changes): (watch::Receiver<SessionState>, Arc<AtomicU64>),
        id: SessionId,
        timeout: Duration,
    ) -> Self {
        Self { requests, state, state_changes: changes, id, timeout }
    }

    /// Opens a session with the servers of a list such as `zk1:2181,zk2:2181`.
    ///
    /// # Errors
    /// See [`Connector::connect`].
    pub async fn connect(servers: &str) -> Result<Self> {
        Self::connector().connect(servers).await
    }

    /// Default settings for a session, to change before it is opened.
    pub fn connector() -> Connector {
        Connector::default()
    }

    /// The number by which the servers know the session.
    pub fn session_id(&self) -> SessionId {
        self.id
    }

    /// How long the session outlives its client, as granted by the first server.
    pub fn session_timeout(&self) -> Duration {
        self.timeout
    }

    /// Whether the session is connected, disconnected or over.
    pub fn state(&self) -> SessionState {
        *self.state.borrow()
    }

    /// A watcher that reports changes of the state since the session was opened.
    pub fn state_watcher(&self) -> StateWatcher {
        StateWatcher::new(self.state.clone())
    }

    /// Counts the changes of the state. A change is counted before watchers are notified, and a
    /// lost connection before any event of the next connection. So events that arrive while the
    /// count stays the same came over one connection, in order.
    pub fn state_changes(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.state_changes)
    }

    /// An empty transaction, to which writes are added.
    pub fn new_multi_writer(&self) -> MultiWriter<'_> {
        MultiWriter::new(self)
    }

    /// Sends a request now, which sets `watch` if that is given; the future returns the reply.
    pub(crate) fn send(
        &self,
        frame: Result<Writer>,
        watch: Option<(WatchKind, String)>,
    ) -> impl Future<Output = Answer> + Send + use<> {
        let (reply, answer) = oneshot::channel();
        let sent = frame.and_then(|frame| {
            let request = Request { frame: frame.finish(), watch, reply: Some(reply) };
            self.requests.send(SessionCommand::Request(request)).map_err(|_| self.state().error())
        });
        let state = self.state.clone();
        async move {
            let failed = |error| Answer { frame: Err(error), watcher: None };
            match sent {
                Ok(()) => answer.await.unwrap_or_else(|_| failed(end_of_session_error(*state.borrow()))),
                Err(error) => failed(error),
            }
        }
    }
}

/// The error of a request that got no reply because its session ended.
fn end_of_session_error(state: SessionState) -> Error {
    if state.is_terminated() { state.error() } else { Error::ClientClosed }
}
