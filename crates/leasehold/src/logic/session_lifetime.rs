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

/// Until when a session certainly lives, on this client's clock.
#[derive(Clone, Debug)]
pub struct SessionLifetime {
    /// The session's timeout: the leader expires it after this time without activity.
    timeout: Duration,
    /// The longest time between two reports of a follower to the leader.
    report_interval: Duration,
    /// Requests that a server answered, but that the leader may not know of: when each was sent,
    /// and when it was answered.
    unproven_answers: VecDeque<(Instant, Instant)>,
    /// The leader knows of activity of the session at this time or later.
    proven_at: Instant,
}

impl SessionLifetime {
    /// A session with this timeout, which the leader opened after `requested_at`. A follower's
    /// reports to the leader are at most `report_interval` apart.
    pub fn new(requested_at: Instant, timeout: Duration, report_interval: Duration) -> Self {
        Self { timeout, report_interval, unproven_answers: VecDeque::new(), proven_at: requested_at }
    }

    /// Stores that a server answered, at `now`, a request that was sent at `sent`. This alone
    /// proves nothing; a later write may.
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

    /// Stores that a server answered, at `now`, a write that was sent at `sent`. It proves all
    /// requests that were answered at least a report interval before `sent`.
    pub fn record_commit(&mut self, sent: Instant, now: Instant) {
        let reported_by = sent.saturating_sub(self.report_interval);
        while let Some((first, answered)) = self.unproven_answers.front().copied() {
            if answered > reported_by {
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

    /// The session's timeout, in ms.
    const T: u64 = 8_000;

    /// An event; times are in ms.
    #[derive(Clone, Debug)]
    enum Event {
        /// The client sends a request and gets an answer after the time `takes`. A write is
        /// answered only if the follower reaches its leader.
        Request { write: bool, takes: u64 },
        /// The follower is partitioned from its leader and keeps answering reads.
        Partition,
        /// The client does nothing for this time.
        Pause(u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            8 => (any::<bool>(), 1u64..300).prop_map(|(write, takes)| Event::Request { write, takes }),
            1 => Just(Event::Partition),
            4 => (1u64..4_000).prop_map(Event::Pause),
        ]
    }

    /// A follower and its leader. Times are in ms.
    struct ServerModel {
        /// The time between two reports of the follower.
        report_interval: u64,
        /// When the follower reported last.
        reported_at: u64,
        /// Whether a request reached the follower since its last report.
        is_active: bool,
        /// The last activity of the session that the leader knows of.
        last_activity: u64,
        /// Whether the follower does not reach the leader.
        is_partitioned: bool,
    }

    impl ServerModel {
        /// Advances time to `now`. `false`: the session expired.
        fn advance_to(&mut self, now: u64) -> bool {
            while self.reported_at + self.report_interval <= now {
                self.reported_at += self.report_interval;
                if self.reported_at > self.last_activity + T {
                    return false;
                }
                if self.is_active && !self.is_partitioned {
                    self.last_activity = self.reported_at;
                    self.is_active = false;
                }
            }
            now <= self.last_activity + T
        }
    }

    /// What the client accepts as proof that the leader knows of the session's activity.
    #[derive(Clone, Copy, Debug)]
    enum ProofRule {
        /// A write proves all requests that were answered at least `lag` ms before it.
        Writes { lag: u64 },
        /// Any answer proves its request.
        Reads,
    }

    /// Fails if the leader expires the session before the time that the client computes by `rule`.
    /// The follower reports every `report_interval` ms, first after `offset` ms less.
    fn simulate(rule: ProofRule, events: &[Event], report_interval: u64, offset: u64) -> Result<(), TestCaseError> {
        let mut now = 10_000;
        let lag = if let ProofRule::Writes { lag } = rule { lag } else { 0 };
        let mut lifetime = SessionLifetime::new(at(now), Duration::from_millis(T), Duration::from_millis(lag));
        let mut servers = ServerModel {
            report_interval,
            reported_at: now - offset.min(report_interval),
            is_active: false,
            last_activity: now,
            is_partitioned: false,
        };
        for event in events {
            let alive = match *event {
                Event::Pause(ms) => {
                    now += ms;
                    servers.advance_to(now)
                }
                Event::Partition => {
                    servers.is_partitioned = true;
                    true
                }
                Event::Request { write, takes } => {
                    let sent = now;
                    // The request arrives half way.
                    let arrives = servers.advance_to(now + takes / 2);
                    servers.is_active = true;
                    now += takes;
                    let answered = arrives && servers.advance_to(now) && !(write && servers.is_partitioned);
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
                let ended = servers.last_activity + T;
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

    /// Requires that the simulation finds a failure of this wrong rule.
    fn assert_rule_fails(rule: ProofRule) {
        let config = ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() };
        let inputs = (prop::collection::vec(event(), 0..60), 1u64..T / 4, 0u64..T / 4);
        let found = proptest::test_runner::TestRunner::new(config)
            .run(&inputs, |(events, report_interval, offset)| simulate(rule, &events, report_interval, offset));
        assert!(found.is_err(), "no history shows that {rule:?} is wrong");
    }

    #[test]
    fn counting_answered_reads_overestimates_the_session() {
        assert_rule_fails(ProofRule::Reads);
    }

    #[test]
    fn counting_from_the_last_answer_before_a_write_overestimates_the_session() {
        assert_rule_fails(ProofRule::Writes { lag: 0 });
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
        fn the_leader_never_expires_a_session_within_its_proven_lifetime(
            events in prop::collection::vec(event(), 0..60), report_interval in 1u64..T / 4, offset in 0u64..T / 4,
        ) {
            simulate(ProofRule::Writes { lag: T / 4 }, &events, report_interval, offset)?;
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
