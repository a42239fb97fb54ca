//! Failures of statements and connections, and their conversion to the library's errors.

use super::Dialect;
use crate::engine::wrong_service;
use crate::types::{Error, ErrorKind, FORMAT};

/// Why a statement failed, or its connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No connection could be opened: the statement was not sent.
    Unreachable(String),
    /// A service answered that is not a database of this kind.
    WrongProtocol(String),
    /// The connection broke: the statement may have taken effect.
    ConnectionLost(String),
    /// The server refused with its error code and message. The statement had no effect, except in
    /// the classes `TemporarilyUnavailable` and `Terminated`, where that is unknown.
    Refused { code: String, message: String },
    /// The server answered with something that this statement cannot return.
    UnexpectedReply(String),
    /// The stored state of a lock cannot be parsed; the text says which lock, and what to do.
    CorruptRow(String),
    /// The row is stored in this format, which this version does not read.
    UnknownFormat(i64),
    /// A limit of claims for one lock was reached.
    Full(String),
    /// Other clients wrote first at every try.
    Contended(String),
    /// The engine was shut down.
    Closed,
}

/// The meaning of a server's error code, the same for both databases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// Two statements conflicted: retry at once.
    Conflict,
    /// Another transaction holds a row lock on a table of leasehold.
    RowLocked,
    /// The server accepts no writes, as a replica does.
    ReadOnly,
    /// The login is wrong, or the user lacks a right.
    Denied,
    /// The database does not exist, or in MySQL the user may not use it.
    NoDatabase,
    /// A table of leasehold does not exist.
    NoTable,
    /// A table has the name of one of leasehold's, but other columns.
    WrongTable,
    /// The server has no connection left for this client.
    TooManyConnections,
    /// The server is starting or shutting down, or its cluster has no majority.
    TemporarilyUnavailable,
    /// An administrator or the server ended the statement or its session.
    Terminated,
    /// Disk or memory is full.
    Full,
    /// A pooler gives each transaction another session.
    TransactionPooler,
    /// The server does not support named locks.
    NoNamedLocks,
    /// Any other error code.
    Other,
}

impl Failure {
    /// A refusal by the server with this error code.
    pub fn refused(code: impl ToString, message: impl Into<String>) -> Self {
        Self::Refused { code: code.to_string(), message: message.into() }
    }

    /// A statement without an answer within this time: its connection counts as broken.
    pub fn timed_out(within: std::time::Duration) -> Self {
        Self::ConnectionLost(format!("no answer within {within:?}"))
    }

    /// The meaning of the server's error code; `None` if the failure is not the server's refusal.
    pub fn class(&self, dialect: Dialect) -> Option<ErrorClass> {
        let Self::Refused { code, message } = self else { return None };
        Some(match dialect {
            Dialect::MySql => mysql_class(code, message),
            Dialect::Postgres => postgres_class(code),
        })
    }

    /// Whether the connection that had this failure must not be used any more.
    pub fn ends_connection(&self, dialect: Dialect) -> bool {
        match self {
            Self::Unreachable(_)
            | Self::WrongProtocol(_)
            | Self::ConnectionLost(_)
            | Self::UnexpectedReply(_)
            | Self::Closed => true,
            Self::CorruptRow(_) | Self::UnknownFormat(_) | Self::Full(_) | Self::Contended(_) => false,
            Self::Refused { .. } => {
                matches!(
                    self.class(dialect),
                    Some(
                        ErrorClass::Terminated
                            | ErrorClass::TemporarilyUnavailable
                            | ErrorClass::ReadOnly
                            | ErrorClass::TransactionPooler
                    )
                )
            }
        }
    }

    /// Whether the connection ended during the statement: on another connection it may succeed.
    pub fn is_connection_lost(&self, dialect: Dialect) -> bool {
        matches!(self, Self::ConnectionLost(_)) || self.class(dialect) == Some(ErrorClass::Terminated)
    }

    /// Converts it to the library's error. `server` names the hosts in the message.
    pub fn to_error(&self, dialect: Dialect, server: &str) -> Error {
        use ErrorKind::{Corrupt, Full, Unavailable};
        let later = |kind, message: String| Error::new(kind, message).retryable();
        let error = match self {
            Self::Unreachable(reason) => {
                later(Unavailable, format!("{server} cannot be reached: {reason}{}", connect_hint(dialect, reason)))
            }
            // Not retryable: the service will not become a database.
            Self::WrongProtocol(reason) => {
                let message =
                    format!("{server} answered, but is not {}: check host and port ({reason})", dialect.product());
                Error::new(Unavailable, message)
            }
            Self::ConnectionLost(reason) => {
                later(Unavailable, format!("the connection to {server} was lost ({reason})")).effect_unknown()
            }
            Self::CorruptRow(detail) => Error::new(Corrupt, detail.clone()),
            Self::UnknownFormat(found) => Error::unknown_format(found, FORMAT),
            Self::Full(detail) => Error::new(Full, detail.clone()),
            Self::Contended(detail) => later(Unavailable, detail.clone()),
            Self::Closed => Error::new(ErrorKind::Closed, "this engine was shut down; open it again"),
            Self::UnexpectedReply(detail) => {
                Error::new(Corrupt, format!("{server} sent an answer in an unknown format ({detail})")).effect_unknown()
            }
            Self::Refused { code, message: cause_text } => {
                let meaning = self.class(dialect).unwrap_or(ErrorClass::Other);
                meaning.to_error(dialect, server, &format!("{code}: {cause_text}"))
            }
        };
        error.at_engine(dialect.name())
    }
}

impl ErrorClass {
    /// Converts a refusal by `server` to the library's error; `cause_text` is the server's own code
    /// and message.
    fn to_error(self, dialect: Dialect, server: &str, cause_text: &str) -> Error {
        use ErrorKind::{Corrupt, Denied, Full, InvalidUrl, Unavailable, Unsupported};
        let later = |kind, message: String| Error::new(kind, message).retryable();
        match self {
            Self::Conflict => {
                later(Unavailable, format!("{server} aborted a statement because of a conflict ({cause_text})"))
            }
            Self::RowLocked => later(
                Unavailable,
                format!("another transaction holds a row lock on a table of leasehold at {server}; end it ({cause_text})"),
            ),
            Self::ReadOnly => later(
                Unavailable,
                format!("{server} takes no writes: name its primary, or all servers, comma-separated ({cause_text})"),
            ),
            Self::Denied => Error::new(Denied, format!("{server} denies access: check user, password and rights ({cause_text})")),
            Self::NoDatabase => {
                // MySQL answers the same if this user may not use the database.
                let or = if dialect == Dialect::MySql { ", or this user may not use it" } else { "" };
                Error::new(InvalidUrl, format!("{server} has no such database{or} ({cause_text})"))
            }
            Self::NoTable => Error::new(
                Corrupt,
                format!(
                    "the table does not exist any more; `leasehold engines --ddl {}` shows how to create it ({cause_text})",
                    dialect.name()
                ),
            )
            .retryable(),
            Self::WrongTable => Error::new(
                Corrupt,
                format!(
                    "another program or another version of leasehold created the table; \
                     choose another name with table= ({cause_text})"
                ),
            ),
            Self::TooManyConnections => later(
                Unavailable,
                format!(
                    "{server} has no connection left: lower connections= in the URL, or raise the server's limit ({cause_text})"
                ),
            ),
            Self::TemporarilyUnavailable => {
                later(Unavailable, format!("{server} is starting, shutting down or without a majority; retry later ({cause_text})")).effect_unknown()
            }
            Self::Terminated => later(Unavailable, format!("{server} ended the statement or its session; retry ({cause_text})")).effect_unknown(),
            Self::Full => later(Full, format!("{server} has no disk space or memory left; make room and retry ({cause_text})")),
            Self::TransactionPooler => Error::new(
                Unsupported,
                format!("a pooler before {server} changes sessions between statements: add pooler=transaction ({cause_text})"),
            ),
            Self::NoNamedLocks => {
                Error::new(Unsupported, format!("{server} does not support named locks: add wake=poll to the URL ({cause_text})"))
            }
            Self::Other => Error::new(Unavailable, format!("{server} refused a statement ({cause_text})")),
        }
    }
}

/// What to check if a connection cannot be opened for this reason; may be empty.
fn connect_hint(dialect: Dialect, reason: &str) -> String {
    let hint = if reason.contains("UnknownIssuer") || reason.contains("invalid peer certificate") {
        "; name the authority that signs its certificate: ca=/path/to/ca.pem"
    } else if reason.contains("CertificateRequired") {
        "; it requires a client certificate: cert=/path/to/cert.pem&cert-key=/path/to/key.pem"
    } else if reason.starts_with("no answer within") {
        return format!("; {}", wrong_service::wrong_service_hint(dialect.product()));
    } else {
        ""
    };
    hint.to_owned()
}

/// The innermost cause of an error, without the texts of the errors around it.
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// Whether this error text of a client library means that it could not parse the answer: another
/// service than the database listens on the port.
pub fn is_wrong_protocol(reason: &str) -> bool {
    // Parts of the texts, in lower case.
    const PARSE_ERRORS: [&str; 10] = [
        "bytes remaining on stream",
        "unknown message tag",
        "invalid message length",
        "unexpected message",
        "out of sync",
        "out of order",
        "larger than max_allowed_packet",
        "unexpected packet",
        "unknown protocol",
        "unknown authentication",
    ];
    let reason = reason.to_ascii_lowercase();
    PARSE_ERRORS.iter().any(|text| reason.contains(text))
}

/// The meaning of an error code of MySQL or MariaDB.
fn mysql_class(code: &str, message: &str) -> ErrorClass {
    match code {
        "1213" | "1020" | "1613" => ErrorClass::Conflict,
        "1205" => ErrorClass::RowLocked,
        "1290" if message.contains("read-only") || message.contains("read_only") => ErrorClass::ReadOnly,
        "1836" | "1792" | "3100" => ErrorClass::ReadOnly,
        "1045" | "1142" | "1143" | "1227" | "1370" | "1698" | "3118" | "4151" => ErrorClass::Denied,
        "1044" | "1049" => ErrorClass::NoDatabase,
        "1146" => ErrorClass::NoTable,
        "1054" | "1136" | "1267" | "1364" | "1366" | "1406" => ErrorClass::WrongTable,
        "1040" | "1203" | "1226" => ErrorClass::TooManyConnections,
        "1047" | "1053" | "1077" | "1079" | "3169" => ErrorClass::TemporarilyUnavailable,
        "1317" | "1927" | "1969" | "1152" | "1184" | "4031" | "3024" => ErrorClass::Terminated,
        "1021" | "1041" | "1037" | "1114" => ErrorClass::Full,
        "1235" if message.contains("GET_LOCK") || message.contains("wsrep") => ErrorClass::NoNamedLocks,
        _ => ErrorClass::Other,
    }
}

/// The meaning of a SQLSTATE of PostgreSQL.
fn postgres_class(code: &str) -> ErrorClass {
    match code {
        "40P01" | "40001" => ErrorClass::Conflict,
        "55P03" => ErrorClass::RowLocked,
        "25006" => ErrorClass::ReadOnly,
        "28P01" | "28000" | "42501" => ErrorClass::Denied,
        "3D000" => ErrorClass::NoDatabase,
        "42P01" | "3F000" => ErrorClass::NoTable,
        "42703" | "42804" | "42883" | "22P02" | "22001" | "42P10" => ErrorClass::WrongTable,
        "53300" => ErrorClass::TooManyConnections,
        "57P02" | "57P03" => ErrorClass::TemporarilyUnavailable,
        "57P01" | "57P05" | "57014" | "25P03" | "25P04" => ErrorClass::Terminated,
        "53000" | "53100" | "53200" => ErrorClass::Full,
        "26000" | "42P05" | "08P01" | "42P08" => ErrorClass::TransactionPooler,
        _ => ErrorClass::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Effect;

    #[test]
    fn errors_state_whether_to_retry_and_their_effect() {
        let table = [
            (Dialect::MySql, Failure::refused(1213, "deadlock"), ErrorKind::Unavailable, true, Effect::None),
            (Dialect::Postgres, Failure::refused("40P01", "deadlock"), ErrorKind::Unavailable, true, Effect::None),
            (Dialect::MySql, Failure::refused(1205, "lock wait"), ErrorKind::Unavailable, true, Effect::None),
            (Dialect::Postgres, Failure::refused("25006", "read only"), ErrorKind::Unavailable, true, Effect::None),
            (Dialect::MySql, Failure::refused(1045, "denied"), ErrorKind::Denied, false, Effect::None),
            (Dialect::Postgres, Failure::refused("57P01", "terminated"), ErrorKind::Unavailable, true, Effect::Unknown),
            (Dialect::Postgres, Failure::ConnectionLost("eof".into()), ErrorKind::Unavailable, true, Effect::Unknown),
            (Dialect::Postgres, Failure::Unreachable("no".into()), ErrorKind::Unavailable, true, Effect::None),
            (Dialect::MySql, Failure::refused(1049, "no db"), ErrorKind::InvalidUrl, false, Effect::None),
            (Dialect::MySql, Failure::refused(1044, "no db"), ErrorKind::InvalidUrl, false, Effect::None),
            (Dialect::Postgres, Failure::refused("3D000", "no db"), ErrorKind::InvalidUrl, false, Effect::None),
            (Dialect::MySql, Failure::WrongProtocol("?".into()), ErrorKind::Unavailable, false, Effect::None),
        ];
        for (dialect, failure, kind, retry, effect) in table {
            let error = failure.to_error(dialect, "h:1");
            assert_eq!((error.kind(), error.is_retryable(), error.effect()), (kind, retry, effect), "{failure:?}");
        }
    }
}
