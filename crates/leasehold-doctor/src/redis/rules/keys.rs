//! Judges the keys with leasehold's prefix.

use super::super::facts::{NodeFacts, Requirements};
use super::super::keys::{KeyGroup, KeyScan};
use super::super::query::Fact;
use super::{fail, ok, unknown, warn};
use crate::Finding;
use leasehold_internals::FORMAT;

/// One finding for each kind of unexpected key; one that is ok if there are none.
pub(super) fn judge_keys(node: &NodeFacts, keys: &Fact<KeyScan>, requirements: &Requirements) -> Vec<Finding> {
    let address = &node.address;
    let keys = match keys {
        Ok(keys) => keys,
        Err(error) => {
            let finding = unknown("key-types", address, error)
                .impact("foreign keys with leasehold's prefix could collide with a lock's key")
                .fix(format!("give the user what locks need: {}", requirements.permissions()));
            return vec![finding];
        }
    };
    let prefix = &requirements.prefix;
    let other = "choose another prefix= in the URL of all clients; or remove the keys if they are not needed";
    let mut findings = Vec::new();
    findings.extend(describe_group(&keys.wrong_type).map(|found| {
        fail("key-types", address, format!("{found} with the name of a lock's key, but of another type"))
            .impact("these locks cannot be acquired (WRONGTYPE)")
            .fix(other)
    }));
    findings.extend(describe_own_keys(&keys.unknown_format).map(|found| {
        fail("key-formats", address, format!("{found} in a format other than {FORMAT}"))
            .impact("another version of leasehold stored these locks; this version refuses to use them")
            .fix("use one version of leasehold in the whole fleet, or versions that docs/upgrading.md allows together")
    }));
    findings.extend(describe_group(&keys.foreign).map(|found| {
        warn("foreign-keys", address, format!("below {prefix:?}, {found}, not written by leasehold"))
            .impact("another program uses leasehold's prefix: its keys may collide with a lock's, and one overwrites the other")
            .fix(other)
    }));
    findings.extend(describe_own_keys(&keys.without_ttl).map(|found| {
        warn("keys-without-ttl", address, format!("{found} without a TTL"))
            .impact("they never expire: they were made persistent (PERSIST), or restored from a copy")
            .fix("PEXPIRE them if their locks are not held (`leasehold ls`)")
    }));
    findings.extend(describe_own_keys(&keys.orphans).map(|found| {
        warn("orphans", address, format!("{found}, of which a part is missing or left over"))
            .impact("holders or waiters of these locks were lost: keys were removed by hand, evicted or lost")
            .fix("they expire with their TTL; find the cause of the removed keys (eviction-policy, FLUSHDB)")
    }));
    findings.extend(describe_own_keys(&keys.expired).map(|found| {
        warn("ended-holders", address, format!("{found}, whose holder's lease expired without a release"))
            .impact("a holder crashed, was stopped or was cut off; the next client acquires the lock at once")
            .fix("nothing, if the cause is known; they are removed within retention. If there are many: check the holders' logs")
    }));
    if findings.is_empty() {
        let part = if keys.is_complete { "all" } else { "as far as examined" };
        let noun = key_or_keys(keys.examined);
        let found = format!("{} {noun} below {prefix:?}, {part} as they should be", keys.examined);
        findings.push(ok("key-types", address, found).impact("no other program writes the keys of locks"));
    }
    findings
}

fn key_or_keys(count: usize) -> &'static str {
    if count == 1 { "key" } else { "keys" }
}

/// `3 keys (a, b, c)`; `None` for an empty group.
fn describe_group(group: &KeyGroup) -> Option<String> {
    describe(group, key_or_keys(group.count))
}

/// `3 of leasehold's keys (a, b, c)`; `None` for an empty group.
fn describe_own_keys(group: &KeyGroup) -> Option<String> {
    describe(group, "of leasehold's keys")
}

fn describe(group: &KeyGroup, noun: &str) -> Option<String> {
    let more = if group.count > group.examples.len() { ", …" } else { "" };
    (group.count > 0).then(|| format!("{} {noun} ({}{more})", group.count, group.examples.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::super::super::query::QueryError;
    use super::super::fixtures::{assert_level, healthy, requirements};
    use super::*;
    use crate::Level::{Fail, Ok as Good, Unknown, Warn};

    fn group(count: usize) -> KeyGroup {
        KeyGroup { count, examples: (0..count.min(3)).map(|n| format!("leasehold:l{{{n}}}")).collect() }
    }

    #[test]
    fn each_kind_of_unexpected_key_is_reported() {
        let good = KeyScan { examined: 9, is_complete: true, ..KeyScan::default() };
        let find = |keys| judge_keys(&healthy(), &Ok(keys), &requirements());
        assert_level(&find(good.clone())[0], Good, "9 keys");
        assert_level(&find(KeyScan { is_complete: false, ..good.clone() })[0], Good, "as far as examined");
        assert_level(&find(KeyScan { wrong_type: group(1), ..good.clone() })[0], Fail, "1 key (leasehold:l{0})");
        let other = &find(KeyScan { unknown_format: group(2), ..good.clone() })[0];
        assert_level(other, Fail, "2 of leasehold's keys (leasehold:l{0}, leasehold:l{1}) in a format other than 1");
        assert_level(&find(KeyScan { foreign: group(5), ..good.clone() })[0], Warn, "5 keys (leasehold:l{0}, ");
        assert_level(
            &find(KeyScan { without_ttl: group(2), ..good.clone() })[0],
            Warn,
            "2 of leasehold's keys (leasehold:l{0}, leasehold:l{1}) without a TTL",
        );
        assert_level(&find(KeyScan { orphans: group(2), ..good.clone() })[0], Warn, "part is missing");
        assert_eq!(find(KeyScan { orphans: group(2), wrong_type: group(1), ..good }).len(), 2);
        assert_level(
            &judge_keys(&healthy(), &Err(QueryError::missing("SCAN")), &requirements())[0],
            Unknown,
            "ACL SETUSER",
        );
    }
}
