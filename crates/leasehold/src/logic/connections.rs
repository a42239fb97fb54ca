//! How a database client waits when the server runs short of connections: it keeps a connection to
//! listen on, or closes it and polls.
//!
//! A client closes its connection when more than half of the server's connections are used, or when
//! the server refuses one. It listens again when less than a quarter is used. In between nothing
//! changes, so clients that look one after the other settle and do not oscillate. A holder keeps
//! its connection, because it needs it to renew.

use std::time::Duration;

/// How many of the server's connections are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// The connections in use, including our own.
    pub used: u64,
    /// The server's limit.
    pub most: u64,
}

/// How a client learns of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// It listens for notifications on a connection.
    Listen,
    /// It polls and keeps no connection in between.
    Poll,
}

/// How a client that does `now` continues, given the server's load; `None`: the server refused a
/// connection.
pub fn wake(now: Wake, load: Option<Load>, holds: bool) -> Wake {
    match (load, now) {
        (None, _) => Wake::Poll,
        (Some(_), _) if holds => Wake::Listen,
        (Some(load), Wake::Listen) if load.used * 2 > load.most => Wake::Poll,
        (Some(load), Wake::Poll) if load.used * 4 >= load.most => Wake::Poll,
        (Some(_), _) => Wake::Listen,
    }
}

/// The longest pause between two polls of a client that lacks a connection.
pub const SLOWEST_LOOK: Duration = Duration::from_secs(1);

/// The pause before the next poll: up to a second. `dice` (any number) takes off a random half, so
/// that clients do not poll at the same time.
pub fn look_pause(dice: u32) -> Duration {
    super::backoff::pause(0, SLOWEST_LOOK, SLOWEST_LOOK, dice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Clients look one after the other, in any order. A listening client uses two connections; the
    /// first client is the holder and keeps its own.
    fn settle(most: u64, others: u64, clients: usize, looks: &[usize]) -> (Vec<Wake>, usize) {
        let mut all = vec![Wake::Listen; clients];
        let mut changes = 0;
        for look in looks {
            let at = look % clients;
            let wanted = others + 2 * all.iter().filter(|wake| **wake == Wake::Listen).count() as u64;
            // A polling client opens one connection for the look itself.
            let used = wanted + u64::from(all[at] == Wake::Poll);
            let load = (used <= most || all[at] == Wake::Listen).then_some(Load { used: used.min(most), most });
            let next = wake(all[at], load, at == 0);
            changes += usize::from(next != all[at]);
            all[at] = next;
        }
        (all, changes)
    }

    proptest! {
        #[test]
        fn waiting_clients_leave_half_to_others_and_do_not_flap(
            clients in 1usize..200, most in 8u64..300, looks in prop::collection::vec(0usize..200, 4_000..5_000),
        ) {
            let (all, changes) = settle(most, 0, clients, &looks);
            let listening = all.iter().filter(|wake| **wake == Wake::Listen).count() as u64;
            prop_assert!(2 * listening <= most / 2 + 2, "{listening} of {clients} listen, {most} connections");
            prop_assert!(changes <= 2 * clients, "{changes} changes");
            prop_assert_eq!(all[0], Wake::Listen, "the holder keeps its own");
        }

        #[test]
        fn a_look_is_at_most_a_second_away(dice: u32) {
            let pause = look_pause(dice);
            prop_assert!(pause <= SLOWEST_LOOK && pause >= SLOWEST_LOOK / 2);
        }
    }

    #[test]
    fn between_half_and_a_quarter_nothing_changes() {
        let load = |used| Some(Load { used, most: 100 });
        assert_eq!(wake(Wake::Listen, load(50), false), Wake::Listen);
        assert_eq!(wake(Wake::Listen, load(51), false), Wake::Poll);
        assert_eq!(wake(Wake::Poll, load(25), false), Wake::Poll);
        assert_eq!(wake(Wake::Poll, load(24), false), Wake::Listen);
        assert_eq!(wake(Wake::Listen, load(99), true), Wake::Listen, "it holds");
        assert_eq!(wake(Wake::Listen, None, true), Wake::Poll, "refused");
    }
}
