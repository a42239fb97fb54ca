//! A claim is put out by somebody else.

use std::time::Duration;

use leasehold::{ClaimId, Locks, LostReason, Outcome};
use leasehold_testbed::eventually;

use crate::player::Player;
use crate::protocol::Ask;
use crate::world::{SOON, World};

/// An engine that does not tell by itself is asked every third of this. A machine may be so slow that such a lease is over before:
/// then another one must show it.
fn ttl(world: &World) -> Duration {
    world.short().max(Duration::from_millis(1500))
}

/// The holder is told, the next waiter is granted, and the tokens keep them apart.
pub async fn the_holder_is_told_and_the_next_is_granted(world: &World) {
    let (locks, other) = (world.locks_for(ttl(world)).await, world.locks().await);
    eventually(SOON, || async {
        let said = |error: leasehold::Error| error.to_string();
        let guard = locks.mutex("a").describe("evicted").lock().await.map_err(said)?;
        let next = tokio::spawn({
            let mutex = other.mutex("a").wait(SOON);
            async move { mutex.lock().await }
        });
        let view = other.inspect("a").await.map_err(said)?;
        let ours = view.holders.iter().find(|holder| holder.token == Some(guard.token()));
        let claim = ours.ok_or_else(|| format!("lost before: {view:?}"))?.claim;
        let evicted = other.evict("a", claim).await.map_err(said)?;
        let party = evicted.party.as_ref().ok_or("lost before the eviction")?;
        assert_eq!((party.claim, &*party.holder.text), (claim, "evicted"));
        let reason = guard.lost().await;
        assert!(!guard.is_held());
        let next = next.await.expect("no panic").expect("a lock");
        assert!(guard.token() < evicted.token && evicted.token <= next.token(), "{guard:?} {evicted:?} {next:?}");
        assert_eq!(guard.release().await.expect("an outcome"), Outcome::WasLost(reason));
        assert!(next.is_held(), "the late release does not touch the next holder");
        let _ = next.release().await.map_err(said)?;
        if reason == LostReason::Taken { Ok(()) } else { Err(format!("told so: {reason}")) }
    })
    .await;
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
    let (locks, mut player) = (world.locks().await, world.player(ttl(world)).await);
    let give_up = locks.clock().now().after(SOON);
    while !is_told(world, &locks, &mut player).await {
        assert!(locks.clock().now() < give_up, "it was never told that another took it");
    }
}

/// Whether the process was told of its eviction; `false` if its lease was over before.
async fn is_told(world: &World, locks: &Locks, player: &mut Player) -> bool {
    let guard = world.name("guard");
    let (token, _) = player.lock(Ask { guard: guard.clone(), ..Ask::stubborn("a") }).await;
    let view = locks.inspect("a").await.expect("a view");
    let Some(holder) = view.holders.first() else { return false };
    let evicted = locks.evict("a", holder.claim).await.expect("an eviction");
    let Some(party) = evicted.party else { return false };
    assert_eq!(party.holder.pid, player.pid());
    let next = locks.mutex("a").try_lock().await.expect("an answer").expect("free at once");
    assert!(token < evicted.token.0 && evicted.token < next.token());
    let reason = player.lost(&guard).await;
    assert!(!player.held(&guard).await.0);
    assert_eq!(player.release(&guard).await, reason);
    assert!(next.is_held());
    let _ = next.release().await.expect("a release");
    reason == "taken"
}
