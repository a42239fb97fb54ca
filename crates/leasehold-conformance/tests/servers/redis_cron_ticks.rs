//! Scheduled ticks on a Redis that loses data, in strict mode. A tick whose record may be lost is
//! entered as unknown and does not run again.
//!
//! Each host is one call from the system's cron and keeps no state. The test moves the server's
//! clock past a tick and past the cool-down.
#![allow(clippy::expect_used, reason = "tests report failures by panicking")]

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use leasehold::Locks;
use leasehold_schedule::{self as schedule, Crash, Job, JobEvent, Jobs};
use leasehold_testbed::redis::{Redis, Reply, RespClient};
use leasehold_testbed::{Data, Server, WallClock, eventually};

/// Fails a test that hangs.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);
/// The longest lease: none expires before the test moves the clock.
const LONGEST_LEASE: Duration = Duration::from_secs(600);
const HOUR: i64 = 3600;

/// A wall clock, in hours from the midnight at which the first tick is due.
struct HourClock {
    clock: WallClock,
    /// Seconds from the real time to that midnight.
    midnight_offset_secs: i64,
}

impl HourClock {
    #[allow(clippy::disallowed_methods, reason = "the server's clock is set relative to the real time")]
    fn new() -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time after 1970").as_secs();
        let hours =
            Self { clock: WallClock::new().expect("a clock"), midnight_offset_secs: 86_400 - (now % 86_400) as i64 };
        hours.set(-1.0);
        hours
    }

    fn set(&self, hours: f64) {
        self.clock.set_offset(self.midnight_offset_secs + (hours * HOUR as f64) as i64).expect("a moved clock");
    }

    /// Moves the clock and waits until the server uses the new time.
    async fn set_and_wait(&self, server: &Server, hours: f64) {
        let before = server_time_secs(server).await;
        self.set(hours);
        eventually(TEST_TIMEOUT, || async {
            let now = server_time_secs(server).await;
            if now > before + 60 { Ok(()) } else { Err(format!("{now} is not after {before}")) }
        })
        .await;
    }

    fn redis_config(&self) -> Redis {
        Redis::new().clock(&self.clock)
    }
}

async fn raw_command(server: &Server, words: &[&str]) -> Reply {
    RespClient::connect(server.addr()).await.expect("a connection").command(words).await.expect("an answer")
}

/// The server's time, in seconds.
async fn server_time_secs(server: &Server) -> u64 {
    let Reply::Array(parts) = raw_command(server, &["TIME"]).await else { panic!("no time") };
    let Some(Reply::Bulk(seconds)) = parts.first() else { panic!("no seconds") };
    seconds.parse().expect("a number")
}

async fn strict_client(server: &Server) -> Locks {
    let url = format!("{}?strict={}s", server.url(), LONGEST_LEASE.as_secs());
    Locks::builder().ttl(LONGEST_LEASE).open(&url).await.expect("a client")
}

/// A host that uses this server for the first time. The server may have lost leases, so it cools
/// down.
async fn host_in_cool_down(server: &Server) -> Locks {
    let locks = strict_client(server).await;
    let early = locks.mutex("early").try_lock().await.expect_err("a cool-down");
    assert!(early.to_string().contains("cools down"), "{early}");
    locks
}

/// What one cron call did: the attempts it started and the ticks it skipped.
#[derive(Debug, Default, PartialEq, Eq)]
struct CallResult {
    attempts: Vec<u32>,
    skipped_ticks: Vec<&'static str>,
}

/// Calls the job as the system's cron does, for the tick of the last midnight if that is less than
/// a day ago.
async fn run_cron_once(locks: &Locks, crash: Crash) -> CallResult {
    let did: Arc<Mutex<CallResult>> = Arc::default();
    let (events, runs) = (Arc::clone(&did), Arc::clone(&did));
    let job = Job::new("nightly", "0 0 * * *").expect("a job").grace(Duration::from_secs(86_000)).crash(crash);
    let job = job.on_event(move |_, event| {
        if let JobEvent::TicksSkipped(entry) = event {
            events.lock().expect("no panic").skipped_ticks.push(entry.outcome.as_str());
        }
    });
    let ended = schedule::run_due(locks, job, None, None, |run| {
        runs.lock().expect("no panic").attempts.push(run.attempt());
        async { Ok::<(), String>(()) }
    });
    tokio::time::timeout(TEST_TIMEOUT, ended).await.expect("the call returns").expect("an answer");
    std::mem::take(&mut *did.lock().expect("no panic"))
}

async fn history(locks: &Locks) -> Vec<&'static str> {
    let status = Jobs::new(locks).expect("jobs").status("nightly").await.expect("an answer").expect("a job");
    status.history.iter().map(|entry| entry.outcome.as_str()).collect()
}

fn ran_attempt(attempt: u32) -> CallResult {
    CallResult { attempts: vec![attempt], ..CallResult::default() }
}

fn skipped_as_unknown() -> CallResult {
    CallResult { skipped_ticks: vec!["unknown"], ..CallResult::default() }
}

/// The first tick runs, because a host was connected before the tick came due.
async fn run_first_tick(hours: &HourClock, server: &Server, crash: Crash) {
    let locks = host_in_cool_down(server).await;
    hours.set_and_wait(server, 0.5).await;
    assert_eq!(run_cron_once(&locks, crash).await, ran_attempt(1));
    assert_eq!(run_cron_once(&locks, crash).await, CallResult::default(), "the tick has already run");
}

/// Another host on a server that has lost the first tick's record; then the next tick.
async fn assert_history_after_data_loss(hours: &HourClock, server: &Server) {
    let locks = host_in_cool_down(server).await;
    hours.set_and_wait(server, 1.5).await;
    assert_eq!(run_cron_once(&locks, Crash::AtMostOnce).await, skipped_as_unknown());
    assert_eq!(history(&locks).await, ["unknown"]);
    assert_eq!(run_cron_once(&locks, Crash::AtMostOnce).await, CallResult::default(), "the tick is entered once");
    hours.set_and_wait(server, 24.5).await;
    assert_eq!(run_cron_once(&locks, Crash::AtMostOnce).await, ran_attempt(1), "the next tick runs as usual");
    assert_eq!(history(&locks).await, ["unknown", "done"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushed_server_runs_no_tick_twice() {
    let hours = HourClock::new();
    let server = hours.redis_config().start().await.expect("a server");
    run_first_tick(&hours, &server, Crash::AtMostOnce).await;
    assert_eq!(raw_command(&server, &["FLUSHALL"]).await, Reply::Simple("OK".to_owned()));
    assert_history_after_data_loss(&hours, &server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_without_data_runs_no_tick_twice() {
    let hours = HourClock::new();
    let mut server = hours.redis_config().start().await.expect("a server");
    run_first_tick(&hours, &server, Crash::AtMostOnce).await;
    server.kill().expect("a dead server");
    server.restart(Data::Wipe).await.expect("a server without data");
    assert_history_after_data_loss(&hours, &server).await;
}

/// A master with one tick due soon, and a replica that is promoted before it: later writes to the
/// master are lost.
async fn replica_promoted_before_the_tick(hours: &HourClock) -> (Server, Server) {
    let master = hours.redis_config().start().await.expect("a server");
    let port = master.addr().port().to_string();
    let replica = hours.redis_config().args(&["--replicaof", "127.0.0.1", &port]).start().await.expect("a replica");
    let locks = host_in_cool_down(&master).await;
    hours.set_and_wait(&master, -0.5).await;
    // The job's record exists before the tick is due.
    let early = run_cron_once(&locks, Crash::AtMostOnce).await;
    assert!(early.attempts.is_empty(), "{early:?}");
    eventually(TEST_TIMEOUT, || async {
        match raw_command(&replica, &["EXISTS", "leasehold:r{cron:nightly}"]).await {
            Reply::Integer(1) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert_eq!(raw_command(&replica, &["REPLICAOF", "NO", "ONE"]).await, Reply::Simple("OK".to_owned()));
    (master, replica)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_that_loses_the_record_runs_no_tick_twice() {
    let hours = HourClock::new();
    let (mut master, replica) = replica_promoted_before_the_tick(&hours).await;
    let locks = strict_client(&master).await;
    hours.set_and_wait(&master, 0.5).await;
    assert_eq!(run_cron_once(&locks, Crash::AtMostOnce).await, ran_attempt(1));
    master.kill().expect("a dead master");
    let locks = host_in_cool_down(&replica).await;
    hours.set_and_wait(&replica, 1.5).await;
    assert_eq!(run_cron_once(&locks, Crash::AtMostOnce).await, skipped_as_unknown());
    assert_eq!(history(&locks).await.last(), Some(&"unknown"));
    hours.set_and_wait(&replica, 24.5).await;
    assert_eq!(run_cron_once(&locks, Crash::AtMostOnce).await, ran_attempt(1), "the next tick runs as usual");
}

/// A job with retries runs again, and its attempt number is 2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_retry_a_tick_that_may_have_started_runs_as_the_second_attempt() {
    let hours = HourClock::new();
    let server = hours.redis_config().start().await.expect("a server");
    let retry = Crash::Retry { attempts: 3 };
    run_first_tick(&hours, &server, retry).await;
    assert_eq!(raw_command(&server, &["FLUSHALL"]).await, Reply::Simple("OK".to_owned()));
    let locks = host_in_cool_down(&server).await;
    hours.set_and_wait(&server, 1.5).await;
    assert_eq!(run_cron_once(&locks, retry).await, ran_attempt(2));
}

/// The run's key lasts one day; the job's record also names the run and does not expire. So a job
/// that runs weekly is not mistaken for one that lost data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_unused_for_a_week_is_not_taken_for_one_that_lost_data() {
    let hours = HourClock::new();
    let server = hours.redis_config().start().await.expect("a server");
    run_first_tick(&hours, &server, Crash::AtMostOnce).await;
    hours.set_and_wait(&server, 7.0 * 24.0 + 0.5).await;
    let locks = host_in_cool_down(&server).await;
    hours.set_and_wait(&server, 7.0 * 24.0 + 1.5).await;
    let did = run_cron_once(&locks, Crash::AtMostOnce).await;
    assert_eq!((did.attempts, did.skipped_ticks), (vec![1], vec!["missed"]), "six nights were missed");
}
