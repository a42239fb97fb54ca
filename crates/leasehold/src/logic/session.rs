//! A lower bound on how long a session lives, for engines whose locks end with a session.
//!
//! The leader of an ensemble expires a session that it has not heard from for the session's
//! timeout. A client usually talks to a follower, which reports to the leader only now and then
//! which sessions were active. An answered request therefore does not prove that the leader knows
//! of it. A follower that is cut off from its leader answers reads for many more seconds.
//!
//! An answered *write* does prove it: the leader has processed it, on the same ordered connection
//! on which the follower reported before. Every request that was answered at least `lag` before
//! that write was sent is known to the leader by then.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Moment;

/// What is known about a session's life, on our own clock.
#[derive(Clone, Debug)]
pub struct Proof {
    timeout: Duration,
    lag: Duration,
    /// Requests that were answered but are not yet proven to be known to the leader: send time and
    /// answer time.
    heard: VecDeque<(Moment, Moment)>,
    /// The leader knew of our activity at this time or later.
    proven: Moment,
}

impl Proof {
    /// A session with this timeout, which the leader opened after `asked`. A follower's reports are
    /// at most `lag` apart.
    pub fn new(asked: Moment, timeout: Duration, lag: Duration) -> Self {
        Self { timeout, lag, heard: VecDeque::new(), proven: asked }
    }

    /// A server answered, at `now`, a request that was sent at `sent`.
    pub fn heard(&mut self, sent: Moment, now: Moment) {
        // A few samples per lag are enough.
        let apart = self.heard.back().is_none_or(|(last, _)| sent.since(*last) >= self.lag / 8);
        if sent > self.proven && apart {
            // A request older than the session timeout no longer proves anything.
            while self.heard.front().is_some_and(|(first, _)| now.since(*first) > self.timeout) {
                self.heard.pop_front();
            }
            self.heard.push_back((sent, now));
        }
    }

    /// A server answered, at `now`, a write that was sent at `sent`.
    pub fn committed(&mut self, sent: Moment, now: Moment) {
        let known = sent.before(self.lag);
        while let Some((first, answered)) = self.heard.front().copied() {
            if answered > known {
                break;
            }
            self.proven = self.proven.max(first);
            self.heard.pop_front();
        }
        self.heard(sent, now);
    }

    /// The leader does not expire the session before this time.
    pub fn until(&self) -> Moment {
        self.proven.after(self.timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const T: u64 = 8_000;

    /// An event, in ms after the previous one.
    #[derive(Clone, Debug)]
    enum Event {
        /// The client sends a request and gets an answer after this time. A write needs the leader.
        Ask { write: bool, takes: u64 },
        /// The follower is cut off from its leader and keeps answering reads.
        CutOff,
        /// The client pauses.
        Pause(u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            8 => (any::<bool>(), 1u64..300).prop_map(|(write, takes)| Event::Ask { write, takes }),
            1 => Just(Event::CutOff),
            4 => (1u64..4_000).prop_map(Event::Pause),
        ]
    }

    /// The leader's side: the follower reports every `tick` which sessions were active since.
    struct Servers {
        tick: u64,
        reported: u64,
        heard: bool,
        last: u64,
        cut: bool,
    }

    impl Servers {
        /// Advances time to `now`. `false`: the session expired.
        fn pass(&mut self, now: u64) -> bool {
            while self.reported + self.tick <= now {
                self.reported += self.tick;
                if self.reported > self.last + T {
                    return false;
                }
                if self.heard && !self.cut {
                    self.last = self.reported;
                    self.heard = false;
                }
            }
            now <= self.last + T
        }
    }

    /// What the client takes as proof that the leader knows of it.
    #[derive(Clone, Copy, Debug)]
    enum Believes {
        /// A write, for everything answered at least `lag` before it.
        Writes { lag: u64 },
        /// Any answer.
        Reads,
    }

    fn simulate(believes: Believes, events: &[Event], tick: u64, offset: u64) -> Result<(), TestCaseError> {
        let mut now = 10_000;
        let lag = if let Believes::Writes { lag } = believes { lag } else { 0 };
        let mut proof = Proof::new(at(now), Duration::from_millis(T), Duration::from_millis(lag));
        let mut servers = Servers { tick, reported: now - offset.min(tick), heard: false, last: now, cut: false };
        for event in events {
            let alive = match *event {
                Event::Pause(ms) => {
                    now += ms;
                    servers.pass(now)
                }
                Event::CutOff => {
                    servers.cut = true;
                    true
                }
                Event::Ask { write, takes } => {
                    let sent = now;
                    // The request arrives half way.
                    let arrives = servers.pass(now + takes / 2);
                    servers.heard = true;
                    now += takes;
                    let answered = arrives && servers.pass(now) && !(write && servers.cut);
                    match (answered, believes) {
                        (false, _) => {}
                        (true, Believes::Reads) => proof.proven = proof.proven.max(at(sent)),
                        (true, Believes::Writes { .. }) if write => proof.committed(at(sent), at(now)),
                        (true, Believes::Writes { .. }) => proof.heard(at(sent), at(now)),
                    }
                    servers.pass(now)
                }
            };
            if !alive {
                let ended = servers.last + T;
                prop_assert!(at(ended) >= proof.until(), "ended at {ended} before {:?}", proof.until());
                return Ok(());
            }
        }
        Ok(())
    }

    /// Controls: each known mistake must fail in the simulation.
    fn finds_the_mistake(believes: Believes) {
        let config = ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() };
        let inputs = (prop::collection::vec(event(), 0..60), 1u64..T / 4, 0u64..T / 4);
        let found = proptest::test_runner::TestRunner::new(config)
            .run(&inputs, |(events, tick, offset)| simulate(believes, &events, tick, offset));
        assert!(found.is_err(), "{believes:?} went well");
    }

    #[test]
    fn who_takes_answered_reads_for_a_sign_holds_on_too_long() {
        finds_the_mistake(Believes::Reads);
    }

    #[test]
    fn who_counts_from_the_last_answer_before_a_write_holds_on_too_long() {
        finds_the_mistake(Believes::Writes { lag: 0 });
    }

    #[test]
    fn an_idle_session_remembers_little() {
        let mut proof = Proof::new(at(0), Duration::from_millis(T), Duration::from_millis(T / 4));
        for beat in 1..10_000 {
            proof.heard(at(beat * T / 6), at(beat * T / 6 + 1));
        }
        assert!(proof.heard.len() < 10, "{} answers", proof.heard.len());
        proof.committed(at(10_000 * T / 6), at(10_000 * T / 6 + 1));
        assert!(proof.until() > at(10_000 * T / 6 + T / 2), "and enough");
    }

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(feature = "nightly") { 2_000 } else { 500 }))]

        /// Whatever requests are sent and whenever the follower is cut off: the leader never
        /// expires the session before `until`.
        #[test]
        fn the_leader_never_ends_what_is_proven(events in prop::collection::vec(event(), 0..60), tick in 1u64..T / 4, offset in 0u64..T / 4) {
            simulate(Believes::Writes { lag: T / 4 }, &events, tick, offset)?;
        }

        /// With a read every sixth and a write every third of the timeout, more than half of the
        /// timeout is left after each write.
        #[test]
        fn a_session_that_is_looked_after_never_runs_low(rounds in 3u64..30, jitter in 0u64..100) {
            let mut proof = Proof::new(at(0), Duration::from_millis(T), Duration::from_millis(T / 4));
            for round in 1..=rounds {
                let sent = round * T / 6 + jitter;
                if round % 2 == 1 {
                    proof.heard(at(sent), at(sent + 1));
                } else {
                    proof.committed(at(sent), at(sent + 1));
                    prop_assert!(proof.until() >= at(sent + T / 2));
                }
            }
        }
    }

    #[test]
    fn a_write_alone_proves_nothing_new() {
        let mut proof = Proof::new(at(0), Duration::from_secs(8), Duration::from_secs(2));
        proof.committed(at(7_000), at(7_001));
        assert_eq!(proof.until(), at(8_000), "the follower may die before it reports");
        proof.committed(at(9_001), at(9_002));
        assert_eq!(proof.until(), at(15_000));
    }
}
