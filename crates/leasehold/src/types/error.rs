//! The error of every call: its kind, its location, and a message that explains what to do next.

use std::error::Error as StdError;
use std::fmt;

use super::LockName;

/// The result of every call of this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error, for programs; the message explains the error to people.
///
/// ```
/// use leasehold::{Error, ErrorKind};
///
/// fn exit_code(error: &Error) -> u8 {
///     match error.kind() {
///         ErrorKind::Timeout => 75,
///         ErrorKind::InvalidName | ErrorKind::InvalidOption => 64,
///         _ => 1,
///     }
/// }
/// assert_eq!(exit_code(&Error::new(ErrorKind::Timeout, "not granted within 5 s")), 75);
/// assert_eq!(ErrorKind::Timeout.as_str(), "timeout");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The engine URL is malformed.
    InvalidUrl,
    /// No engine has this scheme.
    UnknownScheme,
    /// The engine exists, but its cargo feature is off.
    FeatureDisabled,
    /// The lock name is empty, too long or has control characters.
    InvalidName,
    /// An option (TTL, permits, description, …) is out of bounds.
    InvalidOption,
    /// The engine does not support the call or the mode; refused before any I/O.
    Unsupported,
    /// The lock was not granted within the request's timeout.
    Timeout,
    /// The request can never be granted beside the present holders: another limit, or an upgrade
    /// from shared to exclusive.
    Conflict,
    /// The lock was lost while it was needed.
    Lost,
    /// An operator force released the request while it waited. The request is over; make a new one
    /// if the lock is still wanted.
    ForceReleased,
    /// The engine does not respond, or not in time.
    Unavailable,
    /// The engine denies access: permissions, ownership, credentials.
    Denied,
    /// The engine's stored data cannot be parsed.
    Corrupt,
    /// Another version of leasehold stored this in a format that this version does not read.
    UnknownFormat,
    /// The engine has no space left.
    Full,
    /// The `Locks` was closed before the call, or its background thread has ended.
    Closed,
}

impl ErrorKind {
    /// A short stable word, as metrics and `--json` use it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidUrl => "invalid-url",
            Self::UnknownScheme => "unknown-scheme",
            Self::FeatureDisabled => "feature-disabled",
            Self::InvalidName => "invalid-name",
            Self::InvalidOption => "invalid-option",
            Self::Unsupported => "unsupported",
            Self::Timeout => "timeout",
            Self::Conflict => "conflict",
            Self::Lost => "lost",
            Self::ForceReleased => "force-released",
            Self::Unavailable => "unavailable",
            Self::Denied => "denied",
            Self::Corrupt => "corrupt",
            Self::UnknownFormat => "unknown-format",
            Self::Full => "full",
            Self::Closed => "closed",
        }
    }
}

/// Whether a failed call may have changed the engine's state.
///
/// ```
/// use leasehold::{Effect, Error, ErrorKind};
///
/// let error = Error::new(ErrorKind::Unavailable, "the reply was lost").effect_unknown();
/// assert_eq!(error.effect(), Effect::Unknown);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// The engine's state is unchanged.
    None,
    /// The call may have taken effect, because its reply was lost: repeat it with the same claim,
    /// or release the claim.
    Unknown,
}

/// An error: its kind, whether to retry, whether its effect is known, and where it happened.
///
/// Its text includes that of its [`cause`](Self::cause).
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::{Effect, ErrorKind, Locks};
///
/// let error = Locks::open("etcetera://db1").await.unwrap_err();
/// assert_eq!((error.kind(), error.effect()), (ErrorKind::UnknownScheme, Effect::None));
/// assert!(!error.is_retryable());
/// assert!(error.to_string().contains("memory:"), "the message lists the known schemes: {error}");
/// # });
/// ```
#[derive(Debug)]
pub struct Error(Box<ErrorDetails>);

#[derive(Debug)]
struct ErrorDetails {
    kind: ErrorKind,
    /// Whether the same call may succeed later.
    retryable: bool,
    effect: Effect,
    /// The engine's name, such as `redis`.
    engine: Option<&'static str>,
    /// The engine's URL, without secrets.
    url: Option<Box<str>>,
    /// `lock` or `record`, and the name of that lock or record.
    name: Option<(&'static str, LockName)>,
    message: String,
    cause: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error that is not worth a retry and changed nothing at the engine, unless the methods
    /// below say otherwise.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(ErrorDetails {
            kind,
            retryable: false,
            effect: Effect::None,
            engine: None,
            url: None,
            name: None,
            message: message.into(),
            cause: None,
        }))
    }

    /// What is stored has format `found`, and this version reads format `known`.
    pub fn unknown_format(found: impl fmt::Display, known: u32) -> Self {
        let message = format!(
            "it is stored in format {found}, and this version of leasehold reads format {known}; \
             use the version that stored it (docs/upgrading.md)"
        );
        Self::new(ErrorKind::UnknownFormat, message)
    }

    /// Whether only one lock's stored data is at fault: damaged, or in an unknown format.
    #[allow(dead_code, reason = "`memory:` stores nothing")]
    pub(crate) fn is_bad_record(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Corrupt | ErrorKind::UnknownFormat)
    }

    /// The same error, marked as worth a retry.
    #[must_use]
    pub fn retryable(mut self) -> Self {
        self.0.retryable = true;
        self
    }

    /// The same error, with an unknown effect: the step may have taken effect.
    #[must_use]
    pub fn effect_unknown(mut self) -> Self {
        self.0.effect = Effect::Unknown;
        self
    }

    /// The same error, with the name of the engine; keeps a name that is already set.
    #[must_use]
    pub fn at_engine(mut self, engine: &'static str) -> Self {
        self.0.engine.get_or_insert(engine);
        self
    }

    /// The same error, with the engine's URL without secrets
    /// ([`Engine::url`](crate::engine::Engine::url)); keeps a URL that is already set.
    #[must_use]
    pub fn at_url(mut self, url: impl Into<String>) -> Self {
        self.0.url.get_or_insert_with(|| url.into().into_boxed_str());
        self
    }

    /// The same error, about this lock; keeps a name that is already set.
    #[must_use]
    pub fn about_lock(mut self, name: &LockName) -> Self {
        self.0.name.get_or_insert_with(|| ("lock", name.clone()));
        self
    }

    /// The same error, about this record; keeps a name that is already set.
    #[must_use]
    pub fn about_record(mut self, name: &LockName) -> Self {
        self.0.name.get_or_insert_with(|| ("record", name.clone()));
        self
    }

    /// The same error, caused by another one, whose text is appended to the message.
    #[must_use]
    pub fn caused_by(mut self, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.cause = Some(cause.into());
        self
    }

    /// The message and the text of the cause, without engine, URL and lock name.
    pub fn message_without_location(&self) -> String {
        match &self.0.cause {
            Some(cause) => format!("{}: {cause}", self.0.message),
            None => self.0.message.clone(),
        }
    }

    /// The error of the operating system or of a client library that caused this one, for a
    /// downcast. [`source`](StdError::source) leaves it out, because the message includes its text.
    pub fn cause(&self) -> Option<&(dyn StdError + Send + Sync + 'static)> {
        self.0.cause.as_deref()
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        self.0.retryable
    }

    /// Whether the engine's state may have changed.
    pub fn effect(&self) -> Effect {
        self.0.effect
    }

    /// The name of the engine at which the error happened, such as `redis`.
    pub fn engine(&self) -> Option<&'static str> {
        self.0.engine
    }

    /// The URL of the engine at which the error happened, without secrets.
    pub fn url(&self) -> Option<&str> {
        self.0.url.as_deref()
    }

    /// The name of the lock, or of the record, that the error is about.
    pub fn name(&self) -> Option<&LockName> {
        self.0.name.as_ref().map(|(_, name)| name)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = self.message_without_location();
        let location = location(self.0.engine, self.0.url.as_deref(), &message);
        match (&self.0.name, location) {
            (Some((what, name)), Some(location)) => write!(f, "{what} {name:?} on {location}: ")?,
            (Some((what, name)), None) => write!(f, "{what} {name:?}: ")?,
            (None, Some(location)) => write!(f, "{location}: ")?,
            (None, None) => {}
        }
        f.write_str(&message)
    }
}

/// What the text of an error shows as its location: the engine's URL, or only its scheme if the
/// message already has the address; the engine's name if there is no URL.
fn location<'a>(engine: Option<&'a str>, url: Option<&'a str>, message: &str) -> Option<&'a str> {
    let Some(url) = url else { return engine };
    let scheme = url.split(':').next().unwrap_or(url);
    match address(url) {
        // `memory:` has no address.
        "" => Some(url.trim_end_matches(':')),
        address if contains_address(message, address) => Some(scheme),
        _ => Some(url),
    }
}

/// The hosts of a URL without user and password, or its path if it has no hosts.
fn address(url: &str) -> &str {
    let (_, rest) = url.split_once(':').unwrap_or(("", url));
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let rest = rest.split('?').next().unwrap_or_default();
    let hosts = if rest.starts_with('/') { rest } else { rest.split('/').next().unwrap_or_default() };
    hosts.rsplit('@').next().unwrap_or_default()
}

/// Whether a text contains this address as a whole word: a host's name may be a part of a word.
fn contains_address(text: &str, address: &str) -> bool {
    let is_name_char = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    text.match_indices(address).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + address.len()..]);
        // A full stop may end a sentence.
        !before.ends_with(is_name_char) && !after.trim_start_matches('.').starts_with(is_name_char)
    })
}

impl StdError for Error {
    /// The source of the [`cause`](Error::cause), whose own text is part of this error's text.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause()?.source()
    }
}
