//! Judges sessions: how long they may be, how soon the leader learns of their activity, and whether
//! they survive a failover.

use std::time::Duration;

use super::super::facts::{Fact, Facts, Role, Server, UnknownReason};
use super::{fail, format_short, ok, unknown, warn};
use crate::Finding;
use leasehold_internals::zookeeper::MIN_TTL;

/// The time to elect and announce a new leader, after the old one was unreachable for long enough.
const ELECTION: Duration = Duration::from_secs(1);

/// The settings that should be equal on all servers.
const COMMON_SETTINGS: [&str; 5] = ["tickTime", "minSessionTimeout", "maxSessionTimeout", "initLimit", "syncLimit"];

/// The longest timeout that a server granted; derived from its settings where there was no session.
fn negotiated_timeout(facts: &Facts) -> Fact<Duration> {
    let visits = facts.servers.iter().filter_map(|server| Some(server.session.as_ref().ok()?.timeout));
    if let Some(longest) = visits.max() {
        return Ok(longest);
    }
    let mut last = UnknownReason::not_reported("its session timeouts");
    for server in &facts.servers {
        match (server.setting("minSessionTimeout"), server.setting("maxSessionTimeout")) {
            (Ok(least), Ok(most)) => {
                let requested = facts.requirements.requested_timeout().min(Duration::from_millis(most));
                return Ok(requested.max(Duration::from_millis(least)));
            }
            (Err(reason), _) | (_, Err(reason)) => last = reason,
        }
    }
    Err(last)
}

/// Judges whether the servers grant sessions that fit the locks' TTL.
pub(super) fn judge_session_timeout(facts: &Facts) -> Finding {
    let (check, requirements) = ("session-timeout", &facts.requirements);
    let (ttl, requested) = (requirements.ttl, requirements.requested_timeout());
    let refused =
        format!("a dead holder's lock is free only when its session ends: locks of {} are refused", format_short(ttl));
    if ttl < MIN_TTL {
        return fail(
            check,
            "",
            format!("the TTL is {}; the shortest possible is {}", format_short(ttl), format_short(MIN_TTL)),
        )
        .impact(refused)
        .fix(format!("a TTL of {} or more", format_short(MIN_TTL)));
    }
    if requested > ttl {
        return fail(
            check,
            "",
            format!(
                "session-timeout={} in the URL is longer than the TTL, {}",
                format_short(requested),
                format_short(ttl)
            ),
        )
        .impact(refused)
        .fix(format!("a shorter session-timeout=, or a TTL of {} or more", format_short(requested)));
    }
    match negotiated_timeout(facts) {
        Ok(got) if got > ttl => fail(check, "", format!("the shortest session is {}; the TTL is {}", format_short(got), format_short(ttl)))
            .impact(refused)
            .fix(format!(
                "a TTL of {} or more; or a lower tickTime, whose double is the shortest session (minSessionTimeout)",
                format_short(got)
            )),
        Ok(got) if got < requested => {
            ok(check, "", format!("the longest session is {}; the TTL is {}", format_short(got), format_short(ttl))).impact(format!(
                "locks have sessions of {0}: they are renewed more often, and a holder that is cut off loses them after {0}",
                format_short(got)
            ))
        }
        Ok(got) => ok(check, "", format!("sessions of {} are granted", format_short(got)))
            .impact("a dead holder's lock is free after that, at the latest"),
        Err(reason) => unknown(check, "", &reason).impact("a TTL below the shortest session is refused"),
    }
}

/// The longest `tickTime` of all servers.
fn longest_tick(facts: &Facts) -> Fact<Duration> {
    let mut longest = None;
    let mut last = UnknownReason::not_reported("tickTime");
    for server in &facts.servers {
        match server.setting("tickTime") {
            Ok(tick) => longest = longest.max(Some(tick)),
            Err(reason) => last = reason,
        }
    }
    longest.map(Duration::from_millis).ok_or(last)
}

/// Judges whether the leader learns of active sessions in time. Followers report them twice per
/// tick, and locks rely on four reports within a session's timeout.
pub(super) fn judge_ticks(facts: &Facts) -> Finding {
    let check = "tick-time";
    let broken = "the leader may learn of a session's activity too late, and end it while its holder relies on it: two clients may hold one lock";
    let fix = "leave minSessionTimeout unset, or at least twice the tickTime; on all servers";
    if facts.servers.iter().all(|server| server.role() == Ok(Role::Standalone)) {
        return ok(check, "", "one server, standalone").impact("it learns of each session's activity directly");
    }
    let (tick, session) = match (longest_tick(facts), negotiated_timeout(facts)) {
        (Ok(tick), Ok(session)) => (tick, session),
        (Err(reason), _) | (_, Err(reason)) => {
            return unknown(check, "", &reason).impact(format!("with sessions shorter than two ticks, {broken}"));
        }
    };
    let found = format!("tickTime is {}, and the session {}", format_short(tick), format_short(session));
    if session < tick * 2 {
        return fail(check, "", found)
            .impact(broken)
            .fix(format!("{fix}; or a TTL of {} or more", format_short(tick * 2)));
    }
    let least = facts.servers.iter().filter_map(|server| server.setting("minSessionTimeout").ok()).min();
    match least.map(Duration::from_millis) {
        Some(least) if least < tick * 2 => warn(
            check,
            "",
            format!("minSessionTimeout is {}, and tickTime {}", format_short(least), format_short(tick)),
        )
        .impact(format!("a TTL of {} is safe; with shorter ones, {broken}", format_short(facts.requirements.ttl)))
        .fix(fix),
        _ => ok(check, "", found)
            .impact("the leader learns of a session's activity at least four times within its timeout"),
    }
}

/// Judges whether a failover fits into the minimum time left of a lease; `None` for a standalone
/// server. A renewal is certain to give seven twelfths of the session timeout, and a lease is
/// renewed when half of that is over.
pub(super) fn judge_failover(facts: &Facts) -> Option<Finding> {
    let check = "failover-time";
    if facts.servers.iter().any(|server| server.role() == Ok(Role::Standalone)) {
        return None;
    }
    let means = "leases end if there is no leader for long";
    let silence = |server: &Server| Ok((server.setting("tickTime")?, server.setting("syncLimit")?));
    let mut longest = None;
    let mut last = UnknownReason::not_reported("syncLimit");
    for server in &facts.servers {
        match silence(server) {
            Ok((tick, limit)) => longest = longest.max(Some(tick.saturating_mul(limit))),
            Err(reason) => last = reason,
        }
    }
    let (silence, session) = match (longest.map(Duration::from_millis).ok_or(last), negotiated_timeout(facts)) {
        (Ok(silence), Ok(session)) => (silence, session),
        (Err(reason), _) | (_, Err(reason)) => return Some(unknown(check, "", &reason).impact(means)),
    };
    let (duration, left) = (silence + ELECTION, session * 7 / 24);
    let found = format!("syncLimit x tickTime is {}; sessions are {}", format_short(silence), format_short(session));
    Some(if duration <= left {
        ok(check, "", found)
            .impact(format!("a fail-over of about {} fits into the remaining leases", format_short(duration)))
    } else {
        let enough = Duration::from_secs((duration * 24 / 7).as_secs() + 1);
        warn(check, "", found)
            .impact(format!(
                "followers detect a leader that ends at once; one that is cut off, or whose machine dies, only after {}, and then the election follows. Leases may have only {} left, then end, and their holders lose them",
                format_short(silence),
                format_short(left)
            ))
            .fix(format!("a lower syncLimit or tickTime, or a TTL of {} or more", format_short(enough)))
    })
}

/// Warns if the servers have different settings; `None` if not.
pub(super) fn judge_settings(servers: &[Server]) -> Option<Finding> {
    let differ = |key: &&&str| {
        let mut values = servers.iter().filter_map(|server| server.setting(key).ok());
        let first = values.next();
        values.any(|value| Some(value) != first)
    };
    let keys: Vec<_> = COMMON_SETTINGS.iter().filter(differ).copied().collect();
    (!keys.is_empty()).then(|| {
        warn("settings", "", format!("not the same on all servers: {}", keys.join(", ")))
            .impact("sessions and fail-over times depend on the leader and on the server that a client uses")
            .fix("the same zoo.cfg on all servers")
    })
}

#[cfg(test)]
mod tests {
    use super::super::sample::{assert_level, standalone, three_servers};
    use super::*;
    use crate::Level::{Fail, Ok as Good, Unknown, Warn};

    fn with_ttl_and_session(seconds: u64, got: u64) -> Facts {
        let mut facts = three_servers();
        facts.requirements.ttl = Duration::from_secs(seconds);
        for server in &mut facts.servers {
            server.session.as_mut().unwrap().timeout = Duration::from_secs(got);
        }
        facts
    }

    fn without_sessions(mut facts: Facts) -> Facts {
        facts.servers.iter_mut().for_each(|server| server.session = Err(UnknownReason::NotServing));
        facts
    }

    fn with_conf(mut facts: Facts, key: &str, value: &str) -> Facts {
        facts.servers = facts.servers.into_iter().map(|server| server.with_conf(key, value)).collect();
        facts
    }

    #[test]
    fn session_timeouts_are_compared_with_the_ttl() {
        assert_level(&judge_session_timeout(&with_ttl_and_session(10, 10)), Good, "10 s are granted");
        assert_level(&judge_session_timeout(&with_ttl_and_session(60, 40)), Good, "renewed more often");
        assert_level(&judge_session_timeout(&with_ttl_and_session(2, 4)), Fail, "a TTL of 4 s or more");
        let mut facts = with_ttl_and_session(10, 10);
        facts.requirements.session_timeout = Some(Duration::from_secs(20));
        assert_level(&judge_session_timeout(&facts), Fail, "session-timeout=");
        facts.requirements.session_timeout = Some(Duration::from_secs(5));
        assert_level(&judge_session_timeout(&facts), Good, "granted");
        facts.requirements.ttl = Duration::from_millis(500);
        assert_level(&judge_session_timeout(&facts), Fail, "the shortest possible is 2 s");
        // Without sessions, the settings count: they allow 1 s to 10 s.
        assert_level(
            &judge_session_timeout(&without_sessions(with_ttl_and_session(30, 0))),
            Good,
            "longest session is 10 s",
        );
        let mut blind = without_sessions(with_ttl_and_session(30, 0));
        blind.servers.iter_mut().for_each(|server| server.conf = Err(UnknownReason::NotWhitelisted("conf")));
        assert_level(&judge_session_timeout(&blind), Unknown, "4lw.commands.whitelist");
    }

    #[test]
    fn ticks_too_long_for_a_session_fail() {
        assert_level(&judge_ticks(&with_ttl_and_session(10, 10)), Good, "four times");
        let low = |facts| with_conf(facts, "minSessionTimeout", "500");
        assert_level(
            &judge_ticks(&low(with_conf(with_ttl_and_session(10, 10), "tickTime", "2000"))),
            Warn,
            "with shorter ones",
        );
        assert_level(
            &judge_ticks(&low(with_conf(with_ttl_and_session(3, 3), "tickTime", "2000"))),
            Fail,
            "two clients may hold one lock",
        );
        let mut blind = with_ttl_and_session(10, 10);
        blind.servers.iter_mut().for_each(|server| server.conf = Err(UnknownReason::TlsOnly));
        assert_level(&judge_ticks(&blind), Unknown, "two ticks");
        blind.servers = vec![standalone("h")];
        assert_level(&judge_ticks(&blind), Good, "directly");
    }

    #[test]
    fn a_failover_longer_than_a_lease_is_a_warning() {
        // syncLimit x tickTime is 2.5 s, and the election takes 1 s.
        assert_level(&judge_failover(&with_ttl_and_session(30, 12)).unwrap(), Good, "3.5 s");
        assert_level(&judge_failover(&with_ttl_and_session(30, 11)).unwrap(), Warn, "a TTL of 13 s or more");
        assert_level(
            &judge_failover(&with_conf(with_ttl_and_session(30, 30), "tickTime", "2000")).unwrap(),
            Warn,
            "only after 10 s",
        );
        let mut facts = with_ttl_and_session(30, 30);
        facts.servers.iter_mut().for_each(|server| server.conf = Err(UnknownReason::NotWhitelisted("conf")));
        assert_level(&judge_failover(&facts).unwrap(), Unknown, "no leader");
        facts.servers = vec![standalone("h")];
        assert_eq!(judge_failover(&facts), None);
    }

    #[test]
    fn different_settings_are_a_warning() {
        let mut facts = three_servers();
        assert_eq!(judge_settings(&facts.servers), None);
        facts.servers[1] = facts.servers[1].clone().with_conf("tickTime", "2000");
        assert_level(&judge_settings(&facts.servers).unwrap(), Warn, "all servers: tickTime");
    }
}
