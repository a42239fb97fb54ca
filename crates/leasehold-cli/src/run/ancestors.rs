//! The holds of the enclosing `leasehold run`s, as `LEASEHOLD_HELD` lists them.
//!
//! A daemon that a command leaves behind inherits the variable, which then outlives the holds. So
//! the variable only lists holds that existed once. `reentry` asks the engine whether one of them
//! is held now, and re-enters only that one. The engine keeps the hold of a killed run until its
//! lease ends, but that hold cannot be re-entered, either.

use std::fmt;
use std::fmt::Write;

use leasehold::engine::{ContenderView, EngineUrl, LockView};
use leasehold::{ClaimId, Guard, Owner};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// The holds around a command, outermost first: `format:owner:token:claim:process:engine:name`,
/// comma-separated, with escapes.
const HELD_VARIABLE: &str = "LEASEHOLD_HELD";
/// The owner with which a nested run re-enters the hold around it.
const OWNER_VARIABLE: &str = "LEASEHOLD_OWNER";

/// The number of that format.
const FORMAT: &str = "1";

/// How many holds are passed to the command: the list must not outgrow the environment when a
/// program starts itself repeatedly under locks.
const MAX_HOLDS: usize = 64;

/// A hold of an enclosing run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    /// The owner with which it can be re-entered; `None` if it cannot be.
    pub(super) owner: Option<Owner>,
    pub(super) token: u64,
    /// The first half of the claim's id: enough to recognise the claim, but not to release it.
    claim_prefix: u64,
    /// The run that holds it.
    process: Process,
    /// Engine and name of the lock, escaped.
    lock_key: String,
}

/// Identifies a process even if its process id is reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: u32,
    /// Its start time, in the kernel's ticks.
    start_time: u64,
    /// Where the process id is valid: one boot of one machine, and one process namespace.
    scope: u64,
}

/// The enclosing runs, as the environment describes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ancestors {
    /// The holds in `LEASEHOLD_HELD`, outermost first.
    holds: Vec<Hold>,
    /// The value of `LEASEHOLD_OWNER`.
    owner: Option<String>,
    /// Whether `LEASEHOLD_HELD` is set, even if none of its entries is valid.
    is_nested: bool,
    /// The format number of an entry that another version wrote.
    unknown_format: Option<String>,
}

impl Hold {
    /// The hold of this process, which `guard` represents.
    pub(super) fn from_guard(guard: &Guard, owner: Option<Owner>, engine: &str) -> Self {
        let process = Process::current();
        let lock = lock_key(engine, guard.name().as_str());
        Self { owner, token: guard.token().0, claim_prefix: claim_prefix(guard.claim_id()), process, lock_key: lock }
    }

    /// Parses one entry of `LEASEHOLD_HELD`.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix(FORMAT)?.strip_prefix(':')?.splitn(5, ':');
        let owner = match parts.next()? {
            "-" => None,
            digits => Some(digits.parse().ok()?),
        };
        let token = parts.next()?.parse().ok()?;
        let claim = parts.next().filter(|digits| digits.len() == 16)?;
        let claim = u64::from_str_radix(claim, 16).ok()?;
        let process = Process::parse(parts.next()?)?;
        Some(Self { owner, token, claim_prefix: claim, process, lock_key: parts.next()?.to_owned() })
    }

    /// Whether the engine lists this hold as `contender`.
    fn is_claim_of(&self, contender: &ContenderView) -> bool {
        self.claim_prefix == claim_prefix(contender.claim)
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.owner {
            Some(owner) => write!(f, "{FORMAT}:{owner}")?,
            None => write!(f, "{FORMAT}:-")?,
        }
        let Process { pid, start_time: started, scope } = self.process;
        write!(f, ":{}:{:016x}:{pid}.{started}.{scope:016x}:{}", self.token, self.claim_prefix, self.lock_key)
    }
}

impl Process {
    /// This process.
    fn current() -> Self {
        let pid = std::process::id();
        Self { pid, start_time: start_time(pid).unwrap_or(0), scope: process_scope() }
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '.');
        let (pid, started) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Self { pid, start_time: started, scope: u64::from_str_radix(parts.next()?, 16).ok()? })
    }

    /// Whether the process is known to have ended; `false` for one on another machine, in another
    /// container or hidden from this one, which may still run.
    fn has_ended(self) -> bool {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw).filter(|_| self.scope == process_scope())
        else {
            return false;
        };
        match start_time(self.pid) {
            Some(started) => started != self.start_time,
            None => test_kill_process(pid) == Err(Errno::SRCH),
        }
    }
}

impl Ancestors {
    /// Reads the enclosing runs from this process's environment.
    pub(super) fn from_env() -> Self {
        let set = |key| std::env::var(key).ok().filter(|value| !value.is_empty());
        Self::new(&set(HELD_VARIABLE).unwrap_or_default(), set(OWNER_VARIABLE))
    }

    /// Parses the values of `LEASEHOLD_HELD` and `LEASEHOLD_OWNER`.
    fn new(held: &str, owner: Option<String>) -> Self {
        // Entries of another version do not parse, so they are not re-entered.
        let holds = held.split(',').filter_map(Hold::parse).collect();
        let other_format = |entry: &str| {
            let (format, _) = entry.split_once(':')?;
            let is_number = matches!(format.len(), 1..=3) && format.bytes().all(|byte| byte.is_ascii_digit());
            (is_number && format != FORMAT).then(|| format.to_owned())
        };
        let unknown_format = held.split(',').find_map(other_format);
        Self { holds, owner, is_nested: !held.is_empty(), unknown_format }
    }

    /// A warning, if an enclosing run is of a version whose holds cannot be read.
    pub(super) fn unknown_format_warning(&self) -> Option<String> {
        self.unknown_format.as_ref().map(|found| {
            format!(
                "{HELD_VARIABLE} lists a hold in format {found}, and this version of leasehold reads format {FORMAT}: \
                 that hold is not re-entered (docs/upgrading.md)"
            )
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    /// Whether a hold of an enclosing run may be re-entered: only with `LEASEHOLD_OWNER` set.
    pub(super) fn can_be_reentered(&self) -> bool {
        self.owner.is_some() && !self.holds.is_empty()
    }

    /// The owner that the user set by hand. One set by an enclosing run does not count, because
    /// that run may have ended.
    pub(super) fn user_set_owner(&self) -> Option<Owner> {
        self.owner.as_ref().filter(|_| !self.is_nested)?.parse().ok()
    }

    /// The innermost hold of a live run that the engine lists for this lock, under any URL.
    pub(super) fn find_live_hold<'a>(&self, view: &'a LockView) -> Option<(&Hold, &'a ContenderView)> {
        let contender = |hold: &Hold| view.holders.iter().find(|contender| hold.is_claim_of(contender));
        let mut live = self.holds.iter().rev().filter(|hold| !hold.process.has_ended());
        live.find_map(|hold| Some((hold, contender(hold)?)))
    }

    /// Whether a live enclosing run holds this lock, for engines that cannot list holders.
    pub(super) fn may_hold(&self, engine: &str, name: &str) -> bool {
        let lock = lock_key(engine, name);
        self.holds.iter().any(|hold| hold.lock_key == lock && !hold.process.has_ended())
    }

    /// The URL under which a live enclosing run holds a lock of this name, if it may lead to the same
    /// server as `engine`: another URL of the same kind. For engines that cannot list holders.
    pub(super) fn may_hold_elsewhere(&self, engine: &str, name: &str) -> Option<String> {
        let (engine, name) = (escape(engine), escape(name));
        let mut live = self.holds.iter().rev().filter(|hold| !hold.process.has_ended());
        live.find_map(|hold| {
            let (other, held) = hold.lock_key.rsplit_once(':')?;
            let other = unescape(other).filter(|_| held == name && other != engine)?;
            (storage_kind(&other)? == storage_kind(&unescape(&engine)?)?).then_some(other)
        })
    }

    /// The environment for a command that runs inside this hold as well. A variable without a value
    /// is removed.
    pub(super) fn env_with(&self, inner: &Hold) -> [(&'static str, Option<String>); 2] {
        // A hold of the same lock with another token is older, and has ended.
        let others = self.holds.iter().filter(|hold| hold.lock_key != inner.lock_key || hold.token == inner.token);
        let mut all: Vec<String> = others.chain([inner]).map(Hold::to_string).collect();
        all.drain(..all.len().saturating_sub(MAX_HOLDS));
        [(HELD_VARIABLE, Some(all.join(","))), (OWNER_VARIABLE, inner.owner.map(|owner| owner.to_string()))]
    }
}

/// The first half of a claim's id.
fn claim_prefix(claim: ClaimId) -> u64 {
    (claim.bits() >> 64) as u64
}

/// A process's start time, in the kernel's ticks: `u64::MAX` for a zombie, `None` if it cannot be
/// read.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name may contain blanks and brackets. The text after it begins with the third
    // field, the state.
    let fields = stat.rsplit_once(')')?.1.trim_start();
    if fields.starts_with(['Z', 'X']) {
        return Some(u64::MAX);
    }
    fields.split_whitespace().nth(22 - 3)?.parse().ok()
}

/// A hash of what makes process ids comparable: this boot of this machine, and this process's
/// namespace.
fn process_scope() -> u64 {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let space = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    (Owner::named(&format!("{boot} {}", space.display())).bits() >> 64) as u64
}

/// Engine and name of a lock, escaped, as one string to compare.
fn lock_key(engine: &str, name: &str) -> String {
    format!("{}:{}", escape(engine), escape(name))
}

/// Percent-encodes all bytes except letters, digits and `-_./`.
fn escape(text: &str) -> String {
    text.bytes().fold(String::new(), |mut escaped, byte| {
        if byte.is_ascii_alphanumeric() || b"-_./".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
        escaped
    })
}

/// Decodes what [`escape`] wrote; `None` for invalid text.
fn unescape(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

/// What all URLs of one lock have in common: the product of the servers, `protocol=` and
/// `technique=`. `None` for an invalid URL.
fn storage_kind(url: &str) -> Option<[String; 3]> {
    let url = EngineUrl::parse(url).ok()?;
    let product = if url.scheme.starts_with("redis") { "redis" } else { &url.scheme };
    let option = |key| url.option(key).unwrap_or_default().to_owned();
    Some([product.to_owned(), option("protocol"), option("technique")])
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::{LockName, Locks};

    fn hold(owner: Option<Owner>, token: u64, claim: u64, name: &str) -> Hold {
        Hold { owner, token, claim_prefix: claim, process: Process::current(), lock_key: lock_key("file:", name) }
    }

    fn nested(outer: &Ancestors, inner: &Hold) -> Ancestors {
        let [(_, held), (_, owner)] = outer.env_with(inner);
        Ancestors::new(&held.unwrap(), owner)
    }

    #[test]
    fn holds_are_read_back_as_they_were_written() {
        let outer = hold(Some(Owner::new()), 7, 1, "a,b:c%");
        let inner = hold(None, 8, 2, "täst");
        let all = nested(&nested(&Ancestors::default(), &outer), &inner);
        assert_eq!(all.holds, [outer.clone(), inner]);
        assert!(!all.can_be_reentered(), "the innermost hold has no owner, so the variable is gone");
        let others = Ancestors::new("x,1:2:3:4:5:6,,", None);
        assert_eq!((&others.holds[..], others.unknown_format_warning()), (&[][..], None));
        let newer = Ancestors::new(&outer.to_string().replacen("1:", "2:", 1), None);
        let warning = newer.unknown_format_warning().expect("a warning");
        assert!(newer.holds.is_empty() && warning.contains("format 2") && warning.contains("format 1"), "{warning}");
    }

    #[tokio::test]
    async fn only_a_listed_hold_counts_and_the_innermost_comes_first() {
        let locks = Locks::open("memory:").await.unwrap();
        let name = LockName::new("a").unwrap();
        let owner = Owner::new();
        let first = locks.mutex("a").owner(&owner).lock().await.unwrap();
        let outer = Hold::from_guard(&first, Some(owner), "memory:");
        let gone = hold(Some(owner), first.token().0, 5, "a");
        let around = nested(&nested(&Ancestors::default(), &outer), &gone);
        let view = locks.inspect(&name).await.unwrap();
        assert_eq!(around.find_live_hold(&view).map(|(hold, _)| hold), Some(&outer));
        let second = locks.mutex("a").owner(&owner).lock().await.unwrap();
        let around = nested(&around, &Hold::from_guard(&second, Some(owner), "another URL"));
        let view = locks.inspect(&name).await.unwrap();
        assert_eq!(around.find_live_hold(&view).unwrap().0.claim_prefix, claim_prefix(second.claim_id()));
        drop((first, second));
        locks.flush().await.unwrap();
        assert!(around.find_live_hold(&locks.inspect(&name).await.unwrap()).is_none());
    }

    #[test]
    fn another_url_of_the_same_kind_may_be_the_same_server() {
        let mut held = hold(None, 1, 1, "täst:a");
        let url = "mysql://app:***@127.0.0.1:3306/shop?technique=session";
        held.lock_key = lock_key(url, "täst:a");
        let around = nested(&Ancestors::default(), &held);
        let may = |engine: &str, name: &str| around.may_hold_elsewhere(engine, name);
        assert_eq!(may("mysql://app@localhost/shop?technique=session", "täst:a").as_deref(), Some(url));
        for (engine, name) in [
            ("mysql://app@localhost/shop?technique=session", "a"),
            ("mysql://app@localhost/shop?technique=for-update", "täst:a"),
            ("postgres://app@localhost/shop?technique=session", "täst:a"),
            (url, "täst:a"),
        ] {
            assert_eq!(may(engine, name), None, "{engine} {name}");
        }
        let mut over = around.clone();
        over.holds[0].process.start_time += 1;
        assert_eq!(over.may_hold_elsewhere("mysql://app@localhost/shop?technique=session", "täst:a"), None);
        assert_eq!((unescape("%C"), unescape("%zz"), unescape("%FF")), (None, None, None));
    }

    #[test]
    fn ended_holds_are_dropped_from_the_variable() {
        let mut around = Ancestors::default();
        for token in 1..200 {
            around = nested(&around, &hold(Some(Owner::new()), token, token, "a"));
        }
        assert_eq!(around.holds.len(), 1, "each hold replaces the one before");
        for claim in 0..200 {
            around = nested(&around, &hold(Some(Owner::new()), 7, claim, "b"));
        }
        assert_eq!(around.holds.len(), MAX_HOLDS);
        assert_eq!(around.holds.last().unwrap().claim_prefix, 199);
    }

    #[test]
    fn an_owner_set_by_the_user_counts_only_outside_of_any_run() {
        assert_eq!(Ancestors::new("", Some("me".into())).user_set_owner(), Some(Owner::named("me")));
        let nested = nested(&Ancestors::default(), &hold(Some(Owner::new()), 1, 1, "a"));
        assert_eq!(nested.user_set_owner(), None);
        assert_eq!(Ancestors::new("unparsable", Some("me".into())).user_set_owner(), None);
    }

    #[test]
    fn without_inspection_an_ended_run_holds_no_lock() {
        let around = nested(&Ancestors::default(), &hold(None, 1, 1, "a"));
        assert!(around.may_hold("file:", "a"));
        assert!(!around.may_hold("file:", "b") && !around.may_hold("redis:", "a"));
        let mut over = around;
        over.holds[0].process.start_time += 1;
        assert!(!over.may_hold("file:", "a"), "another process has its number");
        over.holds[0].process.pid = 0x7fff_fff0;
        assert!(!over.may_hold("file:", "a"), "no process has its number");
        over.holds[0].process.scope += 1;
        assert!(over.may_hold("file:", "a"), "it may run on another machine");
    }
}
