//! Judges leasehold's tables: whether they exist, have its columns, and permit what locks need.

use super::super::facts::{Requirements, ServerFacts, Table, TableDefinition, TableState, UnknownReason};
use super::{fail, ok, unknown, warn};
use crate::Finding;
use leasehold_internals::sql::Dialect;
use leasehold_internals::sql::config::Technique;

/// Whether writes to a table of this kind can be rolled back.
pub(in super::super) fn is_transactional(shape: &TableDefinition) -> bool {
    ["InnoDB", "ordinary", "UNLOGGED", "partitioned"].contains(&shape.engine.as_str())
}

/// All findings about the tables that the technique needs, and about the lock of the dry run.
pub(super) fn judge_tables(address: &str, server: &ServerFacts, requirements: &Requirements) -> Vec<Finding> {
    let mut findings = Vec::new();
    for table in &server.tables {
        findings.push(judge_columns(address, table, requirements));
        if let Ok(TableState::Exists(shape)) = &table.state {
            findings
                .extend([judge_name_column(address, table, shape, requirements), judge_engine(address, table, shape)]);
        }
    }
    findings.extend(judge_dry_run(address, server, requirements));
    findings
}

/// Judges whether the table exists with the columns that it needs, or can be created.
fn judge_columns(address: &str, table: &Table, requirements: &Requirements) -> Finding {
    let (check, name, ddl) = ("table", &table.name, &requirements.ddl_command);
    let shape = match &table.state {
        Ok(TableState::Exists(shape)) => shape,
        Ok(TableState::Missing { can_create: Ok(()) }) => {
            return ok(check, address, format!("{name} is not there yet"))
                .impact("the first use creates it; this user may");
        }
        Ok(TableState::Missing {
            can_create: Err(reason @ (UnknownReason::Denied(_) | UnknownReason::NotReported(_))),
        }) => {
            return fail(check, address, format!("{name} does not exist, and cannot be created: {reason}"))
                .impact("no lock can be acquired")
                .fix(format!("let an administrator run the output of `{ddl}`, with the required permissions"));
        }
        Ok(TableState::Missing { can_create: Err(reason) }) | Err(reason) => {
            return unknown(check, address, reason).impact("without the table, no lock can be acquired");
        }
    };
    let missing: Vec<&str> =
        table.required_columns.iter().chain(&["name"]).filter(|name| shape.column(name).is_none()).copied().collect();
    if !missing.is_empty() {
        return fail(check, address, format!("{name} exists without the columns {}", missing.join(", ")))
            .impact("it belongs to another program or version: no lock can be acquired")
            .fix(format!(
                "another table= in the URL of all clients; `{ddl}` prints the definition that it should have"
            ));
    }
    let small = |name: &&&str| match shape.column(name) {
        Some(column) if **name == "state" => !["mediumtext", "longtext", "text"].contains(&column.data_type.as_str()),
        Some(column) => column.data_type != "bigint",
        None => false,
    };
    if let Some(column) = table.required_columns.iter().find(small).and_then(|name| shape.column(name)) {
        return fail(check, address, format!("{name} has a column {} of type {}", column.name, column.data_type))
            .impact("values that do not fit are refused: such a lock can neither be acquired nor released")
            .fix(format!("change its type: `{ddl}` prints the definition that it should have"));
    }
    let state =
        shape.column("state").filter(|column| requirements.dialect == Dialect::MySql && column.data_type == "text");
    if state.is_some() {
        return warn(check, address, format!("the column state of {name} is limited to 64 KiB"))
            .impact("a lock's row stores all its waiters: with some hundred, it can no longer be written")
            .fix(format!("make it MEDIUMTEXT: `{ddl}` prints the definition that it should have"));
    }
    let charset = shape.column("state").filter(|column| {
        requirements.dialect == Dialect::MySql
            && !column.collation.is_empty()
            && !column.collation.starts_with("utf8mb4")
    });
    if let Some(column) = charset {
        return fail(check, address, format!("the column state of {name} has the collation {}", column.collation))
            .impact("leasehold's statements are refused, because the collations conflict (error 1267): no lock can be acquired")
            .fix(format!("make it utf8mb4: `{ddl}` prints the definition that it should have"));
    }
    ok(check, address, format!("{name} exists, with leasehold's columns")).impact("locks can be stored in it")
}

/// Judges whether the names of locks are compared byte by byte, and are unique.
fn judge_name_column(address: &str, table: &Table, shape: &TableDefinition, requirements: &Requirements) -> Finding {
    let (check, name, ddl) = ("collation", &table.name, &requirements.ddl_command);
    let Some(column) = shape.column("name") else {
        return fail(check, address, format!("{name} has no column name"))
            .impact("another program created it; no lock can be acquired")
            .fix(format!("`{ddl}` prints the definition that it should have"));
    };
    let mut shown = column.data_type.clone();
    if !column.collation.is_empty() {
        shown = format!("{shown}, collation {}", column.collation);
    }
    let alter = match requirements.dialect {
        Dialect::MySql => format!("ALTER TABLE {name} MODIFY name VARBINARY(512) NOT NULL"),
        Dialect::Postgres => format!("ALTER TABLE {name} ALTER name TYPE text COLLATE \"C\""),
    };
    if column.has_loose_collation {
        return fail(check, address, format!("the column name of {name} is {shown}"))
            .impact("it treats names that differ in letters or trailing spaces as equal: they are one lock")
            .fix(alter);
    }
    if !shape.is_name_unique {
        return fail(check, address, format!("the column name of {name} has no unique key of its own"))
            .impact("one lock may have two rows, and two clients may hold it")
            .fix(format!("ALTER TABLE {name} ADD PRIMARY KEY (name)"));
    }
    ok(check, address, format!("the column name of {name} is {shown}, and a key"))
        .impact("names are compared byte by byte")
}

/// Judges whether the kind of the table supports durable transactions.
fn judge_engine(address: &str, table: &Table, shape: &TableDefinition) -> Finding {
    let (check, name, engine) = ("table-engine", &table.name, &shape.engine);
    match engine.as_str() {
        "InnoDB" => ok(check, address, format!("{name} is in InnoDB")).impact("committed data survives a crash"),
        "ordinary" | "partitioned" => ok(
            check,
            address,
            format!("{name} is an {} table", if engine == "ordinary" { "ordinary" } else { "partitioned" }),
        )
        .impact("committed data survives a crash"),
        "UNLOGGED" => warn(check, address, format!("{name} is UNLOGGED"))
            .impact("it is empty after a crash, and always on standbys: held locks are granted again")
            .fix(format!("ALTER TABLE {name} SET LOGGED")),
        "TEMPORARY" | "no table" => fail(check, address, format!("{name} is {engine}"))
            .impact("other clients do not see its rows, or it cannot be written")
            .fix("another table= in the URL"),
        other => fail(check, address, format!("{name} is in {other}"))
            .impact("its writes are not durable and may not be replicated: after a crash, two clients may hold a lock")
            .fix(format!("ALTER TABLE {name} ENGINE=InnoDB")),
    }
}

/// Judges whether the lock of the dry run could be acquired; `None` if the dry run was skipped.
fn judge_dry_run(address: &str, server: &ServerFacts, requirements: &Requirements) -> Option<Finding> {
    let check = "lock-row";
    let means = "no lock can be acquired";
    match &server.dry_run {
        Ok(()) => {
            let found = match requirements.technique {
                Technique::Row => "a lock was acquired, read, written and rolled back",
                Technique::ForUpdate => "a row was created and locked, its counter incremented, and all rolled back",
                Technique::Session => "a counter was incremented and rolled back",
            };
            Some(ok(check, address, found).impact("this user has the permissions that locks need"))
        }
        Err(UnknownReason::Skipped(_)) => None,
        Err(reason @ UnknownReason::Denied(_)) => Some(fail(check, address, reason.to_string()).impact(means).fix(
            format!("GRANT SELECT, INSERT, UPDATE on leasehold's tables, as `{}` shows", requirements.ddl_command),
        )),
        Err(reason @ UnknownReason::NotReported(_)) => Some(
            fail(check, address, reason.to_string())
                .impact(means)
                .fix("correct the error that the server reports; see the other findings, too"),
        ),
        Err(reason @ UnknownReason::Unreachable(_)) => Some(unknown(check, address, reason).impact(means)),
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
