//! Connections that break, and sessions that end.

use std::time::Duration;

use tokio::time::Instant;

use super::peer::{Hello, ID, PASSWORD, TIMEOUT, opened, stat};
use crate::wire::op;
use crate::{Error, SessionState};

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_left_for_another_with_the_same_session() {
    let (client, mut peer, mut ensemble) = opened("a,b").await;
    let mut states = client.state_watcher();
    let asked = client.check_stat("/a");
    let packet = peer.expect(op::EXISTS).await;
    peer.reply(packet.xid, 77, 0, |writer| stat(writer, 77)).await;
    assert!(asked.await.is_ok());
    let (start, before) = (Instant::now(), client.changes().load(std::sync::atomic::Ordering::Acquire));
    assert_eq!(states.changed().await, SessionState::Disconnected);
    assert_eq!(start.elapsed(), TIMEOUT * 2 / 3);
    peer.expect(op::PING).await;
    assert!(peer.is_left().await);
    let mut peer = ensemble.next().await;
    assert_eq!(peer.host, "b");
    assert_eq!(peer.welcome().await, Hello { last_zxid: 77, id: ID, password: PASSWORD.to_vec() });
    peer.pong().await;
    assert_eq!(states.changed().await, SessionState::SyncConnected);
    assert_eq!(client.changes().load(std::sync::atomic::Ordering::Acquire), before + 2);
}

#[tokio::test(start_paused = true)]
async fn what_was_sent_is_lost_with_the_line_and_what_is_asked_later_waits() {
    let (client, mut peer, mut ensemble) = opened("a,b").await;
    let sent = client.set_data("/a", b"1", None);
    peer.expect(op::SET_DATA).await;
    drop(peer);
    assert_eq!(sent.await, Err(Error::ConnectionLoss));
    assert_eq!(client.state(), SessionState::Disconnected);
    let later = client.set_data("/a", b"2", None);
    let mut peer = ensemble.serve().await;
    let packet = peer.expect(op::SET_DATA).await;
    assert!(packet.body.ends_with(&[b'2', 0xff, 0xff, 0xff, 0xff]), "{packet:?}");
    peer.reply(packet.xid, 3, 0, |writer| stat(writer, 3)).await;
    assert_eq!(later.await.map(|stat| stat.mzxid), Ok(3));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_the_servers_have_ended_is_over() {
    let (client, peer, mut ensemble) = opened("a,b").await;
    let mut states = client.state_watcher();
    drop(peer);
    assert_eq!(states.changed().await, SessionState::Disconnected);
    let waiting = client.get_data("/a");
    let mut peer = ensemble.next().await;
    peer.hello().await;
    peer.greet(Duration::ZERO).await;
    assert_eq!(states.changed().await, SessionState::Expired);
    assert_eq!(waiting.await, Err(Error::SessionExpired));
    assert_eq!(client.get_data("/a").await, Err(Error::SessionExpired));
    let told = tokio::time::timeout(TIMEOUT, states.changed()).await;
    assert!(told.is_err(), "the end is told once");
}

#[tokio::test(start_paused = true)]
async fn an_answer_may_tell_that_the_session_is_over() {
    let (client, mut peer, _ensemble) = opened("a").await;
    let asked = client.get_data("/a");
    let packet = peer.expect(op::GET_DATA).await;
    peer.reply(packet.xid, 0, -112, |_| {}).await;
    assert_eq!(asked.await, Err(Error::SessionExpired));
    assert_eq!(client.state_watcher().changed().await, SessionState::Expired);
}

/// Without a response of any server the session ends, but not before the servers may have ended it.
#[tokio::test(start_paused = true)]
async fn a_session_that_reaches_no_server_ends_by_itself() {
    let (client, peer, mut ensemble) = opened("a,b").await;
    let mut states = client.state_watcher();
    let start = Instant::now();
    drop(peer);
    let servers = tokio::spawn(async move {
        let mut tried = 0;
        loop {
            let peer = ensemble.next().await;
            tried += 1;
            // One refuses, and the other hangs for a while.
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
async fn a_server_that_hangs_while_reconnecting_is_left() {
    let (client, peer, mut ensemble) = opened("a,b,c").await;
    drop(peer);
    let hung = ensemble.next().await;
    let mut peer = ensemble.serve().await;
    assert_eq!((hung.host.as_str(), peer.host.as_str(), peer.at - hung.at), ("b", "c", TIMEOUT * 2 / 3));
    let asked = client.sync("/");
    let packet = peer.expect(op::SYNC).await;
    peer.reply(packet.xid, 1, 0, |_| {}).await;
    assert_eq!(asked.await, Ok(()));
}

/// A server that accepts every connection and then closes it is not tried in a busy loop.
#[tokio::test(start_paused = true)]
async fn connections_that_break_at_once_are_made_less_often() {
    let (_client, peer, mut ensemble) = opened("a").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(peer);
    let mut times = Vec::new();
    for _ in 0..5 {
        times.push(ensemble.serve().await.at);
    }
    let pauses: Vec<u128> = times.windows(2).map(|two| (two[1] - two[0]).as_millis()).collect();
    assert_eq!(pauses, [50, 100, 200, 400]);
}

#[tokio::test(start_paused = true)]
async fn a_moved_session_goes_on_over_another_connection() {
    let (client, mut peer, mut ensemble) = opened("a").await;
    let (first, second) = (client.sync("/"), client.sync("/"));
    let packet = peer.expect(op::SYNC).await;
    peer.reply(packet.xid, 0, -118, |_| {}).await;
    assert_eq!((first.await, second.await), (Err(Error::SessionMoved), Err(Error::ConnectionLoss)));
    let mut peer = ensemble.next().await;
    assert_eq!(peer.welcome().await.id, ID);
}
