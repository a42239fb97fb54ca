//! Connections that break, and sessions that end.

use std::time::Duration;

use tokio::time::Instant;

use super::peer::{ConnectRequest, ID, PASSWORD, TIMEOUT, open_connected, stat};
use crate::wire::op;
use crate::{Error, SessionState};

#[tokio::test(start_paused = true)]
async fn a_session_moves_from_an_unresponsive_server() {
    let (client, mut peer, mut ensemble) = open_connected("a,b").await;
    let mut states = client.state_watcher();
    let request = client.check_stat("/a");
    let packet = peer.expect(op::EXISTS).await;
    peer.reply(packet.xid, 77, 0, |writer| stat(writer, 77)).await;
    assert!(request.await.is_ok());
    let (start, before) = (Instant::now(), client.state_changes().load(std::sync::atomic::Ordering::Acquire));
    assert_eq!(states.changed().await, SessionState::Disconnected);
    assert_eq!(start.elapsed(), TIMEOUT * 2 / 3);
    peer.expect(op::PING).await;
    assert!(peer.is_disconnected().await);
    let mut peer = ensemble.next().await;
    assert_eq!(peer.host, "b");
    assert_eq!(peer.accept_session().await, ConnectRequest { last_zxid: 77, id: ID, password: PASSWORD.to_vec() });
    peer.answer_ping().await;
    assert_eq!(states.changed().await, SessionState::SyncConnected);
    assert_eq!(client.state_changes().load(std::sync::atomic::Ordering::Acquire), before + 2);
}

#[tokio::test(start_paused = true)]
async fn sent_requests_fail_with_the_connection_and_later_ones_wait() {
    let (client, mut peer, mut ensemble) = open_connected("a,b").await;
    let sent = client.set_data("/a", b"1", None);
    peer.expect(op::SET_DATA).await;
    drop(peer);
    assert_eq!(sent.await, Err(Error::ConnectionLoss));
    assert_eq!(client.state(), SessionState::Disconnected);
    let later = client.set_data("/a", b"2", None);
    let mut peer = ensemble.next_session().await;
    let packet = peer.expect(op::SET_DATA).await;
    assert!(packet.body.ends_with(&[b'2', 0xff, 0xff, 0xff, 0xff]), "{packet:?}");
    peer.reply(packet.xid, 3, 0, |writer| stat(writer, 3)).await;
    assert_eq!(later.await.map(|stat| stat.mzxid), Ok(3));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_the_servers_have_ended_is_over() {
    let (client, peer, mut ensemble) = open_connected("a,b").await;
    let mut states = client.state_watcher();
    drop(peer);
    assert_eq!(states.changed().await, SessionState::Disconnected);
    let waiting = client.get_data("/a");
    let mut peer = ensemble.next().await;
    peer.read_connect_request().await;
    peer.send_connect_response(Duration::ZERO).await;
    assert_eq!(states.changed().await, SessionState::Expired);
    assert_eq!(waiting.await, Err(Error::SessionExpired));
    assert_eq!(client.get_data("/a").await, Err(Error::SessionExpired));
    let second_change = tokio::time::timeout(TIMEOUT, states.changed()).await;
    assert!(second_change.is_err(), "the end is reported once");
}

#[tokio::test(start_paused = true)]
async fn a_reply_may_report_the_end_of_the_session() {
    let (client, mut peer, _ensemble) = open_connected("a").await;
    let request = client.get_data("/a");
    let packet = peer.expect(op::GET_DATA).await;
    peer.reply(packet.xid, 0, -112, |_| {}).await;
    assert_eq!(request.await, Err(Error::SessionExpired));
    assert_eq!(client.state_watcher().changed().await, SessionState::Expired);
}

/// Without a response of any server the session ends, but not before the servers may have ended it.
#[tokio::test(start_paused = true)]
async fn a_session_without_any_server_expires() {
    let (client, peer, mut ensemble) = open_connected("a,b").await;
    let mut states = client.state_watcher();
    let start = Instant::now();
    drop(peer);
    let servers = tokio::spawn(async move {
        let mut tried = 0;
        loop {
            let peer = ensemble.next().await;
            tried += 1;
            // Server `a` closes the connection at once, and `b` hangs for a second first.
            if peer.host == "b" {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            drop(peer);
            if tried > 100 {
                return;
            }
        }
    });
    while states.changed().await != SessionState::Expired {}
    assert_eq!(start.elapsed(), TIMEOUT * 7 / 5);
    servers.abort();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_while_reconnecting_is_skipped() {
    let (client, peer, mut ensemble) = open_connected("a,b,c").await;
    drop(peer);
    let hung = ensemble.next().await;
    let mut peer = ensemble.next_session().await;
    assert_eq!((hung.host.as_str(), peer.host.as_str(), peer.opened_at - hung.opened_at), ("b", "c", TIMEOUT * 2 / 3));
    let request = client.sync("/");
    let packet = peer.expect(op::SYNC).await;
    peer.reply(packet.xid, 1, 0, |_| {}).await;
    assert_eq!(request.await, Ok(()));
}

/// A server that accepts every connection and then closes it is not tried in a busy loop.
#[tokio::test(start_paused = true)]
async fn connections_that_break_at_once_are_retried_with_back_off() {
    let (_client, peer, mut ensemble) = open_connected("a").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(peer);
    let mut times = Vec::new();
    for _ in 0..5 {
        times.push(ensemble.next_session().await.opened_at);
    }
    let pauses: Vec<u128> = times.windows(2).map(|two| (two[1] - two[0]).as_millis()).collect();
    assert_eq!(pauses, [50, 100, 200, 400]);
}

#[tokio::test(start_paused = true)]
async fn a_moved_session_continues_over_another_connection() {
    let (client, mut peer, mut ensemble) = open_connected("a").await;
    let (first, second) = (client.sync("/"), client.sync("/"));
    let packet = peer.expect(op::SYNC).await;
    peer.reply(packet.xid, 0, -118, |_| {}).await;
    assert_eq!((first.await, second.await), (Err(Error::SessionMoved), Err(Error::ConnectionLoss)));
    let mut peer = ensemble.next().await;
    assert_eq!(peer.accept_session().await.id, ID);
}
