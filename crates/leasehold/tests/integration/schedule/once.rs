//! Calls that the system's cron starts: on time, too early or too late.

use std::sync::Arc;
use std::time::Duration;

use leasehold::ErrorKind;
use leasehold::schedule::{self, Crash, Ended, Event, Job, Missed, Overlap};
use tokio::task::JoinHandle;

use crate::schedule::world::{World, quiet};

/// Makes the call that the system's cron starts.
fn start(world: &World, job: Job, takes: u64) -> JoinHandle<leasehold::Result<Vec<Ended>>> {
    start_waiting(world, job, takes, None)
}

/// A call that waits no longer than this for the lock.
fn start_waiting(
    world: &World,
    job: Job,
    takes: u64,
    wait: Option<Duration>,
) -> JoinHandle<leasehold::Result<Vec<Ended>>> {
    let (locks, book) = (world.locks.clone(), Arc::clone(&world.book));
    tokio::spawn(async move {
        let clock = locks.clock().clone();
        schedule::once(&locks, job, None, wait, |run| {
            let ran =
                crate::schedule::world::Ran { tick: run.tick().unix(), token: run.token().0, attempt: run.attempt() };
            book.lock().unwrap().push(ran);
            let until = clock.now().after(Duration::from_secs(takes));
            let sleep = clock.sleep_until(until);
            async move {
                sleep.await;
                Ok::<(), String>(())
            }
        })
        .await
    })
}

fn job() -> Job {
    Job::new("job", "*/5 * * * *").unwrap()
}

/// Advances time to `offset` seconds from the next tick that has that much time before it; returns
/// the tick.
async fn near_next(world: &World, offset: i64) -> i64 {
    let now = world.now().await;
    let next = ((now + 150) / 300 + 1) * 300;
    world.pass(u64::try_from(next + offset - now).unwrap()).await;
    next
}

#[tokio::test]
async fn eight_hosts_minutes_apart_run_each_tick_once() {
    let world = World::new().await;
    let first = near_next(&world, -130).await;
    let ticks = [first, first + 300, first + 600];
    for tick in ticks {
        world.pass(u64::try_from(tick - 130 - world.now().await).unwrap()).await;
        // From 130 s fast to 122 s slow.
        let mut started = Vec::new();
        for _ in 0..8 {
            started.push(start(&world, job(), 1));
            world.pass(36).await;
        }
        for call in started {
            call.await.unwrap().unwrap();
        }
    }
    assert_eq!(world.ticks(), ticks);
}

/// A holder that acquired the lock a moment ago has not entered its run yet: that is no reason to
/// fail.
#[tokio::test]
async fn a_call_that_does_not_wait_leaves_the_tick_to_whoever_enters_it_a_moment_later() {
    let world = World::new().await;
    let tick = near_next(&world, 2).await;
    let holder = world.locks.mutex("cron:job").lock().await.unwrap();
    let call = start_waiting(&world, job(), 1, Some(Duration::ZERO));
    quiet().await;
    let due = world.status().await.decided.unix();
    assert!(due < tick && !call.is_finished());
    let (old, new) = (format!("\"watermark\":{due}"), format!("\"watermark\":{tick}"));
    world.locks.records().unwrap().update("cron:job", |value, _| Some(value.replace(&old, &new))).await.unwrap();
    world.pass(1).await;
    assert_eq!(call.await.unwrap().unwrap(), []);
    // A lock whose holder enters no run is another matter: the next tick was not run.
    world.pass(300).await;
    let call = start_waiting(&world, job(), 1, Some(Duration::ZERO));
    world.pass(3).await;
    assert_eq!(call.await.unwrap().unwrap_err().kind(), ErrorKind::Timeout);
    // A call that would take over does not check first whether it can.
    let call = start_waiting(&world, job().crash(Crash::Retry { attempts: 2 }), 1, Some(Duration::ZERO));
    quiet().await;
    assert_eq!(call.await.unwrap().unwrap_err().kind(), ErrorKind::Timeout);
    let _ = holder.release().await.unwrap();
    assert_eq!(world.ticks(), [0; 0]);
}

#[tokio::test]
async fn the_only_host_fires_every_tick_however_wrong_its_clock_is() {
    for offset in [-149, -120, -30, 0, 30, 120, 149] {
        let world = World::new().await;
        let first = near_next(&world, offset).await;
        for _ in 0..4 {
            let call = start(&world, job(), 1);
            world.pass(300).await;
            call.await.unwrap().unwrap();
        }
        // The first call may have been late for the tick before the first.
        let expected: Vec<_> = (0..4).map(|n| first + n * 300).collect();
        assert_eq!(world.ticks(), expected, "{offset}");
    }
}

#[tokio::test]
async fn a_host_that_drifts_over_the_middle_between_two_ticks_loses_none() {
    let world = World::new().await;
    // Half a period away from both ticks, sometimes closer to one, sometimes to the other.
    let first = near_next(&world, 149).await;
    let mut at = 149;
    for next in [152, 149, 151, 148] {
        let call = start(&world, job(), 1);
        world.pass(u64::try_from(300 + next - at).unwrap()).await;
        at = next;
        call.await.unwrap().unwrap();
    }
    let ticks = world.ticks();
    let all: Vec<_> = (0..i64::try_from(ticks.len()).unwrap()).map(|n| first + n * 300).collect();
    assert_eq!(ticks, all, "each once, none left out");
    assert!(ticks.len() >= 4);
}

#[tokio::test]
async fn a_second_call_finds_nothing_to_do() {
    let world = World::new().await;
    let tick = near_next(&world, 2).await;
    let first = start(&world, job(), 0);
    world.pass(2).await;
    assert_eq!(first.await.unwrap().unwrap().len(), 1);
    assert_eq!(start(&world, job(), 0).await.unwrap().unwrap(), []);
    assert_eq!(world.ticks(), [tick]);
}

#[tokio::test]
async fn a_call_long_after_a_tick_finds_it_missed_and_a_late_one_is_for_it() {
    let world = World::new().await;
    // Hourly ticks, the last one this many minutes ago.
    let hourly = |name: &str, ago: i64, now: i64| {
        Job::new(name, &format!("{} * * * *", (now / 60 - ago).rem_euclid(60))).unwrap()
    };
    let now = world.now().await;
    assert_eq!(start(&world, hourly("late", 40, now), 0).await.unwrap().unwrap().len(), 1);
    assert_eq!(start(&world, hourly("missed", 50, now), 0).await.unwrap().unwrap(), []);
    let made_up_for = hourly("once", 50, now).missed(Missed::Once);
    assert_eq!(start(&world, made_up_for, 0).await.unwrap().unwrap().len(), 1);
}

#[tokio::test]
async fn whoever_waits_no_longer_is_told_that_it_runs_elsewhere() {
    let world = World::new().await;
    near_next(&world, 1).await;
    let _held = world.locks.mutex("cron:job").lock().await.unwrap();
    let wait = Some(Duration::from_secs(3));
    let locks = world.locks.clone();
    let call =
        tokio::spawn(
            async move { schedule::once(&locks, job(), None, wait, |_| async { Ok::<(), String>(()) }).await },
        );
    quiet().await;
    world.pass(5).await;
    assert_eq!(call.await.unwrap().unwrap_err().kind(), ErrorKind::Timeout);
}

#[tokio::test]
async fn calls_do_not_pile_up_behind_a_run_that_goes_on() {
    let world = World::new().await;
    let tick = near_next(&world, 1).await;
    let long = start(&world, job(), 1000);
    world.pass(2).await;
    assert_eq!(world.ticks(), [tick]);
    for _ in 0..3 {
        world.pass(300).await;
        let events: Arc<std::sync::Mutex<Vec<Event>>> = Arc::default();
        let told = Arc::clone(&events);
        let call = start(&world, job().on_event(move |_, event| told.lock().unwrap().push(event.clone())), 1);
        quiet().await;
        assert!(call.is_finished(), "it stands in line");
        assert_eq!(call.await.unwrap().unwrap(), []);
        let says = |event: &Event| matches!(event, Event::GoesOn { run } if run.tick == tick);
        assert!(events.lock().unwrap().iter().any(says));
    }
    // A call that would take over waits, and so does one whose tick must run afterwards.
    let waiting = start(&world, job().crash(Crash::Retry { attempts: 2 }), 1);
    let queued = start(&world, job().overlap(Overlap::Queue), 1);
    quiet().await;
    assert!(!waiting.is_finished() && !queued.is_finished());
    waiting.abort();
    queued.abort();
    long.abort();
}
