use super::super::sample::{aim, assert_level, mariadb, mute, postgres};
use super::*;
use crate::doctor::Level::{Fail, Ok as Good, Unknown, Warn};

fn my() -> Aim {
    aim(Dialect::MySql)
}

fn pg() -> Aim {
    aim(Dialect::Postgres)
}

fn silent() -> Seen {
    mute(&No::missing("it"))
}

#[test]
fn isolation_matters_only_where_we_cannot_set_it() {
    assert_level(&isolation("h", &mariadb(), &my()), Good, "REPEATABLE-READ");
    let strict = postgres().set("default_transaction_isolation", "serializable");
    assert_level(&isolation("h", &strict, &pg()), Good, "set their own");
    assert_level(&isolation("h", &strict, &Aim { pooler: true, ..pg() }), Warn, "40001");
    assert_level(&isolation("h", &postgres(), &Aim { pooler: true, ..pg() }), Good, "as our statements");
    assert_level(&isolation("h", &silent(), &my()), Unknown, "set their own");
}

#[test]
fn statements_as_text_are_refused() {
    assert_level(&binlog_format("h", &mariadb()), Good, "log_bin is off");
    let logged = mariadb().set("log_bin", "ON");
    assert_level(&binlog_format("h", &logged), Good, "MIXED");
    assert_level(&binlog_format("h", &logged.clone().set("binlog_format", "STATEMENT")), Fail, "1665");
    assert_level(&binlog_format("h", &logged.hiding("binlog_format")), Good, "no binlog_format");
    assert_level(&binlog_format("h", &silent()), Unknown, "1665");
}

#[test]
fn statements_that_are_ended() {
    assert_level(&statement_timeout("h", &postgres(), &pg()), Good, "not set");
    let soon = postgres().set("statement_timeout", "200");
    assert_level(&statement_timeout("h", &soon, &pg()), Warn, "200 ms");
    let later = postgres().set("statement_timeout", "5000");
    assert_level(&statement_timeout("h", &later, &pg()), Good, "5 s");
    assert_level(&statement_timeout("h", &later, &Aim { technique: Technique::Session, ..pg() }), Good, "none");
    let ended = statement_timeout("h", &mariadb().set("max_statement_time", "0.5"), &my());
    assert_level(&ended, Good, "500 ms");
    assert_level(&ended, Good, "our sessions set their own, none");
    let mysql = mariadb().hiding("max_statement_time").set("max_execution_time", "0");
    assert_level(&statement_timeout("h", &mysql, &my()), Good, "max_execution_time");
    assert_level(&statement_timeout("h", &silent(), &my()), Unknown, "renewals");
}

#[test]
fn rows_that_somebody_keeps() {
    assert_level(&lock_timeout("h", &mariadb(), &my()), Good, "50 s");
    assert_level(&lock_timeout("h", &postgres(), &pg()), Good, "1 s");
    assert_level(&lock_timeout("h", &postgres(), &Aim { pooler: true, ..pg() }), Good, "ends by itself");
    assert_level(&lock_timeout("h", &silent(), &pg()), Unknown, "pooler");
}

#[test]
fn sessions_that_say_nothing() {
    assert_level(&idle_timeout("h", &mariadb(), &my()), Good, "480 min");
    assert_level(&idle_timeout("h", &postgres(), &pg()), Good, "left alone");
    assert_level(&idle_timeout("h", &postgres().hiding("idle_session_timeout"), &pg()), Good, "left alone");
    let ended = postgres().set("idle_session_timeout", "10000");
    assert_level(&idle_timeout("h", &ended, &pg()), Warn, "wake=poll");
    assert_level(&idle_timeout("h", &ended, &Aim { polls: true, ..pg() }), Good, "made anew");
    assert_level(&idle_timeout("h", &ended, &Aim { technique: Technique::Session, ..pg() }), Good, "the TTL");
    let open = postgres().set("idle_in_transaction_session_timeout", "5000");
    assert_level(&idle_timeout("h", &open, &pg()), Good, "left alone");
    assert_level(&idle_timeout("h", &open, &Aim { technique: Technique::ForUpdate, ..pg() }), Good, "5 s");
    assert_level(&idle_timeout("h", &silent(), &my()), Unknown, "ended");
}
