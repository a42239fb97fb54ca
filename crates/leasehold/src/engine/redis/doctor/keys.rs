//! The keys below our prefix: which of them no lock of ours has written, and which will never go away.

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;

use super::ask::{Known, ask, words};
use super::slot::slot;

/// How many keys are looked at, and how far the keyspace is walked for them.
const MOST_KEYS: usize = 2_000;
const MOST_STEPS: usize = 300;
/// How many keys of all one step of the walk passes.
const STRIDE: &str = "1000";
/// How many examples are shown.
const EXAMPLES: usize = 3;

/// Looks at a key, its lock's main key and its lock's hash, all in one moment.
const LOOK: &str = "\
local function first(key)
  if redis.call('TYPE', key).ok ~= 'string' then return '' end
  return redis.call('GETRANGE', key, 0, 0)
end
return {redis.call('TYPE', KEYS[1]).ok, first(KEYS[1]), redis.call('PTTL', KEYS[1]), first(KEYS[2]),
  redis.call('TYPE', KEYS[3]).ok}";

/// Some keys of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) count: usize,
    pub(crate) examples: Vec<String>,
}

impl Group {
    fn add(&mut self, key: &[u8]) {
        self.count += 1;
        if self.examples.len() < EXAMPLES {
            self.examples.push(String::from_utf8_lossy(key).into_owned());
        }
    }
}

/// What was found below the prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keys {
    /// How many were looked at.
    pub(crate) seen: usize,
    /// Whether these are all.
    pub(crate) all: bool,
    /// Where a lock's record would be, and of another type.
    pub(crate) wrong_type: Group,
    /// Nothing of ours.
    pub(crate) foreign: Group,
    /// Ours, and without a TTL.
    pub(crate) immortal: Group,
    /// Parts of a lock whose other part is missing.
    pub(crate) orphans: Group,
}

/// What stands at a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) kind: String,
    /// The first byte of a string.
    pub(crate) first: Vec<u8>,
    pub(crate) ttl_ms: i64,
    /// The first byte of the lock's main key.
    pub(crate) main_first: Vec<u8>,
    /// The type of the lock's hash.
    pub(crate) hash_kind: String,
}

impl Keys {
    /// Takes one more key into account.
    pub(crate) fn judge(&mut self, prefix: &str, key: &[u8], look: &Look) {
        if look.kind == "none" {
            return; // It has gone meanwhile.
        }
        self.seen += 1;
        let expected = match key.get(prefix.len()) {
            Some(b'l' | b'e') => "string",
            Some(b'r') => "hash",
            Some(b'z') => "zset",
            _ => return self.foreign.add(key),
        };
        let letter = key[prefix.len()];
        if look.kind != expected {
            return self.wrong_type.add(key);
        }
        if letter == b'l' && !matches!(look.first[..], [b'F' | b'H' | b'R']) {
            return self.foreign.add(key);
        }
        if look.ttl_ms == -1 {
            self.immortal.add(key);
        }
        let rich = look.main_first == b"R";
        let half = match letter {
            b'l' => rich && look.hash_kind != "hash",
            b'r' | b'z' => !rich,
            _ => false,
        };
        if half {
            self.orphans.add(key);
        }
    }
}

/// Walks the keys below `prefix`, within bounds.
pub(crate) async fn look(link: &mut MultiplexedConnection, prefix: &str) -> Known<Keys> {
    let mut keys = Keys::default();
    let (pattern, mut cursor) = (pattern(prefix), "0".to_owned());
    for _ in 0..MOST_STEPS {
        let step = words(&["SCAN", &cursor, "MATCH", &pattern, "COUNT", STRIDE]);
        let (next, found): (String, Vec<Vec<u8>>) = ask(link, &step).await?;
        for some in found.chunks(100) {
            let looks = join_all(some.iter().map(|key| look_at(link.clone(), prefix, key))).await;
            for (key, look) in some.iter().zip(looks) {
                keys.judge(prefix, key, &look?);
            }
        }
        cursor = next;
        keys.all = cursor == "0";
        if keys.all || keys.seen >= MOST_KEYS {
            break;
        }
    }
    Ok(keys)
}

async fn look_at(mut link: MultiplexedConnection, prefix: &str, key: &[u8]) -> Known<Look> {
    let [main, hash] = siblings(prefix, key);
    let mut command = words(&["EVAL", LOOK, "3"]);
    command.arg(key).arg(main).arg(hash);
    let (kind, first, ttl_ms, main_first, hash_kind) = ask(&mut link, &command).await?;
    Ok(Look { kind, first, ttl_ms, main_first, hash_kind })
}

/// The main key and the hash of the lock that a key belongs to; the key itself where it belongs to none.
fn siblings(prefix: &str, key: &[u8]) -> [Vec<u8>; 2] {
    [b'l', b'r'].map(|letter| {
        let mut sibling = key.to_vec();
        if let Some(place @ (b'l' | b'r' | b'z')) = sibling.get_mut(prefix.len()) {
            *place = letter;
        }
        // Others' keys may lie in another slot, where one script cannot reach both.
        if slot(&sibling) == slot(key) { sibling } else { key.to_vec() }
    })
}

/// The prefix as a pattern that means nothing but itself.
fn pattern(prefix: &str) -> String {
    let mut pattern = String::with_capacity(prefix.len() + 1);
    for c in prefix.chars() {
        if "*?[]\\^-".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push('*');
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(key: &str, kind: &str, first: &str, ttl_ms: i64, main: &str, hash: &str) -> Keys {
        let mut keys = Keys::default();
        let look =
            Look { kind: kind.into(), first: first.into(), ttl_ms, main_first: main.into(), hash_kind: hash.into() };
        keys.judge("p:", key.as_bytes(), &look);
        keys
    }

    #[test]
    fn our_own_keys_are_as_they_should_be() {
        for (key, kind, first, main, hash) in [
            ("p:l{a}", "string", "F", "F", "none"),
            ("p:l{a}", "string", "H", "H", "none"),
            ("p:l=a{b}", "string", "R", "R", "hash"),
            ("p:r{a}", "hash", "", "R", "hash"),
            ("p:z~{x}a", "zset", "", "R", "hash"),
            ("p:e{a}", "string", "9", "9", "none"),
        ] {
            let keys = judged(key, kind, first, 1000, main, hash);
            assert_eq!(keys, Keys { seen: 1, ..Keys::default() }, "{key}");
        }
        assert_eq!(judged("p:l{a}", "none", "", -2, "", "none").seen, 0);
    }

    #[test]
    fn others_keys_and_broken_ones_are_told_apart() {
        let count = |keys: Keys| [keys.wrong_type.count, keys.foreign.count, keys.immortal.count, keys.orphans.count];
        assert_eq!(count(judged("p:l{a}", "list", "", 1000, "", "none")), [1, 0, 0, 0]);
        assert_eq!(count(judged("p:r{a}", "string", "x", 1000, "R", "string")), [1, 0, 0, 0]);
        assert_eq!(count(judged("p:l{a}", "string", "x", -1, "x", "none")), [0, 1, 0, 0]);
        assert_eq!(count(judged("p:settings", "hash", "", -1, "", "")), [0, 1, 0, 0]);
        assert_eq!(count(judged("p:", "string", "F", -1, "", "")), [0, 1, 0, 0]);
        assert_eq!(count(judged("p:l{a}", "string", "H", -1, "H", "none")), [0, 0, 1, 0]);
        assert_eq!(count(judged("p:l{a}", "string", "R", 1000, "R", "none")), [0, 0, 0, 1]);
        assert_eq!(count(judged("p:z{a}", "zset", "", 1000, "F", "none")), [0, 0, 0, 1]);
    }

    #[test]
    fn a_prefix_means_itself_and_a_locks_keys_are_found() {
        assert_eq!(pattern("a*[b]:"), "a\\*\\[b\\]:*");
        assert_eq!(siblings("p:", b"p:z{a}"), [b"p:l{a}".to_vec(), b"p:r{a}".to_vec()]);
        assert_eq!(siblings("p:", b"p:zzz"), [b"p:zzz".to_vec(), b"p:zzz".to_vec()]);
        assert_eq!(siblings("p:", b"p:settings"), [b"p:settings".to_vec(), b"p:settings".to_vec()]);
    }
}
