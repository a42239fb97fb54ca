//! Implements the [`Engine`] trait with files in a folder.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use tokio::task::JoinHandle;

use super::config::Config;
use super::file_watcher::{FileWatch, FileWatcher};
use super::lock_files::StepAborted;
use super::session::Session;
use super::step::{Operation, StepOutput};
use super::wakeups::{Notification, Subscriber, Wakeups};
use super::{CAPABILITIES, folder, inspect, layout, lock_files, records};
use crate::clock::{self, Clock, Instant};
use crate::engine::Claim;
use crate::engine::{
    AcquireReply, Capabilities, ContenderView, Engine, EngineUrl, ForceReleaseOutcome, Grant, LockView, LossEvents,
    Record, RecordStore, ReleaseReply, RenewReply, Step,
};
use crate::logic::lease as rules;
use crate::types::{ClaimId, Error, ErrorKind, LockName, Result};

/// How long a step retries while another process has the lock's file locked. That takes
/// microseconds, so a process that keeps it locked longer is probably stopped.
pub(super) const BUSY_FILE_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a waiter checks whether the clients ahead of it are alive, if it cannot watch their
/// files.
const UNWATCHED_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The engine that keeps locks in a folder.
#[derive(Debug)]
pub struct FileEngine {
    config: Config,
    /// Replaced by a new one when the folder was removed or replaced.
    session: RwLock<Arc<Session>>,
    /// Locked while a task opens the folder again, so that only one does.
    reopening: Mutex<()>,
    pub(super) clock: Clock,
    pub(super) wakeups: Arc<Wakeups>,
    /// `None` if inotify is not available: waiters then poll.
    watcher: Option<Arc<FileWatcher>>,
    /// Forwards inotify events to `watcher`'s watches.
    watch_task: Option<JoinHandle<()>>,
    url: String,
}

impl FileEngine {
    /// Opens the folder of a `file:` URL, and starts the tasks that receive notifications.
    pub(crate) async fn open(url: &EngineUrl, clock: &Clock) -> Result<Arc<Self>> {
        let config = Config::parse(url)?;
        let opened = tokio::task::spawn_blocking(move || Ok::<_, Error>((Session::open(&config)?, config)));
        let (session, config) = opened.await.map_err(task_error)?.map_err(|error| error.at_engine("file"))?;
        let wakeups = Arc::new(Wakeups::new(&session.folder)?);
        session.start_receiving(&wakeups).map_err(|error| error.at_engine("file"))?;
        let watcher = FileWatcher::new().inspect_err(|error| {
            tracing::debug!(%error, "inotify is not available: waiters check every {UNWATCHED_POLL_INTERVAL:?} whether the clients ahead are alive");
        });
        let watcher = watcher.ok();
        let watch_task = watcher.as_ref().map(|watcher| tokio::spawn(Arc::clone(watcher).forward_events()));
        let url = format!("file://{}", session.root().display());
        let (clock, session) = (clock.clone(), RwLock::new(Arc::new(session)));
        Ok(Arc::new(Self { config, session, reopening: Mutex::default(), clock, wakeups, watcher, watch_task, url }))
    }

    /// The latest session; its folder may have been removed since.
    pub(super) fn session(&self) -> Arc<Session> {
        Arc::clone(&self.session.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The session; a new one if the folder was removed or replaced, or this client's file in it.
    /// May block on the disk.
    pub(super) fn current_session(&self) -> Result<Arc<Session>> {
        let session = self.session();
        if session.client.is_registered() { Ok(session) } else { self.reopen(&session) }
    }

    /// Opens the folder that is at the path now, unless another task has already replaced the
    /// session `stale`. All locks that were held in it are lost.
    fn reopen(&self, stale: &Arc<Session>) -> Result<Arc<Session>> {
        let _guard = self.reopening.lock().unwrap_or_else(PoisonError::into_inner);
        let session = self.session();
        if !Arc::ptr_eq(&session, stale) {
            return Ok(session);
        }
        let next = Arc::new(stale.open_next(&self.config, &self.wakeups).map_err(|error| error.at_engine("file"))?);
        tracing::error!(
            folder = %next.root().display(),
            tokens_above = next.min_token,
            "the folder, or this process's file in it, was removed while in use. The folder was opened again; all locks that this process held are lost"
        );
        *self.session.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&next);
        Ok(next)
    }

    /// How many notifications this client has sent to others.
    #[cfg(test)]
    pub(super) fn notified_count(&self) -> u64 {
        self.wakeups.notified_count.load(std::sync::atomic::Ordering::SeqCst)
    }

    /// Sends a notification about `claim` to the client that it belongs to, which may be this one.
    pub(super) fn notify(&self, session: &Session, client: u128, claim: ClaimId, notification: Notification) {
        if client == session.client.id {
            self.wakeups.notify_local(claim, notification);
        } else {
            self.wakeups.notify_remote(&session.folder, client, claim, notification);
        }
    }

    /// Starts to remove files of free locks in the background, if this process has created many
    /// files since it last did.
    fn sweep_if_due(self: &Arc<Self>) {
        let session = self.session();
        if session.lock_files.sweep_is_due() {
            drop(tokio::task::spawn_blocking(move || {
                if let Ok(now) = session.client.touch_and_read_time() {
                    lock_files::sweep(&session.folder, now, lock_files::MAX_REMOVED_WHILE_RUNNING);
                }
            }));
        }
    }

    /// Runs an operation on the lock `name`: on this thread if that does not block, else on a
    /// thread for blocking calls.
    async fn run_step(self: &Arc<Self>, name: LockName, operation: Operation) -> Result<StepOutput> {
        for _ in 0..4 {
            match self.step(&name, &operation, None) {
                Ok(output) => return Ok(output),
                Err(StepAborted::Failed(error)) => return Err(error),
                Err(StepAborted::NeedsSync | StepAborted::FolderGone) => break,
                Err(StepAborted::Busy) => tokio::task::yield_now().await,
            }
        }
        let (engine, caller) = (Arc::clone(self), CallerGuard::default());
        let is_dropped = Arc::clone(&caller.is_dropped);
        let step = tokio::task::spawn_blocking(move || engine.retry_step(&name, &operation, &is_dropped));
        let output = step.await.map_err(task_error)?;
        drop(caller);
        self.sweep_if_due();
        output
    }

    /// Retries an operation until it succeeds or [`BUSY_FILE_TIMEOUT`] has passed. `is_dropped`
    /// becomes true when the caller stops waiting.
    fn retry_step(&self, name: &LockName, op: &Operation, is_dropped: &AtomicBool) -> Result<StepOutput> {
        let give_up_at = self.clock.now().saturating_add(BUSY_FILE_TIMEOUT);
        let mut pause = Duration::from_micros(20);
        loop {
            match self.step(name, op, Some(is_dropped)) {
                Ok(output) => return Ok(output),
                Err(StepAborted::Failed(error)) => return Err(error),
                Err(StepAborted::FolderGone) => drop(self.current_session()?),
                Err(StepAborted::NeedsSync | StepAborted::Busy) => {}
            }
            if self.clock.now() >= give_up_at {
                return Err(busy_file_error(&self.session().folder.lock_path(name)));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }

    /// Runs an operation that returns the state of a claim, and converts that to the trait's
    /// answer.
    async fn query_claim(self: &Arc<Self>, claim: &Claim, op: Operation) -> Result<AcquireReply> {
        match self.run_step(claim.name().clone(), op).await? {
            StepOutput::Verdict { verdict, next_expiry, .. } => {
                Ok(AcquireReply::from_verdict(verdict, claim.options.ttl, next_expiry, &self.clock))
            }
            StepOutput::WaitForceReleased => {
                self.wakeups.unsubscribe(claim.id);
                Ok(AcquireReply::ForceReleased)
            }
            other => Err(unexpected_output(&other)),
        }
    }

    /// Waits until a notification for a queued claim arrives, a client ahead of it dies, or
    /// `until`. Removes the claims of clients that died.
    async fn wait_for_change(self: &Arc<Self>, claim: &Claim, subscriber: &Subscriber, until: Instant) -> Result<()> {
        let mut ahead = subscriber.watched_clients();
        let session = self.session();
        ahead.retain(|client| *client != session.client.id);
        let watches: Vec<_> = ahead.iter().map(|client| self.watch_death(&session, *client)).collect();
        let events: Vec<_> = watches.iter().flatten().map(|watch| Box::pin(watch.notified())).collect();
        let until = if events.len() == ahead.len() {
            until
        } else {
            until.min(self.clock.now().saturating_add(UNWATCHED_POLL_INTERVAL))
        };
        let any_event = async {
            match events.is_empty() {
                true => std::future::pending().await,
                false => futures_util::future::select_all(events).await,
            }
        };
        // A client that died before its watch was set causes no event; this check finds it.
        if ahead.iter().all(|client| session.is_alive(*client)) {
            tokio::select! {
                () = subscriber.notified() => return Ok(()),
                () = self.clock.sleep_until(until) => {}
                _ = any_event => self.wait_for_death(&session, &ahead).await,
            }
        }
        for client in ahead.into_iter().filter(|client| !session.is_alive(*client)) {
            self.run_step(claim.name().clone(), Operation::RemoveDeadClient(client)).await?;
        }
        Ok(())
    }

    /// Whether a claim that is not queued any more was force released. Waits up to
    /// [`UNWATCHED_POLL_INTERVAL`] for that notification, which is sent after the file has changed.
    async fn was_just_force_released(&self, subscriber: &Subscriber) -> bool {
        let until = self.clock.now().saturating_add(UNWATCHED_POLL_INTERVAL);
        while !subscriber.is_force_released() {
            tokio::select! {
                () = subscriber.notified() => {}
                () = self.clock.sleep_until(until) => return subscriber.is_force_released(),
            }
        }
        true
    }

    /// A watch for the end of a client's process; `None` if it cannot be watched.
    fn watch_death(&self, session: &Session, client: u128) -> Option<FileWatch> {
        let path = session.folder.clients.path_by_handle(&folder::client_file(client));
        self.watcher.as_ref()?.watch_close(&path).ok()
    }

    /// Waits a moment until one of the clients counts as dead. The kernel reports that a file was
    /// closed a moment before it releases the `flock` on it.
    async fn wait_for_death(&self, session: &Session, clients: &[u128]) {
        let give_up_at = self.clock.now().saturating_add(UNWATCHED_POLL_INTERVAL);
        while clients.iter().all(|client| session.is_alive(*client)) && self.clock.now() < give_up_at {
            clock::pause_before_poll(Duration::from_millis(1)).await;
        }
    }

    /// Renews the lease of one claim.
    async fn renew_one(self: &Arc<Self>, claim: &Claim) -> Result<RenewReply> {
        match self.run_step(claim.name().clone(), Operation::Renew(claim.id)).await? {
            StepOutput::Renewed(Some(until)) => Ok(RenewReply::Renewed(until)),
            StepOutput::Renewed(None) | StepOutput::FileRemoved => Ok(RenewReply::Lost),
            other => Err(unexpected_output(&other)),
        }
    }

    /// The holders and waiters of a lock, without those that have expired or whose process is dead.
    async fn view_lock(self: &Arc<Self>, name: LockName) -> Result<LockView> {
        match self.run_step(name, Operation::Inspect).await? {
            StepOutput::View(view) => Ok(view),
            other => Err(unexpected_output(&other)),
        }
    }
}

/// The error if another process keeps the lock's file locked for [`BUSY_FILE_TIMEOUT`].
pub(super) fn busy_file_error(path: &Path) -> Error {
    let message = format!(
        "another process has kept {} locked for {BUSY_FILE_TIMEOUT:?}, which should take microseconds: is it stopped? `fuser` or \
         `lslocks` names it; let it continue, or kill it",
        path.display()
    );
    Error::new(ErrorKind::Unavailable, message).retryable()
}

/// Lives as long as a caller waits for a step on another thread. When the caller stops waiting, it
/// is dropped and sets the flag, which the step reads before it takes effect.
#[derive(Default)]
struct CallerGuard {
    is_dropped: Arc<AtomicBool>,
}

impl Drop for CallerGuard {
    fn drop(&mut self) {
        self.is_dropped.store(true, Ordering::SeqCst);
    }
}

/// The error if a step on another thread was aborted or panicked.
fn task_error(error: tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Unavailable, "the runtime ended during a step").effect_unknown().caused_by(error)
}

/// The error if a step returned the output of another operation, which would be a bug.
fn unexpected_output(output: &StepOutput) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("an operation returned the output of another one: {output:?}; this is a bug in leasehold"),
    )
    .effect_unknown()
}

impl Engine for FileEngine {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn url(&self) -> String {
        self.url.clone()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>, queue: bool) -> Step<AcquireReply> {
        Step::new(
            async move { self.query_claim(&claim, Operation::Attempt { claim: Arc::clone(&claim), queue }).await },
        )
    }

    fn attempt_all(self: Arc<Self>, _claims: Vec<Arc<Claim>>) -> Step<Option<Vec<Grant>>> {
        Step::ready(Ok(None))
    }

    fn wait(self: Arc<Self>, claim: Arc<Claim>, timeout: Duration) -> Step<AcquireReply> {
        Step::new(async move {
            let until = self.clock.now().saturating_add(timeout);
            if let Some(subscriber) = self.wakeups.subscriber(claim.id) {
                subscriber.begin_wait();
                self.wait_for_change(&claim, &subscriber, until).await?;
                if subscriber.is_force_released() {
                    self.wakeups.unsubscribe(claim.id);
                    return Ok(AcquireReply::ForceReleased);
                }
            }
            let answer = self.query_claim(&claim, Operation::Refresh(claim.id)).await?;
            if matches!(answer, AcquireReply::Queued { .. }) {
                return Ok(answer);
            }
            let is_force_released = match self.wakeups.subscriber(claim.id) {
                // The claim is not queued any more: it expired or was force released. The
                // notification of a force release is sent a moment after the file has changed.
                Some(subscriber) if matches!(answer, AcquireReply::Busy { .. }) => {
                    self.was_just_force_released(&subscriber).await
                }
                _ => false,
            };
            self.wakeups.unsubscribe(claim.id);
            Ok(if is_force_released { AcquireReply::ForceReleased } else { answer })
        })
    }

    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<RenewReply>> {
        Step::new(async move {
            if !self.session().client.is_registered() {
                // Other clients consider this one dead.
                return Ok(vec![RenewReply::Lost; claims.len()]);
            }
            // One busy file must not delay the other renewals: after half of the caller's timeout,
            // its answer is `Unknown`.
            let timeout =
                claims.iter().map(|claim| rules::call_timeout(claim.options.ttl)).min().unwrap_or_default() / 2;
            let until = self.clock.now().saturating_add(timeout);
            let renew = |claim: Arc<Claim>| {
                let engine = Arc::clone(&self);
                async move {
                    tokio::select! {
                        biased;
                        renewal = engine.renew_one(&claim) => renewal.unwrap_or_else(|error| {
                            tracing::warn!(%error, name = %claim.name(), "a lease could not be renewed");
                            RenewReply::Unknown
                        }),
                        () = engine.clock.sleep_until(until) => RenewReply::Unknown,
                    }
                }
            };
            Ok(claims.into_iter().map(renew).collect::<FuturesOrdered<_>>().collect().await)
        })
    }

    fn release(self: Arc<Self>, claim: Arc<Claim>) -> Step<ReleaseReply> {
        Step::new(async move {
            let output = self.run_step(claim.name().clone(), Operation::Release(claim.id)).await;
            self.wakeups.unsubscribe(claim.id);
            match output? {
                StepOutput::Released(effect) => Ok(effect.into()),
                other => Err(unexpected_output(&other)),
            }
        })
    }

    fn loss_events(&self) -> LossEvents {
        self.wakeups.loss_events.subscribe()
    }

    fn watch(self: Arc<Self>, name: LockName, timeout: Duration) -> Step<Step<()>> {
        // The watch is set by the call itself, not by the first poll. The lock's file is created if
        // it does not exist yet.
        let session = self.session();
        if let Err(StepAborted::Failed(error)) = session.lock_files.get_or_open(&session.folder, &name, true) {
            return Step::ready(Err(error));
        }
        let path = session.folder.locks.path_by_handle(&layout::file_name(&name));
        let watch = self.watcher.as_ref().and_then(|watcher| watcher.watch_write(&path).ok());
        let changed = watch.as_ref().map(FileWatch::notified);
        Step::ready(Ok(Step::new(async move {
            let timeout = if changed.is_some() { timeout } else { timeout.min(UNWATCHED_POLL_INTERVAL) };
            let until = self.clock.now().saturating_add(timeout);
            tokio::select! {
                () = async { match changed { Some(event) => event.await, None => std::future::pending().await } } => {}
                () = self.clock.sleep_until(until) => {}
            }
            drop(watch);
            Ok(())
        })))
    }

    fn inspect(self: Arc<Self>, name: LockName) -> Step<LockView> {
        Step::new(async move {
            // A lock that was never acquired has no file, and inspection does not create one.
            let session = self.session();
            if session.client.is_registered() && !session.folder.locks.exists(&layout::file_name(&name)) {
                return Ok(LockView::free(name));
            }
            self.view_lock(name).await
        })
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockView>> {
        Step::new(async move {
            let engine = Arc::clone(&self);
            let names = move || inspect::lock_names(&engine.current_session()?.folder.locks, &prefix);
            let names = tokio::task::spawn_blocking(names).await.map_err(task_error)??;
            let mut views = Vec::new();
            for name in names {
                let view = match self.view_lock(name.clone()).await {
                    Ok(view) => view,
                    // A lock that is damaged, or belongs to another user, does not hide the others.
                    Err(error) if error.is_bad_record() || error.kind() == ErrorKind::Denied => {
                        LockView { damage: Some(error.to_string()), ..LockView::free(name) }
                    }
                    Err(error) => return Err(error),
                };
                if !view.holders.is_empty() || !view.waiters.is_empty() || view.damage.is_some() {
                    views.push(view);
                }
            }
            Ok(views)
        })
    }

    fn force_release(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<ForceReleaseOutcome> {
        Step::new(async move {
            match self.run_step(name.clone(), Operation::ForceRelease(claim)).await? {
                StepOutput::ForceReleased(contender, token) => {
                    if let Some(contender) = &contender {
                        // The force release has happened, whether or not it can be logged.
                        if let Err(error) = self
                            .session()
                            .folder
                            .append_audit_line(&inspect::audit_line(&name, contender, token, &reason))
                        {
                            tracing::error!(%error, %name, "a force release could not be written to the audit log");
                        }
                    }
                    Ok(ForceReleaseOutcome { contender, fence_token: token })
                }
                other => Err(unexpected_output(&other)),
            }
        })
    }

    fn request_release(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<Option<ContenderView>> {
        Step::new(async move {
            match self.run_step(name.clone(), Operation::RequestRelease(claim)).await? {
                StepOutput::ReleaseRequested(contender) => {
                    tracing::info!(%name, ?claim, reason, there = contender.is_some(), "release requested");
                    Ok(contender)
                }
                other => Err(unexpected_output(&other)),
            }
        })
    }

    fn shutdown(self: Arc<Self>) -> Step<()> {
        Step::ready(Ok(()))
    }

    fn liveness_fd(&self) -> Option<std::os::fd::OwnedFd> {
        self.session().client.liveness_fd()
    }

    fn records(self: Arc<Self>) -> Option<Arc<dyn RecordStore>> {
        Some(self)
    }
}

impl RecordStore for FileEngine {
    fn get(self: Arc<Self>, name: LockName) -> Step<Record> {
        Step::new(
            async move { tokio::task::spawn_blocking(move || self.read_record(&name)).await.map_err(task_error)? },
        )
    }

    fn compare_and_set(self: Arc<Self>, name: LockName, expected_version: u64, value: String) -> Step<Option<Record>> {
        Step::new(async move {
            let caller = CallerGuard::default();
            let is_dropped = Arc::clone(&caller.is_dropped);
            let step =
                tokio::task::spawn_blocking(move || self.write_record(&name, expected_version, value, &is_dropped));
            let written = step.await.map_err(task_error)?;
            drop(caller);
            written
        })
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockName>> {
        Step::new(async move {
            tokio::task::spawn_blocking(move || records::record_names(&self.current_session()?.folder, &prefix))
                .await
                .map_err(task_error)?
        })
    }
}

impl Drop for FileEngine {
    fn drop(&mut self) {
        self.watch_task.iter().for_each(JoinHandle::abort);
    }
}
