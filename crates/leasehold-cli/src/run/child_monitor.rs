//! While the command runs: forwards signals, waits for its end, and ends it in time if its lock is
//! in danger.

use std::time::Duration;

use leasehold::clock::{Clock, Instant};
use leasehold::{Guard, LostReason};
use rustix::process::Signal;

use super::child::{Child, ExitStatus, StateChange};
use super::loss_policy::{DueSignal, Lease, OnLost, SignalSchedule};
use super::plan::Plan;
use super::process_group;
use super::report::Report;
use super::signals::{self, Signals};
use super::supervisor_process::SupervisorProcess;
use super::terminal::Terminal;

/// How long to wait for a killed group to disappear before this run continues without it.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// How often to check whether a group is gone; the kernel sends no notification.
const GROUP_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Supervises one command.
pub(super) struct ChildMonitor<'a> {
    pub(super) plan: &'a Plan,
    /// The engine's URL, without secrets.
    pub(super) engine: String,
    pub(super) guard: &'a Guard,
    pub(super) clock: &'a Clock,
    pub(super) report: &'a Report,
    pub(super) signals: &'a mut Signals,
    pub(super) child: Child,
    pub(super) supervisor: &'a mut SupervisorProcess,
    /// `None` if there is no terminal, or the command does not get it.
    pub(super) terminal: Option<Terminal>,
    /// When the command was started.
    pub(super) started: Instant,
    /// The lease as last seen.
    pub(super) lease: Lease,
    pub(super) state: MonitorState,
}

/// The state of the supervision.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MonitorState {
    /// The lock is lost, or will be lost.
    is_lost: bool,
    /// This process forwarded a signal or an order to end.
    is_end_requested: bool,
    /// The signals that its group is still to get; `None` until the command must end.
    end_schedule: Option<SignalSchedule>,
    /// When this process sent KILL to its group.
    killed_at: Option<Instant>,
}

/// How the command ended, and whether this process ended it.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommandEnd {
    pub(super) status: ExitStatus,
    /// Whether the lock was lost, or was about to be, before the command ended.
    pub(super) is_lost: bool,
    /// Whether this process had forwarded a signal or an order to end.
    pub(super) is_end_requested: bool,
}

impl ChildMonitor<'_> {
    /// Runs until the command has ended. Also waits for its group, unless the command ended on its
    /// own.
    pub(super) async fn run(mut self) -> CommandEnd {
        let status = loop {
            self.send_signal_or_schedule();
            match self.child.poll_change() {
                Some(StateChange::Stopped(by)) => self.handle_stop(by),
                Some(StateChange::Ended(status)) => break status,
                None => {}
            }
            self.wait_for_event(self.next_check()).await;
        };
        // A signal that arrives from now on did not end the command.
        let is_end_requested = self.state.is_end_requested;
        if let Some(terminal) = &self.terminal {
            terminal.reclaim(Some(self.child.group()));
        }
        if !self.state.is_lost && (!self.guard.is_held() || self.supervisor.has_acted(self.clock.now())) {
            self.handle_loss(self.loss_reason());
        }
        if self.state.end_schedule.is_none()
            && (self.state.is_end_requested || matches!(status, ExitStatus::Signalled(_)))
        {
            // A signal ended the command. The rest of its group must not continue without the lock.
            let kill_at = self.clock.now().saturating_add(self.plan.loss_policy.grace);
            self.state.end_schedule = Some(SignalSchedule { term_at: Instant::NEVER, kill_at });
        }
        while self.has_remaining_processes() {
            self.send_signal_or_schedule();
            self.wait_for_event(self.clock.now().saturating_add(GROUP_POLL_INTERVAL)).await;
        }
        // In this order, so that the supervisor never signals a process id that was reused.
        self.supervisor.send_done();
        self.child.reap();
        CommandEnd { status, is_lost: self.state.is_lost, is_end_requested }
    }

    /// Waits until `until`, or for the first event before that, and handles it.
    async fn wait_for_event(&mut self, until: Instant) {
        tokio::select! {
            biased;
            signal = self.signals.next() => self.handle_signal(signal),
            reason = self.guard.lost(), if !self.state.is_lost => self.handle_loss(reason),
            () = self.guard.release_requested(), if !self.state.is_lost => self.handle_release_request(),
            () = self.clock.sleep_until(until) => {}
        }
    }

    /// Forwards a signal that this process received to the command's group; handles those about job
    /// control.
    fn handle_signal(&mut self, signal: Signal) {
        let group = self.child.group();
        match signal {
            Signal::CHILD => self.supervisor.replace_if_dead(group),
            Signal::CONT => {
                if let Some(terminal) = &mut self.terminal {
                    terminal.resume(group);
                }
                process_group::send_signal(group, Signal::CONT);
            }
            other if signals::is_end_signal(other) => {
                self.state.is_end_requested = true;
                process_group::signal_and_continue(group, other);
            }
            other => process_group::send_signal(group, other),
        }
    }

    /// Sends the signal that is due. If none is due, sends the supervisor the new schedule.
    fn send_signal_or_schedule(&mut self) {
        let now = self.clock.now();
        if !self.state.is_lost {
            self.refresh_lease(now);
            let schedule = self.plan.loss_policy.schedule_before_expiry(self.lease);
            if schedule.due_signal(now) == DueSignal::None {
                self.supervisor.send_schedule(self.plan.loss_policy.supervisor_schedule(schedule, self.lease), now);
            } else {
                self.begin_ending(self.loss_reason(), schedule);
            }
        }
        self.send_due_signal(now);
    }

    /// Reads the lease again: it may have been renewed.
    fn refresh_lease(&mut self, now: Instant) {
        let deadline = self.guard.deadline();
        if deadline != self.lease.deadline {
            self.lease = Lease::new(deadline, now, self.plan.max_deadline(self.started));
        }
    }

    /// Called when the lock is lost: starts to end the command.
    fn handle_loss(&mut self, reason: LostReason) {
        let now = self.clock.now();
        self.begin_ending(reason, self.plan.loss_policy.schedule_after_loss(reason, now));
        self.send_due_signal(now);
    }

    /// An operator requested the release. The lock is held until its deadline, and the command has
    /// that long to end.
    fn handle_release_request(&mut self) {
        let now = self.clock.now();
        self.refresh_lease(now);
        self.begin_ending(
            LostReason::ReleaseRequested,
            self.plan.loss_policy.schedule_after_release_request(self.lease, now),
        );
        self.send_due_signal(now);
    }

    /// Reports the loss, or the release request, and from now on sends the signals of `schedule`.
    fn begin_ending(&mut self, reason: LostReason, schedule: SignalSchedule) {
        let action = match (self.plan.loss_policy.on_lost, schedule.term_at == Instant::NEVER) {
            (OnLost::Ignore, _) if reason == LostReason::ReleaseRequested => {
                "the command continues, without the lock once its lease ends"
            }
            (OnLost::Ignore, _) => "the command continues without it",
            (OnLost::Term, false) => "ending the command",
            _ => "killing the command",
        };
        self.report.report_lost(&self.plan.name, &self.engine, reason, action);
        self.state.is_lost = true;
        self.state.end_schedule = Some(schedule);
    }

    /// Sends the command's group the signal that is due by the schedule for its end, if any.
    fn send_due_signal(&mut self, now: Instant) {
        let group = self.child.group();
        let Some(schedule) = &mut self.state.end_schedule else { return };
        match schedule.due_signal(now) {
            DueSignal::None => {}
            DueSignal::Term => {
                process_group::signal_and_continue(group, Signal::TERM);
                *schedule = schedule.without_term();
            }
            DueSignal::Kill => {
                process_group::send_signal(group, Signal::KILL);
                *schedule = SignalSchedule::NEVER;
                self.state.killed_at = Some(now);
            }
        }
        if self.state.is_lost {
            self.supervisor.send_schedule(self.plan.loss_policy.supervisor_schedule(*schedule, self.lease), now);
        }
    }

    /// When to check again: early enough to report a renewal to the supervisor, or to act here.
    fn next_check(&self) -> Instant {
        if let Some(schedule) = self.state.end_schedule {
            return schedule.next_signal_at();
        }
        let interval = (self.plan.ttl / 10).max(Duration::from_millis(5));
        let end_at = self.plan.loss_policy.schedule_before_expiry(self.lease).next_signal_at();
        self.clock.now().saturating_add(interval).min(end_at)
    }

    /// Whether to keep waiting for the group of an ended command: some of its processes run, and
    /// KILL was not sent too long ago.
    fn has_remaining_processes(&self) -> bool {
        let ignored = self.state.is_lost && self.plan.loss_policy.on_lost == OnLost::Ignore;
        let hopeless = self.state.killed_at.is_some_and(|at| self.clock.now() >= at.saturating_add(KILL_TIMEOUT));
        self.state.end_schedule.is_some() && !ignored && !hopeless && process_group::is_alive(self.child.group())
    }

    /// Why the lock is lost, or soon will be.
    fn loss_reason(&self) -> LostReason {
        if let Some(reason) = self.guard.lost_reason() {
            return reason;
        }
        if self.guard.deadline().saturating_add(self.plan.ttl / 2) >= self.plan.max_deadline(self.started) {
            LostReason::MaxHold
        } else {
            LostReason::Expired
        }
    }
}
