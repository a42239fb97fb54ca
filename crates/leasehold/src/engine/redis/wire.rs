//! The layout of every key, script and stored value.
//!
//! | key | type | content |
//! |---|---|---|
//! | `<prefix>l{name}` | hash | one lock, see `scripts/table.lua` |
//! | `<prefix>r{name}` | string | a [`StoredRecord`] |
//! | `<prefix>b<number>` | string | a [`Group`] of leases that are renewed together |
//! | `<prefix>e` | string | strict mode: an [`Epoch`](crate::redis_client::Epoch) |
//! | `<prefix>s` | string | with `replicas`: written to find out how far the replicas are |
//! | `<prefix>i<number>` | channel | a client's inbox: the only place to which messages about its claims are sent |
//!
//! Each value and message begins with the number of its format, one digit, and the letter of its
//! kind; in a lock's hash, the field `m` does.
//!
//! In a cluster the key `e` has the lock's slot as its hash tag, and `s` any slot of the node that
//! it is written on. All keys but records expire.

use std::sync::Arc;

use crate::redis_client::keys::named_key;
use crate::redis_client::values::{kind_of, not_ours};
use crate::redis_client::{
    CachedScript, Contender, Field, ForceReleased, Granted, Layout, RUN_DIGITS, Reader, Recheck, Rest, Stored,
    StoredContender, expand, layout, lua,
};
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

layout! {
    /// A lock that is free, or held by one exclusive claim without waiters: the field `m`.
    pub struct SimpleState = "simple", kind 'S' {
        /// The last token.
        token: Token,
        /// The second in which the key expires.
        kept: u64,
        /// When the claim last renewed its lease.
        since: u64,
        /// The holder; zero: the lock is free.
        claim: ClaimId,
        /// The server's run in which this was written.
        run: [u8; RUN_DIGITS],
        /// The key of the group in which the lease is renewed: then `since` and `run` are there.
        /// Empty: it is in none.
        group: Arc<str>,
        /// The claim's [`StoredContender`].
        contender: Rest,
    }
}

layout! {
    /// A lock in any other state: the field `m`. Each claim is a [`StoredClaim`] in a field of its
    /// own, whose name is the claim's id.
    pub struct QueueState = "queue", kind 'Q' {
        /// The last token.
        token: Token,
        /// The second in which the key expires.
        kept: u64,
        /// The last place.
        place: u64,
        /// No lease ends before this time; zero: unknown.
        soonest: u64,
        first_holder: ClaimId,
        last_holder: ClaimId,
        first_waiter: ClaimId,
        last_waiter: ClaimId,
        /// How many claims hold exclusively.
        exclusive: u64,
        /// How many claims hold shared.
        shared: u64,
        holders: u64,
        waiters: u64,
        /// How many claims hold or want permits.
        semaphore_claims: u64,
        /// How many permits are in use.
        permits: u64,
        /// The semaphore's limit.
        limit: u64,
        /// When this was written.
        written: u64,
        /// The server's run in which this was written.
        run: [u8; RUN_DIGITS],
    }
}

layout! {
    /// A claim that holds or waits.
    pub struct StoredClaim = "claim" {
        /// Zero: it waits.
        token: Token,
        /// When it last renewed or sent a heartbeat.
        since: u64,
        /// Orders waiters by arrival and holders by grant.
        place: u64,
        /// The claim before it in its list.
        before: ClaimId,
        /// The claim behind it.
        behind: ClaimId,
        /// Another run of the server wrote it, and it has not been extended since.
        inherited: bool,
        /// Its [`StoredContender`].
        contender: Rest,
    }
}

layout! {
    /// A claim that was force released.
    pub struct ReleasedClaim = "released" {
        claim: ClaimId,
        /// Until when a heartbeat of the claim reports it.
        report_until: u64,
    }
}

layout! {
    /// A group of leases that are renewed together.
    pub struct Group = "group", kind 'B' {
        /// When it was last renewed.
        since: u64,
        /// How many leases are in it.
        count: u64,
        /// The server's run in which this was written.
        run: [u8; RUN_DIGITS],
    }
}

layout! {
    /// A record.
    pub struct StoredRecord = "record", kind 'V' {
        version: u64,
        /// Empty: the record was removed, and is kept for a day for its version.
        value: Rest,
    }
}

/// The layouts that the scripts name.
const LAYOUTS: [Layout; 7] = [
    SimpleState::LAYOUT,
    QueueState::LAYOUT,
    StoredClaim::LAYOUT,
    StoredContender::LAYOUT,
    Group::LAYOUT,
    Granted::LAYOUT,
    Recheck::LAYOUT,
];

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
            [&lua::strict(), lua::STRICT_RUN].concat()
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
        let state = lua::FORMAT_CHECK.to_owned() + &lua::functions(&[SimpleState::LAYOUT, StoredContender::LAYOUT]);
        let group = Group::LAYOUT.functions();
        let claims = lua::functions(&[
            QueueState::LAYOUT,
            StoredClaim::LAYOUT,
            ReleasedClaim::LAYOUT,
            Granted::LAYOUT,
            Recheck::LAYOUT,
            ForceReleased::LAYOUT,
        ]);
        let table = [&claims, lua!("table")].concat();
        let simple_state = lua!("simple_state");
        let script = |parts: &[&str]| CachedScript::new(expand(&[&[lua::PRELUDE], parts].concat().concat(), &LAYOUTS));
        // The first part of a script handles the common case alone, before the functions of the
        // other cases are made.
        let step = |first: &str, rest: &str| {
            script(&[lua::SERVER_TIME, prologue, simple_state, first, &state, &group, &table, rest])
        };
        let try_read = lua!("try_read_simple");
        Self {
            attempt: step(lua!("attempt"), lua!("attempt_end")),
            heartbeat: step(lua!("heartbeat"), lua!("heartbeat_end")),
            // Most releases do not need the time.
            release: script(&[
                lua!("release"),
                lua::SERVER_TIME,
                prologue,
                simple_state,
                lua!("release_hand_off"),
                &state,
                &group,
                &table,
                lua!("release_end"),
            ]),
            renew: script(&[
                lua::SERVER_TIME,
                prologue,
                &state,
                simple_state,
                &group,
                lua!("renew"),
                &table,
                lua!("renew_end"),
            ]),
            renew_groups: script(&[lua::SERVER_TIME, lua::FORMAT_CHECK, &group, lua!("renew_groups")]),
            check_group_members: script(&[lua::SERVER_TIME, &state, try_read, lua!("check_group_members")]),
            force_release: step("", lua!("force_release")),
            acquire_all: step("", lua!("acquire_all")),
            inspect: script(&[lua::SERVER_TIME, &state, try_read, lua!("inspect")]),
            refresh_epoch: script(&[lua::SERVER_TIME, prologue, "return 0"]),
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
    /// Reads a [`StoredClaim`].
    pub fn read(claim: ClaimId, text: &[u8]) -> Option<Self> {
        let StoredClaim { token, since, place, contender, .. } = StoredClaim::parse(&mut Reader(text))?;
        Self::new(claim, token, since, place, &contender)
    }

    fn new(claim: ClaimId, token: Token, since: u64, position: u64, contender: &Rest) -> Option<Self> {
        let contender = Contender::read(&contender.0)?;
        let expires_at = since.saturating_add(contender.ttl.as_micros() as u64);
        Some(Self { claim, token, expires_at, position, contender })
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
        let group = group.map(Group::read).transpose()?;
        let (last_token, records, written_in) = match kind_of(main)? {
            (b'S', _) => {
                let state = SimpleState::read(main)?;
                let (since, written_in) = match (state.group.is_empty(), group) {
                    (true, _) => (state.since, state.run),
                    (false, Some(group)) => (group.since, group.run),
                    // Without its group the lease has expired.
                    (false, None) => (0, short_run_bytes(run)),
                };
                let is_held = state.claim.bits() != 0;
                let record = || ClaimRecord::new(state.claim, state.token, since, state.token.0, &state.contender);
                let records = if is_held { vec![record().ok_or_else(not_ours)?] } else { Vec::new() };
                (state.token, records, written_in)
            }
            (b'Q', _) => {
                let state = QueueState::read(main)?;
                let claims = fields.iter().filter(|(field, _)| field != b"m" && field != b"x");
                let record = |(field, text): &HashField| {
                    let claim = ClaimId::from_bits(u128::from_be_bytes(field.as_slice().try_into().ok()?));
                    ClaimRecord::read(claim, text)
                };
                let records = claims.map(record).collect::<Option<_>>().ok_or_else(not_ours)?;
                (state.token, records, state.run)
            }
            _ => return Err(not_ours()),
        };
        // What another run wrote, or a clock that was ahead, counts from now on.
        let is_ours = written_in == short_run_bytes(run);
        let since = |record: ClaimRecord| if is_ours { record.cap_ttl_start(now) } else { record.restart_ttl(now) };
        Ok(Self { last_token: Some(last_token), records: records.into_iter().map(since).collect() })
    }
}

/// A server's run, as it is stored.
fn short_run_bytes(run: &str) -> [u8; RUN_DIGITS] {
    run.as_bytes().first_chunk().copied().unwrap_or_default()
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
        assert!(lua::PRELUDE.contains(&format!("local RUN_DIGITS = {RUN_DIGITS}")));
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
            let _ = (Contender::read(&text), Message::read(&text), ClaimRecord::read(ClaimId::from_bits(1), &text));
            let _ = StoredLock::read(&[(b"m".to_vec(), text.clone())], Some(&text), 1, "12345678");
        }
    }
}
