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

use super::facts::{Facts, No, Server};
use super::walk::Group;
use crate::doctor::{Finding, Level, fail, ok, short, warn};

/// All findings about an ensemble.
pub(super) fn all(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![ensemble::quorum(facts)];
    findings.extend(facts.servers.iter().map(|server| servers::reachable(server, facts)));
    findings.extend(facts.servers.iter().filter_map(servers::version));
    findings.extend(servers::versions(&facts.servers));
    let Ok(inside) = &facts.inside else {
        return findings;
    };
    findings.extend([ensemble::size(facts, inside), ensemble::in_step(facts, inside)]);
    findings.extend(ensemble::between(&facts.servers));
    findings.extend(ensemble::named(facts, inside));
    findings.extend(ensemble::observers(inside));
    findings.push(access::lock_nodes(inside, &facts.aim));
    findings.extend(access::acl(inside, &facts.aim));
    findings.extend(access::enforced(inside));
    findings.extend([session::timeout(facts), session::ticks(facts)]);
    findings.extend(session::failover(facts));
    findings.extend(session::settings(&facts.servers));
    findings.extend([timing::clock(inside), timing::write_trip(inside, facts), timing::read_trip(facts)]);
    let serving: Vec<&Server> = facts.servers.iter().filter(|server| server.serves().is_ok()).collect();
    let latency = |server: &Server| timing::told_latency(server).unwrap_or_default().1;
    findings.extend(greatest(&serving, latency, |server| timing::latency(server, facts)));
    findings.extend(serving.iter().map(|server| timing::load(server)));
    let fsync = |server: &Server| server.figure("zk_max_fsynctime").unwrap_or_default();
    findings.extend(greatest(&serving, fsync, |server| timing::fsync(server, facts)));
    findings.extend(nodes::all(inside, &facts.aim));
    findings.extend([data::set(&facts.servers), data::longest_list(inside)]);
    findings.extend(greatest(&serving, |server| data::files(server).unwrap_or_default(), data::disk));
    findings.extend(serving.iter().map(|server| data::connections(server, &facts.aim)));
    findings
}

/// The findings of a rule for each server; of those that are ok, only the one with the greatest
/// figure.
fn greatest<F: Ord>(
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
fn unknown(check: &'static str, subject: &str, why: &No) -> Finding {
    Finding::new(Level::Unknown, check, subject, format!("not known: {why}")).fix(cure(why))
}

/// How to make the fact known.
fn cure(no: &No) -> String {
    match no {
        No::Unlisted(_) => {
            "4lw.commands.whitelist=srvr,mntr,conf in zoo.cfg, and restart one server after the other".into()
        }
        No::Secure => {
            "examine each server on itself, by its plain port: leasehold doctor --engine zookeeper://localhost:2181"
                .into()
        }
        No::Idle => "see to it that the majority of the servers runs, and examine them again".into(),
        No::Lost(_) => "look at what the server is doing, and examine it again".into(),
        No::Missing(_) => "ask its administrator; a newer ZooKeeper tells more".into(),
        No::Said(_) => "let this user read there, or log in: zookeeper://user:password@host".into(),
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
fn any(group: &Group, noun: &str) -> Option<String> {
    let more = if group.count > group.examples.len() { ", …" } else { "" };
    (group.count > 0).then(|| format!("{} ({}{more})", many(group.count, noun), group.examples.join(", ")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_healthy_ensemble_has_nothing_to_mend() {
        let findings = all(&sample::three());
        for finding in &findings {
            assert_eq!((finding.level, finding.fix.as_str()), (Level::Ok, ""), "{finding:?}");
            assert!(!finding.found.is_empty() && !finding.means.is_empty(), "{finding:?}");
        }
        assert!(findings.len() > 25);
    }

    #[test]
    fn nothing_is_ok_of_an_ensemble_that_tells_nothing() {
        for no in [No::Unlisted("mntr"), No::Secure, No::missing("it"), No::Said(leasehold_zookeeper::Error::NoAuth)] {
            let mut facts = sample::three();
            for server in &mut facts.servers {
                let (srvr, mntr, conf) = (Err(no.clone()), Err(no.clone()), Err(no.clone()));
                *server = Server { srvr, mntr, conf, visit: Err(no.clone()), ..server.clone() };
            }
            let inside = facts.inside.as_mut().unwrap();
            inside.members = Err(no.clone());
            inside.probe = Err(no.clone());
            inside.nodes = Err(no.clone());
            inside.acls = vec![("/leasehold".into(), Err(no.clone()))];
            inside.refuses_strangers = Some(Err(no.clone()));
            // It is known that there was a session.
            for finding in all(&facts).iter().filter(|finding| finding.check != "quorum") {
                assert_ne!(finding.level, Level::Ok, "{finding:?}");
                assert!(!finding.means.is_empty() && !finding.fix.is_empty(), "{finding:?}");
            }
        }
    }

    #[test]
    fn figures_are_short() {
        let said: Vec<_> = [250, 1500, 25_000, 2_000_000, 2_500_000, 180_000_000]
            .map(|micros| short(Duration::from_micros(micros)))
            .into();
        assert_eq!(said, ["250 µs", "1.5 ms", "25 ms", "2 s", "2.5 s", "3 min"]);
        assert_eq!([9, 2048, 3 << 20].map(size), ["9 bytes", "2.0 KiB", "3.0 MiB"]);
    }
}
