//! The content of the lease table.

use super::super::super::config::Technique;
use super::super::facts::{Aim, No, Rows, Seen};
use super::{many, ok, unknown, warn};
use crate::doctor::Finding;

pub(super) fn all(at: &str, seen: &Seen, aim: &Aim) -> Vec<Finding> {
    let check = "rows";
    if aim.technique != Technique::Row {
        return Vec::new();
    }
    let rows = match &seen.rows {
        Ok(rows) => rows,
        Err(No::Unasked(_)) => return Vec::new(),
        Err(no) => {
            let finding = unknown(check, at, no);
            return vec![finding.means("a row that cannot be understood blocks its lock")];
        }
    };
    let mut findings = Vec::new();
    if let Some((_, why)) = rows.damaged.first() {
        let names: Vec<String> = rows.damaged.iter().take(3).map(|(name, _)| format!("{name:?}")).collect();
        let more = if rows.damaged.len() > names.len() { ", …" } else { "" };
        let count = many(rows.damaged.len() as i64, "row");
        findings.push(
            warn("damaged-rows", at, format!("{count} ({}{more}) cannot be understood: {why}", names.join(", ")))
                .means("somebody else wrote there; these locks can neither be taken nor given back")
                .fix("delete these rows if nobody holds their locks: DELETE … WHERE name = …"),
        );
    }
    if rows.endless > 0 {
        findings.push(
            warn("endless-rows", at, format!("{} held for longer than any lease lasts", many(rows.endless, "lock")))
                .means("the server's clock was set back since, and whoever asks for such a lock next mends it; or the rows were written by hand")
                .fix("`leasehold ls` names them, `leasehold evict` frees them; keep the clock in step: chrony or ntpd"),
        );
    }
    if rows.ended > 0 {
        findings.push(
            ok(
                "ended-holders",
                at,
                format!("{} held or waited for by somebody whose time is over", many(rows.ended, "lock")),
            )
            .means("they crashed, were stopped or cut off; the locks are free for the next"),
        );
    }
    let idle = rows.count - rows.busy - rows.ended;
    let found = format!("{}: {} in use, {idle} idle; {} looked into", many(rows.count, "row"), rows.busy, rows.read);
    findings.push(if rows.count >= Rows::MOST {
        warn(check, at, format!("{} or more", many(rows.count, "row")))
            .means("a row stays when its lock is given back, so that tokens rise: names that are used once only fill the table")
            .fix("names that come again; and where tokens of old names do not matter: DELETE … WHERE busy = 0, now and then")
    } else {
        ok(check, at, found).means("a row stays when its lock is given back, so that tokens rise")
    });
    findings
}

#[cfg(test)]
mod tests {
    use super::super::super::super::Dialect;
    use super::super::sample::{aim, assert_level, mariadb, mute};
    use super::*;
    use crate::doctor::Level::{Ok as Good, Unknown, Warn};

    #[test]
    fn rows_of_each_kind_are_named() {
        let find = |rows: Rows| all("h", &Seen { rows: Ok(rows), ..mariadb() }, &aim(Dialect::MySql));
        let good = Rows { count: 9, busy: 1, read: 9, ..Rows::default() };
        assert_level(&find(good.clone())[0], Good, "9 rows: 1 in use, 8 idle; 9 looked into");
        let damaged = vec![("a".to_owned(), "no JSON")];
        assert_level(&find(Rows { damaged, ..good.clone() })[0], Warn, "1 row (\"a\") cannot be understood: no JSON");
        assert_level(&find(Rows { endless: 2, ..good.clone() })[0], Warn, "2 locks held");
        assert_level(&find(Rows { ended: 2, ..good.clone() })[0], Good, "cut off");
        assert_level(&find(Rows { count: Rows::MOST, ..good })[0], Warn, "fill the table");
        assert_level(&all("h", &mute(&No::missing("it")), &aim(Dialect::MySql))[0], Unknown, "blocks its lock");
        let other = Aim { technique: Technique::Session, ..aim(Dialect::MySql) };
        assert!(all("h", &mariadb(), &other).is_empty());
    }
}
