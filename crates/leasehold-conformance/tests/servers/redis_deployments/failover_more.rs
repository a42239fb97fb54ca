//! More Sentinel tests: fail-overs without data loss, and masters that restart, hang, or are
//! replaced while alive.

use leasehold::ReleaseOutcome;
use leasehold_testbed::Data;
use leasehold_testbed::redis::{Reply, RespClient, SentinelSet};

use crate::redis_deployments::deployment::{
    LONG_TTL, TEST_TIMEOUT, WaiterQueue, client, numbers_up_to, raw_command, until_answering, until_free,
    until_listening, until_waiting, within_bound,
};
use crate::redis_deployments::failover::{fail_over_losing_writes, sentinel_set};

/// Waits until the replica has all of the master's data.
async fn until_replicated(set: &SentinelSet) {
    let mut master = RespClient::connect(set.nodes()[0].addr()).await.expect("a connection");
    master.command(&["SET", "last", "1"]).await.expect("a write");
    assert_eq!(master.command(&["WAIT", "1", "0"]).await.expect("an answer"), Reply::Integer(1));
}

/// The control: a textbook lock has two holders after such a fail-over, and neither can detect it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_textbook_lock_has_two_holders_after_a_failover() {
    let mut set = sentinel_set().await;
    set.cut_replication().await.expect("a stopped replication");
    let take = |who| ["SET", "lock", who, "NX", "PX", "600000"];
    let ok = Reply::Simple("OK".to_owned());
    assert_eq!(raw_command(set.nodes()[0].addr(), &take("first")).await, ok);
    fail_over_losing_writes(&mut set).await;
    // Long before the first holder's TTL is over.
    assert_eq!(raw_command(set.nodes()[1].addr(), &take("second")).await, ok);
}

/// No data is lost: holders keep their locks and waiters their positions, with the same client
/// objects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_and_waiters_survive_a_failover_without_data_loss() {
    let mut set = sentinel_set().await;
    let (holding, waiting) = (client(&set.url(), LONG_TTL).await, client(&set.url(), LONG_TTL).await);
    let held = holding.mutex("a").lock().await.expect("a lock");
    let shared = holding.rwlock("b").read().await.expect("a lock");
    let mut queue = WaiterQueue::default();
    for _ in 0..3 {
        queue.add_waiter(&waiting, "a").await;
    }
    let token = held.token();
    until_replicated(&set).await;
    set.kill_master().await.expect("a dead master");
    set.wait_for_failover(TEST_TIMEOUT).await.expect("a fail-over");
    // Both clients are reconnected, so the next waiter can be notified.
    until_waiting(&holding, "a", 3).await;
    until_waiting(&waiting, "a", 3).await;
    let view = holding.inspect("a").await.expect("a view");
    assert_eq!((view.holders.len(), view.holders[0].token), (1, Some(token)));
    assert!(held.is_held() && shared.is_held());
    assert_eq!(held.token(), token);
    assert!(waiting.mutex("a").try_lock().await.expect("an answer").is_none(), "no overtaking");
    assert!(waiting.rwlock("b").try_write().await.expect("an answer").is_none(), "no write lock beside a reader");
    assert_eq!(held.release().await.expect("an answer"), ReleaseOutcome::Released);
    let (order, tokens) = queue.wait_all_served().await;
    assert_eq!(order, numbers_up_to(3));
    assert!(tokens.is_sorted() && tokens[0] > token, "{token:?} {tokens:?}");
    assert_eq!(shared.release().await.expect("an answer"), ReleaseOutcome::Released);
}

/// A restarted old master claims to be master but is empty: no client follows it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_old_master_is_not_followed() {
    let mut set = sentinel_set().await;
    let (one, two) = (client(&set.url(), LONG_TTL).await, client(&set.url(), LONG_TTL).await);
    let held = one.mutex("a").lock().await.expect("a lock");
    until_replicated(&set).await;
    set.kill_master().await.expect("a dead master");
    set.wait_for_failover(TEST_TIMEOUT).await.expect("a fail-over");
    set.nodes_mut()[0].restart(Data::Wipe).await.expect("the old master restarted");
    until_answering(&two).await;
    assert!(two.mutex("a").try_lock().await.expect("an answer").is_none(), "{:?}", held.token());
    assert!(held.is_held());
    set.wait_until_settled(TEST_TIMEOUT).await.expect("the old master becomes a replica");
    assert!(two.mutex("a").try_lock().await.expect("an answer").is_none());
    assert_eq!(held.release().await.expect("an answer"), ReleaseOutcome::Released);
}

/// A hung master counts as dead. When it resumes, no client follows it, not even an idle one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_master_is_abandoned() {
    let mut set = sentinel_set().await;
    let (holding, idle) = (client(&set.url(), LONG_TTL).await, client(&set.url(), LONG_TTL).await);
    let held = holding.mutex("a").lock().await.expect("a lock");
    let mut queue = WaiterQueue::default();
    queue.add_waiter(&holding, "a").await;
    until_replicated(&set).await;
    set.nodes_mut()[0].pause().expect("a pause");
    assert_eq!(set.wait_for_failover(TEST_TIMEOUT).await.expect("a fail-over"), 1);
    let new = set.nodes()[1].addr();
    until_listening(new, 2).await;
    // A lock that only the new master has.
    let fresh = within_bound("a new lock", holding.mutex("b").lock()).await.expect("a lock");
    set.nodes_mut()[0].resume().expect("a resumed server");
    assert!(idle.mutex("a").try_lock().await.expect("an answer").is_none());
    assert!(idle.mutex("b").try_lock().await.expect("an answer").is_none());
    assert!(held.is_held() && fresh.is_held());
    assert_eq!(held.release().await.expect("an answer"), ReleaseOutcome::Released);
    assert_eq!(queue.wait_all_served().await.0, numbers_up_to(1));
    assert_eq!(fresh.release().await.expect("an answer"), ReleaseOutcome::Released);
    set.wait_until_settled(TEST_TIMEOUT).await.expect("the old master becomes a replica");
    until_free(&idle, "a").await;
}

/// A manual fail-over. The old master is alive and accepts writes, which will be lost, until the
/// Sentinels reconfigure it (here: late). Connected clients leave it before that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demoted_master_is_abandoned_at_once() {
    let set = sentinel_set().await;
    for sentinel in set.sentinel_addrs() {
        let slowly = raw_command(sentinel, &["SENTINEL", "DEBUG", "publish-period", "60000"]).await;
        assert_eq!(slowly, Reply::Simple("OK".to_owned()));
    }
    let (one, two) = (client(&set.url(), LONG_TTL).await, client(&set.url(), LONG_TTL).await);
    let held = one.mutex("a").lock().await.expect("a lock");
    let mut queue = WaiterQueue::default();
    queue.add_waiter(&two, "a").await;
    until_replicated(&set).await;
    assert_eq!(
        raw_command(set.sentinel_addrs()[0], &["SENTINEL", "FAILOVER", "mymaster"]).await,
        Reply::Simple("OK".into())
    );
    let (old, new) = (set.nodes()[0].addr(), set.nodes()[1].addr());
    until_listening(new, 2).await;
    // The control: the old master still grants a textbook lock, which no other client will ever
    // see.
    let naive = raw_command(old, &["SET", "lock", "me", "NX", "PX", "600000"]).await;
    assert_eq!(naive, Reply::Simple("OK".to_owned()), "the old master is not reconfigured yet");
    assert_eq!(raw_command(new, &["GET", "lock"]).await, Reply::Nil);
    assert!(held.is_held());
    assert_eq!(held.release().await.expect("an answer"), ReleaseOutcome::Released);
    assert_eq!(queue.wait_all_served().await.0, numbers_up_to(1));
    let again = one.mutex("a").lock().await.expect("a lock");
    let third = client(&set.url(), LONG_TTL).await;
    assert!(third.mutex("a").try_lock().await.expect("an answer").is_none(), "a new client sees the same lock");
    assert_eq!(again.release().await.expect("an answer"), ReleaseOutcome::Released);
}
