//! Work that takes longer than the TTL.

use std::time::Duration;

use leasehold::fence::Fence;
use leasehold::{Guard, Locks, Token};
use leasehold_conformance::test_context::{LONG_TTL, TEST_TIMEOUT};

use super::timeline::{LOCK, Timeline, client, process};
use crate::redis_faults::manual_time::{ManualTime, pass_and_renew, patient_client};

/// A TTL that the test waits out.
const TTL: Duration = Duration::from_secs(1);

/// Writes to the resource, which checks the token.
fn write_with_token(steps: &Timeline, who: &str, stock: &Fence, token: u64) -> bool {
    let admitted = stock.admit("stock", Token(token));
    let answer = admitted.map_or_else(|stale| format!("refused: {stale}"), |()| "done".to_owned());
    steps.record_call(who, &format!("write to the stock with token {token}"), answer);
    admitted.is_ok()
}

/// Keeps trying a held lock for longer than three TTLs of its holder.
async fn keep_trying(steps: &Timeline, who: &str, locks: &Locks, time: &ManualTime, held: &Guard) {
    const THIRDS: u32 = 10;
    for _ in 0..THIRDS {
        pass_and_renew([held], |by| time.advance(by)).await;
        let answer = locks.mutex(LOCK).timeout(Duration::from_millis(50)).lock().await;
        assert!(answer.is_err(), "the lock is held");
    }
    let passed = LONG_TTL / 3 * THIRDS;
    steps.record_call(
        who,
        "lock().await, again and again",
        format!("{THIRDS} timeouts in {:.1} s", passed.as_secs_f64()),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_outlives_its_ttl_without_a_watchdog() {
    let steps = Timeline::start("Work that outlives its TTL, without a watchdog");
    let time = ManualTime::new();
    let server = time.redis_config().start().await.expect("a server");
    let mut a = steps.textbook_client("A", server.addr()).await;
    let mut b = steps.textbook_client("B", server.addr()).await;

    steps.begin_section("the textbook");
    assert_eq!(a.run("SET stock 10").await, "OK");
    assert_eq!(a.run("SET lock A NX PX 600000").await, "OK");
    assert_eq!(a.run("GET stock").await, "10");
    time.advance(LONG_TTL + Duration::from_secs(1));
    a.wait_expired("lock").await;
    steps.record_event("A still works when its TTL ends");
    assert_eq!(b.run("SET lock B NX PX 60000").await, "OK");
    assert_eq!(b.run("GET stock").await, "10");
    assert_eq!(b.run("SET stock 9").await, "OK");
    assert_eq!(a.run("SET stock 9").await, "OK");
    assert_eq!(a.run("GET stock").await, "9");
    steps.record_conclusion("two clients were inside, two units are sold, and one is counted");

    steps.begin_section("leasehold, with work longer than the TTL");
    let working = patient_client(&server.url(), LONG_TTL, time.clients_clock()).await;
    let locks = client(&server.url(), LONG_TTL).await;
    let guard = steps.lock_here("A (TTL 600 s)", &working).await;
    keep_trying(&steps, "B", &locks, &time, &guard).await;
    steps.assert_held("A", &locks, &guard).await;
    let outcome = guard.release().await.expect("a release");
    steps.record_call("A", "release().await", format!("{outcome:?}"));
    steps.record_conclusion("the keeper renews the lock while its holder lives");

    steps.begin_section("leasehold, when the holder cannot renew");
    let stock = Fence::default();
    let mut stopped = process(&server.url(), TTL).await;
    let stale = steps.lock_in_process("A (a process, TTL 1 s)", &mut stopped).await;
    assert!(write_with_token(&steps, "A", &stock, stale));
    stopped.process().sigstop().expect("a stopped process");
    steps.record_event("A is stopped (SIGSTOP) for longer than its TTL");
    let next = locks.mutex(LOCK).timeout(TEST_TIMEOUT).lock().await.expect("the lock of the stopped process");
    steps.record_call("B", "lock().await", format!("token {}", next.token()));
    assert!(write_with_token(&steps, "B", &stock, next.token().0));
    stopped.process().sigcont().expect("a running process");
    steps.record_event("A resumes (SIGCONT) in the middle of its work");
    let (held, _) = stopped.query_held(LOCK).await;
    steps.record_call("A", "is_held()", held);
    assert!(!held);
    assert!(!write_with_token(&steps, "A", &stock, stale), "a stale token");
    steps.record_conclusion("A can detect the loss at once; if it does not check, the resource rejects its token");
    steps.finish();
}
