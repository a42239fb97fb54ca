//! The engine: the session of each claim, and the steps of each call.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::try_join_all;
use leasehold_zookeeper::MultiWriteError;

use super::claim_registry::{ClaimEntry, ClaimNode, ClaimRegistry, NodeStage};
use super::config::Config;
use super::ended_holds::PastSessions;
use super::session::{GuardedNode, Session};
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

/// How many folders are remembered as existing.
const MAX_KNOWN_FOLDERS: usize = 4096;

/// Holding claims on one session: the index of each in the request, and the path of its node.
type HeldNodes = Vec<(usize, String)>;

/// Locks in a ZooKeeper ensemble.
#[derive(Debug)]
pub struct ZookeeperEngine {
    pub(super) config: Config,
    pub(super) clock: Clock,
    capabilities: Capabilities,
    losses: Arc<LossBroadcaster>,
    pub(super) claims: Arc<ClaimRegistry>,
    pub(super) sessions: SessionPool,
    pub(super) past_sessions: PastSessions,
    /// Sessions live on the runtime that opened the engine.
    runtime: tokio::runtime::Handle,
    known_folders: Mutex<HashSet<LockName>>,
}

/// Runs a call that continues while it is not polled, and ends when it is dropped. It blocks other
/// steps of the claim, including the one that removes the claim when its TTL has passed.
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
            let message = "the runtime that opened this engine has ended";
            Err(Error::new(ErrorKind::Closed, message).at_engine(error::NAME))
        }
    }
}

impl ZookeeperEngine {
    /// Opens a first session, so that errors show at once.
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

    /// The session for claims of this TTL.
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
        let longer = match session {
            Ok(session) if session.timeout <= ttl => return Ok(session),
            Ok(session) => session.timeout,
            Err(timeout) => timeout,
        };
        let limit_source =
            if self.config.session_timeout.is_some() { "session-timeout" } else { "the server's shortest session" };
        let message = format!(
            "{limit_source} is {longer:?}, and a dead holder's lock is free only after that: a TTL of {ttl:?} is not possible; use {longer:?} or more"
        );
        Err(Error::new(ErrorKind::InvalidOption, message).at_engine(error::NAME))
    }

    pub(super) async fn new_session(&self, timeout: Duration) -> Result<Arc<Session>> {
        let (config, clock) = (self.config.clone(), self.clock.clone());
        let (losses, registry) = (Arc::clone(&self.losses), Arc::clone(&self.claims));
        let opening = async move { Session::open(&config, timeout, &clock, &losses, &registry).await };
        let session = run_on(self.runtime.clone(), opening).await?;
        self.past_sessions.add(&session);
        Ok(session)
    }

    /// The folder of a lock.
    pub(super) fn folder(&self, name: &LockName) -> String {
        format!("{}/{}", self.config.base, wire::escape_name(name.as_str()))
    }

    /// The folder of the records.
    pub(super) fn records_folder(&self) -> String {
        format!("{}/{}", self.config.base, wire::RECORDS)
    }

    /// The folder of the marks that force releases leave.
    pub(super) fn marks_folder(&self) -> String {
        format!("{}/{}", self.config.base, wire::MARKS_FOLDER)
    }

    /// The mark of a claim that was force released.
    pub(super) fn mark_path(&self, claim: ClaimId) -> String {
        format!("{}/{FORMAT}-{:032x}", self.marks_folder(), claim.bits())
    }

    /// The note that a claim was released after an operator asked for it.
    pub(super) fn release_note(&self, claim: ClaimId) -> String {
        format!("{}-released", self.mark_path(claim))
    }

    /// The node of a record.
    pub(super) fn record_path(&self, name: &LockName) -> String {
        format!("{}/{}", self.records_folder(), wire::escape_name(name.as_str()))
    }

    /// Whether the folder of this lock existed lately.
    pub(super) fn is_folder_known(&self, name: &LockName) -> bool {
        self.known_folders.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }

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

    pub(super) fn request_error(&self, cause: leasehold_zookeeper::Error) -> Error {
        error::request_error(&self.config, cause)
    }

    /// The claim's entry, on a session that lives.
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

    async fn do_attempt(&self, claim: &Arc<Claim>, queue: bool, sent: Instant) -> Result<AcquireReply> {
        let entry = self.claim_entry(claim).await?;
        let mut remote = entry.remote.lock().await;
        if !self.claims.is_current(&entry) {
            // The claim was removed, because no caller wanted it for a TTL: the caller retries.
            return Ok(AcquireReply::Busy { recheck_after: None });
        }
        let known = remote.node().map(str::to_owned);
        entry.mark_wanted();
        entry.set_releasing(false);
        let status = match steps::request_lock(self, &entry, claim, &mut remote).await {
            Ok(status) => status,
            Err(error) => {
                // Refused for good: it has no node, and needs no session.
                if matches!(remote.stage, NodeStage::New) && !error.is_retryable() {
                    self.claims.remove(&entry);
                }
                return Err(error);
            }
        };
        // A claim that is queued already stays in the queue.
        let queued = queue || (known.is_some() && known.as_deref() == remote.node());
        let answer = match status {
            ClaimStatus::Held => {
                // Other clients may have seen it wait.
                let seen = known.is_some() || remote.id().is_some_and(|id| remote.queue.has_node_behind(id));
                match self.grant(claim, &entry, &mut remote, sent, seen) {
                    busy @ AcquireReply::Busy { .. } if !queued => busy,
                    answer => return Ok(answer),
                }
            }
            ClaimStatus::Waiting(ahead) if queued => {
                return Ok(AcquireReply::Queued { ahead, recheck_after: None, cool_down: None });
            }
            ClaimStatus::Waiting(_) => AcquireReply::Busy { recheck_after: None },
            ClaimStatus::Refused(refusal) => AcquireReply::Refused(refusal),
            // It stays so until the claim is released: this answer may be lost.
            ClaimStatus::Evicted => return Ok(AcquireReply::ForceReleased),
        };
        steps::remove_claim(&self.claims, &entry, &mut remote).await.map_err(|cause| self.request_error(cause))?;
        Ok(answer)
    }

    /// Acquires all of them in one round trip, or none.
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

    async fn do_wait(&self, claim: &Claim, timeout: Duration, sent: Instant) -> Result<AcquireReply> {
        // A claim that is not in the queue cannot be granted: the caller tries again.
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
        // A session may be shorter than the TTL: the leader must confirm it often enough.
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
            Some(ClaimStatus::Evicted) => Ok(AcquireReply::ForceReleased),
            Some(ClaimStatus::Refused(_)) | None => Ok(absent),
        }
    }

    /// Grants the lock, until the session certainly ends.
    fn grant(
        &self,
        claim: &Claim,
        entry: &Arc<ClaimEntry>,
        remote: &mut super::claim_registry::RemoteState,
        sent: Instant,
        waited: bool,
    ) -> AcquireReply {
        let NodeStage::Created(own) = &remote.stage else { return AcquireReply::Busy { recheck_after: None } };
        let own: ClaimNode = own.clone();
        let path = entry.path(&own);
        remote.armed_watch = None;
        let event = remote.own_watch.take();
        let session = &entry.session;
        entry.mark_granted();
        if !entry.set_held(Some(path.clone())) {
            let grant_data = waited.then(|| super::wire::holder_data(&claim.options.holder, claim.options.ttl));
            // A waiter behind it may be compatible: it is notified at once.
            let soon = own.entry.owner.is_some() || matches!(own.entry.mode, crate::types::Mode::Permits { .. });
            session.watch_node(GuardedNode {
                claim: claim.id,
                path,
                watch: event,
                grant_data,
                is_urgent: waited && soon,
            });
        }
        if session.is_running_low() {
            // The last proof of the session is too old: the caller retries when there is a newer
            // one.
            return AcquireReply::Busy { recheck_after: Some(session.timeout / 8) };
        }
        AcquireReply::Granted(Grant { token: own.token(), reserved_at: sent, expires_at: session.deadline() })
    }

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

    /// Checks all nodes in one transaction, and repeats it without the missing ones.
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

    async fn do_release(&self, claim: &Claim) -> Result<ReleaseReply> {
        let Some(entry) = self.claims.find(claim.id) else {
            self.claims.resolve(claim.id);
            return Ok(ReleaseReply::Absent);
        };
        // Set for any outcome: no claim may re-enter with it any more.
        entry.set_releasing(true);
        let mut remote = entry.remote.lock().await;
        let noted = matches!(remote.stage, NodeStage::Created(_)) && claim.is_released_on_request();
        if noted {
            // Before its node is deleted: an operator waits for that, and then reads the note.
            inspect::note_release(self, &entry.session, claim.id).await;
        } else if matches!(remote.stage, NodeStage::Evicted) {
            inspect::delete_mark(self, &entry.session, claim.id).await;
        }
        let held = entry.was_granted();
        let exists =
            steps::remove_claim(&self.claims, &entry, &mut remote).await.map_err(|cause| self.request_error(cause))?;
        self.claims.resolve(claim.id);
        if noted {
            inspect::delete_old_marks(self, &entry.session, &self.release_note(claim.id)).await;
        }
        Ok(match (exists, held) {
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
