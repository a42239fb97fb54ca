//! What an error of a database means for the statement that failed.

/// What an error means for the statement that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SqlErrorClass {
    /// Another transaction conflicted: the statement had no effect, and a retry may succeed.
    Retry,
    /// The table does not exist.
    NoTable,
    /// The server rejected the statement, which had no effect; a retry would fail, too.
    Refused,
    /// It is unknown whether the statement took effect.
    Unknown,
}

/// What a PostgreSQL error with this SQLSTATE means for the statement.
pub fn classify_postgres(state: &str) -> SqlErrorClass {
    match state {
        // Serialization failure, deadlock, lock timeout.
        "40001" | "40P01" | "55P03" => SqlErrorClass::Retry,
        "42P01" => SqlErrorClass::NoTable,
        // "Statement completion unknown".
        "40003" => SqlErrorClass::Unknown,
        // Connection errors; a shutdown by the operator (which may come between a commit and its
        // answer); system errors and internal errors of the server.
        _ if ["08", "57P", "58", "XX"].iter().any(|class| state.starts_with(class)) => SqlErrorClass::Unknown,
        _ => SqlErrorClass::Refused,
    }
}

/// What an error of MySQL or MariaDB with this number means for the statement.
pub fn classify_mysql(code: u16) -> SqlErrorClass {
    match code {
        // Deadlock, lock timeout, "record has changed since last read" (MariaDB's snapshot
        // isolation).
        1213 | 1205 | 1020 => SqlErrorClass::Retry,
        1146 => SqlErrorClass::NoTable,
        // Shutdown, an unspecified error (proxies return it), an error during commit, a killed
        // connection. Client libraries use 2000 to 2999 for a lost connection, and proxies forward
        // these numbers.
        1053 | 1105 | 1180 | 1927 | 2000..3000 => SqlErrorClass::Unknown,
        _ => SqlErrorClass::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_code_is_classified() {
        for (state, verdict) in [
            ("40001", SqlErrorClass::Retry),
            ("40P01", SqlErrorClass::Retry),
            ("42P01", SqlErrorClass::NoTable),
            ("40003", SqlErrorClass::Unknown),
            ("57P01", SqlErrorClass::Unknown),
            ("57014", SqlErrorClass::Refused),
            ("08006", SqlErrorClass::Unknown),
            ("23505", SqlErrorClass::Refused),
        ] {
            assert_eq!(classify_postgres(state), verdict, "{state}");
        }
        for (code, verdict) in [
            (1213, SqlErrorClass::Retry),
            (1205, SqlErrorClass::Retry),
            (1146, SqlErrorClass::NoTable),
            (1180, SqlErrorClass::Unknown),
            (2013, SqlErrorClass::Unknown),
            (1062, SqlErrorClass::Refused),
            (1999, SqlErrorClass::Refused),
            (3000, SqlErrorClass::Refused),
        ] {
            assert_eq!(classify_mysql(code), verdict, "{code}");
        }
    }
}
