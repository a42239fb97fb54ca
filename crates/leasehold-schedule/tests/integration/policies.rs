//! The outcomes of ticks: missed ones, those during a long run, those whose node died.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::ErrorKind;
use leasehold_schedule::{self as schedule, Crash, Job, JobEvent, Missed, Overlap, StopHandle, TickOutcome};

use tokio::sync::Notify;

use crate::world::{World, run_until_idle};

const SHORT: Duration = Duration::from_millis(500);

#[tokio::test]
async fn each_tick_runs_once_among_eight_nodes() {
    let world = World::new().await;
    let nodes: Vec<_> = (0..8).map(|_| world.start_node(world.job(), SHORT)).collect();
    let first = world.advance_to_next_minute().await;
    world.advance(240).await;
    assert_eq!(world.started_ticks(), (0..5).map(|n| first + n * 60).collect::<Vec<_>>());
    assert!(world.started_runs().is_sorted_by(|a, b| a.token < b.token), "{:?}", world.started_runs());
    for node in nodes {
        node.stop().await;
    }
    assert_eq!(world.outcomes().await, ["done"; 5]);
}

#[tokio::test]
async fn a_new_job_and_a_late_starter_do_not_fire_the_past() {
    let world = World::new().await;
    let tick = world.advance_to_next_minute().await;
    let node = world.start_node(world.job(), SHORT);
    world.advance(5).await;
    assert_eq!(world.started_ticks(), [0i64; 0], "the tick was before the job");
    world.advance(60).await;
    let late = world.start_node(world.job(), SHORT);
    world.advance(10).await;
    assert_eq!(world.started_ticks(), [tick + 60]);
    node.stop().await;
    late.stop().await;
}

#[tokio::test]
async fn a_restart_runs_what_was_not_run_if_it_is_not_too_late() {
    let world = World::new().await;
    let node = world.start_node(world.job(), SHORT);
    let tick = world.advance_to_next_minute().await;
    node.stop().await;
    // No node runs during the next two ticks; when one starts again, the second is 20 s old.
    world.advance(140).await;
    let node = world.start_node(world.job(), SHORT);
    world.advance(10).await;
    assert_eq!(world.started_ticks(), [tick, tick + 120]);
    assert_eq!(world.outcomes().await, ["done", "missed", "done"]);
    node.stop().await;
}

#[tokio::test]
async fn missed_ticks_run_by_policy() {
    for (missed, expected) in
        [(Missed::Skip, vec![0]), (Missed::Once, vec![0, 600]), (Missed::All { limit: 3 }, vec![0, 480, 540, 600])]
    {
        let world = World::new().await;
        let job = || world.job().missed(missed).grace(Duration::from_secs(10));
        let node = world.start_node(job(), SHORT);
        let tick = world.advance_to_next_minute().await;
        node.stop().await;
        world.advance(630).await;
        let node = world.start_node(job(), SHORT);
        world.advance(10).await;
        assert_eq!(world.started_ticks(), expected.iter().map(|n| tick + n).collect::<Vec<_>>(), "{missed:?}");
        node.stop().await;
    }
}

#[tokio::test]
async fn ticks_during_a_run_are_skipped_queued_or_run_concurrently() {
    // A run lasts two and a half minutes.
    for (overlap, expected) in [
        (Overlap::Skip, vec![0, 180, 360]),
        (Overlap::Queue, vec![0, 60, 120]),
        (Overlap::Allow { max: 9 }, vec![0, 60, 120, 180, 240, 300, 360]),
        (Overlap::Allow { max: 2 }, vec![0, 60, 120, 180, 240, 300]),
    ] {
        let world = World::new().await;
        let job = || world.job().overlap(overlap).grace(Duration::from_secs(600));
        let nodes =
            [world.start_node(job(), Duration::from_secs(150)), world.start_node(job(), Duration::from_secs(150))];
        let tick = world.advance_to_next_minute().await;
        world.advance(375).await;
        let expected: Vec<_> = expected.iter().map(|n| tick + n).collect();
        assert_eq!(world.started_ticks(), expected, "{overlap:?}");
        for node in nodes {
            node.kill().await;
        }
    }
}

#[tokio::test]
async fn a_dead_run_is_retried_only_by_policy() {
    for (crash, begins) in
        [(Crash::AtMostOnce, 1), (Crash::Retry { attempts: 2 }, 2), (Crash::Retry { attempts: 5 }, 3)]
    {
        let world = World::new().await;
        let job = || world.job().crash(crash).grace(Duration::from_secs(5));
        let long = Duration::from_secs(20);
        let (one, two, three) =
            (world.start_node(job(), long), world.start_node(job(), long), world.start_node(job(), long));
        let tick = world.advance_to_next_minute().await;
        assert_eq!(world.started_ticks(), [tick]);
        // It is unknown which of them runs it: as long as one is left, the tick can be run.
        one.kill().await;
        world.advance(1).await;
        two.kill().await;
        world.advance(30).await;
        let ran: Vec<_> = world.started_runs().into_iter().filter(|ran| ran.tick == tick).collect();
        assert!(ran.is_sorted_by(|a, b| a.token < b.token && a.attempt < b.attempt), "{ran:?}");
        assert!(ran.len() <= begins, "{crash:?}: {ran:?}");
        if crash != Crash::AtMostOnce && ran.len() < begins {
            assert_eq!(world.outcomes().await.last(), Some(&"done"), "{crash:?}: {ran:?}");
        }
        three.kill().await;
    }
}

#[tokio::test]
async fn a_retried_run_has_the_next_attempt_number_and_a_higher_token() {
    let world = World::new().await;
    let job = || world.job().crash(Crash::Retry { attempts: 3 });
    let first = world.start_node(job(), Duration::from_secs(20));
    let tick = world.advance_to_next_minute().await;
    let second = world.start_node(job(), Duration::from_secs(20));
    world.advance(2).await;
    first.kill().await;
    world.advance(25).await;
    let ran = world.started_runs();
    assert_eq!(ran.iter().map(|ran| (ran.tick, ran.attempt)).collect::<Vec<_>>(), [(tick, 1), (tick, 2)]);
    assert!(ran[0].token < ran[1].token);
    assert_eq!(world.outcomes().await, ["crashed", "done"]);
    second.stop().await;
}

/// Work that stops because its lock seems lost is neither done nor failed. It is started again,
/// even if the lock was not lost.
#[tokio::test]
async fn a_run_interrupted_by_a_lock_loss_is_retried() {
    for (crash, begins) in [(Crash::Retry { attempts: 3 }, 2), (Crash::AtMostOnce, 1)] {
        let world = World::new().await;
        let (job, stop) = (world.job().crash(crash).handles_loss(), StopHandle::new());
        let attempts: Arc<Mutex<Vec<(i64, u32)>>> = Arc::default();
        let (locks, seen, until) = (world.locks.clone(), Arc::clone(&attempts), stop.clone());
        let node = tokio::spawn(async move {
            let work = |run: schedule::Run| {
                seen.lock().unwrap().push((run.tick().unix(), run.attempt()));
                if run.attempt() == 1 {
                    run.mark_interrupted();
                }
                async { Err::<(), _>("stopped") }
            };
            schedule::run_until(&locks, job, &until, work).await
        });
        let tick = world.advance_to_next_minute().await;
        world.advance(30).await;
        let of_it =
            attempts.lock().unwrap().iter().filter(|(of, _)| *of == tick).map(|(_, at)| *at).collect::<Vec<_>>();
        assert_eq!(of_it, (1..=begins).collect::<Vec<_>>(), "{crash:?}");
        let last = if begins == 2 { "failed" } else { "lost" };
        assert_eq!(world.outcomes().await.last(), Some(&last), "{crash:?}");
        stop.stop();
        node.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_dead_concurrent_run_is_taken_over_too() {
    let world = World::new().await;
    let job = || world.job().crash(Crash::Retry { attempts: 3 }).overlap(Overlap::Allow { max: 4 });
    let first = world.start_node(job(), Duration::from_secs(40));
    let tick = world.advance_to_next_minute().await;
    let second = world.start_node(job(), Duration::from_secs(40));
    world.advance(2).await;
    first.kill().await;
    world.advance(50).await;
    assert_eq!(
        world.started_runs().iter().map(|ran| (ran.tick, ran.attempt)).collect::<Vec<_>>(),
        [(tick, 1), (tick, 2)]
    );
    assert_eq!(world.outcomes().await, ["crashed", "done"]);
    second.stop().await;
}

#[tokio::test]
async fn a_run_that_exceeds_max_hold_is_stopped_and_does_not_block_the_next() {
    let world = World::new().await;
    let job = world.job().max_hold(Duration::from_secs(40)).crash(Crash::Retry { attempts: 3 });
    let node = world.start_node(job, Duration::from_secs(3000));
    let tick = world.advance_to_next_minute().await;
    world.advance(70).await;
    assert_eq!(world.started_ticks(), [tick, tick + 60]);
    assert_eq!(world.outcomes().await, ["timed-out"], "and it is not a crash");
    node.kill().await;
}

#[tokio::test]
async fn the_lock_is_kept_for_min_hold() {
    let world = World::new().await;
    let node = world.start_node(world.job().min_hold(Duration::from_secs(20)), SHORT);
    world.advance_to_next_minute().await;
    world.advance(3).await;
    assert_eq!(world.outcomes().await, ["done"], "the run itself is over");
    assert_eq!(world.locks.inspect("cron:job").await.unwrap().holders.len(), 1);
    world.advance(20).await;
    assert_eq!(world.locks.inspect("cron:job").await.unwrap().holders.len(), 0);
    node.stop().await;
}

#[tokio::test]
async fn stopping_completes_the_run_and_starts_no_other() {
    let world = World::new().await;
    let node = world.start_node(world.job(), Duration::from_secs(90));
    let tick = world.advance_to_next_minute().await;
    let (stopped, ()) = tokio::join!(node.stop(), world.advance(200));
    let () = stopped;
    assert_eq!(world.started_ticks(), [tick]);
    assert_eq!(world.outcomes().await, ["done"]);
}

#[tokio::test]
async fn a_changed_schedule_starts_with_its_next_tick() {
    let world = World::new().await;
    let daily = |text| Job::new("job", text).unwrap();
    let node = world.start_node(daily("@yearly"), SHORT);
    world.advance(300).await;
    // Just after a tick, so that none comes due before the next check.
    world.advance_to_next_minute().await;
    node.stop().await;
    let events = std::sync::Arc::clone(&world.events);
    let job = daily("* * * * *").on_event(move |_, event| events.lock().unwrap().push(event.clone()));
    let node = world.start_node(job, SHORT);
    world.advance(1).await;
    assert_eq!(world.started_ticks(), [0i64; 0]);
    let tick = world.advance_to_next_minute().await;
    assert_eq!(world.started_ticks(), [tick]);
    assert!(
        world
            .events
            .lock()
            .unwrap()
            .iter()
            .any(|event| matches!(event, JobEvent::ScheduleChanged { previous: from } if from == "@yearly"))
    );
    assert_eq!(world.status().await.schedule, "* * * * *");
    node.stop().await;
}

#[tokio::test]
async fn failures_are_reported_and_contradictory_options_refused() {
    let world = World::new().await;
    let failing = async {
        let job = world.job();
        leasehold_schedule::run(&world.locks, job, |_| async { Err("the disk is full") }).await
    };
    tokio::select! {
        _ = failing => unreachable!("it runs forever"),
        _ = world.advance_to_next_minute() => {}
    }
    let last = world.status().await.history.last().cloned().unwrap();
    assert_eq!((last.outcome, last.text.as_str()), (TickOutcome::Failed, "the disk is full"));

    let job = || Job::new("other", "@daily").unwrap();
    for (job, expected) in [
        (job().crash(Crash::Retry { attempts: 0 }), "at least one attempt"),
        (job().missed(Missed::All { limit: 0 }), "Missed::Skip"),
        (job().missed(Missed::All { limit: 1_000_000 }), "at most 1000"),
        (job().overlap(Overlap::Allow { max: 0 }), "at least one run"),
        (job().overlap(Overlap::Allow { max: 65 }), "at most 64 concurrent runs fit into a job's record, not 65"),
        (job().min_hold(Duration::from_secs(9)).max_hold(Duration::from_secs(9)), "longer than min_hold"),
    ] {
        let error = leasehold_schedule::run(&world.locks, job, |_| async { Ok::<(), String>(()) }).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption);
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert_eq!(Job::new("", "@daily").unwrap_err().kind(), ErrorKind::InvalidName);
    assert_eq!(Job::new("x".repeat(508), "@daily").unwrap_err().kind(), ErrorKind::InvalidName);
}

#[tokio::test]
async fn a_damaged_record_can_be_removed_and_one_in_an_unknown_format_cannot() {
    let world = World::new().await;
    let records = world.locks.records().unwrap();
    let jobs = schedule::Jobs::new(&world.locks).unwrap();
    records.compare_and_set("cron:job", 0, "{\"v\":1}").await.unwrap().unwrap();
    let damaged = jobs.status("job").await.unwrap_err();
    assert_eq!(damaged.kind(), ErrorKind::Corrupt, "{damaged}");
    assert!(damaged.to_string().contains("cron forget"), "{damaged}");
    assert!(jobs.remove("job").await.unwrap());
    assert!(jobs.status("job").await.unwrap().is_none());
    let removed = records.get("cron:job").await.unwrap();
    records.compare_and_set("cron:job", removed.version, "{\"v\":99}").await.unwrap().unwrap();
    assert_eq!(jobs.remove("job").await.unwrap_err().kind(), ErrorKind::UnknownFormat);
}

#[tokio::test]
async fn an_unknown_record_format_runs_no_tick_and_is_reported() {
    let world = World::new().await;
    world.locks.records().unwrap().compare_and_set("cron:job", 0, "{\"v\":99}").await.unwrap().unwrap();
    let node = world.start_node(world.job(), SHORT);
    world.advance_to_next_minute().await;
    world.advance(60).await;
    assert_eq!(world.started_ticks(), [0i64; 0]);
    let reports_format =
        |event: &JobEvent| matches!(event, JobEvent::EngineFailed { error, .. } if error.contains("format 99"));
    assert!(world.events.lock().unwrap().iter().any(reports_format));
    node.kill().await;
}

#[tokio::test]
async fn a_timed_out_run_is_not_repeated_by_a_queued_node() {
    let world = World::new().await;
    // Its holder needs time to stop its work: the lock is free by then.
    let job = || world.job().max_hold(Duration::from_secs(40)).crash(Crash::Retry { attempts: 3 }).handles_loss();
    let first = world.start_node(job(), Duration::from_secs(50));
    let tick = world.advance_to_next_minute().await;
    let second = world.start_node(job(), Duration::from_secs(1));
    world.advance(56).await;
    assert_eq!(world.started_runs().iter().map(|ran| (ran.tick, ran.attempt)).collect::<Vec<_>>(), [(tick, 1)]);
    assert_eq!(world.outcomes().await, ["timed-out"], "once, and it is not a crash");
    first.kill().await;
    second.kill().await;
}

#[tokio::test]
async fn runs_continue_while_the_engine_fails() {
    let world = World::new().await;
    let (go, ended) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
    let job = world.job().overlap(Overlap::Allow { max: 2 });
    let (locks, runs) = (world.locks.clone(), (Arc::clone(&go), Arc::clone(&ended)));
    let node = tokio::spawn(async move {
        let work = |_| {
            let (go, ended) = runs.clone();
            async move {
                go.notified().await;
                ended.store(true, Ordering::SeqCst);
                Ok::<(), String>(())
            }
        };
        leasehold_schedule::run(&locks, job, work).await
    });
    world.advance_to_next_minute().await;
    let spoil = |_: &str, _: Duration| Some("{\"v\":99}".to_owned());
    world.locks.records().unwrap().update("cron:job", spoil).await.unwrap();
    let trouble = || world.events.lock().unwrap().iter().any(|event| matches!(event, JobEvent::EngineFailed { .. }));
    while !trouble() {
        world.advance(1).await;
    }
    // The manual clock is stopped, so the pause after the error does not end.
    go.notify_one();
    run_until_idle().await;
    assert!(ended.load(Ordering::SeqCst));
    node.abort();
}

#[tokio::test]
async fn a_run_whose_record_was_not_confirmed_is_recorded_again_before_it_starts() {
    let world = World::new().await;
    let node = world.start_node(world.job(), SHORT);
    let tick = world.advance_to_next_minute().await;
    world.advance(2).await;
    node.stop().await;
    // As after a write whose reply never came: the entry has the token that the next guard will
    // have.
    let token = world.started_runs()[0].token + 1;
    let records = world.locks.records().unwrap();
    let running = format!(
        r#""running":[{{"tick":{},"token":{token},"node":"n","started":{},"attempt":1}}],"history""#,
        tick + 60,
        (tick + 60) * 1000
    );
    let put = |value: &str, _: Duration| {
        let mark = (format!("\"watermark\":{tick}"), format!("\"watermark\":{}", tick + 60));
        Some(value.replace(&mark.0, &mark.1).replace("\"history\"", &running))
    };
    records.update("cron:job", put).await.unwrap();
    let before = records.get("cron:job").await.unwrap().version;
    let node = world.start_node(world.job().crash(Crash::Retry { attempts: 1 }), Duration::from_secs(20));
    world.advance(2).await;
    let ran = world.started_runs()[1];
    assert_eq!((ran.tick, ran.token, ran.attempt), (tick + 60, token, 1));
    assert_eq!(records.get("cron:job").await.unwrap().version, before + 1);
    node.kill().await;
}
