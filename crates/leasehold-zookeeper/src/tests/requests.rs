//! Requests and their replies.

use super::peer::{open, open_connected, settings, stat};
use crate::wire::{MAX_FRAME, op};
use crate::{Acls, CreateMode, Error, MultiWriteError, MultiWriteResult, SessionState};

#[tokio::test(start_paused = true)]
async fn requests_are_sent_when_made_and_answered_in_order() {
    let (client, mut peer, _ensemble) = open_connected("a").await;
    let (first, second) = (client.get_data("/a"), client.check_stat("/b"));
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let third = client.create("/l/c-", b"me", &options);
    // None of them was polled yet.
    let packets = [peer.packet().await, peer.packet().await, peer.packet().await];
    assert_eq!(packets.each_ref().map(|packet| packet.op), [op::GET_DATA, op::EXISTS, op::CREATE_WITH_STAT]);
    peer.reply(packets[0].xid, 5, 0, |writer| {
        writer.buffer(b"data");
        stat(writer, 5);
    })
    .await;
    peer.reply(packets[1].xid, 5, -101, |_| {}).await;
    peer.reply(packets[2].xid, 6, 0, |writer| {
        writer.text("/l/c-0000000017");
        stat(writer, 6);
    })
    .await;
    let (created, sequence) = third.await.unwrap();
    assert_eq!((created.czxid, sequence.into_i64()), (6, 17));
    assert_eq!(second.await, Ok(None));
    assert_eq!(first.await.map(|(data, stat)| (data, stat.czxid)), Ok((b"data".to_vec(), 5)));
}

#[tokio::test(start_paused = true)]
async fn dropping_a_future_does_not_cancel_its_request() {
    let (client, mut peer, _ensemble) = open_connected("a").await;
    drop(client.delete("/a", None));
    let kept = client.delete("/b", Some(3));
    let (first, second) = (peer.expect(op::DELETE).await, peer.expect(op::DELETE).await);
    assert_eq!((first.path(), second.path()), ("/a".to_owned(), "/b".to_owned()));
    peer.reply(first.xid, 1, 0, |_| {}).await;
    peer.reply(second.xid, 1, -103, |_| {}).await;
    assert_eq!(kept.await, Err(Error::BadVersion));
}

#[tokio::test(start_paused = true)]
async fn a_transaction_returns_each_result_or_the_failed_part() {
    let (client, mut peer, _ensemble) = open_connected("a").await;
    let mut all = client.new_multi_writer();
    assert_eq!(all.commit().await, Ok(Vec::new()), "no request is sent");
    let request = |all: &mut crate::MultiWriter<'_>| {
        all.add_check_version("/a", -1).unwrap();
        all.add_create("/b", b"", &CreateMode::Container.with_acls(Acls::anyone_all())).unwrap();
        all.add_set_data("/c", b"x", None).unwrap();
        assert!(all.add_delete("no path", None).is_err());
        all.commit()
    };
    let done = request(&mut all);
    let packet = peer.expect(op::MULTI).await;
    peer.reply(packet.xid, 9, 0, |writer| {
        let mut part = |op: i32, end: bool| {
            writer.int(op);
            writer.flag(end);
            writer.int(0);
            match op {
                op::CREATE_CONTAINER => {
                    writer.text("/b");
                    stat(writer, 9);
                }
                op::SET_DATA => stat(writer, 9),
                _ => {}
            }
        };
        part(op::CHECK, false);
        part(op::CREATE_CONTAINER, false);
        part(op::SET_DATA, false);
        part(op::ERROR, true);
    })
    .await;
    let done = done.await.unwrap();
    let [MultiWriteResult::Check, MultiWriteResult::Create { path, .. }, MultiWriteResult::SetData { stat }] =
        &done[..]
    else {
        panic!("{done:?}")
    };
    assert_eq!((path.as_str(), stat.mzxid), ("/b", 9));

    let failed = request(&mut all);
    let packet = peer.expect(op::MULTI).await;
    peer.reply(packet.xid, 9, 0, |writer| {
        for code in [0, -110, -2] {
            writer.int(op::ERROR);
            writer.flag(false);
            writer.int(code);
            writer.int(code);
        }
        writer.int(op::ERROR);
        writer.flag(true);
        writer.int(-1);
    })
    .await;
    let error = MultiWriteError::OperationFailed { index: 1, source: Error::NodeExists };
    assert_eq!(failed.await, Err(error));
}

/// From the node upwards: a client may lack the right to create a node that exists already.
#[tokio::test(start_paused = true)]
async fn missing_parents_are_created() {
    let (client, mut peer, _ensemble) = open_connected("a").await;
    let making = tokio::spawn({
        let client = client.clone();
        async move { client.mkdir("/a/b/c", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await }
    });
    for (path, code) in [("/a/b/c", -101), ("/a/b", -101), ("/a", -110), ("/a/b", 0), ("/a/b/c", 0)] {
        let packet = peer.expect(op::CREATE_WITH_STAT).await;
        assert_eq!(packet.path(), path);
        peer.reply(packet.xid, 1, code, |writer| {
            writer.text(path);
            stat(writer, 1);
        })
        .await;
    }
    assert_eq!(making.await.unwrap(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_malformed_reply_is_an_error_and_not_a_panic() {
    let (client, mut peer, _ensemble) = open_connected("a").await;
    let request = client.get_data("/a");
    let packet = peer.expect(op::GET_DATA).await;
    peer.reply(packet.xid, 1, 0, |writer| writer.int(1_000)).await;
    assert!(matches!(request.await, Err(Error::Malformed(_))));
    assert_eq!(client.state(), SessionState::SyncConnected);
}

/// For any bytes from a server, a request ends with an error or a reply, and the session continues.
#[tokio::test(start_paused = true)]
async fn garbage_never_panics() {
    let (client, mut peer, _ensemble) = open_connected("a").await;
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..2_000 {
        let (data, list, acl) = (client.get_data("/a"), client.get_children("/a"), client.get_acl("/a"));
        let made = client.create("/a-", b"", &CreateMode::EphemeralSequential.with_acls(Acls::anyone_all()));
        let mut all = client.new_multi_writer();
        all.add_delete("/a", None).unwrap();
        let done = all.commit();
        for _ in 0..5 {
            let packet = peer.packet().await;
            peer.reply(packet.xid, 1, 0, |writer| {
                for _ in 0..round % 40 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    // Small numbers are plausible lengths and kinds.
                    writer.int(i32::try_from(random >> 60).unwrap() - 2);
                }
            })
            .await;
        }
        let _ = tokio::join!(data, list, acl, made, done);
    }
    assert_eq!(client.state(), SessionState::SyncConnected);
}

/// Malformed bytes end the connection, but not the session.
#[tokio::test(start_paused = true)]
async fn a_frame_that_is_too_long_or_out_of_order_ends_the_connection() {
    for wrong in [true, false] {
        let (client, mut peer, mut ensemble) = open_connected("a").await;
        let request = client.get_data("/a");
        let packet = peer.expect(op::GET_DATA).await;
        if wrong {
            use tokio::io::AsyncWriteExt;
            peer.stream.write_i32(i32::try_from(MAX_FRAME).unwrap() + 1).await.unwrap();
        } else {
            peer.reply(packet.xid + 1, 1, 0, |_| {}).await;
        }
        assert_eq!(request.await, Err(Error::ConnectionLoss));
        assert!(peer.is_disconnected().await);
        let mut peer = ensemble.next_session().await;
        let again = client.sync("/");
        let packet = peer.expect(op::SYNC).await;
        peer.reply(packet.xid, 1, 0, |_| {}).await;
        assert_eq!(again.await, Ok(()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_malformed_connect_response_opens_no_session() {
    let (opening, mut ensemble) = open(settings(), "a");
    let mut peer = ensemble.next().await;
    peer.read_connect_request().await;
    peer.reply(0, 0, 0, |_| {}).await;
    ensemble.next_session().await;
    assert!(opening.await.unwrap().is_ok(), "the next attempt is another");
}
