//! Waiting for events of a node, or of the session.

use tokio::sync::mpsc::WeakUnboundedSender;
use tokio::sync::{oneshot, watch};

use crate::session::{SessionCommand, WatchKind};
use crate::types::{EventType, SessionState, WatchedEvent};

/// A watch on one node, which reports one event.
///
/// The watch survives reconnects: the next server reports what has happened meanwhile. Dropping it
/// removes the watch, at the server too, unless another watcher of this client needs the same one.
///
/// ```no_run
/// use leasehold_zookeeper::OneshotWatcher;
/// # use leasehold_zookeeper::{Client, Error};
///
/// # async fn example(client: &Client) -> Result<(), Error> {
/// let (data, _, watcher) = client.get_and_watch_data("/config").await?;
/// println!("{} bytes", data.len());
/// let event = OneshotWatcher::changed(watcher).await;
/// println!("changed: {event:?}");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct OneshotWatcher {
    event: oneshot::Receiver<WatchedEvent>,
    interest: WatchKind,
    path: String,
    session: WeakUnboundedSender<SessionCommand>,
    /// The session's state; read only when the session is over.
    state: watch::Receiver<SessionState>,
    is_delivered: bool,
}

impl OneshotWatcher {
    pub(crate) fn new(
        event: oneshot::Receiver<WatchedEvent>,
        (interest, path): (WatchKind, String),
        session: WeakUnboundedSender<SessionCommand>,
        state: watch::Receiver<SessionState>,
    ) -> Self {
        Self { event, interest, path, session, state, is_delivered: false }
    }

    /// Waits for the event, or for the end of the session.
    pub async fn changed(mut self) -> WatchedEvent {
        let event = (&mut self.event).await;
        self.is_delivered = true;
        event.unwrap_or_else(|_| WatchedEvent {
            event_type: EventType::Session,
            session_state: *self.state.borrow(),
            path: String::new(),
        })
    }
}

impl Drop for OneshotWatcher {
    fn drop(&mut self) {
        self.event.close();
        if self.is_delivered || self.event.try_recv().is_ok() {
            return;
        }
        if let Some(session) = self.session.upgrade() {
            // If the session is over, so is the watch.
            let _ =
                session.send(SessionCommand::Unwatch { interest: self.interest, path: std::mem::take(&mut self.path) });
        }
    }
}

/// Watches a session's state. Any of its futures may be dropped at any time.
///
/// ```no_run
/// use leasehold_zookeeper::StateWatcher;
/// # use leasehold_zookeeper::{Client, Error};
///
/// # async fn example(client: &Client) -> Result<(), Error> {
/// let mut states: StateWatcher = client.state_watcher();
/// while !states.changed().await.is_terminated() {
///     println!("{:?}", states.peek_state());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct StateWatcher(watch::Receiver<SessionState>);

impl StateWatcher {
    pub(crate) fn new(state: watch::Receiver<SessionState>) -> Self {
        Self(state)
    }

    /// Waits until the state has changed since the last call, or since the session was opened, and
    /// returns the newest state. It may skip short states in between. After it has reported the end
    /// of the session once, it waits forever.
    pub async fn changed(&mut self) -> SessionState {
        match self.0.changed().await {
            Ok(()) => *self.0.borrow_and_update(),
            Err(_) => std::future::pending().await,
        }
    }

    /// The present state. [`changed`](Self::changed) still reports it if it is new.
    pub fn peek_state(&self) -> SessionState {
        *self.0.borrow()
    }
}
