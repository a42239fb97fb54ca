//! The rules: they make findings from facts, and send no queries. A fact that is not known becomes
//! an unknown finding, never one that is ok.

mod durability;
mod galera;
mod intermediary;
mod limits;
mod rows;
#[cfg(test)]
pub(super) mod sample;
mod server;
mod session;
mod table;
mod timing;
mod writers;

pub(super) use self::table::is_transactional;
use super::facts::{Facts, ServerFacts, UnknownReason};
use crate::{Finding, Level, fail, format_short, ok, warn};
use leasehold_internals::sql::Dialect;

/// All findings about the servers of a database.
pub(super) fn judge_all(facts: &Facts) -> Vec<Finding> {
    let requirements = &facts.requirements;
    let mut findings: Vec<Finding> =
        facts.servers.iter().map(|server| server::judge_reachable(server, facts)).collect();
    let examined: Vec<(&str, &ServerFacts)> = facts
        .servers
        .iter()
        .filter_map(|server| Some((server.address.as_str(), server.facts.as_ref().ok()?)))
        .collect();
    if examined.is_empty() {
        return findings;
    }
    findings.extend(examined.iter().map(|(address, server)| server::judge_version(address, server, requirements)));
    findings.extend(writers::judge_writable_servers(facts));
    findings.extend(writers::judge_duplicate_servers(&examined));
    for (address, server) in
        examined.iter().filter(|(_, server)| writers::accepts_writes(server, requirements) != Some(false))
    {
        findings.push(intermediary::judge_intermediary(address, server, requirements));
        if requirements.dialect == Dialect::MySql {
            findings.extend([
                galera::judge_cluster(address, server, requirements),
                session::judge_binlog_format(address, server),
            ]);
            findings.push(limits::judge_packet(address, server));
        } else {
            findings.push(limits::judge_autovacuum(address, server));
        }
        findings.extend([
            session::judge_isolation(address, server, requirements),
            session::judge_statement_timeout(address, server, requirements),
        ]);
        findings.extend([
            session::judge_lock_timeout(address, server, requirements),
            session::judge_idle_timeout(address, server, requirements),
        ]);
        findings.push(limits::judge_connections(address, server, requirements));
        findings.extend([
            durability::judge_durability(address, server, requirements),
            durability::judge_replication(address, server, requirements),
        ]);
        findings.extend(table::judge_tables(address, server, requirements));
        findings.extend(rows::judge_rows(address, server, requirements));
        findings.push(timing::judge_round_trip(address, server, requirements));
    }
    findings.extend(examined.iter().map(|(address, server)| timing::judge_clock(address, server)));
    findings.extend(timing::judge_clocks(&examined, requirements));
    findings
}

/// A finding for a fact that is not known.
fn unknown(check: &'static str, subject: &str, why: &UnknownReason) -> Finding {
    Finding::new(Level::Unknown, check, subject, format!("not known: {why}")).fix(fix_for_unknown(why))
}

/// What to do so that a fact becomes known, by the reason why it is not.
fn fix_for_unknown(reason: &UnknownReason) -> String {
    match reason {
        UnknownReason::Denied(_) => "let this user read it, or examine it as an administrator".into(),
        UnknownReason::Unreachable(_) => "check what the server is doing, and examine it again".into(),
        UnknownReason::NotReported(_) => "ask its administrator; another version of the server may report it".into(),
        UnknownReason::Skipped(_) => "fix the other findings, and examine it again".into(),
    }
}

/// `1 row`, `2 rows`.
fn format_count(count: i64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::facts::{ConnectFailure, Server};
    use super::*;

    #[test]
    fn a_healthy_database_yields_only_ok_findings() {
        for facts in [sample::facts(sample::mariadb()), sample::facts(sample::postgres())] {
            let findings = judge_all(&facts);
            for finding in &findings {
                assert_eq!((finding.level, finding.fix.as_str()), (Level::Ok, ""), "{finding:?}");
                assert!(!finding.found.is_empty() && !finding.impact.is_empty(), "{finding:?}");
            }
            assert!(findings.len() > 15, "{}", findings.len());
        }
    }

    #[test]
    fn unknown_facts_never_yield_ok() {
        for reason in [
            UnknownReason::not_reported("it"),
            UnknownReason::Denied("42501: no".into()),
            UnknownReason::Unreachable("silence".into()),
        ] {
            for mut facts in [sample::facts(sample::mariadb()), sample::facts(sample::postgres())] {
                facts.servers[0].facts = Ok(sample::opaque_server(&reason));
                for finding in judge_all(&facts).iter().filter(|finding| finding.check != "reachable") {
                    assert_ne!(finding.level, Level::Ok, "{finding:?}");
                    assert!(!finding.impact.is_empty() && !finding.fix.is_empty(), "{finding:?}");
                }
            }
        }
    }

    #[test]
    fn an_unreachable_database_yields_only_that_finding() {
        let mut facts = sample::facts(sample::postgres());
        facts.servers =
            vec![Server { address: "h:1".into(), facts: Err(ConnectFailure::Unreachable("refused".into())) }];
        let findings = judge_all(&facts);
        assert_eq!((findings.len(), findings[0].level), (1, Level::Fail));
    }

    #[test]
    fn durations_are_printed_short() {
        let text: Vec<_> = [250, 1500, 25_000, 2_000_000, 2_500_000, 180_000_000]
            .map(|micros| format_short(Duration::from_micros(micros)))
            .into();
        assert_eq!(text, ["250 µs", "1.5 ms", "25 ms", "2 s", "2.5 s", "3 min"]);
    }
}
