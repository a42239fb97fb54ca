//! A lower bound on the life of a session, for engines whose locks end with a session.
//!
//! The leader of an ensemble expires a session that shows no activity for the session's timeout. A
//! client usually talks to a follower, which reports the active sessions to the leader only now and
//! then. An answered request therefore does not prove that the leader knows of it. A follower that
//! is partitioned from its leader answers reads for many more seconds.
//!
//! An answered *write* does prove it: the leader has processed it, on the same ordered connection
//! on which the follower reported before. Every request that was answered at least
//! `report_interval` before that write was sent is known to the leader by then.

use std::collections::VecDeque;
use std::time::Duration;

use crate::types::Instant;

/// The proven life of a session, on our own clock.
#[derive(Clone, Debug)]
pub struct SessionLifetime {
    timeout: Duration,
    report_interval: Duration,
    /// Requests that were answered, but that the leader may not know yet: send time and answer
    /// time.
    unproven_answers: VecDeque<(Instant, Instant)>,
    /// The leader knew of our activity at this time or later.
    proven_at: Instant,
}

impl SessionLifetime {
    /// A session with this timeout, which the leader opened after `requested_at`. A follower's
    /// reports are at most `report_interval` apart.
    pub fn new(requested_at: Instant, timeout: Duration, lag: Duration) -> Self {
        Self { timeout, report_interval: lag, unproven_answers: VecDeque::new(), proven_at: requested_at }
    }

    /// A server answered, at `now`, a request that was sent at `sent`.
    pub fn record_answer(&mut self, sent: Instant, now: Instant) {
        // A few samples per report interval are enough.
        let is_apart =
            self.unproven_answers.back().is_none_or(|(last, _)| sent.duration_since(*last) >= self.report_interval / 8);
        if sent > self.proven_at && is_apart {
            // A request older than the session timeout no longer proves anything.
            while self.unproven_answers.front().is_some_and(|(first, _)| now.duration_since(*first) > self.timeout) {
                self.unproven_answers.pop_front();
            }
            self.unproven_answers.push_back((sent, now));
        }
    }

    /// A server answered, at `now`, a write that was sent at `sent`.
    pub fn record_commit(&mut self, sent: Instant, now: Instant) {
        let known = sent.saturating_sub(self.report_interval);
        while let Some((first, answered)) = self.unproven_answers.front().copied() {
            if answered > known {
                break;
            }
            self.proven_at = self.proven_at.max(first);
            self.unproven_answers.pop_front();
        }
        self.record_answer(sent, now);
    }

    /// The leader does not expire the session before this time.
    pub fn lives_until(&self) -> Instant {
        self.proven_at.saturating_add(self.timeout)
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
    struct ServerModel {
        tick: u64,
        reported: u64,
        heard: bool,
        last: u64,
        cut: bool,
    }

    impl ServerModel {
        /// Advances time to `now`. `false`: the session expired.
        fn advance_to(&mut self, now: u64) -> bool {
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

    /// What the client accepts as proof that the leader knows of the session's activity.
    #[derive(Clone, Copy, Debug)]
    enum ProofRule {
        /// A write, for everything answered at least `report_interval` before it.
        Writes { lag: u64 },
        /// Any answer.
        Reads,
    }

    fn simulate(rule: ProofRule, events: &[Event], tick: u64, offset: u64) -> Result<(), TestCaseError> {
        let mut now = 10_000;
        let lag = if let ProofRule::Writes { lag } = rule { lag } else { 0 };
        let mut lifetime = SessionLifetime::new(at(now), Duration::from_millis(T), Duration::from_millis(lag));
        let mut servers = ServerModel { tick, reported: now - offset.min(tick), heard: false, last: now, cut: false };
        for event in events {
            let alive = match *event {
                Event::Pause(ms) => {
                    now += ms;
                    servers.advance_to(now)
                }
                Event::CutOff => {
                    servers.cut = true;
                    true
                }
                Event::Ask { write, takes } => {
                    let sent = now;
                    // The request arrives half way.
                    let arrives = servers.advance_to(now + takes / 2);
                    servers.heard = true;
                    now += takes;
                    let answered = arrives && servers.advance_to(now) && !(write && servers.cut);
                    match (answered, rule) {
                        (false, _) => {}
                        (true, ProofRule::Reads) => lifetime.proven_at = lifetime.proven_at.max(at(sent)),
                        (true, ProofRule::Writes { .. }) if write => lifetime.record_commit(at(sent), at(now)),
                        (true, ProofRule::Writes { .. }) => lifetime.record_answer(at(sent), at(now)),
                    }
                    servers.advance_to(now)
                }
            };
            if !alive {
                let ended = servers.last + T;
                prop_assert!(
                    at(ended) >= lifetime.lives_until(),
                    "ended at {ended} before {:?}",
                    lifetime.lives_until()
                );
                return Ok(());
            }
        }
        Ok(())
    }

    /// Controls: each known mistake must fail in the simulation.
    fn finds_the_flaw(believes: ProofRule) {
        let config = ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() };
        let inputs = (prop::collection::vec(event(), 0..60), 1u64..T / 4, 0u64..T / 4);
        let found = proptest::test_runner::TestRunner::new(config)
            .run(&inputs, |(events, tick, offset)| simulate(believes, &events, tick, offset));
        assert!(found.is_err(), "{believes:?} went well");
    }

    #[test]
    fn counting_answered_reads_overestimates_the_session() {
        finds_the_flaw(ProofRule::Reads);
    }

    #[test]
    fn counting_from_the_last_answer_before_a_write_overestimates_the_session() {
        finds_the_flaw(ProofRule::Writes { lag: 0 });
    }

    #[test]
    fn an_idle_session_stores_few_answers() {
        let mut lifetime = SessionLifetime::new(at(0), Duration::from_millis(T), Duration::from_millis(T / 4));
        for tick in 1..10_000 {
            lifetime.record_answer(at(tick * T / 6), at(tick * T / 6 + 1));
        }
        assert!(lifetime.unproven_answers.len() < 10, "{} answers", lifetime.unproven_answers.len());
        lifetime.record_commit(at(10_000 * T / 6), at(10_000 * T / 6 + 1));
        assert!(lifetime.lives_until() > at(10_000 * T / 6 + T / 2), "and enough");
    }

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(feature = "nightly") { 2_000 } else { 500 }))]

        /// For any requests, and any partition of the follower: the leader never expires the
        /// session before `lives_until`.
        #[test]
        fn the_leader_never_expires_a_session_within_its_proven_lifetime(events in prop::collection::vec(event(), 0..60), tick in 1u64..T / 4, offset in 0u64..T / 4) {
            simulate(ProofRule::Writes { lag: T / 4 }, &events, tick, offset)?;
        }

        /// With a read every sixth and a write every third of the timeout, more than half of the
        /// timeout is left after each write.
        #[test]
        fn a_regularly_renewed_session_keeps_half_of_its_timeout(rounds in 3u64..30, jitter in 0u64..100) {
            let mut lifetime = SessionLifetime::new(at(0), Duration::from_millis(T), Duration::from_millis(T / 4));
            for round in 1..=rounds {
                let sent = round * T / 6 + jitter;
                if round % 2 == 1 {
                    lifetime.record_answer(at(sent), at(sent + 1));
                } else {
                    lifetime.record_commit(at(sent), at(sent + 1));
                    prop_assert!(lifetime.lives_until() >= at(sent + T / 2));
                }
            }
        }
    }

    #[test]
    fn a_write_alone_proves_no_further_life() {
        let mut lifetime = SessionLifetime::new(at(0), Duration::from_secs(8), Duration::from_secs(2));
        lifetime.record_commit(at(7_000), at(7_001));
        assert_eq!(lifetime.lives_until(), at(8_000), "the follower may die before it reports");
        lifetime.record_commit(at(9_001), at(9_002));
        assert_eq!(lifetime.lives_until(), at(15_000));
    }
}
