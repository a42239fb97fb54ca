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

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{Cmd, Script, Value};

use crate::engine::LockOptions;
use crate::types::{ClaimId, Error, ErrorKind, FORMAT, Holder, LockName, Mode, Result, Token};

/// The number of the format, with which every value and message begins.
pub const FORMAT_DIGIT: u8 = b'0' + FORMAT as u8;

/// The rest of a stored value behind its format number; an error if that is another number.
pub fn check_format(text: &[u8]) -> Result<&[u8]> {
    match text.split_first() {
        Some((&FORMAT_DIGIT, rest)) => Ok(rest),
        Some((digit, _)) if digit.is_ascii_digit() => Err(Error::unknown_format(char::from(*digit), FORMAT)),
        _ => Err(not_ours()),
    }
}

/// No script of leasehold's has stored this.
pub fn not_ours() -> Error {
    Error::new(ErrorKind::Corrupt, "its record is not what leasehold writes")
}

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

/// The key of this name, with this letter for its kind.
pub fn named_key(prefix: &str, letter: char, name: &str) -> String {
    if hash_tag(name).is_some() {
        format!("{prefix}{letter}={name}")
    } else if name.starts_with('}') {
        format!("{prefix}{letter}~{{x}}{name}")
    } else {
        format!("{prefix}{letter}{{{name}}}")
    }
}

/// The name in a key with this letter.
pub fn name_of(prefix: &str, letter: char, found: &str) -> Option<LockName> {
    let rest = found.strip_prefix(prefix)?.strip_prefix(letter)?;
    let name = match rest.as_bytes().first()? {
        b'=' => &rest[1..],
        b'~' => rest.strip_prefix("~{x}")?,
        _ => rest.strip_prefix('{')?.strip_suffix('}')?,
    };
    LockName::new(name).ok().filter(|name| named_key(prefix, letter, name.as_str()) == found)
}

/// A pattern that matches all keys that begin with `start`.
pub fn pattern(start: &str) -> String {
    let mut pattern = String::new();
    for letter in start.chars() {
        if "*?[]\\^-".contains(letter) {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern + "*"
}

/// The part of a key that determines its slot.
pub fn hash_tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    rest.split_once('}').map(|(tag, _)| tag).filter(|tag| !tag.is_empty())
}

/// The number of slots in a cluster.
pub const SLOTS: u16 = 16_384;

/// The slot of a key in a cluster: CRC16 (XMODEM) of its hash tag.
pub fn slot(key: &str) -> u16 {
    let mut crc: u16 = 0;
    for byte in hash_tag(key).unwrap_or(key).bytes() {
        crc ^= u16::from(byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
    }
    crc % SLOTS
}

/// A key that belongs to no lock; in a cluster, one in this slot.
pub fn auxiliary_key(prefix: &str, letter: char, slot: Option<u16>) -> String {
    match slot {
        Some(slot) => format!("{prefix}{letter}{{{}}}", hash_tag_of_slot(slot)),
        None => format!("{prefix}{letter}"),
    }
}

/// A hash tag of this slot.
fn hash_tag_of_slot(slot: u16) -> u32 {
    static TAGS: LazyLock<Vec<u32>> = LazyLock::new(|| {
        let mut tags = vec![u32::MAX; SLOTS.into()];
        let mut found = 0;
        for number in 0.. {
            let tag = &mut tags[usize::from(self::slot(&number.to_string()))];
            if *tag == u32::MAX {
                *tag = number;
                found += 1;
            }
            if found == SLOTS {
                break;
            }
        }
        tags
    });
    TAGS.get(usize::from(slot)).copied().unwrap_or_default()
}

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

/// A script that the server may have stored.
#[derive(Debug)]
pub struct CachedScript {
    sha: String,
    text: String,
}

impl CachedScript {
    pub fn new(text: String) -> Arc<Self> {
        Arc::new(Self { sha: Script::new(&text).get_hash().to_owned(), text })
    }

    /// The digest by which the server knows the script.
    #[cfg(test)]
    pub fn sha(&self) -> &str {
        &self.sha
    }

    /// Runs the script by its digest: the server must have stored it.
    pub fn evalsha(&self, keys: usize) -> Cmd {
        eval_command("EVALSHA", &self.sha, keys)
    }

    /// Runs the script from its text, and thereby stores it.
    pub fn eval(&self, keys: usize) -> Cmd {
        eval_command("EVAL", &self.text, keys)
    }

    /// Loads the script into the server.
    pub fn script_load(&self) -> Cmd {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(&self.text);
        load
    }
}

fn eval_command(command: &str, script: &str, keys: usize) -> Cmd {
    let mut cmd = Cmd::with_capacity(12, script.len() + 320);
    cmd.arg(command).arg(script).arg(keys);
    cmd
}

/// Parts that the scripts of other engines on Redis share.
pub mod lua {
    pub const PRELUDE: &str = include_str!("scripts/prelude.lua");
    pub const SERVER_TIME: &str = include_str!("scripts/server_time.lua");
    pub const STRICT_OFF: &str = include_str!("scripts/strict_off.lua");
    pub const STRICT_OFF_WITH_RUN: &str = include_str!("scripts/strict_off_with_run.lua");
    pub const STRICT: &str = include_str!("scripts/strict.lua");
    pub const STRICT_RUN: &str = include_str!("scripts/strict_run.lua");
    pub const STRICT_SLOT_MOVING: &str = include_str!("scripts/strict_slot_moving.lua");
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

/// How many digits of a server's run are stored.
pub const RUN_DIGITS: usize = 8;

/// A server's run, as it is stored.
pub fn short_run(run: &str) -> &str {
    run.get(..RUN_DIGITS).unwrap_or(run)
}

/// The length of an inbox's number.
pub const INBOX_DIGITS: usize = 16;

/// The channel of an inbox.
pub fn inbox_channel(prefix: &str, inbox: &str) -> String {
    format!("{prefix}i{inbox}")
}

/// Describes a claim for the scripts, see `scripts/table.lua`.
pub fn encode_contender(options: &LockOptions, prefix: &str, inbox: &str) -> Vec<u8> {
    let mode = match options.mode {
        Mode::Exclusive => b'E',
        Mode::Shared => b'S',
        Mode::Permits { .. } => b'P',
    };
    let holder = &options.holder;
    let mut text = Vec::with_capacity(96 + holder.host.len() + holder.program.len() + holder.description.len());
    text.push(mode);
    push_digits(&mut text, options.ttl.as_micros() as u64, 12);
    // Zero means no owner; an owner whose bits are zero gets another number.
    text.extend(
        options.owner.map_or(0, |owner| if owner.bits() == 0 { u128::MAX } else { owner.bits() }).to_be_bytes(),
    );
    push_digits(&mut text, prefix.len() as u64, 3);
    text.extend(inbox.as_bytes());
    if let Mode::Permits { n, limit } = options.mode {
        push_digits(&mut text, n.into(), 10);
        push_digits(&mut text, limit.into(), 10);
    }
    push_digits(&mut text, holder.pid.into(), 10);
    for part in [&holder.host, &holder.program] {
        push_digits(&mut text, part.len() as u64, 5);
        text.extend(part.as_bytes());
    }
    text.extend(holder.description.as_bytes());
    text
}

/// Appends a number with `count` digits.
fn push_digits(text: &mut Vec<u8>, mut number: u64, count: usize) {
    let start = text.len();
    text.resize(start + count, b'0');
    for digit in text[start..].iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// A claim, parsed from its stored description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contender {
    pub mode: Mode,
    pub ttl: Duration,
    pub holder: Holder,
    /// The length of the prefix and the number of the client's inbox.
    inbox: (usize, String),
}

/// Reads a text front to back.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(first)
    }

    pub fn number(&mut self, count: usize) -> Option<u64> {
        std::str::from_utf8(self.bytes(count)?).ok()?.parse().ok()
    }

    fn text(&mut self, count: usize) -> Option<&'a str> {
        std::str::from_utf8(self.bytes(count)?).ok()
    }
}

impl Contender {
    pub fn read(text: &[u8]) -> Option<Self> {
        let mut reader = Reader(text);
        let mode = reader.bytes(1)?[0];
        let ttl = Duration::from_micros(reader.number(12)?);
        reader.bytes(16)?;
        let inbox = (reader.number(3)? as usize, reader.text(INBOX_DIGITS)?.to_owned());
        // A mode in lower case is inherited from another run of the server.
        let mode = match mode.to_ascii_uppercase() {
            b'E' => Mode::Exclusive,
            b'S' => Mode::Shared,
            b'P' => {
                Mode::Permits { n: reader.number(10)?.try_into().ok()?, limit: reader.number(10)?.try_into().ok()? }
            }
            _ => return None,
        };
        let pid = reader.number(10)?.try_into().ok()?;
        let mut part = || {
            let length = reader.number(5)?;
            reader.text(length as usize)
        };
        let (host, program) = (part()?, part()?);
        let rest = std::str::from_utf8(reader.0).ok()?;
        Some(Self { mode, ttl, holder: Holder::new(host, pid, program, rest), inbox })
    }

    /// The channel that the claim's client subscribes to, if it does; `key` is the lock's.
    pub fn channel(&self, key: &str) -> Option<String> {
        let (prefix, inbox) = &self.inbox;
        let listens = inbox.bytes().any(|digit| digit != b'0');
        listens.then_some(format!("{}i{inbox}", key.get(..*prefix)?))
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

/// A message in a client's inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The claim, which waited at this position, is granted.
    Granted(ClaimId, Token, u64),
    /// The claim should send a `heartbeat`.
    Recheck(ClaimId),
    /// The claim, which had this position, was force released for this reason.
    ForceReleased(ClaimId, u64, String),
    /// An operator requests that the claim's holder releases it, for this reason.
    ReleaseRequested(ClaimId, String),
}

impl Message {
    pub fn read(text: &[u8]) -> Option<Self> {
        let mut reader = Reader(text);
        if reader.bytes(1)? != [FORMAT_DIGIT] {
            return None;
        }
        let kind = reader.bytes(1)?[0];
        let claim = ClaimId::from_bits(u128::from_be_bytes(reader.bytes(16)?.try_into().ok()?));
        match kind {
            b'G' => Some(Self::Granted(claim, Token(reader.number(16)?), reader.number(16)?)),
            b'L' => Some(Self::Recheck(claim)),
            b'X' => {
                let position = reader.number(16)?;
                Some(Self::ForceReleased(claim, position, String::from_utf8_lossy(reader.0).into_owned()))
            }
            b'R' => Some(Self::ReleaseRequested(claim, String::from_utf8_lossy(reader.0).into_owned())),
            _ => None,
        }
    }

    /// The message that requests a release from a claim's holder.
    pub fn request_release(claim: ClaimId, reason: &str) -> Vec<u8> {
        [&[FORMAT_DIGIT, b'R'], &claim.bits().to_be_bytes()[..], reason.as_bytes()].concat()
    }
}

/// The bytes of a text answer.
pub fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}

/// An integer, sent as a number or as digits.
pub fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        Value::BulkString(digits) => std::str::from_utf8(digits).ok()?.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::types::Owner;

    #[test]
    fn slots_match_the_servers() {
        for (key, expected) in
            [("123456789", 12_739), ("foo", 12_182), ("{user1000}.following", 3443), ("foo{}{bar}", 8363)]
        {
            assert_eq!(slot(key), expected, "{key}");
        }
    }

    #[test]
    fn the_scripts_and_the_code_have_one_format_number() {
        assert!(lua::PRELUDE.contains(&format!("local FORMAT = '{FORMAT}'")));
        assert!(lua!("inspect").contains(&format!("== '{FORMAT}B'")));
    }

    #[test]
    fn special_characters_in_a_pattern_are_escaped() {
        assert_eq!(pattern("a*[b]:"), "a\\*\\[b\\]:*");
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
        fn a_contender_is_parsed_back_as_it_was_encoded(
            host in "\\PC{0,40}", program in "\\PC{0,20}", text in "\\PC{0,60}", pid: u32, ms in 1u64..86_400_001, n: u32, limit: u32,
            mode in 0..3usize, inbox in "[a-z]{16}",
        ) {
            let mode = [Mode::Exclusive, Mode::Shared, Mode::Permits { n, limit }][mode];
            let holder = Arc::new(Holder::new(&host, pid, &program, &text));
            let ttl = Duration::from_millis(ms);
            let name = LockName::new("a").unwrap();
            let options = LockOptions::new(name, mode, Some(Owner::named("x")), ttl, Arc::clone(&holder));
            let written = encode_contender(&options, "p:", &inbox);
            let read = Contender::read(&written).unwrap();
            prop_assert_eq!(read.channel("p:qlock").unwrap(), format!("p:i{inbox}"));
            prop_assert_eq!(&read, &Contender { mode, ttl, holder: (*holder).clone(), inbox: (2, inbox.clone()) });
        }

        #[test]
        fn any_stored_text_is_parsed_or_rejected(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (Contender::read(&text), Message::read(&text), ClaimRecord::read(&[0; 16], &text));
            let _ = StoredLock::read(&[(b"m".to_vec(), text.clone())], Some(&text), 1, "12345678");
        }
    }
}
