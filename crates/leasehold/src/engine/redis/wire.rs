//! The layout of every key, channel, script and record.
//!
//! | key | type | content |
//! |---|---|---|
//! | `<prefix>l{name}` | hash | one lock, see `scripts/table.lua` |
//! | `<prefix>r{name}` | string | one record: its version in 16 digits, then its value. Without a value it is removed, and kept for a day for its version |
//! | `<prefix>b<number>` | string | a group of leases that are renewed together: time of the last renewal, number of leases, and the run of the server that wrote it |
//! | `<prefix>e` | string | strict mode: the server's run |
//! | `<prefix>s` | string | with `replicas`: written to find out how far the replicas are |
//! | `<prefix>i<number>` | channel | a client's inbox: the only place to which messages about its claims are sent |
//!
//! Each value and message begins with the number of its format, one digit; in a lock's hash, the
//! field `m` does.
//!
//! In a cluster the key `e` has the lock's slot as its hash tag, and `s` any slot of the node that
//! it is written on. All keys but records expire.

use std::sync::Arc;

use crate::redis_client::keys::named_key;
use crate::redis_client::values::{check_format, not_ours, push_digits};
use crate::redis_client::{CachedScript, Contender, RUN_DIGITS, Reader, lua};
use crate::types::{ClaimId, Result, Token};

/// A lock's key. Each name has one key, and no two names share one. A name with a hash tag keeps
/// it, so that locks with the same tag share a node.
pub fn lock_key(prefix: &str, name: &str) -> String {
    named_key(prefix, LOCK_LETTER, name)
}

/// A record's key, made as a lock's is.
pub fn record_key(prefix: &str, name: &str) -> String {
    named_key(prefix, RECORD_LETTER, name)
}

/// The letter after the prefix in a lock's key.
pub const LOCK_LETTER: char = 'l';
/// The letter after the prefix in a record's key.
pub const RECORD_LETTER: char = 'r';

/// The scripts of one engine.
#[derive(Debug)]
pub struct Scripts {
    pub attempt: Arc<CachedScript>,
    pub heartbeat: Arc<CachedScript>,
    pub release: Arc<CachedScript>,
    pub renew: Arc<CachedScript>,
    pub renew_groups: Arc<CachedScript>,
    pub check_group_members: Arc<CachedScript>,
    pub force_release: Arc<CachedScript>,
    pub acquire_all: Arc<CachedScript>,
    pub inspect: Arc<CachedScript>,
    /// Runs only the first part of strict mode.
    pub refresh_epoch: Arc<CachedScript>,
}

macro_rules! lua {
    ($name:literal) => {
        include_str!(concat!("scripts/", $name, ".lua"))
    };
}

impl Scripts {
    pub fn new(strict: bool) -> Self {
        Self::assemble(&if strict {
            [lua::STRICT, lua::STRICT_RUN].concat()
        } else {
            lua::STRICT_OFF_WITH_RUN.to_owned()
        })
    }

    /// The scripts of strict mode for locks of a slot that is moving: they do without the key of
    /// strict mode.
    pub fn for_moving_slot() -> Self {
        Self::assemble(&[lua::STRICT_SLOT_MOVING, lua::STRICT_RUN].concat())
    }

    fn assemble(prologue: &str) -> Self {
        // The first part of a script handles the common case alone.
        let full = |first: &str, rest: &str| {
            CachedScript::new([lua::PRELUDE, lua::SERVER_TIME, prologue, first, lua!("table"), rest].concat())
        };
        // Most releases do not need the time.
        let start = [lua::PRELUDE, lua!("release"), lua::SERVER_TIME, prologue, lua!("release_hand_off")].concat();
        let release = [&start, lua!("table"), lua!("release_end")].concat();
        Self {
            attempt: full(lua!("attempt"), lua!("attempt_end")),
            heartbeat: full(lua!("heartbeat"), lua!("heartbeat_end")),
            release: CachedScript::new(release),
            renew: full(lua!("renew"), lua!("renew_end")),
            renew_groups: CachedScript::new([lua::PRELUDE, lua::SERVER_TIME, lua!("renew_groups")].concat()),
            check_group_members: CachedScript::new(
                [lua::PRELUDE, lua::SERVER_TIME, lua!("check_group_members")].concat(),
            ),
            force_release: full("", lua!("force_release")),
            acquire_all: full("", lua!("acquire_all")),
            inspect: CachedScript::new(lua!("inspect").to_owned()),
            refresh_epoch: CachedScript::new([lua::PRELUDE, lua::SERVER_TIME, prologue, "return 0"].concat()),
        }
    }

    /// All scripts, for a server to store.
    pub fn all_scripts(&self) -> Vec<Arc<CachedScript>> {
        let Self {
            attempt,
            heartbeat,
            release,
            renew,
            renew_groups,
            check_group_members,
            force_release,
            acquire_all,
            inspect,
            refresh_epoch,
        } = self;
        [
            attempt,
            heartbeat,
            release,
            renew,
            renew_groups,
            check_group_members,
            force_release,
            acquire_all,
            inspect,
            refresh_epoch,
        ]
        .map(Arc::clone)
        .to_vec()
    }
}

/// A claim's stored record: its contender, and the fields that change while it holds or waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRecord {
    pub claim: ClaimId,
    /// Zero for a waiter.
    pub token: Token,
    /// When it expires, in µs of the server's clock.
    pub expires_at: u64,
    /// The time and the order of its arrival or its grant.
    pub position: u64,
    pub contender: Contender,
}

impl ClaimRecord {
    /// Reads a claim's own field.
    pub fn read(claim: &[u8], text: &[u8]) -> Option<Self> {
        let mut reader = Reader(text);
        let (token, since, position) = (reader.number(16)?, reader.number(16)?, reader.number(16)?);
        reader.bytes(32)?;
        Self::new(claim, token, since, position, reader.0)
    }

    fn new(claim: &[u8], token: u64, since: u64, position: u64, contender: &[u8]) -> Option<Self> {
        let contender = Contender::read(contender)?;
        let claim = ClaimId::from_bits(u128::from_be_bytes(claim.try_into().ok()?));
        Some(Self {
            claim,
            token: Token(token),
            expires_at: since + contender.ttl.as_micros() as u64,
            position,
            contender,
        })
    }

    /// Counts the claim's TTL from `start`.
    fn restart_ttl(mut self, start: u64) -> Self {
        self.expires_at = start.saturating_add(self.contender.ttl.as_micros() as u64);
        self
    }

    /// Counts the claim's TTL from `latest` at the latest.
    fn cap_ttl_start(mut self, latest: u64) -> Self {
        self.expires_at = self.expires_at.min(latest.saturating_add(self.contender.ttl.as_micros() as u64));
        self
    }
}

/// A field of a lock's hash, and its value.
pub type HashField = (Vec<u8>, Vec<u8>);

/// A lock, as stored.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StoredLock {
    pub last_token: Option<Token>,
    pub records: Vec<ClaimRecord>,
}

impl StoredLock {
    /// Reads all fields of a lock's hash, as a server with this time and this run reads them.
    pub fn read(fields: &[HashField], group: Option<&[u8]>, now: u64, run: &str) -> Result<Self> {
        let Some((_, main)) = fields.iter().find(|(field, _)| field == b"m") else {
            return if fields.is_empty() { Ok(Self::default()) } else { Err(not_ours()) };
        };
        let (main, group) = (check_format(main)?, group.map(check_format).transpose()?);
        Self::parse(main, fields, group, now, run).ok_or_else(not_ours)
    }

    /// As above, from field `m` and the group without their format numbers.
    fn parse(main: &[u8], fields: &[HashField], group: Option<&[u8]>, now: u64, run: &str) -> Option<Self> {
        let mut reader = Reader(main);
        let (kind, token) = (reader.bytes(1)?[0], reader.number(16)?);
        reader.number(10)?;
        let is_ours = |written: &[u8]| written == run.as_bytes();
        let (records, is_ours) = match kind {
            b'F' => (Vec::new(), true),
            b'H' => {
                let since = reader.number(16)?;
                let claim = reader.bytes(16)?;
                let (contender, written) = reader.0.split_at_checked(reader.0.len().checked_sub(RUN_DIGITS)?)?;
                (vec![ClaimRecord::new(claim, token, since, token, contender)?], is_ours(written))
            }
            b'B' => {
                let size = reader.number(16)?;
                let claim = reader.bytes(16)?;
                reader.bytes(size as usize)?;
                // Without its group the lease has expired.
                let since = group.map_or(Some(0), |group| Reader(group).number(16))?;
                let written = group.is_none_or(|group| group.get(26..).is_some_and(is_ours));
                (vec![ClaimRecord::new(claim, token, since, token, reader.0)?], written)
            }
            b'R' => {
                let contenders = fields.iter().filter(|(field, _)| field != b"m" && field != b"x");
                let records = contenders.map(|(claim, text)| ClaimRecord::read(claim, text)).collect::<Option<_>>()?;
                (records, main.get(195..).is_some_and(is_ours))
            }
            _ => return None,
        };
        // What another run wrote, or a clock that was ahead, counts from now on.
        let since = |record: ClaimRecord| if is_ours { record.cap_ttl_start(now) } else { record.restart_ttl(now) };
        Some(Self { last_token: Some(Token(token)), records: records.into_iter().map(since).collect() })
    }
}

/// What the field of a lease in a group contains from its 29th byte on.
pub fn group_membership(claim: ClaimId, group: &str) -> Vec<u8> {
    let mut text = Vec::with_capacity(32 + group.len());
    push_digits(&mut text, group.len() as u64, 16);
    text.extend(claim.bits().to_be_bytes());
    text.extend(group.as_bytes());
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::redis_client::Message;
    use crate::redis_client::keys::{auxiliary_key, hash_tag, name_of, slot};
    use crate::types::FORMAT;

    #[test]
    fn the_scripts_and_the_code_have_one_format_number() {
        assert!(lua::PRELUDE.contains(&format!("local FORMAT = '{FORMAT}'")));
        assert!(lua!("inspect").contains(&format!("== '{FORMAT}B'")));
    }

    #[test]
    fn locks_with_a_tag_and_their_auxiliary_keys_share_a_slot() {
        let (a, b) = (lock_key("p:", "{order 7}:stock"), lock_key("p:", "{order 7}:mail"));
        assert_ne!(a, b);
        assert_eq!(slot(&a), slot(&b));
        for name in ["a", "}a", "a}b", "{}x", "{", "{a", "a{b}c"] {
            let key = lock_key("p:", name);
            assert!(hash_tag(&key).is_some(), "{key}");
            assert_eq!(slot(&auxiliary_key("p:", 'e', Some(slot(&key)))), slot(&key), "{key}");
        }
    }

    proptest! {
        #[test]
        fn a_name_is_parsed_back_from_its_only_key(name in "[{}a=~x%l]{1,8}", prefix in "[a-z*?:]{1,4}") {
            let key = lock_key(&prefix, &name);
            prop_assert_eq!(name_of(&prefix, LOCK_LETTER, &key).map(|found| found.to_string()), Some(name.clone()));
            prop_assert_eq!(name_of(&prefix, RECORD_LETTER, &key), None);
            prop_assert_ne!(record_key(&prefix, &name), key);
        }

        #[test]
        fn two_names_never_share_a_key(a in "[{}ab=~x]{1,6}", b in "[{}ab=~x]{1,6}") {
            prop_assert_eq!(a == b, lock_key("p", &a) == lock_key("p", &b));
        }

        #[test]
        fn any_stored_text_is_parsed_or_rejected(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (Contender::read(&text), Message::read(&text), ClaimRecord::read(&[0; 16], &text));
            let _ = StoredLock::read(&[(b"m".to_vec(), text.clone())], Some(&text), 1, "12345678");
        }
    }
}
