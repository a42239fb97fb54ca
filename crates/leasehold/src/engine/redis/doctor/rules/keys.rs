//! The keys with our prefix.

use super::super::ask::Known;
use super::super::facts::{Aim, Node};
use super::super::keys::{Group, Keys};
use super::{fail, ok, unknown, warn};
use crate::doctor::Finding;

pub(super) fn all(node: &Node, keys: &Known<Keys>, aim: &Aim) -> Vec<Finding> {
    let at = &node.address;
    let keys = match keys {
        Ok(keys) => keys,
        Err(no) => {
            let finding = unknown("key-types", at, no)
                .means("others' keys below our prefix could stand where a lock's key belongs")
                .fix(format!("give the user what locks need: {}", aim.permissions()));
            return vec![finding];
        }
    };
    let prefix = &aim.prefix;
    let other =
        "choose another prefix= in the URL, for all who share the locks; or remove the keys if nobody needs them";
    let mut findings = Vec::new();
    findings.extend(any(&keys.wrong_type).map(|found| {
        fail("key-types", at, format!("where locks' keys belong, {found}, of another type"))
            .means("these locks cannot be taken (WRONGTYPE)")
            .fix(other)
    }));
    findings.extend(any(&keys.foreign).map(|found| {
        warn("foreign-keys", at, format!("below {prefix:?}, {found}, not written by us"))
            .means("another program uses our prefix: its keys may meet a lock's, and then one destroys the other")
            .fix(other)
    }));
    findings.extend(any(&keys.immortal).map(|found| {
        warn("keys-without-ttl", at, format!("of ours, {found}, without a TTL"))
            .means("they stay for ever: somebody ran PERSIST, or restored them from a copy")
            .fix("PEXPIRE them if their locks are not held (`leasehold ls`)")
    }));
    findings.extend(any(&keys.orphans).map(|found| {
        warn("orphans", at, format!("of ours, {found}, of which a part is missing or left over"))
            .means("holders or waiters of these locks were forgotten: keys were removed by hand, evicted or lost")
            .fix("they go by themselves with their TTL; find out who removes keys (eviction-policy, FLUSHDB)")
    }));
    findings.extend(any(&keys.ended).map(|found| {
        warn("ended-holders", at, format!("of ours, {found}, whose holder's lease is over and was not given back"))
            .means("a holder crashed, was stopped or was cut off; whoever wants the lock next gets it at once")
            .fix("nothing, if that is known; they go by themselves within retention. Many: look at the holders' logs")
    }));
    if findings.is_empty() {
        let part = if keys.all { "all" } else { "as far as we looked" };
        let noun = noun(keys.seen);
        let found = format!("{} {noun} below {prefix:?}, {part} as they should be", keys.seen);
        findings.push(ok("key-types", at, found).means("nobody else writes where locks are"));
    }
    findings
}

fn noun(count: usize) -> &'static str {
    if count == 1 { "key" } else { "keys" }
}

/// `3 keys (a, b, c)`, if there are any.
fn any(group: &Group) -> Option<String> {
    let noun = noun(group.count);
    let more = if group.count > group.examples.len() { ", …" } else { "" };
    (group.count > 0).then(|| format!("{} {noun} ({}{more})", group.count, group.examples.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::super::super::ask::No;
    use super::super::sample::{aim, assert_level, healthy};
    use super::*;
    use crate::doctor::Level::{Fail, Ok as Good, Unknown, Warn};

    fn group(count: usize) -> Group {
        Group { count, examples: (0..count.min(3)).map(|n| format!("leasehold:l{{{n}}}")).collect() }
    }

    #[test]
    fn each_kind_of_stranger_is_named() {
        let good = Keys { seen: 9, all: true, ..Keys::default() };
        let find = |keys| all(&healthy(), &Ok(keys), &aim());
        assert_level(&find(good.clone())[0], Good, "9 keys");
        assert_level(&find(Keys { all: false, ..good.clone() })[0], Good, "as far as we looked");
        assert_level(&find(Keys { wrong_type: group(1), ..good.clone() })[0], Fail, "1 key (leasehold:l{0})");
        assert_level(&find(Keys { foreign: group(5), ..good.clone() })[0], Warn, "5 keys (leasehold:l{0}, ");
        assert_level(&find(Keys { immortal: group(2), ..good.clone() })[0], Warn, "without a TTL");
        assert_level(&find(Keys { orphans: group(2), ..good.clone() })[0], Warn, "part is missing");
        assert_eq!(find(Keys { orphans: group(2), wrong_type: group(1), ..good }).len(), 2);
        assert_level(&all(&healthy(), &Err(No::missing("SCAN")), &aim())[0], Unknown, "ACL SETUSER");
    }
}
