//! Silenced connections, duplicated requests, and replacements in replies.
#![allow(clippy::unwrap_used, reason = "tests report failures by panicking")]

use std::time::Duration;

use leasehold_testbed::{
    Proxy, Server, eventually,
    redis::{self, Reply, RespClient},
};

const TEST_TIMEOUT: Duration = leasehold_testbed::TEST_TIMEOUT;
/// A reply that has not arrived after this time counts as lost.
const SILENCE_TIMEOUT: Duration = Duration::from_millis(300);

async fn fixture() -> (Server, Proxy) {
    let server = redis::start().await.unwrap();
    let proxy = Proxy::start(server.addr()).await.unwrap();
    (server, proxy)
}

async fn ping(client: &mut RespClient) -> Result<Reply, leasehold_testbed::Error> {
    client.command(&["PING"]).await
}

#[tokio::test]
async fn silenced_connections_receive_nothing_not_even_a_close() {
    for older in [true, false] {
        let (mut server, proxy) = fixture().await;
        let mut clients = Vec::new();
        for _ in 0..2 {
            let mut client = RespClient::connect(proxy.addr()).await.unwrap();
            ping(&mut client).await.unwrap();
            clients.push(client);
        }
        proxy.silence_half(older);
        server.kill().unwrap();
        let mut silent = clients.remove(if older { 0 } else { 1 }).timeout(SILENCE_TIMEOUT);
        let error = ping(&mut clients[0]).await.unwrap_err().to_string();
        assert!(!error.contains("within"), "the connection should be closed: {error}");
        let mute = ping(&mut silent).await.unwrap_err().to_string();
        assert!(mute.contains("within"), "no bytes pass, and the client does not learn that the server closed: {mute}");
        server.restart(leasehold_testbed::Data::Keep).await.unwrap();
        ping(&mut RespClient::connect(proxy.addr()).await.unwrap()).await.unwrap();
        drop((clients, silent));
        eventually(TEST_TIMEOUT, || async {
            if proxy.counts().open == 0 { Ok(()) } else { Err("a connection is still open") }
        })
        .await;
    }
}

#[tokio::test]
async fn a_duplicated_request_is_executed_twice_and_its_client_gets_no_reply() {
    let (server, proxy) = fixture().await;
    let mut client = RespClient::connect(proxy.addr()).await.unwrap();
    proxy.duplicate_and_cut();
    client.command(&["INCR", "n"]).await.unwrap_err();
    let mut client = RespClient::connect(proxy.addr()).await.unwrap();
    let seen = eventually(TEST_TIMEOUT, || async {
        match RespClient::connect(server.addr()).await.unwrap().command(&["GET", "n"]).await.unwrap() {
            Reply::Bulk(text) if text == "2" => Ok(text),
            other => Err(format!("{other:?}")),
        }
    });
    seen.await;
    assert_eq!(client.command(&["INCR", "n"]).await.unwrap(), Reply::Integer(3), "only once");
    proxy.cut_after_request();
    proxy.duplicate_and_cut();
    proxy.cancel_pending_cuts();
    assert_eq!(client.command(&["INCR", "n"]).await.unwrap(), Reply::Integer(4), "taken back");
}

#[tokio::test]
async fn text_in_replies_is_replaced() {
    let (_server, proxy) = fixture().await;
    let mut client = RespClient::connect(proxy.addr()).await.unwrap();
    client.command(&["SET", "where", "12345 and 12345, not 1234"]).await.unwrap();
    proxy.replace_in_replies("12345", "54321").unwrap();
    let seen = client.command(&["GET", "where"]).await.unwrap();
    assert_eq!(seen, Reply::Bulk("54321 and 54321, not 1234".to_owned()));
    assert!(proxy.replace_in_replies("1", "22").is_err() && proxy.replace_in_replies("", "").is_err());
}
