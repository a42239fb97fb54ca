//! Tokens, modes, claim ids, owners and holders.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use sha2::{Digest, Sha256};

/// The fencing token of a grant: higher than the token of every earlier grant of the same lock
/// name. Only claims of one owner that hold together have equal tokens. Zero is no grant's token.
///
/// ```
/// use leasehold::Token;
///
/// assert!(Token(8) > Token(7), "granted later: the resource refuses 7 from now on");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Token(pub u64);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How a claim holds a lock: a mutex and a writer exclusively, a reader shared, a semaphore by
/// permits.
///
/// ```
/// use leasehold::Mode;
///
/// assert_eq!(Mode::Permits { n: 2, limit: 3 }.to_string(), "2 of 3");
/// assert_eq!(Mode::Shared.to_string(), "shared");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// The claim is the only holder.
    Exclusive,
    /// The claim holds together with other shared claims.
    Shared,
    /// The claim holds `n` of a semaphore's `limit` permits.
    Permits {
        /// The permits of this claim.
        n: u32,
        /// All permits of the semaphore.
        limit: u32,
    },
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("exclusive"),
            Self::Shared => f.write_str("shared"),
            Self::Permits { n, limit } => write!(f, "{n} of {limit}"),
        }
    }
}

/// The id of one request: 128 unique bits. The client makes it before it sends the request, so the
/// engine recognises a retry.
///
/// ```
/// use leasehold::ClaimId;
///
/// let id = ClaimId::random();
/// assert_eq!(ClaimId::from_bits(id.bits()), id);
/// assert_ne!(ClaimId::random(), id);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimId(u128);

impl ClaimId {
    /// A new, unique id.
    pub fn random() -> Self {
        Self(crate::random::unique_id())
    }

    /// An id from its 128 bits, as an engine stored them.
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// The id's 128 bits, for an engine to store.
    pub const fn bits(self) -> u128 {
        self.0
    }
}

impl fmt::Debug for ClaimId {
    /// Shows the first digits only: a client that knows the whole id can release the lock.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}…", self.0 >> 96)
    }
}

/// An owner may re-enter a lock that it already holds. It is an explicit value that the program
/// passes around, never a thread.
///
/// As text (in `LEASEHOLD_OWNER`, say) it is 32 hexadecimal digits. Any client that knows it can
/// re-enter, so `Debug` shows only the first four.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # let locks = leasehold::Locks::open("memory:").await?;
/// use leasehold::Owner;
///
/// let owner = Owner::new();
/// let outer = locks.mutex("stock:42").owner(&owner).lock().await?;
/// let inner = locks.mutex("stock:42").owner(&owner).lock().await?;   // granted at once
/// assert_eq!(outer.token(), inner.token());
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner(u128);

impl Owner {
    /// A new owner, unlike any other.
    #[allow(clippy::new_without_default, reason = "two defaults that differ would surprise")]
    pub fn new() -> Self {
        Self(crate::random::random_bits())
    }

    /// The owner with this name. Equal names give the same owner, on any machine.
    pub fn named(name: &str) -> Self {
        let digest = Sha256::digest(name.as_bytes());
        let mut bits = [0; 16];
        bits.copy_from_slice(&digest[..16]);
        Self(u128::from_be_bytes(bits))
    }

    /// An owner from its 128 bits, as an engine stored them.
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// The owner's 128 bits, for an engine to store.
    pub const fn bits(self) -> u128 {
        self.0
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({:04x}…)", self.0 >> 112)
    }
}

impl FromStr for Owner {
    type Err = std::convert::Infallible;

    /// Reads 32 hexadecimal digits, as `Display` writes them; any other text is a name, as for
    /// [`named`](Self::named).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_displayed_owner = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match u128::from_str_radix(text, 16) {
            Ok(bits) if is_displayed_owner => Ok(Self(bits)),
            _ => Ok(Self::named(text)),
        }
    }
}

/// Describes the process that makes a claim. Inspection shows it; no decision depends on it.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::{Holder, Locks};
///
/// let holder = Holder::new("web-3", 812, "shop", "");
/// let locks = Locks::builder().holder(holder).open("memory:").await?;
/// let guard = locks.mutex("stock:42").describe("order 7").lock().await?;
/// let shown = &locks.inspect("stock:42").await?.holders[0].holder;
/// assert_eq!((&*shown.host, &*shown.description), ("web-3", "order 7"));
/// # drop(guard);
/// # Ok::<(), leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Holder {
    /// The machine's host name.
    pub host: Arc<str>,
    /// The process id on the machine.
    pub pid: u32,
    /// The program's name.
    pub program: Arc<str>,
    /// The text that the program passed to `describe`; empty if it did not.
    pub description: Arc<str>,
}

/// The longest [description](Holder::description) of a holder, in bytes.
pub const MAX_DESCRIPTION: usize = 256;
/// The longest host name of a holder, and the longest program name, in bytes.
pub(crate) const MAX_HOST_OR_PROGRAM: usize = 255;

impl Holder {
    /// A holder with these fields, as an engine stored them.
    pub fn new(host: &str, pid: u32, program: &str, description: &str) -> Self {
        Self { host: host.into(), pid, program: program.into(), description: description.into() }
    }

    /// The holder for this process, without a description.
    pub fn this_process() -> Self {
        let program = std::env::args_os().next().map(std::path::PathBuf::from);
        let program = program.as_deref().and_then(|path| path.file_name()).map(|name| name.to_string_lossy());
        let (host, program) = (host_name(), program.as_deref().unwrap_or("unknown"));
        Self::new(truncate(&host, MAX_HOST_OR_PROGRAM), std::process::id(), truncate(program, MAX_HOST_OR_PROGRAM), "")
    }

    /// The texts, each with its name in errors and its longest length in bytes.
    fn fields(&self) -> [(&'static str, &str, usize); 3] {
        let Self { host, program, description: text, .. } = self;
        [
            ("host name", host, MAX_HOST_OR_PROGRAM),
            ("program name", program, MAX_HOST_OR_PROGRAM),
            ("description", text, MAX_DESCRIPTION),
        ]
    }

    /// The error message for the first field that is too long for an engine to store; `None` if all
    /// fit.
    pub(crate) fn over_long_field(&self) -> Option<String> {
        let (field, text, max_len) = self.fields().into_iter().find(|(_, text, max_len)| text.len() > *max_len)?;
        Some(format!("a holder's {field} is at most {max_len} bytes, and this has {}", text.len()))
    }

    /// The same holder, with those fields cut off that are longer than an engine stores.
    pub(crate) fn truncated(self: Arc<Self>) -> Arc<Self> {
        if self.over_long_field().is_none() {
            return self;
        }
        let [host, program, text] = self.fields().map(|(_, text, max)| truncate(text, max));
        Arc::new(Self::new(host, self.pid, program, text))
    }

    /// The same holder with this description.
    #[must_use]
    pub fn with_description(&self, description: &str) -> Self {
        Self { description: description.into(), ..self.clone() }
    }
}

/// The beginning of a text: at most `max_bytes` bytes, cut between two characters.
fn truncate(text: &str, max_bytes: usize) -> &str {
    let end = (0..=max_bytes.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or_default()]
}

/// This machine's host name.
#[cfg(unix)]
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "unknown".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_read_back_as_it_was_written() {
        let owner = Owner::new();
        assert_eq!(owner.to_string().parse::<Owner>(), Ok(owner));
        assert_eq!("worker-7".parse::<Owner>(), Ok(Owner::named("worker-7")));
        assert_ne!(Owner::named("a"), Owner::named("b"));
        assert!(!format!("{owner:?}").contains(&owner.to_string()));
    }
}
