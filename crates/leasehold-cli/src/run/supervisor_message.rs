//! The messages from leasehold to its supervisor process: fixed size, over a pipe, each written in
//! one piece.

use leasehold::clock::Instant;
use rustix::process::Pid;

use super::loss_policy::SignalSchedule;

/// The size of every message, in bytes.
pub(super) const MESSAGE_SIZE: usize = 17;

/// A message to the supervisor process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SupervisorMessage {
    /// The process group of the command.
    Group(Pid),
    /// The schedule to follow unless a later message replaces it.
    Schedule(SignalSchedule),
    /// The command has ended; the supervisor can exit.
    Done,
}

impl SupervisorMessage {
    /// The message as bytes. Allocates nothing, because it is also called between fork and exec.
    pub(super) fn encode(self) -> [u8; MESSAGE_SIZE] {
        let (kind, first, second) = match self {
            Self::Group(pid) => (b'g', pid.as_raw_nonzero().get().unsigned_abs().into(), 0),
            Self::Schedule(schedule) => (b's', schedule.term_at.as_nanos(), schedule.kill_at.as_nanos()),
            Self::Done => (b'd', 0, 0),
        };
        let mut bytes = [0; MESSAGE_SIZE];
        bytes[0] = kind;
        bytes[1..9].copy_from_slice(&first.to_ne_bytes());
        bytes[9..].copy_from_slice(&second.to_ne_bytes());
        bytes
    }

    /// `None` for a message that this build does not know.
    pub(super) fn decode(bytes: &[u8; MESSAGE_SIZE]) -> Option<Self> {
        let number = |from: usize| Some(u64::from_ne_bytes(bytes.get(from..from + 8)?.try_into().ok()?));
        let (first, second) = (number(1)?, number(9)?);
        match bytes[0] {
            b'g' => i32::try_from(first).ok().and_then(Pid::from_raw).map(Self::Group),
            b's' => {
                let (term_at, kill_at) = (Instant::from_nanos(first), Instant::from_nanos(second));
                Some(Self::Schedule(SignalSchedule { term_at, kill_at }))
            }
            b'd' => Some(Self::Done),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_decoded_as_they_were_encoded() {
        let schedule = SignalSchedule { term_at: Instant::from_nanos(1 << 60), kill_at: Instant::NEVER };
        for message in [
            SupervisorMessage::Group(Pid::from_raw(4_194_304).unwrap()),
            SupervisorMessage::Schedule(schedule),
            SupervisorMessage::Done,
        ] {
            assert_eq!(SupervisorMessage::decode(&message.encode()), Some(message));
        }
        assert_eq!(SupervisorMessage::decode(&[0; MESSAGE_SIZE]), None);
        let mut without_pid = SupervisorMessage::Done.encode();
        without_pid[0] = b'g';
        assert_eq!(SupervisorMessage::decode(&without_pid), None);
    }
}
