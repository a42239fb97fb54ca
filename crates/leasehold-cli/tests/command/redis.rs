//! The command on a real Redis, between processes that share only this server.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::TestFolder;
use crate::common::pty::PtySession;
use leasehold_testbed::redis;

/// The server's URL with a long timeout: on a busy machine a slow server is not unreachable.
fn with_long_timeout(url: &str) -> String {
    format!("{url}?connect-timeout=60s")
}

/// Starts a server, and runs `work` with a folder and the server's URL, on a thread that may block.
async fn run_with_server(work: impl FnOnce(TestFolder, String) + Send + 'static) {
    let server = redis::start().await.unwrap();
    let url = with_long_timeout(&server.url());
    tokio::task::spawn_blocking(move || work(TestFolder::new(), url)).await.unwrap();
}

#[tokio::test]
async fn eight_processes_run_one_at_a_time_with_rising_tokens() {
    run_with_server(|place, url| place.check_exclusion(8, 3, &format!("--engine '{url}'"))).await;
}

#[tokio::test]
async fn a_held_lock_is_listed_refused_and_force_released() {
    run_with_server(|place, url| {
        let held = place.start(["run", "--engine", &url, "--describe", "a job", "nightly", "--", "sleep", "60"]);
        crate::common::wait_for("the lock to be held", || {
            place.run(["show", "--engine", &url, "nightly"]).stdout().contains("a job").then_some(())
        });
        assert_eq!(place.run(["run", "--engine", &url, "-n", "nightly", "--", "true"]).exit_code(), 1);
        let listed = place.run(["ls", "--engine", &url, "--json"]).stdout();
        let listed: serde_json::Value = serde_json::from_str(listed.lines().next().unwrap()).unwrap();
        assert!(listed.to_string().contains("\"nightly\"") && listed.to_string().contains("a job"), "{listed}");
        place.run(["evict", "--yes", "--engine", &url, "nightly"]).assert_ok();
        let ended = held.close_input_and_wait();
        assert_ne!(ended.exit_code(), 0, "the command was ended with its lock");
        let examined = place.run(["doctor", "--engine", &url]).stdout();
        assert!(!examined.contains("a part is missing"), "the record of the forced release is no orphan: {examined}");
        place.run(["run", "--engine", &url, "-n", "nightly", "--", "true"]).assert_ok();
    })
    .await;
}

/// With `strict`, a server that may have lost leases grants no lock for a while, and no other claim
/// holds the lock.
#[tokio::test]
async fn a_cool_down_is_reported_in_place_of_a_holder() {
    run_with_server(|place, url| {
        let url = format!("{url}&strict=1h");
        let refused = place.run(["run", "--engine", &url, "-n", "nightly", "--", "true"]);
        refused.assert_failed(69, "cools down for another");
        let shown = place.run(["show", "--engine", &url, "nightly"]).stdout();
        assert!(shown.contains("not granted: it cools down for "), "{shown}");
        let shown = place.run(["show", "--engine", &url, "--json", "nightly"]).stdout();
        assert!(shown.contains("\"state\":\"cooling-down\",\"cool_down_seconds\":"), "{shown}");
        let mut screen = PtySession::start(&place.command(["run", "--engine", &url, "nightly", "--", "true"]), 200);
        screen.expect("waiting for nightly: 1st of 1 in queue; it cools down for ");
        screen.send_keys("\x03");
        assert_eq!(screen.wait(), Some(130));
    })
    .await;
}

#[tokio::test]
async fn an_unreachable_server_is_reported_without_the_password() {
    run_with_server(|place, url| {
        let unreachable = place
            .run(["run", "--engine", "redis://user:hunter2@127.0.0.1:1/", "--connect-timeout", "0", "a", "--", "true"])
            .assert_failed(69, "127.0.0.1:1 cannot be reached");
        let wrong = url.replace("redis://", "redis://nobody:hunter2@");
        let wrong = place
            .run(["run", "--engine", &wrong, "a", "--", "true"])
            .assert_failed(69, "refuses the user or the password");
        for ran in [&unreachable, &wrong] {
            assert!(!ran.stderr().contains("hunter2") && !ran.stdout().contains("hunter2"));
        }
    })
    .await;
}

#[tokio::test]
async fn a_damaged_key_is_reported_by_name_and_hides_no_other_lock() {
    let server = redis::start().await.unwrap();
    let mut raw = leasehold_testbed::redis::RespClient::connect(server.addr()).await.unwrap();
    raw.command(&["SET", "leasehold:l{bad}", "x", "EX", "600"]).await.unwrap();
    raw.command(&["HSET", "leasehold:l{worse}", "m", "x"]).await.unwrap();
    let url = with_long_timeout(&server.url());
    let check = move || {
        let place = TestFolder::new();
        let held = place.start(["run", "--engine", &url, "good", "--", "sleep", "60"]);
        crate::common::wait_for("the lock to be held", || {
            place.run(["show", "--engine", &url, "good"]).stdout().contains("held").then_some(())
        });
        let listed = place.run(["ls", "--engine", &url]);
        assert_eq!(listed.exit_code(), 69);
        assert!(listed.stdout().contains("good"), "{}", listed.stdout());
        for name in ["bad", "worse"] {
            assert!(listed.stderr().contains(&format!("{name}: ")), "{}", listed.stderr());
            let shown = place.run(["show", "--engine", &url, name]);
            assert_eq!(shown.exit_code(), 69, "{}", shown.stdout());
            assert!(shown.stdout().contains("damaged"), "{}", shown.stdout());
            place.run(["run", "--engine", &url, name, "--", "true"]).assert_failed(69, name);
        }
        held.signal(rustix::process::Signal::TERM);
        held.close_input_and_wait();
    };
    tokio::task::spawn_blocking(check).await.unwrap();
}

#[tokio::test]
async fn a_nested_run_is_refused_on_an_engine_without_re_entry() {
    run_with_server(|place, url| {
        let url = format!("{url}&protocol=simple");
        let nested = format!("\"$L\" run --engine '{url}' same -- true");
        place.run(["run", "--engine", &url, "same", "-c", &nested]).assert_failed(64, "no re-entry");
    })
    .await;
}

#[tokio::test]
async fn missing_replicas_are_named_as_the_reason() {
    run_with_server(|place, url| {
        let url = format!("{url}&replicas=1");
        place.run(["run", "--engine", &url, "-n", "a", "--", "true"]).assert_failed(69, "0 of 1 replicas acknowledged");
    })
    .await;
}

/// Starts a server that is not a Redis: it sends this answer to each connection, and closes it.
fn start_non_redis_server(answer: &'static str) -> std::net::SocketAddr {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 512]);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    address
}

#[test]
fn a_port_that_is_not_redis_is_reported_as_such() {
    let place = TestFolder::new();
    let web = start_non_redis_server("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
    let output = place
        .run(["ls", "--connect-timeout", "0", "--engine", &format!("redis://{web}")])
        .assert_failed(69, "answered, but is not Redis")
        .stderr();
    assert!(output.contains(&web.to_string()) && !output.contains("Parse error"), "{output}");
    let database = start_non_redis_server("");
    place
        .run(["ls", "--connect-timeout", "0", "--engine", &format!("redis://{database}")])
        .assert_failed(69, "closed the connection before it answered")
        .assert_failed(69, "is it Redis?");
    for (url, meant) in [("127.0.0.1:6379", "redis://127.0.0.1:6379"), ("/srv/locks", "file:///srv/locks")] {
        place.run(["ls", "--engine", url]).assert_failed(64, &format!("did you mean `{meant}`?"));
    }
}
