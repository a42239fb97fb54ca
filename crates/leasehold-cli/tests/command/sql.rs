//! The command on a database: MariaDB and PostgreSQL, each with tables that it creates, or that an
//! administrator created.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::runs::{run_with_longer_waits, run_with_output};
use crate::common::{TEST_TIMEOUT, TestFolder, shared_servers};
use leasehold_testbed::mariadb::{self, MariaDb};
use leasehold_testbed::{eventually, postgres};
use rustix::process::Signal;

/// Waits until the output of `show job --json` contains this text.
async fn wait_until_shown(url: &str, text: &str) {
    eventually(TEST_TIMEOUT, || async {
        let shown = run_with_output(&["show", "--engine", url, "job", "--json"]).await.1;
        if shown.contains(text) { Ok(()) } else { Err(shown) }
    })
    .await;
}

async fn check_waiting_listing_force_release_and_re_entry(url: &str) {
    let (code, output) = run_with_output(&["run", "--engine", url, "job", "--", "sh", "-c", "exit 7"]).await;
    assert_eq!(code, 7, "{output}");
    let place = TestFolder::new();
    let held = place.start(["run", "--engine", url, "job", "--", "cat"]);
    wait_until_shown(url, "\"token\"").await;
    let (code, output) = run_with_output(&["run", "--engine", url, "-n", "job", "--", "true"]).await;
    assert_eq!(code, 1, "{output}");
    let (code, output) =
        run_with_longer_waits(2.0, &["run", "--engine", url, "-w", "{wait}", "job", "--", "true"]).await;
    assert_eq!(code, 1, "{output}");
    wait_until_shown(url, "\"waiters\":[]").await;
    let (code, listed) = run_with_output(&["ls", "--engine", url]).await;
    assert!(code == 0 && listed.contains("job") && listed.contains("cat"), "{listed}");
    let (code, listed) = run_with_output(&["ls", "--engine", url, "other"]).await;
    assert!(code == 0 && !listed.contains("job"), "{listed}");
    tokio::task::spawn_blocking(move || held.close_input_and_wait().assert_ok()).await.unwrap();
    let engine = url.to_owned();
    let evict = move || TestFolder::new().start_and_evict_holder(&engine, "job");
    let (evicted, ended) = tokio::task::spawn_blocking(evict).await.unwrap();
    assert!(evicted.stdout().contains("fence token"), "{}", evicted.stdout());
    assert!(ended.stderr().contains("lost"), "{}", ended.stderr());
    let inner = format!("{} run --engine '{url}' -n job -- echo inside", env!("CARGO_BIN_EXE_leasehold"));
    let (code, output) = run_with_output(&["run", "--engine", url, "job", "-c", &inner]).await;
    assert!(code == 0 && output.contains("inside"), "{output}");
}

async fn check_interrupted_waiter_leaves(url: &str) {
    let place = TestFolder::new();
    let held = place.start(["run", "--engine", url, "job", "--", "cat"]);
    wait_until_shown(url, "\"token\"").await;
    let waiter = place.start(["run", "--engine", url, "job", "--", "true"]);
    eventually(TEST_TIMEOUT, || async {
        let shown = run_with_output(&["show", "--engine", url, "job", "--json"]).await.1;
        if shown.contains("\"waiters\":[]") { Err(shown) } else { Ok(()) }
    })
    .await;
    waiter.signal(Signal::INT);
    let interrupted = tokio::task::spawn_blocking(move || waiter.close_input_and_wait()).await.unwrap();
    assert_eq!(interrupted.exit_code(), 130, "{}", interrupted.stderr());
    wait_until_shown(url, "\"waiters\":[]").await;
    tokio::task::spawn_blocking(move || held.close_input_and_wait().assert_ok()).await.unwrap();
}

async fn check_killed_holder_frees_the_lock(url: &str) {
    let place = TestFolder::new();
    let held = place.start_killed_holder(url, "job");
    let (code, output) = run_with_output(&["run", "--engine", url, "job", "--", "true"]).await;
    assert_eq!((code, output.as_str()), (0, ""));
    tokio::task::spawn_blocking(move || held.close_input_and_wait()).await.unwrap();
}

async fn check_four_take_turns(url: &str) {
    let options = format!("--engine '{url}'");
    tokio::task::spawn_blocking(move || TestFolder::new().check_exclusion(4, 3, &options)).await.unwrap();
}

#[tokio::test]
async fn the_command_works_on_mariadb() {
    let server = shared_servers::mariadb().await;
    check_waiting_listing_force_release_and_re_entry(&server.url()).await;
    check_interrupted_waiter_leaves(&server.url()).await;
    check_killed_holder_frees_the_lock(&server.url()).await;
    check_four_take_turns(&server.url()).await;
    eventually(TEST_TIMEOUT, || async {
        let left = mariadb::connections(&server).await.unwrap();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}

#[tokio::test]
async fn the_command_works_on_postgres() {
    let server = shared_servers::postgres().await;
    check_waiting_listing_force_release_and_re_entry(&server.url()).await;
    check_interrupted_waiter_leaves(&server.url()).await;
    check_killed_holder_frees_the_lock(&server.url()).await;
    check_four_take_turns(&server.url()).await;
    eventually(TEST_TIMEOUT, || async {
        let left = postgres::connections(&server).await.unwrap();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}

/// Asserts that a run fails with this code and message, and prints no password.
async fn assert_run_fails(url: &str, code: i32, message: &str) {
    let (ended, output) =
        run_with_output(&["run", "--engine", url, "--connect-timeout", "0", "job", "--", "true"]).await;
    assert!(ended == code && output.contains(message) && !output.contains("opensesame"), "{url}: {ended}: {output}");
}

#[tokio::test]
async fn errors_name_the_cause_and_the_remedy() {
    let (my, pg) = (MariaDb::new().read_only().start().await.unwrap(), shared_servers::postgres().await);
    assert_run_fails("mysql://u:opensesame@127.0.0.1:1/d", 69, "127.0.0.1:1").await;
    assert_run_fails("postgres://u:opensesame@127.0.0.1:1/d", 69, "127.0.0.1:1").await;
    assert_run_fails(&my.url().replace(":password@", ":opensesame@"), 69, "1045").await;
    assert_run_fails(&pg.url().replace(":password@", ":opensesame@"), 69, "28P01").await;
    assert_run_fails(&pg.url().replace("/test", "/nowhere"), 64, "no such database").await;
    assert_run_fails(&my.url().replace("/test", "/nowhere"), 64, "no such database").await;
    assert_run_fails(&my.url(), 69, "takes no writes").await;
    assert_run_fails("postgres://u:opensesame@h/d?tecnique=row", 64, "technique").await;
    assert_run_fails("mysql://h/d", 64, "user:password@host").await;
}

/// The statements that `--ddl` prints, and those in its comments that grant privileges to `user`.
fn ddl_statements(printed: &str, user: &str) -> Vec<String> {
    let plain: Vec<&str> = printed.lines().filter(|line| !line.starts_with("--")).collect();
    let made = plain.join("\n");
    let made = made.split(';').map(|one| one.trim().to_owned()).filter(|one| !one.is_empty());
    let rights = printed.lines().filter_map(|line| line.strip_prefix("-- GRANT"));
    let rights = rights.map(|line| {
        let (what, _) = line.split_once(" TO ").unwrap();
        format!("GRANT{what} TO {user}")
    });
    made.chain(rights).collect()
}

#[tokio::test]
async fn a_user_who_may_not_create_the_table_is_referred_to_the_ddl_on_mariadb() {
    let server = shared_servers::mariadb().await;
    for statement in ["CREATE TABLE shop (id INT)", "CREATE USER poor@'%' IDENTIFIED BY 'password'"] {
        mariadb::query(&server, statement).await.unwrap();
    }
    mariadb::query(&server, "GRANT SELECT ON test.shop TO poor@'%'").await.unwrap();
    let url = format!("{}?table=locks", server.url().replace("leasehold:", "poor:"));
    assert_run_fails(&url, 69, "leasehold engines --ddl mysql --table locks").await;
    // The message is the same for a user who may read but not create tables.
    mariadb::query(&server, "GRANT SELECT ON test.* TO poor@'%'").await.unwrap();
    assert_run_fails(&url, 69, "leasehold engines --ddl mysql --table locks").await;
    mariadb::query(&server, "REVOKE SELECT ON test.* FROM poor@'%'").await.unwrap();
    let (code, printed) = run_with_output(&["engines", "--ddl", "mysql", "--table", "locks"]).await;
    assert_eq!(code, 0);
    for statement in ddl_statements(&printed, "poor@'%'") {
        mariadb::query(&server, &statement).await.unwrap();
    }
    assert_eq!(run_with_output(&["run", "--engine", &url, "job", "--", "true"]).await, (0, String::new()));
    check_waiting_listing_force_release_and_re_entry(&url).await;
}

#[tokio::test]
async fn a_user_who_may_not_create_the_table_is_referred_to_the_ddl_on_postgres() {
    let server = shared_servers::postgres().await;
    postgres::query(&server, "CREATE USER poor PASSWORD 'password'").await.unwrap();
    let poor = server.url().replace("leasehold:", "poor:");
    assert_run_fails(&poor, 69, "leasehold engines --ddl postgres`").await;
    let url = format!("{poor}?table=locks&schema=ops");
    assert_run_fails(&url, 69, "leasehold engines --ddl postgres").await;
    let (code, printed) =
        run_with_output(&["engines", "--ddl", "postgres", "--table", "locks", "--schema", "ops"]).await;
    assert_eq!(code, 0);
    // The whole output is run, with its comments, as psql would.
    postgres::query(&server, &printed).await.unwrap();
    for statement in ddl_statements(&printed, "poor") {
        postgres::query(&server, &statement).await.unwrap();
    }
    assert_eq!(run_with_output(&["run", "--engine", &url, "job", "--", "true"]).await, (0, String::new()));
    check_waiting_listing_force_release_and_re_entry(&url).await;
}

#[tokio::test]
async fn ddl_is_refused_for_engines_that_are_not_databases() {
    let (code, output) = run_with_output(&["engines", "--ddl", "redis"]).await;
    assert!(code == 64 && output.contains("mysql"), "{output}");
    let (code, output) = run_with_output(&["engines", "--ddl", "mysql", "--schema", "ops"]).await;
    assert!(code == 64 && output.contains("database itself"), "{output}");
    assert_eq!(run_with_output(&["engines", "--table", "locks"]).await.0, 64);
    let (code, output) = run_with_output(&["engines", "--help"]).await;
    assert!(code == 0 && output.contains("--ddl postgres --schema ops | psql"), "{output}");
    let (code, output) = run_with_output(&["engines"]).await;
    assert!(code == 0 && output.contains("mysql:") && !output.contains("not in this build"), "{output}");
}
