//! A small fleet on the real clock, in one folder: each member has its own engine.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::Locks;
use leasehold_schedule::{self as schedule, Job, Overlap, Scheduler, StopHandle};

/// Limits a hanging test.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);
/// No lease ends during a test, and no tick is too late.
const LONG_TTL: Duration = Duration::from_secs(600);

#[tokio::test]
async fn every_second_runs_once_among_five_engines_in_one_folder() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}", dir.path().display());
    let runs: Arc<Mutex<BTreeMap<i64, Vec<u64>>>> = Arc::default();
    let stop = StopHandle::new();
    let mut nodes = Vec::new();
    for _ in 0..5 {
        let locks = Locks::builder().ttl(LONG_TTL).open(&url).await.unwrap();
        let (runs, stop) = (Arc::clone(&runs), stop.clone());
        nodes.push(tokio::spawn(async move {
            // Ticks that come due during a run are run after it, even if the machine pauses for a
            // second.
            let job = Job::new("each-second", "* * * * * *").unwrap().overlap(Overlap::Queue).grace(LONG_TTL);
            schedule::run_until(&locks, job, &stop, |run| {
                runs.lock().unwrap().entry(run.tick().unix()).or_default().push(run.token().0);
                async { Ok::<(), String>(()) }
            })
            .await
        }));
    }
    let enough = async {
        while runs.lock().unwrap().len() < 4 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, enough).await.expect("four ticks");
    stop.stop();
    for node in nodes {
        node.await.unwrap().unwrap();
    }
    let runs = runs.lock().unwrap().clone();
    let (first, last) = (*runs.keys().next().unwrap(), *runs.keys().last().unwrap());
    assert_eq!(runs.keys().copied().collect::<Vec<_>>(), (first..=last).collect::<Vec<_>>(), "no tick is missing");
    assert!(runs.values().all(|tokens| tokens.len() == 1), "{runs:?}");
    assert!(runs.values().is_sorted_by(|a, b| a < b), "{runs:?}");
}

#[tokio::test]
async fn a_scheduler_runs_many_jobs_and_refuses_two_of_one_name() {
    let locks = Locks::open("memory:").await.unwrap();
    let mut scheduler = Scheduler::new(&locks);
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    for name in ["a", "b"] {
        let seen = Arc::clone(&seen);
        let work = move |run: schedule::Run| {
            seen.lock().unwrap().push(run.job().to_owned());
            async { Ok::<(), String>(()) }
        };
        scheduler.add(Job::new(name, "* * * * * *").unwrap(), work).unwrap();
    }
    let twice = scheduler.add(Job::new("a", "@daily").unwrap(), |_| async { Ok::<(), String>(()) });
    assert!(twice.unwrap_err().to_string().contains("two jobs named \"a\""));
    let stop = scheduler.stop_handle();
    let both = async {
        let has = |name: &str| seen.lock().unwrap().iter().any(|seen| seen == name);
        while !(has("a") && has("b")) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop.stop();
    };
    let run = scheduler.run(|job, error| panic!("{job}: {error}"));
    tokio::time::timeout(TEST_TIMEOUT, async { tokio::join!(run, both) }).await.expect("both");
}
