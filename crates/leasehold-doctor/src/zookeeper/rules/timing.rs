//! Judges the leader's clock, round trips, and what slows the servers down.

use std::time::Duration;

use super::super::facts::{EnsembleFacts, Fact, Facts, RoundTrips, Server, UnknownReason};
use super::{format_short, ok, unknown, warn};
use crate::Finding;

/// A clock that differs from this host's by more than this is not synchronized.
const MAX_CLOCK_OFFSET: Duration = Duration::from_secs(1);
/// This many outstanding requests, or more, delay renewals.
const MANY_OUTSTANDING: u64 = 100;
/// A disk that takes longer delays all requests; ZooKeeper itself warns of it, too.
const MAX_FSYNC: Duration = Duration::from_secs(1);

/// How often a session sends a heartbeat: every sixth of its timeout.
fn heartbeat_interval(facts: &Facts) -> Duration {
    let visits = facts.servers.iter().filter_map(|server| Some(server.session.as_ref().ok()?.timeout));
    visits.min().unwrap_or_else(|| facts.requirements.requested_timeout()) / 6
}

/// Compares the leader's clock with this host's. It matters only for times that people read.
pub(super) fn judge_clock(inside: &EnsembleFacts) -> Finding {
    let check = "clock";
    let gap = match &inside.probe {
        Ok(probe) => probe.clock,
        Err(reason) => {
            return unknown(check, "", reason)
                .impact("`leasehold ls` computes how long a lock has been held from the leader's clock");
        }
    };
    let distance = Duration::from_millis(gap.ahead.unsigned_abs());
    let side = if gap.ahead < 0 { "behind" } else { "ahead of" };
    let found =
        format!("the leader's clock is {} {side} this host's, ± {}", format_short(distance), format_short(gap.error));
    if distance.saturating_sub(gap.error) <= MAX_CLOCK_OFFSET {
        return ok(check, "", found)
            .impact("the ages in `leasehold ls` are right; they are the only use of the leader's clock");
    }
    warn(check, "", found)
        .impact("the ages in `leasehold ls` are wrong by that. Holders and leases do not depend on it")
        .fix("synchronize the clocks: chrony or ntpd, on this machine and on the servers")
}

/// Judges whether all `trips`, which are reads or writes as `what` says, are within `limit`.
fn judge_trips(check: &'static str, what: &str, address: &str, trips: &Fact<RoundTrips>, limit: Duration) -> Finding {
    match trips {
        Ok(trips) => {
            let (median, longest) = (format_short(trips.median), format_short(trips.longest));
            let found = format!("median {median}, longest {longest} of {} {what}", trips.count);
            if trips.longest <= limit {
                return ok(check, address, found).impact(format!(
                    "well within a sixth of the session ({}), the limit for renewals",
                    format_short(limit)
                ));
            }
            warn(check, address, found)
                .impact(format!(
                    "a renewal needs its response within a sixth of the session ({}): later ones lose leases",
                    format_short(limit)
                ))
                .fix("a longer TTL, or servers that are nearer or less busy")
        }
        Err(reason) => {
            unknown(check, address, reason).impact("responses longer than a sixth of the session lose leases")
        }
    }
}

/// Judges the durations of writes, which a majority must store on disk.
pub(super) fn judge_write_trip(inside: &EnsembleFacts, facts: &Facts) -> Finding {
    let writes = inside.probe.as_ref().map(|probe| probe.writes).map_err(UnknownReason::clone);
    judge_trips("write-trip", "writes", "", &writes, heartbeat_interval(facts))
}

/// Judges the durations of reads on the slowest server; each server answers reads on its own.
pub(super) fn judge_read_trip(facts: &Facts) -> Finding {
    let check = "round-trip";
    let reads = |server: &Server| server.session.as_ref().map_err(UnknownReason::clone)?.read_trips.clone();
    let slowest = facts.servers.iter().filter_map(|server| Some((server, reads(server).ok()?)));
    match slowest.max_by_key(|(_, trips)| trips.longest) {
        Some((server, slowest)) => {
            judge_trips(check, "reads", &server.address, &Ok(slowest), heartbeat_interval(facts))
        }
        None => {
            let reason = facts.servers.iter().find_map(|server| reads(server).err());
            judge_trips(
                check,
                "reads",
                "",
                &Err(reason.unwrap_or_else(|| UnknownReason::not_reported("it"))),
                heartbeat_interval(facts),
            )
        }
    }
}

/// Judges how long requests took on the server itself, since it started.
pub(super) fn judge_latency(server: &Server, facts: &Facts) -> Finding {
    let (check, address) = ("latency", &server.address);
    match parse_latency(server) {
        Ok((mean, longest)) => {
            let limit = heartbeat_interval(facts);
            let found =
                format!("requests need {} on average; the longest {}", format_short(mean), format_short(longest));
            if longest <= limit {
                return ok(check, address, found).impact("no request was so slow that it would have lost a lease");
            }
            warn(check, address, found)
                .impact(format!("since the server started, a request took longer than {}, a sixth of the session: leases may end during such a request", format_short(limit)))
                .fix("a separate disk for its log (dataLogDir), enough memory, no long pauses of its JVM; then `srst` resets the figures")
        }
        Err(reason) => {
            unknown(check, address, &reason).impact("requests longer than a sixth of the session lose leases")
        }
    }
}

/// The average and the longest latency of a server, from `Latency min/avg/max: 0/0.5/12` in ms.
pub(super) fn parse_latency(server: &Server) -> Fact<(Duration, Duration)> {
    let text = server.srvr.as_ref().map_err(UnknownReason::clone)?.text("Latency min/avg/max")?;
    let mut parts = text.split('/').map(str::parse::<f64>);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(Ok(_)), Some(Ok(mean)), Some(Ok(longest))) if mean >= 0.0 && longest >= 0.0 => {
            let duration = |millis: f64| Duration::try_from_secs_f64(millis / 1000.0);
            match (duration(mean), duration(longest)) {
                (Ok(mean), Ok(longest)) => Ok((mean, longest)),
                _ => Err(UnknownReason::not_reported("its latency")),
            }
        }
        _ => Err(UnknownReason::not_reported("its latency")),
    }
}

/// Judges the number of requests that wait on a server.
pub(super) fn judge_load(server: &Server) -> Finding {
    let (check, address) = ("load", &server.address);
    let figure = server.srvr.as_ref().map_err(UnknownReason::clone).and_then(|srvr| srvr.number("Outstanding"));
    match figure {
        Ok(waiting) if waiting >= MANY_OUTSTANDING => warn(
            check,
            address,
            format!("{waiting} requests are outstanding"),
        )
        .impact("renewals wait with them, and may be too late")
        .fix("find the clients that send so many (`cons`); a faster disk for the log; a separate ensemble for locks"),
        Ok(waiting) => {
            ok(check, address, format!("{waiting} requests are outstanding")).impact("renewals are served at once")
        }
        Err(reason) => unknown(check, address, &reason).impact("behind a queue of requests, renewals are too late"),
    }
}

/// Judges how long a server's disk took to store writes, and whether it waits for its disk at all.
pub(super) fn judge_fsync(server: &Server, facts: &Facts) -> Finding {
    let (check, address) = ("fsync", &server.address);
    let figure = server.metric("zk_max_fsynctime").and_then(|most| Ok((server.metric("zk_avg_fsynctime")?, most)));
    match figure {
        // The figures were read after the test's writes.
        Ok(_) if facts.has_written_probe() && server.metric("zk_cnt_fsynctime") == Ok(0) => warn(
            check,
            address,
            "it never waited for its disk, although there were writes",
        )
        .impact("when its machine fails, it loses unwritten data: if a majority loses a grant, two clients may hold one lock")
        .fix("forceSync=yes (zookeeper.forceSync) on all servers, which is the default"),
        Ok((mean, longest)) => {
            let (mean, longest) = (Duration::from_millis(mean), Duration::from_millis(longest));
            let found =
                format!("the disk needs {} on average, and {} at most", format_short(mean), format_short(longest));
            if longest <= heartbeat_interval(facts).min(MAX_FSYNC) {
                return ok(check, address, found).impact("a grant is on its disk soon");
            }
            warn(check, address, found)
                .impact("a write needs a majority of disks before its reply: when disks are slow, renewals are late and leases end")
                .fix("a separate disk for its log (dataLogDir), and not a network disk")
        }
        Err(reason) => unknown(check, address, &reason).impact("a write needs a majority of disks before its reply"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::{ClockOffset, ProbeResult};
    use super::super::sample::{assert_level, follower, three_servers};
    use super::*;
    use crate::Level::{Ok as Good, Unknown, Warn};

    fn ensemble(ahead: i64, millis: u64) -> EnsembleFacts {
        let longest = Duration::from_millis(millis);
        let writes = RoundTrips { count: 10, median: longest / 2, longest };
        let clock = ClockOffset { ahead, error: Duration::from_millis(5) };
        EnsembleFacts { probe: Ok(ProbeResult { writes, clock }), ..three_servers().ensemble.unwrap() }
    }

    #[test]
    fn a_clock_offset_is_only_a_warning() {
        assert_level(&judge_clock(&ensemble(-900, 1)), Good, "behind");
        assert_level(&judge_clock(&ensemble(1_004, 1)), Good, "ahead of this host's, ± 5.0 ms");
        assert_level(&judge_clock(&ensemble(60_000, 1)), Warn, "do not depend on it");
        assert_level(
            &judge_clock(&EnsembleFacts { probe: Err(UnknownReason::not_reported("it")), ..ensemble(0, 1) }),
            Unknown,
            "leasehold ls",
        );
    }

    #[test]
    fn slow_round_trips_are_a_warning() {
        // Sessions of 30 s.
        assert_level(&judge_write_trip(&ensemble(0, 5_000), &three_servers()), Good, "sixth of the session (5 s)");
        assert_level(&judge_write_trip(&ensemble(0, 5_001), &three_servers()), Warn, "longer TTL");
        assert_level(&judge_read_trip(&three_servers()), Good, "10 reads");
        let mut slow = three_servers();
        let reads = RoundTrips { count: 10, median: Duration::from_secs(1), longest: Duration::from_secs(6) };
        slow.servers[2].session.as_mut().unwrap().read_trips = Ok(reads);
        let finding = judge_read_trip(&slow);
        assert_level(&finding, Warn, "longest 6 s");
        assert_eq!(finding.subject, slow.servers[2].address);
        slow.servers.iter_mut().for_each(|server| server.session = Err(UnknownReason::NotServing));
        assert_level(&judge_read_trip(&slow), Unknown, "sixth");
    }

    #[test]
    fn server_latency_load_and_fsync_are_checked() {
        let facts = three_servers();
        let server = |text: &str| follower("h").with_srvr("Latency min/avg/max", text);
        assert_level(&judge_latency(&server("0/1.25/300"), &facts), Good, "1.2 ms on average");
        assert_level(&judge_latency(&server("0/4/300"), &facts), Good, "300 ms");
        assert_level(&judge_latency(&server("0/4/7000"), &facts), Warn, "dataLogDir");
        assert_level(&judge_latency(&server("0/-/"), &facts), Unknown, "latency");
        assert_level(&judge_load(&follower("h").with_srvr("Outstanding", "3")), Good, "3 requests");
        assert_level(&judge_load(&follower("h").with_srvr("Outstanding", "100")), Warn, "cons");
        assert_level(
            &judge_load(&Server { srvr: Err(UnknownReason::TlsOnly), ..follower("h") }),
            Unknown,
            "plain port",
        );
        assert_level(&judge_fsync(&follower("h").with_mntr("zk_max_fsynctime", "40"), &facts), Good, "40 ms at most");
        assert_level(&judge_fsync(&follower("h").with_mntr("zk_max_fsynctime", "1500"), &facts), Warn, "1.5 s at most");
        let careless = follower("h").with_mntr("zk_cnt_fsynctime", "0");
        assert_level(&judge_fsync(&careless, &facts), Warn, "forceSync=yes");
        let unwritten = EnsembleFacts { probe: Err(UnknownReason::not_reported("it")), ..ensemble(0, 1) };
        let unwritten = Facts { ensemble: Ok(unwritten), ..three_servers() };
        assert_level(&judge_fsync(&careless, &unwritten), Good, "on average");
        let quiet = Server { mntr: Err(UnknownReason::NotWhitelisted("mntr")), ..follower("h") };
        assert_level(&judge_fsync(&quiet, &facts), Unknown, "4lw.commands.whitelist");
    }
}
