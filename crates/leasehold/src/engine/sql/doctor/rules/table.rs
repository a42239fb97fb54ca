//! Our tables: whether they exist, are ours, and permit what we need.

use super::super::super::Dialect;
use super::super::super::config::Technique;
use super::super::facts::{Aim, Found, No, Seen, Shape, Table};
use super::{fail, ok, unknown, warn};
use crate::doctor::Finding;

/// Whether writes to a table of this kind can be rolled back.
pub(in super::super) fn rolls_back(shape: &Shape) -> bool {
    ["InnoDB", "ordinary", "UNLOGGED", "partitioned"].contains(&shape.engine.as_str())
}

/// All findings about the tables that the technique needs, and about the trial lock.
pub(super) fn all(at: &str, seen: &Seen, aim: &Aim) -> Vec<Finding> {
    let mut findings = Vec::new();
    for table in &seen.tables {
        findings.push(there(at, table, aim));
        if let Ok(Found::There(shape)) = &table.found {
            findings.extend([names(at, table, shape, aim), engine(at, table, shape)]);
        }
    }
    findings.extend(trial(at, seen, aim));
    findings
}

/// Whether the table exists, with the columns that it needs.
fn there(at: &str, table: &Table, aim: &Aim) -> Finding {
    let (check, name, ddl) = ("table", &table.name, &aim.ddl);
    let shape = match &table.found {
        Ok(Found::There(shape)) => shape,
        Ok(Found::Missing { may_make: Ok(()) }) => {
            return ok(check, at, format!("{name} is not there yet")).means("it is made at first use; this user may");
        }
        Ok(Found::Missing { may_make: Err(no @ (No::Denied(_) | No::Missing(_))) }) => {
            return fail(check, at, format!("{name} is not there, and cannot be made: {no}"))
                .means("no lock can be taken")
                .fix(format!("have an administrator run what `{ddl}` prints, with the rights that it names"));
        }
        Ok(Found::Missing { may_make: Err(no) }) | Err(no) => {
            return unknown(check, at, no).means("without the table, no lock can be taken");
        }
    };
    let missing: Vec<&str> =
        table.wanted.iter().chain(&["name"]).filter(|name| shape.column(name).is_none()).copied().collect();
    if !missing.is_empty() {
        return fail(check, at, format!("{name} is there, without the columns {}", missing.join(", ")))
            .means("it is another program's, or of another version: no lock can be taken")
            .fix(format!("another table= in the URL of all who share the locks; `{ddl}` shows how ours is made"));
    }
    let small = |name: &&&str| match shape.column(name) {
        Some(column) if **name == "state" => !["mediumtext", "longtext", "text"].contains(&column.of.as_str()),
        Some(column) => column.of != "bigint",
        None => false,
    };
    if let Some(column) = table.wanted.iter().find(small).and_then(|name| shape.column(name)) {
        return fail(check, at, format!("{name} has a column {} of type {}", column.name, column.of))
            .means("what does not fit there is refused, and such a lock can neither be taken nor given back")
            .fix(format!("change its type: `{ddl}` shows how ours is made"));
    }
    let state = shape.column("state").filter(|column| aim.dialect == Dialect::MySql && column.of == "text");
    if state.is_some() {
        return warn(check, at, format!("the column state of {name} has room for 64 KiB"))
            .means("a lock's row holds all who wait for it: with some hundred, none can be written any more")
            .fix(format!("make it MEDIUMTEXT: `{ddl}` shows how ours is made"));
    }
    let charset = shape.column("state").filter(|column| {
        aim.dialect == Dialect::MySql && !column.collation.is_empty() && !column.collation.starts_with("utf8mb4")
    });
    if let Some(column) = charset {
        return fail(check, at, format!("the column state of {name} has the collation {}", column.collation))
            .means("our statements are refused, because they do not mix with it (error 1267): no lock can be taken")
            .fix(format!("make it utf8mb4: `{ddl}` shows how ours is made"));
    }
    ok(check, at, format!("{name} is there, with our columns")).means("it is ours")
}

/// Whether names are compared byte by byte, and are unique.
fn names(at: &str, table: &Table, shape: &Shape, aim: &Aim) -> Finding {
    let (check, name, ddl) = ("collation", &table.name, &aim.ddl);
    let Some(column) = shape.column("name") else {
        return fail(check, at, format!("{name} has no column name"))
            .means("it is not ours")
            .fix(format!("`{ddl}` shows how ours is made"));
    };
    let mut shown = column.of.clone();
    if !column.collation.is_empty() {
        shown = format!("{shown}, collation {}", column.collation);
    }
    let alter = match aim.dialect {
        Dialect::MySql => format!("ALTER TABLE {name} MODIFY name VARBINARY(512) NOT NULL"),
        Dialect::Postgres => format!("ALTER TABLE {name} ALTER name TYPE text COLLATE \"C\""),
    };
    if column.is_loose {
        return fail(check, at, format!("the column name of {name} is {shown}"))
            .means("it takes names of different letters, or with a space behind them, for the same: they are one lock")
            .fix(alter);
    }
    if !shape.unique_name {
        return fail(check, at, format!("the column name of {name} is no key by itself"))
            .means("one lock may have two rows there, and two may hold it")
            .fix(format!("ALTER TABLE {name} ADD PRIMARY KEY (name)"));
    }
    ok(check, at, format!("the column name of {name} is {shown}, and a key")).means("names are compared byte by byte")
}

/// Whether the table's engine supports durable transactions.
fn engine(at: &str, table: &Table, shape: &Shape) -> Finding {
    let (check, name, engine) = ("table-engine", &table.name, &shape.engine);
    match engine.as_str() {
        "InnoDB" => ok(check, at, format!("{name} is in InnoDB")).means("what was committed survives a crash"),
        "ordinary" | "partitioned" => {
            ok(check, at, format!("{name} is an {} table", if engine == "ordinary" { "ordinary" } else { "partitioned" }))
                .means("what was committed survives a crash")
        }
        "UNLOGGED" => warn(check, at, format!("{name} is UNLOGGED"))
            .means("after a crash it is empty, and on standbys always: locks are granted again while they are held")
            .fix(format!("ALTER TABLE {name} SET LOGGED")),
        "TEMPORARY" | "no table" => fail(check, at, format!("{name} is {engine}"))
            .means("others do not see what is written there, or nothing can be written")
            .fix("another table= in the URL"),
        other => fail(check, at, format!("{name} is in {other}"))
            .means("a write there is on disk at any time or never, and a replica or a cluster may not get it: after a crash, two may hold")
            .fix(format!("ALTER TABLE {name} ENGINE=InnoDB")),
    }
}

/// Whether the trial lock could be acquired.
fn trial(at: &str, seen: &Seen, aim: &Aim) -> Option<Finding> {
    let check = "lock-row";
    let means = "no lock can be taken";
    match &seen.trial {
        Ok(()) => {
            let found = match aim.technique {
                Technique::Row => "a lock was taken, read, written and rolled back",
                Technique::ForUpdate => "a row was made and locked, its counter raised, and all rolled back",
                Technique::Session => "a counter was raised and rolled back",
            };
            Some(ok(check, at, found).means("this user may do what a lock does"))
        }
        Err(No::Unasked(_)) => None,
        Err(no @ No::Denied(_)) => Some(
            fail(check, at, no.to_string())
                .means(means)
                .fix(format!("GRANT SELECT, INSERT, UPDATE on our tables, as `{}` shows", aim.ddl)),
        ),
        Err(no @ No::Missing(_)) => Some(
            fail(check, at, no.to_string())
                .means(means)
                .fix("as the server's words ask for; the other findings may say more"),
        ),
        Err(no @ No::Lost(_)) => Some(unknown(check, at, no).means(means)),
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
