//! Scans the keys with leasehold's prefix for those that locks did not write, and those that never
//! expire.

use futures_util::future::join_all;

use super::facts::{Deployment, Requirements};
use super::query::{Fact, QueryConnection, query, redis_command};
use leasehold_internals::redis::keys::pattern;
use leasehold_internals::redis::values::FORMAT_DIGIT;
use leasehold_internals::redis::wire::SimpleState;
use leasehold_internals::redis::{Contender, Stored};

/// How many keys are examined, at most.
const MAX_KEYS: usize = 2_000;
/// How many steps of the scan are made to find them, at most.
const MAX_SCAN_STEPS: usize = 300;
/// How many keys of the server one step of the scan covers, as `SCAN` takes it.
const SCAN_COUNT: &str = "1000";
/// How many keys of a kind a finding names.
const MAX_EXAMPLES: usize = 3;

/// Examines a key atomically. Returns its type, the state of its lock, its number of fields, its
/// TTL in ms, and the server's time in seconds and microseconds.
const EXAMINE_KEY_SCRIPT: &str = "\
local kind = redis.call('TYPE', KEYS[1]).ok
local hash = kind == 'hash'
local main = hash and redis.call('HGET', KEYS[1], 'm') or ''
-- The list of those that were force released is neither state nor claim.
local extra = hash and redis.call('HGET', KEYS[1], 'x') and 1 or 0
local fields = hash and redis.call('HLEN', KEYS[1]) - extra or 0
return {kind, main, fields, redis.call('PTTL', KEYS[1]), redis.call('TIME')}";

/// Examines a key on a node of Redlock, where a lock is a string. Returns its type and its TTL in
/// ms; the other values are placeholders.
const EXAMINE_REDLOCK_KEY_SCRIPT: &str =
    "return {redis.call('TYPE', KEYS[1]).ok, '', 0, redis.call('PTTL', KEYS[1]), {0, 0}}";

/// Keys of one kind: their number, and some of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyGroup {
    pub(crate) count: usize,
    pub(crate) examples: Vec<String>,
}

impl KeyGroup {
    /// Counts a key, and keeps its name as an example if there are few so far.
    fn add(&mut self, key: &[u8]) {
        self.count += 1;
        if self.examples.len() < MAX_EXAMPLES {
            self.examples.push(String::from_utf8_lossy(key).into_owned());
        }
    }
}

/// The result of a scan, with the keys that a healthy server would not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyScan {
    /// How many keys were examined.
    pub(crate) examined: usize,
    /// Whether the scan covered all keys of the server.
    pub(crate) is_complete: bool,
    /// Keys with the name of one of leasehold's, but of another type.
    pub(crate) wrong_type: KeyGroup,
    /// Locks in a format that this version of leasehold does not read.
    pub(crate) unknown_format: KeyGroup,
    /// Keys with leasehold's prefix that leasehold did not write.
    pub(crate) foreign: KeyGroup,
    /// Leasehold's keys without a TTL.
    pub(crate) without_ttl: KeyGroup,
    /// Locks whose key lacks fields, or has more than its state says.
    pub(crate) orphans: KeyGroup,
    /// Locks whose holder's lease has expired, and that no client has requested since.
    pub(crate) expired: KeyGroup,
}

/// What was examined of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyFacts {
    /// Its type: `hash`, `string`, …; `none` if the key no longer exists.
    pub(crate) kind: String,
    /// A hash's field `m`, the state of a lock; empty for other types.
    pub(crate) lock_state: Vec<u8>,
    /// The number of fields of a hash; 0 for other types.
    pub(crate) field_count: u64,
    /// The time until it expires; -1 if it never does.
    pub(crate) ttl_ms: i64,
    /// The server's time, in µs.
    pub(crate) now: u64,
}

impl KeyScan {
    /// Counts a key of a node of Redlock: a lock is a string, `<prefix>q<name>`. Keys of the engine
    /// `redis:` with the same prefix have other names, and are not judged.
    pub(crate) fn add_redlock_key(&mut self, prefix: &str, key: &[u8], key_facts: &KeyFacts) {
        if key_facts.kind == "none" {
            return; // It has disappeared meanwhile.
        }
        self.examined += 1;
        let expected = match key.get(prefix.len()..).unwrap_or_default() {
            [b'q', _, ..] | [b'e'] => "string",
            [b'l' | b'r' | b'c' | b't', b'{' | b'=' | b'~', ..] | [b's'] | [b'b', ..] => return,
            _ => return self.foreign.add(key),
        };
        if key_facts.kind != expected {
            self.wrong_type.add(key);
        } else if key_facts.ttl_ms == -1 {
            self.without_ttl.add(key);
        }
    }

    /// Counts a key of a server of `redis:`.
    ///
    /// A lock is a hash, `<prefix>l…`. Its field `m` begins with the format number. Then comes S (free,
    /// or held by one), and `m` is the only field; or Q, and each claim has a field beside it. A
    /// record is a string, `<prefix>r…`, and stays. `<prefix>b…` (grouped renewals), `<prefix>e` and
    /// `<prefix>s` are strings, the last two followed by a slot's tag in a cluster. So are the
    /// locks of Redlock with the same prefix, `<prefix>q<name>`.
    pub(crate) fn add_key(&mut self, prefix: &str, key: &[u8], key_facts: &KeyFacts) {
        if key_facts.kind == "none" {
            return; // It has disappeared meanwhile.
        }
        self.examined += 1;
        let rest = key.get(prefix.len()..).unwrap_or_default();
        let expected = match rest {
            [b'l', b'{' | b'=' | b'~', ..] => "hash",
            // A record: it never expires, and the application defines its content.
            [b'r', b'{' | b'=' | b'~', ..] if key_facts.kind == "string" => return,
            [b'r', b'{' | b'=' | b'~', ..] => "string",
            [b'e' | b's'] | [b'e' | b's', b'{', ..] => "string",
            [b'b', number @ ..] if number.len() == 32 => "string",
            // A cache with the same prefix.
            [b'c' | b't', b'{' | b'=' | b'~', ..] => return,
            // A lock of `redlock:`, for which this server votes, too.
            [b'q', _, ..] => "string",
            _ => return self.foreign.add(key),
        };
        if key_facts.kind != expected {
            return self.wrong_type.add(key);
        }
        if key_facts.ttl_ms == -1 {
            self.without_ttl.add(key);
        }
        let whole = match (expected, &key_facts.lock_state[..]) {
            ("string", _) => true,
            (_, [FORMAT_DIGIT, b'S', ..]) => key_facts.field_count == 1,
            (_, [FORMAT_DIGIT, b'Q', ..]) => key_facts.field_count > 1,
            (_, [b'0'..=b'9', ..]) => return self.unknown_format.add(key),
            _ => return self.foreign.add(key),
        };
        if !whole {
            self.orphans.add(key);
        } else if is_expired(key_facts) {
            self.expired.add(key);
        }
    }
}

/// Whether the lease of the only holder has expired. A lease in a group is not looked up.
fn is_expired(key_facts: &KeyFacts) -> bool {
    let Ok(state) = SimpleState::read(&key_facts.lock_state) else { return false };
    let contender = Contender::read(&state.contender.0).filter(|_| state.group.is_empty());
    contender.is_some_and(|contender| state.since + contender.ttl.as_micros() as u64 <= key_facts.now)
}

/// Scans the keys with leasehold's prefix, within limits.
pub(crate) async fn scan(connection: &QueryConnection, requirements: &Requirements) -> Fact<KeyScan> {
    let (mut keys, prefix) = (KeyScan::default(), &requirements.prefix);
    let script =
        if requirements.deployment == Deployment::Redlock { EXAMINE_REDLOCK_KEY_SCRIPT } else { EXAMINE_KEY_SCRIPT };
    let (pattern, mut cursor) = (pattern(prefix), "0".to_owned());
    for _ in 0..MAX_SCAN_STEPS {
        let step = redis_command(&["SCAN", &cursor, "MATCH", &pattern, "COUNT", SCAN_COUNT]);
        let (next, found): (String, Vec<Vec<u8>>) = query(connection, &step).await?;
        for some in found.chunks(100) {
            let all_key_facts = join_all(some.iter().map(|key| examine_key(connection.clone(), script, key))).await;
            for (key, key_facts) in some.iter().zip(all_key_facts) {
                match requirements.deployment {
                    Deployment::Redlock => keys.add_redlock_key(prefix, key, &key_facts?),
                    _ => keys.add_key(prefix, key, &key_facts?),
                }
            }
        }
        cursor = next;
        keys.is_complete = cursor == "0";
        if keys.is_complete || keys.examined >= MAX_KEYS {
            break;
        }
    }
    Ok(keys)
}

/// Runs the script that examines a key.
async fn examine_key(connection: QueryConnection, script: &str, key: &[u8]) -> Fact<KeyFacts> {
    let mut command = redis_command(&["EVAL", script, "1"]);
    command.arg(key);
    let (kind, lock_state, field_count, ttl_ms, (secs, micros)): (_, _, _, _, (u64, u64)) =
        query(&connection, &command).await?;
    Ok(KeyFacts { kind, lock_state, field_count, ttl_ms, now: secs * 1_000_000 + micros })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use leasehold::{ClaimId, Holder, LockName, LockOptions, Mode, Token};
    use leasehold_internals::redis::{Rest, encode_contender};

    use super::*;

    fn scan_of_one_key(key: &str, kind: &str, main: &str, fields: u64, ttl_ms: i64) -> KeyScan {
        let mut keys = KeyScan::default();
        let (kind, lock_state) = (kind.into(), main.into());
        keys.add_key("p:", key.as_bytes(), &KeyFacts { kind, lock_state, field_count: fields, ttl_ms, now: 0 });
        keys
    }

    #[test]
    fn an_expired_lease_is_counted() {
        let options = LockOptions::new(
            LockName::new("a").unwrap(),
            Mode::Exclusive,
            None,
            Duration::from_secs(30),
            Arc::new(Holder::new("host", 1, "program", "")),
        );
        let state = SimpleState {
            token: Token(1),
            kept: 1000,
            since: 5_000_000,
            claim: ClaimId::from_bits(1),
            run: *b"12345678",
            group: "".into(),
            contender: Rest(encode_contender(&options, &"p:i1".into())),
        };
        let grouped = SimpleState { group: "p:b1".into(), ..state.clone() };
        for (state, now, expected) in [(&state, 35_000_000, 1), (&state, 34_999_999, 0), (&grouped, 35_000_000, 0)] {
            let key_facts =
                KeyFacts { kind: "hash".into(), lock_state: state.write(), field_count: 1, ttl_ms: 1000, now };
            let mut keys = KeyScan::default();
            keys.add_key("p:", b"p:l{a}", &key_facts);
            assert_eq!(keys.expired.count, expected);
        }
    }

    #[test]
    fn well_formed_lock_keys_give_no_finding() {
        for (key, kind, main, fields) in [
            ("p:l{a}", "hash", "1S0001", 1),
            ("p:l=a{b}", "hash", "1Q0001", 2),
            ("p:l~{x}}a", "hash", "1Q0001", 9),
            ("p:b0123456789abcdef0123456789abcdef", "string", "", 0),
            ("p:e", "string", "", 0),
            ("p:s{123}", "string", "", 0),
            ("p:qa", "string", "", 0),
        ] {
            assert_eq!(
                scan_of_one_key(key, kind, main, fields, 1000),
                KeyScan { examined: 1, ..KeyScan::default() },
                "{key}"
            );
        }
        assert_eq!(
            scan_of_one_key("p:r{a}", "string", "", 0, -1),
            KeyScan { examined: 1, ..KeyScan::default() },
            "a record stays"
        );
        for cache in ["p:c{a}", "p:t{a}"] {
            assert_eq!(
                scan_of_one_key(cache, "hash", "1C0001", 1, -1),
                KeyScan { examined: 1, ..KeyScan::default() },
                "a cache with the same prefix"
            );
        }
        assert_eq!(scan_of_one_key("p:l{a}", "none", "", 0, -2).examined, 0);
    }

    #[test]
    fn foreign_and_damaged_keys_are_distinguished() {
        let count =
            |keys: KeyScan| [keys.wrong_type.count, keys.foreign.count, keys.without_ttl.count, keys.orphans.count];
        assert_eq!(count(scan_of_one_key("p:l{a}", "list", "", 0, 1000)), [1, 0, 0, 0]);
        assert_eq!(count(scan_of_one_key("p:l{a}", "string", "", 0, 1000)), [1, 0, 0, 0]);
        assert_eq!(count(scan_of_one_key("p:e", "hash", "", 1, 1000)), [1, 0, 0, 0]);
        assert_eq!(count(scan_of_one_key("p:r{a}", "hash", "", 1, -1)), [1, 0, 0, 0]);
        assert_eq!(count(scan_of_one_key("p:l{a}", "hash", "", 1, 1000)), [0, 1, 0, 0]);
        assert_eq!(count(scan_of_one_key("p:l{a}", "hash", "x", 1, 1000)), [0, 1, 0, 0]);
        assert_eq!(count(scan_of_one_key("p:settings", "hash", "", 3, -1)), [0, 1, 0, 0]);
        assert_eq!(count(scan_of_one_key("p:late", "string", "", 0, -1)), [0, 1, 0, 0]);
        assert_eq!(count(scan_of_one_key("p:", "string", "", 0, -1)), [0, 1, 0, 0]);
        assert_eq!(count(scan_of_one_key("p:l{a}", "hash", "1S", 1, -1)), [0, 0, 1, 0]);
        assert_eq!(count(scan_of_one_key("p:l{a}", "hash", "1Q", 1, 1000)), [0, 0, 0, 1]);
        assert_eq!(count(scan_of_one_key("p:l{a}", "hash", "1S", 2, 1000)), [0, 0, 0, 1]);
        assert_eq!(scan_of_one_key("p:l{a}", "hash", "2S0001", 1, 1000).unknown_format.count, 1);
    }

    #[test]
    fn redlock_keys_are_judged_by_their_own_names() {
        let judged = |key: &str, kind: &str, ttl_ms| {
            let mut keys = KeyScan::default();
            let key_facts = KeyFacts { kind: kind.into(), lock_state: vec![], field_count: 0, ttl_ms, now: 0 };
            keys.add_redlock_key("p:", key.as_bytes(), &key_facts);
            [keys.examined, keys.wrong_type.count, keys.foreign.count, keys.without_ttl.count]
        };
        for (key, kind) in [("p:qa", "string"), ("p:e", "string"), ("p:l{a}", "hash"), ("p:s", "string")] {
            assert_eq!(judged(key, kind, 1000), [1, 0, 0, 0], "{key}");
        }
        assert_eq!(judged("p:qa", "none", -2), [0, 0, 0, 0]);
        assert_eq!(judged("p:qa", "hash", 1000), [1, 1, 0, 0]);
        assert_eq!(judged("p:e", "hash", 1000), [1, 1, 0, 0]);
        assert_eq!(judged("p:q", "string", 1000), [1, 0, 1, 0]);
        assert_eq!(judged("p:settings", "hash", -1), [1, 0, 1, 0]);
        assert_eq!(judged("p:qa", "string", -1), [1, 0, 0, 1]);
    }
}
