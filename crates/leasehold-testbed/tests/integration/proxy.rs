//! Each rule of the proxy, on real connections to a real Redis: it takes effect at once.

use std::time::Duration;

use leasehold_testbed::{
    Error, Proxy, Server, eventually,
    redis::{self, Reply, RespClient},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::{Instant, timeout},
};

const TEST_TIMEOUT: Duration = leasehold_testbed::TEST_TIMEOUT;
const SILENCE_TIMEOUT: Duration = Duration::from_millis(200);

/// A Redis, a proxy before it, a client of the proxy, and a client of Redis itself.
async fn fixture() -> leasehold_testbed::Result<(Server, Proxy, RespClient, RespClient)> {
    let server = redis::start().await?;
    let proxy = Proxy::start(server.addr()).await?;
    let client = RespClient::connect(proxy.addr()).await?;
    let direct = RespClient::connect(server.addr()).await?;
    Ok((server, proxy, client, direct))
}

async fn wait_for_number(direct: &mut RespClient, expected: i64) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let seen = direct.command(&["GET", "n"]).await;
        if seen.as_ref().is_ok_and(|seen| *seen == Reply::Bulk(expected.to_string())) {
            return;
        }
        assert!(Instant::now() < deadline, "n is not {expected} but {seen:?}");
        tokio::task::yield_now().await;
    }
}

fn is_timed_out(outcome: &leasehold_testbed::Result<Reply>) -> bool {
    matches!(outcome, Err(Error::TimedOut { .. }))
}

fn is_closed(outcome: &leasehold_testbed::Result<Reply>) -> bool {
    matches!(outcome, Err(Error::Io { .. }))
}

#[tokio::test]
async fn without_rules_all_bytes_pass_and_are_counted() {
    let (_server, proxy, mut client, _direct) = fixture().await.unwrap();
    let long = "x".repeat(3_000_000);
    client.command(&["SET", "k", &long]).await.unwrap();
    assert_eq!(client.command(&["GET", "k"]).await.unwrap(), Reply::Bulk(long));
    let counts = proxy.counts();
    assert_eq!((counts.accepted, counts.open, counts.refused), (1, 1, 0));
    assert!(counts.request_bytes > 3_000_000 && counts.reply_bytes > 3_000_000, "{counts:?}");
    assert_eq!(counts.dropped_bytes, 0);
    drop(client);
    eventually(TEST_TIMEOUT, || async {
        let open = proxy.counts().open;
        if open == 0 { Ok(()) } else { Err(format!("{open} open")) }
    })
    .await;
}

#[tokio::test]
async fn cut_closes_all_connections_and_accepts_new_ones() {
    let (_server, proxy, mut one, mut direct) = fixture().await.unwrap();
    let mut two = RespClient::connect(proxy.addr()).await.unwrap();
    two.command(&["PING"]).await.unwrap();
    proxy.cut();
    for client in [&mut one, &mut two] {
        let outcome = client.command(&["INCR", "n"]).await;
        assert!(is_closed(&outcome), "{outcome:?}");
    }
    let mut new = RespClient::connect(proxy.addr()).await.unwrap();
    assert_eq!(new.command(&["PING"]).await.unwrap(), Reply::Simple("PONG".to_owned()));
    // The command that was sent after the cut has not arrived.
    assert_eq!(direct.command(&["GET", "n"]).await.unwrap(), Reply::Nil);
}

#[tokio::test]
async fn cut_closes_connections_that_were_just_made() {
    let (_server, proxy, _client, _direct) = fixture().await.unwrap();
    let mut clients = Vec::new();
    for _ in 0..200 {
        clients.push(RespClient::connect(proxy.addr()).await.unwrap());
        proxy.cut();
    }
    for client in &mut clients {
        let outcome = client.reply().await;
        assert!(is_closed(&outcome), "{outcome:?}");
    }
}

#[tokio::test]
async fn refuse_closes_new_connections_and_keeps_open_ones() {
    let (_server, proxy, mut old, mut direct) = fixture().await.unwrap();
    old.command(&["PING"]).await.unwrap();
    proxy.refuse(true);
    let mut new = RespClient::connect(proxy.addr()).await.unwrap();
    let outcome = new.command(&["INCR", "n"]).await;
    assert!(is_closed(&outcome), "{outcome:?}");
    assert_eq!(old.command(&["INCR", "n"]).await.unwrap(), Reply::Integer(1));
    assert_eq!(proxy.counts().refused, 1);
    proxy.refuse(false);
    let mut new = RespClient::connect(proxy.addr()).await.unwrap();
    assert_eq!(new.command(&["INCR", "n"]).await.unwrap(), Reply::Integer(2));
    assert_eq!(direct.command(&["GET", "n"]).await.unwrap(), Reply::Bulk("2".to_owned()));
}

#[tokio::test]
async fn freeze_holds_bytes_back_on_old_and_new_connections_and_loses_none() {
    let (_server, proxy, old, mut direct) = fixture().await.unwrap();
    proxy.freeze(true);
    let new = RespClient::connect(proxy.addr()).await.unwrap();
    let (mut old, mut new) = (old.timeout(SILENCE_TIMEOUT), new.timeout(SILENCE_TIMEOUT));
    for client in [&mut old, &mut new] {
        let outcome = client.command(&["INCR", "n"]).await;
        assert!(is_timed_out(&outcome), "open, and silent: {outcome:?}");
    }
    assert_eq!(direct.command(&["GET", "n"]).await.unwrap(), Reply::Nil, "nothing arrived");
    proxy.freeze(false);
    let mut replies = Vec::new();
    for client in [old, new] {
        replies.push(client.timeout(TEST_TIMEOUT).reply().await.unwrap());
    }
    replies.sort_by_key(|reply| *reply == Reply::Integer(2));
    assert_eq!(replies, [Reply::Integer(1), Reply::Integer(2)]);
}

#[tokio::test]
async fn freeze_also_hides_the_death_of_the_server() {
    let (mut server, proxy, mut client, _direct) = fixture().await.unwrap();
    client.command(&["PING"]).await.unwrap();
    let mut client = client.timeout(SILENCE_TIMEOUT);
    proxy.freeze(true);
    server.kill().unwrap();
    assert!(is_timed_out(&client.reply().await));
    proxy.freeze(false);
    let outcome = client.timeout(TEST_TIMEOUT).reply().await;
    assert!(is_closed(&outcome), "{outcome:?}");
}

#[tokio::test]
async fn delay_applies_to_both_directions_and_can_be_removed() {
    let (_server, proxy, mut client, mut direct) = fixture().await.unwrap();
    let delay = Duration::from_millis(150);
    proxy.delay(delay);
    let sent = Instant::now();
    client.command(&["INCR", "n"]).await.unwrap();
    assert!(sent.elapsed() >= 2 * delay, "a lower bound, so that a slow machine does not matter");

    // The new delay also applies to a chunk that is already held back.
    proxy.delay(Duration::from_secs(86_400));
    client.send(&["INCR", "n"]).await.unwrap();
    let mut client = client.timeout(SILENCE_TIMEOUT);
    assert!(is_timed_out(&client.reply().await));
    assert_eq!(direct.command(&["GET", "n"]).await.unwrap(), Reply::Bulk("1".to_owned()));
    proxy.delay(Duration::ZERO);
    assert_eq!(client.timeout(TEST_TIMEOUT).reply().await.unwrap(), Reply::Integer(2));
}

#[tokio::test]
async fn dropped_replies_are_lost_although_the_requests_were_executed() {
    let (_server, proxy, client, mut direct) = fixture().await.unwrap();
    let mut untouched = RespClient::connect(proxy.addr()).await.unwrap();
    untouched.command(&["PING"]).await.unwrap();
    proxy.drop_replies(true);
    let mut client = client.timeout(SILENCE_TIMEOUT);
    assert!(is_timed_out(&client.command(&["INCR", "n"]).await));
    wait_for_number(&mut direct, 1).await;
    eventually(TEST_TIMEOUT, || async {
        let lost = proxy.counts().dropped_bytes;
        if lost == b":1\r\n".len() as u64 { Ok(()) } else { Err(format!("{lost} bytes are lost")) }
    })
    .await;

    proxy.drop_replies(false);
    // The client must not take the next reply for the lost one.
    assert!(is_timed_out(&client.command(&["INCR", "n"]).await));
    wait_for_number(&mut direct, 2).await;
    assert_eq!(untouched.command(&["INCR", "n"]).await.unwrap(), Reply::Integer(3));
    let mut new = RespClient::connect(proxy.addr()).await.unwrap();
    assert_eq!(new.command(&["INCR", "n"]).await.unwrap(), Reply::Integer(4));
}

#[tokio::test]
async fn cut_after_request_executes_one_request_and_drops_its_reply_and_connection() {
    let (_server, proxy, mut client, mut direct) = fixture().await.unwrap();
    client.command(&["PING"]).await.unwrap();
    proxy.cut_after_request();
    let outcome = client.command(&["INCR", "n"]).await;
    assert!(is_closed(&outcome), "{outcome:?}");
    wait_for_number(&mut direct, 1).await;
    // The rule applies to one request only: the next one gets its reply.
    let mut again = RespClient::connect(proxy.addr()).await.unwrap();
    assert_eq!(again.command(&["INCR", "n"]).await.unwrap(), Reply::Integer(2));
    assert_eq!(again.command(&["INCR", "n"]).await.unwrap(), Reply::Integer(3));
}

#[tokio::test]
async fn cut_after_request_waits_for_the_servers_reply() {
    let (mut server, proxy, mut client, mut direct) = fixture().await.unwrap();
    client.command(&["PING"]).await.unwrap();
    let before = proxy.counts().request_bytes;
    server.pause().unwrap();
    proxy.cut_after_request();
    client.send(&["INCR", "n"]).await.unwrap();
    let passed = eventually(TEST_TIMEOUT, || async {
        let sent = proxy.counts().request_bytes;
        if sent > before { Ok(sent) } else { Err("nothing was passed on") }
    })
    .await;
    // Requests that the client sends after that one are not forwarded, even if the rules change.
    client.send(&["INCR", "n"]).await.unwrap();
    let mut client = client.timeout(SILENCE_TIMEOUT);
    for _ in 0..3 {
        proxy.delay(Duration::ZERO);
        let outcome = client.reply().await;
        assert!(is_timed_out(&outcome), "not closed before the server has replied: {outcome:?}");
    }
    assert_eq!(proxy.counts().request_bytes, passed);
    server.resume().unwrap();
    let outcome = client.timeout(TEST_TIMEOUT).reply().await;
    assert!(is_closed(&outcome), "{outcome:?}");
    assert_eq!(direct.command(&["GET", "n"]).await.unwrap(), Reply::Bulk("1".to_owned()));
}

#[tokio::test]
async fn cut_after_request_keeps_reading_until_the_server_closes() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap()).await.unwrap();
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    proxy.cut_after_request();
    client.write_all(b"request").await.unwrap();
    eventually(TEST_TIMEOUT, || async {
        let sent = proxy.counts().request_bytes;
        if sent > 0 { Ok(()) } else { Err("nothing was passed on") }
    })
    .await;
    // The client is cut off by an earlier reply while the server still executes the request.
    server.write_all(b"to something else").await.unwrap();
    assert_eq!(timeout(TEST_TIMEOUT, client.read(&mut [0; 64])).await.unwrap().unwrap(), 0);
    let mut seen = Vec::new();
    timeout(TEST_TIMEOUT, server.read_to_end(&mut seen)).await.unwrap().unwrap();
    assert_eq!(seen, b"request");
    // The proxy reads all further replies: a reset of the connection would abort the request.
    for _ in 0..3 {
        let before = proxy.counts().dropped_bytes;
        server.write_all(b"more").await.unwrap();
        eventually(TEST_TIMEOUT, || async {
            let more = proxy.counts().dropped_bytes - before;
            if more == 4 { Ok(()) } else { Err(format!("{more} bytes were taken")) }
        })
        .await;
    }
}

#[tokio::test]
async fn duplicated_requests_are_executed_twice() {
    let (_server, proxy, mut client, _direct) = fixture().await.unwrap();
    proxy.duplicate_requests(true);
    assert_eq!(client.command(&["INCR", "n"]).await.unwrap(), Reply::Integer(1));
    assert_eq!(client.reply().await.unwrap(), Reply::Integer(2), "the doubled reply comes, too");
    proxy.duplicate_requests(false);
    assert_eq!(client.command(&["INCR", "n"]).await.unwrap(), Reply::Integer(3));
    assert!(is_timed_out(&client.timeout(SILENCE_TIMEOUT).reply().await));
}

#[tokio::test]
async fn held_back_bytes_are_bounded() {
    let (_server, proxy, _client, _direct) = fixture().await.unwrap();
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    stream.write_all(b"PING\r\n").await.unwrap();
    stream.read_exact(&mut [0; 7]).await.unwrap();
    let before = proxy.counts().request_bytes;
    proxy.freeze(true);
    // Writes until the proxy and all socket buffers are full.
    let (chunk, mut written) = (vec![b'x'; 64 * 1024], 0);
    while timeout(SILENCE_TIMEOUT, stream.writable()).await.is_ok() {
        written += stream.try_write(&chunk).unwrap_or(0);
        assert!(written < 64 * 1024 * 1024, "the proxy reads without a limit");
    }
    assert_eq!(proxy.counts().request_bytes, before);
}

#[tokio::test]
async fn a_dropped_proxy_closes_its_connections_and_its_port() {
    let (_server, proxy, mut client, _direct) = fixture().await.unwrap();
    client.command(&["PING"]).await.unwrap();
    let addr = proxy.addr();
    proxy.freeze(true);
    drop(proxy);
    let outcome = client.command(&["PING"]).await;
    assert!(is_closed(&outcome), "{outcome:?}");
    assert!(RespClient::connect(addr).await.is_err());
}

#[tokio::test]
async fn a_target_that_is_down_closes_the_connection() {
    let (mut server, proxy, mut client, _direct) = fixture().await.unwrap();
    server.kill().unwrap();
    assert!(is_closed(&client.command(&["PING"]).await));
    let mut new = RespClient::connect(proxy.addr()).await.unwrap();
    assert!(is_closed(&new.command(&["PING"]).await));
}

#[tokio::test]
async fn a_server_that_dies_during_a_request_resets_the_client() {
    let (mut server, proxy, mut client, _direct) = fixture().await.unwrap();
    server.pause().unwrap();
    client.send(&["INCR", "n"]).await.unwrap();
    eventually(TEST_TIMEOUT, || async {
        let sent = proxy.counts().request_bytes;
        if sent > 0 { Ok(()) } else { Err("nothing has reached the server") }
    })
    .await;
    server.kill().unwrap();
    let outcome = client.reply().await;
    assert!(is_closed(&outcome), "{outcome:?}");
}
