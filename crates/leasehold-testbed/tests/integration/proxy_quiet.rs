//! Connections that go silent, requests that arrive twice, and replies that name other servers.
#![allow(clippy::unwrap_used, reason = "a test: what fails here is the finding")]

use std::time::Duration;

use leasehold_testbed::{
    Proxy, Server, eventually,
    redis::{self, Reply, Resp},
};

const BOUND: Duration = leasehold_testbed::BOUND;
/// An answer that does not come within this does not come.
const SOON: Duration = Duration::from_millis(300);

async fn site() -> (Server, Proxy) {
    let server = redis::start().await.unwrap();
    let proxy = Proxy::start(server.addr()).await.unwrap();
    (server, proxy)
}

async fn ping(client: &mut Resp) -> Result<Reply, leasehold_testbed::Error> {
    client.command(&["PING"]).await
}

#[tokio::test]
async fn half_of_the_connections_hear_nothing_not_even_the_end() {
    for older in [true, false] {
        let (mut server, proxy) = site().await;
        let mut clients = Vec::new();
        for _ in 0..2 {
            let mut client = Resp::connect(proxy.addr()).await.unwrap();
            ping(&mut client).await.unwrap();
            clients.push(client);
        }
        proxy.silence_half(older);
        server.kill().unwrap();
        let mut silent = clients.remove(if older { 0 } else { 1 }).bound(SOON);
        let told = ping(&mut clients[0]).await.unwrap_err().to_string();
        assert!(!told.contains("within"), "the other is told of the end: {told}");
        let mute = ping(&mut silent).await.unwrap_err().to_string();
        assert!(mute.contains("within"), "nothing comes, not even the end: {mute}");
        server.restart(leasehold_testbed::Data::Keep).await.unwrap();
        ping(&mut Resp::connect(proxy.addr()).await.unwrap()).await.unwrap();
        drop((clients, silent));
        eventually(BOUND, || async { if proxy.counts().open == 0 { Ok(()) } else { Err("one is kept for nobody") } })
            .await;
    }
}

#[tokio::test]
async fn a_request_arrives_twice_and_its_client_hears_of_neither() {
    let (server, proxy) = site().await;
    let mut client = Resp::connect(proxy.addr()).await.unwrap();
    proxy.double_and_cut();
    client.command(&["INCR", "n"]).await.unwrap_err();
    let mut client = Resp::connect(proxy.addr()).await.unwrap();
    let seen = eventually(BOUND, || async {
        match Resp::connect(server.addr()).await.unwrap().command(&["GET", "n"]).await.unwrap() {
            Reply::Bulk(text) if text == "2" => Ok(text),
            other => Err(format!("{other:?}")),
        }
    });
    seen.await;
    assert_eq!(client.command(&["INCR", "n"]).await.unwrap(), Reply::Integer(3), "only once");
    proxy.cut_after_request();
    proxy.double_and_cut();
    proxy.disarm();
    assert_eq!(client.command(&["INCR", "n"]).await.unwrap(), Reply::Integer(4), "taken back");
}

#[tokio::test]
async fn replies_name_others() {
    let (_server, proxy) = site().await;
    let mut client = Resp::connect(proxy.addr()).await.unwrap();
    client.command(&["SET", "where", "12345 and 12345, not 1234"]).await.unwrap();
    proxy.translate("12345", "54321").unwrap();
    let seen = client.command(&["GET", "where"]).await.unwrap();
    assert_eq!(seen, Reply::Bulk("54321 and 54321, not 1234".to_owned()));
    assert!(proxy.translate("1", "22").is_err() && proxy.translate("", "").is_err());
}
