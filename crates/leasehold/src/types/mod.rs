//! The vocabulary of the whole library: names, ids, modes, tokens, points in time and errors. This
//! module depends on no other.

mod error;
mod identity;
mod instant;
mod name;

use std::time::Duration;

pub use self::error::{Effect, Error, ErrorKind, Result};
pub use self::identity::{ClaimId, Holder, MAX_DESCRIPTION, Mode, Owner, Token};
pub use self::instant::Instant;
pub(crate) use self::instant::nanos;
pub use self::name::{LockName, MAX_NAME};

/// The format of everything that leasehold stores at an engine or sends to another client. Each
/// stored value and each message has this number; another number is an error
/// ([`ErrorKind::UnknownFormat`]), and never counts as a free lock.
#[allow(dead_code, reason = "`memory:` stores nothing")]
pub(crate) const FORMAT: u32 = 1;

/// The TTL of a grant unless [`Builder::ttl`](crate::Builder::ttl) or the request sets another one.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);
