//! Ticks on a Redis that forgets, with `strict`: what it may have forgotten is entered as unknown, and not begun again.
//!
//! Each host is a call of the system's cron, which remembers nothing. The server's clock is moved by hand: past a tick, and past the time for which nobody is let in.
#![allow(clippy::expect_used, reason = "a test: what fails here is the finding")]

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use leasehold::Locks;
use leasehold::schedule::{self, Crash, Event, Job, Jobs};
use leasehold_testbed::redis::{Redis, Reply, Resp};
use leasehold_testbed::{Data, Server, WallClock, eventually};

/// Against hanging.
const BOUND: Duration = Duration::from_secs(120);
/// The longest lease: none ends before the clock is moved.
const LASTING: Duration = Duration::from_secs(600);
const HOUR: i64 = 3600;

/// A wall clock, in hours from the midnight at which the first tick is due.
struct Hours {
    clock: WallClock,
    /// How far that midnight is ahead of the right time, in seconds.
    midnight: i64,
}

impl Hours {
    #[allow(clippy::disallowed_methods, reason = "the server's clock is moved from the right time on")]
    fn new() -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time after 1970").as_secs();
        let hours = Self { clock: WallClock::new().expect("a clock"), midnight: 86_400 - (now % 86_400) as i64 };
        hours.set(-1.0);
        hours
    }

    fn set(&self, hours: f64) {
        self.clock.move_to(self.midnight + (hours * HOUR as f64) as i64).expect("a moved clock");
    }

    /// Moves it, and waits until the server goes by it.
    async fn show(&self, server: &Server, hours: f64) {
        let before = time(server).await;
        self.set(hours);
        eventually(BOUND, || async {
            let now = time(server).await;
            if now > before + 60 { Ok(()) } else { Err(format!("{now} is not after {before}")) }
        })
        .await;
    }

    fn server(&self) -> Redis {
        Redis::new().clock(&self.clock)
    }
}

async fn raw(server: &Server, words: &[&str]) -> Reply {
    Resp::connect(server.addr()).await.expect("a connection").command(words).await.expect("an answer")
}

/// The server's time, in seconds.
async fn time(server: &Server) -> u64 {
    let Reply::Array(parts) = raw(server, &["TIME"]).await else { panic!("no time") };
    let Some(Reply::Bulk(seconds)) = parts.first() else { panic!("no seconds") };
    seconds.parse().expect("a number")
}

async fn client(server: &Server) -> Locks {
    let url = format!("{}?strict={}s", server.url(), LASTING.as_secs());
    Locks::builder().ttl(LASTING).open(&url).await.expect("a client")
}

/// A host that sees this run of the server from now on. As it may have forgotten leases, nobody is let in yet.
async fn host(server: &Server) -> Locks {
    let locks = client(server).await;
    let early = locks.mutex("early").try_lock().await.expect("an answer");
    assert!(early.is_none(), "a lease may have been forgotten");
    locks
}

/// What one call did: the attempts that it began, and the ticks that it skipped.
#[derive(Debug, Default, PartialEq, Eq)]
struct Did {
    began: Vec<u32>,
    skipped: Vec<&'static str>,
}

/// The system's cron calls: for the tick of the last midnight, if that is no longer ago than a day.
async fn call(locks: &Locks, crash: Crash) -> Did {
    let did: Arc<Mutex<Did>> = Arc::default();
    let (events, runs) = (Arc::clone(&did), Arc::clone(&did));
    let job = Job::new("nightly", "0 0 * * *").expect("a job").grace(Duration::from_secs(86_000)).crash(crash);
    let job = job.on_event(move |_, event| {
        if let Event::Skipped(entry) = event {
            events.lock().expect("no panic").skipped.push(entry.outcome.as_str());
        }
    });
    let ended = schedule::once(locks, job, None, None, |run| {
        runs.lock().expect("no panic").began.push(run.attempt());
        async { Ok::<(), String>(()) }
    });
    tokio::time::timeout(BOUND, ended).await.expect("an end").expect("an answer");
    std::mem::take(&mut *did.lock().expect("no panic"))
}

async fn history(locks: &Locks) -> Vec<&'static str> {
    let status = Jobs::of(locks).expect("jobs").status("nightly").await.expect("an answer").expect("a job");
    status.history.iter().map(|entry| entry.outcome.as_str()).collect()
}

fn ran(attempt: u32) -> Did {
    Did { began: vec![attempt], ..Did::default() }
}

fn unknown() -> Did {
    Did { skipped: vec!["unknown"], ..Did::default() }
}

/// The first tick runs, as a host was there before it came due.
async fn first_tick(hours: &Hours, server: &Server, crash: Crash) {
    let locks = host(server).await;
    hours.show(server, 0.5).await;
    assert_eq!(call(&locks, crash).await, ran(1));
    assert_eq!(call(&locks, crash).await, Did::default(), "it has run");
}

/// Another host on a server that has forgotten the first tick, and the next tick.
async fn after_the_loss(hours: &Hours, server: &Server) {
    let locks = host(server).await;
    hours.show(server, 1.5).await;
    assert_eq!(call(&locks, Crash::AtMostOnce).await, unknown());
    assert_eq!(history(&locks).await, ["unknown"]);
    assert_eq!(call(&locks, Crash::AtMostOnce).await, Did::default(), "it is entered once");
    hours.show(server, 24.5).await;
    assert_eq!(call(&locks, Crash::AtMostOnce).await, ran(1), "the next tick is its own");
    assert_eq!(history(&locks).await, ["unknown", "done"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_makes_no_tick_run_again() {
    let hours = Hours::new();
    let server = hours.server().start().await.expect("a server");
    first_tick(&hours, &server, Crash::AtMostOnce).await;
    assert_eq!(raw(&server, &["FLUSHALL"]).await, Reply::Simple("OK".to_owned()));
    after_the_loss(&hours, &server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_without_data_makes_no_tick_run_again() {
    let hours = Hours::new();
    let mut server = hours.server().start().await.expect("a server");
    first_tick(&hours, &server, Crash::AtMostOnce).await;
    server.kill().expect("a dead server");
    server.restart(Data::Wipe).await.expect("a server without data");
    after_the_loss(&hours, &server).await;
}

/// A master with one tick to come, and a replica that was promoted before it came: what the master writes from now on is lost.
async fn promoted_early(hours: &Hours) -> (Server, Server) {
    let master = hours.server().start().await.expect("a server");
    let port = master.addr().port().to_string();
    let replica = hours.server().args(&["--replicaof", "127.0.0.1", &port]).start().await.expect("a replica");
    let locks = host(&master).await;
    hours.show(&master, -0.5).await;
    // The record is there before the tick is.
    let early = call(&locks, Crash::AtMostOnce).await;
    assert!(early.began.is_empty(), "{early:?}");
    eventually(BOUND, || async {
        match raw(&replica, &["EXISTS", "leasehold:r{cron:nightly}"]).await {
            Reply::Integer(1) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert_eq!(raw(&replica, &["REPLICAOF", "NO", "ONE"]).await, Reply::Simple("OK".to_owned()));
    (master, replica)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fail_over_that_loses_the_record_makes_no_tick_run_again() {
    let hours = Hours::new();
    let (mut master, replica) = promoted_early(&hours).await;
    let locks = client(&master).await;
    hours.show(&master, 0.5).await;
    assert_eq!(call(&locks, Crash::AtMostOnce).await, ran(1));
    master.kill().expect("a dead master");
    let locks = host(&replica).await;
    hours.show(&replica, 1.5).await;
    assert_eq!(call(&locks, Crash::AtMostOnce).await, unknown());
    assert_eq!(history(&locks).await.last(), Some(&"unknown"));
    hours.show(&replica, 24.5).await;
    assert_eq!(call(&locks, Crash::AtMostOnce).await, ran(1), "the next tick is its own");
}

/// Who asks for another try gets it, and it says that it is one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_retry_a_tick_that_may_have_begun_begins_again_as_the_second_attempt() {
    let hours = Hours::new();
    let server = hours.server().start().await.expect("a server");
    let retry = Crash::Retry { attempts: 3 };
    first_tick(&hours, &server, retry).await;
    assert_eq!(raw(&server, &["FLUSHALL"]).await, Reply::Simple("OK".to_owned()));
    let locks = host(&server).await;
    hours.show(&server, 1.5).await;
    assert_eq!(call(&locks, retry).await, ran(2));
}

/// The run that is known by a key which lasts a day stands in the record, too, which stays: a job that is called once a week is not taken for forgotten each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_nobody_asked_for_a_week_has_forgotten_nothing() {
    let hours = Hours::new();
    let server = hours.server().start().await.expect("a server");
    first_tick(&hours, &server, Crash::AtMostOnce).await;
    hours.show(&server, 7.0 * 24.0 + 0.5).await;
    let locks = host(&server).await;
    hours.show(&server, 7.0 * 24.0 + 1.5).await;
    let did = call(&locks, Crash::AtMostOnce).await;
    assert_eq!((did.began, did.skipped), (vec![1], vec!["missed"]), "six nights are over");
}
