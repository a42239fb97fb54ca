//! A session: one task that owns its connection, its watches, and the pending requests.
//!
//! # Life
//! The first server that responds opens the session, and from then on [`Session::run`] serves it.
//! When a connection breaks, unanswered requests fail with [`Error::ConnectionLoss`]. New requests
//! wait in the channel until there is a connection again, or the session is over. The next
//! connection begins with the session's number and password, the logins and the watches. The
//! session is connected again only after the server has replied to all of these.
//!
//! # Time
//! | event | when |
//! |---|---|
//! | a ping is sent | no request was sent for half of the *silence* |
//! | another server is tried | the current one has not sent any data for the *silence*: two thirds of the session timeout, or the connection timeout if that is shorter |
//! | an attempt to connect times out | after the silence |
//! | the session is declared over | no server has sent any data for 7/5 of the session timeout. The servers may have ended it after one timeout; but if all of them were unreachable, they restart its full timeout |

mod buffers;
mod connection;
mod opening;
mod server_rotation;
mod serving;
mod settings;
mod watches;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use self::connection::{CommandQueue, Connection};
use self::server_rotation::ServerRotation;
pub(crate) use self::settings::Settings;
pub(crate) use self::watches::WatchKind;
use self::watches::Watches;
use crate::address::Server;
use crate::client::{Answer, Client};
use crate::error::{Error, Result};
use crate::transport::Transport;
use crate::types::{SessionId, SessionState};

/// A message of a client or a watcher to the session's task.
#[derive(Debug)]
pub(crate) enum SessionCommand {
    /// A request to send.
    Request(Request),
    /// A watcher was dropped.
    Unwatch { interest: WatchKind, path: String },
}

/// A request that is sent over any connection of the session.
#[derive(Debug)]
pub(crate) struct Request {
    /// The whole packet, in which the request's number is not filled in yet.
    pub(crate) frame: Vec<u8>,
    /// The watch that the request sets, and its path; `None` if it sets none.
    pub(crate) watch: Option<(WatchKind, String)>,
    /// Where the reply goes; `None` if no caller needs it.
    pub(crate) reply: Option<oneshot::Sender<Answer>>,
}

/// Opens a session with the first of these servers that responds.
pub(crate) async fn open<D: Transport>(settings: Settings, transport: D, servers: Vec<Server>) -> Result<Client> {
    let (requests, commands) = unbounded_channel();
    let (state, mut states) = watch::channel(SessionState::Disconnected);
    let changes: Arc<AtomicU64> = Arc::default();
    let mut session = Session {
        timeout: settings.session_timeout,
        settings,
        transport,
        servers: ServerRotation::new(servers),
        is_opened: false,
        started: Instant::now(),
        id: 0,
        password: vec![0; 16],
        last_zxid: 0,
        last_heard: Instant::now(),
        watches: Watches::new(requests.downgrade(), states.clone()),
        state,
        changes: Arc::clone(&changes),
    };
    let connection = session.connect().await?;
    session.is_opened = true;
    session.set_state(SessionState::SyncConnected);
    // Watchers of the state report only later changes.
    states.mark_unchanged();
    let client = Client::new(requests, (states, changes), SessionId(session.id), session.timeout);
    tokio::spawn(session.run(connection, commands));
    Ok(client)
}

/// The state of a session, owned by the task that runs it. `D` connects to servers.
struct Session<D> {
    settings: Settings,
    transport: D,
    servers: ServerRotation,
    /// Whether a server has opened the session.
    is_opened: bool,
    started: Instant,
    /// The number by which the servers know the session; 0 before it is opened.
    id: i64,
    /// What the servers require to resume the session on another connection.
    password: Vec<u8>,
    /// How long the session outlives its client, as granted by the server.
    timeout: Duration,
    /// The number of the newest transaction that a server has reported.
    last_zxid: i64,
    /// When a server last sent data.
    last_heard: Instant,
    watches: Watches,
    state: watch::Sender<SessionState>,
    /// How often the state has changed.
    changes: Arc<AtomicU64>,
}

impl<D: Transport> Session<D> {
    /// The longest time without data from a server before another one is tried.
    fn max_silence(&self) -> Duration {
        let most = self.timeout * 2 / 3;
        self.settings.connection_timeout.map_or(most, |timeout| timeout.min(most))
    }

    /// When the session ends if no server sends data until then.
    fn deadline(&self) -> Instant {
        if self.is_opened {
            self.last_heard + self.timeout * 7 / 5
        } else {
            self.started + self.settings.session_timeout
        }
    }

    fn set_state(&self, state: SessionState) {
        // Counted first, so that watchers find a reported change counted already.
        self.changes.fetch_add(1, Ordering::AcqRel);
        self.state.send_replace(state);
    }

    /// Serves the session until its end.
    async fn run(mut self, mut connection: Connection<D::Stream>, commands: UnboundedReceiver<SessionCommand>) {
        let mut queue = CommandQueue::new(commands);
        let why = loop {
            let since = Instant::now();
            let why = self.serve(&mut connection, &mut queue).await;
            tracing::debug!(session = %SessionId(self.id), %why, "the connection is over");
            if why.ends_session() {
                connection.fail(&why);
                break why;
            }
            self.set_state(SessionState::Disconnected);
            connection.fail(&Error::ConnectionLoss);
            drop(connection);
            tokio::time::sleep(self.servers.pause_after(since.elapsed(), self.timeout)).await;
            connection = match self.connect().await {
                Ok(connection) => connection,
                Err(why) => break why,
            };
            self.set_state(SessionState::SyncConnected);
        };
        self.finish(&why, queue);
    }

    /// Notifies all pending requests and watchers that the session is over.
    fn finish(self, why: &Error, queue: CommandQueue) {
        let state = match why {
            Error::AuthFailed => SessionState::AuthFailed,
            Error::ClientClosed => SessionState::Closed,
            _ => SessionState::Expired,
        };
        tracing::debug!(session = %SessionId(self.id), ?state, "the session is over");
        self.set_state(state);
        queue.fail_all(&state.error());
        // Dropping the watches drops their senders, which notifies each watcher.
    }
}
