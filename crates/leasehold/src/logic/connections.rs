//! How a client of a database waits for a lock when the server runs short of connections: it
//! listens on a connection, or closes it and polls.
//!
//! A client closes its connection when more than half of the server's connections are used, or when
//! the server refuses one. It listens again when less than a quarter is used. The gap between the
//! two keeps clients that check one after the other from switching back and forth. A holder keeps
//! its connection, because it needs it to renew.

use std::time::Duration;

/// How many of the server's connections are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionUsage {
    /// The connections in use, including this client's.
    pub used: u64,
    /// The server's limit.
    pub limit: u64,
}

/// How a client learns of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitStrategy {
    /// It listens for notifications on a connection.
    Listen,
    /// It polls and keeps no connection in between.
    Poll,
}

/// How a client that now waits by `current` continues. `usage` is what the server reports; `None`:
/// it refused a connection.
pub fn next_strategy(current: WaitStrategy, usage: Option<ConnectionUsage>, is_holder: bool) -> WaitStrategy {
    match (usage, current) {
        (None, _) => WaitStrategy::Poll,
        (Some(_), _) if is_holder => WaitStrategy::Listen,
        (Some(usage), WaitStrategy::Listen) if usage.is_scarce() => WaitStrategy::Poll,
        (Some(usage), WaitStrategy::Poll) if usage.used * 4 >= usage.limit => WaitStrategy::Poll,
        (Some(_), _) => WaitStrategy::Listen,
    }
}

impl ConnectionUsage {
    /// Whether more than half of the server's connections are in use.
    pub fn is_scarce(self) -> bool {
        self.used * 2 > self.limit
    }
}

/// The longest pause between two polls of a client that has closed its connection.
pub const MAX_POLL_PAUSE: Duration = Duration::from_secs(1);

/// The same while at most half of the server's connections are in use: a waiter then learns of its
/// grant within 500 ms.
pub const MAX_SHORT_POLL_PAUSE: Duration = Duration::from_millis(400);

/// The pause before the next poll: between half of the longest one and all of it, by `random` (any
/// number), so that clients do not poll at the same time. `is_scarce`: see
/// [`ConnectionUsage::is_scarce`]; also after the server refused a connection.
pub fn poll_pause(is_scarce: bool, random: u32) -> Duration {
    let longest = if is_scarce { MAX_POLL_PAUSE } else { MAX_SHORT_POLL_PAUSE };
    super::backoff::pause(0, longest, longest, random)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Lets `clients` clients check one after the other, in the order of `samples`, while `others`
    /// connections are used by other programs. A listening client uses two connections; the first
    /// client is the holder and keeps its own. Returns each client's strategy, and how often one
    /// changed.
    fn simulate(limit: u64, others: u64, clients: usize, samples: &[usize]) -> (Vec<WaitStrategy>, usize) {
        let mut strategies = vec![WaitStrategy::Listen; clients];
        let mut changes = 0;
        for sample in samples {
            let at = sample % clients;
            let wanted = others + 2 * strategies.iter().filter(|wake| **wake == WaitStrategy::Listen).count() as u64;
            // A polling client opens one connection for the check itself.
            let used = wanted + u64::from(strategies[at] == WaitStrategy::Poll);
            let load = (used <= limit || strategies[at] == WaitStrategy::Listen)
                .then_some(ConnectionUsage { used: used.min(limit), limit });
            let next = next_strategy(strategies[at], load, at == 0);
            changes += usize::from(next != strategies[at]);
            strategies[at] = next;
        }
        (strategies, changes)
    }

    proptest! {
        #[test]
        fn waiting_clients_leave_half_of_the_connections_to_others_and_do_not_flap(
            clients in 1usize..200, limit in 8u64..300, samples in prop::collection::vec(0usize..200, 4_000..5_000),
        ) {
            let (strategies, changes) = simulate(limit, 0, clients, &samples);
            let listening = strategies.iter().filter(|wake| **wake == WaitStrategy::Listen).count() as u64;
            prop_assert!(2 * listening <= limit / 2 + 2, "{listening} of {clients} listen, {limit} connections");
            prop_assert!(changes <= 2 * clients, "{changes} changes");
            prop_assert_eq!(strategies[0], WaitStrategy::Listen, "the holder keeps its own");
        }

        #[test]
        fn a_poll_is_at_most_a_second_away_and_sooner_while_connections_are_left(random: u32) {
            let pause = poll_pause(true, random);
            prop_assert!(pause <= MAX_POLL_PAUSE && pause >= MAX_POLL_PAUSE / 2);
            let pause = poll_pause(false, random);
            prop_assert!(pause <= MAX_SHORT_POLL_PAUSE && pause >= MAX_SHORT_POLL_PAUSE / 2);
        }
    }

    #[test]
    fn between_a_quarter_and_half_the_strategy_stays() {
        let load = |used| Some(ConnectionUsage { used, limit: 100 });
        assert_eq!(next_strategy(WaitStrategy::Listen, load(50), false), WaitStrategy::Listen);
        assert_eq!(next_strategy(WaitStrategy::Listen, load(51), false), WaitStrategy::Poll);
        assert_eq!(next_strategy(WaitStrategy::Poll, load(25), false), WaitStrategy::Poll);
        assert_eq!(next_strategy(WaitStrategy::Poll, load(24), false), WaitStrategy::Listen);
        assert_eq!(next_strategy(WaitStrategy::Listen, load(99), true), WaitStrategy::Listen, "it holds");
        assert_eq!(next_strategy(WaitStrategy::Listen, None, true), WaitStrategy::Poll, "refused");
    }
}
