//! A claim is put out by somebody else.

use std::time::Duration;

use leasehold::{ClaimId, LostReason, Outcome};

use crate::protocol::Ask;
use crate::world::{LONG, SOON, World};

/// An engine that does not tell by itself is asked every third of this.
const TTL: Duration = Duration::from_secs(6);

/// The holder is told, the next waiter is granted, and the tokens keep them apart.
pub async fn the_holder_is_told_and_the_next_is_granted(world: &World) {
    let (locks, other) = (world.locks_for(TTL).await, world.locks().await);
    let guard = locks.mutex("a").describe("evicted").lock().await.expect("a lock");
    let next = tokio::spawn({
        let mutex = other.mutex("a").wait(SOON);
        async move { mutex.lock().await }
    });
    let claim = other.inspect("a").await.expect("a view").holders[0].claim;
    let evicted = other.evict("a", claim).await.expect("an eviction");
    let party = evicted.party.as_ref().expect("who was put out");
    assert_eq!((party.claim, &*party.holder.text), (claim, "evicted"));
    let reason = tokio::time::timeout(SOON, guard.lost()).await.expect("the holder is told");
    assert_eq!(reason, LostReason::Taken);
    assert!(!guard.is_held());
    let next = next.await.expect("no panic").expect("a lock");
    assert!(guard.token() < evicted.token && evicted.token <= next.token(), "{guard:?} {evicted:?} {next:?}");
    assert_eq!(guard.release().await.expect("an outcome"), Outcome::WasLost(LostReason::Taken));
    assert!(next.is_held(), "the late release does not touch the next holder");
}

/// A waiter that is put out is passed by those behind it.
pub async fn a_waiter_leaves_the_queue(world: &World) {
    let locks = world.locks().await;
    let holder = locks.mutex("a").lock().await.expect("a lock");
    let mut waiters = Vec::new();
    for place in 1..=2 {
        let mutex = locks.mutex("a").wait(SOON);
        waiters.push(tokio::spawn(async move { mutex.lock().await }));
        world.until_waiting("a", place).await;
    }
    let before = locks.inspect("a").await.expect("a view").waiters;
    let evicted = locks.evict("a", before[0].claim).await.expect("an eviction");
    assert_eq!(evicted.party.expect("who was put out").token, None, "it had no token");
    assert!(evicted.token > holder.token());
    let after = locks.inspect("a").await.expect("a view").waiters;
    assert_eq!(after[0].claim, before[1].claim, "the one behind is next");
    assert!(holder.is_held());
    let _ = holder.release().await.expect("a release");
    let second = waiters.pop().expect("two wait").await.expect("no panic").expect("a lock");
    waiters.pop().expect("one is left").abort();
    drop(second);
}

/// A claim that is not there is nobody; who holds is left alone.
pub async fn an_unknown_claim_is_nobody(world: &World) {
    let locks = world.locks().await;
    let nobody = locks.evict("free", ClaimId::random()).await.expect("an eviction");
    assert_eq!(nobody.party, None);
    let guard = locks.mutex("a").lock().await.expect("a lock");
    let nobody = locks.evict("a", ClaimId::random()).await.expect("an eviction");
    assert_eq!(nobody.party, None);
    assert!(guard.is_held());
    assert_eq!(guard.release().await.expect("an outcome"), Outcome::Released);
    let next = locks.mutex("a").lock().await.expect("a lock");
    assert!(next.token() > nobody.token, "the fence stands");
}

/// A holder in another process is told, too.
pub async fn a_holder_in_another_process_is_told(world: &World) {
    let (locks, mut player) = (world.locks().await, world.player(TTL).await);
    let (token, _) = player.lock(Ask::exclusive("a")).await;
    let claim = locks.inspect("a").await.expect("a view").holders[0].claim;
    let evicted = locks.evict("a", claim).await.expect("an eviction");
    assert_eq!(evicted.party.expect("who was put out").holder.pid, player.pid());
    let next = locks.mutex("a").ttl(LONG).try_lock().await.expect("an answer").expect("free at once");
    assert!(token < evicted.token.0 && evicted.token < next.token());
    assert_eq!(player.lost("a").await, "taken");
    assert!(!player.held("a").await.0);
    assert_eq!(player.release("a").await, "taken");
    assert!(next.is_held());
}
