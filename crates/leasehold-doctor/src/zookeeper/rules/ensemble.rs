//! Judges the servers together: their number, the missing ones, and whether the URL lists all of
//! them.

use std::collections::BTreeSet;

use super::super::facts::{EnsembleFacts, Fact, Facts, Members, Role, Server, UnknownReason};
use super::{fail, format_count, ok, unknown, warn};
use crate::Finding;
use leasehold::ErrorKind;

/// Judges whether a session could be opened, which needs a leader that a majority follows.
pub(super) fn judge_quorum(facts: &Facts) -> Finding {
    match &facts.ensemble {
        Ok(_) => ok("quorum", "", "a session was opened").impact("there is a leader, and a majority follows it"),
        Err(error) if error.kind() == ErrorKind::Denied => fail("login", "", error.message_without_location())
            .impact("no lock can be acquired or renewed")
            .fix("correct the user and the password in the URL: zookeeper://user:password@host"),
        Err(error) => fail("quorum", "", error.message_without_location())
            .impact("no lock can be acquired or renewed; held locks end with their leases")
            .fix(match facts.servers.iter().any(|server| matches!(server.srvr, Err(UnknownReason::NotServing))) {
                true => "start the servers that are down, so that there is a majority; each has its own finding",
                false => "each server has its own finding with a fix",
            }),
    }
}

/// Whether the only server is no member of an ensemble.
fn is_standalone(servers: &[Server]) -> bool {
    servers.iter().any(|server| server.role() == Ok(Role::Standalone))
}

/// The number of voting servers, according to the ensemble.
fn count_voters(facts: &Facts, inside: &EnsembleFacts) -> Fact<usize> {
    if is_standalone(&facts.servers) {
        return Ok(1);
    }
    let voter_count = inside.members.as_ref().map_err(UnknownReason::clone).map(Members::count_voters);
    let size = || facts.servers.iter().find_map(|server| server.metric("zk_quorum_size").ok());
    match voter_count {
        Ok(0) | Err(_) if size().is_some() => Ok(size().and_then(|size| size.try_into().ok()).unwrap_or(0)),
        // A standalone server has no configuration; but then it should report that it is
        // standalone.
        Ok(0) => Err(UnknownReason::not_reported("its members (/zookeeper/config)")),
        other => other,
    }
}

/// Judges how many voting servers may fail.
pub(super) fn judge_size(facts: &Facts, inside: &EnsembleFacts) -> Finding {
    let check = "ensemble";
    let means = "a majority must run for locks to be acquired or renewed";
    let voters = match count_voters(facts, inside) {
        Ok(voters) => voters,
        Err(reason) => return unknown(check, "", &reason).impact(means),
    };
    let weighted = inside.members.as_ref().is_ok_and(|members| members.has_weights);
    let needed = voters / 2 + 1;
    let survived = voters - needed;
    match voters {
        _ if weighted => {
            let reason = UnknownReason::NotReported(format!(
                "{} with groups or weights, which are not counted here",
                format_count(voters, "voter")
            ));
            unknown(check, "", &reason)
                .impact(means)
                .fix("check which of them may fail; plain majorities need no check")
        }
        1 => warn(check, "", if is_standalone(&facts.servers) { "one server, standalone" } else { "one voter" })
            .impact("when it fails, no lock can be acquired or renewed until it is back; data on its disk is kept")
            .fix("three servers, on three machines"),
        even if even.is_multiple_of(2) => {
            warn(check, "", format!("{even} servers vote, of which {needed} are a majority"))
                .impact(format!(
                    "{} survived, as with {}; and two halves stop all",
                    format_failures(survived),
                    even - 1
                ))
                .fix("one voter more or less; or make one an observer")
        }
        odd => ok(check, "", format!("{odd} servers vote, of which {needed} are a majority"))
            .impact(format!("{} survived", format_failures(survived))),
    }
}

/// `2 failures are`, to be followed by `survived`.
fn format_failures(count: usize) -> String {
    match count {
        0 => "no failure is".to_owned(),
        1 => "1 failure is".to_owned(),
        _ => format!("{count} failures are"),
    }
}

/// Judges whether all voting servers are reachable and in sync with the leader.
pub(super) fn judge_members(facts: &Facts, inside: &EnsembleFacts) -> Finding {
    let check = "members";
    let means = "a server that is down or behind cannot replace another that fails";
    let voters = match count_voters(facts, inside) {
        Ok(voters) => voters,
        Err(reason) => return unknown(check, "", &reason).impact(means),
    };
    let present = match count_synced_voters(&facts.servers, voters) {
        Ok(present) => present,
        Err(reason) => return unknown(check, "", &reason).impact(means),
    };
    if present >= voters {
        return ok(check, "", format!("{present} of {voters} serve")).impact("all voters are running, and in sync");
    }
    let spare = present.saturating_sub(voters / 2 + 1);
    let means = match spare {
        0 => "none of the others may fail, or no lock can be acquired or renewed".to_owned(),
        _ => format!("only {spare} more may fail"),
    };
    warn(check, "", format!("{present} of {voters} serve, and are in sync with the leader"))
        .impact(means)
        .fix("start those that are down, and check their logs and the ports between the servers (server.N in zoo.cfg)")
}

/// How many of the `voters` are in sync, according to the leader.
fn count_synced_voters(servers: &[Server], voters: usize) -> Fact<usize> {
    let role = |server: &&Server, role| server.role() == Ok(role);
    if servers.iter().any(|server| role(&server, Role::Standalone)) {
        return Ok(1);
    }
    let leader = servers.iter().find(|server| role(server, Role::Leader));
    let counted = leader.map(|leader| {
        let others = leader.metric("zk_synced_non_voting_followers").unwrap_or(0);
        let followers = leader.metric("zk_synced_followers")?.saturating_sub(others);
        Ok(usize::try_from(followers).unwrap_or(usize::MAX).saturating_add(1))
    });
    let reason = match counted {
        Some(Ok(count)) => return Ok(count),
        Some(Err(reason)) => reason,
        None => {
            UnknownReason::NotReported("the leader is not among the servers of the URL, or does not report it".into())
        }
    };
    // If each voter serves, the leader's count is not needed.
    let votes = |server: &&Server| matches!(server.role(), Ok(Role::Leader | Role::Follower));
    let seen: BTreeSet<u8> =
        servers.iter().filter(votes).filter_map(|server| Some(server.session.as_ref().ok()?.server)).collect();
    if seen.len() >= voters { Ok(seen.len()) } else { Err(reason) }
}

/// Judges whether two addresses in the URL belong to one server, or to different ensembles.
pub(super) fn judge_distinct_servers(servers: &[Server]) -> Vec<Finding> {
    if servers.len() < 2 {
        return Vec::new();
    }
    let mut findings = judge_same_ensemble(servers);
    let pairs =
        servers.iter().enumerate().flat_map(|(index, one)| servers[index + 1..].iter().map(move |other| (one, other)));
    let same: Vec<_> = pairs.filter(|(one, other)| is_same_server(one, other)).collect();
    let check = "same-server";
    if let Some((one, other)) = same.first() {
        let found = format!("{} and {} are one server", one.address, other.address);
        findings.push(
            warn(check, "", found)
                .impact("the two addresses fail together: clients have fewer servers than the URL suggests")
                .fix("list each server once, by one address"),
        );
    } else if let Some(reason) = servers.iter().find_map(|server| server.session.as_ref().err()) {
        findings.push(unknown(check, "", reason).impact("two addresses of one server fail together"));
    } else {
        let found = format!("{} servers, all distinct", servers.len());
        findings.push(ok(check, "", found).impact("clients have as many servers as the URL lists"));
    }
    findings
}

/// Whether two addresses belong to one server, by the server's id or its IP addresses.
fn is_same_server(one: &Server, other: &Server) -> bool {
    let numbers = match (&one.session, &other.session) {
        (Ok(one), Ok(other)) => {
            one.server == other.server && one.sees_probe == Ok(true) && other.sees_probe == Ok(true)
        }
        _ => false,
    };
    numbers || one.addresses.iter().any(|place| other.addresses.contains(place))
}

/// Judges whether all servers see the probe lock, which one of them wrote.
fn judge_same_ensemble(servers: &[Server]) -> Vec<Finding> {
    let check = "same-ensemble";
    let blind =
        servers.iter().filter(|server| server.session.as_ref().is_ok_and(|visit| visit.sees_probe == Ok(false)));
    let blind: Vec<_> = blind.map(|server| server.address.as_str()).collect();
    if !blind.is_empty() {
        let found = format!("writes to the others are not visible at {}", blind.join(", "));
        return vec![
            fail(check, "", found)
                .impact("these are different ensembles, each with its own locks: two clients may hold one lock")
                .fix("only servers of one ensemble in the URL; standalone servers are independent"),
        ];
    }
    let hidden = servers.iter().find_map(|server| match &server.session {
        Ok(visit) => visit.sees_probe.as_ref().err(),
        Err(reason) => Some(reason),
    });
    vec![match hidden {
        Some(reason) => unknown(check, "", reason).impact("servers of different ensembles each have their own locks"),
        None => ok(check, "", "a write to one was visible at all").impact("all of them have the same locks"),
    }]
}

/// Judges whether the URL names all voting servers; `None` if their number is not known.
pub(super) fn judge_url_hosts(facts: &Facts, inside: &EnsembleFacts) -> Option<Finding> {
    let voters = count_voters(facts, inside).ok()?;
    let named: usize = facts.servers.iter().map(count_named_servers).sum();
    let check = "url-hosts";
    if named >= voters {
        let found = format!("the URL names {}, and {} vote", format_count(named, "server"), voters);
        return Some(ok(check, "", found).impact("a client uses another when its server fails"));
    }
    let hosts = inside.members.as_ref().ok().map(|members| {
        let hosts: Vec<_> = members.all.iter().filter(|one| one.is_voter).map(|one| one.host.as_str()).collect();
        format!(" ({})", hosts.join(", "))
    });
    Some(
        warn(check, "", format!("the URL lists {} of {voters} voters{}", named, hosts.unwrap_or_default()))
            .impact(
                "clients do not use the others: when those in the URL fail, locks are lost although a majority runs",
            )
            .fix("list all servers: zookeeper://h1,h2,h3"),
    )
}

/// How many servers a host name of the URL stands for: as many as it has addresses; one if these
/// are all of this machine.
fn count_named_servers(server: &Server) -> usize {
    if server.addresses.iter().all(|place| place.ip().is_loopback()) { 1 } else { server.addresses.len().max(1) }
}

/// Reports the members that do not vote; `None` if there are none.
pub(super) fn judge_observers(inside: &EnsembleFacts) -> Option<Finding> {
    let members = inside.members.as_ref().ok()?;
    let observers = members.all.len() - members.count_voters();
    (observers > 0).then(|| {
        ok("observers", "", format!("{} beside the voters", format_count(observers, "observer")))
            .impact("they serve reads and forward writes; locks do not need them, and are not affected")
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::{Member, ServerSession};
    use super::super::sample::{assert_level, follower, leader, standalone, three_servers};
    use super::*;
    use crate::Level::{Fail, Ok as Good, Unknown, Warn};

    fn with_voters(count: usize) -> Facts {
        let mut facts = three_servers();
        let member = |n: usize| Member { id: n.to_string(), host: format!("h{n}"), is_voter: true };
        facts.ensemble.as_mut().unwrap().members =
            Ok(Members { all: (1..=count).map(member).collect(), has_weights: false });
        facts
    }

    fn with<T>(facts: &Facts, rule: impl Fn(&Facts, &EnsembleFacts) -> T) -> T {
        rule(facts, facts.ensemble.as_ref().unwrap())
    }

    #[test]
    fn the_number_of_tolerated_failures_is_reported() {
        assert_level(&with(&with_voters(3), judge_size), Good, "1 failure is survived");
        assert_level(&with(&with_voters(5), judge_size), Good, "2 failures are survived");
        assert_level(&with(&with_voters(4), judge_size), Warn, "1 failure is survived, as with 3");
        assert_level(&with(&with_voters(2), judge_size), Warn, "no failure is survived, as with 1");
        assert_level(&with(&with_voters(1), judge_size), Warn, "three servers");
        let mut alone = with_voters(0);
        alone.servers = vec![standalone("h")];
        assert_level(&with(&alone, judge_size), Warn, "standalone");
        let mut odd = with_voters(3);
        odd.ensemble.as_mut().unwrap().members.as_mut().unwrap().has_weights = true;
        assert_level(&with(&odd, judge_size), Unknown, "weights");
        let mut quiet = with_voters(3);
        quiet.ensemble.as_mut().unwrap().members =
            Err(UnknownReason::RequestFailed(leasehold_zookeeper::Error::NoAuth));
        assert_level(&with(&quiet, judge_size), Good, "3 servers vote");
        quiet.servers.iter_mut().for_each(|server| server.mntr = Err(UnknownReason::NotWhitelisted("mntr")));
        assert_level(&with(&quiet, judge_size), Unknown, "majority");
    }

    #[test]
    fn missing_members_are_reported_by_the_leader() {
        assert_level(&with(&with_voters(3), judge_members), Good, "3 of 3");
        let mut less = with_voters(3);
        less.servers[0] = leader("h1").with_mntr("zk_synced_followers", "1");
        assert_level(&with(&less, judge_members), Warn, "none of the others may fail");
        let mut five = with_voters(5);
        five.servers[0] = leader("h1").with_mntr("zk_synced_followers", "3");
        assert_level(&with(&five, judge_members), Warn, "only 1 more may fail");
        // A follower that does not vote replaces no voter.
        less.servers[0] = leader("h1").with_mntr("zk_synced_non_voting_followers", "1");
        assert_level(&with(&less, judge_members), Warn, "2 of 3");
        // No server reports the count, but all are seen.
        let mut seen = with_voters(3);
        seen.servers.iter_mut().for_each(|server| server.mntr = Err(UnknownReason::NotWhitelisted("mntr")));
        assert_level(&with(&seen, judge_members), Good, "3 of 3");
        seen.servers.pop();
        assert_level(&with(&seen, judge_members), Unknown, "4lw.commands.whitelist");
        seen.servers.remove(0);
        assert_level(&with(&seen, judge_members), Unknown, "leader is not among");
    }

    #[test]
    fn duplicate_servers_and_separate_ensembles_are_reported() {
        let numbered = |address: &str, number, sees| {
            let server = follower(address);
            let visit = ServerSession { server: number, sees_probe: Ok(sees), ..server.session.clone().unwrap() };
            Server { session: Ok(visit), ..server }
        };
        let levels = |servers: &[Server]| {
            judge_distinct_servers(servers).iter().map(|one| (one.check, one.level)).collect::<Vec<_>>()
        };
        let good = [("same-ensemble", Good), ("same-server", Good)];
        assert_eq!(levels(&[numbered("a", 1, true), numbered("b", 2, true)]), good);
        assert_eq!(
            levels(&[numbered("a", 1, true), numbered("b", 1, true)]),
            [("same-ensemble", Good), ("same-server", Warn)]
        );
        // Two standalone servers have the same id.
        assert_eq!(
            levels(&[numbered("a", 1, true), numbered("b", 1, false)]),
            [("same-ensemble", Fail), ("same-server", Good)]
        );
        let mut silent = [numbered("a", 1, true), numbered("b", 2, true)];
        silent[1].session = Err(UnknownReason::NotServing);
        assert_eq!(levels(&silent), [("same-ensemble", Unknown), ("same-server", Unknown)]);
        silent[0].addresses = vec!["10.0.0.1:2181".parse().unwrap()];
        silent[1].addresses = silent[0].addresses.clone();
        assert_eq!(levels(&silent)[1], ("same-server", Warn));
        assert!(judge_distinct_servers(&silent[..1]).is_empty());
    }

    #[test]
    fn a_url_should_name_all_voters() {
        assert_level(&with(&three_servers(), judge_url_hosts).unwrap(), Good, "3 vote");
        let mut one = three_servers();
        one.servers.truncate(1);
        assert_level(&with(&one, judge_url_hosts).unwrap(), Warn, "1 of 3 voters (h1, h2, h3)");
        one.servers[0].addresses = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"].map(|text| text.parse().unwrap()).into();
        assert_level(&with(&one, judge_url_hosts).unwrap(), Good, "names 3 servers");
    }

    #[test]
    fn observers_and_a_missing_leader_are_reported() {
        let mut facts = with_voters(4);
        assert_eq!(judge_observers(facts.ensemble.as_ref().unwrap()), None);
        facts.ensemble.as_mut().unwrap().members.as_mut().unwrap().all[3].is_voter = false;
        assert_level(&judge_observers(facts.ensemble.as_ref().unwrap()).unwrap(), Good, "1 observer");
        assert_level(&with(&facts, judge_size), Good, "3 servers vote");
        assert_level(&judge_quorum(&facts), Good, "majority");
        facts.ensemble = Err(leasehold::Error::new(ErrorKind::Unavailable, "none has a majority"));
        assert_level(&judge_quorum(&facts), Fail, "none has a majority");
        facts.ensemble = Err(leasehold::Error::new(ErrorKind::Denied, "refused the user"));
        assert_level(&judge_quorum(&facts), Fail, "user:password@host");
    }
}
