//! Calls that the system's cron starts: on time, too early or too late.

use std::sync::Arc;
use std::time::Duration;

use leasehold::ErrorKind;
use leasehold_schedule::{self as schedule, Crash, FinishedRun, Job, JobEvent, Missed, Overlap};
use tokio::task::JoinHandle;

use crate::world::{World, run_until_idle};

/// Starts [`schedule::run_due`] as a process that the system's cron starts does; each run lasts
/// `run_secs`.
fn start_call(world: &World, job: Job, run_secs: u64) -> JoinHandle<leasehold::Result<Vec<FinishedRun>>> {
    start_call_with_timeout(world, job, run_secs, None)
}

/// Like [`start_call`]; the call waits for the job's lock at most `wait`, if that is set.
fn start_call_with_timeout(
    world: &World,
    job: Job,
    run_secs: u64,
    wait: Option<Duration>,
) -> JoinHandle<leasehold::Result<Vec<FinishedRun>>> {
    let (locks, runs) = (world.locks.clone(), Arc::clone(&world.runs));
    tokio::spawn(async move {
        let clock = locks.clock().clone();
        schedule::run_due(&locks, job, None, wait, |run| {
            let ran =
                crate::world::StartedRun { tick: run.tick().unix(), token: run.token().0, attempt: run.attempt() };
            runs.lock().unwrap().push(ran);
            let until = clock.now().saturating_add(Duration::from_secs(run_secs));
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
async fn advance_near_next_tick(world: &World, offset: i64) -> i64 {
    let now = world.now().await;
    let next = ((now + 150) / 300 + 1) * 300;
    world.advance(u64::try_from(next + offset - now).unwrap()).await;
    next
}

#[tokio::test]
async fn eight_hosts_minutes_apart_run_each_tick_once() {
    let world = World::new().await;
    let first = advance_near_next_tick(&world, -130).await;
    let ticks = [first, first + 300, first + 600];
    for tick in ticks {
        world.advance(u64::try_from(tick - 130 - world.now().await).unwrap()).await;
        // From 130 s fast to 122 s slow.
        let mut started = Vec::new();
        for _ in 0..8 {
            started.push(start_call(&world, job(), 1));
            world.advance(36).await;
        }
        for call in started {
            call.await.unwrap().unwrap();
        }
    }
    assert_eq!(world.started_ticks(), ticks);
}

/// A holder that acquired the lock a moment ago has not recorded its run yet: the call does not
/// fail.
#[tokio::test]
async fn a_call_that_does_not_wait_leaves_the_tick_to_the_node_that_records_it_next() {
    let world = World::new().await;
    let tick = advance_near_next_tick(&world, 2).await;
    let holder = world.locks.mutex("cron:job").lock().await.unwrap();
    let call = start_call_with_timeout(&world, job(), 1, Some(Duration::ZERO));
    run_until_idle().await;
    let due = world.status().await.decided.unix();
    assert!(due < tick && !call.is_finished());
    let (old, new) = (format!("\"watermark\":{due}"), format!("\"watermark\":{tick}"));
    world.locks.records().unwrap().update("cron:job", |value, _| Some(value.replace(&old, &new))).await.unwrap();
    world.advance(1).await;
    assert_eq!(call.await.unwrap().unwrap(), []);
    // If the lock's holder records no run, the call fails: the next tick did not run.
    world.advance(300).await;
    let call = start_call_with_timeout(&world, job(), 1, Some(Duration::ZERO));
    world.advance(3).await;
    assert_eq!(call.await.unwrap().unwrap_err().kind(), ErrorKind::Timeout);
    // A call that would take over does not check first whether it can.
    let call = start_call_with_timeout(&world, job().crash(Crash::Retry { attempts: 2 }), 1, Some(Duration::ZERO));
    run_until_idle().await;
    assert_eq!(call.await.unwrap().unwrap_err().kind(), ErrorKind::Timeout);
    let _ = holder.release().await.unwrap();
    assert_eq!(world.started_ticks(), [0; 0]);
}

#[tokio::test]
async fn the_only_host_fires_every_tick_with_any_clock_error() {
    for offset in [-149, -120, -30, 0, 30, 120, 149] {
        let world = World::new().await;
        let first = advance_near_next_tick(&world, offset).await;
        for _ in 0..4 {
            let call = start_call(&world, job(), 1);
            world.advance(300).await;
            call.await.unwrap().unwrap();
        }
        // The first call may have been late for the tick before the first.
        let expected: Vec<_> = (0..4).map(|n| first + n * 300).collect();
        assert_eq!(world.started_ticks(), expected, "{offset}");
    }
}

#[tokio::test]
async fn a_host_whose_clock_drifts_past_the_middle_between_two_ticks_misses_none() {
    let world = World::new().await;
    // Half a period away from both ticks, sometimes closer to one, sometimes to the other.
    let first = advance_near_next_tick(&world, 149).await;
    let mut at = 149;
    for next in [152, 149, 151, 148] {
        let call = start_call(&world, job(), 1);
        world.advance(u64::try_from(300 + next - at).unwrap()).await;
        at = next;
        call.await.unwrap().unwrap();
    }
    let ticks = world.started_ticks();
    let all: Vec<_> = (0..i64::try_from(ticks.len()).unwrap()).map(|n| first + n * 300).collect();
    assert_eq!(ticks, all, "each once, none missing");
    assert!(ticks.len() >= 4);
}

#[tokio::test]
async fn a_second_call_finds_no_work() {
    let world = World::new().await;
    let tick = advance_near_next_tick(&world, 2).await;
    let first = start_call(&world, job(), 0);
    world.advance(2).await;
    assert_eq!(first.await.unwrap().unwrap().len(), 1);
    assert_eq!(start_call(&world, job(), 0).await.unwrap().unwrap(), []);
    assert_eq!(world.started_ticks(), [tick]);
}

#[tokio::test]
async fn a_call_long_after_a_tick_misses_it_and_a_slightly_late_one_runs_it() {
    let world = World::new().await;
    // Hourly ticks, the last one this many minutes ago.
    let hourly = |name: &str, ago: i64, now: i64| {
        Job::new(name, &format!("{} * * * *", (now / 60 - ago).rem_euclid(60))).unwrap()
    };
    let now = world.now().await;
    assert_eq!(start_call(&world, hourly("late", 40, now), 0).await.unwrap().unwrap().len(), 1);
    assert_eq!(start_call(&world, hourly("missed", 50, now), 0).await.unwrap().unwrap(), []);
    let made_up_for = hourly("once", 50, now).missed(Missed::Once);
    assert_eq!(start_call(&world, made_up_for, 0).await.unwrap().unwrap().len(), 1);
}

#[tokio::test]
async fn a_call_that_stops_waiting_reports_that_the_job_runs_elsewhere() {
    let world = World::new().await;
    advance_near_next_tick(&world, 1).await;
    let _held = world.locks.mutex("cron:job").lock().await.unwrap();
    let wait = Some(Duration::from_secs(3));
    let locks = world.locks.clone();
    let call =
        tokio::spawn(
            async move { schedule::run_due(&locks, job(), None, wait, |_| async { Ok::<(), String>(()) }).await },
        );
    run_until_idle().await;
    world.advance(5).await;
    assert_eq!(call.await.unwrap().unwrap_err().kind(), ErrorKind::Timeout);
}

#[tokio::test]
async fn calls_do_not_pile_up_behind_a_run_in_progress() {
    let world = World::new().await;
    let tick = advance_near_next_tick(&world, 1).await;
    let long = start_call(&world, job(), 1000);
    world.advance(2).await;
    assert_eq!(world.started_ticks(), [tick]);
    for _ in 0..3 {
        world.advance(300).await;
        let events: Arc<std::sync::Mutex<Vec<JobEvent>>> = Arc::default();
        let sink = Arc::clone(&events);
        let call = start_call(&world, job().on_event(move |_, event| sink.lock().unwrap().push(event.clone())), 1);
        run_until_idle().await;
        assert!(call.is_finished(), "it waits in the queue");
        assert_eq!(call.await.unwrap().unwrap(), []);
        let reports_run = |event: &JobEvent| matches!(event, JobEvent::RunInProgress { run } if run.tick == tick);
        assert!(events.lock().unwrap().iter().any(reports_run));
    }
    // A call that would take over waits, and so does one whose tick must run afterwards.
    let waiting = start_call(&world, job().crash(Crash::Retry { attempts: 2 }), 1);
    let queued = start_call(&world, job().overlap(Overlap::Queue), 1);
    run_until_idle().await;
    assert!(!waiting.is_finished() && !queued.is_finished());
    waiting.abort();
    queued.abort();
    long.abort();
}
