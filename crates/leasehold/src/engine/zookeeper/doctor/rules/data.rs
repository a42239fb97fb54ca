//! The amount of data: nodes, bytes, watches, files, connections.

use super::super::facts::{Aim, Inside, Known, No, Role, Server};
use super::{many, ok, size, unknown, warn};
use crate::doctor::{Finding, Level};

/// Above these limits snapshots, starts and elections get slow.
const MOST_NODES: u64 = 1_000_000;
const MOST_BYTES: u64 = 512 << 20;
const MOST_WATCHES: u64 = 1_000_000;
/// Half of what a Java client reads at once (jute.maxbuffer), by default.
const LONG_LIST: usize = 512 << 10;
/// Files that are never removed.
const MOST_FILES: u64 = 10 << 30;

/// All data that the ensemble keeps in memory. Each server has all of it, so the server with the
/// most is reported.
pub(super) fn set(servers: &[Server]) -> Finding {
    let check = "data-set";
    let means =
        "all data is in each server's memory, and is read when it starts: the more, the longer a fail-over takes";
    let told = |server: &Server| -> Known<[u64; 4]> {
        Ok([
            server.figure("zk_znode_count")?,
            server.figure("zk_approximate_data_size")?,
            server.figure("zk_watch_count")?,
            server.figure("zk_ephemerals_count")?,
        ])
    };
    let Some([nodes, bytes, watches, ephemerals]) = servers.iter().filter_map(|server| told(server).ok()).max() else {
        let count = |server: &Server| server.srvr.as_ref().ok()?.number("Node count").ok();
        let no = servers.iter().find_map(|server| told(server).err()).unwrap_or_else(|| No::missing("it"));
        return match servers.iter().filter_map(count).max() {
            Some(nodes) if nodes > MOST_NODES => too_much(check, format!("{nodes} nodes"), means),
            Some(nodes) => {
                Finding::new(Level::Unknown, check, "", format!("{nodes} nodes; their size is not known: {no}"))
                    .means(means)
                    .fix(super::cure(&no))
            }
            None => unknown(check, "", &no).means(means),
        };
    };
    let found = format!("{nodes} nodes with {}, of which {ephemerals} are ephemeral; {watches} watches", size(bytes));
    if nodes > MOST_NODES || bytes > MOST_BYTES || watches > MOST_WATCHES {
        return too_much(check, found, means);
    }
    ok(check, "", found).means("little enough for quick snapshots and fail-overs")
}

fn too_much(check: &'static str, found: String, means: &str) -> Finding {
    warn(check, "", found)
        .means(means)
        .fix("an ensemble for locks alone; or find who keeps so much there, and remove it")
}

/// The longest list that a client must read.
pub(super) fn longest_list(inside: &Inside) -> Finding {
    let check = "longest-list";
    let means = "who joins a queue reads all names in it";
    match inside.nodes.as_ref().map(|nodes| nodes.longest.as_ref()) {
        Ok(Some((path, bytes))) if *bytes > LONG_LIST => warn(
            check,
            "",
            format!("the list of the nodes in {path} has {}", size(*bytes as u64)),
        )
        .means(format!(
            "{means}; programs in Java, zkCli too, cannot read more than 1 MiB unless jute.maxbuffer says more"
        ))
        .fix(
            "fewer who wait for one lock, or fewer locks below one path; a larger jute.maxbuffer for programs in Java",
        ),
        Ok(Some((path, bytes))) => {
            ok(check, "", format!("the list of the nodes in {path} has {}", size(*bytes as u64))).means(means)
        }
        Ok(None) => ok(check, "", "there is no list").means(means),
        Err(no) => unknown(check, "", no).means(means),
    }
}

/// The total size of a server's files.
pub(super) fn files(server: &Server) -> Known<u64> {
    let (data, log) = (server.setting("dataDirSize")?, server.setting("dataLogSize")?);
    let folder = |key| server.conf.as_ref().ok().and_then(|conf| conf.text(key).ok());
    // If both are in one folder, both sizes cover all files there.
    Ok(if folder("dataDir") == folder("dataLogDir") { data.max(log) } else { data.saturating_add(log) })
}

/// Growing files.
pub(super) fn disk(server: &Server) -> Finding {
    let (check, at) = ("disk", &server.address);
    match files(server) {
        Ok(all) => {
            let found = format!("snapshots and logs have {}", size(all));
            if all <= MOST_FILES {
                return ok(check, at, found).means("old files do not fill its disk, so far");
            }
            warn(check, at, found)
                .means("old files are not removed by themselves; when the disk is full, the server stops")
                .fix("autopurge.purgeInterval=24 and autopurge.snapRetainCount=3 in zoo.cfg")
        }
        Err(no) => unknown(check, at, &no).means("a server whose disk is full stops"),
    }
}

/// Connections from one machine.
pub(super) fn connections(server: &Server, aim: &Aim) -> Finding {
    let (check, at) = ("connections", &server.address);
    let means = "more connections from one machine are refused";
    let most = match server.setting("maxClientCnxns") {
        Ok(most) => most,
        Err(no) => return unknown(check, at, &no).means(means),
    };
    // Older servers do not count them.
    let refused = server.figure("zk_connection_rejected").unwrap_or(0);
    let shown = if most == 0 { "no limit".to_owned() } else { format!("maxClientCnxns is {most}") };
    let fix =
        "a larger maxClientCnxns in zoo.cfg, or 0; or session=shared, where the claims of a program share connections";
    if refused > 0 {
        let found = format!(
            "{} refused since it started; {shown}",
            many(refused.try_into().unwrap_or(usize::MAX), "connection")
        );
        return warn(check, at, found).means("programs that were refused could take no lock here").fix(fix);
    }
    if aim.own_sessions && most > 0 && server.role() != Ok(Role::Observer) {
        return warn(check, at, format!("{shown}, and session=own"))
            .means("each claim has a connection of its own: one machine can have no more claims here than that")
            .fix(fix);
    }
    ok(check, at, shown).means("programs take one or two connections each")
}

#[cfg(test)]
mod tests {
    use super::super::super::walk::Nodes;
    use super::super::sample::{aim, assert_level, follower, three};
    use super::*;
    use crate::doctor::Level::{Ok as Good, Unknown, Warn};

    #[test]
    fn more_than_is_good() {
        let with = |key: &str, value: &str| set(&[follower("h"), follower("i").with_figure(key, value)]);
        assert_level(&with("zk_znode_count", "6"), Good, "6 nodes with 182 bytes");
        assert_level(&with("zk_znode_count", "2000000"), Warn, "locks alone");
        assert_level(&with("zk_approximate_data_size", "900000000"), Warn, "858.3 MiB");
        assert_level(&with("zk_watch_count", "1000001"), Warn, "1000001 watches");
        let quiet = Server { mntr: Err(No::Unlisted("mntr")), ..follower("h") };
        assert_level(&set(std::slice::from_ref(&quiet)), Unknown, "5 nodes; their size is not known");
        assert_level(&set(&[quiet.clone().told("Node count", "1000001")]), Warn, "1000001 nodes");
        assert_level(&set(&[Server { srvr: Err(No::Secure), ..quiet }]), Unknown, "memory");
    }

    #[test]
    fn lists_that_are_too_long() {
        let with = |bytes| {
            let nodes = Nodes { longest: Some(("/l/a".into(), bytes)), ..Nodes::default() };
            longest_list(&Inside { nodes: Ok(nodes), ..three().inside.unwrap() })
        };
        assert_level(&with(1000), Good, "1000 bytes");
        assert_level(&with(600 << 10), Warn, "jute.maxbuffer");
        assert_level(&longest_list(&Inside { nodes: Err(No::Idle), ..three().inside.unwrap() }), Unknown, "queue");
    }

    #[test]
    fn files_and_connections() {
        assert_level(&disk(&follower("h")), Good, "597 bytes");
        let full = follower("h").set("dataDirSize", "8000000000");
        assert_level(&disk(&full.clone().set("dataLogSize", "8000000000")), Good, "7629.4 MiB");
        let apart = full.set("dataLogSize", "8000000000").set("dataLogDir", "/log");
        assert_level(&disk(&apart), Warn, "autopurge");
        let quiet = Server { conf: Err(No::Unlisted("conf")), ..follower("h") };
        assert_level(&disk(&quiet), Unknown, "4lw.commands.whitelist");
        assert_level(&connections(&quiet, &aim()), Unknown, "refused");
        assert_level(&connections(&follower("h"), &aim()), Good, "maxClientCnxns is 60");
        let own = Aim { own_sessions: true, ..aim() };
        assert_level(&connections(&follower("h"), &own), Warn, "session=shared");
        assert_level(&connections(&follower("h").set("maxClientCnxns", "0"), &own), Good, "no limit");
        let refused = follower("h").with_figure("zk_connection_rejected", "1");
        assert_level(&connections(&refused, &aim()), Warn, "1 connection refused");
    }
}
