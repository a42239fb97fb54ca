use super::super::sample::{assert_level, mariadb, opaque_server, postgres, requirements};
use super::*;
use crate::Level::{Fail, Ok as Good, Unknown, Warn};

fn mysql_requirements() -> Requirements {
    requirements(Dialect::MySql)
}

fn postgres_requirements() -> Requirements {
    requirements(Dialect::Postgres)
}

fn opaque_facts() -> ServerFacts {
    opaque_server(&UnknownReason::not_reported("it"))
}

#[test]
fn isolation_matters_only_where_we_cannot_set_it() {
    assert_level(&judge_isolation("h", &mariadb(), &mysql_requirements()), Good, "REPEATABLE-READ");
    let strict = postgres().with_setting("default_transaction_isolation", "serializable");
    assert_level(&judge_isolation("h", &strict, &postgres_requirements()), Good, "set their own");
    assert_level(
        &judge_isolation("h", &strict, &Requirements { has_transaction_pooler: true, ..postgres_requirements() }),
        Warn,
        "40001",
    );
    assert_level(
        &judge_isolation("h", &postgres(), &Requirements { has_transaction_pooler: true, ..postgres_requirements() }),
        Good,
        "as leasehold's statements",
    );
    assert_level(&judge_isolation("h", &opaque_facts(), &mysql_requirements()), Unknown, "set their own");
}

#[test]
fn statement_based_binlog_fails() {
    assert_level(&judge_binlog_format("h", &mariadb()), Good, "log_bin is off");
    let logged = mariadb().with_setting("log_bin", "ON");
    assert_level(&judge_binlog_format("h", &logged), Good, "MIXED");
    assert_level(&judge_binlog_format("h", &logged.clone().with_setting("binlog_format", "STATEMENT")), Fail, "1665");
    assert_level(&judge_binlog_format("h", &logged.without_setting("binlog_format")), Good, "no binlog_format");
    assert_level(&judge_binlog_format("h", &opaque_facts()), Unknown, "1665");
}

#[test]
fn a_short_statement_timeout_is_a_warning() {
    assert_level(&judge_statement_timeout("h", &postgres(), &postgres_requirements()), Good, "not set");
    let short = postgres().with_setting("statement_timeout", "200");
    assert_level(&judge_statement_timeout("h", &short, &postgres_requirements()), Warn, "200 ms");
    let long_enough = postgres().with_setting("statement_timeout", "5000");
    assert_level(&judge_statement_timeout("h", &long_enough, &postgres_requirements()), Good, "5 s");
    assert_level(
        &judge_statement_timeout(
            "h",
            &long_enough,
            &Requirements { technique: Technique::Session, ..postgres_requirements() },
        ),
        Good,
        "none",
    );
    let ended =
        judge_statement_timeout("h", &mariadb().with_setting("max_statement_time", "0.5"), &mysql_requirements());
    assert_level(&ended, Good, "500 ms");
    assert_level(&ended, Good, "leasehold's sessions set their own, none");
    let mysql = mariadb().without_setting("max_statement_time").with_setting("max_execution_time", "0");
    assert_level(&judge_statement_timeout("h", &mysql, &mysql_requirements()), Good, "max_execution_time");
    assert_level(&judge_statement_timeout("h", &opaque_facts(), &mysql_requirements()), Unknown, "renewals");
}

#[test]
fn the_row_lock_timeout_is_reported() {
    assert_level(&judge_lock_timeout("h", &mariadb(), &mysql_requirements()), Good, "50 s");
    assert_level(&judge_lock_timeout("h", &postgres(), &postgres_requirements()), Good, "1 s");
    assert_level(
        &judge_lock_timeout(
            "h",
            &postgres(),
            &Requirements { has_transaction_pooler: true, ..postgres_requirements() },
        ),
        Good,
        "times out",
    );
    assert_level(&judge_lock_timeout("h", &opaque_facts(), &postgres_requirements()), Unknown, "pooler");
}

#[test]
fn an_idle_session_timeout_is_a_warning_for_a_listener() {
    assert_level(&judge_idle_timeout("h", &mariadb(), &mysql_requirements()), Good, "480 min");
    assert_level(&judge_idle_timeout("h", &postgres(), &postgres_requirements()), Good, "not ended");
    assert_level(
        &judge_idle_timeout("h", &postgres().without_setting("idle_session_timeout"), &postgres_requirements()),
        Good,
        "not ended",
    );
    let ended = postgres().with_setting("idle_session_timeout", "10000");
    assert_level(&judge_idle_timeout("h", &ended, &postgres_requirements()), Warn, "wake=poll");
    assert_level(
        &judge_idle_timeout("h", &ended, &Requirements { is_polling: true, ..postgres_requirements() }),
        Good,
        "is replaced",
    );
    assert_level(
        &judge_idle_timeout("h", &ended, &Requirements { technique: Technique::Session, ..postgres_requirements() }),
        Good,
        "the TTL",
    );
    let open = postgres().with_setting("idle_in_transaction_session_timeout", "5000");
    assert_level(&judge_idle_timeout("h", &open, &postgres_requirements()), Good, "not ended");
    assert_level(
        &judge_idle_timeout("h", &open, &Requirements { technique: Technique::ForUpdate, ..postgres_requirements() }),
        Good,
        "5 s",
    );
    assert_level(&judge_idle_timeout("h", &opaque_facts(), &mysql_requirements()), Unknown, "end idle");
}
