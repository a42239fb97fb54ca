//! Judges which servers accept writes: exactly one must, unless they form one cluster.

use super::super::facts::{Facts, Requirements, ServerFacts};
use super::{fail, ok, unknown, warn};
use crate::Finding;

/// Whether a server accepts writes; `None` if that is not known.
pub(super) fn accepts_writes(server: &ServerFacts, requirements: &Requirements) -> Option<bool> {
    server.read_only_reason(requirements.dialect).ok().map(|read_only| read_only.is_none())
}

/// The id of the server's cluster, if it is one in which several nodes accept writes.
fn cluster_id(server: &ServerFacts) -> Option<String> {
    if server.is_galera() {
        return server.status("wsrep_cluster_state_uuid").ok().map(ToOwned::to_owned);
    }
    server.setting("group_replication_group_name").ok().filter(|name| !name.is_empty()).map(ToOwned::to_owned)
}

/// Judges which servers are read-only, and whether those that accept writes are one cluster.
pub(super) fn judge_writable_servers(facts: &Facts) -> Vec<Finding> {
    let (check, requirements) = ("read-only", &facts.requirements);
    let means = "where writes are impossible, no lock can be acquired or renewed";
    let examined = || facts.servers.iter().filter_map(|server| Some((&server.address, server.facts.as_ref().ok()?)));
    let mut findings = Vec::new();
    let mut writers = Vec::new();
    for (address, one) in examined() {
        match one.read_only_reason(requirements.dialect) {
            Ok(None) => writers.push((address, one)),
            Err(reason) => findings.push(unknown(check, address, &reason).impact(means)),
            Ok(Some(why)) => {
                // A read-only server is correct beside one that accepts writes.
                let elsewhere = examined().any(|(_, one)| accepts_writes(one, requirements) == Some(true));
                findings.push(if elsewhere {
                    ok(check, address, why)
                        .impact("another server accepts writes; this one may replace it when that fails")
                } else {
                    fail(check, address, why).impact(means).fix(
                        "use the primary in the URL, or all servers with commas; if it is the primary: read_only=OFF, \
                         pg_promote(), default_transaction_read_only=off",
                    )
                });
            }
        }
    }
    let mut different: Vec<(&String, &ServerFacts)> = Vec::new();
    for (address, one) in writers {
        let again = one.identity.is_ok() && different.iter().any(|(_, other)| other.identity == one.identity);
        if !again {
            different.push((address, one));
        }
    }
    match &different[..] {
        [] => {}
        [(address, _)] => {
            findings.push(ok(check, address, "it accepts writes").impact("locks can be acquired and renewed here"));
        }
        [(_, first), rest @ ..] => {
            let names: Vec<&str> = different.iter().map(|(address, _)| address.as_str()).collect();
            let found = format!("{} accept writes", names.join(" and "));
            let of_first = cluster_id(first);
            if of_first.is_some() && rest.iter().all(|(_, one)| cluster_id(one) == of_first) {
                findings.push(ok("writers", "", found).impact("they are one cluster, so all see each grant"));
            } else {
                findings.push(
                    fail("writers", "", found)
                        .impact("they are not one cluster: each has its own locks, and two clients may hold one")
                        .fix("use one primary and its replicas, which are read-only until promoted"),
                );
            }
        }
    }
    findings
}

/// Warns of each address of a server that has another address before it.
pub(super) fn judge_duplicate_servers(servers: &[(&str, &ServerFacts)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, (address, one)) in servers.iter().enumerate() {
        let Ok(id) = &one.identity else { continue };
        if let Some((before, _)) = servers[..index].iter().find(|(_, other)| other.identity.as_ref() == Ok(id)) {
            findings.push(
                warn("same-server", address, format!("it is the same server as {before}"))
                    .impact("what looks like two fails as one")
                    .fix("one address for each server"),
            );
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::UnknownReason;
    use super::super::sample::{assert_level, facts, mariadb, postgres, server};
    use super::*;
    use crate::Level::{Fail, Ok as Good, Unknown, Warn};

    fn pair(one: ServerFacts, other: ServerFacts) -> Facts {
        let mut both = facts(ServerFacts { identity: Ok("a".into()), ..one });
        both.servers.push(server("h2:1", ServerFacts { identity: Ok("b".into()), ..other }));
        both
    }

    #[test]
    fn a_single_read_only_server_fails() {
        assert_level(&judge_writable_servers(&facts(mariadb()))[0], Good, "accepts writes");
        assert_level(
            &judge_writable_servers(&facts(mariadb().with_setting("read_only", "ON")))[0],
            Fail,
            "read_only is on",
        );
        assert_level(
            &judge_writable_servers(&facts(mariadb().with_setting("innodb_read_only", "ON")))[0],
            Fail,
            "innodb_read_only is on",
        );
        assert_level(
            &judge_writable_servers(&facts(mariadb().without_setting("read_only")))[0],
            Unknown,
            "writes are impossible",
        );
        let standby = ServerFacts { is_in_recovery: Ok(true), ..postgres() };
        assert_level(&judge_writable_servers(&facts(standby.clone()))[0], Fail, "standby");
        assert_level(
            &judge_writable_servers(&facts(ServerFacts {
                is_in_recovery: Err(UnknownReason::not_reported("it")),
                ..postgres()
            }))[0],
            Unknown,
            "no lock",
        );
        let both = judge_writable_servers(&pair(postgres(), standby));
        assert_level(&both[0], Good, "may replace it");
        assert_level(&both[1], Good, "it accepts writes");
    }

    #[test]
    fn default_transaction_read_only_counts_as_read_only() {
        let marked = || postgres().with_setting("default_transaction_read_only", "on");
        assert_level(&judge_writable_servers(&facts(marked()))[0], Fail, "default_transaction_read_only is on");
        assert_level(&judge_writable_servers(&pair(postgres(), marked()))[0], Good, "may replace it");
    }

    #[test]
    fn two_writable_servers_must_be_one_cluster() {
        assert_level(&judge_writable_servers(&pair(postgres(), postgres()))[0], Fail, "two clients may hold one");
        let node = || mariadb().with_setting("wsrep_on", "ON").with_status("wsrep_cluster_state_uuid", "c1");
        assert_level(&judge_writable_servers(&pair(node(), node()))[0], Good, "one cluster");
        let other = node().with_status("wsrep_cluster_state_uuid", "c2");
        assert_level(&judge_writable_servers(&pair(node(), other))[0], Fail, "not one cluster");
        let group = || mariadb().with_setting("group_replication_group_name", "g1");
        assert_level(&judge_writable_servers(&pair(group(), group()))[0], Good, "one cluster");
    }

    #[test]
    fn two_addresses_of_one_server_are_a_warning() {
        let one = postgres();
        let both = [("a", &one), ("b", &one)];
        assert_level(&judge_duplicate_servers(&both)[0], Warn, "same server as a");
        assert!(judge_duplicate_servers(&both[..1]).is_empty());
        // A server with two addresses counts as one that accepts writes.
        let mut twice = facts(one.clone());
        twice.servers.push(server("h2:1", one));
        assert_level(&judge_writable_servers(&twice)[0], Good, "it accepts writes");
    }
}
