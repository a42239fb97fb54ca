//! The command on a database: MariaDB and PostgreSQL, each with tables that it creates, or that an
//! administrator created.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::{BOUND, Place, servers};
use leasehold_testbed::mariadb::{self, MariaDb};
use leasehold_testbed::{eventually, postgres};
use rustix::process::Signal;

/// Runs it to its end; returns its exit code and its output.
async fn run(arguments: &[&str]) -> (i32, String) {
    let arguments: Vec<_> = arguments.iter().map(ToString::to_string).collect();
    let done = tokio::task::spawn_blocking(move || Place::new().run_in_time(arguments)).await.unwrap();
    (done.code(), format!("{}{}", done.out(), done.err()))
}

/// Waits until the output of `show` contains this.
async fn shown(url: &str, says: &str) {
    eventually(BOUND, || async {
        let shown = run(&["show", "--engine", url, "job", "--json"]).await.1;
        if shown.contains(says) { Ok(()) } else { Err(shown) }
    })
    .await;
}

async fn it_waits_gives_up_shows_evicts_and_enters_again(url: &str) {
    let (code, said) = run(&["run", "--engine", url, "job", "--", "sh", "-c", "exit 7"]).await;
    assert_eq!(code, 7, "{said}");
    let place = Place::new();
    // An evicted holder learns of it at its next renewal, after a third of the TTL.
    let held = place.start(["run", "--engine", url, "--ttl", "60s", "job", "--", "cat"]);
    shown(url, "\"token\"").await;
    for impatient in [&["-n"][..], &["-w", "2"]] {
        let (code, said) = run(&[&["run", "--engine", url], impatient, &["job", "--", "true"]].concat()).await;
        assert_eq!(code, 1, "{impatient:?}: {said}");
    }
    shown(url, "\"waiters\":[]").await;
    let (code, listed) = run(&["ls", "--engine", url]).await;
    assert!(code == 0 && listed.contains("job") && listed.contains("cat"), "{listed}");
    let (code, listed) = run(&["ls", "--engine", url, "other"]).await;
    assert!(code == 0 && !listed.contains("job"), "{listed}");
    let (code, said) = run(&["evict", "--engine", url, "job", "--yes"]).await;
    assert!(code == 0 && said.contains("fence token"), "{said}");
    let ended = tokio::task::spawn_blocking(move || held.end()).await.unwrap();
    assert!(ended.err().contains("lost"), "{}", ended.err());
    let inner = format!("{} run --engine '{url}' -n job -- echo inside", env!("CARGO_BIN_EXE_leasehold"));
    let (code, said) = run(&["run", "--engine", url, "job", "-c", &inner]).await;
    assert!(code == 0 && said.contains("inside"), "{said}");
}

async fn a_waiter_that_is_interrupted_leaves(url: &str) {
    let place = Place::new();
    let held = place.start(["run", "--engine", url, "job", "--", "cat"]);
    shown(url, "\"token\"").await;
    let waiter = place.start(["run", "--engine", url, "job", "--", "true"]);
    eventually(BOUND, || async {
        let shown = run(&["show", "--engine", url, "job", "--json"]).await.1;
        if shown.contains("\"waiters\":[]") { Err(shown) } else { Ok(()) }
    })
    .await;
    waiter.signal(Signal::INT);
    let interrupted = tokio::task::spawn_blocking(move || waiter.finish()).await.unwrap();
    assert_eq!(interrupted.code(), 130, "{}", interrupted.err());
    shown(url, "\"waiters\":[]").await;
    tokio::task::spawn_blocking(move || held.finish().ok()).await.unwrap();
}

async fn a_killed_holder_frees_the_lock(url: &str) {
    let place = Place::new();
    let held = place.start(["run", "--engine", url, "--ttl", "2s", "job", "-c", "echo > begun; exec sleep 600"]);
    place.wait_for_file("begun");
    held.signal(Signal::KILL);
    let (code, said) = run(&["run", "--engine", url, "job", "--", "true"]).await;
    assert_eq!((code, said.as_str()), (0, ""));
    tokio::task::spawn_blocking(move || held.finish()).await.unwrap();
}

async fn four_take_turns(url: &str) {
    let options = format!("--engine '{url}'");
    tokio::task::spawn_blocking(move || Place::new().take_turns(4, 3, &options)).await.unwrap();
}

#[tokio::test]
async fn on_mariadb() {
    let server = servers::mariadb().await;
    it_waits_gives_up_shows_evicts_and_enters_again(&server.url()).await;
    a_waiter_that_is_interrupted_leaves(&server.url()).await;
    a_killed_holder_frees_the_lock(&server.url()).await;
    four_take_turns(&server.url()).await;
    eventually(BOUND, || async {
        let left = mariadb::connections(&server).await.unwrap();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}

#[tokio::test]
async fn on_postgres() {
    let server = servers::postgres().await;
    it_waits_gives_up_shows_evicts_and_enters_again(&server.url()).await;
    a_waiter_that_is_interrupted_leaves(&server.url()).await;
    a_killed_holder_frees_the_lock(&server.url()).await;
    four_take_turns(&server.url()).await;
    eventually(BOUND, || async {
        let left = postgres::connections(&server).await.unwrap();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}

/// The run fails with this code and a helpful message, without a password.
async fn fails(url: &str, code: i32, says: &str) {
    let (ended, said) = run(&["run", "--engine", url, "--connect-timeout", "0", "job", "--", "true"]).await;
    assert!(ended == code && said.contains(says) && !said.contains("opensesame"), "{url}: {ended}: {said}");
}

#[tokio::test]
async fn what_is_wrong_is_said_in_words_that_help() {
    let (my, pg) = (MariaDb::new().read_only().start().await.unwrap(), servers::postgres().await);
    fails("mysql://u:opensesame@127.0.0.1:1/d", 69, "127.0.0.1:1").await;
    fails("postgres://u:opensesame@127.0.0.1:1/d", 69, "127.0.0.1:1").await;
    fails(&my.url().replace(":password@", ":opensesame@"), 69, "1045").await;
    fails(&pg.url().replace(":password@", ":opensesame@"), 69, "28P01").await;
    fails(&pg.url().replace("/test", "/nowhere"), 64, "no such database").await;
    fails(&my.url().replace("/test", "/nowhere"), 64, "no such database").await;
    fails(&my.url(), 69, "takes no writes").await;
    fails("postgres://u:opensesame@h/d?tecnique=row", 64, "technique").await;
    fails("mysql://h/d", 64, "user:password@host").await;
}

/// The statements that `--ddl` prints, and those in its comments that grant privileges to `user`.
fn statements(printed: &str, user: &str) -> Vec<String> {
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
async fn whoever_may_not_make_the_table_is_told_how_it_is_made_on_mariadb() {
    let server = servers::mariadb().await;
    for statement in ["CREATE TABLE shop (id INT)", "CREATE USER poor@'%' IDENTIFIED BY 'password'"] {
        mariadb::ask(&server, statement).await.unwrap();
    }
    mariadb::ask(&server, "GRANT SELECT ON test.shop TO poor@'%'").await.unwrap();
    let url = format!("{}?table=locks", server.url().replace("leasehold:", "poor:"));
    fails(&url, 69, "leasehold engines --ddl mysql --table locks").await;
    // The same for a user who may read but not create.
    mariadb::ask(&server, "GRANT SELECT ON test.* TO poor@'%'").await.unwrap();
    fails(&url, 69, "leasehold engines --ddl mysql --table locks").await;
    mariadb::ask(&server, "REVOKE SELECT ON test.* FROM poor@'%'").await.unwrap();
    let (code, printed) = run(&["engines", "--ddl", "mysql", "--table", "locks"]).await;
    assert_eq!(code, 0);
    for statement in statements(&printed, "poor@'%'") {
        mariadb::ask(&server, &statement).await.unwrap();
    }
    assert_eq!(run(&["run", "--engine", &url, "job", "--", "true"]).await, (0, String::new()));
    it_waits_gives_up_shows_evicts_and_enters_again(&url).await;
}

#[tokio::test]
async fn whoever_may_not_make_the_table_is_told_how_it_is_made_on_postgres() {
    let server = servers::postgres().await;
    postgres::ask(&server, "CREATE USER poor PASSWORD 'password'").await.unwrap();
    let poor = server.url().replace("leasehold:", "poor:");
    fails(&poor, 69, "leasehold engines --ddl postgres`").await;
    let url = format!("{poor}?table=locks&schema=ops");
    fails(&url, 69, "leasehold engines --ddl postgres").await;
    let (code, printed) = run(&["engines", "--ddl", "postgres", "--table", "locks", "--schema", "ops"]).await;
    assert_eq!(code, 0);
    // As psql would: including the comments.
    postgres::ask(&server, &printed).await.unwrap();
    for statement in statements(&printed, "poor") {
        postgres::ask(&server, &statement).await.unwrap();
    }
    assert_eq!(run(&["run", "--engine", &url, "job", "--", "true"]).await, (0, String::new()));
    it_waits_gives_up_shows_evicts_and_enters_again(&url).await;
}

#[tokio::test]
async fn the_tables_of_what_is_no_database_are_not_asked_for() {
    let (code, said) = run(&["engines", "--ddl", "redis"]).await;
    assert!(code == 64 && said.contains("mysql"), "{said}");
    let (code, said) = run(&["engines", "--ddl", "mysql", "--schema", "ops"]).await;
    assert!(code == 64 && said.contains("database itself"), "{said}");
    assert_eq!(run(&["engines", "--table", "locks"]).await.0, 64);
    let (code, said) = run(&["engines", "--help"]).await;
    assert!(code == 0 && said.contains("--ddl postgres --schema ops | psql"), "{said}");
    let (code, said) = run(&["engines"]).await;
    assert!(code == 0 && said.contains("mysql:") && !said.contains("not in this build"), "{said}");
}
