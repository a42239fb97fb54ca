//! Judges this client's permissions, and those of other clients.

use leasehold_zookeeper::{Acl, Error as Cause, Permission};

use super::super::facts::{EnsembleFacts, Fact, Requirements, UnknownReason};
use super::{fail, ok, unknown, warn};
use crate::Finding;

/// Judges whether a lock could be created.
pub(super) fn judge_lock_nodes(inside: &EnsembleFacts, requirements: &Requirements) -> Finding {
    let (check, base) = ("lock-nodes", requirements.shown_base());
    let refused = |found: String, fix: String| fail(check, "", found).impact("no lock can be acquired").fix(fix);
    match &inside.probe {
        Ok(_) => ok(check, "", format!("below {base}, a lock was created, written to and removed"))
            .impact("this user has the permissions that locks need"),
        Err(reason @ UnknownReason::RequestFailed(cause)) => refused(
            format!("below {base}, a lock cannot be created: {reason}"),
            match cause {
                Cause::NoAuth => format!(
                    "log in as the creator of {base}: zookeeper://user:password@host; or let its ACL allow create, delete, write and read"
                ),
                Cause::InvalidAcl => "a login that the server accepts; acl=creator and acl=readable need one".into(),
                Cause::QuotaExceeded => format!("a larger quota for {base} (setquota), or fewer nodes there"),
                Cause::NoChildrenForEphemerals => format!("another path in the URL: {base} is an ephemeral node"),
                Cause::Unimplemented | Cause::Malformed(_) => "ZooKeeper 3.5.3 or newer".into(),
                _ => "correct the error that the server reports, and examine it again".into(),
            },
        ),
        Err(reason) => unknown(check, "", reason).impact("it is unknown whether a lock can be acquired"),
    }
}

/// The permissions that all clients have on a node, except reading, in zkCli's letters: `cdwa`.
fn format_world_permissions(acls: &[Acl]) -> String {
    let world = acls.iter().filter(|acl| acl.scheme() == "world" && acl.id() == "anyone");
    let all = world.fold(Permission::NONE, |all, acl| all | acl.permission());
    let letters =
        [(Permission::CREATE, 'c'), (Permission::DELETE, 'd'), (Permission::WRITE, 'w'), (Permission::ADMIN, 'a')];
    letters.iter().filter(|(permission, _)| all.has(*permission)).map(|(_, letter)| letter).collect()
}

/// Warns of leasehold's nodes that all clients may change. The root is not one of them.
pub(super) fn judge_acls(inside: &EnsembleFacts, requirements: &Requirements) -> Vec<Finding> {
    let check = "acl";
    let seen: Vec<&(String, Fact<Vec<Acl>>)> = inside.acls.iter().filter(|(path, _)| path != "/").collect();
    let open: Vec<String> = seen
        .iter()
        .filter_map(|(path, acls)| {
            let letters = format_world_permissions(acls.as_ref().ok()?);
            (!letters.is_empty()).then(|| format!("{path} ({letters})"))
        })
        .collect();
    let mut findings = Vec::new();
    if !open.is_empty() {
        let more = if open.len() > 3 { ", …" } else { "" };
        let some: Vec<_> = open.iter().take(3).map(String::as_str).collect();
        let fix = format!(
            "zookeeper://user:password@host?acl=creator for all clients (or acl=readable); and for existing nodes, in zkCli: setAcl -R {} auth::cdrwa after addauth digest user:password",
            requirements.shown_base()
        );
        findings.push(
            warn(check, "", format!("world:anyone may change {}{more}", some.join(", ")))
                .impact("any client that reaches the servers can delete a holder's node, and so end its lock, or block all locks")
                .fix(fix),
        );
    }
    let hidden = seen.iter().find_map(|(path, acls)| Some((path, acls.as_ref().err()?)));
    if let Some((path, reason)) = hidden {
        findings.push(unknown(check, path, reason).impact("if all clients may change it, any client can end a lock"));
    } else if seen.is_empty() {
        let finding = unknown(check, "", &UnknownReason::not_reported("the ACLs"));
        findings.push(finding.impact("if all clients may change them, any client can end a lock"));
    } else if open.is_empty() {
        let found = format!("of {} nodes, none can be changed by all clients", seen.len());
        findings.push(ok(check, "", found).impact("no other client can end a lock"));
    }
    findings
}

/// Judges whether the servers enforce ACLs at all; `None` if leasehold's ACLs allow everything to
/// all clients.
pub(super) fn judge_acl_enforcement(inside: &EnsembleFacts) -> Option<Finding> {
    let check = "acl-enforced";
    Some(match inside.refuses_anonymous.as_ref()? {
        Ok(true) => ok(check, "", "a client without a login was refused").impact("the ACLs of locks are enforced"),
        Ok(false) => fail(check, "", "a client without a login could write to a lock that only this user may write to")
            .impact("ACLs are not enforced: any client that reaches the servers can end a lock")
            .fix("skipACL=no (zookeeper.skipACL) on all servers"),
        Err(reason) => unknown(check, "", reason)
            .impact("servers may ignore ACLs (skipACL); a client without a login could not be tested")
            .fix("skipACL=no (zookeeper.skipACL) on all servers, which is the default"),
    })
}

#[cfg(test)]
mod tests {
    use super::super::sample::{assert_level, requirements, three_servers};
    use super::*;
    use crate::Level::{Fail, Ok as Good, Unknown, Warn};

    fn ensemble() -> EnsembleFacts {
        three_servers().ensemble.unwrap()
    }

    fn world(permission: Permission) -> Vec<Acl> {
        vec![Acl::new_const(Permission::ALL, "auth", ""), Acl::new_const(permission, "world", "anyone")]
    }

    #[test]
    fn each_refusal_has_a_fix() {
        let with = |reason| judge_lock_nodes(&EnsembleFacts { probe: Err(reason), ..ensemble() }, &requirements());
        assert_level(&judge_lock_nodes(&ensemble(), &requirements()), Good, "/leasehold");
        assert_level(&with(UnknownReason::RequestFailed(Cause::NoAuth)), Fail, "user:password@host");
        assert_level(&with(UnknownReason::RequestFailed(Cause::QuotaExceeded)), Fail, "setquota");
        assert_level(&with(UnknownReason::RequestFailed(Cause::Unimplemented)), Fail, "3.5.3");
        assert_level(&with(UnknownReason::RequestFailed(Cause::InvalidAcl)), Fail, "acl=creator");
        assert_level(&with(UnknownReason::Unreachable("no answer".into())), Unknown, "no answer");
    }

    #[test]
    fn nodes_writable_by_all_clients_are_a_warning() {
        let with = |acls: Vec<(&str, Fact<Vec<Acl>>)>| {
            let acls = acls.into_iter().map(|(path, acls)| (path.to_owned(), acls)).collect();
            judge_acls(&EnsembleFacts { acls, ..ensemble() }, &requirements())
        };
        assert_level(&judge_acls(&ensemble(), &requirements())[0], Good, "none can be changed");
        assert_level(&with(vec![("/l", Ok(world(Permission::READ)))])[0], Good, "no other client");
        assert_level(&with(vec![("/l", Ok(world(Permission::ALL)))])[0], Warn, "/l (cdwa)");
        assert_level(&with(vec![("/l", Ok(world(Permission::READ | Permission::DELETE)))])[0], Warn, "/l (d)");
        // The root is not leasehold's.
        let root = with(vec![("/", Ok(world(Permission::ALL))), ("/l", Ok(world(Permission::READ)))]);
        assert_level(&root[0], Good, "of 1 nodes");
        let reason = || Err(UnknownReason::RequestFailed(Cause::NoAuth));
        let both = with(vec![("/l", Ok(world(Permission::WRITE))), ("/l/a", reason())]);
        assert_eq!(both.len(), 2);
        assert_level(&both[1], Unknown, "not authorized");
        assert_level(&with(vec![])[0], Unknown, "the ACLs");
    }

    #[test]
    fn servers_that_ignore_acls_fail() {
        let with = |refused| judge_acl_enforcement(&EnsembleFacts { refuses_anonymous: refused, ..ensemble() });
        assert_level(&with(Some(Ok(true))).unwrap(), Good, "enforced");
        assert_level(&with(Some(Ok(false))).unwrap(), Fail, "skipACL");
        assert_level(&with(Some(Err(UnknownReason::NotServing))).unwrap(), Unknown, "skipACL");
        assert_eq!(with(None), None);
    }
}
