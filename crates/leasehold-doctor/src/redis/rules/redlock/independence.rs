//! Whether the servers fail independently: servers, machines, versions.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::super::super::facts::NodeFacts;
use super::super::super::redlock::Voter;
use super::super::{access, ok, unknown, warn};
use crate::Finding;

/// Fails if two nodes are addresses of one server, which would vote twice.
pub(super) fn judge_same_server(nodes: &[&NodeFacts]) -> Vec<Finding> {
    let check = "same-server";
    let means =
        "one server votes twice: an apparent majority may be fewer servers, and they fail and lose data together";
    let all: Vec<NodeFacts> = nodes.iter().map(|node| (*node).clone()).collect();
    let mut findings: Vec<_> =
        access::judge_same_server(&all).into_iter().map(|finding| finding.impact(means)).collect();
    for node in nodes {
        if let Err(error) = node.info("run_id") {
            let finding = unknown(check, &node.address, &error).impact("it may be one of the others, by another name");
            findings.push(finding.fix("let this user run INFO: +info"));
        }
    }
    if findings.is_empty() && nodes.len() > 1 {
        let found = format!("{} servers answer, each another one (run_id)", nodes.len());
        findings.push(ok(check, "", found).impact("each votes once"));
    }
    findings
}

/// Warns if several nodes are on one machine, and would fail with it. `None` for a single node.
pub(super) fn judge_same_host(voters: &[Voter]) -> Option<Finding> {
    let check = "same-host";
    let mut groups: Vec<Vec<&Voter>> = Vec::new();
    for voter in voters {
        match groups.iter_mut().find(|group| group.iter().any(|other| share_host(voter, other))) {
            Some(group) => group.push(voter),
            None => groups.push(vec![voter]),
        }
    }
    groups.retain(|group| group.len() > 1);
    let Some(largest) = groups.iter().map(Vec::len).max() else {
        let found = format!("{} hosts, according to their addresses", voters.len());
        return (voters.len() > 1).then(|| ok(check, "", found).impact("they fail one by one"));
    };
    let needed = voters.len() / 2 + 1;
    let means = match voters.len() - largest {
        left if left >= needed => "when that machine fails, all of its votes are gone at once",
        _ => "when that machine fails, the majority is gone, and no lock can be acquired or renewed",
    };
    let here = groups.iter().all(|group| group.iter().all(|voter| is_loopback(voter)));
    let (found, means) = match (here, largest == voters.len()) {
        (true, true) => (
            format!("all {largest} are on this machine (loopback)"),
            format!("good for trying it out, but no safer than one server: {means}"),
        ),
        (false, true) => {
            (format!("all {largest} are on one machine"), format!("it is no safer than one server: {means}"))
        }
        _ => {
            let name = |group: &Vec<&Voter>| {
                let names: Vec<_> = group.iter().map(|voter| voter.address.to_string()).collect();
                format!("{} are on one machine", names.join(", "))
            };
            (groups.iter().map(name).collect::<Vec<_>>().join("; "), means.to_owned())
        }
    };
    Some(
        warn(check, "", found)
            .impact(means)
            .fix("each node on a machine of its own, with power and network of its own"),
    )
}

/// Whether a node is on this machine, by a loopback address.
fn is_loopback(voter: &Voter) -> bool {
    let named = voter.address.host.parse().ok();
    let mut places = voter.ips.iter().copied().chain(named);
    voter.address.host.eq_ignore_ascii_case("localhost") || places.any(|place: IpAddr| place.is_loopback())
}

/// Whether two nodes are on one machine, according to their host names and addresses.
fn share_host(one: &Voter, other: &Voter) -> bool {
    one.address.host.eq_ignore_ascii_case(&other.address.host)
        || one.ips.iter().any(|place| other.ips.contains(place))
        || is_loopback(one) && is_loopback(other)
}

/// Judges whether all nodes have the same version; `None` if they do.
pub(super) fn judge_versions(nodes: &[&NodeFacts]) -> Option<Finding> {
    let mut found: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for node in nodes {
        let version = match (node.info("valkey_version"), node.info("redis_version")) {
            (Ok(version), _) => format!("Valkey {version}"),
            (_, Ok(version)) => format!("Redis {version}"),
            // Another finding reports that the version is unknown.
            _ => continue,
        };
        found.entry(version).or_default().push(&node.address);
    }
    if found.len() < 2 {
        return None;
    }
    let line = |version: &str| version.rsplit_once('.').map_or(version, |(line, _)| line).to_owned();
    let mut lines: Vec<_> = found.keys().map(|version| line(version)).collect();
    lines.dedup();
    let all: Vec<_> = found.iter().map(|(version, names)| format!("{version}: {}", names.join(", "))).collect();
    let all = all.join("; ");
    Some(match lines.len() {
        1 => ok("versions", "", all).impact("they differ only in patch releases"),
        _ => warn("versions", "", all)
            .impact(
                "scripts, limits and defaults differ between versions: one server may refuse what the others accept",
            )
            .fix("the same version on all, once an update is complete"),
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::super::query::QueryError;
    use super::super::super::fixtures::assert_level;
    use super::super::fixtures::{five_voters, node, voter};
    use super::*;
    use crate::Level::{Fail, Ok as Good, Unknown, Warn};

    #[test]
    fn one_server_by_two_names_votes_twice() {
        assert_level(&judge_same_server(&[&node(1), &node(2)])[0], Good, "each votes once");
        let twice = judge_same_server(&[&node(1), &node(2), &NodeFacts { address: "h3:6379".into(), ..node(1) }]);
        assert_level(&twice[0], Fail, "same server as h1:6379");
        assert_level(&twice[0], Fail, "votes twice");
        let hidden = NodeFacts { info: Err(QueryError::Refused("NOPERM".into())), ..node(2) };
        assert_level(&judge_same_server(&[&node(1), &hidden])[0], Unknown, "+info");
    }

    #[test]
    fn nodes_on_one_machine_warn() {
        let hosts = |hosts: [&str; 5], port: u16| {
            let mut voters = five_voters();
            for (index, (voter, host)) in voters.iter_mut().zip(hosts).enumerate() {
                voter.address.host = host.to_owned();
                voter.address.port = port + index as u16;
                voter.ips.clear();
            }
            judge_same_host(&voters).unwrap()
        };
        assert_level(&judge_same_host(&five_voters()).unwrap(), Good, "one by one");
        assert_level(&hosts(["a", "b", "A", "c", "d"], 1), Warn, "a:1, A:3 are on one machine");
        assert_level(&hosts(["a", "b", "a", "c", "d"], 1), Warn, "all of its votes");
        assert_level(&hosts(["a", "b", "a", "c", "a"], 1), Warn, "the majority is gone");
        assert_level(&hosts(["a", "b", "a", "b", "d"], 1), Warn, "a:1, a:3 are on one machine; b:2, b:4 are");
        assert_level(&hosts(["a"; 5], 1), Warn, "no safer than one server");
        assert_level(&hosts(["127.0.0.1", "localhost", "::1", "127.0.0.2", "localhost"], 1), Warn, "loopback");
        let mut voters = five_voters();
        voters[4].ips = voters[0].ips.clone();
        assert_level(&judge_same_host(&voters).unwrap(), Warn, "h1:6379, h5:6379");
        assert_eq!(judge_same_host(&[voter(node(1))]), None);
    }

    #[test]
    fn different_minor_versions_warn() {
        let with = |number, version| node(number).with_info("redis_version", version);
        assert_eq!(judge_versions(&[&node(1), &node(2)]), None);
        assert_level(&judge_versions(&[&with(1, "7.0.15"), &with(2, "7.0.14")]).unwrap(), Good, "patch releases");
        assert_level(&judge_versions(&[&with(1, "7.0.15"), &with(2, "7.2.1")]).unwrap(), Warn, "Redis 7.2.1: h2:6379");
        let valkey = node(3).with_info("valkey_version", "7.0.15");
        assert_level(&judge_versions(&[&node(1), &valkey]).unwrap(), Warn, "Valkey");
    }
}
