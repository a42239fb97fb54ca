//! What a database's error means for whoever sent the statement.

/// What an error says about the statement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Another transaction was in the way: nothing was done, and the same transaction may pass next time.
    Again,
    /// There is no such table.
    NoTable,
    /// It was refused: nothing was done, and it would be refused again.
    Refused,
    /// Nobody knows whether it was done.
    Unknown,
}

/// The meaning of PostgreSQL's SQLSTATE.
pub fn postgres(state: &str) -> Verdict {
    match state {
        // Serialization failure, deadlock, a lock that was not free in time.
        "40001" | "40P01" | "55P03" => Verdict::Again,
        "42P01" => Verdict::NoTable,
        // "Statement completion unknown".
        "40003" => Verdict::Unknown,
        // The connection; the operator's shutdown (which may come between a commit and its answer); the system's and the
        // server's own faults.
        _ if ["08", "57P", "58", "XX"].iter().any(|class| state.starts_with(class)) => Verdict::Unknown,
        _ => Verdict::Refused,
    }
}

/// The meaning of the error number of MySQL and MariaDB.
pub fn mysql(code: u16) -> Verdict {
    match code {
        // Deadlock, a lock that was not free in time, "record has changed since last read" (MariaDB's snapshot isolation).
        1213 | 1205 | 1020 => Verdict::Again,
        1146 => Verdict::NoTable,
        // Shutdown, an unnamed error (proxies say so), an error during commit, a killed connection; all of 2xxx is a
        // client's words for a lost connection, in the mouth of a proxy.
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
