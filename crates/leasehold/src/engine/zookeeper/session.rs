//! One session with the ensemble: opening it, proving until when it lives, and noticing its end.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use leasehold_zookeeper::{Client, Error as Cause, EventType, SaslOptions, SessionState, StateWatcher, WatchedEvent};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::claim_registry::ClaimRegistry;
use super::config::{Config, Scheme};
use super::{error, steps, tls, wire};
use crate::clock::{Clock, Instant};
use crate::engine::LossBroadcaster;
use crate::logic::session_lifetime::SessionLifetime;
use crate::types::{ClaimId, Result};

/// An event to wait for.
pub type WatchFuture = BoxFuture<'static, WatchedEvent>;

/// How long a lock is held before its own node is watched and the waiter behind it notified. Most
/// are released sooner, and need neither.
const MIN_HOLD_TIME: Duration = Duration::from_millis(50);

/// How long closing waits for the end of a session, which would expire anyway.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// The longest time without an answer before another server is tried.
const MAX_CONNECTION_TIMEOUT: Duration = Duration::from_secs(4);

/// One session.
pub struct Session {
    pub client: Client,
    /// How long it outlives its client, as granted by the server.
    pub timeout: Duration,
    clock: Clock,
    proof: Mutex<SessionLifetime>,
    is_over: AtomicBool,
    /// How often the state of the connection has changed.
    connection_changes: Arc<AtomicU64>,
    guard_requests: UnboundedSender<GuardedNode>,
}

/// A holding claim's own node.
pub struct GuardedNode {
    pub claim: ClaimId,
    pub path: String,
    /// The watch on it, if there is one already.
    pub watch: Option<WatchFuture>,
    /// The data to write to it, which notifies the waiter behind it of the grant.
    pub grant_data: Option<String>,
    /// Whether that is urgent.
    pub is_urgent: bool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({}, {:?})", self.client.session_id(), self.timeout)
    }
}

impl Session {
    /// Opens a session that outlives its client by `timeout`, or as near to that as the server
    /// allows.
    pub(super) async fn open(
        config: &Config,
        timeout: Duration,
        clock: &Clock,
        losses: &Arc<LossBroadcaster>,
        registry: &Arc<ClaimRegistry>,
    ) -> Result<Arc<Self>> {
        let requested_at = clock.now();
        let connecting = connect(config, timeout);
        let client = clock.timeout(config.connect_timeout, connecting).await;
        let client = client.unwrap_or(Err(Cause::Timeout).map_err(|cause| error::open_error(config, cause)))?;
        let timeout = client.session_timeout();
        // By default a session is at least two ticks long, and a follower reports twice a tick.
        let lifetime = SessionLifetime::new(requested_at, timeout, timeout / 4);
        let (guarded, requests) = unbounded_channel();
        let (lifetime, over) = (Mutex::new(lifetime), AtomicBool::new(false));
        let breaks = client.state_changes();
        let session = Arc::new(Self {
            client,
            timeout,
            clock: clock.clone(),
            proof: lifetime,
            is_over: over,
            connection_changes: breaks,
            guard_requests: guarded,
        });
        let task = SessionTask {
            session: Arc::downgrade(&session),
            seats: Arc::downgrade(registry),
            losses: Arc::clone(losses),
        };
        tokio::spawn(task.run(clock.clone(), requests, session.client.state_watcher(), timeout));
        Ok(session)
    }

    /// Opens a session that holds no claims, to examine the ensemble.
    ///
    /// # Errors
    /// As the engine's `open`.
    pub async fn open_without_claims(config: &Config, timeout: Duration) -> Result<Arc<Self>> {
        Self::open(config, timeout, &Clock::system(), &Arc::default(), &Arc::default()).await
    }

    /// Ends the session, unless it is still in use, and waits a short time until the server has
    /// ended it.
    pub async fn close(self: Arc<Self>) {
        let (states, clock) = (self.client.state_watcher(), self.clock.clone());
        drop(self);
        let end = clock.now().saturating_add(CLOSE_TIMEOUT);
        while !states.peek_state().is_terminated() && clock.now() < end {
            clock.sleep_until(clock.now().saturating_add(Duration::from_millis(2))).await;
        }
    }

    /// The count of the connection's state changes: the live counter, and its value now.
    pub fn connection_changes(&self) -> (Arc<AtomicU64>, u64) {
        (Arc::clone(&self.connection_changes), self.connection_changes.load(Ordering::Acquire))
    }

    /// Whether no request can be sent any more.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire) || self.client.state().is_terminated()
    }

    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    fn proof(&self) -> MutexGuard<'_, SessionLifetime> {
        self.proof.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the end of a read that was sent at `sent`.
    pub fn note_read<T>(&self, sent: Instant, result: &std::result::Result<T, Cause>) {
        if result.is_ok() {
            self.proof().record_answer(sent, self.clock.now());
        }
    }

    /// Notes the end of a write that was sent at `sent`.
    pub fn note_write<T, E>(&self, sent: Instant, result: &std::result::Result<T, E>) {
        if result.is_ok() {
            self.proof().record_commit(sent, self.clock.now());
        }
    }

    /// The session certainly lives until then, even if the leader's clock runs 1 % faster than
    /// ours.
    pub fn deadline(&self) -> Instant {
        self.proof().lives_until().saturating_sub(self.timeout / 100)
    }

    /// Whether the certain time left is too short for a new grant.
    pub fn is_running_low(&self) -> bool {
        self.deadline().duration_since(self.now()) < self.timeout / 8
    }

    /// Requests a watch on a holding claim's own node.
    pub fn watch_node(&self, guarded: GuardedNode) {
        // There is no receiver after the end of the session; its claims are lost anyway.
        let _ = self.guard_requests.send(guarded);
    }
}

async fn connect(config: &Config, timeout: Duration) -> Result<Client> {
    let mut connector = Client::connector()
        .with_session_timeout(timeout)
        .with_connection_timeout((timeout * 2 / 5).min(MAX_CONNECTION_TIMEOUT));
    if config.servers.len() == 1 {
        // There is no other server to try: errors are reported at once.
        connector = connector.with_fail_eagerly();
    }
    if let Some(login) = &config.login {
        connector = match login.scheme {
            Scheme::Digest => connector.with_auth("digest", format!("{}:{}", login.user, login.password).as_bytes()),
            Scheme::Sasl => connector.with_sasl(SaslOptions::digest_md5(login.user.clone(), login.password.clone())),
        };
    }
    if let Some(tls) = &config.tls {
        connector = connector.with_tls(tls::client_config(tls)?);
    }
    connector.connect(&config.hosts).await.map_err(|cause| error::open_error(config, cause))
}

/// Watches over a session as long as it is in use.
struct SessionTask {
    session: Weak<Session>,
    seats: Weak<ClaimRegistry>,
    losses: Arc<LossBroadcaster>,
}

/// A holding claim's own node, and the state found.
type NodeResult = (GuardedNode, NodeStatus);

enum NodeStatus {
    /// The session was dropped.
    Gone,
    /// It exists, and this is the watch on it.
    Watched(WatchFuture),
    /// The same, and an operator requests its release.
    ReleaseRequested(WatchFuture),
    /// It exists, and must be read again.
    Changed,
}

impl SessionTask {
    async fn run(
        self,
        clock: Clock,
        mut requests: UnboundedReceiver<GuardedNode>,
        mut states: StateWatcher,
        timeout: Duration,
    ) {
        let mut watched: FuturesUnordered<BoxFuture<'static, NodeResult>> = FuturesUnordered::new();
        let mut waiting: VecDeque<(Instant, GuardedNode)> = VecDeque::new();
        let mut heartbeat: Option<BoxFuture<'static, ()>> = None;
        let mut next_beat = clock.now().saturating_add(timeout / 6);
        loop {
            let next_wake = waiting.front().map_or(next_beat, |(at, _)| (*at).min(next_beat));
            tokio::select! {
                biased;
                state = states.changed() => match state {
                    SessionState::Disconnected => {}
                    state if state.is_terminated() => break,
                    // After any event: check that all claims are still ours.
                    _ => self.losses.report_resync(),
                },
                request = requests.recv() => match request {
                    None => return,
                    Some(guarded) if guarded.is_urgent => watched.push(arm_watch(self.session.clone(), guarded).boxed()),
                    Some(guarded) => waiting.push_back((clock.now().saturating_add(MIN_HOLD_TIME), guarded)),
                },
                Some((guarded, fate)) = watched.next(), if !watched.is_empty() => match fate {
                    NodeStatus::Gone => self.report_loss(&guarded),
                    NodeStatus::Changed if self.holds(&guarded) => {
                        watched.push(arm_watch(self.session.clone(), guarded).boxed());
                    }
                    NodeStatus::Changed => {}
                    NodeStatus::ReleaseRequested(event) => {
                        self.losses.report_release_request(guarded.claim);
                        watched.push(wait_for_change(guarded, event).boxed());
                    }
                    NodeStatus::Watched(event) => watched.push(wait_for_change(guarded, event).boxed()),
                },
                () = async { if let Some(heartbeat) = &mut heartbeat { heartbeat.await } }, if heartbeat.is_some() => heartbeat = None,
                () = clock.sleep_until(next_wake) => {
                    let now = clock.now();
                    while waiting.front().is_some_and(|(at, _)| *at <= now) {
                        let Some((_, guarded)) = waiting.pop_front() else { break };
                        if self.holds(&guarded) {
                            watched.push(arm_watch(self.session.clone(), guarded).boxed());
                        }
                    }
                    if now >= next_beat {
                        self.remove_unwanted();
                        next_beat = now.saturating_add(timeout / 6);
                        heartbeat.get_or_insert_with(|| send_heartbeat(self.session.clone()).boxed());
                    }
                }
            }
        }
        self.end_claims();
    }

    fn holds(&self, guarded: &GuardedNode) -> bool {
        self.seats.upgrade().is_some_and(|registry| registry.is_held_by(guarded.claim, &guarded.path))
    }

    fn report_loss(&self, guarded: &GuardedNode) {
        if self.holds(guarded) {
            self.losses.report_lost(guarded.claim);
        }
    }

    /// Removes claims that no caller wants any more: their TTL is over, though the session lives.
    fn remove_unwanted(&self) {
        let Some(registry) = self.seats.upgrade() else { return };
        for entry in registry.unwanted_on(&self.session) {
            let (registry, losses) = (Arc::clone(&registry), Arc::clone(&self.losses));
            tokio::spawn(async move {
                let mut remote = entry.remote.lock().await;
                if !entry.is_unwanted() {
                    return;
                }
                if entry.is_held() {
                    losses.report_lost(entry.claim);
                }
                registry.note_unresolved(&entry);
                match steps::remove_claim(&registry, &entry, &mut remote).await {
                    // No other client deleted its node before, so it was not evicted.
                    Ok(true) => registry.resolve(entry.claim),
                    Ok(false) => {}
                    // Tried again with the next beat.
                    Err(cause) => tracing::debug!(%cause, "an expired claim could not be deleted yet"),
                }
            });
        }
    }

    /// Ends the claims of a session that is over.
    fn end_claims(&self) {
        let Some(session) = self.session.upgrade() else { return };
        session.is_over.store(true, Ordering::Release);
        let Some(registry) = self.seats.upgrade() else { return };
        for claim in registry.remove_session(&session) {
            self.losses.report_lost(claim);
        }
    }
}

/// Waits for an event on a holding claim's own node.
async fn wait_for_change(guarded: GuardedNode, event: WatchFuture) -> NodeResult {
    let event_type = match event.await.event_type {
        EventType::NodeDeleted => NodeStatus::Gone,
        // The watcher of the session's state reports its end.
        EventType::Session => NodeStatus::Watched(futures_util::future::pending().boxed()),
        _ => NodeStatus::Changed,
    };
    (guarded, event_type)
}

/// Notifies the waiter behind a holder, if required, and watches the holder's own node from now on.
async fn arm_watch(session: Weak<Session>, mut guarded: GuardedNode) -> NodeResult {
    let Some(session) = session.upgrade() else {
        return (guarded, NodeStatus::Watched(futures_util::future::pending().boxed()));
    };
    if let Some(grant_data) = &guarded.grant_data {
        let sent = session.now();
        // Only over the data that the node had when it was created. Later data has notified the
        // waiter behind it already, and must not be overwritten.
        let result = session.client.set_data(&guarded.path, grant_data.as_bytes(), Some(0)).await;
        session.note_write(sent, &result);
        match result {
            Ok(_) | Err(Cause::BadVersion) => guarded.grant_data = None,
            Err(Cause::NoNode) => return (guarded, NodeStatus::Gone),
            // The connection broke: try again.
            Err(_) => return retry_later(&session, guarded).await,
        }
    }
    if let Some(event) = guarded.watch.take() {
        return (guarded, NodeStatus::Watched(event));
    }
    let sent = session.now();
    let result = session.client.get_and_watch_data(&guarded.path).await;
    session.note_read(sent, &result);
    match result {
        Ok((data, _, watcher)) if wire::is_release_requested(&data) => {
            (guarded, NodeStatus::ReleaseRequested(watcher.changed().boxed()))
        }
        Ok((_, _, watcher)) => (guarded, NodeStatus::Watched(watcher.changed().boxed())),
        Err(Cause::NoNode) => (guarded, NodeStatus::Gone),
        Err(_) => retry_later(&session, guarded).await,
    }
}

/// After a pause, since a failure at once would repeat.
async fn retry_later(session: &Session, guarded: GuardedNode) -> NodeResult {
    session.clock.sleep_until(session.clock.now().saturating_add(MIN_HOLD_TIME)).await;
    (guarded, NodeStatus::Changed)
}

/// A heartbeat: shows the server our activity, and us that the server responds.
async fn send_heartbeat(session: Weak<Session>) {
    let Some(session) = session.upgrade() else { return };
    let sent = session.now();
    let result = session.client.check_stat("/").await;
    session.note_read(sent, &result);
}
