//! Chooses the next server to try, and the pause before.

use std::time::Duration;

use crate::address::Server;

/// The pause after the first round in which no server could be used.
const MIN_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause between two rounds.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// The servers of the list, which are tried in rounds: each once, one after the other.
#[derive(Debug)]
pub(super) struct ServerRotation {
    servers: Vec<Server>,
    next: usize,
    /// How many servers of this round were not tried yet.
    remaining: usize,
    /// The last pause; zero before the first, and after a connection that lasted.
    pause: Duration,
}

impl ServerRotation {
    pub(super) fn new(servers: Vec<Server>) -> Self {
        Self { servers, next: 0, remaining: 0, pause: Duration::ZERO }
    }

    /// Begins a round: each server is tried once, starting after the one that was tried last.
    pub(super) fn start_round(&mut self) {
        self.remaining = self.servers.len();
    }

    /// The next server of the round; `None` if each was tried.
    pub(super) fn next(&mut self) -> Option<Server> {
        self.remaining = self.remaining.checked_sub(1)?;
        let server = self.servers.get(self.next)?.clone();
        self.next = (self.next + 1) % self.servers.len();
        Some(server)
    }

    /// The pause before the next round: doubled each time, and at most a tenth of the session
    /// timeout.
    pub(super) fn pause(&mut self, timeout: Duration) -> Duration {
        self.pause = (self.pause * 2).clamp(MIN_PAUSE, MAX_PAUSE).min(timeout / 10);
        self.pause
    }

    /// The pause after a connection that lasted this long: none after at least [`MAX_PAUSE`].
    /// Servers may accept connections and soon close each of them, so a short connection does not
    /// reset the back-off.
    pub(super) fn pause_after(&mut self, lasted: Duration, timeout: Duration) -> Duration {
        if lasted < MAX_PAUSE {
            return self.pause(timeout);
        }
        self.pause = Duration::ZERO;
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_starts_after_the_last_server_tried() {
        let mut rotation = ServerRotation::new(Server::parse_list("a,b,c").unwrap());
        let mut round = || {
            rotation.start_round();
            std::iter::from_fn(|| rotation.next()).map(|server| server.host).collect::<String>()
        };
        assert_eq!((round().as_str(), round().as_str()), ("abc", "abc"));
        rotation.start_round();
        assert_eq!(rotation.next().unwrap().host, "a");
        rotation.start_round();
        assert_eq!(rotation.next().unwrap().host, "b", "a was the last");
    }

    #[test]
    fn pauses_grow_and_a_lasting_connection_ends_them() {
        let ms = Duration::from_millis;
        let (mut rotation, timeout) = (ServerRotation::new(Vec::new()), ms(6_000));
        let pauses: Vec<Duration> = (0..6).map(|_| rotation.pause(timeout)).collect();
        assert_eq!(pauses, [50, 100, 200, 400, 600, 600].map(ms), "a tenth of the timeout at most");
        assert_eq!(rotation.pause_after(ms(30), timeout), ms(600), "it broke at once");
        assert_eq!(rotation.pause_after(ms(700), timeout), ms(600), "nor did it last");
        assert_eq!(rotation.pause_after(ms(1000), timeout), Duration::ZERO);
        assert_eq!(rotation.pause_after(ms(60), timeout), ms(50));
        assert_eq!(rotation.pause_after(ms(40), timeout), ms(100));
    }
}
