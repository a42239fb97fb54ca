//! A session: one task that owns its connection, its watches, and what waits for an answer.
//!
//! # Life
//! A session is opened with the first server that answers, and from then on [`Session::run`] serves it. When a connection breaks, what was
//! sent and not answered fails with [`Error::ConnectionLoss`]; what is asked meanwhile waits in the channel until there is a connection
//! again, or the session is over. The next connection begins with the session's number and password, the logins and the watches; only when
//! the server has answered all of that is the session connected again.
//!
//! # Time
//! | what | when |
//! |---|---|
//! | a ping | nothing was sent for half of the *silence* |
//! | the server is left for another | it has said nothing for the *silence*: two thirds of the session timeout, or the connection timeout if that is shorter |
//! | an attempt to connect is given up | it has taken as long as the silence |
//! | the session is declared over | no server has said anything for 7/5 of the session timeout. The servers may have ended it after one timeout; but if all of them were away, they give it its full time again |

mod buffers;
mod link;
mod opening;
mod rota;
mod serving;
mod settings;
mod watches;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use self::link::{Intake, Link};
use self::rota::Rota;
pub(crate) use self::settings::Settings;
pub(crate) use self::watches::Interest;
use self::watches::Watches;
use crate::address::Server;
use crate::client::{Answer, Client};
use crate::dial::Dial;
use crate::error::{Error, Result};
use crate::types::{SessionId, SessionState};

/// What the task is asked for.
#[derive(Debug)]
pub(crate) enum Asked {
    /// To send this.
    Request(Request),
    /// A watcher was dropped.
    Unwatch { interest: Interest, path: String },
}

/// One request.
#[derive(Debug)]
pub(crate) struct Request {
    /// The whole packet, in which the number is still missing.
    pub(crate) frame: Vec<u8>,
    /// What it watches.
    pub(crate) watch: Option<(Interest, String)>,
    /// Where the answer goes; `None` if it is of no interest.
    pub(crate) reply: Option<oneshot::Sender<Answer>>,
}

/// Opens a session with the first of these servers that answers.
pub(crate) async fn open<D: Dial>(settings: Settings, dial: D, servers: Vec<Server>) -> Result<Client> {
    let (requests, asked) = unbounded_channel();
    let (state, mut states) = watch::channel(SessionState::Disconnected);
    let changes: Arc<AtomicU64> = Arc::default();
    let mut session = Session {
        timeout: settings.session_timeout,
        settings,
        dial,
        rota: Rota::new(servers),
        opened: false,
        started: Instant::now(),
        id: 0,
        password: vec![0; 16],
        last_zxid: 0,
        last_heard: Instant::now(),
        watches: Watches::new(requests.downgrade(), states.clone()),
        state,
        changes: Arc::clone(&changes),
    };
    let link = session.connect().await?;
    session.opened = true;
    session.change(SessionState::SyncConnected);
    // Watchers of the state tell what comes after this.
    states.mark_unchanged();
    let client = Client::new(requests, (states, changes), SessionId(session.id), session.timeout);
    tokio::spawn(session.run(link, asked));
    Ok(client)
}

/// One session.
struct Session<D> {
    settings: Settings,
    dial: D,
    rota: Rota,
    /// Whether the user has it already.
    opened: bool,
    started: Instant,
    id: i64,
    password: Vec<u8>,
    /// How long it outlives its client, as the server has it.
    timeout: Duration,
    /// The newest transaction of which a server has told.
    last_zxid: i64,
    /// When a server said something.
    last_heard: Instant,
    watches: Watches,
    state: watch::Sender<SessionState>,
    changes: Arc<AtomicU64>,
}

impl<D: Dial> Session<D> {
    /// How long a server may say nothing.
    fn silence(&self) -> Duration {
        let most = self.timeout * 2 / 3;
        self.settings.connection_timeout.map_or(most, |timeout| timeout.min(most))
    }

    /// When it is over if no server says anything until then.
    fn end(&self) -> Instant {
        if self.opened { self.last_heard + self.timeout * 7 / 5 } else { self.started + self.settings.session_timeout }
    }

    fn change(&self, state: SessionState) {
        // First, so that a change that is told is counted already.
        self.changes.fetch_add(1, Ordering::AcqRel);
        self.state.send_replace(state);
    }

    /// Serves the session to its end.
    async fn run(mut self, mut link: Link<D::Stream>, asked: UnboundedReceiver<Asked>) {
        let mut intake = Intake::new(asked);
        let why = loop {
            let since = Instant::now();
            let why = self.serve(&mut link, &mut intake).await;
            tracing::debug!(session = %SessionId(self.id), %why, "the connection is over");
            if why.ends_session() {
                link.fail(&why);
                break why;
            }
            self.change(SessionState::Disconnected);
            link.fail(&Error::ConnectionLoss);
            drop(link);
            tokio::time::sleep(self.rota.broke_after(since.elapsed(), self.timeout)).await;
            link = match self.connect().await {
                Ok(link) => link,
                Err(why) => break why,
            };
            self.change(SessionState::SyncConnected);
        };
        self.finish(&why, intake);
    }

    /// Tells everything that waits that the session is over.
    fn finish(self, why: &Error, intake: Intake) {
        let state = match why {
            Error::AuthFailed => SessionState::AuthFailed,
            Error::ClientClosed => SessionState::Closed,
            _ => SessionState::Expired,
        };
        tracing::debug!(session = %SessionId(self.id), ?state, "the session is over");
        self.change(state);
        intake.end(&state.error());
        // With the watches, their senders are dropped, which tells each watcher.
    }
}
