//! Checks whether hosts run a job as its schedule requires.

use leasehold::{Error, Locks, Token};
use leasehold_schedule::{Cron, JobStatus, Jobs, PREFIX, Tick};

/// A tick is overdue if no host has run or skipped it this many seconds after it was due.
const OVERDUE_AFTER_SECONDS: i64 = 60;

/// The problems of a job that `cron status --check` reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct JobHealth {
    /// The first tick that no host ran or skipped in time; `None` if none is overdue.
    pub(super) overdue_tick: Option<Tick>,
    /// The tokens of runs whose hosts died, if no other host has detected that yet.
    pub(super) dead_tokens: Vec<u64>,
}

impl JobHealth {
    /// Finds the problems of a job. Asks the engine whether the hosts of its runs still hold its
    /// lock.
    pub(super) async fn check(locks: &Locks, jobs: &Jobs, status: &JobStatus) -> Result<Self, Error> {
        if status.running.is_empty() || !locks.capabilities().inspection {
            return Ok(Self::new(status, &[]));
        }
        let view = locks.inspect(format!("{PREFIX}{}", status.name)).await?;
        let is_held = |token: u64| view.holders.iter().any(|holder| holder.token == Some(Token(token)));
        let mut dead: Vec<u64> = status.running.iter().map(|run| run.token).filter(|token| !is_held(*token)).collect();
        if !dead.is_empty() {
            // The end of a run is recorded before its lock is released: the new record no longer
            // has the runs that ended meanwhile.
            let latest = jobs.status(&status.name).await?;
            dead.retain(|token| latest.iter().flat_map(|status| &status.running).any(|run| run.token == *token));
        }
        Ok(Self::new(status, &dead))
    }

    /// The health of a job, of whose runs those with the tokens `dead` have lost their hosts.
    fn new(status: &JobStatus, dead: &[u64]) -> Self {
        let cron = Cron::parse(&status.schedule).and_then(|cron| cron.in_zone(&status.zone)).ok();
        let first = cron.and_then(|cron| cron.next_after(status.decided));
        // Ticks that come due during a run are run or skipped when it ends.
        let is_exempt = status.paused.is_some() || status.running.len() > dead.len();
        let is_late = |tick: &Tick| !is_exempt && tick.unix() < status.now.unix().saturating_sub(OVERDUE_AFTER_SECONDS);
        Self { overdue_tick: first.filter(is_late), dead_tokens: dead.to_vec() }
    }

    /// One line for each problem; empty if there are none.
    pub(super) fn problems(&self, status: &JobStatus) -> Vec<String> {
        let mut problems = Vec::new();
        if let Some(tick) = self.overdue_tick {
            problems.push(format!("OVERDUE since {tick}: no host has run or skipped that tick"));
        }
        for token in &self.dead_tokens {
            problems.push(format!("DEAD: the host of the run with token {token} is gone, and no other has taken over"));
        }
        if let Some(seconds) = status.clock_behind_by {
            problems.push(format!("the engine's clock is {seconds} s behind the last tick: `leasehold cron reset`"));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_schedule::{self as schedule, ActiveRun, Job, StopHandle};

    /// The status of a job whose first undecided tick was due this many seconds ago.
    async fn status_with_delay(seconds: i64) -> JobStatus {
        let locks = Locks::open("memory:").await.unwrap();
        let stop = StopHandle::new();
        let job = Job::new("a", "@every 5m").unwrap();
        let stops = stop.clone();
        let job = job.on_event(move |_, _| stops.stop());
        let work = |_: schedule::Run| async { Ok::<(), std::io::Error>(()) };
        schedule::run_until(&locks, job, &stop, work).await.unwrap();
        let mut status = Jobs::new(&locks).unwrap().status("a").await.unwrap().unwrap();
        let cron = Cron::parse(&status.schedule).unwrap();
        let first = cron.next_after(status.decided).unwrap();
        status.now = Tick::from_unix(first.unix() + seconds);
        status
    }

    fn active_run() -> ActiveRun {
        ActiveRun { tick: 0, token: 7, node: "h:1".into(), started: 0, attempt: 1, manual: false }
    }

    #[tokio::test]
    async fn a_tick_is_overdue_after_a_minute_unless_the_job_runs_or_is_paused() {
        assert_eq!(JobHealth::new(&status_with_delay(60).await, &[]).overdue_tick, None);
        let mut status = status_with_delay(61).await;
        let health = JobHealth::new(&status, &[]);
        assert!(health.overdue_tick.is_some());
        assert!(health.problems(&status)[0].starts_with("OVERDUE since "));
        status.running.push(active_run());
        assert_eq!(JobHealth::new(&status, &[]).overdue_tick, None, "ticks during a run are decided at its end");
        assert!(JobHealth::new(&status, &[7]).overdue_tick.is_some(), "its host has died");
        status.running.clear();
        status.paused = Some(leasehold_schedule::OperatorRequest { at: 0, by: "me".into() });
        assert_eq!(JobHealth::new(&status, &[]).overdue_tick, None);
    }
}
