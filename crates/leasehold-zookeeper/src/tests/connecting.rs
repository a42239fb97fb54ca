//! Opening a session, and keeping it.

use std::time::Duration;

use tokio::time::Instant;

use super::peer::{ConnectRequest, ID, PASSWORD, TIMEOUT, open, open_connected, settings};
use crate::session::Settings;
use crate::wire::{op, xid};
use crate::{Error, SessionState};

#[tokio::test(start_paused = true)]
async fn a_session_is_opened() {
    let (opening, mut ensemble) = open(settings(), "a");
    let mut peer = ensemble.next().await;
    assert_eq!(peer.read_connect_request().await, ConnectRequest { last_zxid: 0, id: 0, password: vec![0; 16] });
    peer.send_connect_response(Duration::from_secs(4)).await;
    peer.answer_ping().await;
    let client = opening.await.unwrap().unwrap();
    assert_eq!((client.session_id().0, client.session_timeout()), (ID, Duration::from_secs(4)));
    assert_eq!(client.state(), SessionState::SyncConnected);
    assert!(!format!("{client:?}").contains('7'), "no password: {client:?}");
}

#[tokio::test(start_paused = true)]
async fn logins_are_sent_first_and_a_refusal_is_reported_at_once() {
    let logins = vec![("digest".to_owned(), b"ann:sesame".to_vec())];
    let settings = Settings { logins, ..settings() };
    assert!(!format!("{settings:?}").contains("sesame"));
    let (opening, mut ensemble) = open(settings, "a,b");
    let mut peer = ensemble.next().await;
    peer.accept_session().await;
    let login = peer.expect(op::AUTH).await;
    assert_eq!(login.xid, xid::AUTH);
    assert!(login.body.ends_with(b"ann:sesame"));
    peer.reply(xid::AUTH, 0, -115, |_| {}).await;
    assert_eq!(opening.await.unwrap().unwrap_err(), Error::AuthFailed);
}

/// An idle client sends a ping; a server that responds is kept.
#[tokio::test(start_paused = true)]
async fn an_idle_session_pings_at_a_third_of_its_timeout() {
    let (client, mut peer, _ensemble) = open_connected("a,b").await;
    for _ in 0..5 {
        let start = Instant::now();
        peer.answer_ping().await;
        assert_eq!(start.elapsed(), TIMEOUT / 3);
    }
    assert_eq!(client.state(), SessionState::SyncConnected);
}

#[tokio::test(start_paused = true)]
async fn requests_take_the_place_of_pings() {
    let (client, mut peer, _ensemble) = open_connected("a").await;
    tokio::time::sleep(TIMEOUT / 4).await;
    let request = tokio::spawn(client.sync("/"));
    let packet = peer.expect(op::SYNC).await;
    peer.reply(packet.xid, 1, 0, |writer| writer.text("/")).await;
    assert_eq!(request.await.unwrap(), Ok(()));
    let start = Instant::now();
    peer.answer_ping().await;
    assert_eq!(start.elapsed(), TIMEOUT / 3);
}

/// The server accepts the connection, and sends no data.
#[tokio::test(start_paused = true)]
async fn a_hung_server_is_replaced_by_another() {
    let connection_timeout = Duration::from_secs(2);
    let (opening, mut ensemble) = open(Settings { connection_timeout: Some(connection_timeout), ..settings() }, "a,b");
    let hung = ensemble.next().await;
    let mut peer = ensemble.next().await;
    assert_eq!(
        (hung.host.as_str(), peer.host.as_str(), peer.opened_at - hung.opened_at),
        ("a", "b", connection_timeout)
    );
    peer.accept_session().await;
    peer.answer_ping().await;
    assert!(opening.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn servers_are_tried_again_until_the_timeout_is_over() {
    let (opening, mut ensemble) = open(settings(), "a,b");
    let start = Instant::now();
    let refusing = tokio::spawn(async move {
        let mut times = Vec::new();
        loop {
            times.push(ensemble.next().await.opened_at);
            if times.len() == 8 {
                break times;
            }
        }
    });
    let times = refusing.await.unwrap();
    let pauses: Vec<u128> = times.windows(2).map(|two| (two[1] - two[0]).as_millis()).collect();
    assert_eq!(pauses, [0, 50, 0, 100, 0, 200, 0]);
    assert_eq!(opening.await.unwrap().unwrap_err(), Error::Timeout);
    assert_eq!(start.elapsed(), TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn an_eager_client_tries_each_server_once() {
    let (opening, mut ensemble) = open(Settings { fail_eagerly: true, ..settings() }, "a,b");
    drop(ensemble.next().await);
    drop(ensemble.next().await);
    assert_eq!(opening.await.unwrap().unwrap_err(), Error::NoHosts);
}

#[tokio::test(start_paused = true)]
async fn the_last_client_closes_the_session() {
    let (client, mut peer, _ensemble) = open_connected("a").await;
    let (other, mut states) = (client.clone(), client.state_watcher());
    drop(client);
    let request = other.delete("/a", None);
    drop(other);
    let packet = peer.expect(op::DELETE).await;
    let close = peer.expect(op::CLOSE_SESSION).await;
    assert_eq!(states.peek_state(), SessionState::SyncConnected);
    peer.reply(packet.xid, 1, 0, |_| {}).await;
    assert_eq!(request.await, Ok(()));
    peer.reply(close.xid, 2, 0, |_| {}).await;
    assert_eq!(states.changed().await, SessionState::Closed);
    assert!(peer.is_disconnected().await);
}

/// If a client closes its session while it has no connection, the servers need not wait for the
/// session's timeout.
#[tokio::test(start_paused = true)]
async fn a_session_is_closed_over_the_next_connection() {
    let (client, peer, mut ensemble) = open_connected("a,b").await;
    let mut states = client.state_watcher();
    drop(peer);
    assert_eq!(states.changed().await, SessionState::Disconnected);
    drop(client);
    let mut peer = ensemble.next().await;
    assert_eq!(peer.accept_session().await, ConnectRequest { last_zxid: 0, id: ID, password: PASSWORD.to_vec() });
    peer.answer_ping().await;
    let close = peer.expect(op::CLOSE_SESSION).await;
    peer.reply(close.xid, 2, 0, |_| {}).await;
    while states.changed().await != SessionState::Closed {}
}
