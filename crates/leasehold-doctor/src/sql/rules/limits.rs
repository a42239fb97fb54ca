//! Judges the server's limits: connections, packet size, old row versions.

use super::super::facts::{Fact, Requirements, ServerFacts};
use super::{fail, ok, unknown, warn};
use crate::Finding;
use leasehold_internals::sql::Dialect;

/// The size in bytes of a row with the maximum number of holders and waiters, and their
/// descriptions.
const FULL_ROW: i64 = 4 << 20;
/// The size in bytes of a row with some hundred holders and waiters.
const SMALL_ROW: i64 = 256 << 10;

/// How many connections this user may have, and how many of those are free.
fn connection_headroom(server: &ServerFacts, requirements: &Requirements) -> Fact<(i64, i64)> {
    let (most, in_use) = (server.number("max_connections")?, server.in_use.clone()?);
    let reserved = match requirements.dialect {
        Dialect::Postgres => {
            server.number("superuser_reserved_connections")? + server.number("reserved_connections").unwrap_or(0)
        }
        Dialect::MySql => 0,
    };
    let keys: &[&str] = match requirements.dialect {
        Dialect::Postgres => &["role_connections", "database_connections"],
        Dialect::MySql => &["max_user_connections"],
    };
    // Zero or -1 means no limit.
    let own_limit = keys.iter().filter_map(|key| server.number(key).ok().filter(|limit| *limit > 0)).min();
    let most = (most - reserved).max(0);
    let free = (most - in_use).max(0);
    Ok(own_limit.map_or((most, free), |limit| (most.min(limit), free.min(limit))))
}

/// Judges whether enough connections are free for one more program.
pub(super) fn judge_connections(address: &str, server: &ServerFacts, requirements: &Requirements) -> Finding {
    let (check, wanted) = ("connections", requirements.connections);
    match connection_headroom(server, requirements) {
        Ok((most, free)) => {
            let found =
                format!("{free} of {most} are free; each leasehold program uses {wanted} at most (connections=)");
            if i64::try_from(wanted).is_ok_and(|wanted| free >= wanted) {
                return ok(check, address, found).impact("there are enough connections for one more program");
            }
            warn(check, address, found)
                .impact("a program without a connection can neither acquire nor renew a lock; all its locks share its connections")
                .fix("lower connections= in the URL (2 at least), raise max_connections, or put a pooler before the server")
        }
        Err(reason) => unknown(check, address, &reason)
            .impact("a program without a connection can neither acquire nor renew a lock"),
    }
}

/// MySQL: judges whether the row of a lock with a long queue fits into one packet.
pub(super) fn judge_packet(address: &str, server: &ServerFacts) -> Finding {
    let check = "packet";
    match server.number("max_allowed_packet") {
        Ok(most) if most < SMALL_ROW => fail(check, address, format!("max_allowed_packet is {most}"))
            .impact("a lock's row stores all its waiters: with some hundred, it can no longer be written")
            .fix("max_allowed_packet=16M"),
        Ok(most) if most < FULL_ROW => warn(check, address, format!("max_allowed_packet is {most}"))
            .impact("a lock's row stores all its waiters: with some thousand, it can no longer be written")
            .fix("max_allowed_packet=16M"),
        Ok(most) => ok(check, address, format!("max_allowed_packet is {most}")).impact("the longest queue fits"),
        Err(reason) => {
            unknown(check, address, &reason).impact("the row of a lock with thousands of waiters has some MiB")
        }
    }
}

/// PostgreSQL: judges whether old row versions are removed.
pub(super) fn judge_autovacuum(address: &str, server: &ServerFacts) -> Finding {
    let check = "autovacuum";
    match server.is_on("autovacuum") {
        Ok(true) => ok(check, address, "autovacuum is on").impact("old versions of the locks' rows are removed"),
        Ok(false) => warn(check, address, "autovacuum is off")
            .impact("each acquire and each renewal leaves an old version of a row: the table grows, and each step becomes slower")
            .fix("autovacuum=on, or VACUUM of leasehold's table every few minutes"),
        Err(reason) => unknown(check, address, &reason).impact("without it, leasehold's table grows with each renewal"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::UnknownReason;
    use super::super::sample::{assert_level, mariadb, opaque_server, postgres, requirements};
    use super::*;
    use crate::Level::{Fail, Ok as Good, Unknown, Warn};

    #[test]
    fn too_few_free_connections_are_a_warning() {
        let (my, pg) = (requirements(Dialect::MySql), requirements(Dialect::Postgres));
        assert_level(&judge_connections("h", &mariadb(), &my), Good, "149 of 151");
        assert_level(&judge_connections("h", &postgres(), &pg), Good, "95 of 97");
        assert_level(&judge_connections("h", &ServerFacts { in_use: Ok(90), ..postgres() }, &pg), Warn, "7 of 97");
        assert_level(&judge_connections("h", &postgres().with_setting("role_connections", "4"), &pg), Warn, "4 of 4");
        assert_level(
            &judge_connections("h", &mariadb().with_setting("max_user_connections", "5"), &my),
            Warn,
            "5 of 5",
        );
        assert_level(
            &judge_connections("h", &postgres(), &Requirements { connections: 200, ..pg.clone() }),
            Warn,
            "connections=",
        );
        assert_level(
            &judge_connections("h", &ServerFacts { in_use: Err(UnknownReason::not_reported("it")), ..postgres() }, &pg),
            Unknown,
            "program",
        );
    }

    #[test]
    fn the_packet_limit_and_autovacuum_are_checked() {
        assert_level(&judge_packet("h", &mariadb()), Good, "16777216");
        assert_level(&judge_packet("h", &mariadb().with_setting("max_allowed_packet", "1048576")), Warn, "16M");
        assert_level(&judge_packet("h", &mariadb().with_setting("max_allowed_packet", "1024")), Fail, "16M");
        assert_level(&judge_packet("h", &opaque_server(&UnknownReason::not_reported("it"))), Unknown, "MiB");
        assert_level(&judge_autovacuum("h", &postgres()), Good, "removed");
        assert_level(&judge_autovacuum("h", &postgres().with_setting("autovacuum", "off")), Warn, "VACUUM");
        assert_level(&judge_autovacuum("h", &opaque_server(&UnknownReason::not_reported("it"))), Unknown, "grows");
    }
}
