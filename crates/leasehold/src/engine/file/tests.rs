//! Tests of what only the file engine does: they look at the files in its folder, and change them.

use std::fs::{self, File, FileTimes};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::FutureExt;

use super::layout::{self, COUNTERS_OFFSET, Counters, PAGE_SIZE, SLOTS_OFFSET};
use super::wakeups::Notification;
use crate::clock::{Clock, ManualClock};
use crate::engine::{AcquireReply, Engine, EngineUrl, LockView, RenewReply};
use crate::{Claim, ErrorKind, LockName, LockOptions, Locks, LostReason, Mode, Token};

/// The TTL of a lease that cannot end while a test runs.
pub(super) const LONG_TTL: Duration = Duration::from_secs(600);

/// A folder for locks that does not exist yet; it is removed after the test.
pub(super) struct TestFolder {
    _temp: tempfile::TempDir,
    pub(super) dir: PathBuf,
}

impl TestFolder {
    pub(super) fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        Self { dir: temp.path().join("locks-here"), _temp: temp }
    }

    pub(super) fn url(&self) -> String {
        format!("file://{}", self.dir.display())
    }

    pub(super) async fn open(&self) -> Locks {
        Locks::builder().ttl(LONG_TTL).open(&self.url()).await.unwrap()
    }

    /// A client whose clock the test advances.
    pub(super) async fn open_with_clock(&self, manual_clock: &ManualClock) -> Locks {
        Locks::builder().ttl(LONG_TTL).clock(manual_clock.clock()).open(&self.url()).await.unwrap()
    }

    /// The path of a lock's file.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.dir.join("locks").join(layout::file_name(&LockName::new(name).unwrap()))
    }

    /// Makes a lock's file look as if it was last used long ago.
    pub(super) fn make_idle(&self, name: &str) {
        let old = FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000));
        File::options().write(true).open(self.file(name)).unwrap().set_times(old).unwrap();
    }

    fn counters(&self, name: &str) -> Counters {
        layout::read_counters(&fs::read(self.file(name)).unwrap()).unwrap()
    }
}

/// Acquires and releases a lock; returns its token.
pub(super) async fn acquire(locks: &Locks, name: &str) -> Token {
    let guard = locks.mutex(name).lock().await.unwrap();
    let token = guard.token();
    let _ = guard.release().await.unwrap();
    token
}

/// Writes the counters as if the machine had rebooted since.
fn simulate_reboot(file: &Path) {
    let mut page = fs::read(file).unwrap();
    let counters = layout::read_counters(&page).unwrap();
    layout::write_counters(&mut page, Counters { boot: counters.boot ^ 1, ..counters });
    fs::write(file, page).unwrap();
}

#[tokio::test]
async fn the_folder_and_all_in_it_are_private() {
    let test_folder = TestFolder::new();
    let locks = test_folder.open().await;
    let _guard = locks.mutex("a").lock().await.unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&test_folder.dir), 0o700);
    assert_eq!(mode(&test_folder.dir.join("locks")), 0o700);
    assert_eq!(mode(&test_folder.file("a")), 0o600);
    for client in fs::read_dir(test_folder.dir.join("clients")).unwrap() {
        let path = client.unwrap().path();
        if path.extension().is_none() {
            assert_eq!(mode(&path), 0o600);
        }
    }
}

#[tokio::test]
async fn a_folder_is_shared_with_a_group_on_request() {
    let test_folder = TestFolder::new();
    let locks = Locks::builder().ttl(LONG_TTL).open(&format!("{}?mode=0770", test_folder.url())).await.unwrap();
    let _guard = locks.mutex("a").lock().await.unwrap();
    assert_eq!(fs::metadata(&test_folder.dir).unwrap().permissions().mode() & 0o777, 0o770);
    assert_eq!(fs::metadata(test_folder.file("a")).unwrap().permissions().mode() & 0o777, 0o660);
    // A process that may not write to a socket cannot notify its client.
    for client in fs::read_dir(test_folder.dir.join("clients")).unwrap() {
        assert_eq!(client.unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o660);
    }
}

#[tokio::test]
async fn a_folder_that_was_private_can_be_shared_later() {
    let test_folder = TestFolder::new();
    acquire(&test_folder.open().await, "a").await;
    let locks = Locks::builder().ttl(LONG_TTL).open(&format!("{}?mode=0770", test_folder.url())).await.unwrap();
    acquire(&locks, "a").await;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(
        (mode(&test_folder.dir), mode(&test_folder.dir.join("locks")), mode(&test_folder.file("a"))),
        (0o770, 0o770, 0o660)
    );
}

#[tokio::test]
async fn a_damaged_file_is_listed_as_such_and_hides_no_other() {
    let test_folder = TestFolder::new();
    let locks = test_folder.open().await;
    acquire(&locks, "bad/one").await;
    let _guard = locks.mutex("good").lock().await.unwrap();
    fs::write(test_folder.file("bad/one"), "").unwrap();
    let views = locks.list("").await.unwrap();
    let names: Vec<_> = views.iter().map(|view| (view.name.as_str(), view.damage.is_some())).collect();
    assert_eq!(names, [("bad/one", true), ("good", false)]);
}

#[tokio::test]
async fn a_folder_that_others_can_write_is_refused() {
    let test_folder = TestFolder::new();
    fs::create_dir(&test_folder.dir).unwrap();
    fs::set_permissions(&test_folder.dir, fs::Permissions::from_mode(0o777)).unwrap();
    let error = Locks::open(&test_folder.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("chmod go-w"), "{error}");
}

#[tokio::test]
async fn a_folder_used_under_another_clock_is_refused() {
    let test_folder = TestFolder::new();
    drop(test_folder.open().await);
    let clock = test_folder.dir.join("clock");
    let used = fs::read_to_string(&clock).unwrap();
    let (boot, _) = used.rsplit_once(' ').unwrap();
    fs::write(&clock, format!("{boot} 1\n")).unwrap();
    let error = Locks::open(&test_folder.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    // The file is of an earlier boot, so no running process uses the folder: it is replaced.
    fs::write(&clock, "1 0 1\n").unwrap();
    drop(test_folder.open().await);
    assert_eq!(fs::read_to_string(&clock).unwrap(), used);
}

#[tokio::test]
async fn a_damaged_file_is_refused_and_left_as_it_is() {
    let test_folder = TestFolder::new();
    let locks = test_folder.open().await;
    acquire(&locks, "a").await;
    let contents = fs::read(test_folder.file("a")).unwrap();
    let mut flipped = contents.clone();
    flipped[COUNTERS_OFFSET] ^= 1;
    let mut wrong_state = contents.clone();
    layout::write_counters(&mut wrong_state, Counters { slots: 1, ..test_folder.counters("a") });
    wrong_state[SLOTS_OFFSET] = 9;
    let other_name = layout::first_page(&LockName::new("b").unwrap(), 1);
    for damaged in [flipped, wrong_state, other_name, Vec::new(), contents[..100].to_vec(), vec![7; PAGE_SIZE]] {
        fs::write(test_folder.file("a"), &damaged).unwrap();
        let error = locks.mutex("a").try_lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("move it away"), "{error}");
        assert_eq!(fs::read(test_folder.file("a")).unwrap(), damaged, "the file is not overwritten");
    }
    fs::write(test_folder.file("a"), contents).unwrap();
    acquire(&locks, "a").await;
}

#[tokio::test]
async fn a_damaged_holder_slot_grants_nothing() {
    let test_folder = TestFolder::new();
    let locks = test_folder.open().await;
    let _guard = locks.mutex("a").describe("me").lock().await.unwrap();
    let contents = fs::read(test_folder.file("a")).unwrap();
    for at in SLOTS_OFFSET..SLOTS_OFFSET + 120 {
        let mut damaged = contents.clone();
        damaged[at] ^= 0x55;
        fs::write(test_folder.file("a"), &damaged).unwrap();
        let refused = locks.mutex("a").try_lock().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corrupt, "byte {at}: {refused}");
    }
    fs::write(test_folder.file("a"), contents).unwrap();
    assert!(locks.mutex("a").try_lock().await.unwrap().is_none());
}

#[tokio::test]
async fn after_a_reboot_claims_are_void_and_tokens_go_on() {
    let test_folder = TestFolder::new();
    let locks = test_folder.open().await;
    let guard = locks.mutex("a").lock().await.unwrap();
    simulate_reboot(&test_folder.file("a"));
    let view: LockView = locks.inspect("a").await.unwrap();
    assert_eq!(view.holders, []);
    let next = acquire(&locks, "a").await;
    assert!(next > guard.token());
}

#[tokio::test]
async fn a_power_loss_repeats_no_token() {
    let test_folder = TestFolder::new();
    let locks = test_folder.open().await;
    let first = acquire(&locks, "a").await;
    // Only what was there at the last reservation of tokens is sure to be on disk.
    let on_disk = fs::read(test_folder.file("a")).unwrap();
    let mut last = first;
    for _ in 0..100 {
        last = acquire(&locks, "a").await;
    }
    let reserved = test_folder.counters("a").reserved;
    assert_eq!(layout::read_counters(&on_disk).unwrap().reserved, reserved, "no reservation was synced since");
    fs::write(test_folder.file("a"), on_disk).unwrap();
    simulate_reboot(&test_folder.file("a"));
    assert!(acquire(&locks, "a").await > last);
    assert!(acquire(&locks, "a").await.0 > reserved);
}

#[tokio::test]
async fn an_unsynced_token_reservation_is_not_used() {
    let test_folder = TestFolder::new();
    let locks = test_folder.open().await;
    acquire(&locks, "a").await;
    // Killed after the intent was written, and before it was synced.
    let counters = test_folder.counters("a");
    let mut page = fs::read(test_folder.file("a")).unwrap();
    let intent = counters.intent + 4096;
    layout::write_counters(&mut page, Counters { last: counters.reserved, intent, ..counters });
    fs::write(test_folder.file("a"), page).unwrap();
    let token = acquire(&locks, "a").await;
    let now = test_folder.counters("a");
    assert!(token.0 > counters.reserved && now.reserved == now.intent && now.intent != intent, "{now:?}");
    // After a reboot even the intended tokens count as used.
    let mut page = fs::read(test_folder.file("a")).unwrap();
    layout::write_counters(&mut page, Counters { intent: now.intent + 4096, ..now });
    fs::write(test_folder.file("a"), page).unwrap();
    simulate_reboot(&test_folder.file("a"));
    assert!(acquire(&locks, "a").await.0 > now.intent + 4096);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_start_together_do_not_take_each_other_for_dead() {
    for _ in 0..30 {
        let test_folder = TestFolder::new();
        let opened = futures_util::future::join_all((0..6).map(|_| test_folder.open())).await;
        for locks in &opened {
            acquire(locks, "a").await;
        }
        assert_eq!(fs::read_dir(test_folder.dir.join("clients")).unwrap().count(), 12, "a file and a socket each");
    }
}

#[tokio::test]
async fn tokens_are_reserved_again_when_they_run_out() {
    let test_folder = TestFolder::new();
    let locks = test_folder.open().await;
    acquire(&locks, "a").await;
    let counters = test_folder.counters("a");
    let mut page = fs::read(test_folder.file("a")).unwrap();
    layout::write_counters(&mut page, Counters { last: counters.reserved - 3, ..counters });
    fs::write(test_folder.file("a"), page).unwrap();
    let mut last = Token(counters.reserved - 3);
    for _ in 0..10 {
        let next = acquire(&locks, "a").await;
        assert_eq!(next.0, last.0 + 1);
        assert!(next.0 <= test_folder.counters("a").reserved);
        last = next;
    }
}

#[tokio::test]
async fn idle_files_are_removed_and_their_tokens_kept() {
    let test_folder = TestFolder::new();
    let locks = test_folder.open().await;
    let before = acquire(&locks, "idle").await;
    acquire(&locks, "fresh").await;
    let held = locks.mutex("held").lock().await.unwrap();
    ["idle", "held"].into_iter().for_each(|name| test_folder.make_idle(name));
    let other = test_folder.open().await;
    assert!(!test_folder.file("idle").exists());
    assert!(test_folder.file("fresh").exists() && test_folder.file("held").exists());
    // The first client has the old file open, and must notice.
    let guard = locks.mutex("idle").lock().await.unwrap();
    assert!(guard.token() > before);
    assert!(other.mutex("idle").try_lock().await.unwrap().is_none());
    assert!(held.is_held());
}

#[tokio::test]
async fn a_removed_folder_is_detected() {
    let test_folder = TestFolder::new();
    let manual_clock = ManualClock::running();
    let locks = test_folder.open_with_clock(&manual_clock).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    fs::remove_dir_all(&test_folder.dir).unwrap();
    // Its renewal is due.
    manual_clock.advance(LONG_TTL / 3);
    assert_eq!(guard.lost().await, LostReason::Revoked);
    let error = locks.mutex("a").try_lock().await.unwrap_err();
    assert!(error.to_string().contains("cannot make"), "{error}");
}

#[tokio::test]
async fn a_removed_lock_file_does_not_admit_two_holders() {
    let test_folder = TestFolder::new();
    let (one, two) = (test_folder.open().await, test_folder.open().await);
    acquire(&one, "a").await;
    fs::remove_file(test_folder.file("a")).unwrap();
    let _guard = two.mutex("a").lock().await.unwrap();
    assert!(one.mutex("a").try_lock().await.unwrap().is_none());
}

#[tokio::test]
async fn files_of_dead_clients_are_removed() {
    let test_folder = TestFolder::new();
    let locks = test_folder.open().await;
    let clients = test_folder.dir.join("clients");
    for left in ["0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdef.socket"] {
        fs::write(clients.join(left), "").unwrap();
    }
    let other = test_folder.open().await;
    assert_eq!(fs::read_dir(&clients).unwrap().count(), 4, "two clients, a file and a socket each");
    drop((locks, other));
    until(async || fs::read_dir(&clients).unwrap().count() == 0).await;
}

/// Waits until `done`. Only a failing test waits for two minutes.
pub(super) async fn until(done: impl AsyncFn() -> bool) {
    let waiting = async {
        while !done().await {
            Clock::system().sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(Clock::system().timeout(Duration::from_secs(120), waiting).await.is_ok(), "waited two minutes");
}

/// A client of its own, as another process would have.
async fn engine(test_folder: &TestFolder) -> Arc<super::FileEngine> {
    super::FileEngine::open(&EngineUrl::parse(&test_folder.url()).unwrap(), &Clock::system()).await.unwrap()
}

fn claim(name: &str) -> Arc<Claim> {
    let holder = Arc::new(crate::Holder::new("h", 1, "p", ""));
    Arc::new(Claim::new(Arc::new(LockOptions::new(
        LockName::new(name).unwrap(),
        Mode::Exclusive,
        None,
        LONG_TTL,
        holder,
    ))))
}

#[tokio::test]
async fn a_hand_off_notifies_one_waiter_however_many_wait() {
    let test_folder = TestFolder::new();
    let holder = engine(&test_folder).await;
    let held = claim("a");
    Arc::clone(&holder).attempt(Arc::clone(&held), true).await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..40 {
        let other = engine(&test_folder).await;
        Arc::clone(&other).attempt(claim("a"), true).await.unwrap();
        waiting.push(other);
    }
    let before = holder.notified_count();
    Arc::clone(&holder).release(held).await.unwrap();
    assert_eq!(holder.notified_count() - before, 1);
}

/// A client that released the lock was stopped before it notified the next waiter. That waiter was
/// force released since and waits again: the late notification is outdated.
#[tokio::test]
async fn a_late_notification_of_an_old_grant_is_ignored() {
    let test_folder = TestFolder::new();
    let (holder, waiter) = (engine(&test_folder).await, engine(&test_folder).await);
    let (held, waits) = (claim("a"), claim("a"));
    let answer = Arc::clone(&holder).attempt(Arc::clone(&held), true).await.unwrap();
    let AcquireReply::Granted(grant) = answer else { panic!("{answer:?}") };
    Arc::clone(&waiter).attempt(Arc::clone(&waits), true).await.unwrap();
    // In the format of earlier versions: kind 2, the claim, its token and the end of its lease. It is
    // ignored. Today's format, which follows it, says only that the claim must check its state.
    let mut late = vec![2];
    late.extend(waits.id.bits().to_le_bytes());
    late.extend(grant.token.0.to_le_bytes());
    late.extend(Clock::system().now().saturating_add(LONG_TTL).as_nanos().to_le_bytes());
    let session = waiter.session();
    let socket = session.folder.clients.path_by_handle(&super::folder::socket_file(session.client.id));
    let sender = std::os::unix::net::UnixDatagram::unbound().unwrap();
    sender.send_to(&late, &socket).unwrap();
    sender.send_to(&Notification::CheckState.encode(waits.id), &socket).unwrap();
    let answer = Arc::clone(&waiter).wait(Arc::clone(&waits), Duration::from_secs(120)).await.unwrap();
    assert!(matches!(answer, AcquireReply::Queued { ahead: 0, .. }), "{answer:?}");
    // A true notification takes effect.
    Arc::clone(&holder).release(held).await.unwrap();
    let answer = Arc::clone(&waiter).wait(waits, Duration::from_secs(120)).await.unwrap();
    assert!(matches!(answer, AcquireReply::Granted(_)), "{answer:?}");
}

#[tokio::test]
async fn a_step_on_a_busy_file_fails_with_that_reason() {
    let test_folder = TestFolder::new();
    let locks = test_folder.open().await;
    acquire(&locks, "a").await;
    let file_lock = File::open(test_folder.file("a")).unwrap();
    rustix::fs::flock(&file_lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let error = locks.mutex("a").ttl(LONG_TTL).try_lock().await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true));
    assert!(error.to_string().contains("is it stopped?"), "{error}");
    drop(file_lock);
    acquire(&locks, "a").await;
}

#[tokio::test]
async fn a_busy_file_costs_no_other_lease() {
    let (test_folder, manual_clock, ttl) = (TestFolder::new(), ManualClock::new(), Duration::from_secs(30));
    let locks = Locks::builder().clock(manual_clock.clock()).ttl(ttl).open(&test_folder.url()).await.unwrap();
    let stuck = locks.mutex("a-stuck").lock().await.unwrap();
    let others = [locks.mutex("b").lock().await.unwrap(), locks.mutex("c").lock().await.unwrap()];
    let before = others.each_ref().map(crate::Guard::deadline);
    let file_lock = File::open(test_folder.file("a-stuck")).unwrap();
    rustix::fs::flock(&file_lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    // All are renewed together. The renewals of "b" and "c" are in the folder while that of
    // "a-stuck" still waits.
    manual_clock.advance(ttl / 3);
    for name in ["b", "c"] {
        until(async || locks.inspect(name).await.unwrap().holders[0].remaining == ttl).await;
    }
    // The renewal of "a-stuck" is given up, and the others take effect.
    manual_clock.advance(Duration::from_secs(3));
    until(async || others.iter().zip(&before).all(|(guard, before)| guard.deadline() > *before)).await;
    // Only the lease that cannot be renewed is lost in the end.
    manual_clock.advance(stuck.deadline().duration_since(locks.clock().now()));
    assert_eq!(stuck.lost().await, LostReason::Expired);
    assert!(others.iter().all(crate::Guard::is_held));
    drop(file_lock);
    for guard in others {
        assert_eq!(guard.release().await.unwrap(), crate::ReleaseOutcome::Released);
    }
}

#[tokio::test]
async fn a_client_presumed_dead_detects_it() {
    let test_folder = TestFolder::new();
    let engine = engine(&test_folder).await;
    let held = claim("a");
    Arc::clone(&engine).attempt(Arc::clone(&held), true).await.unwrap();
    for file in fs::read_dir(test_folder.dir.join("clients")).unwrap() {
        fs::remove_file(file.unwrap().path()).unwrap();
    }
    assert_eq!(engine.renew(vec![held]).await.unwrap(), [RenewReply::Lost]);
}

#[tokio::test]
async fn a_half_written_slot_is_never_read() {
    // Slots in the first page are written with one call, as the tests of `WritePlan` show. This
    // test fills slots past that page.
    let test_folder = TestFolder::new();
    let locks = test_folder.open().await;
    let mut guards = Vec::new();
    for _ in 0..20 {
        guards.push(locks.rwlock("a").read().await.unwrap());
    }
    assert_eq!(locks.inspect("a").await.unwrap().holders.len(), 20);
    let file = File::open(test_folder.file("a")).unwrap();
    let mut page = vec![0; PAGE_SIZE];
    file.read_exact_at(&mut page, 0).unwrap();
    assert_eq!(layout::read_counters(&page).unwrap().slots, 20);
    for guard in guards {
        let _ = guard.release().await.unwrap();
    }
    assert_eq!(test_folder.counters("a").slots, 0);
}

/// The client's process is alive, but its socket was removed: no notification reaches the waiter.
#[tokio::test]
async fn a_force_released_waiter_does_not_queue_again_if_its_notification_is_lost() {
    let (test_folder, manual_clock) = (TestFolder::new(), ManualClock::new());
    let operator = test_folder.open_with_clock(&manual_clock).await;
    let _held = operator.mutex("a").lock().await.unwrap();
    let sockets = || fs::read_dir(test_folder.dir.join("clients")).unwrap().map(|file| file.unwrap().path());
    let before: Vec<_> = sockets().collect();
    let locks = test_folder.open_with_clock(&manual_clock).await;
    for new in sockets().filter(|path| !before.contains(path) && File::open(path).is_err()) {
        fs::remove_file(new).unwrap();
    }
    let lock = locks.mutex("a");
    let waiter = tokio::spawn(async move { lock.lock().await });
    until(async || operator.inspect("a").await.unwrap().waiters.len() == 1).await;
    let claim = operator.inspect("a").await.unwrap().waiters[0].claim;
    assert!(operator.force_release("a", claim).await.unwrap().contender.is_some());
    // The waiter finds out when it next confirms its position.
    until(async || {
        manual_clock.advance(Duration::from_secs(1));
        waiter.is_finished()
    })
    .await;
    assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::ForceReleased);
    assert_eq!(operator.inspect("a").await.unwrap().waiters, []);
}

/// The call that waited failed, so that its caller does not know of the force release and attempts
/// again.
#[tokio::test]
async fn a_new_attempt_of_a_force_released_waiter_does_not_queue_again() {
    let test_folder = TestFolder::new();
    let (operator, waiting) = (engine(&test_folder).await, engine(&test_folder).await);
    let (held, waiter) = (claim("a"), claim("a"));
    Arc::clone(&operator).attempt(held, true).await.unwrap();
    let attempt = || Arc::clone(&waiting).attempt(Arc::clone(&waiter), true);
    assert!(matches!(attempt().await.unwrap(), AcquireReply::Queued { .. }));
    assert!(Arc::clone(&waiting).wait(Arc::clone(&waiter), LONG_TTL).now_or_never().is_none());
    let outcome = Arc::clone(&operator).force_release(waiter.name().clone(), waiter.id, String::new()).await.unwrap();
    assert!(outcome.contender.is_some());
    assert_eq!(attempt().await.unwrap(), AcquireReply::ForceReleased);
    // Its caller knows now: the claim may start over.
    assert!(matches!(attempt().await.unwrap(), AcquireReply::Queued { .. }));
}

/// A socket holds about ten messages; the others are lost. The clock is frozen, so no renewal finds
/// the losses.
#[tokio::test]
async fn every_holder_of_a_process_learns_of_its_force_release_if_notifications_are_lost() {
    let (test_folder, manual_clock) = (TestFolder::new(), ManualClock::new());
    let (locks, operator) =
        (test_folder.open_with_clock(&manual_clock).await, test_folder.open_with_clock(&manual_clock).await);
    let mut guards = Vec::new();
    for number in 0..30 {
        guards.push(locks.mutex(format!("a{number}")).lock().await.unwrap());
    }
    // No await here lets the task run that receives the notifications.
    for guard in &guards {
        let outcome = operator.force_release(guard.name().as_str(), guard.claim_id());
        assert!(outcome.now_or_never().expect("an immediate answer").unwrap().contender.is_some());
    }
    for guard in &guards {
        let lost = Clock::system().timeout(Duration::from_secs(120), guard.lost()).await;
        assert_eq!(lost.ok(), Some(LostReason::Revoked), "{guard:?}");
    }
}
