//! While the command runs: forwards signals, waits for its end, and ends it in time if its lock is
//! in danger.

use std::time::Duration;

use leasehold::clock::{Clock, Moment};
use leasehold::{Guard, LostReason};
use rustix::process::Signal;

use super::child::{Change, Child, Status};
use super::group;
use super::lost::{Due, Lease, OnLost, Schedule};
use super::plan::Plan;
use super::report::Report;
use super::signals::{self, Signals};
use super::terminal::Terminal;
use super::warden::Warden;

/// How long to wait for a killed group to disappear before we go on without it.
const DYING: Duration = Duration::from_secs(5);
/// How often to check whether a group is gone; the kernel sends no notification.
const LOOK_FOR_GONE: Duration = Duration::from_millis(5);

/// Supervises one command.
pub(super) struct Supervisor<'a> {
    pub(super) plan: &'a Plan,
    /// The engine's URL, without secrets.
    pub(super) engine: String,
    pub(super) guard: &'a Guard,
    pub(super) clock: &'a Clock,
    pub(super) report: &'a Report,
    pub(super) signals: &'a mut Signals,
    pub(super) child: Child,
    pub(super) warden: &'a mut Warden,
    pub(super) terminal: Option<Terminal>,
    pub(super) started: Moment,
    /// The lease as last seen.
    pub(super) lease: Lease,
    pub(super) state: State,
}

/// The state of the supervision.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct State {
    /// The lock is lost, or will be lost.
    lost: bool,
    /// A signal or an order asked the command to end, through us.
    asked_to_end: bool,
    /// The signals that its group is still to get.
    ending: Option<Schedule>,
    killed: Option<Moment>,
}

/// How the command ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) status: Status,
    /// Whether the lock was lost before that.
    pub(super) lost: bool,
    /// Whether it was asked to end, through us, before that.
    pub(super) asked_to_end: bool,
}

impl Supervisor<'_> {
    /// Runs until the command has ended. Also waits for its group, unless the command ended on its
    /// own.
    pub(super) async fn run(mut self) -> End {
        let status = loop {
            self.look();
            match self.child.change() {
                Some(Change::Stopped(by)) => self.stopped(by),
                Some(Change::Ended(status)) => break status,
                None => {}
            }
            self.wait(self.next_look()).await;
        };
        // A signal that arrives from now on did not end the command.
        let asked_to_end = self.state.asked_to_end;
        if let Some(terminal) = &self.terminal {
            terminal.take_back(Some(self.child.group()));
        }
        if !self.state.lost && (!self.guard.is_held() || self.warden.has_stepped_in(self.clock.now())) {
            self.lost(self.guard_reason());
        }
        if self.state.ending.is_none() && (self.state.asked_to_end || matches!(status, Status::Signalled(_))) {
            // The signal was meant for the whole group: the rest of it must not go on without the
            // lock.
            let kill_at = self.clock.now().after(self.plan.rules.grace);
            self.state.ending = Some(Schedule { term_at: Moment::NEVER, kill_at });
        }
        while self.has_remains() {
            self.look();
            self.wait(self.clock.now().after(LOOK_FOR_GONE)).await;
        }
        // In this order, so that the warden never signals a process id that was reused.
        self.warden.dismiss();
        self.child.reap();
        End { status, lost: self.state.lost, asked_to_end }
    }

    async fn wait(&mut self, until: Moment) {
        tokio::select! {
            biased;
            signal = self.signals.next() => self.heard(signal),
            reason = self.guard.lost(), if !self.state.lost => self.lost(reason),
            () = self.guard.release_requested(), if !self.state.lost => self.release_requested(),
            () = self.clock.sleep_until(until) => {}
        }
    }

    fn heard(&mut self, signal: Signal) {
        let group = self.child.group();
        match signal {
            Signal::CHILD => self.warden.replace_if_gone(group),
            Signal::CONT => {
                if let Some(terminal) = &mut self.terminal {
                    terminal.resume(group);
                }
                group::signal(group, Signal::CONT);
            }
            other if signals::asks_to_end(other) => {
                self.state.asked_to_end = true;
                group::end_with(group, other);
            }
            other => group::signal(group, other),
        }
    }

    /// Sends what is due; if nothing is, sends the warden the new schedule.
    fn look(&mut self) {
        let now = self.clock.now();
        if !self.state.lost {
            self.see(now);
            let schedule = self.plan.rules.before(self.lease);
            if schedule.due(now) == Due::Nothing {
                self.warden.tell(self.plan.rules.for_warden(schedule, self.lease), now);
            } else {
                self.begin(self.guard_reason(), schedule);
            }
        }
        self.act(now);
    }

    /// Reads the lease again: it may have been renewed.
    fn see(&mut self, now: Moment) {
        let deadline = self.guard.deadline();
        if deadline != self.lease.deadline {
            self.lease = Lease::new(deadline, now, self.plan.cap(self.started));
        }
    }

    /// The lock is lost.
    fn lost(&mut self, reason: LostReason) {
        let now = self.clock.now();
        self.begin(reason, self.plan.rules.after(reason, now));
        self.act(now);
    }

    /// An operator requested the release. The lock is held until its deadline, and the command has
    /// that long to end.
    fn release_requested(&mut self) {
        let now = self.clock.now();
        self.see(now);
        self.begin(LostReason::ReleaseRequested, self.plan.rules.when_asked(self.lease, now));
        self.act(now);
    }

    fn begin(&mut self, reason: LostReason, schedule: Schedule) {
        let action = match (self.plan.rules.on_lost, schedule.term_at == Moment::NEVER) {
            (OnLost::Ignore, _) if reason == LostReason::ReleaseRequested => {
                "the command runs on, and without the lock once its lease ends"
            }
            (OnLost::Ignore, _) => "the command runs on without it",
            (OnLost::Term, false) => "ending the command",
            _ => "killing the command",
        };
        self.report.lost(&self.plan.name, &self.engine, reason, action);
        self.state.lost = true;
        self.state.ending = Some(schedule);
    }

    fn act(&mut self, now: Moment) {
        let group = self.child.group();
        let Some(schedule) = &mut self.state.ending else { return };
        match schedule.due(now) {
            Due::Nothing => {}
            Due::Term => {
                group::end_with(group, Signal::TERM);
                *schedule = schedule.termed();
            }
            Due::Kill => {
                group::signal(group, Signal::KILL);
                *schedule = Schedule::NEVER;
                self.state.killed = Some(now);
            }
        }
        if self.state.lost {
            self.warden.tell(self.plan.rules.for_warden(*schedule, self.lease), now);
        }
    }

    /// When to look again: early enough to report a renewal to the warden, or to act ourselves.
    fn next_look(&self) -> Moment {
        if let Some(schedule) = self.state.ending {
            return schedule.next();
        }
        let often = (self.plan.ttl / 10).max(Duration::from_millis(5));
        let danger = self.plan.rules.before(self.lease).next();
        self.clock.now().after(often).min(danger)
    }

    /// Whether processes of an ending command still run, and may still end.
    fn has_remains(&self) -> bool {
        let ignored = self.state.lost && self.plan.rules.on_lost == OnLost::Ignore;
        let hopeless = self.state.killed.is_some_and(|at| self.clock.now() >= at.after(DYING));
        self.state.ending.is_some() && !ignored && !hopeless && group::is_alive(self.child.group())
    }

    /// Why the lock is lost, or soon will be.
    fn guard_reason(&self) -> LostReason {
        if let Some(reason) = self.guard.lost_reason() {
            return reason;
        }
        if self.guard.deadline().after(self.plan.ttl / 2) >= self.plan.cap(self.started) {
            LostReason::MaxHold
        } else {
            LostReason::Expired
        }
    }
}
