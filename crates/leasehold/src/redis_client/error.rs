//! Converts errors of servers and connections to those of the library.

use redis::{Arg, Cmd, ErrorKind as Native, RedisError, ServerErrorKind};

use super::config::Address;
use crate::types::{Error, ErrorKind, FORMAT};

/// The engine's name in errors.
pub const NAME: &str = "redis";

/// The server cannot be reached.
pub fn unreachable(address: &Address, reason: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{address} cannot be reached: {reason}")).retryable().at_engine(NAME)
}

/// The server refuses writes.
pub fn read_only(address: &Address) -> Error {
    let message = format!("{address} is a read-only replica: name its master, or its Sentinels");
    Error::new(ErrorKind::Unavailable, message).retryable().at_engine(NAME)
}

/// A connection could not be made: the server has received no request.
pub fn connect_error(address: &Address, cause: RedisError) -> Error {
    let code = cause.code().unwrap_or_default();
    let text = cause.to_string();
    let denied = matches!(code, "WRONGPASS" | "NOAUTH" | "NOPERM")
        || cause.kind() == Native::AuthenticationFailed
        || text.contains("WRONGPASS");
    if denied {
        let message = format!("{address} refuses the user or the password ({})", one_line(&cause));
        return Error::new(ErrorKind::Denied, message).at_engine(NAME);
    }
    if text.contains("no permissions to") {
        let message = format!("{address} denies access ({})", one_line(&cause));
        return Error::new(ErrorKind::Denied, message).at_engine(NAME);
    }
    if cause.kind() == Native::RESP3NotSupported || text.contains("unknown command 'HELLO'") {
        let message =
            format!("{address} does not speak RESP3; Redis 6.0 or newer is needed, without a proxy that hides it");
        return Error::new(ErrorKind::Unsupported, message).at_engine(NAME);
    }
    if text.contains("DB index is out of range") {
        let message = format!("{address} has no database of that number");
        return Error::new(ErrorKind::InvalidUrl, message).at_engine(NAME);
    }
    // Some other server listens there: a web server, a database. The error stays retryable, since a
    // proxy before a starting Redis answers such things, too.
    if cause.kind() == Native::Parse {
        let message = format!("{address} answered, but is not Redis; is it the right port?");
        return Error::new(ErrorKind::Unavailable, message).retryable().at_engine(NAME);
    }
    if cause.is_connection_dropped() && !cause.is_connection_refusal() {
        let reason = format!("it closed the connection before it answered ({}); is it Redis?", one_line(&cause));
        return unreachable(address, &reason);
    }
    let hint = if text.contains("invalid peer certificate") {
        "; name the authority that signs its certificate: ca=/path/to/ca.pem"
    } else if text.contains("CertificateRequired") {
        "; it requires a client certificate: cert=/path/to/cert.pem&cert-key=/path/to/key.pem"
    } else {
        ""
    };
    unreachable(address, &format!("{}{hint}", one_line(&cause)))
}

/// A step failed. If the connection broke, the server may have done the step before.
pub fn step_error(address: &Address, cause: RedisError) -> Error {
    let cause_text = one_line(&cause);
    match cause.kind() {
        // redis-rs calls codes that it does not know "extensions".
        Native::Server(_) | Native::Extension => refusal_error(address, code(&cause, &cause_text), &cause_text),
        Native::AuthenticationFailed => {
            let message = format!("{address} refuses the user or the password ({cause_text})");
            Error::new(ErrorKind::Denied, message)
        }
        Native::Parse | Native::UnexpectedReturnType => {
            let message = format!("{address} sent an answer in an unknown format ({cause_text})");
            Error::new(ErrorKind::Corrupt, message).effect_unknown()
        }
        _ => {
            let message = format!("the connection to {address} was lost ({cause_text})");
            Error::new(ErrorKind::Unavailable, message).retryable().effect_unknown()
        }
    }
}

/// The code of a server's refusal. Before Redis 7, a code from within a script is somewhere in the
/// text.
fn code<'a>(cause: &'a RedisError, message: &str) -> &'a str {
    const CODES_IN_SCRIPTS: [&str; 6] = ["WRONGTYPE", "OOM", "NOREPLICAS", "MISCONF", "READONLY", "NOPERM"];
    let code = cause.code().unwrap_or_default();
    let inner_code =
        CODES_IN_SCRIPTS.into_iter().find(|inner_code| code == "ERR" && message.contains(&format!("-{inner_code} ")));
    inner_code.unwrap_or(code)
}

/// Redis 7.0 does not name the command that a script may not run, only its line: this finds the
/// command.
pub fn name_forbidden_command(cause: RedisError, script: &Cmd) -> RedisError {
    let message = one_line(&cause);
    let Some((error_text, location)) =
        message.split_once(" script: ").filter(|(error_text, _)| error_text.contains(FORBIDDEN))
    else {
        return cause;
    };
    let line = location.rsplit(':').next().and_then(|line| line.trim_end_matches('.').parse::<usize>().ok());
    let text = match script.args_iter().last() {
        Some(Arg::Simple(text)) => String::from_utf8_lossy(text),
        _ => return cause,
    };
    let line = line.and_then(|line| text.lines().nth(line.checked_sub(1)?)).unwrap_or_default();
    let commands: Vec<_> = line.split("call('").skip(1).filter_map(|rest| rest.split('\'').next()).collect();
    let detail = format!("{}: {}", error_text.trim_start_matches("ERR "), commands.join(" or "));
    redis::make_extension_error("NOPERM".to_owned(), Some(detail))
}

/// The text with which Redis 7.0 refuses a command inside a script.
const FORBIDDEN: &str = "The user executing the script can't";

/// The format number that a script has refused: see `scripts/format_check.lua`.
fn unknown_format(cause_text: &str) -> Option<&str> {
    let (_, found) = cause_text.split_once("user_script:")?.1.split_once("unknown format ")?;
    found.get(..1).filter(|digit| digit.as_bytes()[0].is_ascii_digit())
}

/// The server refuses the step. A refusal before the script's first write had no effect.
fn refusal_error(address: &Address, code: &str, cause_text: &str) -> Error {
    use ErrorKind::{Corrupt, Denied, Full, Unavailable};
    let later = |kind, message: String| Error::new(kind, message).retryable();
    match code {
        "READONLY" => read_only(address),
        "LOADING" => later(Unavailable, format!("{address} is still loading its data")),
        "MASTERDOWN" => later(Unavailable, format!("{address} is a replica that has lost its master")),
        "TRYAGAIN" | "CLUSTERDOWN" => later(Unavailable, format!("the cluster cannot answer now ({cause_text})")),
        "NOREPLICAS" => later(Unavailable, format!("{address} has too few replicas at present ({cause_text})")),
        "BUSY" => later(Unavailable, format!("{address} is busy with another program's script ({cause_text})")),
        "OOM" => later(Full, format!("{address} has no memory left ({cause_text})")),
        "MISCONF" => later(Full, format!("{address} cannot save its data and refuses writes ({cause_text})")),
        "NOPERM" | "NOAUTH" | "WRONGPASS" => {
            let hint = "`leasehold doctor` lists the permissions that are needed";
            let error = Error::new(Denied, format!("{address} denies access ({cause_text}); {hint}"));
            // The scripts have written before they run these.
            let late = ["expire", "ttl"].iter().any(|command| cause_text.to_lowercase().contains(command));
            if late { error.effect_unknown() } else { error }
        }
        "WRONGTYPE" => {
            let message = "another program uses this lock's key; choose another `prefix`";
            Error::new(Corrupt, message)
        }
        // A server that shuts down may have done the step.
        "UNBLOCKED" | "SHUTDOWN" => later(Unavailable, cause_text.to_owned()).effect_unknown(),
        // The scripts refuse what is stored in another format before they write.
        "ERR" if let Some(found) = unknown_format(cause_text) => Error::unknown_format(found, FORMAT),
        // The scripts fail only on data that they did not write.
        "ERR" if cause_text.contains("user_script:") => {
            Error::new(Corrupt, format!("the lock's record is not what leasehold writes ({cause_text})"))
                .effect_unknown()
        }
        _ => Error::new(Unavailable, format!("{address} refuses the step ({cause_text})")).effect_unknown(),
    }
}

/// Whether the server refuses a request for several keys because their slot is moving; a request
/// for each key works.
pub fn is_slot_moving(error: &Error) -> bool {
    error.message_without_location().contains("TRYAGAIN")
}

/// Whether the server redirects this client to another one.
pub fn is_redirect(cause: &RedisError) -> bool {
    matches!(cause.kind(), Native::Server(ServerErrorKind::Moved | ServerErrorKind::Ask))
}

/// An answer that none of the scripts returns. Its text is not shown: it may contain claims and
/// owners.
pub fn unexpected_answer(address: &Address, answer: &redis::Value) -> Error {
    let kind = match answer {
        redis::Value::Array(parts) => format!("an array of {}", parts.len()),
        redis::Value::BulkString(text) => format!("{} bytes", text.len()),
        redis::Value::Int(_) => "a number".to_owned(),
        redis::Value::Nil => "nothing".to_owned(),
        _ => "something else".to_owned(),
    };
    Error::new(ErrorKind::Corrupt, format!("{address} answered with {kind}, which is no answer to leasehold's scripts"))
        .effect_unknown()
}

/// The error in one line, without the names that redis-rs has for it.
pub fn one_line(cause: &RedisError) -> String {
    let text = match (cause.code(), cause.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (_, Some(detail)) => detail.to_owned(),
        _ => cause.to_string(),
    };
    text.split(['\r', '\n']).next().unwrap_or_default().to_owned()
}
