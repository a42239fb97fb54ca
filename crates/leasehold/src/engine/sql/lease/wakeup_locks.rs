//! Wake-up locks, for databases without notifications (MySQL): named locks whose release wakes a
//! waiter.
//!
//! A claim of ours that lasts longer than a moment gets such a lock, which one connection of ours
//! holds. A claim needs none if another of our own claims is right behind it. The waiter right
//! behind the claim, in another process, blocks in `GET_LOCK` on its wake-up lock. It wakes when we
//! call `RELEASE_LOCK`, and also when our process dies, since the server then releases the lock. A
//! spurious wake-up costs one read of the row; a missing wake-up lock delays the retry a little.
//! Correctness never depends on it.

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

/// How old a claim must be to get a wake-up lock: most end earlier, without a waiter.
const MIN_CLAIM_AGE: Duration = Duration::from_millis(5);

/// Time limit for the server's answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long wake-up locks stay unchecked. If the server had lost them, waiters would read the row
/// again and again.
const CHECK_INTERVAL: Duration = Duration::from_secs(3);

/// How many wake-up locks one statement acquires or releases.
const MAX_BATCH: usize = 64;

/// The name of a claim's wake-up lock.
pub(super) fn lock_name(claim: ClaimId) -> String {
    format!("leasehold:{:032x}", claim.bits())
}

/// A change for the task that keeps the wake-up locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WakeupCommand {
    /// One of our claims exists.
    Acquire(ClaimId),
    /// No other client waits behind the claim: it gets no wake-up lock, but keeps one that it has.
    CancelPending(ClaimId),
    /// One of our claims has ended.
    Release(ClaimId),
}

/// Our wake-up locks.
#[derive(Debug)]
pub(super) struct WakeupLocks {
    queue: Arc<CommandQueue>,
    clock: Clock,
}

/// The queue of commands. The task wakes only for commands that cannot wait until its next timer:
/// most claims have ended by then.
#[derive(Debug, Default)]
struct CommandQueue {
    schedule: Mutex<WakeupSchedule>,
    wake: Notify,
}

impl WakeupLocks {
    /// Starts the task that holds them, on a connection of its own.
    pub(super) fn start(pool: Arc<Pool>, clock: Clock) -> Self {
        let queue = Arc::new(CommandQueue::default());
        tokio::spawn(run(pool, clock.clone(), Arc::clone(&queue)));
        Self { queue, clock }
    }

    pub(super) fn submit(&self, commands: impl Iterator<Item = WakeupCommand>) {
        let now = self.clock.now();
        let mut schedule = lock(&self.queue.schedule);
        let mut wakes = false;
        for command in commands {
            wakes |= schedule.apply(command, now);
        }
        drop(schedule);
        if wakes {
            self.queue.wake.notify_one();
        }
    }

    /// Closes the connection: no claim holds any more.
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
    /// When each claim without a wake-up lock gets one, in order.
    due: VecDeque<(Instant, ClaimId)>,
    pending: HashSet<ClaimId>,
    /// Claims whose wake-up lock the server has.
    held: HashSet<ClaimId>,
    /// Wake-up locks that the server has and must release.
    to_release: Vec<ClaimId>,
    /// When the task wakes without a notification.
    next_wake: Option<Instant>,
    is_closed: bool,
}

impl WakeupSchedule {
    /// Records a command. Returns whether the task must wake for it.
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
                let hangs = self.held.remove(&claim);
                if hangs {
                    self.to_release.push(claim);
                }
                hangs
            }
        }
    }

    /// When the next wake-up lock is due.
    fn next_due(&mut self) -> Option<Instant> {
        while self.due.front().is_some_and(|(_, claim)| !self.pending.contains(claim)) {
            self.due.pop_front();
        }
        self.due.front().map(|(at, _)| *at)
    }

    /// The wake-up locks to acquire now.
    fn take_due(&mut self, now: Instant) -> Vec<ClaimId> {
        let mut claims = Vec::new();
        while claims.len() < MAX_BATCH && self.next_due().is_some_and(|at| at <= now) {
            let Some((_, claim)) = self.due.pop_front() else { break };
            self.pending.remove(&claim);
            self.held.insert(claim);
            claims.push(claim);
        }
        claims
    }

    /// Schedules those that could not be acquired once more.
    fn reschedule(&mut self, claims: &[ClaimId], now: Instant) {
        for claim in claims {
            if self.held.remove(claim) {
                self.apply(WakeupCommand::Acquire(*claim), now);
            }
        }
    }

    /// The connection is closed, which released all wake-up locks: they are acquired again on the
    /// next one.
    fn reschedule_all(&mut self, now: Instant) {
        self.to_release.clear();
        for claim in std::mem::take(&mut self.held) {
            self.apply(WakeupCommand::Acquire(claim), now);
        }
    }
}

async fn run(pool: Arc<Pool>, clock: Clock, queue: Arc<CommandQueue>) {
    let mut connection: Option<Connection> = None;
    while let Some((to_acquire, to_release)) = queue.next_batch(&clock).await {
        if pool.is_releasing_idle() {
            // Closing it releases all wake-up locks. Until the server has connections to spare,
            // waiters poll.
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
            // Another client was probing that wake-up lock: try again a little later.
            Ok(taken) => lock(&queue.schedule).reschedule(&taken, clock.now()),
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
    /// Waits until there are wake-up locks to acquire or release. If those held have not been
    /// checked for a while, it returns with neither. `None`: shut down.
    async fn next_batch(&self, clock: &Clock) -> Option<(Vec<ClaimId>, Vec<ClaimId>)> {
        let look_at = clock.now().saturating_add(CHECK_INTERVAL);
        loop {
            let (next_wake, any) = {
                let (mut schedule, now) = (lock(&self.schedule), clock.now());
                if schedule.is_closed {
                    return None;
                }
                let (to_acquire, to_release) = (schedule.take_due(now), std::mem::take(&mut schedule.to_release));
                schedule.next_wake = schedule.next_due();
                let any = !schedule.held.is_empty();
                if !to_acquire.is_empty() || !to_release.is_empty() || any && now >= look_at {
                    return Some((to_acquire, to_release));
                }
                (schedule.next_wake, any)
            };
            tokio::select! {
                () = self.wake.notified() => {}
                () = sleep_until(clock, next_wake) => {}
                () = sleep_until(clock, any.then_some(look_at)) => {}
            }
        }
    }
}

/// Releases and acquires wake-up locks; returns those that could not be acquired. With an empty
/// list, it checks that the server still has our connection and so our wake-up locks.
async fn apply_batch(
    connection: &mut Connection,
    clock: &Clock,
    to_acquire: &[ClaimId],
    to_release: &[ClaimId],
) -> Result<Vec<ClaimId>, Failure> {
    if to_acquire.is_empty() && to_release.is_empty() {
        query(connection, clock, "SELECT 1", &[]).await?;
    }
    run_statement(connection, clock, "RELEASE_LOCK", to_release).await?;
    run_statement(connection, clock, "GET_LOCK", to_acquire).await
}

async fn query(connection: &mut Connection, clock: &Clock, sql: &str, values: &[Value]) -> Result<Reply, Failure> {
    let timed_out = || Err(Failure::ConnectionLost("the statement for the wake-up locks timed out".into()));
    clock.timeout(REPLY_TIMEOUT, connection.run(sql, values)).await.unwrap_or_else(|_| timed_out())
}

async fn sleep_until(clock: &Clock, at: Option<Instant>) {
    match at {
        Some(at) => clock.sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Runs one statement for up to [`MAX_BATCH`] of them; returns those that failed.
async fn run_statement(
    connection: &mut Connection,
    clock: &Clock,
    detail: &str,
    claims: &[ClaimId],
) -> Result<Vec<ClaimId>, Failure> {
    let mut failed = Vec::new();
    for claims in claims.chunks(MAX_BATCH) {
        let each = if detail == "GET_LOCK" { "GET_LOCK(?, 0)" } else { "RELEASE_LOCK(?)" };
        let sql = format!("SELECT {}", vec![each; claims.len()].join(", "));
        let values: Vec<Value> = claims.iter().map(|claim| Value::from(lock_name(*claim))).collect();
        let reply = query(connection, clock, &sql, &values).await?;
        let done = |index: usize| reply.row().and_then(|row| row.get(index)).and_then(Value::int) == Some(1);
        failed.extend(claims.iter().enumerate().filter(|(index, _)| !done(*index)).map(|(_, claim)| *claim));
    }
    Ok(failed)
}

/// Which claims at one lock have a wake-up lock, or will get one: it is released when they leave.
#[derive(Debug, Default)]
pub(super) struct ClaimWakeups(HashMap<ClaimId, bool>);

impl ClaimWakeups {
    /// Compares our claims at a lock, each with whether another client may wait right behind it,
    /// with the last ones. Returns the changes.
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
