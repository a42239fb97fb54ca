//! Inspection of holders and waiters.

use std::time::Duration;

use leasehold::{Guard, Holder, Locks, Mode};
use leasehold_testbed::eventually;

use crate::flaky::Method;
use crate::protocol::{ActorCommand, LockRequest};
use crate::test_context::{LONG_TTL, TEST_TIMEOUT, TestContext};

/// The holder and the waiters are shown in order, with all their descriptions.
pub async fn shows_holders_and_waiters(context: &TestContext) {
    let locks = context.open_locks().await;
    let guard = locks.mutex("a").describe("the \u{1f511} holder").lock().await.expect("a lock");
    let mut waiters = Vec::new();
    for place in 0..3 {
        let mutex = locks.mutex("a").describe(format!("waiter {place}"));
        waiters.push(tokio::spawn(async move { mutex.lock().await }));
        if context.can_show_waiters() {
            context.wait_for_waiters("a", place + 1).await;
        }
    }
    let view = locks.inspect("a").await.expect("a view");
    assert_eq!(view.name.as_str(), "a");
    let [holder] = &view.holders[..] else { panic!("one holder: {view:?}") };
    let this_process = Holder::this_process();
    assert_eq!((&holder.holder.host, holder.holder.pid), (&this_process.host, this_process.pid));
    assert_eq!(
        (&*holder.holder.program, &*holder.holder.description),
        (&*this_process.program, "the \u{1f511} holder")
    );
    assert_eq!((holder.mode, holder.token), (Mode::Exclusive, Some(guard.token())));
    assert!(holder.remaining <= LONG_TTL && !holder.remaining.is_zero(), "{holder:?}");
    let texts: Vec<_> = view.waiters.iter().map(|waiter| waiter.holder.description.to_string()).collect();
    let expected: &[&str] = if context.can_show_waiters() { &["waiter 0", "waiter 1", "waiter 2"] } else { &[] };
    assert_eq!(texts, expected);
    assert!(view.waiters.iter().all(|waiter| waiter.token.is_none()), "{view:?}");
    for waiter in waiters {
        waiter.abort();
    }
}

/// The ages of holders and waiters grow.
pub async fn ages_grow(context: &TestContext) {
    let locks = context.open_locks().await;
    let _guard = locks.mutex("a").lock().await.expect("a lock");
    let waiter = tokio::spawn({
        let mutex = locks.mutex("a");
        async move { mutex.lock().await }
    });
    if context.can_show_waiters() {
        context.wait_for_waiters("a", 1).await;
    }
    let first = locks.inspect("a").await.expect("a view");
    eventually(TEST_TIMEOUT, || async {
        let view = locks.inspect("a").await.map_err(|error| error.to_string())?;
        let grown = |old: Duration, new: Duration| new > old && new - old > Duration::from_millis(5);
        let holder = grown(first.holders[0].age, view.holders[0].age);
        let pairs = first.waiters.iter().zip(&view.waiters);
        let waiter = pairs.filter(|(old, new)| grown(old.age, new.age)).count() == first.waiters.len();
        if holder && waiter { Ok(()) } else { Err(format!("{view:?}")) }
    })
    .await;
    assert_eq!(first.waiters.len(), usize::from(context.can_show_waiters()), "{first:?}");
    assert!(first.holders.iter().chain(&first.waiters).all(|contender| contender.age < LONG_TTL), "{first:?}");
    waiter.abort();
}

/// The list contains exactly the locks that are held or awaited, by name.
pub async fn lists_by_prefix(context: &TestContext) {
    let locks = context.open_locks().await;
    let mut guards = Vec::new();
    for name in ["stock:2", "stock:1", "stock", "sto%63k:1", "other", "stock/1"] {
        guards.push(locks.mutex(name).lock().await.expect("a lock"));
    }
    let released = locks.mutex("stock:3").lock().await.expect("a lock");
    let _ = released.release().await.expect("a release");
    for (prefix, expected) in [
        ("stock:", &["stock:1", "stock:2"][..]),
        ("stock", &["stock", "stock/1", "stock:1", "stock:2"]),
        ("", &["other", "sto%63k:1", "stock", "stock/1", "stock:1", "stock:2"]),
        ("nothing", &[]),
        ("*", &[]),
    ] {
        let listed = locks.list(prefix).await.expect("a list");
        let names: Vec<_> = listed.iter().map(|view| view.name.as_str()).collect();
        assert_eq!(names, expected, "{prefix:?}");
        assert!(listed.iter().all(|view| view.holders.len() == 1));
    }
}

/// Another process's holds and waits are shown with its identity.
pub async fn shows_other_processes(context: &TestContext) {
    let (locks, mut actor) = (context.open_locks().await, context.spawn_actor(LONG_TTL).await);
    let (token, _) = actor.acquire(LockRequest { describe: "afar".to_owned(), ..LockRequest::exclusive("a") }).await;
    let guard = locks.mutex("b").lock().await.expect("a lock");
    actor.send(&ActorCommand::Lock(LockRequest::exclusive("b"))).await;
    let view = locks.inspect("a").await.expect("a view");
    let holder = &view.holders[0];
    assert_eq!((holder.holder.pid, &*holder.holder.description), (actor.pid(), "afar"));
    assert_eq!(&*holder.holder.program, "leasehold-actor");
    assert_eq!(holder.token.map(|token| token.0), Some(token));
    eventually(TEST_TIMEOUT, || async {
        let view = locks.inspect("b").await.map_err(|error| error.to_string())?;
        let waits = view.waiters.iter().any(|waiter| waiter.holder.pid == actor.pid());
        if waits == context.can_show_waiters() { Ok(()) } else { Err(format!("{view:?}")) }
    })
    .await;
    let _ = guard.release().await.expect("a release");
    actor.wait_granted("b").await;
    for guard in ["a", "b"] {
        assert_eq!(actor.release(guard).await, "released");
    }
}

/// All holders of permits are shown, each with its own token and permits: a missing one would be
/// taken for dead.
pub async fn shows_every_holder_of_permits(context: &TestContext) {
    let (one, other) = (context.open_locks().await, context.open_locks().await);
    let first = one.semaphore("a", 4).describe("first").acquire(1).await.expect("a permit");
    let second = other.semaphore("a", 4).describe("second").acquire(2).await.expect("permits");
    let shown = async |locks: &Locks| {
        let view = locks.inspect("a").await.expect("a view");
        let mut holders: Vec<_> = view
            .holders
            .iter()
            .map(|contender| (contender.token, contender.mode, contender.holder.description.to_string()))
            .collect();
        holders.sort_by_key(|(token, ..)| *token);
        holders
    };
    let expected =
        |guard: &Guard, n: u32, text: &str| (Some(guard.token()), Mode::Permits { n, limit: 4 }, text.to_owned());
    assert!(first.token() < second.token());
    for locks in [&one, &other] {
        assert_eq!(shown(locks).await, [expected(&first, 1, "first"), expected(&second, 2, "second")]);
    }
    let _ = first.release().await.expect("a release");
    assert_eq!(shown(&one).await, [expected(&second, 2, "second")]);
}

/// A released lock is no longer shown.
pub async fn shows_nothing_after_the_release(context: &TestContext) {
    let locks = context.open_locks().await;
    let guard = locks.mutex("a").lock().await.expect("a lock");
    assert_eq!(locks.list("").await.expect("a list").len(), 1);
    let _ = guard.release().await.expect("a release");
    assert!(locks.list("").await.expect("a list").is_empty());
    let view = locks.inspect("a").await.expect("a view");
    assert!(view.holders.is_empty() && view.waiters.is_empty(), "{view:?}");
    let never = locks.inspect("never used").await.expect("a view");
    assert!(never.holders.is_empty() && never.waiters.is_empty(), "{never:?}");
}

/// An inspection neither extends a lease nor ends it.
pub async fn does_not_change_leases(context: &TestContext) {
    let (locks, flaky, guard) = context.acquire_expiring("a").await;
    flaky.fail_always(Method::Inspect, None);
    eventually(TEST_TIMEOUT, || async {
        let view = locks.inspect("a").await.map_err(|error| error.to_string())?;
        if view.holders.is_empty() { Ok(()) } else { Err(format!("{view:?}")) }
    })
    .await;
    assert!(!guard.is_held());
}
