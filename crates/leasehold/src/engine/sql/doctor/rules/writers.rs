//! Which servers accept writes: exactly one must, unless they form one cluster.

use super::super::facts::{Aim, Facts, Seen};
use super::{fail, ok, unknown, warn};
use crate::doctor::Finding;

/// Whether a server accepts writes; `None`: not known.
pub(super) fn takes_writes(seen: &Seen, aim: &Aim) -> Option<bool> {
    seen.read_only(aim.dialect).ok().map(|read_only| read_only.is_none())
}

/// The server's cluster, if several of its nodes accept writes.
fn cluster(seen: &Seen) -> Option<String> {
    if seen.is_galera() {
        return seen.status("wsrep_cluster_state_uuid").ok().map(ToOwned::to_owned);
    }
    seen.setting("group_replication_group_name").ok().filter(|name| !name.is_empty()).map(ToOwned::to_owned)
}

pub(super) fn writes(facts: &Facts) -> Vec<Finding> {
    let (check, aim) = ("read-only", &facts.aim);
    let means = "where nothing can be written, no lock can be taken or renewed";
    let seen = || facts.servers.iter().filter_map(|server| Some((&server.address, server.seen.as_ref().ok()?)));
    let mut findings = Vec::new();
    let mut writers = Vec::new();
    for (at, one) in seen() {
        match one.read_only(aim.dialect) {
            Ok(None) => writers.push((at, one)),
            Err(no) => findings.push(unknown(check, at, &no).means(means)),
            Ok(Some(why)) => {
                // This is correct beside a server that accepts writes.
                let elsewhere = seen().any(|(_, one)| takes_writes(one, aim) == Some(true));
                findings.push(if elsewhere {
                    ok(check, at, why).means("another one takes writes; this one may take its place when that fails")
                } else {
                    fail(check, at, why).means(means).fix(
                        "name the primary in the URL, or all servers with commas; if it is the primary: read_only=OFF, \
                         pg_promote(), default_transaction_read_only=off",
                    )
                });
            }
        }
    }
    let mut different: Vec<(&String, &Seen)> = Vec::new();
    for (at, one) in writers {
        let again = one.identity.is_ok() && different.iter().any(|(_, other)| other.identity == one.identity);
        if !again {
            different.push((at, one));
        }
    }
    match &different[..] {
        [] => {}
        [(at, _)] => {
            findings.push(ok(check, at, "it takes writes").means("locks can be taken and renewed here"));
        }
        [(_, first), rest @ ..] => {
            let names: Vec<&str> = different.iter().map(|(at, _)| at.as_str()).collect();
            let found = format!("{} take writes", names.join(" and "));
            let of_first = cluster(first);
            if of_first.is_some() && rest.iter().all(|(_, one)| cluster(one) == of_first) {
                findings
                    .push(ok("writers", "", found).means("they are one cluster, and what one grants the others see"));
            } else {
                findings.push(
                    fail("writers", "", found)
                        .means("they are not one cluster: each has locks of its own, and two may hold one")
                        .fix("name one primary and its replicas, which are read-only until they take its place"),
                );
            }
        }
    }
    findings
}

/// Two addresses of one server.
pub(super) fn identities(seen: &[(&str, &Seen)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, (at, one)) in seen.iter().enumerate() {
        let Ok(id) = &one.identity else { continue };
        if let Some((before, _)) = seen[..index].iter().find(|(_, other)| other.identity.as_ref() == Ok(id)) {
            findings.push(
                warn("same-server", at, format!("it is the same server as {before}"))
                    .means("what looks like two fails as one")
                    .fix("one address for each server"),
            );
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::No;
    use super::super::sample::{assert_level, facts, mariadb, postgres, server};
    use super::*;
    use crate::doctor::Level::{Fail, Ok as Good, Unknown, Warn};

    fn pair(one: Seen, other: Seen) -> Facts {
        let mut both = facts(Seen { identity: Ok("a".into()), ..one });
        both.servers.push(server("h2:1", Seen { identity: Ok("b".into()), ..other }));
        both
    }

    #[test]
    fn one_that_takes_no_writes_is_of_no_use_alone() {
        assert_level(&writes(&facts(mariadb()))[0], Good, "takes writes");
        assert_level(&writes(&facts(mariadb().set("read_only", "ON")))[0], Fail, "read_only is on");
        assert_level(&writes(&facts(mariadb().set("innodb_read_only", "ON")))[0], Fail, "innodb_read_only is on");
        assert_level(&writes(&facts(mariadb().hiding("read_only")))[0], Unknown, "nothing can be written");
        let standby = Seen { in_recovery: Ok(true), ..postgres() };
        assert_level(&writes(&facts(standby.clone()))[0], Fail, "standby");
        assert_level(
            &writes(&facts(Seen { in_recovery: Err(No::missing("it")), ..postgres() }))[0],
            Unknown,
            "no lock",
        );
        let both = writes(&pair(postgres(), standby));
        assert_level(&both[0], Good, "may take its place");
        assert_level(&both[1], Good, "it takes writes");
    }

    #[test]
    fn a_primary_that_is_marked_takes_no_writes() {
        let marked = || postgres().set("default_transaction_read_only", "on");
        assert_level(&writes(&facts(marked()))[0], Fail, "default_transaction_read_only is on");
        assert_level(&writes(&pair(postgres(), marked()))[0], Good, "may take its place");
    }

    #[test]
    fn two_that_take_writes_must_be_one_cluster() {
        assert_level(&writes(&pair(postgres(), postgres()))[0], Fail, "two may hold one");
        let node = || mariadb().set("wsrep_on", "ON").with_status("wsrep_cluster_state_uuid", "c1");
        assert_level(&writes(&pair(node(), node()))[0], Good, "one cluster");
        let other = node().with_status("wsrep_cluster_state_uuid", "c2");
        assert_level(&writes(&pair(node(), other))[0], Fail, "not one cluster");
        let group = || mariadb().set("group_replication_group_name", "g1");
        assert_level(&writes(&pair(group(), group()))[0], Good, "one cluster");
    }

    #[test]
    fn one_server_of_two_names() {
        let one = postgres();
        let both = [("a", &one), ("b", &one)];
        assert_level(&identities(&both)[0], Warn, "same server as a");
        assert!(identities(&both[..1]).is_empty());
        // It accepts writes, and counts once.
        let mut twice = facts(one.clone());
        twice.servers.push(server("h2:1", one));
        assert_level(&writes(&twice)[0], Good, "it takes writes");
    }
}
