//! What a database error means for the client that sent the statement.

/// The meaning of an error for the statement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Another transaction conflicted: the statement changed nothing, and a retry may succeed.
    Again,
    /// The table does not exist.
    NoTable,
    /// The server rejected the statement and changed nothing; a retry would fail, too.
    Refused,
    /// It is unknown whether the statement took effect.
    Unknown,
}

/// The meaning of a PostgreSQL SQLSTATE.
pub fn postgres(state: &str) -> Verdict {
    match state {
        // Serialization failure, deadlock, lock timeout.
        "40001" | "40P01" | "55P03" => Verdict::Again,
        "42P01" => Verdict::NoTable,
        // "Statement completion unknown".
        "40003" => Verdict::Unknown,
        // Connection errors; a shutdown by the operator (which may come between a commit and its
        // answer); system errors and internal errors of the server.
        _ if ["08", "57P", "58", "XX"].iter().any(|class| state.starts_with(class)) => Verdict::Unknown,
        _ => Verdict::Refused,
    }
}

/// The meaning of an error number of MySQL or MariaDB.
pub fn mysql(code: u16) -> Verdict {
    match code {
        // Deadlock, lock timeout, "record has changed since last read" (MariaDB's snapshot
        // isolation).
        1213 | 1205 | 1020 => Verdict::Again,
        1146 => Verdict::NoTable,
        // Shutdown, an unnamed error (proxies return it), an error during commit, a killed
        // connection. Clients use all of 2xxx for a lost connection, and proxies forward these
        // numbers.
        1053 | 1105 | 1180 | 1927 | 2000..3000 => Verdict::Unknown,
        _ => Verdict::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_means_what_it_should() {
        for (state, verdict) in [
            ("40001", Verdict::Again),
            ("40P01", Verdict::Again),
            ("42P01", Verdict::NoTable),
            ("40003", Verdict::Unknown),
            ("57P01", Verdict::Unknown),
            ("57014", Verdict::Refused),
            ("08006", Verdict::Unknown),
            ("23505", Verdict::Refused),
        ] {
            assert_eq!(postgres(state), verdict, "{state}");
        }
        for (code, verdict) in [
            (1213, Verdict::Again),
            (1205, Verdict::Again),
            (1146, Verdict::NoTable),
            (1180, Verdict::Unknown),
            (2013, Verdict::Unknown),
            (1062, Verdict::Refused),
            (1999, Verdict::Refused),
            (3000, Verdict::Refused),
        ] {
            assert_eq!(mysql(code), verdict, "{code}");
        }
    }
}
