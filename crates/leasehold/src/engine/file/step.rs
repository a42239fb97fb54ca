//! One step on one lock: lock its file with `flock`, read the lock table, apply an operation, write
//! the table, unlock the file, and notify other clients.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use super::engine::FileEngine;
use super::inspect;
use super::layout::{self, ContenderDetails, SlotRef};
use super::lock_files::{Latch, LockFile, StepAborted};
use super::session::Session;
use super::wakeups::{Notification, QueuePosition};
use crate::clock::Instant;
use crate::engine::Claim;
use crate::engine::{ContenderView, LockView};
use crate::logic::table::{Contender, Granted, LockTable, ReleaseEffect, Verdict};
use crate::logic::wait_queue::{WaitQueue, waiters_with_new_target};
use crate::types::{ClaimId, Error, ErrorKind, LockName, Mode, Token};

/// What a step does with a lock. It is plain data, so that a step that cannot run at once can be
/// repeated on another thread.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    /// Acquires the lock if it is free; otherwise queues the claim if `queue` is set.
    Attempt { claim: Arc<Claim>, queue: bool },
    /// Returns the state of a claim, which may have been granted; extends a waiter's queue
    /// position. Does not add a claim that is absent.
    Refresh(ClaimId),
    /// Extends the lease of a claim that holds the lock.
    Renew(ClaimId),
    /// Ends a claim, whether it holds or waits.
    Release(ClaimId),
    /// Removes the claims of this client, if it is dead.
    RemoveDeadClient(u128),
    /// Lists the holders and waiters.
    Inspect,
    /// Ends a claim, possibly of another client, at an operator's request.
    ForceRelease(ClaimId),
    /// Asks the client of a claim that holds the lock to release it.
    RequestRelease(ClaimId),
}

impl Operation {
    /// The claim whose state this operation returns; `None` if it returns something else.
    fn queried_claim(&self) -> Option<ClaimId> {
        match self {
            Self::Attempt { claim, .. } => Some(claim.id),
            Self::Refresh(claim) => Some(*claim),
            _ => None,
        }
    }
}

/// The result of a step.
#[derive(Debug)]
pub(super) enum StepOutput {
    /// The state of a claim after `Attempt` or `Refresh`.
    Verdict {
        verdict: Verdict,
        /// When the first of the holders' leases ends; `None` without holders.
        next_expiry: Option<Instant>,
        /// The clients whose death the claim must watch for; empty unless it is queued.
        watched_clients: Vec<u128>,
    },
    /// The claim attempts again after it was force released while it waited.
    WaitForceReleased,
    /// When the renewed lease ends; `None`: the claim does not hold the lock.
    Renewed(Option<Instant>),
    /// What the released claim was.
    Released(ReleaseEffect),
    /// `RemoveDeadClient` is done.
    DeadRemoved,
    /// The holders and waiters.
    View(LockView),
    /// The claim that was force released, `None` if it had ended; and the fence token to advise,
    /// see [`ForceReleaseOutcome::fence_token`](crate::engine::ForceReleaseOutcome::fence_token).
    ForceReleased(Option<ContenderView>, Option<Token>),
    /// The holder that was notified; `None` if the claim does not hold the lock.
    ReleaseRequested(Option<ContenderView>),
    /// A renewal found the lock's file removed from the folder.
    FileRemoved,
}

impl FileEngine {
    /// Tries an operation on the lock `name` once. Without `is_dropped` it never blocks. With
    /// `is_dropped` it may wait for the disk; it has no effect if that flag is true by the time the
    /// lock's file is locked, because the caller has then stopped waiting.
    pub(super) fn step(
        &self,
        name: &LockName,
        operation: &Operation,
        is_dropped: Option<&AtomicBool>,
    ) -> Result<StepOutput, StepAborted> {
        let (may_block, session) = (is_dropped.is_some(), self.session());
        loop {
            let is_registered = session.client.is_registered();
            if !matches!(operation, Operation::Release(_) | Operation::Renew(_)) && !is_registered {
                return Err(StepAborted::FolderGone);
            }
            let shared_file = session.lock_files.get_or_open(&session.folder, name, may_block)?;
            let mut file = match shared_file.try_lock() {
                Ok(file) => file,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) if may_block => {
                    shared_file.lock().unwrap_or_else(PoisonError::into_inner)
                }
                Err(TryLockError::WouldBlock) => return Err(StepAborted::Busy),
            };
            let mut latch = file.latch()?;
            let is_linked = latch.0.is_linked();
            if !matches!(operation, Operation::Release(_)) && !is_linked {
                session.lock_files.close(name);
                if matches!(operation, Operation::Renew(_)) {
                    return Ok(StepOutput::FileRemoved);
                }
                continue;
            }
            if is_dropped.is_some_and(|is_dropped| is_dropped.load(Ordering::SeqCst)) {
                // Checked while the file is locked: a dropped caller releases its claim afterwards,
                // and a later grant would never be released.
                return Err(StepAborted::Failed(Error::new(ErrorKind::Closed, "the caller has stopped waiting")));
            }
            let (output, notifications) =
                self.apply_latched(&session, name, operation, &mut latch, may_block, &shared_file)?;
            drop(latch);
            drop(file);
            for (client, claim, notification) in notifications {
                self.notify(&session, client, claim, notification);
            }
            // If other clients do not find this folder or file any more, the lock did not exclude
            // them: it was lost before this release.
            return Ok(match output {
                StepOutput::Released(_) if !is_registered || !is_linked => StepOutput::Released(ReleaseEffect::Absent),
                output => output,
            });
        }
    }

    /// Applies an operation while the lock's file is locked. Returns its output, and the
    /// notifications to send after the file is unlocked.
    fn apply_latched(
        &self,
        session: &Session,
        name: &LockName,
        op: &Operation,
        latch: &mut Latch<'_>,
        may_block: bool,
        file: &Arc<Mutex<LockFile>>,
    ) -> Result<(StepOutput, Notifications), StepAborted> {
        latch.read(name, session.folder.boot_id)?;
        let slots = latch.0.counters.slots as usize;
        let mut table = layout::read_table(&latch.0.content, slots)
            .map_err(|reason| super::error::damaged_file_error(&session.folder.lock_path(name), reason))?;
        if self.is_force_released_waiter(op, &table, file) {
            return Ok((StepOutput::WaitForceReleased, Notifications::new()));
        }
        let counters = latch.0.counters;
        let max_token = counters.last.max(session.min_token) + 2 + table.waiters.len() as u64;
        let may_grant =
            matches!(op, Operation::Attempt { .. } | Operation::ForceRelease(_)) || !table.waiters.is_empty();
        if may_grant && max_token > counters.reserved {
            if !may_block {
                return Err(StepAborted::NeedsSync);
            }
            latch.reserve_tokens(&session.folder, max_token)?;
        }
        if may_grant {
            latch.0.counters.last = latch.0.counters.last.max(session.min_token);
        }
        let wait_queue_before = wait_queue(&table);
        let expiry_before = table.next_expiry();
        let permit_holders_before = permit_holder_clients(&table);
        let mut last = latch.0.counters.last;
        let mut token = || {
            last += 1;
            Token(last)
        };
        let now = self.clock.now();
        let mut context = StepContext { session, name, latch, now, next_token: &mut token };
        let AppliedStep { output, granted, notification } = context.apply(op, &mut table);
        let mut notifications: Notifications = notification.into_iter().collect();
        for holder in table.holders.iter_mut().filter(|contender| granted.contains(&contender.claim)) {
            holder.details.since = now;
            notifications.push((holder.details.client, holder.claim, Notification::CheckState));
        }
        // These waiters must watch another client from now on.
        let new_watchers = waiters_with_new_target(&wait_queue_before, &wait_queue(&table));
        if !new_watchers.is_empty() {
            let new_watchers = table.waiters.iter().filter(|contender| new_watchers.contains(&contender.claim));
            notifications.extend(
                new_watchers.map(|contender| (contender.details.client, contender.claim, Notification::CheckState)),
            );
        }
        // If the lock was handed off to a shorter lease, the first waiter must check again sooner
        // than its last answer stated. It also watches all holders of permits, which may have
        // changed.
        let ends_sooner = table.next_expiry().zip(expiry_before).is_some_and(|(now, before)| now < before);
        if ends_sooner || (!table.waiters.is_empty() && permit_holders_before != permit_holder_clients(&table)) {
            notifications.extend(
                table.waiters.front().map(|first| (first.details.client, first.claim, Notification::CheckState)),
            );
        }
        self.subscribe_waiter(op, &output, &table, file, now);
        if contenders(&table).count() as u64 > layout::MAX_SLOTS {
            let message = format!(
                "{} claims hold this lock or wait for it, and that is the limit; retry when one has ended",
                layout::MAX_SLOTS
            );
            return Err(StepAborted::Failed(Error::new(ErrorKind::Full, message)));
        }
        latch.0.counters.last = last;
        session.note_token(last);
        latch.write(&table)?;
        Ok((output, notifications))
    }

    /// Whether `op` is an attempt of a claim that was force released while it waited, and whose
    /// caller may not know that yet. The claim must then not queue again.
    fn is_force_released_waiter(
        &self,
        op: &Operation,
        table: &LockTable<ContenderDetails>,
        file: &Arc<Mutex<LockFile>>,
    ) -> bool {
        let Operation::Attempt { claim, .. } = op else { return false };
        self.wakeups.subscriber(claim.id).is_some_and(|subscriber| subscriber.has_unanswered_wait())
            && contenders(table).all(|contender| contender.claim != claim.id)
            && self.wakeups.was_force_released(claim.id, file, self.clock.now())
    }

    /// If the operation queued a claim, subscribes it to notifications. If it found the claim gone
    /// from the queue, notes whether it was force released. Called while the lock's file is locked,
    /// so that no notification can be sent before the claim is subscribed.
    fn subscribe_waiter(
        &self,
        op: &Operation,
        output: &StepOutput,
        table: &LockTable<ContenderDetails>,
        file: &Arc<Mutex<LockFile>>,
        now: Instant,
    ) {
        match (op, output) {
            (_, StepOutput::Verdict { verdict: Verdict::Queued(_), watched_clients, .. }) => {
                let claim = op.queried_claim();
                let waiter = table.waiters.iter().find(|contender| Some(contender.claim) == claim);
                if let Some(Contender { claim, expires_at, .. }) = waiter {
                    let position = QueuePosition { file: Arc::downgrade(file), expires_at: *expires_at };
                    self.wakeups.subscribe(*claim, watched_clients.clone(), position);
                }
            }
            (Operation::Refresh(claim), StepOutput::Verdict { verdict: Verdict::Busy, .. }) => {
                self.wakeups.was_force_released(*claim, file, now);
            }
            _ => {}
        }
    }
}

/// Notifications to send: the receiving client, its claim, and what happened to that claim.
type Notifications = Vec<(u128, ClaimId, Notification)>;

/// The result of applying an operation to a table.
struct AppliedStep {
    output: StepOutput,
    /// The claims that were granted the lock.
    granted: Granted,
    /// A notification besides those about the grants: client, claim and content.
    notification: Option<(u128, ClaimId, Notification)>,
}

impl AppliedStep {
    /// A result without a further notification.
    fn new(output: StepOutput, granted: Granted) -> Self {
        Self { output, granted, notification: None }
    }
}

/// The holders, then the waiters.
fn contenders(table: &LockTable<ContenderDetails>) -> impl Iterator<Item = &Contender<ContenderDetails>> {
    table.holders.iter().chain(&table.waiters)
}

/// The queue as the rule reads it that decides which claim each waiter watches.
fn wait_queue(table: &LockTable<ContenderDetails>) -> WaitQueue {
    let last_granted = table.holders.last().map(|contender| contender.claim);
    WaitQueue { last_granted, waiters: table.waiters.iter().map(|contender| contender.claim).collect() }
}

/// What applying an operation needs besides the operation and the table.
struct StepContext<'a, 'f, T: FnMut() -> Token> {
    session: &'a Session,
    name: &'a LockName,
    latch: &'a Latch<'f>,
    now: Instant,
    next_token: &'a mut T,
}

impl<T: FnMut() -> Token> StepContext<'_, '_, T> {
    /// Applies the operation, after removing claims of dead clients that stand in its way.
    fn apply(&mut self, op: &Operation, table: &mut LockTable<ContenderDetails>) -> AppliedStep {
        self.skip_dead_waiters(table);
        self.remove_claim_of_earlier_session(op, table);
        match op {
            Operation::Attempt { claim, queue } => {
                let (verdict, granted) = self.attempt(table, claim, *queue);
                AppliedStep::new(verdict_output(table, claim.id, verdict), granted)
            }
            Operation::Refresh(claim) => {
                let (verdict, granted) = self.refresh(table, *claim);
                AppliedStep::new(verdict_output(table, *claim, verdict), granted)
            }
            Operation::Renew(claim) => {
                let (until, granted) = table.renew(*claim, self.now, self.next_token);
                AppliedStep::new(StepOutput::Renewed(until), granted)
            }
            Operation::Release(claim) => {
                let (effect, granted) = table.release(*claim, self.now, self.next_token);
                AppliedStep::new(StepOutput::Released(effect), granted)
            }
            Operation::RemoveDeadClient(client) => {
                if !self.session.is_alive(*client) {
                    remove_claims_of(table, *client);
                }
                AppliedStep::new(StepOutput::DeadRemoved, table.expire_and_grant(self.now, self.next_token))
            }
            Operation::Inspect => {
                self.remove_dead_clients(table, true);
                let granted = table.expire_and_grant(self.now, self.next_token);
                AppliedStep::new(StepOutput::View(self.view(table)), granted)
            }
            Operation::ForceRelease(claim) => self.force_release(*claim, table),
            Operation::RequestRelease(claim) => self.request_release(*claim, table),
        }
    }

    /// The holders and waiters in the table, as inspection shows them.
    fn view(&self, table: &LockTable<ContenderDetails>) -> LockView {
        inspect::lock_view(&self.session.folder, self.name, self.latch, table, self.now)
    }

    /// Force releases a claim: removes it from the table, and notifies its client.
    fn force_release(&mut self, claim: ClaimId, table: &mut LockTable<ContenderDetails>) -> AppliedStep {
        // As an inspection does: its view has no dead clients, and only claims in it can be force
        // released.
        self.remove_dead_clients(table, true);
        let granted_before = table.expire_and_grant(self.now, self.next_token);
        let view = self.view(table);
        let contender = view.holders.into_iter().chain(view.waiters).find(|contender| contender.claim == claim);
        let (released, mut granted) = table.force_release(claim, self.now, self.next_token);
        granted.extend(granted_before);
        let Some(released) = released else { return AppliedStep::new(StepOutput::ForceReleased(None, None), granted) };
        let notification = (released.contender.details.client, claim, Notification::ForceReleased);
        AppliedStep {
            output: StepOutput::ForceReleased(contender, released.fence_token),
            granted,
            notification: Some(notification),
        }
    }

    /// Requests that the holder of a claim releases it. The request is only a notification to its
    /// client, and is not stored in the file.
    fn request_release(&mut self, claim: ClaimId, table: &mut LockTable<ContenderDetails>) -> AppliedStep {
        self.remove_dead_clients(table, true);
        let granted = table.expire_and_grant(self.now, self.next_token);
        let notification =
            table.holder(claim).map(|contender| (contender.details.client, claim, Notification::ReleaseRequested));
        let contender = self.view(table).holders.into_iter().find(|contender| contender.claim == claim);
        AppliedStep { output: StepOutput::ReleaseRequested(contender), granted, notification }
    }

    /// Acquires the lock if it is free. If other claims exclude this one, removes those of dead
    /// clients and tries again; only then the claim queues, if `queue` is set.
    fn attempt(
        &mut self,
        table: &mut LockTable<ContenderDetails>,
        claim: &Arc<Claim>,
        queue: bool,
    ) -> (Verdict, Granted) {
        let options = &claim.options;
        let contender = || Contender {
            claim: claim.id,
            owner: options.owner,
            mode: options.mode,
            ttl: options.ttl,
            expires_at: self.now,
            token: Token::default(),
            order: 0,
            details: ContenderDetails {
                client: self.session.client.id,
                since: self.now,
                slot: SlotRef::New(Arc::clone(claim)),
            },
        };
        let (verdict, mut granted) = table.attempt(contender(), false, self.now, self.next_token);
        let again = match verdict {
            Verdict::Granted(..) => false,
            Verdict::Queued(_) => self.remove_dead_clients(table, false),
            Verdict::Busy => self.remove_dead_clients(table, false) || queue,
            Verdict::Refused(_) => self.remove_dead_clients(table, true),
        };
        if !again {
            return (verdict, granted);
        }
        let (verdict, more) = table.attempt(contender(), queue, self.now, self.next_token);
        granted.extend(more);
        (verdict, granted)
    }

    /// The state of a claim. If it is queued, first removes the claims of dead clients ahead of it.
    fn refresh(&mut self, table: &mut LockTable<ContenderDetails>, claim: ClaimId) -> (Verdict, Granted) {
        let (verdict, mut granted) = table.refresh(claim, self.now, self.next_token);
        if !matches!(verdict, Verdict::Queued(_)) || !self.remove_dead_clients(table, false) {
            return (verdict, granted);
        }
        let (verdict, more) = table.refresh(claim, self.now, self.next_token);
        granted.extend(more);
        (verdict, granted)
    }

    /// Removes the claims of all dead clients that hold the lock or, if `with_waiters` is set, wait
    /// for it. `true` if there were any.
    fn remove_dead_clients(&self, table: &mut LockTable<ContenderDetails>, with_waiters: bool) -> bool {
        let waiters = table.waiters.iter().filter(|_| with_waiters);
        let mut clients: Vec<u128> =
            table.holders.iter().chain(waiters).map(|contender| contender.details.client).collect();
        clients.sort_unstable();
        clients.dedup();
        clients.retain(|client| !self.session.is_alive(*client));
        for client in &clients {
            remove_claims_of(table, *client);
        }
        !clients.is_empty()
    }

    /// Removes the operation's own claim if it was made in an earlier session of this process,
    /// which is over. Other clients consider that session's client dead, so the claim is lost even
    /// if it is still in the file.
    fn remove_claim_of_earlier_session(&self, op: &Operation, table: &mut LockTable<ContenderDetails>) {
        let claim = match op {
            Operation::Renew(claim) => Some(*claim),
            _ => op.queried_claim(),
        };
        let client = contenders(table)
            .find(|contender| Some(contender.claim) == claim)
            .map(|contender| contender.details.client);
        if let Some(client) = client.filter(|client| !self.session.is_alive(*client)) {
            remove_claims_of(table, client);
        }
    }

    /// Removes dead clients from the front of the queue, so that the lock is not handed off to
    /// them.
    fn skip_dead_waiters(&self, table: &mut LockTable<ContenderDetails>) {
        while let Some(first) = table.waiters.front() {
            if self.session.is_alive(first.details.client) {
                break;
            }
            let client = first.details.client;
            remove_claims_of(table, client);
        }
    }
}

/// Removes all claims of a dead client.
fn remove_claims_of(table: &mut LockTable<ContenderDetails>, client: u128) {
    table.holders.retain(|contender| contender.details.client != client);
    table.waiters.retain(|contender| contender.details.client != client);
}

/// The state of a claim, as the output of a step.
fn verdict_output(table: &LockTable<ContenderDetails>, claim: ClaimId, verdict: Verdict) -> StepOutput {
    let watched_clients = watched_clients(table, claim, verdict);
    StepOutput::Verdict { verdict, next_expiry: table.next_expiry(), watched_clients }
}

/// The clients whose death a queued claim must watch for: the client of the one claim ahead that it
/// watches. The first waiter for permits watches all holders of permits, because each may free
/// enough of them.
fn watched_clients(table: &LockTable<ContenderDetails>, claim: ClaimId, verdict: Verdict) -> Vec<u128> {
    if !matches!(verdict, Verdict::Queued(_)) {
        return Vec::new();
    }
    let is_first = table.waiters.front().is_some_and(|first| first.claim == claim);
    let mut permit_holders = if is_first { permit_holder_clients(table) } else { Vec::new() };
    if !permit_holders.is_empty() {
        permit_holders.sort_unstable();
        permit_holders.dedup();
        return permit_holders;
    }
    let watched_claim = wait_queue(table).watched_by(claim);
    contenders(table)
        .filter(|contender| Some(contender.claim) == watched_claim)
        .map(|contender| contender.details.client)
        .collect()
}

/// The clients of the holders of permits, in the order of their grants.
fn permit_holder_clients(table: &LockTable<ContenderDetails>) -> Vec<u128> {
    let permits = table.holders.iter().filter(|holder| matches!(holder.mode, Mode::Permits { .. }));
    permits.map(|holder| holder.details.client).collect()
}
