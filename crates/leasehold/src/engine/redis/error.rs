//! What the server or the connection says, in the library's words.

use redis::{ErrorKind as Native, RedisError, ServerErrorKind};

use super::config::Address;
use crate::error::{Error, ErrorKind};

/// The engine's name in errors.
pub(crate) const NAME: &str = "redis";

/// The server cannot be reached.
pub(crate) fn unreachable(address: &Address, why: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{address} cannot be reached: {why}")).retryable().at_engine(NAME)
}

/// A connection could not be made: nothing was asked of the server yet.
pub(crate) fn connecting(address: &Address, cause: RedisError) -> Error {
    let code = cause.code().unwrap_or_default();
    let text = cause.to_string();
    let denied = matches!(code, "WRONGPASS" | "NOAUTH" | "NOPERM")
        || cause.kind() == Native::AuthenticationFailed
        || text.contains("WRONGPASS");
    if denied {
        let message = format!("{address} refuses the user or the password ({})", plain(&cause));
        return Error::new(ErrorKind::Denied, message).at_engine(NAME);
    }
    if cause.kind() == Native::RESP3NotSupported || text.contains("unknown command 'HELLO'") {
        let message =
            format!("{address} does not speak RESP3; Redis 6.0 or newer is needed, without a proxy that hides it");
        return Error::new(ErrorKind::Unsupported, message).at_engine(NAME);
    }
    unreachable(address, &plain(&cause))
}

/// A step failed. Whatever broke the connection may have come after the server took the step.
pub(crate) fn step(address: &Address, cause: RedisError) -> Error {
    use ErrorKind::{Corrupt, Denied, Full, Unavailable};
    let new = |kind, message: String| Error::new(kind, message).at_engine(NAME);
    let said = plain(&cause);
    match cause.kind() {
        Native::Server(kind) => match (kind, cause.code().unwrap_or_default()) {
            (ServerErrorKind::ReadOnly, _) => {
                new(Unavailable, format!("{address} is a read-only replica: name its master, or its Sentinels"))
                    .retryable()
            }
            (ServerErrorKind::BusyLoading, _) => {
                new(Unavailable, format!("{address} is still loading its data")).retryable()
            }
            (ServerErrorKind::MasterDown, _) => {
                new(Unavailable, format!("{address} is a replica that has lost its master")).retryable()
            }
            (ServerErrorKind::TryAgain | ServerErrorKind::ClusterDown, _) => {
                new(Unavailable, format!("the cluster cannot answer now ({said})")).retryable()
            }
            (_, "NOPERM" | "NOAUTH" | "WRONGPASS") => {
                let hint = "`leasehold doctor` lists the permissions that are needed";
                new(Denied, format!("{address} does not let us ({said}); {hint}"))
            }
            (_, "OOM") => new(Full, format!("{address} has no memory left ({said})")).retryable(),
            (_, "NOREPLICAS") => {
                new(Unavailable, format!("{address} has too few replicas at present ({said})")).retryable()
            }
            (_, "MISCONF") => {
                new(Full, format!("{address} cannot save its data and takes no writes ({said})")).retryable()
            }
            (_, "WRONGTYPE") => new(
                Corrupt,
                "another program keeps something else under this lock's key; choose another `prefix`".into(),
            ),
            (_, "BUSY") => new(Unavailable, format!("{address} is busy with somebody's script ({said})")).retryable(),
            // A server that is going away may have done it.
            (_, "UNBLOCKED" | "SHUTDOWN") => new(Unavailable, said).retryable().effect_unknown(),
            _ => new(Unavailable, format!("{address} refuses the step ({said})")),
        },
        Native::AuthenticationFailed => new(Denied, format!("{address} refuses the user or the password ({said})")),
        Native::Parse | Native::UnexpectedReturnType => {
            new(Corrupt, format!("{address} answered something that is not understood ({said})")).effect_unknown()
        }
        _ => new(Unavailable, format!("the connection to {address} was lost ({said})")).retryable().effect_unknown(),
    }
}

/// An answer that no script of ours gives.
pub(crate) fn odd(address: &Address, answer: &redis::Value) -> Error {
    let message = format!("{address} answered {answer:?}, which no script of ours says");
    Error::new(ErrorKind::Corrupt, message).at_engine(NAME).effect_unknown()
}

/// The error in one line, without the library's own names for it.
pub(crate) fn plain(cause: &RedisError) -> String {
    let text = match (cause.code(), cause.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (_, Some(detail)) => detail.to_owned(),
        _ => cause.to_string(),
    };
    text.split(['\r', '\n']).next().unwrap_or_default().to_owned()
}
