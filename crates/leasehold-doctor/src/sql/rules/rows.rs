//! Judges the content of the lease table.

use super::super::facts::{Requirements, RowStats, ServerFacts, UnknownReason};
use super::{fail, format_count, ok, unknown, warn};
use crate::Finding;
use leasehold_internals::FORMAT;
use leasehold_internals::sql::config::Technique;

/// One finding for each kind of unexpected row, and one about their number; none if the technique
/// has no lease table.
pub(super) fn judge_rows(address: &str, server: &ServerFacts, requirements: &Requirements) -> Vec<Finding> {
    let check = "rows";
    if requirements.technique != Technique::Row {
        return Vec::new();
    }
    let rows = match &server.row_stats {
        Ok(rows) => rows,
        Err(UnknownReason::Skipped(_)) => return Vec::new(),
        Err(reason) => {
            let finding = unknown(check, address, reason);
            return vec![finding.impact("a row that cannot be parsed blocks its lock")];
        }
    };
    let mut findings = Vec::new();
    if !rows.other_formats.is_empty() {
        let mut formats: Vec<i64> = rows.other_formats.iter().map(|(_, format)| *format).collect();
        formats.sort_unstable();
        formats.dedup();
        let formats: Vec<String> = formats.iter().map(i64::to_string).collect();
        let found = format!(
            "{} in format {}, and this version of leasehold reads format {FORMAT}",
            describe_rows(&rows.other_formats),
            formats.join(", ")
        );
        findings.push(
            fail("row-formats", address, found)
                .impact("another version of leasehold stored them; this version refuses to use these locks")
                .fix("use that version (docs/upgrading.md)"),
        );
    }
    if let Some((_, why)) = rows.corrupt.first() {
        findings.push(
            warn("damaged-rows", address, format!("{} cannot be parsed: {why}", describe_rows(&rows.corrupt)))
                .impact("another program wrote them; these locks can neither be acquired nor released")
                .fix("delete these rows if their locks are not held: DELETE … WHERE name = …"),
        );
    }
    if rows.never_expiring > 0 {
        findings.push(
            warn("endless-rows", address, format!("{} held for longer than any lease lasts", format_count(rows.never_expiring, "lock")))
                .impact("the server's clock was set back, and the next request of such a lock repairs it; or the rows were written by hand")
                .fix("`leasehold ls` lists them, `leasehold evict` frees them; synchronize the clock: chrony or ntpd"),
        );
    }
    if rows.expired > 0 {
        findings.push(
            ok(
                "ended-holders",
                address,
                format!("{} with an expired holder or waiter", format_count(rows.expired, "lock")),
            )
            .impact("the client crashed, was stopped or was cut off; the next client can acquire the locks"),
        );
    }
    let idle = rows.count - rows.active - rows.expired;
    let found =
        format!("{}: {} in use, {idle} idle; {} parsed", format_count(rows.count, "row"), rows.active, rows.parsed);
    findings.push(if rows.count >= RowStats::MAX_COUNTED {
        warn(check, address, format!("{} or more", format_count(rows.count, "row")))
            .impact("a row stays after its lock is released, so that tokens rise: names that are used once only fill the table")
            .fix("reuse names; and if tokens of old names do not matter: DELETE … WHERE busy = 0 from time to time")
    } else {
        ok(check, address, found).impact("a row stays after its lock is released, so that tokens rise")
    });
    findings
}

/// `3 rows ("a", "b", "c")`: the number of rows, and the names of some of their locks.
fn describe_rows<T>(rows: &[(String, T)]) -> String {
    let names: Vec<String> = rows.iter().take(3).map(|(name, _)| format!("{name:?}")).collect();
    let more = if rows.len() > names.len() { ", …" } else { "" };
    format!("{} ({}{more})", format_count(rows.len() as i64, "row"), names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::sample::{assert_level, mariadb, opaque_server, requirements};
    use super::*;
    use crate::Level::{Fail, Ok as Good, Unknown, Warn};
    use leasehold_internals::sql::Dialect;

    #[test]
    fn each_kind_of_row_is_reported() {
        let find = |rows: RowStats| {
            judge_rows("h", &ServerFacts { row_stats: Ok(rows), ..mariadb() }, &requirements(Dialect::MySql))
        };
        let good = RowStats { count: 9, active: 1, parsed: 9, ..RowStats::default() };
        assert_level(&find(good.clone())[0], Good, "9 rows: 1 in use, 8 idle; 9 parsed");
        let damaged = vec![("a".to_owned(), "no JSON")];
        assert_level(
            &find(RowStats { corrupt: damaged, ..good.clone() })[0],
            Warn,
            "1 row (\"a\") cannot be parsed: no JSON",
        );
        let other_formats = ["b", "c", "d", "e"].map(|name| (name.to_owned(), 2)).to_vec();
        let newer = find(RowStats { other_formats, ..good.clone() }).remove(0);
        assert_level(
            &newer,
            Fail,
            "4 rows (\"b\", \"c\", \"d\", …) in format 2, and this version of leasehold reads format 1",
        );
        assert_level(&newer, Fail, "use that version (docs/upgrading.md)");
        assert!(!format!("{newer:?}").contains("delete"), "{newer:?}");
        assert_level(&find(RowStats { never_expiring: 2, ..good.clone() })[0], Warn, "2 locks held");
        assert_level(&find(RowStats { expired: 2, ..good.clone() })[0], Good, "cut off");
        assert_level(&find(RowStats { count: RowStats::MAX_COUNTED, ..good })[0], Warn, "fill the table");
        assert_level(
            &judge_rows("h", &opaque_server(&UnknownReason::not_reported("it")), &requirements(Dialect::MySql))[0],
            Unknown,
            "blocks its lock",
        );
        let other = Requirements { technique: Technique::Session, ..requirements(Dialect::MySql) };
        assert!(judge_rows("h", &mariadb(), &other).is_empty());
    }
}
