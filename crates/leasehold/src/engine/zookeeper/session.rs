//! One session with the ensemble: how it is opened, until when it certainly exists, and how its end
//! is noticed.

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

/// Completes with the event of a watch.
pub type WatchFuture = BoxFuture<'static, WatchedEvent>;

/// How long a claim holds its lock before its node is watched, and the waiter behind it is notified
/// of the grant. Most locks are released sooner, and cost no request for that.
const MIN_HOLD_TIME: Duration = Duration::from_millis(50);

/// How long closing a session waits for the server. After that, the session is left to expire.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// How long a connection may give no answer, at most, before the client library tries another
/// server.
const MAX_CONNECTION_TIMEOUT: Duration = Duration::from_secs(4);

/// One session with the ensemble.
pub struct Session {
    pub client: Client,
    /// The session timeout that the server granted: the leader ends the session if the client shows
    /// no activity for this long.
    pub timeout: Duration,
    clock: Clock,
    /// Until when the session certainly exists, by the requests that were answered.
    lifetime: Mutex<SessionLifetime>,
    /// Whether the session has ended.
    is_over: AtomicBool,
    /// How many times the state of the connection has changed.
    connection_changes: Arc<AtomicU64>,
    /// The channel to the session's task, for nodes to watch.
    watch_requests: UnboundedSender<HeldNode>,
}

/// The node by which a claim holds its lock, which the session's task watches.
pub struct HeldNode {
    pub claim: ClaimId,
    /// The path of the node.
    pub path: String,
    /// The watch on it, if one is set already.
    pub watch: Option<WatchFuture>,
    /// Data to write to the node, which notifies the waiter behind it of the grant; `None` if no
    /// waiter needs that.
    pub grant_data: Option<String>,
    /// Whether to do all this at once, and not after [`MIN_HOLD_TIME`].
    pub is_urgent: bool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({}, {:?})", self.client.session_id(), self.timeout)
    }
}

impl Session {
    /// Opens a session with this timeout, or as near to it as the server allows, and starts its
    /// task.
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
        let (watch_requests, requests) = unbounded_channel();
        let connection_changes = client.state_changes();
        let session = Arc::new(Self {
            client,
            timeout,
            clock: clock.clone(),
            lifetime: Mutex::new(lifetime),
            is_over: AtomicBool::new(false),
            connection_changes,
            watch_requests,
        });
        let task = SessionTask {
            session: Arc::downgrade(&session),
            registry: Arc::downgrade(registry),
            losses: Arc::clone(losses),
        };
        tokio::spawn(task.run(clock.clone(), requests, session.client.state_watcher(), timeout));
        Ok(session)
    }

    /// Opens a session without claims, for `leasehold doctor`, which examines the ensemble.
    ///
    /// # Errors
    /// If no server grants a session within the URL's connect timeout.
    pub async fn open_without_claims(config: &Config, timeout: Duration) -> Result<Arc<Self>> {
        Self::open(config, timeout, &Clock::system(), &Arc::default(), &Arc::default()).await
    }

    /// Drops this reference to the session. If it was the last one, the session ends; waits up to
    /// [`CLOSE_TIMEOUT`] for that.
    pub async fn close(self: Arc<Self>) {
        let (states, clock) = (self.client.state_watcher(), self.clock.clone());
        drop(self);
        let end = clock.now().saturating_add(CLOSE_TIMEOUT);
        while !states.peek_state().is_terminated() && clock.now() < end {
            clock.sleep_until(clock.now().saturating_add(Duration::from_millis(2))).await;
        }
    }

    /// The live count of the connection's state changes, and its value now.
    pub fn connection_changes(&self) -> (Arc<AtomicU64>, u64) {
        (Arc::clone(&self.connection_changes), self.connection_changes.load(Ordering::Acquire))
    }

    /// Whether the session has ended, so that it accepts no requests.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire) || self.client.state().is_terminated()
    }

    /// The clock that the session uses.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The time now on the session's clock.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    fn lifetime(&self) -> MutexGuard<'_, SessionLifetime> {
        self.lifetime.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the result of a read that was sent at `sent`. An answer shows that the server knew of
    /// this client then.
    pub fn note_read<T>(&self, sent: Instant, result: &std::result::Result<T, Cause>) {
        if result.is_ok() {
            self.lifetime().record_answer(sent, self.clock.now());
        }
    }

    /// Notes the result of a write that was sent at `sent`. A commit shows that the leader still
    /// had the session then.
    pub fn note_write<T, E>(&self, sent: Instant, result: &std::result::Result<T, E>) {
        if result.is_ok() {
            self.lifetime().record_commit(sent, self.clock.now());
        }
    }

    /// The time until which the session certainly exists, even if the leader's clock runs 1 %
    /// faster than this process's.
    pub fn deadline(&self) -> Instant {
        self.lifetime().lives_until().saturating_sub(self.timeout / 100)
    }

    /// Whether the time until [`deadline`](Self::deadline) is too short for a new grant.
    pub fn is_running_low(&self) -> bool {
        self.deadline().duration_since(self.now()) < self.timeout / 8
    }

    /// Makes the session's task watch the node by which a claim holds its lock.
    pub fn watch_node(&self, held_node: HeldNode) {
        // Fails after the end of the session, with which the claim is lost anyway.
        let _ = self.watch_requests.send(held_node);
    }
}

/// Connects and logs in, and requests a session with this timeout.
async fn connect(config: &Config, timeout: Duration) -> Result<Client> {
    let mut connector = Client::connector()
        .with_session_timeout(timeout)
        .with_connection_timeout((timeout * 2 / 5).min(MAX_CONNECTION_TIMEOUT));
    if config.servers.len() == 1 {
        // There is no other server to try, so errors are reported at once.
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

/// The background task of a session: watches nodes, sends heartbeats, removes expired claims, and
/// reports losses.
struct SessionTask {
    session: Weak<Session>,
    registry: Weak<ClaimRegistry>,
    losses: Arc<LossBroadcaster>,
}

/// A watched node, and its state when it was last checked.
type CheckedNode = (HeldNode, NodeStatus);

/// The state of the node by which a claim holds its lock.
enum NodeStatus {
    /// It does not exist any more: the claim has lost the lock.
    Gone,
    /// It exists, and is watched.
    Watched(WatchFuture),
    /// It exists and is watched, and an operator has requested the claim's release.
    ReleaseRequested(WatchFuture),
    /// It has changed, and must be read again.
    Changed,
}

impl SessionTask {
    /// Runs until the session has ended, or is dropped.
    async fn run(
        self,
        clock: Clock,
        mut requests: UnboundedReceiver<HeldNode>,
        mut states: StateWatcher,
        timeout: Duration,
    ) {
        let mut watched: FuturesUnordered<BoxFuture<'static, CheckedNode>> = FuturesUnordered::new();
        let mut waiting: VecDeque<(Instant, HeldNode)> = VecDeque::new();
        let mut heartbeat: Option<BoxFuture<'static, ()>> = None;
        let mut next_beat = clock.now().saturating_add(timeout / 6);
        loop {
            let next_wake = waiting.front().map_or(next_beat, |(at, _)| (*at).min(next_beat));
            tokio::select! {
                biased;
                state = states.changed() => match state {
                    SessionState::Disconnected => {}
                    state if state.is_terminated() => break,
                    // The connection was broken for a while: the keeper checks all claims.
                    _ => self.losses.report_resync(),
                },
                request = requests.recv() => match request {
                    None => return,
                    Some(held_node) if held_node.is_urgent => {
                        watched.push(arm_watch(self.session.clone(), held_node).boxed());
                    }
                    Some(held_node) => waiting.push_back((clock.now().saturating_add(MIN_HOLD_TIME), held_node)),
                },
                Some((held_node, status)) = watched.next(), if !watched.is_empty() => match status {
                    NodeStatus::Gone => self.report_loss(&held_node),
                    NodeStatus::Changed if self.is_held(&held_node) => {
                        watched.push(arm_watch(self.session.clone(), held_node).boxed());
                    }
                    NodeStatus::Changed => {}
                    NodeStatus::ReleaseRequested(event) => {
                        self.losses.report_release_request(held_node.claim);
                        watched.push(wait_for_change(held_node, event).boxed());
                    }
                    NodeStatus::Watched(event) => watched.push(wait_for_change(held_node, event).boxed()),
                },
                () = async { if let Some(heartbeat) = &mut heartbeat { heartbeat.await } }, if heartbeat.is_some() => heartbeat = None,
                () = clock.sleep_until(next_wake) => {
                    let now = clock.now();
                    while waiting.front().is_some_and(|(at, _)| *at <= now) {
                        let Some((_, held_node)) = waiting.pop_front() else { break };
                        if self.is_held(&held_node) {
                            watched.push(arm_watch(self.session.clone(), held_node).boxed());
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

    /// Whether the claim still holds its lock by this node.
    fn is_held(&self, held_node: &HeldNode) -> bool {
        self.registry.upgrade().is_some_and(|registry| registry.is_held_by(held_node.claim, &held_node.path))
    }

    /// Reports that the claim is lost, unless it has released the lock.
    fn report_loss(&self, held_node: &HeldNode) {
        if self.is_held(held_node) {
            self.losses.report_lost(held_node.claim);
        }
    }

    /// Removes the claims that no caller has wanted for a TTL. Needed because their session still
    /// exists.
    fn remove_unwanted(&self) {
        let Some(registry) = self.registry.upgrade() else { return };
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
                    // Its node existed until now, so it was not force released.
                    Ok(true) => registry.resolve(entry.claim),
                    Ok(false) => {}
                    // Tried again with the next heartbeat.
                    Err(cause) => tracing::debug!(%cause, "an expired claim could not be removed yet"),
                }
            });
        }
    }

    /// Removes the claims of the session after its end, and reports those that held as lost.
    fn end_claims(&self) {
        let Some(session) = self.session.upgrade() else { return };
        session.is_over.store(true, Ordering::Release);
        let Some(registry) = self.registry.upgrade() else { return };
        for claim in registry.remove_session(&session) {
            self.losses.report_lost(claim);
        }
    }
}

/// Waits for the event of the watch on a node, and returns the node's state after it.
async fn wait_for_change(held_node: HeldNode, event: WatchFuture) -> CheckedNode {
    let status = match event.await.event_type {
        EventType::NodeDeleted => NodeStatus::Gone,
        // The task learns of the session's end in another way.
        EventType::Session => NodeStatus::Watched(futures_util::future::pending().boxed()),
        _ => NodeStatus::Changed,
    };
    (held_node, status)
}

/// Writes the data that notifies the waiter behind a holder, if there is any, and sets a watch on
/// the holder's node unless there is one.
async fn arm_watch(session: Weak<Session>, mut held_node: HeldNode) -> CheckedNode {
    let Some(session) = session.upgrade() else {
        return (held_node, NodeStatus::Watched(futures_util::future::pending().boxed()));
    };
    if let Some(grant_data) = &held_node.grant_data {
        let sent = session.now();
        // Version 0: only over the data that the node had when it was created. A later write has
        // notified the waiter already, and may be a release request, which must not be overwritten.
        let result = session.client.set_data(&held_node.path, grant_data.as_bytes(), Some(0)).await;
        session.note_write(sent, &result);
        match result {
            Ok(_) | Err(Cause::BadVersion) => held_node.grant_data = None,
            Err(Cause::NoNode) => return (held_node, NodeStatus::Gone),
            // The connection broke: try again.
            Err(_) => return retry_later(&session, held_node).await,
        }
    }
    if let Some(event) = held_node.watch.take() {
        return (held_node, NodeStatus::Watched(event));
    }
    let sent = session.now();
    let result = session.client.get_and_watch_data(&held_node.path).await;
    session.note_read(sent, &result);
    match result {
        Ok((data, _, watcher)) if wire::is_release_requested(&data) => {
            (held_node, NodeStatus::ReleaseRequested(watcher.changed().boxed()))
        }
        Ok((_, _, watcher)) => (held_node, NodeStatus::Watched(watcher.changed().boxed())),
        Err(Cause::NoNode) => (held_node, NodeStatus::Gone),
        Err(_) => retry_later(&session, held_node).await,
    }
}

/// Waits for [`MIN_HOLD_TIME`], and then has the node checked again.
async fn retry_later(session: &Session, held_node: HeldNode) -> CheckedNode {
    session.clock.sleep_until(session.clock.now().saturating_add(MIN_HOLD_TIME)).await;
    (held_node, NodeStatus::Changed)
}

/// Sends a heartbeat: a read that shows the server this client's activity, and this client that the
/// server responds.
async fn send_heartbeat(session: Weak<Session>) {
    let Some(session) = session.upgrade() else { return };
    let sent = session.now();
    let result = session.client.check_stat("/").await;
    session.note_read(sent, &result);
}
