//! Converts errors of the server and the connection to the library's errors.

use super::Dialect;
use crate::engine::stranger;
use crate::error::{Error, ErrorKind};

/// Why a statement failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// No connection could be opened: the statement was not sent.
    Unreachable(String),
    /// The server is not a database of this kind.
    Stranger(String),
    /// The connection broke: the statement may have taken effect.
    Broken(String),
    /// The server refuses: the statement had no effect.
    Refused { code: String, said: String },
    /// The answer is not one that the statement can have.
    Strange(String),
    /// The stored state of a lock cannot be parsed.
    Damaged(String),
    /// There is no room for more.
    Full(String),
    /// Other clients wrote first each time.
    Contended(String),
    /// The engine was closed.
    Closed,
}

/// The meaning of a server's error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Two statements conflicted: retry at once.
    Collision,
    /// Another transaction keeps our row locked.
    Occupied,
    ReadOnly,
    Denied,
    NoDatabase,
    NoTable,
    OtherTable,
    Crowded,
    /// Temporary: starting, shutting down, or a cluster without a majority.
    NotNow,
    /// An administrator or the server ended the statement or its session.
    Killed,
    Full,
    /// A pooler gives us another session each time.
    Pooled,
    /// The server does not support named locks.
    NoBell,
    Other,
}

impl Failure {
    pub(super) fn refused(code: impl ToString, said: impl Into<String>) -> Self {
        Self::Refused { code: code.to_string(), said: said.into() }
    }

    /// No answer within this time: the connection counts as broken.
    pub(super) fn silent(within: std::time::Duration) -> Self {
        Self::Broken(format!("no answer within {within:?}"))
    }

    pub(super) fn meaning(&self, dialect: Dialect) -> Option<Meaning> {
        let Self::Refused { code, said } = self else { return None };
        Some(match dialect {
            Dialect::MySql => my_meaning(code, said),
            Dialect::Postgres => pg_meaning(code),
        })
    }

    /// Whether this connection cannot be used any more.
    pub(super) fn is_end(&self, dialect: Dialect) -> bool {
        match self {
            Self::Unreachable(_) | Self::Stranger(_) | Self::Broken(_) | Self::Strange(_) | Self::Closed => true,
            Self::Damaged(_) | Self::Full(_) | Self::Contended(_) => false,
            Self::Refused { .. } => {
                matches!(
                    self.meaning(dialect),
                    Some(Meaning::Killed | Meaning::NotNow | Meaning::ReadOnly | Meaning::Pooled)
                )
            }
        }
    }

    /// Whether the connection ended during the statement, for any reason: another one may work.
    pub(super) fn is_lost_line(&self, dialect: Dialect) -> bool {
        matches!(self, Self::Broken(_)) || self.meaning(dialect) == Some(Meaning::Killed)
    }

    /// Converts it to the library's error.
    pub(super) fn tell(&self, dialect: Dialect, server: &str) -> Error {
        use ErrorKind::{Corrupt, Full, Unavailable};
        let later = |kind, message: String| Error::new(kind, message).retryable();
        let error = match self {
            Self::Unreachable(why) => {
                later(Unavailable, format!("{server} cannot be reached: {why}{}", hint(dialect, why)))
            }
            // Retrying does not turn it into one.
            Self::Stranger(why) => {
                let message =
                    format!("{server} answered, but is not {}: check host and port ({why})", dialect.product());
                Error::new(Unavailable, message)
            }
            Self::Broken(why) => {
                later(Unavailable, format!("the connection to {server} was lost ({why})")).effect_unknown()
            }
            Self::Damaged(what) => Error::new(Corrupt, what.clone()),
            Self::Full(what) => Error::new(Full, what.clone()),
            Self::Contended(what) => later(Unavailable, what.clone()),
            Self::Closed => Error::new(ErrorKind::Closed, "this engine was closed"),
            Self::Strange(what) => {
                Error::new(Corrupt, format!("{server} answered something that is not understood ({what})"))
                    .effect_unknown()
            }
            Self::Refused { code, said } => {
                let meaning = self.meaning(dialect).unwrap_or(Meaning::Other);
                meaning.tell(dialect, server, &format!("{code}: {said}"))
            }
        };
        error.at_engine(dialect.name())
    }
}

impl Meaning {
    /// Converts a refusal to the library's error.
    fn tell(self, dialect: Dialect, server: &str, said: &str) -> Error {
        use ErrorKind::{Corrupt, Denied, Full, InvalidUrl, Unavailable, Unsupported};
        let later = |kind, message: String| Error::new(kind, message).retryable();
        match self {
            Self::Collision => later(Unavailable, format!("{server} ended a statement for another's sake ({said})")),
            Self::Occupied => later(
                Unavailable,
                format!("somebody keeps our row locked at {server}: is a transaction open on our table? ({said})"),
            ),
            Self::ReadOnly => later(
                Unavailable,
                format!("{server} takes no writes: name its primary, or all servers with commas ({said})"),
            ),
            Self::Denied => Error::new(Denied, format!("{server} does not let us ({said})")),
            Self::NoDatabase => {
                // MySQL gives the same answer to a user that may not use the database.
                let or = if dialect == Dialect::MySql { ", or this user may not use it" } else { "" };
                Error::new(InvalidUrl, format!("{server} has no such database{or} ({said})"))
            }
            Self::NoTable => Error::new(
                Corrupt,
                format!(
                    "our table is gone; `leasehold engines --ddl {}` shows how it is made ({said})",
                    dialect.name()
                ),
            )
            .retryable(),
            Self::OtherTable => {
                Error::new(Corrupt, format!("a table of our name is not ours; choose another with table= ({said})"))
            }
            Self::Crowded => later(
                Unavailable,
                format!(
                    "{server} has no connection to spare: lower connections=, or raise the server's limit ({said})"
                ),
            ),
            Self::NotNow => {
                later(Unavailable, format!("{server} does not answer at present ({said})")).effect_unknown()
            }
            Self::Killed => later(Unavailable, format!("{server} ended our statement ({said})")).effect_unknown(),
            Self::Full => later(Full, format!("{server} has no room left ({said})")),
            Self::Pooled => Error::new(
                Unsupported,
                format!("a pooler stands before {server} and changes sessions under us: pooler=transaction ({said})"),
            ),
            Self::NoBell => Error::new(Unsupported, format!("{server} has no named locks here: wake=poll ({said})")),
            Self::Other => Error::new(Unavailable, format!("{server} refuses a statement ({said})")),
        }
    }
}

/// What to do if a connection cannot be opened.
fn hint(dialect: Dialect, why: &str) -> String {
    let hint = if why.contains("UnknownIssuer") || why.contains("invalid peer certificate") {
        "; name the authority that it is to be trusted by: ca=/path/to/ca.pem"
    } else if why.contains("CertificateRequired") {
        "; it wants to see a certificate: cert=/path/to/cert.pem&cert-key=/path/to/key.pem"
    } else if why.starts_with("no answer within") {
        return format!("; {}", stranger::hint(dialect.product()));
    } else {
        ""
    };
    hint.to_owned()
}

/// The root cause, without what the client library adds to it.
pub(super) fn plain(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// Whether the client library could not parse the answer, because the server uses another protocol.
pub(super) fn is_stranger(why: &str) -> bool {
    const SIGNS: [&str; 10] = [
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
    let why = why.to_ascii_lowercase();
    SIGNS.iter().any(|sign| why.contains(sign))
}

fn my_meaning(code: &str, said: &str) -> Meaning {
    match code {
        "1213" | "1020" | "1613" => Meaning::Collision,
        "1205" => Meaning::Occupied,
        "1290" if said.contains("read-only") || said.contains("read_only") => Meaning::ReadOnly,
        "1836" | "1792" | "3100" => Meaning::ReadOnly,
        "1045" | "1142" | "1143" | "1227" | "1370" | "1698" | "3118" | "4151" => Meaning::Denied,
        "1044" | "1049" => Meaning::NoDatabase,
        "1146" => Meaning::NoTable,
        "1054" | "1136" | "1267" | "1364" | "1366" | "1406" => Meaning::OtherTable,
        "1040" | "1203" | "1226" => Meaning::Crowded,
        "1047" | "1053" | "1077" | "1079" | "3169" => Meaning::NotNow,
        "1317" | "1927" | "1969" | "1152" | "1184" | "4031" | "3024" => Meaning::Killed,
        "1021" | "1041" | "1037" | "1114" => Meaning::Full,
        "1235" if said.contains("GET_LOCK") || said.contains("wsrep") => Meaning::NoBell,
        _ => Meaning::Other,
    }
}

fn pg_meaning(code: &str) -> Meaning {
    match code {
        "40P01" | "40001" => Meaning::Collision,
        "55P03" => Meaning::Occupied,
        "25006" => Meaning::ReadOnly,
        "28P01" | "28000" | "42501" => Meaning::Denied,
        "3D000" => Meaning::NoDatabase,
        "42P01" | "3F000" => Meaning::NoTable,
        "42703" | "42804" | "42883" | "22P02" | "22001" | "42P10" => Meaning::OtherTable,
        "53300" => Meaning::Crowded,
        "57P02" | "57P03" => Meaning::NotNow,
        "57P01" | "57P05" | "57014" | "25P03" | "25P04" => Meaning::Killed,
        "53000" | "53100" | "53200" => Meaning::Full,
        "26000" | "42P05" | "08P01" | "42P08" => Meaning::Pooled,
        _ => Meaning::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Effect;

    #[test]
    fn what_may_help_again_says_so_and_what_may_be_done_is_unknown() {
        let table = [
            (Dialect::MySql, Failure::refused(1213, "deadlock"), ErrorKind::Unavailable, true, Effect::None),
            (Dialect::Postgres, Failure::refused("40P01", "deadlock"), ErrorKind::Unavailable, true, Effect::None),
            (Dialect::MySql, Failure::refused(1205, "lock wait"), ErrorKind::Unavailable, true, Effect::None),
            (Dialect::Postgres, Failure::refused("25006", "read only"), ErrorKind::Unavailable, true, Effect::None),
            (Dialect::MySql, Failure::refused(1045, "denied"), ErrorKind::Denied, false, Effect::None),
            (Dialect::Postgres, Failure::refused("57P01", "terminated"), ErrorKind::Unavailable, true, Effect::Unknown),
            (Dialect::Postgres, Failure::Broken("eof".into()), ErrorKind::Unavailable, true, Effect::Unknown),
            (Dialect::Postgres, Failure::Unreachable("no".into()), ErrorKind::Unavailable, true, Effect::None),
            (Dialect::MySql, Failure::refused(1049, "no db"), ErrorKind::InvalidUrl, false, Effect::None),
            (Dialect::MySql, Failure::refused(1044, "no db"), ErrorKind::InvalidUrl, false, Effect::None),
            (Dialect::Postgres, Failure::refused("3D000", "no db"), ErrorKind::InvalidUrl, false, Effect::None),
            (Dialect::MySql, Failure::Stranger("?".into()), ErrorKind::Unavailable, false, Effect::None),
        ];
        for (dialect, failure, kind, retry, effect) in table {
            let error = failure.tell(dialect, "h:1");
            assert_eq!((error.kind(), error.is_retryable(), error.effect()), (kind, retry, effect), "{failure:?}");
        }
    }
}
