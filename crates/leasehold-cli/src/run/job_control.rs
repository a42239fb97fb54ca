//! Job control after the command has stopped.

use leasehold::clock::Instant;
use rustix::process::{self, Signal};

use super::child_monitor::ChildMonitor;
use super::process_group;
use super::terminal::StopAction;
use crate::duration::format_duration;

impl ChildMonitor<'_> {
    /// Called when the signal `by` has stopped the command: stops this process too, if a shell
    /// controls it.
    pub(super) fn handle_stop(&mut self, by: Signal) {
        let group = self.child.group();
        let Some(terminal) = &mut self.terminal else { return };
        match terminal.stop_action(group, by) {
            StopAction::Ignore => {}
            StopAction::LendTerminal => {
                terminal.lend(group);
                process_group::send_signal(group, Signal::CONT);
            }
            StopAction::Continue => process_group::send_signal(group, Signal::CONT),
            StopAction::StopToo => {
                let lent = terminal.is_lent_to(group);
                terminal.reclaim(Some(group));
                self.report.report_stopped(&self.stop_message());
                // SIGCONT continues this process here, and is then handled like any other signal.
                // In a script or a pipeline the other processes got the terminal's stop signal,
                // too, unless only the command's group had the terminal.
                let _ = match lent {
                    true => process::kill_current_process_group(Signal::STOP),
                    false => process::kill_process(process::getpid(), Signal::STOP),
                };
            }
        }
    }

    /// How long the stopped command keeps the lock, and when it is ended.
    fn stop_message(&self) -> String {
        let now = self.clock.now();
        let left = format_duration(self.guard.deadline().duration_since(now));
        match self.plan.loss_policy.schedule_before_expiry(self.lease).next_signal_at() {
            Instant::NEVER => format!("stopped; unless continued, the lock is kept for {left}"),
            end => {
                let ends = format_duration(end.duration_since(now));
                format!("stopped; unless continued, the lock is kept for {left} and the command is ended in {ends}")
            }
        }
    }
}
