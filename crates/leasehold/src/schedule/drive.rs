//! Turn after turn, until told to stop; and the same for the ticks that one call of the system's cron is for.

use std::fmt::Display;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::job::{DEFAULT_GRACE, Job};
use super::perform::Ended;
use super::run::Run;
use super::stop::Stop;
use super::worker::{Once, Turn, Worker};
use crate::error::Result;
use crate::locks::Locks;
use crate::logic::schedule::{Overlap, Ticks, due};

/// How early a call of the system's cron may be at most, if nothing else is said.
pub const DEFAULT_SKEW: Duration = Duration::from_secs(300);

/// Longer than any two ticks are apart: a leap day can be eight years away.
const AGES: i64 = 9 * 366 * 86_400;

/// Takes part in running `job` until `stop` says so: each of its ticks is run on one of the nodes that do.
///
/// What is due is read from the job's record and the engine's clock, never from this machine's. While the engine does not
/// answer, nothing is begun; the errors are told to [`Job::on_event`], and it goes on when the engine does.
///
/// # Errors
/// `InvalidOption`; `Unsupported` if the engine keeps no records, or cannot hold several permits for [`Overlap::Allow`]; `Closed`. All
/// others may pass, and do not end it.
///
/// # Cancellation safety
/// Dropped in mid-run, the run ends as in a crash, and the job's crash policy says what becomes of it. [`Stop`] lets it finish.
pub async fn run_until<F, Fut, E>(locks: &Locks, job: Job, stop: &Stop, work: F) -> Result<()>
where
    F: Fn(Run) -> Fut,
    Fut: Future<Output = Result<(), E>>,
    E: Display,
{
    let mut worker = Worker::new(locks, job, stop.clone())?;
    if worker.join(|now| now).await?.is_some() {
        drive(&worker, &work, |_| {}).await?;
    }
    Ok(())
}

/// As [`run_until`], for ever.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use leasehold::{Locks, schedule::{self, Job}};
///
/// let locks = Locks::open("memory:").await?;
/// let job = Job::new("messages", "* * * * * *")?;                // every second; on eight hosts still once a second
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
    run_until(locks, job, &Stop::new(), work).await
}

/// For whoever was started by the system's cron: runs what is due and nobody has run, and ends.
///
/// Which tick this is about is decided on the engine's clock. A host whose clock is fast comes before its tick: it waits for it,
/// if that is no further away than `skew` (five minutes and half a period at most, if not said). A host whose clock is slow finds
/// that the tick has run, or runs it. Of a job that is new only the latest tick is due. The grace is three quarters of a period, and
/// at least a minute, if the job does not say: whoever is started in that time is started for that tick. Where ticks do not follow each other
/// evenly, the period is the shortest time between two of those around now: the two before and the two after.
/// `wait` bounds the waiting for a run elsewhere that goes on; with [`Overlap::Skip`] and [`Crash::AtMostOnce`](super::Crash::AtMostOnce) none is waited for,
/// and a lock that is held is a `Timeout` only if its holder has not entered a run within two seconds.
///
/// Answers what was run here: nothing, if others have.
///
/// # Errors
/// As [`run_until`]; `Timeout` after `wait`; `Corrupt`, `Denied` and the like; `Unavailable` if the engine does not answer for half a
/// minute.
///
/// # Cancellation safety
/// As [`run_until`].
pub async fn once<F, Fut, E>(
    locks: &Locks,
    job: Job,
    skew: Option<Duration>,
    wait: Option<Duration>,
    work: F,
) -> Result<Vec<Ended>>
where
    F: Fn(Run) -> Fut,
    Fut: Future<Output = Result<(), E>>,
    E: Display,
{
    let mut worker = Worker::new(locks, job, Stop::new())?;
    worker.once = Some(Once { last: i64::MIN, wait });
    let cron = worker.job.cron.clone();
    let Some(now) = worker.join(|now| aim(&cron, now, skew).since).await? else { return Ok(Vec::new()) };
    let aim = aim(&cron, now, skew);
    worker.once = Some(Once { last: aim.last, wait });
    if worker.job.grace.is_none() {
        worker.policy.grace = aim.grace;
    }
    let mut ended = Vec::new();
    drive(&worker, &work, |end| ended.push(end)).await?;
    Ok(ended)
}

/// What a call of the system's cron is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Aim {
    /// Of a new job the ticks after this are due.
    since: i64,
    /// The last tick that is waited for.
    last: i64,
    /// How late a tick may be, if the job does not say: most of a period, so that the next call does what this one should have done.
    grace: i64,
}

fn aim(timetable: &dyn Ticks, now: i64, skew: Option<Duration>) -> Aim {
    let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    let mut around = due(timetable, now.saturating_sub(AGES), now, 2).ticks;
    let latest = around.last().copied();
    let next = timetable.next(now);
    around.extend(next);
    around.extend(next.and_then(|next| timetable.next(next)));
    // The shortest, so that a gap on either side lends nothing to a tick that nobody ran before it.
    let period = around.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap_or(i64::MAX);
    let skew = skew.map_or(seconds(DEFAULT_SKEW).min(period / 2), seconds);
    let grace = (period / 4).saturating_mul(3).max(seconds(DEFAULT_GRACE));
    match next.filter(|next| next - now <= skew) {
        // We come early for that one.
        Some(next) => Aim { since: latest.unwrap_or(now), last: next, grace },
        None => Aim { since: latest.map_or(now, |tick| tick - 1), last: i64::MIN, grace },
    }
}

/// Turn after turn. A turn is never dropped: what it has entered must be run.
async fn drive<F, Fut, E>(worker: &Worker, work: &F, mut told: impl FnMut(Ended)) -> Result<()>
where
    F: Fn(Run) -> Fut,
    Fut: Future<Output = Result<(), E>>,
    E: Display,
{
    let beside = matches!(worker.policy.overlap, Overlap::Allow { .. });
    let mut runs = FuturesUnordered::new();
    let mut failures = 0;
    loop {
        match beside_runs(worker.turn(), &mut runs, &mut told).await {
            Ok(Turn::Run(guard, entry)) => {
                failures = 0;
                runs.push(worker.perform(guard, entry, work));
                while !beside && let Some(end) = runs.next().await {
                    told(end);
                }
            }
            Ok(Turn::Again) => failures = 0,
            Ok(Turn::Over) => break,
            Err(error) => {
                if let Err(error) = beside_runs(worker.after(error, &mut failures), &mut runs, &mut told).await {
                    finish(runs, told).await;
                    return Err(error);
                }
            }
        }
    }
    finish(runs, told).await;
    Ok(())
}

/// Awaits `task`, and has what runs go on meanwhile.
async fn beside_runs<T, R: Future<Output = Ended>>(
    task: impl Future<Output = T>,
    runs: &mut FuturesUnordered<R>,
    told: &mut impl FnMut(Ended),
) -> T {
    let mut task = std::pin::pin!(task);
    loop {
        tokio::select! {
            came_to = &mut task => return came_to,
            Some(end) = runs.next(), if !runs.is_empty() => told(end),
        }
    }
}

async fn finish<R: Future<Output = Ended>>(mut runs: FuturesUnordered<R>, mut told: impl FnMut(Ended)) {
    while let Some(end) = runs.next().await {
        told(end);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::logic::schedule::ticks::tests::Every;
    use crate::logic::schedule::{Action, Outcome, Policy, Scene, State, decide};
    use crate::schedule::{Cron, Tick};

    proptest! {
        /// A host that is started once a period is started for each tick once, if its clock is fast by no more than the skew, or slow
        /// by no more than the grace. Up to periods of ten minutes that is any clock.
        #[test]
        fn calls_a_period_apart_are_for_one_tick_each(period in 4i64..100_000, offset in 0i64..100_000, calls in 2usize..20) {
            let (early, late) = ((period / 2).min(300), period / 4 * 3);
            let offset = offset % (early + late.min(period - early)) - early;
            let begin = 1_800_000_000 / period * period + offset;
            let mut watermark = None;
            let mut run = Vec::new();
            for call in 0..i64::try_from(calls).unwrap() {
                let now = begin + call * period;
                let aim = aim(&Every(period), now, None);
                let floor = *watermark.get_or_insert(aim.since);
                // What is due now, and what it waits for.
                for tick in (floor / period + 1..=now.max(aim.last) / period).map(|n| n * period) {
                    prop_assert!(tick >= now || now - tick <= aim.grace, "{tick} would be missed at {now}");
                    prop_assert!(tick - now <= period / 2, "{tick} is not worth waiting for at {now}");
                    run.push(tick);
                    watermark = Some(tick);
                }
            }
            prop_assert_eq!(run.len(), calls);
            prop_assert!(run.windows(2).all(|pair| pair[1] - pair[0] == period), "{:?}", run);
        }
    }

    proptest! {
        /// Whatever the gaps are: of the ticks that came due only the latest is in time, unless they are less than a minute apart.
        #[test]
        fn no_tick_before_the_latest_is_in_time(gaps in prop::collection::vec(61i64..400_000, 4..12), into in 0.0f64..1.0) {
            let mut ticks = vec![1_800_000_000];
            for gap in &gaps {
                ticks.push(ticks[ticks.len() - 1] + gap);
            }
            let now = ticks[1] + ((ticks[ticks.len() - 2] - ticks[1]) as f64 * into) as i64;
            let before = ticks.iter().filter(|tick| **tick <= now).rev().nth(1).copied().unwrap();
            let aim = aim(&Listed(ticks), now, None);
            prop_assert!(now - before > aim.grace, "{before} is in time at {now}: {aim:?}");
        }
    }

    /// These, and no others.
    struct Listed(Vec<i64>);

    impl Ticks for Listed {
        fn next(&self, after: i64) -> Option<i64> {
            self.0.iter().copied().find(|tick| *tick > after)
        }
    }

    /// What a call at this time runs of a job whose ticks were run up to `watermark`.
    fn run_at(expression: &str, watermark: &str, now: &str) -> Vec<String> {
        let cron = Cron::parse(expression).unwrap();
        let unix = |text: &str| Tick::parse(text).unwrap().unix();
        let now = unix(now);
        let grace = aim(&cron, now, None).grace;
        let policy = Policy { grace, ..Job::new("job", expression).unwrap().policy() };
        let (schedule, millis) = ((expression, "UTC"), u64::try_from(now).unwrap() * 1000);
        let mut state = State::new(expression, "UTC", unix(watermark));
        let mut run = Vec::new();
        for token in 1.. {
            let scene = Scene {
                schedule,
                timetable: &cron,
                policy: &policy,
                since: 0,
                seen: None,
                run: None,
                now: millis,
                token,
                node: "n",
                beside: &[],
            };
            let decision = decide(Some(&state), &scene);
            let Action::Start(begun) = decision.action else { break };
            run.push(Tick::from_unix(begun.tick).to_string());
            state = decision.state.finished(token, Outcome::Done, "", millis).unwrap();
        }
        run
    }

    /// The night, the weekend and the holidays are gaps: what was missed before one of them stays missed.
    #[test]
    fn a_gap_ahead_makes_no_missed_tick_due() {
        // 2026-11-19 is a Thursday; nobody ran on Wednesday.
        let weekdays = "0 9 * * MON-FRI";
        assert_eq!(run_at(weekdays, "2026-11-17T09:00:00Z", "2026-11-19T09:00:05Z"), ["2026-11-19T09:00:00Z"]);
        assert_eq!(run_at(weekdays, "2026-11-17T09:00:00Z", "2026-11-19T08:00:00Z"), [""; 0], "23 hours late");
        assert_eq!(run_at(weekdays, "2026-11-18T09:00:00Z", "2026-11-20T20:00:00Z"), ["2026-11-20T09:00:00Z"]);
        // And on Monday nothing is left of Friday.
        assert_eq!(run_at(weekdays, "2026-11-19T09:00:00Z", "2026-11-23T09:00:05Z"), ["2026-11-23T09:00:00Z"]);
        // The last but one of the day, after an outage since noon.
        let by_day = "*/5 9-17 * * *";
        assert_eq!(run_at(by_day, "2026-11-19T12:00:00Z", "2026-11-19T17:50:02Z"), ["2026-11-19T17:50:00Z"]);
        assert_eq!(run_at(by_day, "2026-11-19T12:00:00Z", "2026-11-19T17:55:02Z"), ["2026-11-19T17:55:00Z"]);
        assert_eq!(run_at(by_day, "2026-11-19T12:00:00Z", "2026-11-20T09:00:02Z"), ["2026-11-20T09:00:00Z"]);
        // Two close together, and a gap after them.
        assert_eq!(run_at("0 9,10,23 * * *", "2026-11-18T23:00:00Z", "2026-11-19T10:30:00Z"), ["2026-11-19T10:00:00Z"]);
    }

    #[test]
    fn a_skew_that_is_given_is_taken() {
        let hourly = Every(3600);
        assert_eq!(aim(&hourly, 3600 * 9 - 400, None).last, i64::MIN, "five minutes");
        assert_eq!(aim(&hourly, 3600 * 9 - 300, None).last, 3600 * 9);
        assert_eq!(aim(&hourly, 3600 * 9 - 400, Some(Duration::from_secs(900))).last, 3600 * 9);
        assert_eq!(aim(&Every(60), 600 - 31, None).last, i64::MIN, "half a period");
    }
}
