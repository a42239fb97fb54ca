//! What can be opened on real servers and what is rejected: modes, node counts, duplicate servers,
//! passwords, TLS.

use leasehold::{Error, ErrorKind, Locks};
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::redis::{IndependentServers, Redis};
use leasehold_testbed::{Server, eventually};

use crate::redlock_faults::fixture::{Fixture, LASTING, PATIENT, lock, release};

const SECRETS: [&str; 2] = ["hunter2secret", "swordfish99"];

async fn open(url: &str) -> Locks {
    let url = format!("{url}{}{PATIENT}", if url.contains('?') { '&' } else { '?' });
    Locks::builder().ttl(LASTING).open(&url).await.unwrap_or_else(|error| panic!("{error}"))
}

async fn open_refused(url: &str) -> Error {
    let answer = tokio::time::timeout(TEST_TIMEOUT, Locks::open(url)).await.expect("an answer");
    answer.expect_err("the call must fail")
}

fn assert_no_secret(shown: &str) {
    for secret in SECRETS {
        assert!(!shown.contains(secret) && !shown.contains(&secret[..6]), "{shown}");
    }
}

fn assert_error(error: &Error, kind: ErrorKind, what: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    for what in what {
        assert!(error.to_string().contains(what), "{what:?}: {error}");
    }
    assert_no_secret(&format!("{error} {error:?} {error:#?}"));
}

fn host(server: &Server) -> String {
    server.addr().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn modes_that_a_majority_cannot_guarantee_are_refused() {
    let fixture = Fixture::shared().await;
    let locks = fixture.locks().await;
    for (error, mode) in [
        (locks.rwlock("a").read().await.expect_err("no read locks"), "has no shared locks"),
        (locks.rwlock("a").try_read().await.expect_err("no read locks"), "has no shared locks"),
        (locks.semaphore("a", 3).acquire(1).await.expect_err("no permits"), "has no semaphores"),
        (locks.semaphore("a", 3).try_acquire(2).await.expect_err("no permits"), "has no semaphores"),
    ] {
        assert_error(&error, ErrorKind::Unsupported, &["on redlock://", mode]);
    }
    assert_eq!(fixture.claim_counts("a").await, [0; 5]);
    // A write lock is an exclusive lock.
    release(lock(&locks, "a").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn even_and_too_large_numbers_of_nodes_are_refused() {
    let fixture = Fixture::shared().await;
    let hosts: Vec<_> = (0..4).map(|at| host(fixture.server(at))).collect();
    let four = format!("redlock://{}?{}", hosts.join(","), fixture.prefix_option());
    assert_error(
        &open_refused(&four).await,
        ErrorKind::InvalidUrl,
        &["4 nodes survive no more failures than 3", "even=allowed"],
    );
    let locks = open(&format!("{four}&even=allowed")).await;
    assert_eq!(locks.capabilities().warning, "");
    release(lock(&locks, "a").await).await;
    let one = open(&format!("redlock://{}?{}", hosts[0], fixture.prefix_option())).await;
    assert!(one.capabilities().warning.contains("fewer than three nodes"), "{}", one.capabilities().warning);
    release(lock(&one, "b").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_with_two_addresses_is_refused() {
    let fixture = Fixture::shared().await;
    let ports = [0, 1].map(|at| fixture.server(at).port());
    for url in [
        format!("redlock://127.0.0.1:{0},localhost:{0},127.0.0.1:{1}", ports[0], ports[1]),
        format!("redlock://127.0.0.1:{0},127.0.0.1:{1},localhost:{0}", ports[0], ports[1]),
        format!("redlock://127.0.0.1:{0}/1,127.0.0.1:{1},localhost:{0}/2", ports[0], ports[1]),
    ] {
        // A server that takes longer than a quarter of a second to reply is not compared.
        let error = eventually(TEST_TIMEOUT, || async {
            match Locks::open(&url).await {
                Ok(_) => Err("the call must fail"),
                Err(error) => Ok(error),
            }
        })
        .await;
        let (one, two) = (format!("127.0.0.1:{}", ports[0]), format!("localhost:{}", ports[0]));
        assert_error(&error, ErrorKind::InvalidUrl, &[&one, &two, "are one server, which would vote twice"]);
    }
    let error = open_refused(&format!("redlock://127.0.0.1:{0},127.0.0.1:{0},127.0.0.1:{1}", ports[0], ports[1])).await;
    assert_error(&error, ErrorKind::InvalidUrl, &["is named twice"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_may_share_a_password_or_have_their_own() {
    let with = |password: &'static str| Redis::new().password(password).start();
    let (a, b) = tokio::try_join!(with(SECRETS[0]), with(SECRETS[0])).expect("servers");
    let (c, open_to_all) = tokio::try_join!(with(SECRETS[1]), Redis::new().start()).expect("servers");
    let (a, b, c, d) = (host(&a), host(&b), host(&c), host(&open_to_all));
    let [first, second] = SECRETS;
    for url in [
        format!("redlock://:{first}@{a},:{first}@{b},:{second}@{c}"),
        format!("redlock://redis://default:{first}@{a},:{second}@{c},{d}"),
        // One password for all: the last node has another one, but two nodes are a majority.
        format!("redlock://:{first}@{a},{b},{c}"),
    ] {
        let locks = open(&url).await;
        assert_no_secret(&format!("{} {locks:?} {locks:#?}", locks.url()));
        assert!(locks.url().contains("***@"), "{}", locks.url());
        release(lock(&locks, "a").await).await;
        assert!(locks.inspect("a").await.expect("a view").last_token.is_some());
    }
    // Two nodes deny access: no majority.
    let error = open_refused(&format!("redlock://:{second}@{a},{b},{c}")).await;
    assert_error(&error, ErrorKind::Denied, &["2 of 3 nodes must answer", "refuses the user or the password", &a]);
    let comma = format!("redlock://u:{},{}@{a},{b},{c}", &first[..6], &first[6..]);
    let error = open_refused(&comma).await;
    assert_error(&error, ErrorKind::InvalidUrl, &["%2C"]);
    assert!(!error.to_string().contains(&first[6..]), "{error}");
    for url in [
        format!("redlock://{first},{second}@{a},{b},{c}"),
        format!("redlock://:{first},{second}@{a},{b}"),
        format!("redlock://{a},:{first},x{second}@{b}"),
        format!("redlock://{a},:{first}/{second}@{b},{c}"),
    ] {
        let error = open_refused(&url).await;
        assert_no_secret(&format!("{error} {error:?}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_of_three_may_use_tls() {
    let plain = IndependentServers::start(2).await.expect("servers");
    let tls = Redis::new().tls().start().await.expect("a server");
    let hosts: Vec<_> = plain.servers().iter().map(host).collect();
    let secure = format!("rediss://{}", host(&tls.server));
    let url = format!("redlock://{},{},{secure}?ca={}", hosts[0], hosts[1], tls.ca.display());
    let mut plain = plain;
    let locks = open(&url).await;
    release(lock(&locks, "a").await).await;
    // The TLS node votes: without it there is no majority.
    plain.server_mut(0).kill().expect("a killed server");
    release(lock(&locks, "a").await).await;
    drop(tls);
    let error = locks.mutex("a").try_lock().await.expect_err("no majority");
    assert_error(&error, ErrorKind::Unavailable, &["2 of 3 nodes must answer", &hosts[0]]);
}
