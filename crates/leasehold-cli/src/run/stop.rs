//! Job control after the command has stopped.

use leasehold::clock::Moment;
use rustix::process::{self, Signal};

use super::group;
use super::supervise::Supervisor;
use super::terminal::OnStop;
use crate::duration::human;

impl Supervisor<'_> {
    /// The command has stopped: we stop too, if a shell controls us.
    pub(super) fn stopped(&mut self, by: Signal) {
        let group = self.child.group();
        let Some(terminal) = &mut self.terminal else { return };
        match terminal.on_stop(group, by) {
            OnStop::Leave => {}
            OnStop::Lend => {
                terminal.lend(group);
                group::signal(group, Signal::CONT);
            }
            OnStop::Continue => group::signal(group, Signal::CONT),
            OnStop::StopToo => {
                let lent = terminal.is_lent_to(group);
                terminal.take_back(Some(group));
                self.report.stopped(&self.stop_note());
                // SIGCONT continues us here, and is then handled like any other signal. In a script
                // or a pipeline the other processes got the terminal's stop signal, too, unless
                // only the command's group had the terminal.
                let _ = match lent {
                    true => process::kill_current_process_group(Signal::STOP),
                    false => process::kill_process(process::getpid(), Signal::STOP),
                };
            }
        }
    }

    fn stop_note(&self) -> String {
        let now = self.clock.now();
        let left = human(self.guard.deadline().since(now));
        match self.plan.rules.before(self.lease).next() {
            Moment::NEVER => format!("stopped; unless continued, the lock is kept for {left}"),
            end => {
                let ends = human(end.since(now));
                format!("stopped; unless continued, the lock is kept for {left} and the command is ended in {ends}")
            }
        }
    }
}
