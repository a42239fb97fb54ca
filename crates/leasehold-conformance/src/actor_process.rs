//! Controls another process from a test.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use leasehold_testbed::Actor;

use crate::protocol::{ActorCommand, ActorReport, LockRequest};
use crate::test_context::TEST_TIMEOUT;

/// A process that acquires locks on command.
#[derive(Debug)]
pub struct ActorProcess {
    actor: Actor,
    /// Reports that no call has consumed yet.
    pending_reports: VecDeque<ActorReport>,
}

impl ActorProcess {
    /// Starts the program `exe` and makes it open the engine at `url`, with this TTL for its locks.
    pub async fn open(exe: &Path, url: &str, ttl: Duration) -> Self {
        Self::open_with(exe, &[], url, ttl).await
    }

    /// Like [`open`](Self::open), with the variables `env` added to the process's environment.
    pub async fn open_with(exe: &Path, env: &[(&str, &str)], url: &str, ttl: Duration) -> Self {
        let actor = Actor::spawn(exe, &[], env).unwrap_or_else(|error| panic!("{error}"));
        let mut process = Self { actor, pending_reports: VecDeque::new() };
        let ttl_ms = u64::try_from(ttl.as_millis()).expect("a TTL in range");
        process.send(&ActorCommand::Open { url: url.to_owned(), ttl_ms }).await;
        process
            .wait_for_report("the engine to be open", |report| {
                matches!(report, ActorReport::Opened { .. }).then_some(())
            })
            .await;
        process
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.actor.pid()
    }

    /// The process, to kill, stop or resume it.
    pub fn process(&mut self) -> &mut Actor {
        &mut self.actor
    }

    /// Sends a command.
    pub async fn send(&mut self, command: &ActorCommand) {
        let line = serde_json::to_value(command).expect("a command is JSON");
        self.actor.send(&line).await.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Waits for the first unread report for which `pick` returns a value, and returns that;
    /// `expected` names it in the error of a timeout.
    pub async fn wait_for_report<T>(&mut self, expected: &str, pick: impl Fn(&ActorReport) -> Option<T>) -> T {
        if let Some(at) = self.pending_reports.iter().position(|report| pick(report).is_some()) {
            let report = self.pending_reports.remove(at).expect("a found report");
            return pick(&report).expect("an accepted report");
        }
        loop {
            let line =
                self.actor.recv(TEST_TIMEOUT).await.unwrap_or_else(|error| panic!("waiting for {expected}: {error}"));
            let report: ActorReport = serde_json::from_value(line).expect("an actor's report");
            match pick(&report) {
                Some(found) => return found,
                None => self.pending_reports.push_back(report),
            }
        }
    }

    /// Makes the process acquire a lock, waiting for it. Returns the token and the time of the
    /// grant in nanoseconds of the machine's clock.
    pub async fn acquire(&mut self, request: LockRequest) -> (u64, u64) {
        let guard = request.guard.clone();
        self.send(&ActorCommand::Lock(request)).await;
        self.wait_granted(&guard).await
    }

    /// Waits until the process has acquired the lock of this guard. Returns the token and the time
    /// of the grant in nanoseconds of the machine's clock.
    pub async fn wait_granted(&mut self, guard_name: &str) -> (u64, u64) {
        let answer = self.wait_for_report(guard_name, |report| match report {
            ActorReport::Granted { guard, token, at } if guard == guard_name => Some(Ok((*token, *at))),
            ActorReport::Failed { guard, message, .. } if guard == guard_name => Some(Err(message.clone())),
            ActorReport::Busy { guard } if guard == guard_name => Some(Err("the lock is busy".to_owned())),
            _ => None,
        });
        answer.await.unwrap_or_else(|message| panic!("{guard_name} was not granted: {message}"))
    }

    /// Whether the process considers a guard held, and when it checked, in nanoseconds of the
    /// machine's clock.
    pub async fn query_held(&mut self, guard_name: &str) -> (bool, u64) {
        self.send(&ActorCommand::Held { guard: guard_name.to_owned() }).await;
        self.wait_for_report("whether it is held", |report| match report {
            ActorReport::Held { guard, held, at, .. } if guard == guard_name => Some((*held, *at)),
            _ => None,
        })
        .await
    }

    /// Makes the process release a guard. Returns `released`, or the reason for which it was lost
    /// before.
    pub async fn release(&mut self, guard_name: &str) -> String {
        self.send(&ActorCommand::Release { guard: guard_name.to_owned() }).await;
        self.wait_for_report("a release", |report| match report {
            ActorReport::Released { guard, outcome } if guard == guard_name => Some(outcome.clone()),
            ActorReport::Failed { guard, message, .. } if guard == guard_name => Some(message.clone()),
            _ => None,
        })
        .await
    }

    /// Waits for an unsolicited report that a guard is lost, and returns the reason.
    pub async fn wait_lost(&mut self, guard_name: &str) -> String {
        self.wait_for_report("the loss", |report| match report {
            ActorReport::Lost { guard, reason, .. } if guard == guard_name => Some(reason.clone()),
            _ => None,
        })
        .await
    }

    /// Makes the process write to a register, with its guard's token if `fenced`. Returns whether
    /// the write was accepted.
    pub async fn write(&mut self, guard_name: &str, register: &Path, value: u64, fenced: bool) -> bool {
        let (guard, register) = (guard_name.to_owned(), register.to_owned());
        self.send(&ActorCommand::Write { guard, register, value, fenced }).await;
        self.wait_for_report("a write", |report| match report {
            ActorReport::Written { guard, accepted } if guard == guard_name => Some(*accepted),
            _ => None,
        })
        .await
    }

    /// The process's wall clock in milliseconds since 1970.
    pub async fn wall_clock_ms(&mut self) -> u64 {
        self.send(&ActorCommand::WallClock).await;
        self.wait_for_report("its wall clock", |report| {
            if let ActorReport::WallClock { ms } = report { Some(*ms) } else { None }
        })
        .await
    }

    /// Makes the process write a record that has `expected_version`. Returns the new version and
    /// the engine's time since 1970.
    pub async fn write_record(&mut self, name: &str, expected_version: u64, value: &str) -> (u64, Duration) {
        self.send(&ActorCommand::Record { name: name.to_owned(), expected_version, value: value.to_owned() }).await;
        let answer = self.wait_for_report("a record", |report| match report {
            ActorReport::Recorded { version, now_us } => Some(Ok((*version, Duration::from_micros(*now_us)))),
            ActorReport::Failed { message, .. } => Some(Err(message.clone())),
            _ => None,
        });
        answer.await.unwrap_or_else(|message| panic!("{name} was not written: {message}"))
    }

    /// Waits until the process has finished [`ActorCommand::Contend`]. Returns how often another
    /// visitor was inside at the same time, and its tokens in the order of the grants.
    pub async fn wait_contention_result(&mut self) -> (u32, Vec<u64>) {
        self.wait_for_report("the end of the contention run", |report| match report {
            ActorReport::ContentionResult { overlaps, tokens } => Some(Ok((*overlaps, tokens.clone()))),
            ActorReport::Failed { message, .. } => Some(Err(message.clone())),
            _ => None,
        })
        .await
        .unwrap_or_else(|message| panic!("the contention run failed: {message}"))
    }
}
