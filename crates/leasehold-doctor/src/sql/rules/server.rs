//! Judges whether a server can be used at all.

use super::super::facts::{ConnectFailure, Facts, Requirements, Server, ServerFacts};
use super::{fail, ok, unknown, warn, writers};
use crate::Finding;
use leasehold_internals::sql::Dialect;
use leasehold_internals::sql::config::Technique;

/// Judges whether a server accepts connections. One of several servers may be unreachable.
pub(super) fn judge_reachable(server: &Server, facts: &Facts) -> Finding {
    let address = &server.address;
    let alone = "no lock can be acquired or renewed";
    match &server.facts {
        Ok(_) => ok("reachable", address, "it responds").impact("locks can be requested here"),
        Err(ConnectFailure::Denied(reason)) => fail("login", address, reason.clone())
            .impact("user or password are refused, or this user may not use the database: no lock can be acquired or renewed here")
            .fix("correct user and password in the URL; let this user connect from this host"),
        Err(ConnectFailure::NoDatabase(reason)) => fail("login", address, reason.clone())
            .impact(format!("there is no such database: {alone} here"))
            .fix("correct the database in the URL, or create it"),
        Err(ConnectFailure::TooManyConnections(reason)) => fail("connections", address, reason.clone())
            .impact(format!("it has no free connection: {alone} here by clients without one"))
            .fix("raise max_connections, lower connections= in the URLs of all clients, or put a pooler before it"),
        Err(ConnectFailure::Unreachable(why)) => {
            let found = format!("it cannot be reached: {why}");
            let fix = "start it, or correct its address in the URL; check firewalls and its listen_addresses or bind_address";
            if facts.servers.iter().any(|server| matches!(&server.facts, Ok(server) if writers::accepts_writes(server, &facts.requirements) == Some(true))) {
                return warn("reachable", address, found).impact("another server accepts writes; this one cannot replace it").fix(fix);
            }
            fail("reachable", address, found).impact(alone).fix(fix)
        }
    }
}

/// Parses the server's version: its product, and the first two numbers.
pub(super) fn parse_version(text: &str) -> Option<(&'static str, (u32, u32))> {
    let lower = text.to_lowercase();
    let kind = if lower.starts_with("postgresql") {
        "PostgreSQL"
    } else if lower.contains("mariadb") {
        "MariaDB"
    } else if lower.contains("aurora") {
        "Aurora"
    } else if lower.contains("percona") {
        "Percona Server"
    } else {
        "MySQL"
    };
    // MariaDB puts 5.5.5 before its own version, for old clients.
    let text = text.strip_prefix("5.5.5-").unwrap_or(text);
    let numbers = text
        .split(|c: char| !c.is_ascii_digit() && c != '.')
        .find(|word| word.contains(|c: char| c.is_ascii_digit()))?;
    let mut numbers = numbers.split('.').map_while(|number| number.parse().ok());
    Some((kind, (numbers.next()?, numbers.next().unwrap_or(0))))
}

/// Judges whether the server is new enough for leasehold's statements.
pub(super) fn judge_version(address: &str, server: &ServerFacts, requirements: &Requirements) -> Finding {
    let check = "version";
    let means = "leasehold's statements need MySQL 8.0, MariaDB 10.5 or PostgreSQL 12, or newer";
    let text = match &server.version {
        Ok(text) => text,
        Err(reason) => return unknown(check, address, reason).impact(means),
    };
    let Some((kind, numbers)) = parse_version(text) else {
        return super::unknown(check, address, &super::UnknownReason::not_reported("its version")).impact(means);
    };
    let shown = text.split(" on ").next().unwrap_or(text);
    let shown = if shown.contains(kind) { shown.to_owned() } else { format!("{kind} {shown}") };
    let least = match (requirements.dialect, kind) {
        (Dialect::Postgres, _) if requirements.technique == Technique::Session => (14, 0),
        (Dialect::Postgres, _) => (12, 0),
        (_, "MariaDB") => (10, 5),
        _ => (8, 0),
    };
    if numbers < least {
        return fail(check, address, shown)
            .impact(format!(
                "{means} (PostgreSQL 14 for technique=session): here they may be refused, and this is untested"
            ))
            .fix("a newer version");
    }
    ok(check, address, shown).impact("new enough for leasehold's statements")
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::UnknownReason;
    use super::super::sample::{assert_level, facts, mariadb, opaque_server, postgres, requirements, server};
    use super::*;
    use crate::Level::{Fail, Ok as Good, Unknown, Warn};

    #[test]
    fn products_and_versions_are_parsed() {
        for (text, expected) in [
            ("10.11.19-MariaDB-0+deb12u1", ("MariaDB", (10, 11))),
            ("5.5.5-10.4.1-MariaDB", ("MariaDB", (10, 4))),
            ("8.0.36", ("MySQL", (8, 0))),
            ("8.0.35-27-Percona", ("Percona Server", (8, 0))),
            ("8.0.mysql_aurora.3.04.0", ("Aurora", (8, 0))),
            ("PostgreSQL 15.18 (Debian 15.18-0+deb12u1) on x86_64-pc-linux-gnu", ("PostgreSQL", (15, 18))),
            ("PostgreSQL 18beta1 on x", ("PostgreSQL", (18, 0))),
        ] {
            assert_eq!(parse_version(text), Some(expected), "{text}");
        }
        assert_eq!(parse_version("strange"), None);
    }

    #[test]
    fn old_versions_fail() {
        let of = |text: &str, server: ServerFacts| {
            judge_version("h", &ServerFacts { version: Ok(text.into()), ..server.clone() }, &facts(server).requirements)
        };
        assert_level(&of("10.11.19-MariaDB", mariadb()), Good, "10.11.19-MariaDB");
        assert_level(&of("10.3.1-MariaDB", mariadb()), Fail, "newer");
        assert_level(&of("5.7.44", mariadb()), Fail, "MySQL 8.0");
        assert_level(&of("PostgreSQL 11.2 on x", postgres()), Fail, "PostgreSQL 12");
        assert_level(&of("PostgreSQL 12.1 on x", postgres()), Good, "PostgreSQL 12.1");
        assert_level(&of("?", postgres()), Unknown, "version");
        assert_level(
            &judge_version("h", &opaque_server(&UnknownReason::not_reported("it")), &requirements(Dialect::MySql)),
            Unknown,
            "10.5",
        );
    }

    #[test]
    fn one_of_several_servers_may_be_unreachable() {
        let away = |why: ConnectFailure| Server { address: "h2:1".into(), facts: Err(why) };
        let mut two = facts(postgres());
        two.servers.push(away(ConnectFailure::Unreachable("refused".into())));
        assert_level(&judge_reachable(&two.servers[1], &two), Warn, "another server");
        two.servers[0] = server("h1:1", ServerFacts { is_in_recovery: Ok(true), ..postgres() });
        assert_level(&judge_reachable(&two.servers[1], &two), Fail, "listen_addresses");
        assert_level(&judge_reachable(&two.servers[0], &two), Good, "responds");
        for (why, text) in [
            (ConnectFailure::Denied("28P01: no".into()), "password"),
            (ConnectFailure::NoDatabase("3D000: no".into()), "database"),
            (ConnectFailure::TooManyConnections("53300: many".into()), "max_connections"),
        ] {
            assert_level(&judge_reachable(&away(why), &two), Fail, text);
        }
    }
}
