//! The supervisor process: it ends the command's group if leasehold is killed or stopped. It is the
//! same program, started with a special argument. Its standard input is the pipe from leasehold, and
//! its standard output is the descriptor that keeps the lock while it is open.

use std::process::ExitCode;
use std::time::Duration;

use leasehold::clock::{Clock, Instant};
use nix::sys::signal::SigSet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal};
use rustix::stdio::stdin;

use super::loss_policy::{DueSignal, SignalSchedule};
use super::process_group;
use super::supervisor_message::{MESSAGE_SIZE, SupervisorMessage};

/// How long to wait for a killed group to disappear. A process that cannot die (a broken disk) must
/// not block the supervisor forever.
const KILL_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest single call of `poll`, which does not count the time that the machine is suspended.
const MAX_POLL_SLICE: Duration = Duration::from_secs(1);

/// The command's process group, and when to end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SupervisedGroup {
    /// `None` until the command has reported its group.
    group: Option<Pid>,
    schedule: SignalSchedule,
}

/// What arrived on the pipe.
enum PipeEvent {
    Message(SupervisorMessage),
    /// No message arrived in time.
    None,
    /// Leasehold closed its side.
    Closed,
}

/// Runs as the supervisor process, until leasehold sends `Done` or has died.
pub(crate) fn supervisor_main() -> ExitCode {
    // Signals for the terminal's processes must not affect the supervisor; only KILL can end it.
    let _ = SigSet::all().thread_block();
    let clock = Clock::system();
    let group = std::env::args_os().nth(2).and_then(|group| Pid::from_raw(group.to_str()?.parse().ok()?));
    let mut supervised = SupervisedGroup { group, schedule: SignalSchedule::NEVER };
    loop {
        match read_message(supervised.schedule.next_signal_at().duration_since(clock.now())) {
            PipeEvent::Message(SupervisorMessage::Group(group)) => supervised.group = Some(group),
            PipeEvent::Message(SupervisorMessage::Schedule(schedule)) => supervised.schedule = schedule,
            PipeEvent::Message(SupervisorMessage::Done) => return ExitCode::SUCCESS,
            PipeEvent::None => supervised = send_due_signal(supervised, clock.now()),
            PipeEvent::Closed => {
                if let Some(group) = supervised.group {
                    kill_group(group, &clock);
                }
                return ExitCode::SUCCESS;
            }
        }
    }
}

/// Sends the signal that is due, if any: leasehold is stopped, and did not postpone it in time.
fn send_due_signal(supervised: SupervisedGroup, now: Instant) -> SupervisedGroup {
    let schedule = match (supervised.schedule.due_signal(now), supervised.group) {
        (DueSignal::None, _) => supervised.schedule,
        (DueSignal::Term, Some(group)) => {
            process_group::signal_and_continue(group, Signal::TERM);
            supervised.schedule.without_term()
        }
        (DueSignal::Kill, Some(group)) => {
            process_group::send_signal(group, Signal::KILL);
            SignalSchedule::NEVER
        }
        (_, None) => SignalSchedule::NEVER,
    };
    SupervisedGroup { schedule, ..supervised }
}

/// Kills the group and waits until it is gone. Called when leasehold was killed.
fn kill_group(group: Pid, clock: &Clock) {
    let bound = clock.now().saturating_add(KILL_TIMEOUT);
    loop {
        process_group::send_signal(group, Signal::KILL);
        if !process_group::is_alive(group) || clock.now() >= bound {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits for the next message on standard input, for at most `timeout` and a second.
fn read_message(timeout: Duration) -> PipeEvent {
    let nap = timeout.min(MAX_POLL_SLICE);
    let nap = Timespec { tv_sec: nap.as_secs().cast_signed(), tv_nsec: nap.subsec_nanos().into() };
    match poll(&mut [PollFd::new(&stdin(), PollFlags::IN)], Some(&nap)) {
        Ok(0) | Err(rustix::io::Errno::INTR) => return PipeEvent::None,
        _ => {}
    }
    let mut bytes = [0; MESSAGE_SIZE];
    match rustix::io::read(stdin(), &mut bytes) {
        // A message is written in one piece, so it is read in one piece.
        Ok(MESSAGE_SIZE) => SupervisorMessage::decode(&bytes).map_or(PipeEvent::None, PipeEvent::Message),
        Err(rustix::io::Errno::INTR) => PipeEvent::None,
        _ => PipeEvent::Closed,
    }
}
