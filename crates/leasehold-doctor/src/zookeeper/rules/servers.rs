//! Judges each server on its own: whether it serves requests, and its version.

use super::super::facts::{Facts, Role, Server, UnknownReason};
use super::{fail, ok, unknown, warn};
use crate::{Finding, Level};

/// The first version with container nodes, which the folders of locks are.
const OLDEST: [u32; 3] = [3, 5, 3];

/// Judges whether a server serves requests. One of several servers may be unreachable.
pub(super) fn judge_reachable(server: &Server, facts: &Facts) -> Finding {
    let (check, address) = ("reachable", &server.address);
    let (level, means) = match &facts.ensemble {
        Ok(_) => (Level::Warn, "clients use the others; if too many more fail, no lock can be acquired or renewed"),
        Err(_) => (Level::Fail, "no lock can be acquired or renewed"),
    };
    let bad = |found: String, fix: &str| Finding::new(level, check, address, found).impact(means).fix(fix);
    match (server.check_serving(), server.role()) {
        (Ok(()), Ok(role)) => ok(check, address, format!("it responds, as {role}")).impact("it serves clients"),
        (Ok(()), Err(_)) if server.session.is_ok() => {
            ok(check, address, "it opened a session").impact("it serves clients")
        }
        (Ok(()), Err(reason)) => unknown(check, address, &reason).impact("it may or may not serve clients"),
        (Err(UnknownReason::NotServing), _) => bad(
            "it runs, but is not serving requests: it has no leader, or is starting".into(),
            "start the other servers, so that there is a majority; check its log, and the ports between them",
        ),
        (Err(reason @ UnknownReason::NotReported(_)), Ok(Role::ReadOnly)) => bad(
            reason.to_string(),
            "start the other servers, so that there is a majority; check the ports between them",
        ),
        // In this case it is not known whether it serves requests, either.
        (
            Err(
                reason @ (UnknownReason::NotWhitelisted(_)
                | UnknownReason::TlsOnly
                | UnknownReason::NotReported(_)
                | UnknownReason::RequestFailed(_)),
            ),
            _,
        ) => unknown(check, address, &reason).impact("it may or may not serve clients"),
        (Err(reason), _) => bad(
            reason.to_string(),
            "start it, or correct its address in the URL; check firewalls and its clientPortAddress",
        ),
    }
}

/// Judges whether a server is new enough; `None` if it is unreachable.
pub(super) fn judge_version(server: &Server) -> Option<Finding> {
    let (check, address) = ("version", &server.address);
    match server.version() {
        Ok((text, numbers)) if numbers < OLDEST => Some(
            fail(check, address, format!("ZooKeeper {text}"))
                .impact("it does not support container nodes, which hold locks: no lock can be acquired")
                .fix("ZooKeeper 3.5.3 or newer; preferably a supported version"),
        ),
        Ok((text, _)) => {
            Some(ok(check, address, format!("ZooKeeper {text}")).impact("it supports all features that locks need"))
        }
        Err(UnknownReason::Unreachable(_) | UnknownReason::NotServing) => None,
        Err(reason) => {
            Some(unknown(check, address, &reason).impact("locks need ZooKeeper 3.5.3 or newer, for containers"))
        }
    }
}

/// Warns if the servers have different versions; `None` if not.
pub(super) fn judge_versions(servers: &[Server]) -> Option<Finding> {
    let mut all: Vec<_> = servers.iter().filter_map(|server| server.version().ok()).collect();
    all.sort_by_key(|(_, numbers)| *numbers);
    let ((first, oldest), (last, newest)) = (all.first()?, all.last()?);
    (oldest[..2] != newest[..2]).then(|| {
        warn("versions", "", format!("from {first} to {last}"))
            .impact("fine during an upgrade; otherwise older servers may not read the data of newer ones")
            .fix("the same version on all servers")
    })
}

#[cfg(test)]
mod tests {
    use super::super::sample::{assert_level, follower, three_servers};
    use super::*;
    use crate::Level::{Fail, Ok as Good, Unknown, Warn};

    #[test]
    fn an_unreachable_server_is_a_warning_while_a_majority_serves() {
        let (with, mut without) = (three_servers(), three_servers());
        without.ensemble = Err(leasehold::Error::new(leasehold::ErrorKind::Unavailable, "no leader"));
        let lost =
            Server { srvr: Err(UnknownReason::Unreachable("it cannot be reached: refused".into())), ..follower("h") };
        assert_level(&judge_reachable(&lost, &with), Warn, "refused");
        assert_level(&judge_reachable(&lost, &without), Fail, "no lock");
        let idle = Server { srvr: Err(UnknownReason::NotServing), ..follower("h") };
        assert_level(&judge_reachable(&idle, &with), Warn, "has no leader");
        let read_only = follower("h").with_srvr("Mode", "read-only");
        assert_level(&judge_reachable(&read_only, &without), Fail, "read-only");
        assert_level(&judge_reachable(&follower("h"), &with), Good, "as follower");
    }

    #[test]
    fn a_server_without_four_letter_words_is_judged_by_its_session() {
        let facts = three_servers();
        let mute = |visit| Server {
            srvr: Err(UnknownReason::TlsOnly),
            mntr: Err(UnknownReason::TlsOnly),
            session: visit,
            ..follower("h")
        };
        assert_level(&judge_reachable(&mute(follower("h").session), &facts), Good, "opened a session");
        assert_level(
            &judge_reachable(&mute(Err(UnknownReason::Unreachable("no session".into()))), &facts),
            Warn,
            "no session",
        );
        assert_level(&judge_reachable(&mute(Err(UnknownReason::not_reported("it"))), &facts), Unknown, "may not serve");
    }

    #[test]
    fn versions_without_containers_fail() {
        let of = |text: &str| judge_version(&follower("h").with_srvr("Zookeeper version", text)).unwrap();
        assert_level(&of("3.4.14-4c25d480e66aadd371de8bd2fd8da255ac140bcf, built on 03/06/2019"), Fail, "3.5.3");
        assert_level(&of("3.5.2-alpha-1750793"), Fail, "container nodes");
        assert_level(&of("3.5.3-beta-8ce24f9e675cbefffb8f21a47e06b42864475a60"), Good, "3.5.3");
        assert_level(&of("3.9.2-e454e8c7283100c7caec6dcae2bc82aaecb63023, built on"), Good, "3.9.2");
        assert_level(&of("soon"), Unknown, "3.5.3");
        let mixed = [follower("h"), follower("i").with_srvr("Zookeeper version", "3.6.1-x")];
        assert_level(&judge_versions(&mixed).unwrap(), Warn, "3.6.1 to 3.8.0");
        assert_eq!(judge_versions(&[follower("h"), follower("i").with_srvr("Zookeeper version", "3.8.4-x")]), None);
        assert_eq!(
            judge_version(&Server {
                srvr: Err(UnknownReason::NotServing),
                mntr: Err(UnknownReason::NotServing),
                ..follower("h")
            }),
            None
        );
    }
}
