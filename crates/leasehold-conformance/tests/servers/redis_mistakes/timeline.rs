//! Records what each client does and gets, as it happens.

use std::cell::RefCell;
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use leasehold::clock::{Clock, Instant};
use leasehold::{Guard, Locks};
use leasehold_conformance::actor_process::ActorProcess;
use leasehold_conformance::protocol::LockRequest;
use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::eventually;
use leasehold_testbed::redis::{Reply, RespClient};

use super::page;

/// The lock name in all timelines.
pub(crate) const LOCK: &str = "job";

/// A timeline, printed line by line.
pub(crate) struct Timeline {
    heading: &'static str,
    lines: RefCell<Vec<String>>,
}

impl Timeline {
    /// Starts the timeline under `heading` on the page.
    pub(crate) fn start(heading: &'static str) -> Self {
        println!("\n## {heading}");
        Self { heading, lines: RefCell::default() }
    }

    fn print(&self, line: String) {
        println!("{line}");
        self.lines.borrow_mut().push(line);
    }

    /// Starts a section.
    pub(crate) fn begin_section(&self, name: &str) {
        self.print(format!("{name}:"));
    }

    /// Records an event.
    pub(crate) fn record_event(&self, what: &str) {
        self.print(format!("  {what}"));
    }

    /// Records a client's call and its result.
    pub(crate) fn record_call(&self, client: &str, what: &str, answer: impl Display) {
        self.print(format!("  {client}: {what} → {answer}"));
    }

    /// Records the conclusion of a section.
    pub(crate) fn record_conclusion(&self, what: &str) {
        self.print(format!("  => {what}"));
    }

    /// Ends the timeline; the page must match it.
    pub(crate) fn finish(self) {
        page::compare(self.heading, &self.lines.take());
    }

    /// A client that follows the textbook.
    pub(crate) async fn textbook_client(&self, who: &'static str, addr: SocketAddr) -> TextbookClient<'_> {
        TextbookClient { timeline: self, name: who, resp: RespClient::connect(addr).await.expect("a connection") }
    }

    /// Acquires the lock with leasehold in this process, waiting for it.
    pub(crate) async fn lock_here(&self, who: &str, locks: &Locks) -> Guard {
        let start = now();
        let guard = locks.mutex(LOCK).timeout(TEST_TIMEOUT).lock().await.expect("the lock");
        self.record_call(who, "lock().await", format!("token {}, after {}", guard.token(), elapsed_text(start)));
        guard
    }

    /// Acquires the lock with leasehold in another process, waiting for it. It retries, because a
    /// slow machine can outlast a short TTL.
    pub(crate) async fn lock_in_process(&self, who: &str, actor: &mut ActorProcess) -> u64 {
        let (token, _) = actor.acquire(LockRequest::exclusive_with_retries(LOCK)).await;
        self.record_call(who, "lock().await", format!("token {token}"));
        token
    }

    /// Tries the lock with leasehold; another client must hold it.
    pub(crate) async fn assert_busy(&self, who: &str, locks: &Locks) {
        let answer = locks.mutex(LOCK).try_lock().await.expect("an answer");
        self.record_call(who, "try_lock().await", if answer.is_some() { "a guard" } else { "None" });
        assert!(answer.is_none(), "the lock is held");
    }

    /// The guard must be held, both by the client and by the server.
    pub(crate) async fn assert_held(&self, who: &str, locks: &Locks, guard: &Guard) {
        self.record_call(who, "is_held()", guard.is_held());
        assert!(guard.is_held());
        let view = locks.inspect(LOCK).await.expect("a view");
        let tokens: Vec<_> = view.holders.iter().filter_map(|holder| holder.token).collect();
        assert_eq!(tokens, [guard.token()], "the server's holders");
    }
}

/// A client that follows the textbook: it sends commands as they are.
pub(crate) struct TextbookClient<'a> {
    timeline: &'a Timeline,
    name: &'static str,
    resp: RespClient,
}

impl TextbookClient<'_> {
    /// Sends a command, records it, and returns the reply as text.
    pub(crate) async fn run(&mut self, command: &str) -> String {
        let reply = self.run_silently(command).await;
        self.timeline.record_call(self.name, command, &reply);
        reply
    }

    /// Sends a command without recording it.
    pub(crate) async fn run_silently(&mut self, command: &str) -> String {
        let words: Vec<_> = command.split(' ').collect();
        reply_text(&self.resp.command(&words).await.expect("a reply"))
    }

    /// Waits until a key has expired on the server.
    pub(crate) async fn wait_expired(&mut self, key: &str) {
        let words = ["EXISTS", key];
        let resp = tokio::sync::Mutex::new(&mut self.resp);
        eventually(TEST_TIMEOUT, || async {
            let there = reply_text(&resp.lock().await.command(&words).await.expect("a reply"));
            if there == "0" { Ok(()) } else { Err(format!("{key} does not expire")) }
        })
        .await;
    }
}

fn reply_text(reply: &Reply) -> String {
    match reply {
        Reply::Simple(text) | Reply::Bulk(text) => text.clone(),
        Reply::Binary(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Reply::Error(text) => format!("(error) {text}"),
        Reply::Integer(number) => number.to_string(),
        Reply::Nil => "(nil)".to_owned(),
        Reply::Array(parts) => parts.iter().map(reply_text).collect::<Vec<_>>().join(" "),
    }
}

/// A process that uses leasehold.
pub(crate) async fn process(url: &str, ttl: Duration) -> ActorProcess {
    ActorProcess::open(Path::new(env!("CARGO_BIN_EXE_leasehold-actor")), url, ttl).await
}

/// A client of this process.
pub(crate) async fn client(url: &str, ttl: Duration) -> Locks {
    Locks::builder().ttl(ttl).open(url).await.expect("the server")
}

pub(crate) fn now() -> Instant {
    Clock::system().now()
}

/// The elapsed time as text.
pub(crate) fn elapsed_text(start: Instant) -> String {
    format!("{:.1} s", now().duration_since(start).as_secs_f64())
}
