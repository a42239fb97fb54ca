//! Judges the amount of data: nodes, bytes, watches, files, connections.

use super::super::facts::{EnsembleFacts, Fact, Requirements, Role, Server, UnknownReason};
use super::{format_count, format_size, ok, unknown, warn};
use crate::{Finding, Level};

/// With more nodes, snapshots, starts and elections get slow.
const MAX_NODES: u64 = 1_000_000;
/// With more bytes of data, snapshots, starts and elections get slow.
const MAX_BYTES: u64 = 512 << 20;
/// With more watches, snapshots, starts and elections get slow.
const MAX_WATCHES: u64 = 1_000_000;
/// Half of the bytes that a Java client reads at once by default (jute.maxbuffer).
const MAX_LIST_BYTES: usize = 512 << 10;
/// Above this size in bytes, old files probably are not removed.
const MAX_FILE_BYTES: u64 = 10 << 30;

/// Judges the amount of data that the ensemble keeps in memory. Each server has all of it, so the
/// largest figure is reported.
pub(super) fn judge_data_set(servers: &[Server]) -> Finding {
    let check = "data-set";
    let means = "each server has all data in memory, and reads it at start: more data means slower fail-overs";
    let figures = |server: &Server| -> Fact<[u64; 4]> {
        Ok([
            server.metric("zk_znode_count")?,
            server.metric("zk_approximate_data_size")?,
            server.metric("zk_watch_count")?,
            server.metric("zk_ephemerals_count")?,
        ])
    };
    let Some([nodes, bytes, watches, ephemerals]) = servers.iter().filter_map(|server| figures(server).ok()).max()
    else {
        let count = |server: &Server| server.srvr.as_ref().ok()?.number("Node count").ok();
        let reason = servers
            .iter()
            .find_map(|server| figures(server).err())
            .unwrap_or_else(|| UnknownReason::not_reported("it"));
        return match servers.iter().filter_map(count).max() {
            Some(nodes) if nodes > MAX_NODES => warn_of_large_data(check, format!("{nodes} nodes"), means),
            Some(nodes) => {
                Finding::new(Level::Unknown, check, "", format!("{nodes} nodes; their size is not known: {reason}"))
                    .impact(means)
                    .fix(super::fix_for_unknown(&reason))
            }
            None => unknown(check, "", &reason).impact(means),
        };
    };
    let found =
        format!("{nodes} nodes with {}, of which {ephemerals} are ephemeral; {watches} watches", format_size(bytes));
    if nodes > MAX_NODES || bytes > MAX_BYTES || watches > MAX_WATCHES {
        return warn_of_large_data(check, found, means);
    }
    ok(check, "", found).impact("small enough for quick snapshots and fail-overs")
}

/// The warning that there is too much data.
fn warn_of_large_data(check: &'static str, found: String, means: &str) -> Finding {
    warn(check, "", found).impact(means).fix("a separate ensemble for locks; or find and remove the large data")
}

/// Judges the longest list of nodes that a client must read.
pub(super) fn judge_longest_list(inside: &EnsembleFacts) -> Finding {
    let check = "longest-list";
    let means = "a client that joins a queue reads all names in it";
    match inside.nodes.as_ref().map(|nodes| nodes.longest_list.as_ref()) {
        Ok(Some((path, bytes))) if *bytes > MAX_LIST_BYTES => warn(
            check,
            "",
            format!("the list of the nodes in {path} has {}", format_size(*bytes as u64)),
        )
        .impact(format!(
            "{means}; Java programs, including zkCli, cannot read more than 1 MiB unless jute.maxbuffer is larger"
        ))
        .fix("fewer waiters for one lock, or fewer locks below one path; a larger jute.maxbuffer for Java programs"),
        Ok(Some((path, bytes))) => {
            ok(check, "", format!("the list of the nodes in {path} has {}", format_size(*bytes as u64))).impact(means)
        }
        Ok(None) => ok(check, "", "there is no list").impact(means),
        Err(reason) => unknown(check, "", reason).impact(means),
    }
}

/// The total size of a server's snapshots and logs, in bytes.
pub(super) fn total_file_size(server: &Server) -> Fact<u64> {
    let (data, log) = (server.setting("dataDirSize")?, server.setting("dataLogSize")?);
    let folder = |key| server.conf.as_ref().ok().and_then(|conf| conf.text(key).ok());
    // If both are in one folder, both sizes cover all files there.
    Ok(if folder("dataDir") == folder("dataLogDir") { data.max(log) } else { data.saturating_add(log) })
}

/// Warns if a server's snapshots and logs are so large that old ones probably are not removed.
pub(super) fn judge_disk(server: &Server) -> Finding {
    let (check, address) = ("disk", &server.address);
    match total_file_size(server) {
        Ok(all) => {
            let found = format!("snapshots and logs have {}", format_size(all));
            if all <= MAX_FILE_BYTES {
                return ok(check, address, found).impact("old files do not fill its disk so far");
            }
            warn(check, address, found)
                .impact("old files are not removed automatically; when the disk is full, the server stops")
                .fix("autopurge.purgeInterval=24 and autopurge.snapRetainCount=3 in zoo.cfg")
        }
        Err(reason) => unknown(check, address, &reason).impact("a server whose disk is full stops"),
    }
}

/// Judges the limit on connections from one machine.
pub(super) fn judge_connections(server: &Server, requirements: &Requirements) -> Finding {
    let (check, address) = ("connections", &server.address);
    let means = "more connections from one machine are refused";
    let most = match server.setting("maxClientCnxns") {
        Ok(most) => most,
        Err(reason) => return unknown(check, address, &reason).impact(means),
    };
    // Older servers do not count them.
    let refused = server.metric("zk_connection_rejected").unwrap_or(0);
    let shown = if most == 0 { "no limit".to_owned() } else { format!("maxClientCnxns is {most}") };
    let fix =
        "a larger maxClientCnxns in zoo.cfg, or 0; or session=shared, where the claims of a program share connections";
    if refused > 0 {
        let found = format!(
            "{} refused since it started; {shown}",
            format_count(refused.try_into().unwrap_or(usize::MAX), "connection")
        );
        return warn(check, address, found).impact("refused programs could not acquire a lock here").fix(fix);
    }
    if requirements.has_session_per_claim && most > 0 && server.role() != Ok(Role::Observer) {
        return warn(check, address, format!("{shown}, and session=own"))
            .impact("each claim has its own connection, so this limits the claims of one machine")
            .fix(fix);
    }
    ok(check, address, shown).impact("each program uses one or two connections")
}

#[cfg(test)]
mod tests {
    use super::super::super::walk::NodeSurvey;
    use super::super::sample::{assert_level, follower, requirements, three_servers};
    use super::*;
    use crate::Level::{Ok as Good, Unknown, Warn};

    #[test]
    fn a_large_data_set_is_a_warning() {
        let with = |key: &str, value: &str| judge_data_set(&[follower("h"), follower("i").with_mntr(key, value)]);
        assert_level(&with("zk_znode_count", "6"), Good, "6 nodes with 182 bytes");
        assert_level(&with("zk_znode_count", "2000000"), Warn, "ensemble for locks");
        assert_level(&with("zk_approximate_data_size", "900000000"), Warn, "858.3 MiB");
        assert_level(&with("zk_watch_count", "1000001"), Warn, "1000001 watches");
        let quiet = Server { mntr: Err(UnknownReason::NotWhitelisted("mntr")), ..follower("h") };
        assert_level(&judge_data_set(std::slice::from_ref(&quiet)), Unknown, "5 nodes; their size is not known");
        assert_level(&judge_data_set(&[quiet.clone().with_srvr("Node count", "1000001")]), Warn, "1000001 nodes");
        assert_level(&judge_data_set(&[Server { srvr: Err(UnknownReason::TlsOnly), ..quiet }]), Unknown, "memory");
    }

    #[test]
    fn long_child_lists_are_a_warning() {
        let with = |bytes| {
            let nodes = NodeSurvey { longest_list: Some(("/l/a".into(), bytes)), ..NodeSurvey::default() };
            judge_longest_list(&EnsembleFacts { nodes: Ok(nodes), ..three_servers().ensemble.unwrap() })
        };
        assert_level(&with(1000), Good, "1000 bytes");
        assert_level(&with(600 << 10), Warn, "jute.maxbuffer");
        assert_level(
            &judge_longest_list(&EnsembleFacts {
                nodes: Err(UnknownReason::NotServing),
                ..three_servers().ensemble.unwrap()
            }),
            Unknown,
            "queue",
        );
    }

    #[test]
    fn large_files_and_refused_connections_are_warnings() {
        assert_level(&judge_disk(&follower("h")), Good, "597 bytes");
        let full = follower("h").with_conf("dataDirSize", "8000000000");
        assert_level(&judge_disk(&full.clone().with_conf("dataLogSize", "8000000000")), Good, "7629.4 MiB");
        let apart = full.with_conf("dataLogSize", "8000000000").with_conf("dataLogDir", "/log");
        assert_level(&judge_disk(&apart), Warn, "autopurge");
        let quiet = Server { conf: Err(UnknownReason::NotWhitelisted("conf")), ..follower("h") };
        assert_level(&judge_disk(&quiet), Unknown, "4lw.commands.whitelist");
        assert_level(&judge_connections(&quiet, &requirements()), Unknown, "refused");
        assert_level(&judge_connections(&follower("h"), &requirements()), Good, "maxClientCnxns is 60");
        let own = Requirements { has_session_per_claim: true, ..requirements() };
        assert_level(&judge_connections(&follower("h"), &own), Warn, "session=shared");
        assert_level(&judge_connections(&follower("h").with_conf("maxClientCnxns", "0"), &own), Good, "no limit");
        let refused = follower("h").with_mntr("zk_connection_rejected", "1");
        assert_level(&judge_connections(&refused, &requirements()), Warn, "1 connection refused");
    }
}
