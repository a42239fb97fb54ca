use super::super::sample::{assert_level, mariadb, opaque_server, postgres, requirements};
use super::*;
use crate::Level::{Fail, Ok as Good, Unknown, Warn};

/// The finding of this check about the tables of a server.
fn finding_of(check: &str, server: &ServerFacts) -> Finding {
    let dialect = if server.status.is_ok() { Dialect::MySql } else { Dialect::Postgres };
    judge_tables("h", server, &requirements(dialect)).into_iter().find(|finding| finding.check == check).unwrap()
}

/// The same server without the lease table; `can_create`: whether this user may create it.
fn with_missing_table(server: ServerFacts, can_create: Result<(), UnknownReason>) -> ServerFacts {
    let mut server = server;
    server.tables[0].state = Ok(TableState::Missing { can_create });
    ServerFacts { dry_run: Err(UnknownReason::Skipped("its table does not exist")), ..server }
}

#[test]
fn a_missing_table_is_reported() {
    assert_level(&finding_of("table", &mariadb()), Good, "leasehold's columns");
    assert_level(&finding_of("table", &with_missing_table(mariadb(), Ok(()))), Good, "the first use");
    let denied = with_missing_table(postgres(), Err(UnknownReason::Denied("no permission to CREATE".into())));
    assert_level(&finding_of("table", &denied), Fail, "leasehold engines --ddl postgres");
    assert_level(
        &finding_of("table", &with_missing_table(mariadb(), Err(UnknownReason::Unreachable("silence".into())))),
        Unknown,
        "no lock",
    );
    assert_level(&finding_of("table", &opaque_server(&UnknownReason::not_reported("it"))), Unknown, "no lock");
}

#[test]
fn a_table_with_other_columns_fails() {
    let without = mariadb().with_table(|shape| shape.columns.retain(|column| column.name != "busy"));
    assert_level(&finding_of("table", &without), Fail, "without the columns busy");
    let of_type = |name: &'static str, of: &'static str| {
        mariadb().with_table(move |shape| {
            let column = shape.columns.iter_mut().find(|column| column.name == name).unwrap();
            column.data_type = of.into();
        })
    };
    assert_level(&finding_of("table", &of_type("token", "int")), Fail, "token of type int");
    assert_level(&finding_of("table", &of_type("state", "varchar")), Fail, "state of type varchar");
    assert_level(&finding_of("table", &of_type("state", "text")), Warn, "64 KiB");
    let latin = mariadb().with_table(|shape| shape.columns[5].collation = "latin1_swedish_ci".into());
    assert_level(&finding_of("table", &latin), Fail, "utf8mb4");
}

#[test]
fn a_loose_collation_or_a_missing_key_fails() {
    assert_level(&finding_of("collation", &mariadb()), Good, "byte by byte");
    let folded = mariadb().with_table(|shape| {
        shape.columns[0].data_type = "varchar".into();
        shape.columns[0].collation = "utf8mb4_general_ci".into();
        shape.columns[0].has_loose_collation = true;
    });
    assert_level(&finding_of("collation", &folded), Fail, "VARBINARY(512)");
    let loose = postgres().with_table(|shape| shape.columns[0].has_loose_collation = true);
    assert_level(&finding_of("collation", &loose), Fail, "COLLATE \"C\"");
    assert_level(
        &finding_of("collation", &postgres().with_table(|shape| shape.is_name_unique = false)),
        Fail,
        "PRIMARY KEY",
    );
}

#[test]
fn the_storage_engine_is_checked() {
    assert_level(&finding_of("table-engine", &mariadb()), Good, "InnoDB");
    assert_level(&finding_of("table-engine", &postgres()), Good, "ordinary");
    let engine =
        |server: ServerFacts, engine: &'static str| server.with_table(move |shape| shape.engine = engine.into());
    assert_level(&finding_of("table-engine", &engine(mariadb(), "MyISAM")), Fail, "ENGINE=InnoDB");
    assert_level(&finding_of("table-engine", &engine(postgres(), "UNLOGGED")), Warn, "SET LOGGED");
    assert_level(&finding_of("table-engine", &engine(postgres(), "no table")), Fail, "table=");
}

#[test]
fn a_failed_dry_run_is_reported() {
    assert_level(&finding_of("lock-row", &mariadb()), Good, "rolled back");
    let tried = |reason: UnknownReason| ServerFacts { dry_run: Err(reason), ..mariadb() };
    assert_level(
        &finding_of("lock-row", &tried(UnknownReason::Denied("1142: UPDATE denied".into()))),
        Fail,
        "GRANT SELECT",
    );
    assert_level(&finding_of("lock-row", &tried(UnknownReason::NotReported("1665: binlog".into()))), Fail, "1665");
    assert_level(&finding_of("lock-row", &tried(UnknownReason::Unreachable("silence".into()))), Unknown, "no lock");
    assert!(
        !judge_tables("h", &tried(UnknownReason::Skipped("x")), &requirements(Dialect::MySql))
            .iter()
            .any(|one| one.check == "lock-row")
    );
}
