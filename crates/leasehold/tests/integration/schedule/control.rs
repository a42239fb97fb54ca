//! Pause, resume, run now, reset, forget, and the status of a job.

use std::time::Duration;

use leasehold::ErrorKind;
use leasehold::schedule::Jobs;

use crate::schedule::world::{World, minute};

const SHORT: Duration = Duration::from_millis(500);

#[tokio::test]
async fn a_pause_holds_for_all_nodes_and_its_ticks_are_not_made_up_for() {
    let world = World::new().await;
    let jobs = Jobs::of(&world.locks).unwrap();
    let nodes = [world.node(world.job(), SHORT), world.node(world.job(), SHORT)];
    let tick = world.to_next_minute().await;
    assert!(jobs.pause("job").await.unwrap());
    assert!(!jobs.pause("job").await.unwrap(), "it was paused already");
    assert!(world.status().await.paused.is_some());
    world.pass(200).await;
    assert_eq!(world.ticks(), [tick]);
    assert!(jobs.resume("job").await.unwrap());
    assert!(!jobs.resume("job").await.unwrap());
    let next = world.to_next_minute().await;
    assert_eq!(world.ticks(), [tick, next]);
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test]
async fn a_run_by_hand_runs_once_on_one_node_also_in_a_pause() {
    let world = World::new().await;
    let jobs = Jobs::of(&world.locks).unwrap();
    let nodes = [world.node(world.job(), SHORT), world.node(world.job(), SHORT)];
    world.to_next_minute().await;
    jobs.pause("job").await.unwrap();
    jobs.run_now("job").await.unwrap();
    world.pass(30).await;
    let status = world.status().await;
    assert_eq!(world.ran().len(), 2);
    assert!(status.history.last().unwrap().run.as_ref().unwrap().manual);
    assert_eq!(status.wanted, 0);
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test]
async fn how_a_job_stands_can_be_seen() {
    let world = World::new().await;
    let jobs = Jobs::of(&world.locks).unwrap();
    assert_eq!(jobs.names().await.unwrap(), Vec::<String>::new());
    assert!(jobs.status("job").await.unwrap().is_none());
    assert_eq!(jobs.pause("job").await.unwrap_err().kind(), ErrorKind::InvalidOption);
    let node = world.node(world.job().zone("Europe/Berlin").unwrap(), Duration::from_secs(20));
    let tick = world.to_next_minute().await;
    assert_eq!(jobs.names().await.unwrap(), ["job"]);
    let status = world.status().await;
    assert_eq!((status.schedule.as_str(), status.zone.as_str()), ("* * * * *", "Europe/Berlin"));
    assert_eq!((status.decided, status.next), (minute(tick), Some(minute(tick + 60))));
    assert_eq!(status.running.len(), 1);
    assert!(status.running[0].node.ends_with(&format!(":{}", std::process::id())), "{status:?}");
    assert_eq!(jobs.forget("job").await.unwrap_err().kind(), ErrorKind::Conflict);
    world.pass(30).await;
    let status = world.status().await;
    let run = status.history[0].run.as_ref().unwrap();
    assert!(status.running.is_empty() && status.history[0].at - run.started >= 19_000, "{status:?}");
    node.stop().await;
    assert!(jobs.forget("job").await.unwrap());
    assert!(!jobs.forget("job").await.unwrap());
}

#[tokio::test]
async fn a_watermark_in_the_future_fires_nothing_until_it_is_reset() {
    let world = World::new().await;
    let jobs = Jobs::of(&world.locks).unwrap();
    let node = world.node(world.job(), SHORT);
    world.to_next_minute().await;
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
    let node = world.node(world.job(), SHORT);
    world.pass(130).await;
    assert_eq!(world.ran().len(), 1);
    assert!(world.status().await.ahead.is_some());
    jobs.reset("job").await.unwrap();
    world.to_next_minute().await;
    assert_eq!(world.ran().len(), 2);
    node.stop().await;
}

#[tokio::test]
async fn a_record_that_is_lost_or_falls_back_fires_no_old_tick_again() {
    for wiped in [true, false] {
        let world = World::new().await;
        let jobs = Jobs::of(&world.locks).unwrap();
        world.to_next_minute().await;
        let nodes = [world.node(world.job(), SHORT), world.node(world.job(), SHORT)];
        world.pass(1).await;
        let records = world.locks.records().unwrap();
        let old = records.get("cron:job").await.unwrap().value;
        let tick = world.to_next_minute().await;
        world.pass(12).await;
        if wiped {
            assert!(jobs.forget("job").await.unwrap());
        } else {
            records.update("cron:job", |_, _| Some(old.clone())).await.unwrap();
        }
        // The tick is within its grace period.
        world.pass(30).await;
        assert_eq!(world.ticks(), [tick], "wiped: {wiped}");
        world.to_next_minute().await;
        assert_eq!(world.ticks(), [tick, tick + 60], "and it goes on; wiped: {wiped}");
        for node in nodes {
            node.stop().await;
        }
    }
}
