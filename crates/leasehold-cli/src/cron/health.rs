//! Checks whether hosts run a job as its schedule requires.

use leasehold::schedule::{Cron, Jobs, PREFIX, Status, Tick};
use leasehold::{Error, Locks, Token};

/// A tick that no host decides about within this many seconds is overdue.
const LATE: i64 = 60;

/// The problems of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Health {
    /// The first tick that no host decided about in time.
    pub(super) overdue: Option<Tick>,
    /// The tokens of runs whose hosts died, and that no other host has detected yet.
    pub(super) dead: Vec<u64>,
}

impl Health {
    /// Checks with the engine whether the hosts of a job's runs still hold its lock.
    pub(super) async fn of(locks: &Locks, jobs: &Jobs, status: &Status) -> Result<Self, Error> {
        if status.running.is_empty() || !locks.capabilities().inspection {
            return Ok(Self::new(status, &[]));
        }
        let view = locks.inspect(format!("{PREFIX}{}", status.name)).await?;
        let is_held = |token: u64| view.holders.iter().any(|holder| holder.token == Some(Token(token)));
        let mut dead: Vec<u64> = status.running.iter().map(|run| run.token).filter(|token| !is_held(*token)).collect();
        if !dead.is_empty() {
            // A run that ended meanwhile is recorded before its lock is released, so the record
            // shows it.
            let again = jobs.status(&status.name).await?;
            dead.retain(|token| again.iter().flat_map(|status| &status.running).any(|run| run.token == *token));
        }
        Ok(Self::new(status, &dead))
    }

    fn new(status: &Status, dead: &[u64]) -> Self {
        let cron = Cron::parse(&status.schedule).and_then(|cron| cron.in_zone(&status.zone)).ok();
        let first = cron.and_then(|cron| cron.next_after(status.decided));
        // Ticks that fall into a run are decided when it ends.
        let rests = status.paused.is_some() || status.running.len() > dead.len();
        let late = |tick: &Tick| !rests && tick.unix() < status.now.unix().saturating_sub(LATE);
        Self { overdue: first.filter(late), dead: dead.to_vec() }
    }

    /// The problems in words; empty if there are none.
    pub(super) fn problems(&self, status: &Status) -> Vec<String> {
        let mut problems = Vec::new();
        if let Some(tick) = self.overdue {
            problems.push(format!("OVERDUE since {tick}: no host has decided about that tick"));
        }
        for token in &self.dead {
            problems.push(format!("DEAD: the host of the run with token {token} is gone, and no other has taken over"));
        }
        if let Some(ahead) = status.ahead {
            problems.push(format!("the engine's clock is {ahead} s behind the last tick: `leasehold cron reset`"));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::schedule::{self, Job, Running, Stop};

    /// A known job whose last decided tick lies this far behind the engine's clock.
    async fn late_by(seconds: i64) -> Status {
        let locks = Locks::open("memory:").await.unwrap();
        let stop = Stop::new();
        let job = Job::new("a", "@every 5m").unwrap();
        let stops = stop.clone();
        let job = job.on_event(move |_, _| stops.stop());
        let work = |_: schedule::Run| async { Ok::<(), std::io::Error>(()) };
        schedule::run_until(&locks, job, &stop, work).await.unwrap();
        let mut status = Jobs::of(&locks).unwrap().status("a").await.unwrap().unwrap();
        let cron = Cron::parse(&status.schedule).unwrap();
        let first = cron.next_after(status.decided).unwrap();
        status.now = Tick::from_unix(first.unix() + seconds);
        status
    }

    fn run() -> Running {
        Running { tick: 0, token: 7, node: "h:1".into(), started: 0, attempt: 1, manual: false }
    }

    #[tokio::test]
    async fn a_tick_is_overdue_after_a_minute_unless_the_job_runs_or_rests() {
        assert_eq!(Health::new(&late_by(60).await, &[]).overdue, None);
        let mut status = late_by(61).await;
        let health = Health::new(&status, &[]);
        assert!(health.overdue.is_some());
        assert!(health.problems(&status)[0].starts_with("OVERDUE since "));
        status.running.push(run());
        assert_eq!(Health::new(&status, &[]).overdue, None, "ticks during a run are decided at its end");
        assert!(Health::new(&status, &[7]).overdue.is_some(), "but its host is gone");
        status.running.clear();
        status.paused = Some(leasehold::schedule::Wanted { at: 0, by: "me".into() });
        assert_eq!(Health::new(&status, &[]).overdue, None);
    }
}
