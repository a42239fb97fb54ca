//! Checks the login, the server's role, and the permissions that locks need.

use super::super::facts::{Deployment, Echo, MasterFacts, NodeFacts, Requirements};
use super::super::query::{Fact, QueryError};
use super::{ExpectedRole, fail, fix_for_refusal, ok, unknown, warn};
use crate::Finding;
use leasehold::{Error, ErrorKind};

/// The finding for a server that is unreachable, or that refuses the login.
pub(crate) fn judge_unreachable(address: &str, expected: ExpectedRole, error: &Error) -> Finding {
    let (check, fix) = match error.kind() {
        ErrorKind::Denied => ("login", "correct the user and the password in the URL: redis://user:password@host"),
        ErrorKind::Unsupported => ("resp3", "run Redis 6.0 or newer, and connect to it without a proxy in between"),
        _ => ("reachable", "start it, or correct the address in the URL; check firewalls and its `bind` setting"),
    };
    if expected == ExpectedRole::Replica {
        return warn(check, address, error.to_string())
            .impact("it may become the master: then no lock can be acquired or renewed from here")
            .fix(fix);
    }
    fail(check, address, error.to_string()).impact("no lock can be acquired or renewed").fix(fix)
}

/// Judges whether a server that accepted the login still responds.
pub(super) fn judge_reachable(node: &NodeFacts) -> Finding {
    let lost = [node.scripts.as_ref().err(), node.script_time.as_ref().err(), node.clock_offset.as_ref().err()];
    if let Some(QueryError::NoResponse(why)) =
        lost.into_iter().flatten().find(|error| matches!(error, QueryError::NoResponse(_)))
    {
        return fail("reachable", &node.address, format!("it accepted the login, and then stopped responding: {why}"))
            .impact("no lock can be acquired or renewed meanwhile")
            .fix("find the cause of its load (CLIENT LIST, SLOWLOG GET), and examine it again");
    }
    let product = if node.info("valkey_version").is_ok() { "valkey" } else { "redis" };
    let name = if product == "valkey" { "Valkey" } else { "Redis" };
    let found = match node.info(&format!("{product}_version")) {
        Ok(version) => format!("{name} {version} answers, with RESP3"),
        Err(_) => "it responds, with RESP3".to_owned(),
    };
    ok("reachable", &node.address, found).impact("it accepts the login, and can push messages")
}

/// Judges whether the server is a master or a replica, as expected.
pub(super) fn judge_role(node: &NodeFacts, expected: ExpectedRole, requirements: &Requirements) -> Option<Finding> {
    let (check, address) = ("role", &node.address);
    let finding = match (&node.is_master, expected) {
        (Ok(true), ExpectedRole::Replica) => warn(check, address, "it is a master, but was listed as a replica")
            .impact("a failover is in progress, or there are two masters")
            .fix("examine it again in a minute; if it is still a master, make it follow the right one: REPLICAOF"),
        (Ok(true), _) => ok(check, address, "it is a master").impact("locks are written where they are read"),
        (Ok(false), ExpectedRole::Master) => {
            let master = node.info("master_host").and_then(|host| Ok(format!("{host}:{}", node.info("master_port")?)));
            let whose = master.map(|master| format!(" of {master}")).unwrap_or_default();
            let fix = match requirements.deployment {
                Deployment::Single => "use the master, or its Sentinels: redis+sentinel://h1,h2,h3/mymaster",
                _ => "examine it again in a minute: a failover may be in progress",
            };
            fail(check, address, format!("it is a read-only replica{whose}"))
                .impact("no lock can be acquired here")
                .fix(fix)
        }
        (Ok(false), _) => ok(check, address, "it is a replica").impact("it may take its master's place"),
        (Err(error), _) => unknown(check, address, error)
            .impact("on a replica no lock can be acquired")
            .fix("let this user run INFO and ROLE: +info +role"),
    };
    Some(finding)
}

/// Fails if the server is a node of a cluster, and the URL does not say so: the node responds only
/// for its own slots.
pub(super) fn judge_cluster_mode(node: &NodeFacts, requirements: &Requirements) -> Option<Finding> {
    let clustered = node.info_number("cluster_enabled") == Ok(1);
    (clustered && requirements.deployment != Deployment::Cluster).then(|| {
        fail("cluster-mode", &node.address, "it is a node of a cluster")
            .impact("locks of other nodes' slots cannot be acquired: the server redirects clients (MOVED)")
            .fix("use the cluster: redis+cluster://h1,h2")
    })
}

/// The finding for a probe: ok with the texts `works` (observation and effect) if it succeeded;
/// else with the effect `broken`, a failure if it was refused, unknown if the server did not
/// respond.
fn judge_probe(
    check: &'static str,
    node: &NodeFacts,
    probe: &Fact<()>,
    requirements: &Requirements,
    works: [&str; 2],
    broken: &str,
) -> Finding {
    match probe {
        Ok(()) => ok(check, &node.address, works[0]).impact(works[1]),
        Err(error @ QueryError::Refused(reason)) => {
            fail(check, &node.address, reason).impact(broken).fix(fix_for_refusal(error, requirements))
        }
        Err(error) => unknown(check, &node.address, error).impact(broken).fix(fix_for_refusal(error, requirements)),
    }
}

/// Judges whether EVAL and EVALSHA work.
pub(super) fn judge_scripts(node: &NodeFacts, requirements: &Requirements) -> Finding {
    let works = ["EVAL and EVALSHA work", "each step of a lock is one script"];
    judge_probe(
        "scripts",
        node,
        &node.scripts,
        requirements,
        works,
        "each step of a lock is a script: without scripts there are no locks",
    )
}

/// Judges whether scripts can read the server's clock.
pub(super) fn judge_script_time(node: &NodeFacts, requirements: &Requirements) -> Finding {
    let works = ["scripts read the server's clock", "leases and tokens come from one clock"];
    let broken = "scripts use the server's clock for leases and tokens: without it there are no locks";
    judge_probe("script-time", node, &node.script_time, requirements, works, broken)
}

/// Judges whether a script could write, read and remove the keys of locks.
pub(super) fn judge_lock_keys(node: &NodeFacts, master: &MasterFacts, requirements: &Requirements) -> Finding {
    let works = ["a script wrote, read and removed the keys of three locks", "all keys of a lock change atomically"];
    judge_probe(
        "lock-keys",
        node,
        &master.lock_keys,
        requirements,
        works,
        "the keys of a lock cannot be written, so no lock can be acquired",
    )
}

/// Judges whether messages that scripts publish arrive; `None` where the engine does not use them.
pub(super) fn judge_pubsub(node: &NodeFacts, master: &MasterFacts, requirements: &Requirements) -> Option<Finding> {
    let check = "pubsub";
    let broken = "a message hands off a lock: without messages, no waiter learns of its grant";
    Some(match master.echo.as_ref()? {
        Ok(Echo { receivers: 1.., received: true }) => {
            ok(check, &node.address, "a message that a script sent arrived").impact("waiters are notified at once")
        }
        Ok(Echo { receivers, received }) => {
            let arrival = if *received { "arrived" } else { "did not arrive" };
            fail(
                check,
                &node.address,
                format!("the server reported {receivers} receivers of a message, and it {arrival}"),
            )
            .impact(broken)
            .fix("connect to the server itself, not to a proxy that holds messages back")
        }
        Err(error @ QueryError::Refused(reason)) => {
            fail(check, &node.address, reason).impact(broken).fix(fix_for_refusal(error, requirements))
        }
        Err(error) => unknown(check, &node.address, error).impact(broken).fix(fix_for_refusal(error, requirements)),
    })
}

/// Judges whether the server reports changed keys, which observers of elections rely on.
pub(super) fn judge_tracking(node: &NodeFacts, master: &MasterFacts, requirements: &Requirements) -> Option<Finding> {
    let check = "tracking";
    let late = "observers of an election learn of a new leader late";
    Some(match master.tracking.as_ref()? {
        Ok(()) => ok(check, &node.address, "it reports changes of keys (CLIENT TRACKING)")
            .impact("observers of an election are notified at once"),
        Err(error @ QueryError::Refused(reason)) => {
            warn(check, &node.address, reason).impact(late).fix(fix_for_refusal(error, requirements))
        }
        Err(error) => unknown(check, &node.address, error).impact(late).fix(fix_for_refusal(error, requirements)),
    })
}

/// Judges whether the server reports its run id, which leases store, and by which strict mode
/// detects a restart. `None` where the engine does not need it.
pub(super) fn judge_run_id(node: &NodeFacts, requirements: &Requirements) -> Option<Finding> {
    let (check, address) = ("run-id", &node.address);
    let needed = requirements.strict || !requirements.simple && requirements.deployment != Deployment::Redlock;
    needed.then(|| match node.info("run_id") {
        Ok(_) => ok(check, address, "INFO reports the server's run id")
            .impact("leases of another server are recognized; strict mode detects each restart"),
        Err(error) => fail(check, address, error.to_string())
            .impact("leases store the server's run_id: without it, no lock can be acquired")
            .fix("let this user run INFO (+info), without a proxy in between that hides it"),
    })
}

/// Fails for each address of a server that has another address before it: the two fail together.
pub(super) fn judge_same_server(nodes: &[NodeFacts]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, node) in nodes.iter().enumerate() {
        let Ok(id) = node.info("run_id") else { continue };
        if let Some(other) = nodes[..index].iter().find(|other| other.info("run_id") == Ok(id)) {
            let found = format!("it is the same server as {}", other.address);
            let finding = fail("same-server", &node.address, found)
                .impact("the two addresses fail, and lose data, together")
                .fix("list each server once, by an address of its own");
            findings.push(finding);
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{assert_level, healthy, requirements};
    use super::*;
    use crate::Level::{Fail, Ok as Good, Unknown, Warn};

    fn refused_probe(reason: &str) -> Fact<()> {
        Err(QueryError::Refused(reason.into()))
    }

    #[test]
    fn an_unreachable_server_or_a_refused_login_fails() {
        let finding = |kind, expected| judge_unreachable("h:1", expected, &Error::new(kind, "no"));
        assert_level(&finding(ErrorKind::Unavailable, ExpectedRole::Master), Fail, "firewalls");
        assert_level(&finding(ErrorKind::Denied, ExpectedRole::Any), Fail, "password");
        assert_level(&finding(ErrorKind::Unsupported, ExpectedRole::Master), Fail, "6.0");
        assert_level(&finding(ErrorKind::Unavailable, ExpectedRole::Replica), Warn, "may become the master");
        let silent = NodeFacts { scripts: Err(QueryError::NoResponse("no answer within 5s".into())), ..healthy() };
        assert_level(&judge_reachable(&silent), Fail, "stopped responding");
    }

    #[test]
    fn a_replica_in_place_of_a_master_fails() {
        let mut node = healthy().with_info("master_host", "m").with_info("master_port", "7");
        assert_level(&judge_role(&node, ExpectedRole::Master, &requirements()).unwrap(), Good, "master");
        assert_level(&judge_role(&node, ExpectedRole::Replica, &requirements()).unwrap(), Warn, "two masters");
        node.is_master = Ok(false);
        assert_level(&judge_role(&node, ExpectedRole::Master, &requirements()).unwrap(), Fail, "replica of m:7");
        assert_level(&judge_role(&node, ExpectedRole::Replica, &requirements()).unwrap(), Good, "replica");
        node.is_master = Err(QueryError::missing("it"));
        assert_level(&judge_role(&node, ExpectedRole::Master, &requirements()).unwrap(), Unknown, "+role");
    }

    #[test]
    fn a_single_cluster_node_without_its_cluster_fails() {
        let node = healthy().with_info("cluster_enabled", "1");
        assert_level(&judge_cluster_mode(&node, &requirements()).unwrap(), Fail, "redis+cluster:");
        assert_eq!(
            judge_cluster_mode(&node, &Requirements { deployment: Deployment::Cluster, ..requirements() }),
            None
        );
        assert_eq!(judge_cluster_mode(&healthy(), &requirements()), None);
    }

    #[test]
    fn a_refused_probe_fails_and_an_unanswered_probe_is_unknown() {
        let mut node = healthy();
        node.scripts = refused_probe("NOPERM no eval");
        node.script_time = refused_probe("ERR unknown command 'TIME' called from script");
        assert_level(&judge_scripts(&node, &requirements()), Fail, "+evalsha");
        assert_level(&judge_script_time(&node, &requirements()), Fail, "hides the command");
        node.scripts = Err(QueryError::NoResponse("no answer".into()));
        assert_level(&judge_scripts(&node, &requirements()), Unknown, "no answer");
        let mut master = node.master.clone().unwrap();
        master.lock_keys = refused_probe("CROSSSLOT Keys in request don't hash to the same slot");
        assert_level(&judge_lock_keys(&node, &master, &requirements()), Fail, "proxy");
    }

    #[test]
    fn an_echo_must_arrive_and_be_counted() {
        let node = healthy();
        let mut master = node.master.clone().unwrap();
        for (receivers, received) in [(0, false), (1, false), (0, true)] {
            master.echo = Some(Ok(Echo { receivers, received }));
            assert_level(&judge_pubsub(&node, &master, &requirements()).unwrap(), Fail, "proxy");
        }
        master.echo = Some(Err(QueryError::Refused("NOPERM no channel".into())));
        assert_level(&judge_pubsub(&node, &master, &requirements()).unwrap(), Fail, "&leasehold:*");
        master.echo = None;
        assert_eq!(judge_pubsub(&node, &master, &requirements()), None);
    }

    #[test]
    fn observers_need_tracking_and_strict_mode_needs_the_run_id() {
        let node = healthy();
        let mut master = node.master.clone().unwrap();
        assert_level(&judge_tracking(&node, &master, &requirements()).unwrap(), Good, "elect");
        master.tracking = Some(refused_probe("ERR unknown command 'CLIENT'"));
        assert_level(&judge_tracking(&node, &master, &requirements()).unwrap(), Warn, "hides the command");
        master.tracking = None;
        assert_eq!(judge_tracking(&node, &master, &requirements()), None);
        assert_eq!(judge_run_id(&node, &Requirements { simple: true, ..requirements() }), None);
        assert_eq!(judge_run_id(&node, &Requirements { deployment: Deployment::Redlock, ..requirements() }), None);
        assert_level(&judge_run_id(&node, &requirements()).unwrap(), Good, "another server");
        let strict = Requirements { strict: true, ..requirements() };
        assert_level(&judge_run_id(&node, &strict).unwrap(), Good, "restart");
        let hidden = NodeFacts { info: Err(QueryError::Refused("NOPERM".into())), ..healthy() };
        assert_level(&judge_run_id(&hidden, &strict).unwrap(), Fail, "+info");
    }

    #[test]
    fn one_server_by_two_names_is_noticed() {
        let other = healthy().with_info("run_id", "def");
        assert!(judge_same_server(&[healthy(), other.clone()]).is_empty());
        let twice = judge_same_server(&[healthy(), other, NodeFacts { address: "alias:1".into(), ..healthy() }]);
        assert_level(&twice[0], Fail, "same server as h:6379");
        assert_eq!((twice.len(), twice[0].subject.as_str()), (1, "alias:1"));
    }
}
