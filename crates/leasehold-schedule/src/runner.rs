//! The loop of a job until it is stopped; and the same for the ticks of one call by the system's
//! cron.

use std::fmt::Display;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::execution::FinishedRun;
use super::job::{DEFAULT_GRACE, Job};
use super::run::Run;
use super::stop_handle::StopHandle;
use super::worker::{JobWorker, OnceLimits, Turn};
use crate::logic::{Overlap, Ticks, due_ticks};
use leasehold::Locks;
use leasehold::Result;

/// How early a call by the system's cron may be, by default.
pub const DEFAULT_SKEW: Duration = Duration::from_secs(300);

/// Seconds that exceed the time between any two ticks: a leap day can be eight years away.
const MAX_TICK_GAP: i64 = 9 * 366 * 86_400;

/// Runs `job` on this node until `stop` is requested: each tick runs on one of the nodes that do
/// so.
///
/// Which ticks are due follows from the job's record and the engine's clock, never from this
/// machine's clock. While the engine does not respond, no run begins. [`Job::on_event`] reports the
/// errors, and the job continues once the engine responds.
///
/// # Errors
/// `InvalidOption`; `Unsupported` if the engine keeps no records, or cannot hold several permits
/// for [`Overlap::Allow`]; `Closed`. All other errors may pass, and do not end the loop.
///
/// # Cancellation safety
/// If the future is dropped during a run, the run ends as in a crash, and the job's crash policy
/// applies. [`StopHandle`] lets the run finish.
pub async fn run_until<F, Fut, E>(locks: &Locks, job: Job, stop: &StopHandle, work: F) -> Result<()>
where
    F: Fn(Run) -> Fut,
    Fut: Future<Output = Result<(), E>>,
    E: Display,
{
    let mut worker = JobWorker::new(locks, job, stop.clone())?;
    if worker.join(|now| now).await?.is_some() {
        run_turns(&worker, &work, |_| {}).await?;
    }
    Ok(())
}

/// Runs `job` on this node like [`run_until`], but never stops.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use leasehold::Locks;
/// use leasehold_schedule::{self as schedule, Job};
///
/// let locks = Locks::open("memory:").await?;
/// let job = Job::new("messages", "* * * * * *")?;                // every second, also on eight hosts
/// let running = schedule::run(&locks, job, |run| async move {
///     println!("{} with token {}", run.tick(), run.token());      // the token fences what the run writes
///     Ok::<(), std::io::Error>(())
/// });
/// let _ = tokio::time::timeout(std::time::Duration::from_millis(50), running).await;
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
///
/// # Errors
/// As [`run_until`].
///
/// # Cancellation safety
/// As [`run_until`].
pub async fn run<F, Fut, E>(locks: &Locks, job: Job, work: F) -> Result<()>
where
    F: Fn(Run) -> Fut,
    Fut: Future<Output = Result<(), E>>,
    E: Display,
{
    run_until(locks, job, &StopHandle::new(), work).await
}

/// For processes that the system's cron starts: runs the ticks that are due and have not run, and
/// returns.
///
/// The engine's clock decides which tick the call is for:
/// - A host whose clock is fast calls before its tick. The call waits for the tick, if that is at
///   most `skew` away (by default five minutes, and at most half a period).
/// - A call of a host whose clock is slow finds that the tick has run, or runs it.
/// - If the job is new, only the latest tick is due.
/// - If the job does not set a grace, it is three quarters of a period, and at least a minute: a
///   call within that time is for that tick. Where ticks are not evenly spaced, the period is the
///   shortest time between two of those around now: the two before and the two after.
///
/// `timeout` limits how long the call waits for a run in progress elsewhere. With [`Overlap::Skip`]
/// and [`Crash::AtMostOnce`](super::Crash::AtMostOnce) the call waits for no run. A held lock is
/// then a `Timeout` only if its holder has not recorded a run within two seconds.
///
/// Returns the runs of this call; it is empty if other nodes ran the ticks.
///
/// # Errors
/// As [`run_until`]; `Timeout` after `timeout`; `Corrupt`, `Denied` and similar errors;
/// `Unavailable` if the engine does not respond for half a minute.
///
/// # Cancellation safety
/// As [`run_until`].
pub async fn run_due<F, Fut, E>(
    locks: &Locks,
    job: Job,
    skew: Option<Duration>,
    timeout: Option<Duration>,
    work: F,
) -> Result<Vec<FinishedRun>>
where
    F: Fn(Run) -> Fut,
    Fut: Future<Output = Result<(), E>>,
    E: Display,
{
    let mut worker = JobWorker::new(locks, job, StopHandle::new())?;
    worker.once = Some(OnceLimits { last_tick: i64::MIN, timeout });
    let cron = worker.job.cron.clone();
    let Some(now) = worker.join(|now| call_scope(&cron, now, skew).since).await? else { return Ok(Vec::new()) };
    let scope = call_scope(&cron, now, skew);
    worker.once = Some(OnceLimits { last_tick: scope.last_tick, timeout });
    if worker.job.grace.is_none() {
        worker.policy.grace = scope.grace;
    }
    let mut ended = Vec::new();
    run_turns(&worker, &work, |end| ended.push(end)).await?;
    Ok(ended)
}

/// The ticks that a call by the system's cron covers; all times in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CallScope {
    /// If the job is new, the ticks after this time are due.
    since: i64,
    /// The last tick that the call waits for; `i64::MIN` if it waits for none.
    last_tick: i64,
    /// How late a tick may be, if the job does not set a grace: most of a period, so that the next
    /// call can run a tick that this one missed.
    grace: i64,
}

/// The ticks that a call at the engine's time `now` covers. `skew`: how early the call may be;
/// `None` for the default.
fn call_scope(schedule: &dyn Ticks, now: i64, skew: Option<Duration>) -> CallScope {
    let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    let mut around = due_ticks(schedule, now.saturating_sub(MAX_TICK_GAP), now, 2).ticks;
    let latest = around.last().copied();
    let next = schedule.next(now);
    around.extend(next);
    around.extend(next.and_then(|next| schedule.next(next)));
    // The shortest, so that a gap on either side does not extend the grace of a tick that was
    // missed before it.
    let period = around.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap_or(i64::MAX);
    let skew = skew.map_or(seconds(DEFAULT_SKEW).min(period / 2), seconds);
    let grace = (period / 4).saturating_mul(3).max(seconds(DEFAULT_GRACE));
    match next.filter(|next| next - now <= skew) {
        // The call is early for that tick.
        Some(next) => CallScope { since: latest.unwrap_or(now), last_tick: next, grace },
        None => CallScope { since: latest.map_or(now, |tick| tick - 1), last_tick: i64::MIN, grace },
    }
}

/// Takes turns ([`JobWorker::take_turn`]) and executes the runs that they return, until none is
/// left for this worker. Calls `on_end` for each run that ends. The future of a turn is never
/// dropped: a run that it has recorded must begin.
async fn run_turns<F, Fut, E>(worker: &JobWorker, work: &F, mut on_end: impl FnMut(FinishedRun)) -> Result<()>
where
    F: Fn(Run) -> Fut,
    Fut: Future<Output = Result<(), E>>,
    E: Display,
{
    let allows_concurrent_runs = matches!(worker.policy.overlap, Overlap::Allow { .. });
    let mut runs = FuturesUnordered::new();
    let mut failures = 0;
    loop {
        match await_beside_runs(worker.take_turn(), &mut runs, &mut on_end).await {
            Ok(Turn::Run(guard, entry)) => {
                failures = 0;
                runs.push(worker.execute(guard, entry, work));
                while !allows_concurrent_runs && let Some(end) = runs.next().await {
                    on_end(end);
                }
            }
            Ok(Turn::Repeat) => failures = 0,
            Ok(Turn::Finished) => break,
            Err(error) => {
                if let Err(error) =
                    await_beside_runs(worker.pause_after_error(error, &mut failures), &mut runs, &mut on_end).await
                {
                    finish_runs(runs, on_end).await;
                    return Err(error);
                }
            }
        }
    }
    finish_runs(runs, on_end).await;
    Ok(())
}

/// Awaits `task` while the runs in progress continue; calls `on_end` for each run that ends.
async fn await_beside_runs<T, R: Future<Output = FinishedRun>>(
    task: impl Future<Output = T>,
    runs: &mut FuturesUnordered<R>,
    on_end: &mut impl FnMut(FinishedRun),
) -> T {
    let mut task = std::pin::pin!(task);
    loop {
        tokio::select! {
            output = &mut task => return output,
            Some(end) = runs.next(), if !runs.is_empty() => on_end(end),
        }
    }
}

async fn finish_runs<R: Future<Output = FinishedRun>>(
    mut runs: FuturesUnordered<R>,
    mut on_end: impl FnMut(FinishedRun),
) {
    while let Some(end) = runs.next().await {
        on_end(end);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::logic::ticks::tests::Every;
    use crate::logic::{Action, DecisionInput, JobRecord, Policy, TickOutcome, decide};
    use crate::{Cron, Tick};

    proptest! {
        /// A host that calls once a period calls for each tick once, if its clock is fast by at
        /// most the skew, or slow by at most the grace. Up to periods of ten minutes, that is any
        /// clock.
        #[test]
        fn calls_one_period_apart_run_one_tick_each(period in 4i64..100_000, offset in 0i64..100_000, calls in 2usize..20) {
            let (early, late) = ((period / 2).min(300), period / 4 * 3);
            let offset = offset % (early + late.min(period - early)) - early;
            let begin = 1_800_000_000 / period * period + offset;
            let mut watermark = None;
            let mut run = Vec::new();
            for call in 0..i64::try_from(calls).unwrap() {
                let now = begin + call * period;
                let scope = call_scope(&Every(period), now, None);
                let floor = *watermark.get_or_insert(scope.since);
                // The ticks that are due now, and those that the call waits for.
                for tick in (floor / period + 1..=now.max(scope.last_tick) / period).map(|n| n * period) {
                    prop_assert!(tick >= now || now - tick <= scope.grace, "{tick} would be missed at {now}");
                    prop_assert!(tick - now <= period / 2, "{tick} is too far ahead to wait for at {now}");
                    run.push(tick);
                    watermark = Some(tick);
                }
            }
            prop_assert_eq!(run.len(), calls);
            prop_assert!(run.windows(2).all(|pair| pair[1] - pair[0] == period), "{:?}", run);
        }
    }

    proptest! {
        /// For all gaps: of the ticks that came due, only the latest is in time, unless they are
        /// less than a minute apart.
        #[test]
        fn no_tick_before_the_latest_is_in_time(gaps in prop::collection::vec(61i64..400_000, 4..12), into in 0.0f64..1.0) {
            let mut ticks = vec![1_800_000_000];
            for gap in &gaps {
                ticks.push(ticks[ticks.len() - 1] + gap);
            }
            let now = ticks[1] + ((ticks[ticks.len() - 2] - ticks[1]) as f64 * into) as i64;
            let before = ticks.iter().filter(|tick| **tick <= now).rev().nth(1).copied().unwrap();
            let scope = call_scope(&FixedTicks(ticks), now, None);
            prop_assert!(now - before > scope.grace, "{before} is in time at {now}: {scope:?}");
        }
    }

    /// A fixed list of ticks.
    struct FixedTicks(Vec<i64>);

    impl Ticks for FixedTicks {
        fn next(&self, after: i64) -> Option<i64> {
            self.0.iter().copied().find(|tick| *tick > after)
        }
    }

    /// The ticks that a call at this time runs, for a job whose ticks ran up to `watermark`.
    fn ticks_run_at(expression: &str, watermark: &str, now: &str) -> Vec<String> {
        let cron = Cron::parse(expression).unwrap();
        let unix = |text: &str| Tick::parse(text).unwrap().unix();
        let now = unix(now);
        let grace = call_scope(&cron, now, None).grace;
        let policy = Policy { grace, ..Job::new("job", expression).unwrap().policy() };
        let (schedule, millis) = ((expression, "UTC"), u64::try_from(now).unwrap() * 1000);
        let mut state = JobRecord::new(expression, "UTC", unix(watermark));
        let mut run = Vec::new();
        for token in 1.. {
            let input = DecisionInput {
                schedule,
                ticks: &cron,
                policy: &policy,
                since: 0,
                seen: None,
                server_run: None,
                now: millis,
                token,
                node: "n",
                concurrent_tokens: &[],
            };
            let decision = decide(Some(&state), &input);
            let Action::Start(begun) = decision.action else { break };
            run.push(Tick::from_unix(begun.tick).to_string());
            state = decision.state.with_run_ended(token, TickOutcome::Done, "", millis).unwrap();
        }
        run
    }

    /// Nights, weekends and holidays are gaps: a tick that was missed before a gap stays missed.
    #[test]
    fn a_gap_ahead_makes_no_missed_tick_due() {
        // 2026-11-19 is a Thursday; no node ran on Wednesday.
        let weekdays = "0 9 * * MON-FRI";
        assert_eq!(ticks_run_at(weekdays, "2026-11-17T09:00:00Z", "2026-11-19T09:00:05Z"), ["2026-11-19T09:00:00Z"]);
        assert_eq!(ticks_run_at(weekdays, "2026-11-17T09:00:00Z", "2026-11-19T08:00:00Z"), [""; 0], "23 hours late");
        assert_eq!(ticks_run_at(weekdays, "2026-11-18T09:00:00Z", "2026-11-20T20:00:00Z"), ["2026-11-20T09:00:00Z"]);
        // On Monday, Friday's tick is no longer due.
        assert_eq!(ticks_run_at(weekdays, "2026-11-19T09:00:00Z", "2026-11-23T09:00:05Z"), ["2026-11-23T09:00:00Z"]);
        // The last but one of the day, after an outage since noon.
        let by_day = "*/5 9-17 * * *";
        assert_eq!(ticks_run_at(by_day, "2026-11-19T12:00:00Z", "2026-11-19T17:50:02Z"), ["2026-11-19T17:50:00Z"]);
        assert_eq!(ticks_run_at(by_day, "2026-11-19T12:00:00Z", "2026-11-19T17:55:02Z"), ["2026-11-19T17:55:00Z"]);
        assert_eq!(ticks_run_at(by_day, "2026-11-19T12:00:00Z", "2026-11-20T09:00:02Z"), ["2026-11-20T09:00:00Z"]);
        // Two close together, and a gap after them.
        assert_eq!(
            ticks_run_at("0 9,10,23 * * *", "2026-11-18T23:00:00Z", "2026-11-19T10:30:00Z"),
            ["2026-11-19T10:00:00Z"]
        );
    }

    #[test]
    fn an_explicit_skew_is_used() {
        let hourly = Every(3600);
        assert_eq!(call_scope(&hourly, 3600 * 9 - 400, None).last_tick, i64::MIN, "five minutes");
        assert_eq!(call_scope(&hourly, 3600 * 9 - 300, None).last_tick, 3600 * 9);
        assert_eq!(call_scope(&hourly, 3600 * 9 - 400, Some(Duration::from_secs(900))).last_tick, 3600 * 9);
        assert_eq!(call_scope(&Every(60), 600 - 31, None).last_tick, i64::MIN, "half a period");
    }
}
