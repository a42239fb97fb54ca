//! Pause, resume, run now, reset, forget, and the status of a job.

use std::time::Duration;

use leasehold::ErrorKind;
use leasehold_schedule::Jobs;

use crate::world::{World, minute};

const SHORT: Duration = Duration::from_millis(500);

#[tokio::test]
async fn a_pause_holds_for_all_nodes_and_its_ticks_do_not_run_later() {
    let world = World::new().await;
    let jobs = Jobs::new(&world.locks).unwrap();
    let nodes = [world.start_node(world.job(), SHORT), world.start_node(world.job(), SHORT)];
    let tick = world.advance_to_next_minute().await;
    assert!(jobs.pause("job").await.unwrap());
    assert!(!jobs.pause("job").await.unwrap(), "it was paused already");
    assert!(world.status().await.paused.is_some());
    world.advance(200).await;
    assert_eq!(world.started_ticks(), [tick]);
    assert!(jobs.resume("job").await.unwrap());
    assert!(!jobs.resume("job").await.unwrap());
    let next = world.advance_to_next_minute().await;
    assert_eq!(world.started_ticks(), [tick, next]);
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test]
async fn a_manual_run_runs_once_on_one_node_even_during_a_pause() {
    let world = World::new().await;
    let jobs = Jobs::new(&world.locks).unwrap();
    let nodes = [world.start_node(world.job(), SHORT), world.start_node(world.job(), SHORT)];
    world.advance_to_next_minute().await;
    jobs.pause("job").await.unwrap();
    jobs.run_now("job").await.unwrap();
    world.advance(30).await;
    let status = world.status().await;
    assert_eq!(world.started_runs().len(), 2);
    assert!(status.history.last().unwrap().run.as_ref().unwrap().manual);
    assert_eq!(status.pending_manual_runs, 0);
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test]
async fn the_status_of_a_job_is_shown() {
    let world = World::new().await;
    let jobs = Jobs::new(&world.locks).unwrap();
    assert_eq!(jobs.names().await.unwrap(), Vec::<String>::new());
    assert!(jobs.status("job").await.unwrap().is_none());
    assert_eq!(jobs.pause("job").await.unwrap_err().kind(), ErrorKind::InvalidOption);
    let node = world.start_node(world.job().zone("Europe/Berlin").unwrap(), Duration::from_secs(20));
    let tick = world.advance_to_next_minute().await;
    assert_eq!(jobs.names().await.unwrap(), ["job"]);
    let status = world.status().await;
    assert_eq!((status.schedule.as_str(), status.zone.as_str()), ("* * * * *", "Europe/Berlin"));
    assert_eq!((status.decided, status.next), (minute(tick), Some(minute(tick + 60))));
    assert_eq!(status.running.len(), 1);
    assert!(status.running[0].node.ends_with(&format!(":{}", std::process::id())), "{status:?}");
    assert_eq!(jobs.remove("job").await.unwrap_err().kind(), ErrorKind::Conflict);
    world.advance(30).await;
    let status = world.status().await;
    let run = status.history[0].run.as_ref().unwrap();
    assert!(status.running.is_empty() && status.history[0].at - run.started >= 19_000, "{status:?}");
    node.stop().await;
    assert!(jobs.remove("job").await.unwrap());
    assert!(!jobs.remove("job").await.unwrap());
}

#[tokio::test]
async fn a_watermark_in_the_future_fires_no_tick_until_it_is_reset() {
    let world = World::new().await;
    let jobs = Jobs::new(&world.locks).unwrap();
    let node = world.start_node(world.job(), SHORT);
    world.advance_to_next_minute().await;
    node.stop().await;
    let records = world.locks.records().unwrap();
    // As after a run by a clock that was ahead: both the last decision and the end of the run are
    // in the future.
    let watermark = format!("\"watermark\":{}", world.status().await.decided.unix());
    let ended = format!("\"busy_until\":{}", world.status().await.history[0].at);
    let ahead = |value: &str| {
        assert!(value.contains(&watermark) && value.contains(&ended), "{value}");
        value.replace(&watermark, "\"watermark\":99999999999").replace(&ended, "\"busy_until\":99999999999999")
    };
    records.update("cron:job", |value, _| Some(ahead(value))).await.unwrap();
    let node = world.start_node(world.job(), SHORT);
    world.advance(130).await;
    assert_eq!(world.started_runs().len(), 1);
    assert!(world.status().await.clock_behind_by.is_some());
    jobs.reset("job").await.unwrap();
    world.advance_to_next_minute().await;
    assert_eq!(world.started_runs().len(), 2);
    node.stop().await;
}

#[tokio::test]
async fn a_lost_or_outdated_record_runs_no_old_tick_again() {
    for wiped in [true, false] {
        let world = World::new().await;
        let jobs = Jobs::new(&world.locks).unwrap();
        world.advance_to_next_minute().await;
        let nodes = [world.start_node(world.job(), SHORT), world.start_node(world.job(), SHORT)];
        world.advance(1).await;
        let records = world.locks.records().unwrap();
        let old = records.get("cron:job").await.unwrap().value;
        let tick = world.advance_to_next_minute().await;
        world.advance(12).await;
        if wiped {
            assert!(jobs.remove("job").await.unwrap());
        } else {
            records.update("cron:job", |_, _| Some(old.clone())).await.unwrap();
        }
        // The tick is within its grace period.
        world.advance(30).await;
        assert_eq!(world.started_ticks(), [tick], "wiped: {wiped}");
        world.advance_to_next_minute().await;
        assert_eq!(world.started_ticks(), [tick, tick + 60], "and later ticks run; wiped: {wiped}");
        for node in nodes {
            node.stop().await;
        }
    }
}
