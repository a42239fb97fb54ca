//! Implements the [`Engine`] trait with nodes in a ZooKeeper ensemble.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::try_join_all;
use leasehold_zookeeper::MultiWriteError;

use super::claim_registry::{ClaimEntry, ClaimNode, ClaimRegistry, NodeStage};
use super::config::Config;
use super::ended_holds::PastSessions;
use super::session::{HeldNode, Session};
use super::session_pool::SessionPool;
use super::steps::ClaimStatus;
use super::{error, inspect, records, session_pool, steps, wire};
use crate::clock::{Clock, Instant};
use crate::engine::Claim;
use crate::engine::{
    AcquireReply, Capabilities, ContenderView, Engine, ForceReleaseOutcome, Grant, LockView, LossBroadcaster,
    LossEvents, Record, RecordStore, ReleaseReply, RenewReply, Step,
};
use crate::types::{ClaimId, Error, ErrorKind, FORMAT, LockName, Result};

/// How many locks are remembered whose folder exists.
const MAX_KNOWN_FOLDERS: usize = 4096;

/// The holding claims on one session: the index of each in the list of claims to renew, and its
/// node's path.
type HeldNodes = Vec<(usize, String)>;

/// The engine that keeps locks in a ZooKeeper ensemble.
#[derive(Debug)]
pub struct ZookeeperEngine {
    pub(super) config: Config,
    pub(super) clock: Clock,
    capabilities: Capabilities,
    losses: Arc<LossBroadcaster>,
    pub(super) claims: Arc<ClaimRegistry>,
    pub(super) sessions: SessionPool,
    pub(super) past_sessions: PastSessions,
    /// The runtime that opened the engine, which runs all sessions.
    runtime: tokio::runtime::Handle,
    /// The locks whose folder exists, as far as this client knows.
    known_folders: Mutex<HashSet<LockName>>,
}

/// Runs a call as a task of `runtime`, so that it makes progress even while its caller does not
/// poll it; it ends when its future is dropped. While it runs, it keeps the claim locked for other
/// calls, including the one that removes a claim whose TTL has passed.
async fn run_on<T: Send + 'static>(
    runtime: tokio::runtime::Handle,
    call: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let mut calls = tokio::task::JoinSet::new();
    calls.spawn_on(call, &runtime);
    match calls.join_next().await {
        Some(Ok(result)) => result,
        Some(Err(failed)) if failed.is_panic() => std::panic::resume_unwind(failed.into_panic()),
        _ => {
            let message = "the tokio runtime that opened this engine has ended; open the engine again";
            Err(Error::new(ErrorKind::Closed, message).at_engine(error::NAME))
        }
    }
}

impl ZookeeperEngine {
    /// Opens the engine and a first session, so that errors show now and not with the first lock.
    pub(crate) async fn open(config: Config, clock: &Clock) -> Result<Arc<Self>> {
        let engine = Arc::new(Self {
            clock: clock.clone(),
            capabilities: super::CAPABILITIES,
            losses: Arc::default(),
            claims: Arc::default(),
            sessions: SessionPool::default(),
            past_sessions: PastSessions::default(),
            runtime: tokio::runtime::Handle::current(),
            known_folders: Mutex::default(),
            config,
        });
        engine.any_session().await?;
        tokio::spawn(session_pool::close_idle_sessions(Arc::downgrade(&engine), clock.clone()));
        Ok(engine)
    }

    /// The session for a claim. An error if the server allows only sessions that are longer than
    /// its TTL.
    async fn session_for(&self, claim: &Claim) -> Result<Arc<Session>> {
        let ttl = claim.options.ttl;
        let timeout = self.config.session_timeout.unwrap_or(ttl);
        let session = if timeout > ttl {
            Err(timeout)
        } else if self.config.has_session_per_claim {
            Ok(self.new_session(timeout).await?)
        } else {
            Ok(self.shared_session(ttl).await?)
        };
        let shortest_timeout = match session {
            Ok(session) if session.timeout <= ttl => return Ok(session),
            Ok(session) => session.timeout,
            Err(timeout) => timeout,
        };
        let limit_source =
            if self.config.session_timeout.is_some() { "session-timeout" } else { "the server's shortest session" };
        let message = format!(
            "{limit_source} is {shortest_timeout:?}, and a dead holder's lock is free only after that: a TTL of {ttl:?} is not possible; \
             use {shortest_timeout:?} or more"
        );
        Err(Error::new(ErrorKind::InvalidOption, message).at_engine(error::NAME))
    }

    /// Opens a session with this timeout, or as near to it as the server allows.
    pub(super) async fn new_session(&self, timeout: Duration) -> Result<Arc<Session>> {
        let (config, clock) = (self.config.clone(), self.clock.clone());
        let (losses, registry) = (Arc::clone(&self.losses), Arc::clone(&self.claims));
        let opening = async move { Session::open(&config, timeout, &clock, &losses, &registry).await };
        let session = run_on(self.runtime.clone(), opening).await?;
        self.past_sessions.add(&session);
        Ok(session)
    }

    /// The path of a lock's folder.
    pub(super) fn folder(&self, name: &LockName) -> String {
        format!("{}/{}", self.config.base, wire::escape_name(name.as_str()))
    }

    /// The path of the folder that has the records.
    pub(super) fn records_folder(&self) -> String {
        format!("{}/{}", self.config.base, wire::RECORDS)
    }

    /// The path of the folder that has the marks of force-released claims.
    pub(super) fn marks_folder(&self) -> String {
        format!("{}/{}", self.config.base, wire::MARKS_FOLDER)
    }

    /// The path of the node that marks a claim as force released.
    pub(super) fn mark_path(&self, claim: ClaimId) -> String {
        format!("{}/{FORMAT}-{:032x}", self.marks_folder(), claim.bits())
    }

    /// The path of the node which notes that a claim was released after an operator requested it.
    pub(super) fn release_note(&self, claim: ClaimId) -> String {
        format!("{}-released", self.mark_path(claim))
    }

    /// The path of a record's node.
    pub(super) fn record_path(&self, name: &LockName) -> String {
        format!("{}/{}", self.records_folder(), wire::escape_name(name.as_str()))
    }

    /// Whether the folder of this lock is known to exist.
    pub(super) fn is_folder_known(&self, name: &LockName) -> bool {
        self.known_folders.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }

    /// Sets whether the folder of a lock is known to exist.
    pub(super) fn set_folder_known(&self, name: &LockName, is_known: bool) {
        let mut folders = self.known_folders.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_known {
            folders.remove(name);
        } else if !folders.contains(name) {
            if folders.len() >= MAX_KNOWN_FOLDERS {
                folders.clear();
            }
            folders.insert(name.clone());
        }
    }

    /// Converts the failure of a request to the library's error.
    pub(super) fn request_error(&self, cause: leasehold_zookeeper::Error) -> Error {
        error::request_error(&self.config, cause)
    }

    /// The claim's entry, on a session that is not over; creates it if necessary.
    async fn claim_entry(&self, claim: &Arc<Claim>) -> Result<Arc<ClaimEntry>> {
        if let Some(entry) = self.claims.find(claim.id) {
            if !entry.session.is_over() {
                return Ok(entry);
            }
            self.claims.note_unresolved(&entry);
            self.claims.remove(&entry);
        }
        let session = self.session_for(claim).await?;
        Ok(self.claims.get_or_insert(claim, self.folder(claim.name()), &session))
    }

    /// Attempts to acquire the lock for a claim; `sent` is when the caller made the request.
    async fn do_attempt(&self, claim: &Arc<Claim>, queue: bool, sent: Instant) -> Result<AcquireReply> {
        let entry = self.claim_entry(claim).await?;
        let mut remote = entry.remote.lock().await;
        if !self.claims.is_current(&entry) {
            // The claim was removed meanwhile, because no caller had wanted it for a TTL: the
            // caller retries.
            return Ok(AcquireReply::Busy { recheck_after: None });
        }
        let node_before = remote.node().map(str::to_owned);
        entry.mark_wanted();
        entry.set_releasing(false);
        let status = match steps::request_lock(self, &entry, claim, &mut remote).await {
            Ok(status) => status,
            Err(error) => {
                // A retry would fail, too: the request is over, and leaves no node that others would
                // wait for.
                if !error.is_retryable() {
                    let removed = steps::remove_claim(&self.claims, &entry, &mut remote).await;
                    if let Err(cause) = removed {
                        tracing::warn!(%cause, name = %claim.name(), "the node of a failed request is not deleted yet");
                        return Err(error.effect_unknown());
                    }
                }
                return Err(error);
            }
        };
        // A claim that was queued before stays in the queue, even if `queue` is not set now.
        let stays_queued = queue || (node_before.is_some() && node_before.as_deref() == remote.node());
        let answer = match status {
            ClaimStatus::Held => {
                // Whether other clients may have seen the claim wait.
                let has_waited =
                    node_before.is_some() || remote.id().is_some_and(|id| remote.queue.has_node_behind(id));
                match self.grant(claim, &entry, &mut remote, sent, has_waited) {
                    busy @ AcquireReply::Busy { .. } if !stays_queued => busy,
                    answer => return Ok(answer),
                }
            }
            ClaimStatus::Waiting(ahead) if stays_queued => {
                return Ok(AcquireReply::Queued { ahead, recheck_after: None, cool_down: None });
            }
            ClaimStatus::Waiting(_) => AcquireReply::Busy { recheck_after: None },
            ClaimStatus::Refused(refusal) => AcquireReply::Refused(refusal),
            // The claim's entry stays as it is until the claim is released, because this answer may
            // be lost.
            ClaimStatus::ForceReleased => return Ok(AcquireReply::ForceReleased),
        };
        steps::remove_claim(&self.claims, &entry, &mut remote).await.map_err(|cause| self.request_error(cause))?;
        Ok(answer)
    }

    /// Acquires all locks at once in one round trip; `None`: one of them is not free, and none is
    /// acquired.
    async fn do_attempt_all(&self, claims: &[Arc<Claim>], sent: Instant) -> Result<Option<Vec<Grant>>> {
        let answers = try_join_all(claims.iter().map(|claim| self.do_attempt(claim, false, sent))).await?;
        let grants: Option<Vec<Grant>> = answers
            .iter()
            .map(|answer| match answer {
                AcquireReply::Granted(grant) => Some(*grant),
                _ => None,
            })
            .collect();
        if grants.is_none() {
            try_join_all(claims.iter().map(|claim| self.do_release(claim))).await?;
        }
        Ok(grants)
    }

    /// Waits for a change of a queued claim; `sent` is when the caller made the request.
    async fn do_wait(&self, claim: &Claim, timeout: Duration, sent: Instant) -> Result<AcquireReply> {
        // The answer if the claim is not in the queue: the caller attempts again.
        let absent = AcquireReply::Busy { recheck_after: None };
        let Some(entry) = self.claims.find(claim.id).filter(|entry| !entry.is_gone()) else { return Ok(absent) };
        let mut remote = entry.remote.lock().await;
        if !self.claims.is_current(&entry) {
            return Ok(absent);
        }
        entry.mark_wanted();
        if entry.is_held() {
            return Ok(self.grant(claim, &entry, &mut remote, sent, false));
        }
        // The session's timeout may be shorter than the TTL. A wait ends with a write, which shows
        // that the session exists, and which is needed at least this often.
        let timeout = timeout.min(entry.session.timeout / 3);
        let mut found = steps::wait_for_grant(self, &entry, claim, &mut remote, sent.saturating_add(timeout)).await?;
        entry.mark_wanted();
        if matches!(found, Some(ClaimStatus::Held)) && entry.session.is_running_low() {
            found = Some(steps::request_lock(self, &entry, claim, &mut remote).await?);
        }
        match found {
            Some(ClaimStatus::Held) => Ok(self.grant(claim, &entry, &mut remote, sent, true)),
            Some(ClaimStatus::Waiting(ahead)) => {
                Ok(AcquireReply::Queued { ahead, recheck_after: None, cool_down: None })
            }
            Some(ClaimStatus::ForceReleased) => Ok(AcquireReply::ForceReleased),
            Some(ClaimStatus::Refused(_)) | None => Ok(absent),
        }
    }

    /// Marks the claim as holding, and returns the grant, which lasts until the session may end.
    /// `Busy` if that is too soon. `has_waited`: other clients may have seen the claim wait.
    fn grant(
        &self,
        claim: &Claim,
        entry: &Arc<ClaimEntry>,
        remote: &mut super::claim_registry::RemoteState,
        sent: Instant,
        has_waited: bool,
    ) -> AcquireReply {
        let NodeStage::Created(own_node) = &remote.stage else { return AcquireReply::Busy { recheck_after: None } };
        let own_node: ClaimNode = own_node.clone();
        let path = entry.path(&own_node);
        remote.armed_watch = None;
        let event = remote.own_watch.take();
        let session = &entry.session;
        entry.mark_granted();
        if !entry.set_held(Some(path.clone())) {
            let grant_data = has_waited.then(|| wire::holder_data(&claim.options.holder, claim.options.ttl));
            // The waiter behind it may be able to hold the lock, too: then it is notified at once.
            let is_compatible =
                own_node.entry.owner.is_some() || matches!(own_node.entry.mode, crate::types::Mode::Permits { .. });
            session.watch_node(HeldNode {
                claim: claim.id,
                path,
                watch: event,
                grant_data,
                is_urgent: has_waited && is_compatible,
            });
        }
        if session.is_running_low() {
            // The session may end too soon. The caller retries after the next request has shown
            // that the session still exists.
            return AcquireReply::Busy { recheck_after: Some(session.timeout / 8) };
        }
        AcquireReply::Granted(Grant { token: own_node.token(), reserved_at: sent, expires_at: session.deadline() })
    }

    /// Renews the leases of claims; one answer per claim.
    async fn do_renew(&self, claims: &[Arc<Claim>]) -> Result<Vec<RenewReply>> {
        let mut answers = vec![RenewReply::Lost; claims.len()];
        let mut by_session: Vec<(Arc<Session>, HeldNodes)> = Vec::new();
        for (index, claim) in claims.iter().enumerate() {
            let Some(entry) = self.claims.find(claim.id).filter(|entry| !entry.is_gone()) else { continue };
            let Some(path) = entry.held_path() else { continue };
            entry.mark_wanted();
            match by_session.iter_mut().find(|(session, _)| Arc::ptr_eq(session, &entry.session)) {
                Some((_, held)) => held.push((index, path)),
                None => by_session.push((Arc::clone(&entry.session), vec![(index, path)])),
            }
        }
        let checks = by_session.iter().map(|(session, held)| self.check(session, held));
        let checked = futures_util::future::join_all(checks).await;
        let mut failed = None;
        for ((_, held), result) in by_session.iter().zip(checked) {
            match result {
                Ok(renewals) => {
                    for ((index, _), renewal) in held.iter().zip(renewals) {
                        answers[*index] = renewal;
                    }
                }
                Err(error) => {
                    held.iter().for_each(|(index, _)| answers[*index] = RenewReply::Unknown);
                    failed = Some(error);
                }
            }
        }
        match failed {
            Some(error) if by_session.len() == 1 && by_session[0].1.len() == claims.len() => Err(error),
            _ => Ok(answers),
        }
    }

    /// Checks in one transaction that the nodes of these claims exist, which also shows that the
    /// session does. If some are missing, repeats it without them. Returns one answer per claim.
    async fn check(&self, session: &Arc<Session>, held: &HeldNodes) -> Result<Vec<RenewReply>> {
        let mut remaining: Vec<usize> = (0..held.len()).collect();
        let mut answers = vec![RenewReply::Lost; held.len()];
        while !remaining.is_empty() {
            let requested_at = session.now();
            let mut checks = session.client.new_multi_writer();
            for index in &remaining {
                checks.add_check_version(&held[*index].1, -1).map_err(|cause| self.request_error(cause))?;
            }
            let result = checks.commit().await;
            session.note_write(requested_at, &result);
            match result {
                Ok(_) => {
                    let expires_at = session.deadline();
                    remaining.drain(..).for_each(|index| answers[index] = RenewReply::Renewed(expires_at));
                }
                Err(MultiWriteError::OperationFailed { index, source: leasehold_zookeeper::Error::NoNode }) => {
                    remaining.remove(index);
                }
                Err(other) => return Err(self.request_error(error::into_cause(other))),
            }
        }
        Ok(answers)
    }

    /// Releases a claim, or removes it from the queue.
    async fn do_release(&self, claim: &Claim) -> Result<ReleaseReply> {
        let Some(entry) = self.claims.find(claim.id) else {
            self.claims.resolve(claim.id);
            return Ok(ReleaseReply::Absent);
        };
        // Even if the release fails, no other claim of its owner may re-enter with this one any
        // more.
        entry.set_releasing(true);
        let mut remote = entry.remote.lock().await;
        let is_requested = matches!(remote.stage, NodeStage::Created(_)) && claim.is_released_on_request();
        if is_requested {
            // Written before the node is deleted: the operator waits for the deletion, and then
            // reads the note.
            inspect::note_release(self, &entry.session, claim.id).await;
        } else if matches!(remote.stage, NodeStage::ForceReleased) {
            inspect::delete_mark(self, &entry.session, claim.id).await;
        }
        let was_granted = entry.was_granted();
        let exists =
            steps::remove_claim(&self.claims, &entry, &mut remote).await.map_err(|cause| self.request_error(cause))?;
        self.claims.resolve(claim.id);
        if is_requested {
            inspect::delete_old_marks(self, &entry.session, &self.release_note(claim.id)).await;
        }
        Ok(match (exists, was_granted) {
            (false, _) => ReleaseReply::Absent,
            (true, true) => ReleaseReply::Released,
            (true, false) => ReleaseReply::LeftQueue,
        })
    }
}

impl Engine for ZookeeperEngine {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn url(&self) -> String {
        self.config.redacted_url.clone()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>, queue: bool) -> Step<AcquireReply> {
        let sent = self.clock.now();
        let runtime = self.runtime.clone();
        Step::new(run_on(runtime, async move { self.do_attempt(&claim, queue, sent).await }))
    }

    fn attempt_all(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Option<Vec<Grant>>> {
        let sent = self.clock.now();
        Step::new(async move { self.do_attempt_all(&claims, sent).await })
    }

    fn wait(self: Arc<Self>, claim: Arc<Claim>, timeout: Duration) -> Step<AcquireReply> {
        let sent = self.clock.now();
        let runtime = self.runtime.clone();
        Step::new(run_on(runtime, async move { self.do_wait(&claim, timeout, sent).await }))
    }

    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<RenewReply>> {
        Step::new(async move { self.do_renew(&claims).await })
    }

    fn release(self: Arc<Self>, claim: Arc<Claim>) -> Step<ReleaseReply> {
        Step::new(async move { self.do_release(&claim).await })
    }

    fn loss_events(&self) -> LossEvents {
        self.losses.subscribe()
    }

    fn watch(self: Arc<Self>, name: LockName, timeout: Duration) -> Step<Step<()>> {
        Step::new(async move { inspect::watch(&self, &name, timeout).await })
    }

    fn inspect(self: Arc<Self>, name: LockName) -> Step<LockView> {
        Step::new(async move { inspect::inspect_lock(&self, &name).await })
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockView>> {
        Step::new(async move { inspect::list_locks(&self, &prefix).await })
    }

    fn force_release(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<ForceReleaseOutcome> {
        Step::new(async move { inspect::force_release(&self, &name, claim, &reason).await })
    }

    fn request_release(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<Option<ContenderView>> {
        Step::new(async move { inspect::request_release(&self, &name, claim, &reason).await })
    }

    fn was_released(self: Arc<Self>, claim: ClaimId) -> Step<Option<bool>> {
        Step::new(async move { inspect::was_released(&self, claim).await.map(Some) })
    }

    fn shutdown(self: Arc<Self>) -> Step<()> {
        Step::new(async move {
            for session in self.sessions.take_all().await {
                session.close().await;
            }
            Ok(())
        })
    }

    fn records(self: Arc<Self>) -> Option<Arc<dyn RecordStore>> {
        Some(self)
    }
}

impl RecordStore for ZookeeperEngine {
    fn get(self: Arc<Self>, name: LockName) -> Step<Record> {
        Step::new(async move { records::get(&self, &name).await })
    }

    fn compare_and_set(self: Arc<Self>, name: LockName, expected_version: u64, value: String) -> Step<Option<Record>> {
        Step::new(async move { records::compare_and_set(&self, &name, expected_version, value).await })
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockName>> {
        Step::new(async move { records::list(&self, &prefix).await })
    }
}
