//! Converts errors of the ZooKeeper client library to leasehold's errors.

use leasehold_zookeeper::{Error as Cause, MultiWriteError};

use super::config::{Config, Scheme};
use crate::types::{Error, ErrorKind};

/// The engine's name in errors.
pub const NAME: &str = "zookeeper";

/// Converts the failure of a request. Unless the server certainly refused the request, its effect
/// is unknown.
pub fn request_error(config: &Config, cause: Cause) -> Error {
    let hosts = &config.shown_hosts;
    let (kind, message) = match &cause {
        Cause::NoAuth => (
            ErrorKind::Denied,
            format!("{hosts} denies access to nodes below {}: {}", shown_base(config), no_auth_hint(config)),
        ),
        Cause::AuthFailed => (ErrorKind::Denied, refused_login_message(config)),
        Cause::InvalidAcl => (ErrorKind::Denied, format!("{hosts} refused the ACL: {INVALID_ACL}")),
        Cause::QuotaExceeded => (
            ErrorKind::Full,
            format!("the quota of {} at {hosts} is used up: raise it, or delete nodes", shown_base(config)),
        ),
        Cause::NotReadOnly => (ErrorKind::Unavailable, format!("{hosts} is read-only: it has lost its majority")),
        Cause::BadArguments(detail) => (ErrorKind::InvalidUrl, format!("{hosts}: {detail}")),
        Cause::Malformed(_) | Cause::MarshallingError | Cause::Unimplemented => {
            (ErrorKind::Unavailable, format!("{hosts} does not speak as ZooKeeper 3.5 or later does"))
        }
        Cause::SessionExpired | Cause::SessionMoved | Cause::ClientClosed => {
            (ErrorKind::Unavailable, format!("the session with {hosts} has ended; retry, which opens a new one"))
        }
        _ => (ErrorKind::Unavailable, hosts.clone()),
    };
    let refused = matches!(
        cause,
        Cause::NoAuth
            | Cause::AuthFailed
            | Cause::InvalidAcl
            | Cause::QuotaExceeded
            | Cause::NotReadOnly
            | Cause::BadArguments(_)
            | Cause::Throttled
            | Cause::NoNode
            | Cause::NodeExists
            | Cause::BadVersion
    );
    let error = Error::new(kind, message).at_engine(NAME).caused_by(cause);
    let error = if refused { error } else { error.effect_unknown() };
    if kind == ErrorKind::Unavailable { error.retryable() } else { error }
}

/// The path below which all nodes are, as errors show it.
fn shown_base(config: &Config) -> &str {
    if config.base.is_empty() { "/" } else { &config.base }
}

/// What to do if the ACL of a node does not allow a request.
fn no_auth_hint(config: &Config) -> &'static str {
    match config.login.as_ref().map(|login| login.scheme) {
        None => "log in as user:password@, or have its ACL changed; `leasehold doctor` shows it",
        // The server accepts any user and password, and compares them only with the ACL.
        Some(Scheme::Digest) => {
            "it was created with another user or password than that of user:password@ (with digest, a wrong password is noticed only here); or have its \
             ACL changed; `leasehold doctor` shows it"
        }
        Some(Scheme::Sasl) => {
            "it was created by another user than that of user:password@; or have its ACL changed; `leasehold doctor` shows it"
        }
    }
}

/// Why a server refuses an ACL.
const INVALID_ACL: &str = "acl=creator and acl=readable need a login that the server knows";

/// The error of the operation that made a transaction fail.
pub fn into_cause(error: MultiWriteError) -> Cause {
    error.into()
}

/// The message if the login is refused, with what to check.
fn refused_login_message(config: &Config) -> String {
    let hosts = &config.shown_hosts;
    match config.login.as_ref().map(|login| login.scheme) {
        None => {
            format!("{hosts} requires a login: user:password@, and auth=sasl if it knows its users by SASL")
        }
        Some(Scheme::Digest) => {
            format!(
                "{hosts} refused the user or the password of user:password@; if it knows its users by SASL: auth=sasl"
            )
        }
        Some(Scheme::Sasl) => format!("{hosts} refused the user or the password"),
    }
}

/// Converts the failure to open a session, and adds what to check.
pub fn open_error(config: &Config, cause: Cause) -> Error {
    if matches!(cause, Cause::AuthFailed) {
        return request_error(config, cause);
    }
    let hint = match &config.tls {
        None => "; if the servers use TLS here, set tls=on&ca=/path/to/ca.pem",
        Some(tls) if tls.identity.is_some() => {
            "; check that the servers use TLS here, with a certificate signed by the authority in ca="
        }
        Some(_) => {
            "; check that the servers use TLS here, with a certificate signed by the authority in ca=; if they require a client certificate, set cert= and cert-key="
        }
    };
    if matches!(cause, Cause::Malformed(_)) {
        // Not retryable: the service will not become ZooKeeper.
        let message = format!("{} answered, but is not ZooKeeper: check host and port{hint}", config.shown_hosts);
        return Error::new(ErrorKind::Unavailable, message).at_engine(NAME).caused_by(cause);
    }
    let cause_text = match &cause {
        Cause::NoHosts | Cause::Timeout | Cause::ConnectionLoss => {
            format!(
                "no server of {} could be reached, none has a majority, all refuse more connections of this host (maxClientCnxns), or it is \
                 another service than ZooKeeper{hint}",
                config.shown_hosts
            )
        }
        _ => format!("no session with {}{hint}", config.shown_hosts),
    };
    let kind = if matches!(cause, Cause::BadArguments(_)) { ErrorKind::InvalidUrl } else { ErrorKind::Unavailable };
    let error = Error::new(kind, cause_text).at_engine(NAME).caused_by(cause);
    if kind == ErrorKind::Unavailable { error.retryable() } else { error }
}
