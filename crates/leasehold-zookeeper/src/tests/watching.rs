//! Watches, over reconnects and when dropped.

use super::peer::{Packet, Peer, open_connected, stat};
use crate::jute::Reader;
use crate::wire::{op, xid};
use crate::{Client, EventType, OneshotWatcher, SessionState};

async fn watch_data(client: &Client, peer: &mut Peer, path: &str, zxid: i64) -> OneshotWatcher {
    let request = client.get_and_watch_data(path);
    let packet = peer.expect(op::GET_DATA).await;
    assert_eq!(packet.body.last(), Some(&1), "a watch is requested");
    peer.reply(packet.xid, zxid, 0, |writer| {
        writer.buffer(b"");
        stat(writer, zxid);
    })
    .await;
    request.await.expect("a watch").2
}

async fn watch_children(client: &Client, peer: &mut Peer, path: &str) -> OneshotWatcher {
    let request = client.list_and_watch_children(path);
    let packet = peer.expect(op::GET_CHILDREN).await;
    peer.reply(packet.xid, 2, 0, |writer| writer.texts(["x"].into_iter())).await;
    request.await.expect("a watch").1
}

async fn watch_absent(client: &Client, peer: &mut Peer, path: &str) -> OneshotWatcher {
    let request = client.check_and_watch_stat(path);
    let packet = peer.expect(op::EXISTS).await;
    peer.reply(packet.xid, 3, -101, |_| {}).await;
    let (stat, watcher) = request.await.expect("a watch");
    assert_eq!(stat, None);
    watcher
}

#[tokio::test(start_paused = true)]
async fn an_event_right_after_the_reply_is_delivered() {
    let (client, mut peer, _ensemble) = open_connected("a").await;
    let request = client.get_and_watch_data("/a");
    let packet = peer.expect(op::GET_DATA).await;
    peer.reply(packet.xid, 1, 0, |writer| {
        writer.buffer(b"");
        stat(writer, 1);
    })
    .await;
    peer.send_event(2, "/a").await;
    tokio::task::yield_now().await;
    let (_, _, watcher) = request.await.unwrap();
    let event = watcher.changed().await;
    assert_eq!((event.event_type, event.path.as_str()), (EventType::NodeDeleted, "/a"));
}

#[tokio::test(start_paused = true)]
async fn watches_are_set_again_after_a_reconnect() {
    let (client, mut peer, mut ensemble) = open_connected("a,b").await;
    let data = watch_data(&client, &mut peer, "/data", 40).await;
    let children = watch_children(&client, &mut peer, "/children").await;
    let absent = watch_absent(&client, &mut peer, "/absent").await;
    drop(peer);
    let mut peer = ensemble.next().await;
    peer.accept_session().await;
    let Packet { xid, body, .. } = peer.expect(op::SET_WATCHES).await;
    assert_eq!(xid, xid::SET_WATCHES);
    let mut reader = Reader::new(&body);
    assert_eq!(reader.long(), Ok(40), "the server reports later events");
    let lists = [reader.texts().unwrap(), reader.texts().unwrap(), reader.texts().unwrap()];
    assert_eq!(lists, [["/data"], ["/absent"], ["/children"]]);
    // One was deleted meanwhile.
    peer.send_event(2, "/data").await;
    peer.reply(xid::SET_WATCHES, 41, 0, |_| {}).await;
    peer.answer_ping().await;
    assert_eq!(data.changed().await.event_type, EventType::NodeDeleted);
    peer.send_event(1, "/absent").await;
    assert_eq!(absent.changed().await.event_type, EventType::NodeCreated);
    peer.send_event(4, "/children").await;
    assert_eq!(children.changed().await.event_type, EventType::NodeChildrenChanged);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_watcher_is_removed_at_the_server() {
    let (client, mut peer, mut ensemble) = open_connected("a").await;
    for _ in 0..3 {
        drop(watch_children(&client, &mut peer, "/a").await);
        let removed = peer.expect(op::REMOVE_WATCHES).await;
        assert_eq!(removed.path(), "/a");
        assert_eq!(removed.body[removed.body.len() - 4..], 1_i32.to_be_bytes());
        // The event was in transit.
        peer.reply(removed.xid, 4, -121, |_| {}).await;
    }
    // A future that is dropped before its reply leaves no watch either.
    drop(client.get_and_watch_data("/b"));
    let packet = peer.expect(op::GET_DATA).await;
    peer.reply(packet.xid, 1, 0, |writer| {
        writer.buffer(b"");
        stat(writer, 1);
    })
    .await;
    let removed = peer.expect(op::REMOVE_WATCHES).await;
    assert_eq!(removed.path(), "/b");
    drop(peer);
    // No watch is set again: the next packet is the ping.
    ensemble.next_session().await;
}

/// The server has one watch for both, and a removal would also remove one that was requested before
/// it.
#[tokio::test(start_paused = true)]
async fn a_watch_that_another_needs_is_not_removed() {
    let (client, mut peer, _ensemble) = open_connected("a").await;
    let first = watch_data(&client, &mut peer, "/a", 1).await;
    let second = watch_data(&client, &mut peer, "/a", 1).await;
    drop(first);
    peer.answer_ping().await;
    let third = client.get_and_watch_data("/a");
    drop(second);
    let packet = peer.expect(op::GET_DATA).await;
    peer.reply(packet.xid, 1, 0, |writer| {
        writer.buffer(b"");
        stat(writer, 1);
    })
    .await;
    let (_, _, third) = third.await.unwrap();
    peer.answer_ping().await;
    peer.send_event(3, "/a").await;
    assert_eq!(third.changed().await.event_type, EventType::NodeDataChanged);
}

#[tokio::test(start_paused = true)]
async fn no_watch_is_left_where_there_is_no_node() {
    let (client, mut peer, mut ensemble) = open_connected("a").await;
    let request = client.get_and_watch_data("/a");
    let packet = peer.expect(op::GET_DATA).await;
    peer.reply(packet.xid, 1, -101, |_| {}).await;
    assert!(request.await.is_err());
    drop(peer);
    ensemble.next_session().await;
}

#[tokio::test(start_paused = true)]
async fn watchers_learn_of_the_session_end_but_not_of_lost_connections() {
    let (client, mut peer, mut ensemble) = open_connected("a").await;
    let watching = tokio::spawn(watch_data(&client, &mut peer, "/a", 1).await.changed());
    drop(peer);
    let mut peer = ensemble.next().await;
    peer.accept_session().await;
    peer.expect(op::SET_WATCHES).await;
    assert!(!watching.is_finished());
    peer.reply(xid::SET_WATCHES, 1, -112, |_| {}).await;
    let event = watching.await.unwrap();
    assert_eq!((event.event_type, event.session_state), (EventType::Session, SessionState::Expired));
}
