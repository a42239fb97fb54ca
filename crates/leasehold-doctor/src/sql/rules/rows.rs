//! The content of the lease table.

use super::super::facts::{Requirements, RowStats, ServerFacts, UnknownReason};
use super::{many, ok, unknown, warn};
use crate::Finding;
use leasehold_internals::sql::config::Technique;

pub(super) fn check_rows(at: &str, seen: &ServerFacts, aim: &Requirements) -> Vec<Finding> {
    let check = "rows";
    if aim.technique != Technique::Row {
        return Vec::new();
    }
    let rows = match &seen.row_stats {
        Ok(rows) => rows,
        Err(UnknownReason::Skipped(_)) => return Vec::new(),
        Err(no) => {
            let finding = unknown(check, at, no);
            return vec![finding.impact("a row that cannot be understood blocks its lock")];
        }
    };
    let mut findings = Vec::new();
    if let Some((_, why)) = rows.corrupt.first() {
        let names: Vec<String> = rows.corrupt.iter().take(3).map(|(name, _)| format!("{name:?}")).collect();
        let more = if rows.corrupt.len() > names.len() { ", …" } else { "" };
        let count = many(rows.corrupt.len() as i64, "row");
        findings.push(
            warn("damaged-rows", at, format!("{count} ({}{more}) cannot be understood: {why}", names.join(", ")))
                .impact("somebody else wrote there; these locks can neither be taken nor given back")
                .fix("delete these rows if nobody holds their locks: DELETE … WHERE name = …"),
        );
    }
    if rows.never_expiring > 0 {
        findings.push(
            warn("endless-rows", at, format!("{} held for longer than any lease lasts", many(rows.never_expiring, "lock")))
                .impact("the server's clock was set back since, and whoever asks for such a lock next mends it; or the rows were written by hand")
                .fix("`leasehold ls` names them, `leasehold evict` frees them; keep the clock in step: chrony or ntpd"),
        );
    }
    if rows.expired > 0 {
        findings.push(
            ok(
                "ended-holders",
                at,
                format!("{} held or waited for by somebody whose time is over", many(rows.expired, "lock")),
            )
            .impact("they crashed, were stopped or cut off; the locks are free for the next"),
        );
    }
    let idle = rows.count - rows.active - rows.expired;
    let found =
        format!("{}: {} in use, {idle} idle; {} looked into", many(rows.count, "row"), rows.active, rows.parsed);
    findings.push(if rows.count >= RowStats::MAX_COUNTED {
        warn(check, at, format!("{} or more", many(rows.count, "row")))
            .impact("a row stays when its lock is given back, so that tokens rise: names that are used once only fill the table")
            .fix("names that come again; and where tokens of old names do not matter: DELETE … WHERE busy = 0, now and then")
    } else {
        ok(check, at, found).impact("a row stays when its lock is given back, so that tokens rise")
    });
    findings
}

#[cfg(test)]
mod tests {
    use super::super::sample::{assert_level, mariadb, opaque_server, requirements};
    use super::*;
    use crate::Level::{Ok as Good, Unknown, Warn};
    use leasehold_internals::sql::Dialect;

    #[test]
    fn each_kind_of_row_is_reported() {
        let find = |rows: RowStats| {
            check_rows("h", &ServerFacts { row_stats: Ok(rows), ..mariadb() }, &requirements(Dialect::MySql))
        };
        let good = RowStats { count: 9, active: 1, parsed: 9, ..RowStats::default() };
        assert_level(&find(good.clone())[0], Good, "9 rows: 1 in use, 8 idle; 9 looked into");
        let damaged = vec![("a".to_owned(), "no JSON")];
        assert_level(
            &find(RowStats { corrupt: damaged, ..good.clone() })[0],
            Warn,
            "1 row (\"a\") cannot be understood: no JSON",
        );
        assert_level(&find(RowStats { never_expiring: 2, ..good.clone() })[0], Warn, "2 locks held");
        assert_level(&find(RowStats { expired: 2, ..good.clone() })[0], Good, "cut off");
        assert_level(&find(RowStats { count: RowStats::MAX_COUNTED, ..good })[0], Warn, "fill the table");
        assert_level(
            &check_rows("h", &opaque_server(&UnknownReason::not_reported("it")), &requirements(Dialect::MySql))[0],
            Unknown,
            "blocks its lock",
        );
        let other = Requirements { technique: Technique::Session, ..requirements(Dialect::MySql) };
        assert!(check_rows("h", &mariadb(), &other).is_empty());
    }
}
