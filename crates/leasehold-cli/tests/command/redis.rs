//! The command on a real Redis: between processes that share nothing else.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::Place;
use leasehold_testbed::redis;

/// The server's URL with a long timeout: on a busy machine a slow server is not unreachable.
fn patient(url: &str) -> String {
    format!("{url}?connect-timeout=60s")
}

/// Runs `work` beside a server, on a thread that may block.
async fn with_server(work: impl FnOnce(Place, String) + Send + 'static) {
    let server = redis::start().await.unwrap();
    let url = patient(&server.url());
    tokio::task::spawn_blocking(move || work(Place::new(), url)).await.unwrap();
}

#[tokio::test]
async fn eight_processes_run_one_at_a_time_with_rising_tokens() {
    with_server(|place, url| place.take_turns(8, 3, &format!("--engine '{url}'"))).await;
}

#[tokio::test]
async fn a_held_lock_is_seen_refused_and_taken_away() {
    with_server(|place, url| {
        let held = place.start(["run", "--engine", &url, "--describe", "a job", "nightly", "--", "sleep", "60"]);
        crate::common::wait_for("the lock to be held", || {
            place.run(["show", "--engine", &url, "nightly"]).out().contains("a job").then_some(())
        });
        assert_eq!(place.run(["run", "--engine", &url, "-n", "nightly", "--", "true"]).code(), 1);
        let listed = place.run(["ls", "--engine", &url, "--json"]).out();
        let listed: serde_json::Value = serde_json::from_str(listed.lines().next().unwrap()).unwrap();
        assert!(listed.to_string().contains("\"nightly\"") && listed.to_string().contains("a job"), "{listed}");
        place.run(["evict", "--yes", "--engine", &url, "nightly"]).ok();
        let ended = held.finish();
        assert_ne!(ended.code(), 0, "the command was ended with its lock");
        let examined = place.run(["doctor", "--engine", &url]).out();
        assert!(!examined.contains("a part is missing"), "our own list of evictions: {examined}");
        place.run(["run", "--engine", &url, "-n", "nightly", "--", "true"]).ok();
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_not_there_is_said_and_no_password_is() {
    with_server(|place, url| {
        let nobody = place
            .run(["run", "--engine", "redis://user:hunter2@127.0.0.1:1/", "--connect-timeout", "0", "a", "--", "true"])
            .failed(69, "127.0.0.1:1 cannot be reached");
        let wrong = url.replace("redis://", "redis://nobody:hunter2@");
        let wrong =
            place.run(["run", "--engine", &wrong, "a", "--", "true"]).failed(69, "refuses the user or the password");
        for ran in [&nobody, &wrong] {
            assert!(!ran.err().contains("hunter2") && !ran.out().contains("hunter2"));
        }
    })
    .await;
}

#[tokio::test]
async fn a_spoilt_key_is_shown_by_name_and_hides_no_other_lock() {
    let server = redis::start().await.unwrap();
    let mut raw = leasehold_testbed::redis::Resp::connect(server.addr()).await.unwrap();
    raw.command(&["SET", "leasehold:l{bad}", "x", "EX", "600"]).await.unwrap();
    raw.command(&["HSET", "leasehold:l{worse}", "m", "x"]).await.unwrap();
    let url = patient(&server.url());
    let check = move || {
        let place = Place::new();
        let held = place.start(["run", "--engine", &url, "good", "--", "sleep", "60"]);
        crate::common::wait_for("the lock to be held", || {
            place.run(["show", "--engine", &url, "good"]).out().contains("held").then_some(())
        });
        let listed = place.run(["ls", "--engine", &url]);
        assert_eq!(listed.code(), 69);
        assert!(listed.out().contains("good"), "{}", listed.out());
        for name in ["bad", "worse"] {
            assert!(listed.err().contains(&format!("{name}: ")), "{}", listed.err());
            let shown = place.run(["show", "--engine", &url, name]);
            assert_eq!(shown.code(), 69, "{}", shown.out());
            assert!(shown.out().contains("damaged"), "{}", shown.out());
            place.run(["run", "--engine", &url, name, "--", "true"]).failed(69, name);
        }
        held.signal(rustix::process::Signal::TERM);
        held.finish();
    };
    tokio::task::spawn_blocking(check).await.unwrap();
}

#[tokio::test]
async fn a_run_inside_itself_is_refused_where_it_would_wait_for_itself() {
    with_server(|place, url| {
        let url = format!("{url}&protocol=simple");
        let nested = format!("\"$L\" run --engine '{url}' same -- true");
        place.run(["run", "--engine", &url, "same", "-c", &nested]).failed(64, "no re-entry");
    })
    .await;
}

#[tokio::test]
async fn missing_replicas_are_named_as_the_reason() {
    with_server(|place, url| {
        let url = format!("{url}&replicas=1");
        place
            .run_in_time(["run", "--engine", &url, "-w", "1", "a", "--", "true"])
            .failed(69, "0 of 1 replicas acknowledged");
    })
    .await;
}

/// A server that is not a Redis: it sends this answer, or closes the connection.
fn stranger(answer: &'static str) -> std::net::SocketAddr {
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
fn a_port_that_is_not_a_redis_is_said_to_be_none() {
    let place = Place::new();
    let web = stranger("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
    let said = place.run(["ls", "--engine", &format!("redis://{web}")]).failed(69, "answered, but is not Redis").err();
    assert!(said.contains(&web.to_string()) && !said.contains("Parse error"), "{said}");
    let database = stranger("");
    place
        .run(["ls", "--engine", &format!("redis://{database}")])
        .failed(69, "closed the connection before it answered")
        .failed(69, "is it Redis?");
    for (url, meant) in [("127.0.0.1:6379", "redis://127.0.0.1:6379"), ("/srv/locks", "file:///srv/locks")] {
        place.run(["ls", "--engine", url]).failed(64, &format!("did you mean `{meant}`?"));
    }
}
