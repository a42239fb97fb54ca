//! The rules: facts in, findings out, without queries. A fact that is not known is unknown, never
//! ok.

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

/// All findings about a database.
pub(super) fn check_all(facts: &Facts) -> Vec<Finding> {
    let aim = &facts.requirements;
    let mut findings: Vec<Finding> = facts.servers.iter().map(|server| server::reachable(server, facts)).collect();
    let seen: Vec<(&str, &ServerFacts)> = facts
        .servers
        .iter()
        .filter_map(|server| Some((server.address.as_str(), server.facts.as_ref().ok()?)))
        .collect();
    if seen.is_empty() {
        return findings;
    }
    findings.extend(seen.iter().map(|(at, seen)| server::version(at, seen, aim)));
    findings.extend(writers::writable_servers(facts));
    findings.extend(writers::duplicate_servers(&seen));
    for (at, seen) in seen.iter().filter(|(_, seen)| writers::accepts_writes(seen, aim) != Some(false)) {
        findings.push(intermediary::pooler(at, seen, aim));
        if aim.dialect == Dialect::MySql {
            findings.extend([galera::cluster(at, seen, aim), session::binlog_format(at, seen)]);
            findings.push(limits::packet(at, seen));
        } else {
            findings.push(limits::vacuum(at, seen));
        }
        findings.extend([session::isolation(at, seen, aim), session::statement_timeout(at, seen, aim)]);
        findings.extend([session::lock_timeout(at, seen, aim), session::idle_timeout(at, seen, aim)]);
        findings.push(limits::connections(at, seen, aim));
        findings.extend([durability::on_disk(at, seen, aim), durability::replicas(at, seen, aim)]);
        findings.extend(table::check_tables(at, seen, aim));
        findings.extend(rows::check_rows(at, seen, aim));
        findings.push(timing::round_trip(at, seen, aim));
    }
    findings.extend(seen.iter().map(|(at, seen)| timing::clock(at, seen)));
    findings.extend(timing::clocks(&seen, aim));
    findings
}

/// A finding for a fact that is not known.
fn unknown(check: &'static str, subject: &str, why: &UnknownReason) -> Finding {
    Finding::new(Level::Unknown, check, subject, format!("not known: {why}")).fix(remedy(why))
}

/// The fix that makes the fact known.
fn remedy(no: &UnknownReason) -> String {
    match no {
        UnknownReason::Denied(_) => "let this user read it, or examine it as an administrator".into(),
        UnknownReason::Unreachable(_) => "check what the server is doing, and examine it again".into(),
        UnknownReason::NotReported(_) => "ask its administrator; another version of the server may report it".into(),
        UnknownReason::Skipped(_) => "fix the other findings, and examine it again".into(),
    }
}

/// `1 row`, `2 rows`.
fn many(count: i64, noun: &str) -> String {
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
            let findings = check_all(&facts);
            for finding in &findings {
                assert_eq!((finding.level, finding.fix.as_str()), (Level::Ok, ""), "{finding:?}");
                assert!(!finding.found.is_empty() && !finding.impact.is_empty(), "{finding:?}");
            }
            assert!(findings.len() > 15, "{}", findings.len());
        }
    }

    #[test]
    fn unknown_facts_never_yield_ok() {
        for no in [
            UnknownReason::not_reported("it"),
            UnknownReason::Denied("42501: no".into()),
            UnknownReason::Unreachable("silence".into()),
        ] {
            for mut facts in [sample::facts(sample::mariadb()), sample::facts(sample::postgres())] {
                facts.servers[0].facts = Ok(sample::opaque_server(&no));
                for finding in check_all(&facts).iter().filter(|finding| finding.check != "reachable") {
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
        let findings = check_all(&facts);
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
