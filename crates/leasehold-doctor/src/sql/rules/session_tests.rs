use super::super::sample::{assert_level, mariadb, opaque_server, postgres, requirements};
use super::*;
use crate::Level::{Fail, Ok as Good, Unknown, Warn};

fn my() -> Requirements {
    requirements(Dialect::MySql)
}

fn pg() -> Requirements {
    requirements(Dialect::Postgres)
}

fn opaque() -> ServerFacts {
    opaque_server(&UnknownReason::not_reported("it"))
}

#[test]
fn isolation_matters_only_where_we_cannot_set_it() {
    assert_level(&judge_isolation("h", &mariadb(), &my()), Good, "REPEATABLE-READ");
    let strict = postgres().with_setting("default_transaction_isolation", "serializable");
    assert_level(&judge_isolation("h", &strict, &pg()), Good, "set their own");
    assert_level(&judge_isolation("h", &strict, &Requirements { has_transaction_pooler: true, ..pg() }), Warn, "40001");
    assert_level(
        &judge_isolation("h", &postgres(), &Requirements { has_transaction_pooler: true, ..pg() }),
        Good,
        "as our statements",
    );
    assert_level(&judge_isolation("h", &opaque(), &my()), Unknown, "set their own");
}

#[test]
fn statement_based_binlog_fails() {
    assert_level(&judge_binlog_format("h", &mariadb()), Good, "log_bin is off");
    let logged = mariadb().with_setting("log_bin", "ON");
    assert_level(&judge_binlog_format("h", &logged), Good, "MIXED");
    assert_level(&judge_binlog_format("h", &logged.clone().with_setting("binlog_format", "STATEMENT")), Fail, "1665");
    assert_level(&judge_binlog_format("h", &logged.without_setting("binlog_format")), Good, "no binlog_format");
    assert_level(&judge_binlog_format("h", &opaque()), Unknown, "1665");
}

#[test]
fn a_short_statement_timeout_is_a_warning() {
    assert_level(&judge_statement_timeout("h", &postgres(), &pg()), Good, "not set");
    let soon = postgres().with_setting("statement_timeout", "200");
    assert_level(&judge_statement_timeout("h", &soon, &pg()), Warn, "200 ms");
    let later = postgres().with_setting("statement_timeout", "5000");
    assert_level(&judge_statement_timeout("h", &later, &pg()), Good, "5 s");
    assert_level(
        &judge_statement_timeout("h", &later, &Requirements { technique: Technique::Session, ..pg() }),
        Good,
        "none",
    );
    let ended = judge_statement_timeout("h", &mariadb().with_setting("max_statement_time", "0.5"), &my());
    assert_level(&ended, Good, "500 ms");
    assert_level(&ended, Good, "our sessions set their own, none");
    let mysql = mariadb().without_setting("max_statement_time").with_setting("max_execution_time", "0");
    assert_level(&judge_statement_timeout("h", &mysql, &my()), Good, "max_execution_time");
    assert_level(&judge_statement_timeout("h", &opaque(), &my()), Unknown, "renewals");
}

#[test]
fn the_row_lock_timeout_is_reported() {
    assert_level(&judge_lock_timeout("h", &mariadb(), &my()), Good, "50 s");
    assert_level(&judge_lock_timeout("h", &postgres(), &pg()), Good, "1 s");
    assert_level(
        &judge_lock_timeout("h", &postgres(), &Requirements { has_transaction_pooler: true, ..pg() }),
        Good,
        "times out",
    );
    assert_level(&judge_lock_timeout("h", &opaque(), &pg()), Unknown, "pooler");
}

#[test]
fn an_idle_session_timeout_is_a_warning_for_a_listener() {
    assert_level(&judge_idle_timeout("h", &mariadb(), &my()), Good, "480 min");
    assert_level(&judge_idle_timeout("h", &postgres(), &pg()), Good, "not ended");
    assert_level(
        &judge_idle_timeout("h", &postgres().without_setting("idle_session_timeout"), &pg()),
        Good,
        "not ended",
    );
    let ended = postgres().with_setting("idle_session_timeout", "10000");
    assert_level(&judge_idle_timeout("h", &ended, &pg()), Warn, "wake=poll");
    assert_level(&judge_idle_timeout("h", &ended, &Requirements { is_polling: true, ..pg() }), Good, "is replaced");
    assert_level(
        &judge_idle_timeout("h", &ended, &Requirements { technique: Technique::Session, ..pg() }),
        Good,
        "the TTL",
    );
    let open = postgres().with_setting("idle_in_transaction_session_timeout", "5000");
    assert_level(&judge_idle_timeout("h", &open, &pg()), Good, "not ended");
    assert_level(
        &judge_idle_timeout("h", &open, &Requirements { technique: Technique::ForUpdate, ..pg() }),
        Good,
        "5 s",
    );
    assert_level(&judge_idle_timeout("h", &opaque(), &my()), Unknown, "end idle");
}
