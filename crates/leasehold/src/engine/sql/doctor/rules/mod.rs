//! The rules: facts in, findings out, without queries. A fact that is not known is unknown, never
//! ok.

mod between;
mod durability;
mod galera;
mod limits;
mod rows;
#[cfg(test)]
pub(super) mod sample;
mod server;
mod session;
mod table;
mod timing;
mod writers;

pub(super) use self::table::rolls_back;
use super::super::Dialect;
use super::facts::{Facts, No, Seen};
use crate::doctor::{Finding, Level, fail, ok, short, warn};

/// All findings about a database.
pub(super) fn all(facts: &Facts) -> Vec<Finding> {
    let aim = &facts.aim;
    let mut findings: Vec<Finding> = facts.servers.iter().map(|server| server::reachable(server, facts)).collect();
    let seen: Vec<(&str, &Seen)> =
        facts.servers.iter().filter_map(|server| Some((server.address.as_str(), server.seen.as_ref().ok()?))).collect();
    if seen.is_empty() {
        return findings;
    }
    findings.extend(seen.iter().map(|(at, seen)| server::version(at, seen, aim)));
    findings.extend(writers::writes(facts));
    findings.extend(writers::identities(&seen));
    for (at, seen) in seen.iter().filter(|(_, seen)| writers::takes_writes(seen, aim) != Some(false)) {
        findings.push(between::pooler(at, seen, aim));
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
        findings.extend(table::all(at, seen, aim));
        findings.extend(rows::all(at, seen, aim));
        findings.push(timing::round_trip(at, seen, aim));
    }
    findings.extend(seen.iter().map(|(at, seen)| timing::clock(at, seen)));
    findings.extend(timing::clocks(&seen, aim));
    findings
}

/// A finding for a fact that is not known.
fn unknown(check: &'static str, subject: &str, why: &No) -> Finding {
    Finding::new(Level::Unknown, check, subject, format!("not known: {why}")).fix(cure(why))
}

/// How to make the fact known.
fn cure(no: &No) -> String {
    match no {
        No::Denied(_) => "let this user see it, or examine it as an administrator".into(),
        No::Lost(_) => "look at what the server is doing, and examine it again".into(),
        No::Missing(_) => "ask its administrator; another version of the server may tell".into(),
        No::Unasked(_) => "mend what was found besides, and examine it again".into(),
    }
}

/// `1 row`, `2 rows`.
fn many(count: i64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::facts::{Closed, Server};
    use super::*;

    #[test]
    fn a_healthy_database_has_nothing_to_mend() {
        for facts in [sample::facts(sample::mariadb()), sample::facts(sample::postgres())] {
            let findings = all(&facts);
            for finding in &findings {
                assert_eq!((finding.level, finding.fix.as_str()), (Level::Ok, ""), "{finding:?}");
                assert!(!finding.found.is_empty() && !finding.means.is_empty(), "{finding:?}");
            }
            assert!(findings.len() > 15, "{}", findings.len());
        }
    }

    #[test]
    fn nothing_is_ok_of_a_database_that_tells_nothing() {
        for no in [No::missing("it"), No::Denied("42501: no".into()), No::Lost("silence".into())] {
            for mut facts in [sample::facts(sample::mariadb()), sample::facts(sample::postgres())] {
                facts.servers[0].seen = Ok(sample::mute(&no));
                for finding in all(&facts).iter().filter(|finding| finding.check != "reachable") {
                    assert_ne!(finding.level, Level::Ok, "{finding:?}");
                    assert!(!finding.means.is_empty() && !finding.fix.is_empty(), "{finding:?}");
                }
            }
        }
    }

    #[test]
    fn of_a_database_that_is_away_only_that_is_said() {
        let mut facts = sample::facts(sample::postgres());
        facts.servers = vec![Server { address: "h:1".into(), seen: Err(Closed::Away("refused".into())) }];
        let findings = all(&facts);
        assert_eq!((findings.len(), findings[0].level), (1, Level::Fail));
    }

    #[test]
    fn figures_are_short() {
        let said: Vec<_> = [250, 1500, 25_000, 2_000_000, 2_500_000, 180_000_000]
            .map(|micros| short(Duration::from_micros(micros)))
            .into();
        assert_eq!(said, ["250 µs", "1.5 ms", "25 ms", "2 s", "2.5 s", "3 min"]);
    }
}
