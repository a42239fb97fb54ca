//! The warden itself: a process that only waits, and ends the command's group when leasehold is
//! killed or stopped. It is the same program, started with a special argument. Its standard input
//! is the pipe from leasehold, and its standard output the descriptor that keeps the lock.

use std::process::ExitCode;
use std::time::Duration;

use leasehold::clock::{Clock, Moment};
use nix::sys::signal::SigSet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal};
use rustix::stdio::stdin;

use super::group;
use super::lost::{Due, Schedule};
use super::message::{Message, SIZE};

/// How long to wait for a killed group to disappear. A process that cannot die (a broken disk) must
/// not block the warden for ever.
const DYING: Duration = Duration::from_secs(30);

/// `poll` does not count the time that the machine was suspended.
const LONGEST_NAP: Duration = Duration::from_secs(1);

/// The warden's current task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Duty {
    group: Option<Pid>,
    schedule: Schedule,
}

/// What arrived on the pipe.
enum Heard {
    Message(Message),
    Nothing,
    /// Leasehold closed its side.
    End,
}

/// Runs the warden.
pub(crate) fn warden_main() -> ExitCode {
    // Signals for the terminal's processes must not affect the warden; only KILL can end it.
    let _ = SigSet::all().thread_block();
    let clock = Clock::system();
    let group = std::env::args_os().nth(2).and_then(|group| Pid::from_raw(group.to_str()?.parse().ok()?));
    let mut duty = Duty { group, schedule: Schedule::NEVER };
    loop {
        match listen(duty.schedule.next().since(clock.now())) {
            Heard::Message(Message::Group(group)) => duty.group = Some(group),
            Heard::Message(Message::Schedule(schedule)) => duty.schedule = schedule,
            Heard::Message(Message::Done) => return ExitCode::SUCCESS,
            Heard::Nothing => duty = act(duty, clock.now()),
            Heard::End => {
                if let Some(group) = duty.group {
                    end(group, &clock);
                }
                return ExitCode::SUCCESS;
            }
        }
    }
}

/// Leasehold is stopped: sends the signals in its place.
fn act(duty: Duty, now: Moment) -> Duty {
    let schedule = match (duty.schedule.due(now), duty.group) {
        (Due::Nothing, _) => duty.schedule,
        (Due::Term, Some(group)) => {
            group::end_with(group, Signal::TERM);
            duty.schedule.termed()
        }
        (Due::Kill, Some(group)) => {
            group::signal(group, Signal::KILL);
            Schedule::NEVER
        }
        (_, None) => Schedule::NEVER,
    };
    Duty { schedule, ..duty }
}

/// Leasehold was killed: kills the group and waits until it is gone.
fn end(group: Pid, clock: &Clock) {
    let bound = clock.now().after(DYING);
    loop {
        group::signal(group, Signal::KILL);
        if !group::is_alive(group) || clock.now() >= bound {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn listen(patience: Duration) -> Heard {
    let nap = patience.min(LONGEST_NAP);
    let nap = Timespec { tv_sec: nap.as_secs().cast_signed(), tv_nsec: nap.subsec_nanos().into() };
    match poll(&mut [PollFd::new(&stdin(), PollFlags::IN)], Some(&nap)) {
        Ok(0) | Err(rustix::io::Errno::INTR) => return Heard::Nothing,
        _ => {}
    }
    let mut bytes = [0; SIZE];
    match rustix::io::read(stdin(), &mut bytes) {
        // A message is written in one piece, so it is read in one piece.
        Ok(SIZE) => Message::decode(&bytes).map_or(Heard::Nothing, Heard::Message),
        Err(rustix::io::Errno::INTR) => Heard::Nothing,
        _ => Heard::End,
    }
}
