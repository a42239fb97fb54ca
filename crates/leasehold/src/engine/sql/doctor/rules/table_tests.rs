use super::super::sample::{aim, assert_level, mariadb, mute, postgres};
use super::*;
use crate::doctor::Level::{Fail, Ok as Good, Unknown, Warn};

/// The finding of a check.
fn of(check: &str, seen: &Seen) -> Finding {
    let dialect = if seen.status.is_ok() { Dialect::MySql } else { Dialect::Postgres };
    all("h", seen, &aim(dialect)).into_iter().find(|finding| finding.check == check).unwrap()
}

fn missing(seen: Seen, may_make: Result<(), No>) -> Seen {
    let mut seen = seen;
    seen.tables[0].found = Ok(Found::Missing { may_make });
    Seen { trial: Err(No::Unasked("its table is not there")), ..seen }
}

#[test]
fn a_table_that_is_not_there() {
    assert_level(&of("table", &mariadb()), Good, "our columns");
    assert_level(&of("table", &missing(mariadb(), Ok(()))), Good, "at first use");
    let denied = missing(postgres(), Err(No::Denied("no right to CREATE".into())));
    assert_level(&of("table", &denied), Fail, "leasehold engines --ddl postgres");
    assert_level(&of("table", &missing(mariadb(), Err(No::Lost("silence".into())))), Unknown, "no lock");
    assert_level(&of("table", &mute(&No::missing("it"))), Unknown, "no lock");
}

#[test]
fn a_table_that_is_not_ours() {
    let without = mariadb().shaped(|shape| shape.columns.retain(|column| column.name != "busy"));
    assert_level(&of("table", &without), Fail, "without the columns busy");
    let of_type = |name: &'static str, of: &'static str| {
        mariadb().shaped(move |shape| {
            let column = shape.columns.iter_mut().find(|column| column.name == name).unwrap();
            column.of = of.into();
        })
    };
    assert_level(&of("table", &of_type("token", "int")), Fail, "token of type int");
    assert_level(&of("table", &of_type("state", "varchar")), Fail, "state of type varchar");
    assert_level(&of("table", &of_type("state", "text")), Warn, "64 KiB");
    let latin = mariadb().shaped(|shape| shape.columns[4].collation = "latin1_swedish_ci".into());
    assert_level(&of("table", &latin), Fail, "utf8mb4");
}

#[test]
fn names_that_would_meet() {
    assert_level(&of("collation", &mariadb()), Good, "byte by byte");
    let folded = mariadb().shaped(|shape| {
        shape.columns[0].of = "varchar".into();
        shape.columns[0].collation = "utf8mb4_general_ci".into();
        shape.columns[0].is_loose = true;
    });
    assert_level(&of("collation", &folded), Fail, "VARBINARY(512)");
    let loose = postgres().shaped(|shape| shape.columns[0].is_loose = true);
    assert_level(&of("collation", &loose), Fail, "COLLATE \"C\"");
    assert_level(&of("collation", &postgres().shaped(|shape| shape.unique_name = false)), Fail, "PRIMARY KEY");
}

#[test]
fn where_the_rows_lie() {
    assert_level(&of("table-engine", &mariadb()), Good, "InnoDB");
    assert_level(&of("table-engine", &postgres()), Good, "ordinary");
    let engine = |seen: Seen, engine: &'static str| seen.shaped(move |shape| shape.engine = engine.into());
    assert_level(&of("table-engine", &engine(mariadb(), "MyISAM")), Fail, "ENGINE=InnoDB");
    assert_level(&of("table-engine", &engine(postgres(), "UNLOGGED")), Warn, "SET LOGGED");
    assert_level(&of("table-engine", &engine(postgres(), "no table")), Fail, "table=");
}

#[test]
fn a_lock_that_was_tried() {
    assert_level(&of("lock-row", &mariadb()), Good, "rolled back");
    let tried = |no: No| Seen { trial: Err(no), ..mariadb() };
    assert_level(&of("lock-row", &tried(No::Denied("1142: UPDATE denied".into()))), Fail, "GRANT SELECT");
    assert_level(&of("lock-row", &tried(No::Missing("1665: binlog".into()))), Fail, "1665");
    assert_level(&of("lock-row", &tried(No::Lost("silence".into()))), Unknown, "no lock");
    assert!(!all("h", &tried(No::Unasked("x")), &aim(Dialect::MySql)).iter().any(|one| one.check == "lock-row"));
}
