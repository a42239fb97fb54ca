//! The rules: facts in, findings out, without queries. A fact that is not known is unknown, never
//! ok.

mod access;
mod data;
mod ensemble;
mod nodes;
#[cfg(test)]
pub(super) mod sample;
mod servers;
mod session;
mod timing;

use super::facts::{Facts, Server, UnknownReason};
use super::walk::NodeGroup;
use crate::{Finding, Level, fail, format_short, ok, warn};

/// All findings about an ensemble.
pub(super) fn check_all(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![ensemble::quorum(facts)];
    findings.extend(facts.servers.iter().map(|server| servers::reachable(server, facts)));
    findings.extend(facts.servers.iter().filter_map(servers::version));
    findings.extend(servers::versions(&facts.servers));
    let Ok(inside) = &facts.ensemble else {
        return findings;
    };
    findings.extend([ensemble::size(facts, inside), ensemble::members_in_sync(facts, inside)]);
    findings.extend(ensemble::distinct_servers(&facts.servers));
    findings.extend(ensemble::url_names_voters(facts, inside));
    findings.extend(ensemble::observers(inside));
    findings.push(access::lock_nodes(inside, &facts.requirements));
    findings.extend(access::acl(inside, &facts.requirements));
    findings.extend(access::enforced(inside));
    findings.extend([session::timeout(facts), session::ticks(facts)]);
    findings.extend(session::failover(facts));
    findings.extend(session::settings(&facts.servers));
    findings.extend([timing::clock(inside), timing::write_trip(inside, facts), timing::read_trip(facts)]);
    let serving: Vec<&Server> = facts.servers.iter().filter(|server| server.check_serving().is_ok()).collect();
    let latency = |server: &Server| timing::parse_latency(server).unwrap_or_default().1;
    findings.extend(worst_per_server(&serving, latency, |server| timing::latency(server, facts)));
    findings.extend(serving.iter().map(|server| timing::load(server)));
    let fsync = |server: &Server| server.metric("zk_max_fsynctime").unwrap_or_default();
    findings.extend(worst_per_server(&serving, fsync, |server| timing::fsync(server, facts)));
    findings.extend(nodes::check_nodes(inside, &facts.requirements));
    findings.extend([data::data_set(&facts.servers), data::longest_list(inside)]);
    findings.extend(worst_per_server(&serving, |server| data::file_size(server).unwrap_or_default(), data::disk));
    findings.extend(serving.iter().map(|server| data::connections(server, &facts.requirements)));
    findings
}

/// The findings of a rule for each server; of those that are ok, only the one with the greatest
/// figure.
fn worst_per_server<F: Ord>(
    servers: &[&Server],
    figure: impl Fn(&Server) -> F,
    rule: impl Fn(&Server) -> Finding,
) -> Vec<Finding> {
    let all: Vec<_> = servers.iter().map(|server| (figure(server), rule(server))).collect();
    let (well, mut bad): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, finding)| finding.level == Level::Ok);
    bad.extend(well.into_iter().max_by(|(one, _), (other, _)| one.cmp(other)));
    bad.into_iter().map(|(_, finding)| finding).collect()
}

/// A finding for a fact that is not known.
fn unknown(check: &'static str, subject: &str, why: &UnknownReason) -> Finding {
    Finding::new(Level::Unknown, check, subject, format!("not known: {why}")).fix(remedy(why))
}

/// The fix that makes the fact known.
fn remedy(no: &UnknownReason) -> String {
    match no {
        UnknownReason::NotWhitelisted(_) => {
            "4lw.commands.whitelist=srvr,mntr,conf in zoo.cfg, and restart one server after the other".into()
        }
        UnknownReason::TlsOnly => {
            "examine each server locally, by its plain port: leasehold doctor --engine zookeeper://localhost:2181"
                .into()
        }
        UnknownReason::NotServing => "start the servers, so that a majority runs, and examine them again".into(),
        UnknownReason::Unreachable(_) => "check what the server is doing, and examine it again".into(),
        UnknownReason::NotReported(_) => "ask its administrator; a newer ZooKeeper reports more".into(),
        UnknownReason::RequestFailed(_) => "let this user read there, or log in: zookeeper://user:password@host".into(),
    }
}

/// A size in a readable form.
fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

/// `1 claim`, `2 claims`.
fn many(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// `3 claims (a, b, c)`, if there are any.
fn describe_group(group: &NodeGroup, noun: &str) -> Option<String> {
    let more = if group.count > group.examples.len() { ", …" } else { "" };
    (group.count > 0).then(|| format!("{} ({}{more})", many(group.count, noun), group.examples.join(", ")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_healthy_ensemble_yields_only_ok_findings() {
        let findings = check_all(&sample::three_servers());
        for finding in &findings {
            assert_eq!((finding.level, finding.fix.as_str()), (Level::Ok, ""), "{finding:?}");
            assert!(!finding.found.is_empty() && !finding.impact.is_empty(), "{finding:?}");
        }
        assert!(findings.len() > 25);
    }

    #[test]
    fn unknown_facts_never_yield_ok() {
        for no in [
            UnknownReason::NotWhitelisted("mntr"),
            UnknownReason::TlsOnly,
            UnknownReason::not_reported("it"),
            UnknownReason::RequestFailed(leasehold_zookeeper::Error::NoAuth),
        ] {
            let mut facts = sample::three_servers();
            for server in &mut facts.servers {
                let (srvr, mntr, conf) = (Err(no.clone()), Err(no.clone()), Err(no.clone()));
                *server = Server { srvr, mntr, conf, session: Err(no.clone()), ..server.clone() };
            }
            let inside = facts.ensemble.as_mut().unwrap();
            inside.members = Err(no.clone());
            inside.probe = Err(no.clone());
            inside.nodes = Err(no.clone());
            inside.acls = vec![("/leasehold".into(), Err(no.clone()))];
            inside.refuses_anonymous = Some(Err(no.clone()));
            // It is known that there was a session.
            for finding in check_all(&facts).iter().filter(|finding| finding.check != "quorum") {
                assert_ne!(finding.level, Level::Ok, "{finding:?}");
                assert!(!finding.impact.is_empty() && !finding.fix.is_empty(), "{finding:?}");
            }
        }
    }

    #[test]
    fn durations_and_sizes_are_printed_short() {
        let text: Vec<_> = [250, 1500, 25_000, 2_000_000, 2_500_000, 180_000_000]
            .map(|micros| format_short(Duration::from_micros(micros)))
            .into();
        assert_eq!(text, ["250 µs", "1.5 ms", "25 ms", "2 s", "2.5 s", "3 min"]);
        assert_eq!([9, 2048, 3 << 20].map(size), ["9 bytes", "2.0 KiB", "3.0 MiB"]);
    }
}
