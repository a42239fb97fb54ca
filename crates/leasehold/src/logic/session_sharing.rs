//! Which session serves a claim, for engines whose locks end with a session: few sessions serve
//! claims with many TTLs.
//!
//! A dead holder's lock becomes free when its session times out, so a claim with TTL `t` needs a
//! session whose timeout is at most `t`. The first few TTLs get sessions with exactly that timeout.
//! Every later claim shares the longest session that is short enough, if its timeout is at least
//! half of the TTL. Otherwise a session is opened whose timeout is a power of two seconds. The
//! number of sessions is therefore bounded, for any order of TTLs.

use std::time::Duration;

/// How many sessions have exactly the TTL of a claim as their timeout; later claims share sessions.
pub const MAX_EXACT_SESSIONS: usize = 3;

/// A session that is open, or is being opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenSession {
    /// The timeout that was requested. No two sessions have the same, so it identifies the session.
    pub requested_timeout: Duration,
    /// The timeout that the server granted; `None`: not known yet.
    pub granted_timeout: Option<Duration>,
}

impl OpenSession {
    /// The granted timeout if it is known, and otherwise the requested one.
    fn timeout(&self) -> Duration {
        self.granted_timeout.unwrap_or(self.requested_timeout)
    }
}

/// Which session serves a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionChoice {
    /// An open session: the one for which this timeout was requested.
    Share(Duration),
    /// A new session: the caller opens it with this timeout.
    Open(Duration),
}

/// Which session serves a claim of `ttl`, given the open ones. The chosen session's timeout is
/// longer than the TTL only if the server grants no shorter one; the caller then refuses the claim.
pub fn choose_session(open: &[OpenSession], ttl: Duration) -> SessionChoice {
    // The server limits timeouts, and this session shows its limit for this TTL.
    let at_bound = |session: &&OpenSession| match session.granted_timeout {
        Some(granted) if granted < session.requested_timeout => ttl >= granted,
        Some(granted) if granted > session.requested_timeout => ttl < granted,
        _ => false,
    };
    if let Some(session) = open.iter().find(at_bound) {
        return SessionChoice::Share(session.requested_timeout);
    }
    let longest = open.iter().filter(|session| session.timeout() <= ttl).max_by_key(|session| session.timeout());
    match longest {
        Some(session) if session.timeout() == ttl => SessionChoice::Share(session.requested_timeout),
        _ if open.len() < MAX_EXACT_SESSIONS => SessionChoice::Open(ttl),
        Some(session) if session.timeout() >= ttl / 2 => SessionChoice::Share(session.requested_timeout),
        _ => SessionChoice::Open(timeout_class(ttl)),
    }
}

/// The largest power of two, in seconds, that is not above `ttl`; `ttl` itself below one second.
fn timeout_class(ttl: Duration) -> Duration {
    match ttl.as_secs() {
        0 => ttl,
        seconds => Duration::from_secs(1 << seconds.ilog2()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seconds(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    /// Chooses or opens the session for a claim of `ttl` at a server that grants timeouts within
    /// `bounds`, the shortest and the longest. Returns the session's granted timeout.
    fn serve(open: &mut Vec<OpenSession>, ttl: Duration, bounds: (Duration, Duration)) -> Duration {
        let timeout = match choose_session(open, ttl) {
            SessionChoice::Share(timeout) => timeout,
            SessionChoice::Open(timeout) => {
                assert!(
                    open.iter().all(|session| session.requested_timeout != timeout),
                    "{timeout:?} is open already: {open:?}"
                );
                open.push(OpenSession {
                    requested_timeout: timeout,
                    granted_timeout: Some(timeout.clamp(bounds.0, bounds.1)),
                });
                timeout
            }
        };
        open.iter().find(|session| session.requested_timeout == timeout).map(OpenSession::timeout).unwrap()
    }

    proptest! {
        /// For any order of TTLs:
        /// - no session outlives its claim's TTL, unless the server grants no shorter one;
        /// - none is shorter than half of the TTL, unless the server grants no longer one;
        /// - there are few sessions.
        #[test]
        fn few_sessions_serve_all_ttls(
            ttls in prop::collection::vec(2_000u64..86_400_000, 1..200), shortest in 1u64..60, longest in 60u64..100_000,
        ) {
            let bounds = (seconds(shortest), seconds(longest));
            let mut open = Vec::new();
            for ttl in ttls.into_iter().map(Duration::from_millis) {
                let timeout = serve(&mut open, ttl, bounds);
                prop_assert!(timeout <= ttl || timeout == bounds.0, "{timeout:?} for {ttl:?}");
                prop_assert!(timeout >= ttl / 2 || timeout == bounds.1, "{timeout:?} for {ttl:?}");
            }
            // One per power of two between 2 s and 24 h.
            prop_assert!(open.len() <= MAX_EXACT_SESSIONS + 16, "{} sessions", open.len());
        }
    }

    #[test]
    fn the_first_ttls_get_own_sessions_and_later_ones_share() {
        let mut open = Vec::new();
        let bounds = (seconds(4), seconds(40));
        for ttl in [30, 10, 20] {
            assert_eq!(serve(&mut open, seconds(ttl), bounds), seconds(ttl));
        }
        assert_eq!(serve(&mut open, seconds(29), bounds), seconds(20));
        assert_eq!(serve(&mut open, seconds(9), bounds), seconds(8));
        assert_eq!(serve(&mut open, seconds(3), bounds), seconds(4), "the server's shortest");
        assert_eq!(serve(&mut open, seconds(2), bounds), seconds(4));
        assert_eq!(open.len(), 5);
        assert_eq!(serve(&mut open, seconds(3600), bounds), seconds(40), "the server's longest");
        assert_eq!(serve(&mut open, seconds(7200), bounds), seconds(40));
        assert_eq!(open.len(), 6);
    }
}
