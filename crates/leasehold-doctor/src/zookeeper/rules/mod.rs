//! The rules: they make findings from facts, and send no queries. A fact that is not known becomes
//! an unknown finding, never one that is ok.

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
pub(super) fn judge_all(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![ensemble::judge_quorum(facts)];
    findings.extend(facts.servers.iter().map(|server| servers::judge_reachable(server, facts)));
    findings.extend(facts.servers.iter().filter_map(servers::judge_version));
    findings.extend(servers::judge_versions(&facts.servers));
    let Ok(inside) = &facts.ensemble else {
        return findings;
    };
    findings.extend([ensemble::judge_size(facts, inside), ensemble::judge_members(facts, inside)]);
    findings.extend(ensemble::judge_distinct_servers(&facts.servers));
    findings.extend(ensemble::judge_url_hosts(facts, inside));
    findings.extend(ensemble::judge_observers(inside));
    findings.push(access::judge_lock_nodes(inside, &facts.requirements));
    findings.extend(access::judge_acls(inside, &facts.requirements));
    findings.extend(access::judge_acl_enforcement(inside));
    findings.extend([session::judge_session_timeout(facts), session::judge_ticks(facts)]);
    findings.extend(session::judge_failover(facts));
    findings.extend(session::judge_settings(&facts.servers));
    findings.extend([
        timing::judge_clock(inside),
        timing::judge_write_trip(inside, facts),
        timing::judge_read_trip(facts),
    ]);
    let serving: Vec<&Server> = facts.servers.iter().filter(|server| server.check_serving().is_ok()).collect();
    let latency = |server: &Server| timing::parse_latency(server).unwrap_or_default().1;
    findings.extend(worst_per_server(&serving, latency, |server| timing::judge_latency(server, facts)));
    findings.extend(serving.iter().map(|server| timing::judge_load(server)));
    let fsync = |server: &Server| server.metric("zk_max_fsynctime").unwrap_or_default();
    findings.extend(worst_per_server(&serving, fsync, |server| timing::judge_fsync(server, facts)));
    findings.extend(nodes::judge_nodes(inside, &facts.requirements));
    findings.extend([data::judge_data_set(&facts.servers), data::judge_longest_list(inside)]);
    findings.extend(worst_per_server(
        &serving,
        |server| data::total_file_size(server).unwrap_or_default(),
        data::judge_disk,
    ));
    findings.extend(serving.iter().map(|server| data::judge_connections(server, &facts.requirements)));
    findings
}

/// Applies a rule to each server; of the findings that are ok, returns only the one whose server
/// has the greatest `figure`.
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
    Finding::new(Level::Unknown, check, subject, format!("not known: {why}")).fix(fix_for_unknown(why))
}

/// What to do so that a fact becomes known, by the reason why it is not.
fn fix_for_unknown(reason: &UnknownReason) -> String {
    match reason {
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

/// A size for people: `9 bytes`, `2.0 KiB`, `3.0 MiB`.
fn format_size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

/// `1 claim`, `2 claims`.
fn format_count(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// `3 claims (a, b, c)`; `None` for an empty group.
fn describe_group(group: &NodeGroup, noun: &str) -> Option<String> {
    let more = if group.count > group.examples.len() { ", …" } else { "" };
    (group.count > 0).then(|| format!("{} ({}{more})", format_count(group.count, noun), group.examples.join(", ")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_healthy_ensemble_yields_only_ok_findings() {
        let findings = judge_all(&sample::three_servers());
        for finding in &findings {
            assert_eq!((finding.level, finding.fix.as_str()), (Level::Ok, ""), "{finding:?}");
            assert!(!finding.found.is_empty() && !finding.impact.is_empty(), "{finding:?}");
        }
        assert!(findings.len() > 25);
    }

    #[test]
    fn unknown_facts_never_yield_ok() {
        for reason in [
            UnknownReason::NotWhitelisted("mntr"),
            UnknownReason::TlsOnly,
            UnknownReason::not_reported("it"),
            UnknownReason::RequestFailed(leasehold_zookeeper::Error::NoAuth),
        ] {
            let mut facts = sample::three_servers();
            for server in &mut facts.servers {
                let (srvr, mntr, conf) = (Err(reason.clone()), Err(reason.clone()), Err(reason.clone()));
                *server = Server { srvr, mntr, conf, session: Err(reason.clone()), ..server.clone() };
            }
            let inside = facts.ensemble.as_mut().unwrap();
            inside.members = Err(reason.clone());
            inside.probe = Err(reason.clone());
            inside.nodes = Err(reason.clone());
            inside.acls = vec![("/leasehold".into(), Err(reason.clone()))];
            inside.refuses_anonymous = Some(Err(reason.clone()));
            // `quorum` is known, because a session was opened.
            for finding in judge_all(&facts).iter().filter(|finding| finding.check != "quorum") {
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
        assert_eq!([9, 2048, 3 << 20].map(format_size), ["9 bytes", "2.0 KiB", "3.0 MiB"]);
    }
}
