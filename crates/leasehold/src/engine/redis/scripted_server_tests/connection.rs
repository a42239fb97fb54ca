//! Connections that fail, and how soon the client reconnects.

use std::time::Duration;

use super::server::{ConnectReaction, Reaction};
use super::{TTL, millis, with_server};
use crate::clock::Instant;
use crate::core::guard::ReleaseOutcome;
use crate::types::ErrorKind;

/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

fn gaps(times: &[Instant]) -> Vec<Duration> {
    times.windows(2).map(|pair| pair[1].duration_since(pair[0])).collect()
}

/// Whether each gap is one of the pauses, which start with 20 ms and double up to a second, less up
/// to a half; timers round up.
fn are_growing_pauses(gaps: &[Duration], extra: Duration) -> bool {
    let full = |at: usize| millis(20 << at.min(6)).min(LONGEST_PAUSE);
    let fits = |(at, gap): (usize, &Duration)| *gap >= full(at) / 2 && *gap <= full(at) + extra + millis(2);
    gaps.iter().enumerate().all(fits)
}

#[test]
fn reconnect_pauses_grow_to_a_second() {
    with_server(async |server| {
        server.on_connect(|_| ConnectReaction::Refuse);
        let locks = tokio::spawn({
            let server = server.clone();
            async move { server.open(TTL).await.map(drop) }
        });
        let error = locks.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "the first try is not waited past: {error}");

        server.on_connect(|_| ConnectReaction::Accept);
        let locks = server.open(TTL).await.unwrap();
        assert_eq!(locks.mutex("a").lock().await.unwrap().release().await.unwrap(), ReleaseOutcome::Released);
        server.clock.sleep(LONGEST_PAUSE).await;
        let before = server.connect_times().len();
        server.on_connect(|_| ConnectReaction::Refuse);
        server.disconnect_all();
        server.clock.sleep(Duration::from_secs(20)).await;
        let connects = server.connect_times().split_off(before);
        assert!((20..60).contains(&connects.len()), "{}", connects.len());
        assert!(are_growing_pauses(&gaps(&connects), Duration::ZERO), "{:?}", gaps(&connects));

        server.on_connect(|_| ConnectReaction::Accept);
        server.clock.sleep(LONGEST_PAUSE * 2).await;
        assert_eq!(
            locks.mutex("a").timeout(TTL).lock().await.unwrap().release().await.unwrap(),
            ReleaseOutcome::Released
        );
        server.clock.sleep(LONGEST_PAUSE).await;
        let before = server.connect_times().len();
        server.on_connect(move |at| if at < before + 3 { ConnectReaction::Refuse } else { ConnectReaction::Accept });
        server.disconnect_all();
        server.clock.sleep(LONGEST_PAUSE).await;
        let connects = server.connect_times().split_off(before);
        assert!(
            connects.len() == 4 && are_growing_pauses(&gaps(&connects), Duration::ZERO),
            "from the start again: {:?}",
            gaps(&connects)
        );
    });
}

/// Only an answer resets the pauses. Otherwise clients would reconnect without a pause to a server
/// (or a proxy before it) that accepts every connection and closes it before any answer.
#[test]
fn the_pause_is_reset_by_an_answer_and_not_by_a_connection() {
    with_server(async |server| {
        let locks = server.open(TTL).await.unwrap();
        let guard = locks.mutex("a").lock().await.unwrap();
        server.clock.sleep(LONGEST_PAUSE).await;
        let before = server.connect_times().len();
        server.on_request(|request| {
            if matches!(request.kind, "hello" | "subscribe" | "load") { Reaction::Answer } else { Reaction::Disconnect }
        });
        server.disconnect_all();
        server.clock.sleep(TTL * 2).await;
        assert!(!guard.is_held());
        let connects = server.connect_times().split_off(before);
        assert!(
            (10..60).contains(&connects.len()),
            "{} connections in {:?}: {:?}",
            connects.len(),
            TTL * 2,
            gaps(&connects)
        );
        assert!(gaps(&connects).iter().rev().take(5).all(|gap| *gap >= LONGEST_PAUSE / 2), "{:?}", gaps(&connects));
        let error = locks.mutex("a").try_lock().await.unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true), "{error}");

        server.on_request(|_| Reaction::Answer);
        let again = locks.mutex("a").timeout(TTL).lock().await.unwrap();
        assert!(again.token() > guard.token());
    });
}

#[test]
fn a_server_that_answers_once_per_connection_is_not_flooded_with_connections() {
    with_server(async |server| {
        let locks = server.open(TTL).await.unwrap();
        let guard = locks.mutex("a").lock().await.unwrap();
        let before = server.connect_times().len();
        // Each connection renews, since all leases may be lost, and ends with the answer.
        server.on_request({
            let mut answered = false;
            move |request| match request.kind {
                "hello" => {
                    answered = false;
                    Reaction::Answer
                }
                "renew" | "ping" if std::mem::replace(&mut answered, true) => Reaction::Disconnect,
                "renew" => Reaction::LoseAnswer,
                _ => Reaction::Answer,
            }
        });
        server.disconnect_all();
        server.clock.sleep(TTL).await;
        let connects = server.connect_times().len() - before;
        assert!(connects <= TTL.as_millis() as usize / 10, "{connects} connections in {TTL:?}");
        drop(guard);
    });
}

/// A server that has become a replica accepts connections, and answers reads. Each connection ends
/// with the first write that it refuses. That a read was answered before is no reason to reconnect
/// without a pause.
#[test]
fn a_read_only_server_is_not_stormed() {
    with_server(async |server| {
        let locks = server.open(TTL).await.unwrap();
        let guard = locks.mutex("a").lock().await.unwrap();
        let before = server.connect_times().len();
        server.on_request(|request| match request.kind {
            "attempt" | "renew" | "release" => {
                Reaction::Refuse("READONLY You can't write against a read only replica.")
            }
            _ => Reaction::Answer,
        });
        let (reader, clock) = (locks.clone(), server.clock.clone());
        let reads = tokio::spawn(async move {
            loop {
                // The answer is malformed; that there is one is what counts.
                let _ = reader.inspect("a").await;
                clock.sleep(millis(1)).await;
            }
        });
        server.clock.sleep(TTL * 2).await;
        reads.abort();
        assert!(!guard.is_held());
        let connects = server.connect_times().split_off(before);
        assert!(connects.len() < 40, "{} connections in {:?}: {:?}", connects.len(), TTL * 2, gaps(&connects));
        let error = locks.mutex("a").try_lock().await.unwrap_err();
        assert!(error.to_string().contains("read-only"), "{error}");

        server.on_request(|_| Reaction::Answer);
        let again = locks.mutex("a").timeout(TTL).lock().await.unwrap();
        assert!(again.token() > guard.token());
    });
}

/// A server that refuses writes for half a TTL costs no lock, however short the TTL is: the pauses
/// before the next connection stay short beside the leases that wait for it. The number of
/// connections is bounded all the same, also once no lock is held.
#[test]
fn a_server_read_only_for_half_a_ttl_loses_no_lock() {
    let mut lost = Vec::new();
    for ttl in [millis(300), Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(6)] {
        // The refusals begin at any moment of a lease.
        for part in 0..20 {
            with_server(async |server| {
                let locks = server.open(ttl).await.unwrap();
                let guard = locks.mutex("a").lock().await.unwrap();
                server.clock.sleep(ttl + ttl / 60 * part).await;
                let before = server.connect_times().len();
                server.on_request(|request| match request.kind {
                    "attempt" | "renew" | "release" => {
                        Reaction::Refuse("READONLY You can't write against a read only replica.")
                    }
                    _ => Reaction::Answer,
                });
                server.clock.sleep(ttl / 2).await;
                server.on_request(|_| Reaction::Answer);
                let connects = server.connect_times().split_off(before);
                assert!(
                    connects.len() <= 20,
                    "{ttl:?}: {} connections in half a TTL: {:?}",
                    connects.len(),
                    gaps(&connects)
                );
                server.clock.sleep(ttl).await;
                if !guard.is_held() {
                    lost.push((ttl, part));
                }
            });
        }
    }
    assert!(lost.is_empty(), "{} of 80 holders lost their lock: {lost:?}", lost.len());
}

#[test]
fn connecting_to_a_server_that_never_answers_times_out() {
    with_server(async |server| {
        server.on_connect(|_| ConnectReaction::NeverAnswer);
        let start = server.clock.now();
        let error = server.open(TTL).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("no answer within"), "{error}");
        let took = server.clock.now().duration_since(start);
        assert!(took >= Duration::from_secs(2) && took <= Duration::from_secs(4), "{took:?}");
    });
}

#[test]
fn a_connection_that_stops_responding_is_replaced() {
    with_server(async |server| {
        let locks = server.open(TTL).await.unwrap();
        let before = server.connect_times().len();
        server.on_request(|request| if request.kind == "ping" { Reaction::Hang } else { Reaction::Answer });
        // An idle connection is checked after five seconds, and closed two seconds later.
        server.clock.sleep(Duration::from_secs(8)).await;
        assert_eq!(server.connect_times().len(), before + 1);
        server.on_request(|_| Reaction::Answer);
        assert_eq!(locks.mutex("a").lock().await.unwrap().release().await.unwrap(), ReleaseOutcome::Released);
    });
}
