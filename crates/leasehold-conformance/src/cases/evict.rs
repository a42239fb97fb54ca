//! A claim is put out by somebody else.

use leasehold::{ClaimId, ErrorKind, Guard, Locks, LostReason, Outcome, Owner};
use leasehold_testbed::eventually;

use crate::player::Player;
use crate::protocol::Ask;
use crate::world::{LONG, SOON, World};

/// The holder is told, the next waiter is granted, and the tokens keep them apart: long before a renewal would be due.
pub async fn the_holder_is_told_and_the_next_is_granted(world: &World) {
    let (locks, other) = (world.locks().await, world.locks().await);
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
        // None only where no number lies between: in ZooKeeper the waiter may have the very next one.
        let between = |fence| guard.token() < fence && fence < next.token();
        let adjacent = guard.token().0 + 1 == next.token().0;
        assert!(evicted.token.map_or(adjacent, between), "{guard:?} {evicted:?} {next:?}");
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
    assert_eq!(evicted.token, None, "nothing is to be refused, and the holder stays");
    let after = locks.inspect("a").await.expect("a view").waiters;
    assert_eq!(after[0].claim, before[1].claim, "the one behind is next");
    assert!(holder.is_held());
    let _ = holder.release().await.expect("a release");
    let second = waiters.pop().expect("two wait").await.expect("no panic").expect("a lock");
    waiters.pop().expect("one is left").abort();
    drop(second);
}

/// A waiter that is put out ends with an error, and does not queue again.
pub async fn a_waiter_that_is_removed_ends_with_an_error(world: &World) {
    let (locks, other) = (world.locks().await, world.locks().await);
    let holder = locks.mutex("a").lock().await.expect("a lock");
    let waits = tokio::spawn({
        let mutex = other.mutex("a").wait(LONG);
        async move { mutex.lock().await }
    });
    world.until_waiting("a", 1).await;
    let claim = locks.inspect("a").await.expect("a view").waiters[0].claim;
    assert!(locks.evict("a", claim).await.expect("an eviction").party.is_some());
    let ended = tokio::time::timeout(SOON, waits).await.expect("it is told").expect("no panic");
    let error = ended.expect_err("it was removed");
    assert_eq!(error.kind(), ErrorKind::Evicted, "{error}");
    let view = locks.inspect("a").await.expect("a view");
    assert_eq!((view.holders.len(), view.waiters.len()), (1, 0), "{view:?}");
    assert_eq!(holder.release().await.expect("a release"), Outcome::Released);
}

/// A waiter was granted while its future was not polled, and then evicted: it never holds beside the next holder.
pub async fn a_grant_that_was_not_polled_for_ends_with_its_eviction(world: &World) {
    let (locks, other) = (world.locks().await, world.locks().await);
    let holder = locks.mutex("a").lock().await.expect("a lock");
    let mutex = other.mutex("a").wait(LONG);
    let mut waits = std::pin::pin!(mutex.lock());
    tokio::select! {
        biased;
        early = &mut waits => panic!("the lock is held: {early:?}"),
        () = world.until_waiting("a", 1) => {}
    }
    assert_eq!(holder.release().await.expect("a release"), Outcome::Released);
    eventually(SOON, || async {
        let view = locks.inspect("a").await.map_err(|error| error.to_string())?;
        if view.holders.len() == 1 { Ok(()) } else { Err(format!("{view:?}")) }
    })
    .await;
    let claim = locks.inspect("a").await.expect("a view").holders[0].claim;
    assert!(locks.evict("a", claim).await.expect("an eviction").party.is_some());
    let next = locks.mutex("a").wait(SOON).lock().await.expect("a lock");
    // Whatever was sent to the other client before this has arrived.
    other.inspect("a").await.expect("a view");
    match tokio::time::timeout(SOON, waits).await.expect("it is told") {
        Err(error) => assert_eq!(error.kind(), ErrorKind::Evicted, "{error}"),
        Ok(late) => drop(tokio::time::timeout(SOON, late.lost()).await.expect("it is told")),
    }
    assert!(next.is_held());
    assert_eq!(next.release().await.expect("a release"), Outcome::Released);
}

/// A claim that is not there is nobody; who holds is left alone.
pub async fn an_unknown_claim_is_nobody(world: &World) {
    let locks = world.locks().await;
    let nobody = locks.evict("free", ClaimId::random()).await.expect("an eviction");
    assert_eq!((nobody.party, nobody.token), (None, None));
    let guard = locks.mutex("a").lock().await.expect("a lock");
    let nobody = locks.evict("a", ClaimId::random()).await.expect("an eviction");
    assert_eq!((nobody.party, nobody.token), (None, None), "a fence would shut the holder out");
    assert!(guard.is_held());
    assert_eq!(guard.release().await.expect("an outcome"), Outcome::Released);
}

/// Two hold together, and one is evicted: whatever is advised refuses that one, and not the other.
pub async fn the_advice_spares_who_stays(world: &World) {
    let locks = world.locks().await;
    let first = locks.semaphore("a", 2).acquire(1).await.expect("a permit");
    let second = locks.semaphore("a", 2).acquire(1).await.expect("a permit");
    let third = tokio::spawn({
        let semaphore = locks.semaphore("a", 2).wait(SOON);
        async move { semaphore.acquire(1).await }
    });
    world.until_waiting("a", 1).await;
    let holders = locks.inspect("a").await.expect("a view").holders;
    let claim = |guard: &Guard| holders.iter().find(|holder| holder.token == Some(guard.token())).expect("it holds").claim;
    // The later one first: the other's token is below every fence.
    let evicted = locks.evict("a", claim(&second)).await.expect("an eviction");
    assert_eq!((evicted.party.is_some(), evicted.token), (true, None), "{evicted:?}");
    let third = third.await.expect("no panic").expect("a permit");
    let evicted = locks.evict("a", claim(&first)).await.expect("an eviction");
    if let Some(fence) = evicted.token {
        assert!(first.token() < fence && fence < third.token(), "{first:?} {fence} {third:?}");
    } else {
        assert_eq!(first.token().0 + 1, third.token().0, "a number lies between");
    }
    for evicted in [first, second] {
        tokio::time::timeout(SOON, evicted.lost()).await.expect("it is told");
    }
    assert!(third.is_held());
    assert_eq!(third.release().await.expect("a release"), Outcome::Released);
}

/// An owner holds twice, and one of its claims is evicted: that guard learns of it, and the other one stays.
pub async fn one_of_two_claims_of_an_owner_ends(world: &World) {
    let (locks, other) = (world.locks().await, world.locks().await);
    let owner = Owner::new();
    let outer = locks.mutex("a").ttl(LONG).owner(&owner).lock().await.expect("a lock");
    let inner = locks.mutex("a").ttl(LONG).owner(&owner).lock().await.expect("a re-entry");
    assert!(other.evict("a", inner.claim_id()).await.expect("an eviction").party.is_some());
    assert_eq!(tokio::time::timeout(SOON, inner.lost()).await.expect("it is told"), LostReason::Taken);
    // Whatever was sent to the outer one's client before this has arrived.
    locks.inspect("a").await.expect("a view");
    assert!(outer.is_held());
    assert!(other.mutex("a").try_lock().await.expect("an answer").is_none());
    assert_eq!(outer.release().await.expect("an outcome"), Outcome::Released);
}

/// A holder in another process is told, too.
pub async fn a_holder_in_another_process_is_told(world: &World) {
    let (locks, mut player) = (world.locks().await, world.player(LONG).await);
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
    let fence = evicted.token.expect("a token");
    assert!(token < fence.0 && fence < next.token());
    let reason = player.lost(&guard).await;
    assert!(!player.held(&guard).await.0);
    assert_eq!(player.release(&guard).await, reason);
    assert!(next.is_held());
    let _ = next.release().await.expect("a release");
    reason == "taken"
}
