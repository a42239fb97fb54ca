//! A cluster gets a new node, and a slot moves there before a waiter's client knows the node.

use leasehold_testbed::eventually;
use leasehold_testbed::redis::{Cluster, Reply, slot_of};

use crate::redis_deployments::cluster_moves::assert_released;
use crate::redis_deployments::deployment::{
    LONG_TTL, TEST_TIMEOUT, client, raw_command, text, until_waiting, within_bound,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_is_served_by_a_node_that_it_does_not_know() {
    let (cluster, other) = (Cluster::start(1, 0).await.expect("a node"), Cluster::start(1, 0).await.expect("another"));
    let (old, new) = (cluster.addrs()[0], other.addrs()[0]);
    let (holder, waiter) = (client(&cluster.url(), LONG_TTL).await, client(&cluster.url(), LONG_TTL).await);
    let held = holder.mutex("a").lock().await.expect("a lock");
    let mutex = waiter.mutex("a");
    let waits = tokio::spawn(async move { mutex.lock().await });
    until_waiting(&holder, "a", 1).await;

    let done = async |addr, words: &[&str]| {
        assert_eq!(raw_command(addr, words).await, Reply::Simple("OK".to_owned()), "{words:?}");
    };
    done(new, &["CLUSTER", "FLUSHSLOTS"]).await;
    let bus = second_element_text(raw_command(old, &["CONFIG", "GET", "cluster-port"]).await);
    done(new, &["CLUSTER", "MEET", "127.0.0.1", &old.port().to_string(), &bus]).await;
    eventually(TEST_TIMEOUT, || async {
        for addr in [old, new] {
            let info = text(raw_command(addr, &["CLUSTER", "INFO"]).await);
            let met = ["cluster_known_nodes:2", "cluster_state:ok", "cluster_slots_ok:16384"];
            if let Some(missing) = met.into_iter().find(|fact| !info.contains(fact)) {
                return Err(format!("{addr}: not {missing}"));
            }
        }
        Ok(())
    })
    .await;
    let (slot, port) = (slot_of("a").to_string(), new.port().to_string());
    let (from, to) =
        (text(raw_command(old, &["CLUSTER", "MYID"]).await), text(raw_command(new, &["CLUSTER", "MYID"]).await));
    done(new, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from]).await;
    done(old, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to]).await;
    done(old, &["MIGRATE", "127.0.0.1", &port, "leasehold:l{a}", "0", "5000"]).await;
    for addr in [new, old] {
        done(addr, &["CLUSTER", "SETSLOT", &slot, "NODE", &to]).await;
    }

    let newcomer = client(&format!("redis+cluster://{new}"), LONG_TTL).await;
    assert_released(held).await;
    assert!(newcomer.mutex("a").try_lock().await.expect("an answer").is_none(), "a new client does not overtake");
    assert_released(within_bound("the waiter gets the lock", waits).await.expect("no panic").expect("a lock")).await;
    assert_released(newcomer.mutex("a").lock().await.expect("a lock")).await;
}

fn second_element_text(reply: Reply) -> String {
    match reply {
        Reply::Array(mut parts) if parts.len() == 2 => text(parts.remove(1)),
        other => panic!("{other:?}"),
    }
}
