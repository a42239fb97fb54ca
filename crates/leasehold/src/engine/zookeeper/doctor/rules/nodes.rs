//! The nodes where the locks are.

use super::super::facts::{Aim, Inside};
use super::{any, fail, many, ok, unknown, warn};
use crate::doctor::Finding;

pub(super) fn all(inside: &Inside, aim: &Aim) -> Vec<Finding> {
    let (check, base) = ("orphans", aim.shown_base());
    let nodes = match &inside.nodes {
        Ok(nodes) => nodes,
        Err(no) => {
            let finding = unknown(check, "", no);
            return vec![finding.means("a claim that belongs to no session would block its lock for ever")];
        }
    };
    let mut findings = Vec::new();
    findings.extend(any(&nodes.immortal, "claim").map(|found| {
        fail(check, "", format!("{found} without a session"))
            .means("nobody will ever delete them: their locks are blocked for ever. Somebody restored or copied these nodes")
            .fix("delete them: `leasehold evict` on their locks, or delete in zkCli")
    }));
    findings.extend(any(&nodes.foreign, "node").map(|found| {
        warn("foreign-nodes", "", format!("below {base}, {found}, not ours"))
            .means("another program uses our path. In a lock's folder they make each take slower, and the folder stays for ever")
            .fix("another path in the URL, for all who share the locks; or delete the nodes if nobody needs them")
    }));
    findings.extend(any(&nodes.lingering, "lock").map(|found| {
        warn("empty-folders", "", format!("{found}, empty for more than 10 minutes"))
            .means("the leader removes empty containers every minute; these it does not, and they become ever more")
            .fix("delete them if they are no containers (made by hand or restored); look at znode.container.checkIntervalMs")
    }));
    let part = if nodes.all { String::new() } else { format!(", of {} in all", nodes.folders) };
    let seen =
        format!("below {base}, {} with {} looked at{part}", many(nodes.seen, "lock"), many(nodes.claims, "claim"));
    if findings.is_empty() {
        let means = if nodes.all { "nothing is left over" } else { "nothing is left over, as far as we looked" };
        findings.push(ok(check, "", seen).means(means));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::No;
    use super::super::super::walk::{Group, Nodes};
    use super::super::sample::{aim, assert_level, three};
    use super::*;
    use crate::doctor::Level::{Fail, Ok as Good, Unknown, Warn};

    fn group(count: usize) -> Group {
        Group { count, examples: (0..count.min(3)).map(|n| format!("/leasehold/{n}")).collect() }
    }

    #[test]
    fn each_kind_of_orphan_is_named() {
        let good = Nodes { folders: 9, seen: 9, claims: 1, all: true, ..Nodes::default() };
        let find = |nodes| all(&Inside { nodes: Ok(nodes), ..three().inside.unwrap() }, &aim());
        assert_level(&find(good.clone())[0], Good, "9 locks with 1 claim looked at");
        let part = Nodes { all: false, folders: 5000, seen: 1000, ..good.clone() };
        assert_level(&find(part)[0], Good, "of 5000 in all");
        assert_level(&find(Nodes { immortal: group(1), ..good.clone() })[0], Fail, "1 claim (/leasehold/0) without");
        assert_level(&find(Nodes { foreign: group(5), ..good.clone() })[0], Warn, "5 nodes (/leasehold/0, ");
        assert_level(&find(Nodes { lingering: group(2), ..good.clone() })[0], Warn, "checkIntervalMs");
        assert_eq!(find(Nodes { lingering: group(2), immortal: group(1), ..good }).len(), 2);
        let untold = Inside { nodes: Err(No::Said(leasehold_zookeeper::Error::NoAuth)), ..three().inside.unwrap() };
        assert_level(&all(&untold, &aim())[0], Unknown, "for ever");
    }
}
