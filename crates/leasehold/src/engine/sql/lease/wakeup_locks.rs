//! Wake-up locks, for databases without notifications (MySQL): named locks (`GET_LOCK`) whose
//! release wakes a waiter of another client.
//!
//! Each claim that exists for longer than a moment gets such a lock, and one connection of its
//! client holds it. A claim needs none if another claim of the same client is right behind it. The
//! waiter right behind the claim, in another process, blocks in `GET_LOCK` on the claim's wake-up
//! lock. It wakes when the claim's client calls `RELEASE_LOCK`, and also when that client dies,
//! since the server then releases the lock. A spurious wake-up costs one read of the row. If there
//! is no wake-up lock yet, the waiter polls. Correctness never depends on wake-up locks.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use super::lock_state::lock;
use crate::clock::{Clock, Instant};
use crate::engine::sql::connection::{Connection, Reply, Value};
use crate::engine::sql::error::Failure;
use crate::engine::sql::pool::Pool;
use crate::types::ClaimId;

/// How old a claim must be to get a wake-up lock. Most claims end sooner, and cost no statement for
/// one.
const MIN_CLAIM_AGE: Duration = Duration::from_millis(5);

/// The time limit of a statement that acquires or releases wake-up locks.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// After this time without a statement, the task checks that the server still has its connection,
/// and so its wake-up locks. If it had lost them, waiters would read the row again and again.
const CHECK_INTERVAL: Duration = Duration::from_secs(3);

/// How many wake-up locks one statement acquires or releases at most.
const MAX_CLAIMS_PER_STATEMENT: usize = 64;

/// The name of a claim's wake-up lock.
pub(super) fn lock_name(claim: ClaimId) -> String {
    format!("leasehold:{:032x}", claim.bits())
}

/// A command to the task that holds the wake-up locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WakeupCommand {
    /// A claim of this client exists: it gets a wake-up lock unless it ends soon.
    Acquire(ClaimId),
    /// No other client waits right behind the claim: it gets no wake-up lock, but keeps one that it
    /// has.
    CancelPending(ClaimId),
    /// The claim has ended: its wake-up lock is released if it has one.
    Release(ClaimId),
}

/// The wake-up locks of this client, which a task holds on a connection of its own.
#[derive(Debug)]
pub(super) struct WakeupLocks {
    queue: Arc<CommandQueue>,
    clock: Clock,
}

/// The commands to the task. The task wakes at once only for commands that cannot wait until its
/// next timer, because most claims have ended by then.
#[derive(Debug, Default)]
struct CommandQueue {
    schedule: Mutex<WakeupSchedule>,
    /// Notified when the task must look at `schedule` before its next timer.
    wake: Notify,
}

impl WakeupLocks {
    /// Starts the task that holds the wake-up locks.
    pub(super) fn start(pool: Arc<Pool>, clock: Clock) -> Self {
        let queue = Arc::new(CommandQueue::default());
        tokio::spawn(run(pool, clock.clone(), Arc::clone(&queue)));
        Self { queue, clock }
    }

    /// Gives commands to the task.
    pub(super) fn submit(&self, commands: impl Iterator<Item = WakeupCommand>) {
        let now = self.clock.now();
        let mut schedule = lock(&self.queue.schedule);
        let mut is_urgent = false;
        for command in commands {
            is_urgent |= schedule.apply(command, now);
        }
        drop(schedule);
        if is_urgent {
            self.queue.wake.notify_one();
        }
    }

    /// Ends the task and closes its connection, which releases all wake-up locks.
    pub(super) fn close(&self) {
        lock(&self.queue.schedule).is_closed = true;
        self.queue.wake.notify_one();
    }
}

impl Drop for WakeupLocks {
    fn drop(&mut self) {
        self.close();
    }
}

/// The task's state: which claims have a wake-up lock, which will, and what to send to the server
/// next.
#[derive(Debug, Default)]
struct WakeupSchedule {
    /// When claims without a wake-up lock get one, in the order of time. Claims that are not in
    /// `pending` any more get none.
    due: VecDeque<(Instant, ClaimId)>,
    /// The claims that will get a wake-up lock.
    pending: HashSet<ClaimId>,
    /// The claims that have a wake-up lock, or for which it is being acquired.
    held: HashSet<ClaimId>,
    /// The claims whose wake-up locks are to be released.
    to_release: Vec<ClaimId>,
    /// When the task's timer wakes it to acquire wake-up locks; `None`: it has no timer for that.
    next_wake: Option<Instant>,
    /// Whether the task must end.
    is_closed: bool,
}

impl WakeupSchedule {
    /// Records a command. Returns whether the task must wake before its next timer.
    fn apply(&mut self, command: WakeupCommand, now: Instant) -> bool {
        match command {
            WakeupCommand::Acquire(claim) => {
                if self.held.contains(&claim) || !self.pending.insert(claim) {
                    return false;
                }
                let due = now.saturating_add(MIN_CLAIM_AGE);
                self.due.push_back((due, claim));
                self.next_wake.is_none_or(|next_wake| next_wake > due)
            }
            WakeupCommand::CancelPending(claim) => {
                self.pending.remove(&claim);
                false
            }
            WakeupCommand::Release(claim) => {
                self.pending.remove(&claim);
                let is_held = self.held.remove(&claim);
                if is_held {
                    self.to_release.push(claim);
                }
                is_held
            }
        }
    }

    /// When the next wake-up lock is to be acquired; `None` if none is.
    fn next_due(&mut self) -> Option<Instant> {
        while self.due.front().is_some_and(|(_, claim)| !self.pending.contains(claim)) {
            self.due.pop_front();
        }
        self.due.front().map(|(at, _)| *at)
    }

    /// Takes the claims, at most [`MAX_CLAIMS_PER_STATEMENT`], whose wake-up locks are to be
    /// acquired now.
    fn take_due(&mut self, now: Instant) -> Vec<ClaimId> {
        let mut claims = Vec::new();
        while claims.len() < MAX_CLAIMS_PER_STATEMENT && self.next_due().is_some_and(|at| at <= now) {
            let Some((_, claim)) = self.due.pop_front() else { break };
            self.pending.remove(&claim);
            self.held.insert(claim);
            claims.push(claim);
        }
        claims
    }

    /// Schedules wake-up locks that could not be acquired for another try.
    fn reschedule(&mut self, claims: &[ClaimId], now: Instant) {
        for claim in claims {
            if self.held.remove(claim) {
                self.apply(WakeupCommand::Acquire(*claim), now);
            }
        }
    }

    /// Schedules all wake-up locks to be acquired again, after the connection that held them was
    /// closed.
    fn reschedule_all(&mut self, now: Instant) {
        self.to_release.clear();
        for claim in std::mem::take(&mut self.held) {
            self.apply(WakeupCommand::Acquire(claim), now);
        }
    }
}

/// The task that acquires, holds and releases the wake-up locks, until it is closed.
async fn run(pool: Arc<Pool>, clock: Clock, queue: Arc<CommandQueue>) {
    let mut connection: Option<Connection> = None;
    while let Some((to_acquire, to_release)) = queue.next_batch(&clock).await {
        if pool.is_releasing_idle() {
            // This releases all wake-up locks. Waiters of other clients poll until the server has
            // enough connections again.
            if let Some(connection) = connection.take() {
                connection.close().await;
            }
        } else if connection.is_none() {
            connection = Connection::open(&pool.config).await.inspect_err(|failure| pool.note_refusal(failure)).ok();
        }
        let Some(open) = &mut connection else {
            lock(&queue.schedule).reschedule_all(clock.now().saturating_add(Duration::from_secs(1)));
            continue;
        };
        match apply_batch(open, &clock, &to_acquire, &to_release).await {
            // A waiter has just probed these wake-up locks, and had them for a moment: try again
            // later.
            Ok(failed) => lock(&queue.schedule).reschedule(&failed, clock.now()),
            Err(failure) => {
                tracing::debug!(?failure, "the wake-up locks were released with their connection");
                connection = None;
                lock(&queue.schedule).reschedule_all(clock.now());
            }
        }
    }
    if let Some(connection) = connection {
        connection.close().await;
    }
}

impl CommandQueue {
    /// Waits until there are wake-up locks to acquire or release, and returns both lists. If there
    /// were none for [`CHECK_INTERVAL`] and some are held, both lists are empty. `None`: the task
    /// must end.
    async fn next_batch(&self, clock: &Clock) -> Option<(Vec<ClaimId>, Vec<ClaimId>)> {
        let check_at = clock.now().saturating_add(CHECK_INTERVAL);
        loop {
            let (next_wake, has_held) = {
                let (mut schedule, now) = (lock(&self.schedule), clock.now());
                if schedule.is_closed {
                    return None;
                }
                let (to_acquire, to_release) = (schedule.take_due(now), std::mem::take(&mut schedule.to_release));
                schedule.next_wake = schedule.next_due();
                let has_held = !schedule.held.is_empty();
                if !to_acquire.is_empty() || !to_release.is_empty() || has_held && now >= check_at {
                    return Some((to_acquire, to_release));
                }
                (schedule.next_wake, has_held)
            };
            tokio::select! {
                () = self.wake.notified() => {}
                () = sleep_until(clock, next_wake) => {}
                () = sleep_until(clock, has_held.then_some(check_at)) => {}
            }
        }
    }
}

/// Releases and acquires wake-up locks; returns those that could not be acquired. If both lists are
/// empty, checks that the server still has the connection, and so the wake-up locks.
async fn apply_batch(
    connection: &mut Connection,
    clock: &Clock,
    to_acquire: &[ClaimId],
    to_release: &[ClaimId],
) -> Result<Vec<ClaimId>, Failure> {
    if to_acquire.is_empty() && to_release.is_empty() {
        query(connection, clock, "SELECT 1", &[]).await?;
    }
    call_for_each(connection, clock, "RELEASE_LOCK(?)", to_release).await?;
    call_for_each(connection, clock, "GET_LOCK(?, 0)", to_acquire).await
}

/// Runs one statement within [`REPLY_TIMEOUT`].
async fn query(connection: &mut Connection, clock: &Clock, sql: &str, values: &[Value]) -> Result<Reply, Failure> {
    let timed_out = || Err(Failure::ConnectionLost("the statement for the wake-up locks timed out".into()));
    clock.timeout(REPLY_TIMEOUT, connection.run(sql, values)).await.unwrap_or_else(|_| timed_out())
}

/// Sleeps until `at`; forever if it is `None`.
async fn sleep_until(clock: &Clock, at: Option<Instant>) {
    match at {
        Some(at) => clock.sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Calls an SQL function with the name of each claim's wake-up lock, up to
/// [`MAX_CLAIMS_PER_STATEMENT`] in one statement. Returns the claims for which it did not return 1.
async fn call_for_each(
    connection: &mut Connection,
    clock: &Clock,
    function_call: &str,
    claims: &[ClaimId],
) -> Result<Vec<ClaimId>, Failure> {
    let mut failed = Vec::new();
    for claims in claims.chunks(MAX_CLAIMS_PER_STATEMENT) {
        let sql = format!("SELECT {}", vec![function_call; claims.len()].join(", "));
        let values: Vec<Value> = claims.iter().map(|claim| Value::from(lock_name(*claim))).collect();
        let reply = query(connection, clock, &sql, &values).await?;
        let has_succeeded = |index: usize| reply.row().and_then(|row| row.get(index)).and_then(Value::int) == Some(1);
        failed.extend(claims.iter().enumerate().filter(|(index, _)| !has_succeeded(*index)).map(|(_, claim)| *claim));
    }
    Ok(failed)
}

/// The claims of this client at one lock, each with whether it has or will get a wake-up lock.
#[derive(Debug, Default)]
pub(super) struct ClaimWakeups(HashMap<ClaimId, bool>);

impl ClaimWakeups {
    /// Replaces the claims: `own_claims` are all of this client's claims at the lock, each with
    /// whether another client may wait right behind it. Returns the commands for what has changed.
    pub(super) fn update(&mut self, own_claims: impl Iterator<Item = (ClaimId, bool)>) -> Vec<WakeupCommand> {
        let now: HashMap<ClaimId, bool> = own_claims.collect();
        let removed =
            self.0.keys().filter(|claim| !now.contains_key(claim)).map(|claim| WakeupCommand::Release(*claim));
        let mut commands: Vec<WakeupCommand> = removed.collect();
        for (claim, wanted) in &now {
            match (self.0.get(claim).copied().unwrap_or(false), wanted) {
                (false, true) => commands.push(WakeupCommand::Acquire(*claim)),
                (true, false) => commands.push(WakeupCommand::CancelPending(*claim)),
                _ => {}
            }
        }
        self.0 = now;
        commands
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(bits: u128) -> ClaimId {
        ClaimId::from_bits(bits)
    }

    fn at(millis: u64) -> Instant {
        Instant::default().saturating_add(Duration::from_millis(millis))
    }

    #[test]
    fn a_short_claim_never_gets_a_wakeup_lock() {
        let mut schedule = WakeupSchedule::default();
        schedule.apply(WakeupCommand::Acquire(claim(1)), at(0));
        schedule.apply(WakeupCommand::Release(claim(1)), at(3));
        assert_eq!((schedule.next_due(), schedule.take_due(at(9)), schedule.to_release.len()), (None, vec![], 0));
    }

    #[test]
    fn a_lasting_claim_gets_a_wakeup_lock_that_is_released_once() {
        let mut schedule = WakeupSchedule::default();
        schedule.apply(WakeupCommand::Acquire(claim(1)), at(0));
        schedule.apply(WakeupCommand::Acquire(claim(1)), at(1));
        assert_eq!(schedule.take_due(at(4)), vec![]);
        assert_eq!(schedule.take_due(at(5)), vec![claim(1)]);
        schedule.apply(WakeupCommand::Release(claim(1)), at(6));
        schedule.apply(WakeupCommand::Release(claim(1)), at(7));
        assert_eq!(schedule.to_release, vec![claim(1)]);
    }

    #[test]
    fn a_claim_with_a_local_successor_gets_no_wakeup_lock_but_keeps_one_it_has() {
        let mut schedule = WakeupSchedule::default();
        schedule.apply(WakeupCommand::Acquire(claim(1)), at(0));
        schedule.apply(WakeupCommand::CancelPending(claim(1)), at(3));
        assert_eq!(schedule.take_due(at(5)), vec![]);
        schedule.apply(WakeupCommand::Acquire(claim(1)), at(6));
        assert_eq!(schedule.take_due(at(11)), vec![claim(1)]);
        schedule.apply(WakeupCommand::CancelPending(claim(1)), at(12));
        schedule.apply(WakeupCommand::Release(claim(1)), at(13));
        assert_eq!(schedule.to_release, vec![claim(1)]);
    }

    #[test]
    fn an_update_reports_only_changes() {
        let mut wakeups = ClaimWakeups::default();
        let mut commands_for = |own_claims: &[(u128, bool)]| {
            let commands = wakeups.update(own_claims.iter().map(|(bits, wanted)| (claim(*bits), *wanted)));
            let mut commands_for: Vec<String> = commands
                .into_iter()
                .map(|command| match command {
                    WakeupCommand::Acquire(claim) => format!("acquire {}", claim.bits()),
                    WakeupCommand::CancelPending(claim) => format!("cancel {}", claim.bits()),
                    WakeupCommand::Release(claim) => format!("release {}", claim.bits()),
                })
                .collect();
            commands_for.sort();
            commands_for
        };
        assert_eq!(commands_for(&[(1, true)]), ["acquire 1"]);
        assert_eq!(commands_for(&[(1, false), (2, true)]), ["acquire 2", "cancel 1"]);
        assert_eq!(commands_for(&[(1, false), (2, true)]), [""; 0]);
        assert_eq!(commands_for(&[(2, true)]), ["release 1"]);
        assert_eq!(commands_for(&[]), ["release 2"]);
    }

    #[test]
    fn the_task_wakes_only_for_urgent_commands() {
        let mut schedule = WakeupSchedule::default();
        assert!(schedule.apply(WakeupCommand::Acquire(claim(1)), at(0)), "it would sleep on");
        schedule.next_wake = schedule.next_due();
        assert!(!schedule.apply(WakeupCommand::Acquire(claim(2)), at(1)), "it wakes before that");
        assert!(!schedule.apply(WakeupCommand::Release(claim(1)), at(2)), "no wake-up lock is to be released");
        assert_eq!(schedule.take_due(at(6)), vec![claim(2)]);
        schedule.next_wake = schedule.next_due();
        assert!(schedule.apply(WakeupCommand::Release(claim(2)), at(7)));
        assert!(schedule.apply(WakeupCommand::Acquire(claim(3)), at(8)));
    }

    #[test]
    fn lost_wakeup_locks_are_acquired_again() {
        let mut schedule = WakeupSchedule::default();
        schedule.apply(WakeupCommand::Acquire(claim(1)), at(0));
        assert_eq!(schedule.take_due(at(5)), vec![claim(1)]);
        schedule.reschedule_all(at(10));
        assert_eq!(schedule.take_due(at(15)), vec![claim(1)]);
    }
}
