//! Judges the Sentinels: whether they are reachable, agree, and are fast enough.

use std::time::Duration;

use super::super::facts::Requirements;
use super::super::query::QueryError;
use super::super::sentinel::SentinelView;
use super::timing::judge_failover;
use super::{fail, format_short, ok, unknown, warn};
use crate::Finding;
use leasehold::{Error, ErrorKind};

const PERMISSION_FIX: &str = "let the Sentinels' user run SENTINEL (sentinel-user= and sentinel-password= in the URL)";

/// The finding for a Sentinel that is unreachable.
pub(crate) fn judge_unreachable(address: &str, error: &Error) -> Finding {
    let fix = match error.kind() {
        ErrorKind::Denied => "correct sentinel-user= and sentinel-password= in the URL",
        _ => "start it, or take it out of the URL",
    };
    warn("sentinel-reachable", address, error.to_string())
        .impact("clients have one Sentinel less to find the master")
        .fix(fix)
}

/// All findings about the Sentinels that answered, for the master `name`.
pub(crate) fn judge_sentinels(sentinels: &[SentinelView], name: &str, requirements: &Requirements) -> Vec<Finding> {
    if sentinels.is_empty() {
        let finding = fail("sentinels", "", "no Sentinel is reachable")
            .impact("the master is unknown, so no lock can be acquired")
            .fix("start them, or correct their addresses in the URL");
        return vec![finding];
    }
    let mut findings = vec![judge_master(sentinels, name), judge_count(sentinels)];
    findings.extend(sentinels.iter().map(judge_quorum));
    findings.extend(judge_promotable_replicas(sentinels));
    findings.push(judge_failover_time(sentinels, requirements));
    findings
}

/// Judges whether all Sentinels name the same master.
fn judge_master(sentinels: &[SentinelView], name: &str) -> Finding {
    let check = "sentinel-master";
    let reply: Vec<_> = sentinels.iter().filter_map(|one| Some((one, one.master.as_ref().ok()?))).collect();
    let Some((_, first)) = reply.first() else {
        let why = sentinels[0].master.as_ref().err().map(QueryError::to_string).unwrap_or_default();
        return fail(check, "", format!("no Sentinel names the master: {why}")).impact("no lock can be acquired").fix(
            format!(
                "correct the name in the URL ({name:?}), or let them monitor it: SENTINEL MONITOR; {PERMISSION_FIX}"
            ),
        );
    };
    if reply.iter().any(|(_, master)| master != first) {
        let all: Vec<_> = reply.iter().map(|(one, master)| format!("{} names {master}", one.address)).collect();
        return fail(check, "", all.join("; "))
            .impact("clients of different Sentinels use different masters: two clients may hold one lock")
            .fix(
                "examine it again in a minute: after a failover they agree; if not, SENTINEL RESET on the wrong ones",
            );
    }
    match sentinels.len() - reply.len() {
        0 => ok(check, "", format!("all agree that {name} is {first}")).impact("all clients use the same master"),
        silent => warn(check, "", format!("{silent} of {} do not know {name}", sentinels.len()))
            .impact("clients of these Sentinels find no master")
            .fix(format!("let them monitor it, too: SENTINEL MONITOR {name} …; or take them out of the URL")),
    }
}

/// Warns if there are fewer than three Sentinels.
fn judge_count(sentinels: &[SentinelView]) -> Finding {
    let check = "sentinels";
    let most = sentinels.iter().filter_map(|one| one.number("num-other-sentinels").ok()).max();
    let Some(count) = most.map(|others| others + 1) else {
        return unknown(check, "", &QueryError::missing("how many Sentinels there are"))
            .impact("fewer than three cannot agree on a failover when one is down")
            .fix(PERMISSION_FIX);
    };
    if count >= 3 {
        return ok(check, "", format!("{count} Sentinels"))
            .impact("when one is down, the others still agree on a failover");
    }
    warn(check, "", format!("{count} Sentinels"))
        .impact("when one is down, there is no failover: locks are blocked until the master is back")
        .fix("three Sentinels, on three machines")
}

/// Judges whether this Sentinel reaches enough others for a failover.
fn judge_quorum(one: &SentinelView) -> Finding {
    let (check, address) = ("sentinel-quorum", &one.address);
    let means = "there is no failover when the master dies: locks are blocked until it is back";
    match &one.quorum {
        Ok(reply) => ok(check, address, reply).impact("there is a failover when the master dies"),
        Err(QueryError::Refused(reply)) if reply.contains("NOQUORUM") => warn(check, address, reply)
            .impact(means)
            .fix("bring the missing Sentinels back, or lower the quorum: SENTINEL SET"),
        Err(error) => unknown(check, address, error).impact(means).fix(PERMISSION_FIX),
    }
}

/// Warns if the master has no replica that could be promoted; `None` if it has one, or that is not
/// known.
fn judge_promotable_replicas(sentinels: &[SentinelView]) -> Option<Finding> {
    let most = sentinels.iter().filter_map(|one| one.number("num-slaves").ok()).max()?;
    (most == 0).then(|| {
        warn("sentinel-replicas", "", "the master has no replica")
            .impact("no replica can replace it: locks are blocked until it is back")
            .fix("a replica on another machine: REPLICAOF")
    })
}

/// How long the master must be unreachable before another is promoted: the shortest setting of all
/// Sentinels.
pub(crate) fn shortest_failover_delay(sentinels: &[SentinelView]) -> Option<Duration> {
    let delays = sentinels.iter().filter_map(|one| one.number("down-after-milliseconds").ok());
    delays.min().map(Duration::from_millis)
}

/// Judges whether a failover fits into a lease, by the Sentinels' settings.
fn judge_failover_time(sentinels: &[SentinelView], requirements: &Requirements) -> Finding {
    let longest = |key| sentinels.iter().filter_map(|one| one.number(key).ok()).max().map(Duration::from_millis);
    let Some(silence) = longest("down-after-milliseconds") else {
        return unknown("failover-time", "", &QueryError::missing("down-after-milliseconds"))
            .impact("a failover longer than two thirds of a lease loses held locks")
            .fix(PERMISSION_FIX);
    };
    let again = longest("failover-timeout")
        .map(|again| format!("; a failed one is retried after twice failover-timeout ({})", format_short(again)));
    let found = format!("down-after-milliseconds is {}{}", format_short(silence), again.unwrap_or_default());
    judge_failover("", silence, &found, requirements).with_setting_to_fix("down-after-milliseconds")
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{assert_level, requirements};
    use super::*;
    use crate::Level::{Fail, Ok as Good, Unknown, Warn};

    fn sentinel_view(port: u16) -> SentinelView {
        let about = [
            ("num-other-sentinels", "2"),
            ("num-slaves", "1"),
            ("down-after-milliseconds", "5000"),
            ("failover-timeout", "60000"),
        ];
        SentinelView {
            address: format!("s:{port}"),
            master: Ok("m:6379".into()),
            master_info: Ok(about.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            quorum: Ok("OK 3 usable Sentinels.".into()),
        }
    }

    fn sentinel_with(key: &str, value: &str) -> Vec<SentinelView> {
        let mut one = sentinel_view(1);
        one.master_info.as_mut().unwrap().insert(key.into(), value.into());
        vec![one]
    }

    #[test]
    fn three_sentinels_that_agree_are_ok() {
        let all = judge_sentinels(&[sentinel_view(1), sentinel_view(2), sentinel_view(3)], "mymaster", &requirements());
        assert!(all.iter().all(|finding| finding.level == Good && finding.fix.is_empty()), "{all:?}");
    }

    #[test]
    fn no_sentinel_knows_the_master() {
        assert_level(&judge_sentinels(&[], "m", &requirements())[0], Fail, "no Sentinel is reachable");
        let lost = SentinelView { master: Err(QueryError::Refused("it knows no master".into())), ..sentinel_view(1) };
        assert_level(&judge_master(std::slice::from_ref(&lost), "m"), Fail, "SENTINEL MONITOR");
        assert_level(&judge_master(&[sentinel_view(2), lost], "m"), Warn, "1 of 2");
        assert_level(&judge_unreachable("s:1", &Error::new(ErrorKind::Unavailable, "away")), Warn, "one Sentinel less");
    }

    #[test]
    fn sentinels_that_name_two_masters_fail() {
        let other = SentinelView { master: Ok("n:6379".into()), ..sentinel_view(2) };
        assert_level(&judge_master(&[sentinel_view(1), other], "m"), Fail, "s:2 names n:6379");
    }

    #[test]
    fn too_few_sentinels_and_a_missing_quorum_warn() {
        assert_level(&judge_count(&sentinel_with("num-other-sentinels", "1")), Warn, "three");
        assert_level(&judge_count(&sentinel_with("num-other-sentinels", "?")), Unknown, "sentinel-user");
        let without = |error| SentinelView { quorum: Err(error), ..sentinel_view(1) };
        assert_level(
            &judge_quorum(&without(QueryError::Refused("NOQUORUM 1 usable Sentinels".into()))),
            Warn,
            "no failover",
        );
        assert_level(&judge_quorum(&without(QueryError::Refused("NOPERM".into()))), Unknown, "SENTINEL");
        assert_level(&judge_promotable_replicas(&sentinel_with("num-slaves", "0")).unwrap(), Warn, "no replica");
    }

    #[test]
    fn a_failover_must_fit_into_a_lease() {
        assert_level(&judge_failover_time(&[sentinel_view(1)], &requirements()), Good, "6 s");
        assert_level(
            &judge_failover_time(&sentinel_with("down-after-milliseconds", "30000"), &requirements()),
            Warn,
            "31 s",
        );
        assert_level(
            &judge_failover_time(&sentinel_with("down-after-milliseconds", "?"), &requirements()),
            Unknown,
            "two thirds",
        );
        assert_eq!(shortest_failover_delay(&[sentinel_view(1)]), Some(Duration::from_secs(5)));
    }
}
