//! One step on one lock: latch its file, apply a step of the table, write, unlatch, notify.

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

/// The operation of a step. Plain data, so that a step that cannot run immediately can run later.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    Attempt {
        claim: Arc<Claim>,
        queue: bool,
    },
    /// Reads the state of a claim; does not add a claim that is absent.
    Refresh(ClaimId),
    Renew(ClaimId),
    Release(ClaimId),
    /// Removes the claims of a client that may be dead.
    RemoveDead(u128),
    Inspect,
    ForceRelease(ClaimId),
    RequestRelease(ClaimId),
}

impl Operation {
    /// The claim whose state is queried.
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
    /// The verdict, when the next lease ends, and the clients that a queued claim should watch.
    Verdict(Verdict, Option<Instant>, Vec<u128>),
    /// The claim was evicted while it waited.
    WaitForceReleased,
    Renewed(Option<Instant>),
    Released(ReleaseEffect),
    DeadRemoved,
    View(LockView),
    ForceReleased(Option<ContenderView>, Option<Token>),
    ReleaseRequested(Option<ContenderView>),
    /// The file was removed during the step.
    FileRemoved,
}

impl FileEngine {
    /// Takes a step. With `is_dropped` it may wait for the disk, and has no effect if the caller is
    /// dropped before it starts; otherwise it takes microseconds.
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
            let shared_file = session.store.file(&session.folder, name, may_block)?;
            let mut file = match shared_file.try_lock() {
                Ok(file) => file,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) if may_block => {
                    shared_file.lock().unwrap_or_else(PoisonError::into_inner)
                }
                Err(TryLockError::WouldBlock) => return Err(StepAborted::Busy),
            };
            let mut latch = file.latch()?;
            let linked = latch.0.is_linked();
            if !matches!(operation, Operation::Release(_)) && !linked {
                session.store.close(name);
                if matches!(operation, Operation::Renew(_)) {
                    return Ok(StepOutput::FileRemoved);
                }
                continue;
            }
            if is_dropped.is_some_and(|dropped| dropped.load(Ordering::SeqCst)) {
                // Inside the latch: the clean-up after the caller runs later, and no grant can
                // follow it.
                return Err(StepAborted::Failed(Error::new(ErrorKind::Closed, "the caller has stopped waiting")));
            }
            let (output, notifications) =
                self.step_latched(&session, name, operation, &mut latch, may_block, &shared_file)?;
            drop(latch);
            drop(file);
            for (client, claim, notification) in notifications {
                self.notify(&session, client, claim, notification);
            }
            // A lock in a folder or file that others do not find any more did not exclude them: it
            // was lost before this release.
            return Ok(match output {
                StepOutput::Released(_) if !is_registered || !linked => StepOutput::Released(ReleaseEffect::Absent),
                output => output,
            });
        }
    }

    fn step_latched(
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
        if self.is_evicted_waiter(op, &table, file) {
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
        let end = table.next_expiry();
        let permit_holders = permit_holder_clients(&table);
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
        let relinked = waiters_with_new_target(&wait_queue_before, &wait_queue(&table));
        if !relinked.is_empty() {
            let relinked = table.waiters.iter().filter(|contender| relinked.contains(&contender.claim));
            notifications.extend(
                relinked.map(|contender| (contender.details.client, contender.claim, Notification::CheckState)),
            );
        }
        // After a hand-off to a shorter lease, the first waiter must check again sooner than its
        // last recheck time.
        let ends_sooner = table.next_expiry().zip(end).is_some_and(|(now, before)| now < before);
        if ends_sooner || (!table.waiters.is_empty() && permit_holders != self::permit_holder_clients(&table)) {
            notifications.extend(
                table.waiters.front().map(|first| (first.details.client, first.claim, Notification::CheckState)),
            );
        }
        self.subscribe_waiter(op, &output, &table, file, now);
        if contenders(&table).count() as u64 > layout::MAX_SLOTS {
            let message = format!("{} claims hold or wait already, and there is no room for more", layout::MAX_SLOTS);
            return Err(StepAborted::Failed(Error::new(ErrorKind::Full, message)));
        }
        latch.0.counters.last = last;
        session.note_token(last);
        latch.write(&table)?;
        Ok((output, notifications))
    }

    /// Whether a claim attempts again that was evicted while it waited, and may not know: it does not
    /// queue again.
    fn is_evicted_waiter(
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

    /// Listens for a claim that waits, or notes that it does not wait any more. Inside the latch, so
    /// that no notification can come before we listen.
    fn subscribe_waiter(
        &self,
        op: &Operation,
        output: &StepOutput,
        table: &LockTable<ContenderDetails>,
        file: &Arc<Mutex<LockFile>>,
        now: Instant,
    ) {
        match (op, output) {
            (_, StepOutput::Verdict(Verdict::Queued(_), _, ahead)) => {
                let claim = op.queried_claim();
                let waiter = table.waiters.iter().find(|contender| Some(contender.claim) == claim);
                if let Some(Contender { claim, expires_at, .. }) = waiter {
                    let position = QueuePosition { file: Arc::downgrade(file), expires_at: *expires_at };
                    self.wakeups.subscribe(*claim, ahead.clone(), position);
                }
            }
            (Operation::Refresh(claim), StepOutput::Verdict(Verdict::Busy, ..)) => {
                self.wakeups.was_force_released(*claim, file, now);
            }
            _ => {}
        }
    }
}

/// The notifications to send: client, claim and content.
type Notifications = Vec<(u128, ClaimId, Notification)>;

/// The result of applying a step.
struct AppliedStep {
    output: StepOutput,
    granted: Granted,
    /// A notification besides those for the grants.
    notification: Option<(u128, ClaimId, Notification)>,
}

impl AppliedStep {
    fn new(output: StepOutput, granted: Granted) -> Self {
        Self { output, granted, notification: None }
    }
}

fn contenders(table: &LockTable<ContenderDetails>) -> impl Iterator<Item = &Contender<ContenderDetails>> {
    table.holders.iter().chain(&table.waiters)
}

fn wait_queue(table: &LockTable<ContenderDetails>) -> WaitQueue {
    let last_granted = table.holders.last().map(|contender| contender.claim);
    WaitQueue { last_granted, waiters: table.waiters.iter().map(|contender| contender.claim).collect() }
}

/// The environment of a step besides the table.
struct StepContext<'a, 'f, T: FnMut() -> Token> {
    session: &'a Session,
    name: &'a LockName,
    latch: &'a Latch<'f>,
    now: Instant,
    next_token: &'a mut T,
}

impl<T: FnMut() -> Token> StepContext<'_, '_, T> {
    fn apply(&mut self, op: &Operation, table: &mut LockTable<ContenderDetails>) -> AppliedStep {
        self.skip_dead_waiters(table);
        self.remove_claim_of_earlier_session(op, table);
        match op {
            Operation::Attempt { claim, queue } => {
                let (verdict, granted) = self.attempt(table, claim, *queue);
                let watch = watched_clients(table, claim.id, verdict);
                AppliedStep::new(StepOutput::Verdict(verdict, table.next_expiry(), watch), granted)
            }
            Operation::Refresh(claim) => {
                let (verdict, granted) = self.refresh(table, *claim);
                let watch = watched_clients(table, *claim, verdict);
                AppliedStep::new(StepOutput::Verdict(verdict, table.next_expiry(), watch), granted)
            }
            Operation::Renew(claim) => {
                let (until, granted) = table.renew(*claim, self.now, self.next_token);
                AppliedStep::new(StepOutput::Renewed(until), granted)
            }
            Operation::Release(claim) => {
                let (effect, granted) = table.release(*claim, self.now, self.next_token);
                AppliedStep::new(StepOutput::Released(effect), granted)
            }
            Operation::RemoveDead(client) => {
                if !self.session.is_alive(*client) {
                    remove_claims_of(table, *client);
                }
                AppliedStep::new(StepOutput::DeadRemoved, table.expire_and_grant(self.now, self.next_token))
            }
            Operation::Inspect => {
                self.remove_dead(table, true);
                let granted = table.expire_and_grant(self.now, self.next_token);
                AppliedStep::new(StepOutput::View(self.view(table)), granted)
            }
            Operation::ForceRelease(claim) => self.force_release(*claim, table),
            Operation::RequestRelease(claim) => self.request_release(*claim, table),
        }
    }

    fn view(&self, table: &LockTable<ContenderDetails>) -> LockView {
        inspect::lock_view(&self.session.folder, self.name, self.latch, table, self.now)
    }

    fn force_release(&mut self, claim: ClaimId, table: &mut LockTable<ContenderDetails>) -> AppliedStep {
        // A dead client is no remaining holder, and a claim that inspection does not show cannot be
        // the target.
        self.remove_dead(table, true);
        let before = table.expire_and_grant(self.now, self.next_token);
        let view = self.view(table);
        let contender = view.holders.into_iter().chain(view.waiters).find(|contender| contender.claim == claim);
        let (evicted, mut granted) = table.force_release(claim, self.now, self.next_token);
        granted.extend(before);
        let Some(evicted) = evicted else { return AppliedStep::new(StepOutput::ForceReleased(None, None), granted) };
        let notification = (evicted.contender.details.client, claim, Notification::ForceReleased);
        AppliedStep {
            output: StepOutput::ForceReleased(contender, evicted.fence_token),
            granted,
            notification: Some(notification),
        }
    }

    /// Requests that a holder releases its claim. The request is only a notification; the file does
    /// not change.
    fn request_release(&mut self, claim: ClaimId, table: &mut LockTable<ContenderDetails>) -> AppliedStep {
        self.remove_dead(table, true);
        let granted = table.expire_and_grant(self.now, self.next_token);
        let notification =
            table.holder(claim).map(|contender| (contender.details.client, claim, Notification::ReleaseRequested));
        let contender = self.view(table).holders.into_iter().find(|contender| contender.claim == claim);
        AppliedStep { output: StepOutput::ReleaseRequested(contender), granted, notification }
    }

    /// Tries to acquire; if other claims are in the way, first checks that their clients are alive,
    /// and only then queues.
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
            Verdict::Queued(_) => self.remove_dead(table, false),
            Verdict::Busy => self.remove_dead(table, false) || queue,
            Verdict::Refused(_) => self.remove_dead(table, true),
        };
        if !again {
            return (verdict, granted);
        }
        let (verdict, more) = table.attempt(contender(), queue, self.now, self.next_token);
        granted.extend(more);
        (verdict, granted)
    }

    /// The state of a queued claim, after checking that the clients in its way are alive.
    fn refresh(&mut self, table: &mut LockTable<ContenderDetails>, claim: ClaimId) -> (Verdict, Granted) {
        let (verdict, mut granted) = table.refresh(claim, self.now, self.next_token);
        if !matches!(verdict, Verdict::Queued(_)) || !self.remove_dead(table, false) {
            return (verdict, granted);
        }
        let (verdict, more) = table.refresh(claim, self.now, self.next_token);
        granted.extend(more);
        (verdict, granted)
    }

    /// Removes the claims of dead clients, of the holders or of all contenders. `true` if there
    /// were any.
    fn remove_dead(&self, table: &mut LockTable<ContenderDetails>, all: bool) -> bool {
        let waiters = table.waiters.iter().filter(|_| all);
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

    /// Removes a claim of a session that is over. It is lost even if it is still in the file,
    /// because others consider its client dead.
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

/// The clients whose death concerns a queued claim: that of the one contender ahead that it
/// watches. The first waiter for permits watches all holders of permits, because each may free
/// enough of them.
fn watched_clients(table: &LockTable<ContenderDetails>, claim: ClaimId, verdict: Verdict) -> Vec<u128> {
    if !matches!(verdict, Verdict::Queued(_)) {
        return Vec::new();
    }
    let next = table.waiters.front().is_some_and(|first| first.claim == claim);
    let mut permit_holders = if next { permit_holder_clients(table) } else { Vec::new() };
    if !permit_holders.is_empty() {
        permit_holders.sort_unstable();
        permit_holders.dedup();
        return permit_holders;
    }
    let ahead = wait_queue(table).watched_by(claim);
    contenders(table)
        .filter(|contender| Some(contender.claim) == ahead)
        .map(|contender| contender.details.client)
        .collect()
}

/// The clients of the holders of permits, all of which the first waiter watches.
fn permit_holder_clients(table: &LockTable<ContenderDetails>) -> Vec<u128> {
    let permits = table.holders.iter().filter(|holder| matches!(holder.mode, Mode::Permits { .. }));
    permits.map(|holder| holder.details.client).collect()
}
