//! Who did what, and what came of it: told while it happens, so that the story is what happened.

use std::cell::RefCell;
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use leasehold::clock::{Clock, Moment};
use leasehold::{Guard, Locks};
use leasehold_conformance::player::Player;
use leasehold_conformance::protocol::Ask;
use leasehold_conformance::world::SOON;
use leasehold_testbed::eventually;
use leasehold_testbed::redis::{Reply, Resp};

use super::page;

/// The lock of all stories.
pub(crate) const LOCK: &str = "job";

/// A story, printed line by line.
pub(crate) struct Story {
    heading: &'static str,
    lines: RefCell<Vec<String>>,
}

impl Story {
    /// Begins the story that stands under `heading` on the page.
    pub(crate) fn begin(heading: &'static str) -> Self {
        println!("\n## {heading}");
        Self { heading, lines: RefCell::default() }
    }

    fn print(&self, line: String) {
        println!("{line}");
        self.lines.borrow_mut().push(line);
    }

    /// Begins a part.
    pub(crate) fn part(&self, name: &str) {
        self.print(format!("{name}:"));
    }

    /// Something happens.
    pub(crate) fn tell(&self, what: &str) {
        self.print(format!("  {what}"));
    }

    /// Somebody does something, and gets an answer.
    pub(crate) fn says(&self, who: &str, what: &str, answer: impl Display) {
        self.print(format!("  {who}: {what} → {answer}"));
    }

    /// What has just been shown.
    pub(crate) fn so(&self, what: &str) {
        self.print(format!("  => {what}"));
    }

    /// The end: the page must tell the same.
    pub(crate) fn end(self) {
        page::compare(self.heading, &self.lines.take());
    }

    /// A client that follows the textbook.
    pub(crate) async fn naive(&self, who: &'static str, addr: SocketAddr) -> Naive<'_> {
        Naive { story: self, who, resp: Resp::connect(addr).await.expect("a connection") }
    }

    /// Takes the lock with leasehold, in this process, and waits for it.
    pub(crate) async fn lock(&self, who: &str, locks: &Locks) -> Guard {
        let start = now();
        let guard = locks.mutex(LOCK).wait(SOON).lock().await.expect("the lock");
        self.says(who, "lock().await", format!("token {}, after {}", guard.token(), since(start)));
        guard
    }

    /// Takes the lock with leasehold, in another process, and waits for it: under a short TTL, too, on a slow machine.
    pub(crate) async fn lock_in(&self, who: &str, player: &mut Player) -> u64 {
        let (token, _) = player.lock(Ask::stubborn(LOCK)).await;
        self.says(who, "lock().await", format!("token {token}"));
        token
    }

    /// Tries to take the lock with leasehold; it must be somebody else's.
    pub(crate) async fn busy(&self, who: &str, locks: &Locks) {
        let answer = locks.mutex(LOCK).try_lock().await.expect("an answer");
        self.says(who, "try_lock().await", if answer.is_some() { "a guard" } else { "None" });
        assert!(answer.is_none(), "the lock is held");
    }

    /// The guard must still be held, by its own word and by the server's.
    pub(crate) async fn holds(&self, who: &str, locks: &Locks, guard: &Guard) {
        self.says(who, "is_held()", guard.is_held());
        assert!(guard.is_held());
        let view = locks.inspect(LOCK).await.expect("a view");
        let tokens: Vec<_> = view.holders.iter().filter_map(|holder| holder.token).collect();
        assert_eq!(tokens, [guard.token()], "the server's word");
    }
}

/// A client that follows the textbook: it sends the commands it is told, as they are.
pub(crate) struct Naive<'a> {
    story: &'a Story,
    who: &'static str,
    resp: Resp,
}

impl Naive<'_> {
    /// Sends a command; its reply, as a person reads it.
    pub(crate) async fn does(&mut self, command: &str) -> String {
        let reply = self.ask(command).await;
        self.story.says(self.who, command, &reply);
        reply
    }

    /// The same, and nobody talks about it.
    pub(crate) async fn ask(&mut self, command: &str) -> String {
        let words: Vec<_> = command.split(' ').collect();
        shown(&self.resp.command(&words).await.expect("a reply"))
    }

    /// Waits until the server has let a key go.
    pub(crate) async fn until_gone(&mut self, key: &str) {
        let words = ["EXISTS", key];
        let resp = tokio::sync::Mutex::new(&mut self.resp);
        eventually(SOON, || async {
            let there = shown(&resp.lock().await.command(&words).await.expect("a reply"));
            if there == "0" { Ok(()) } else { Err(format!("{key} does not expire")) }
        })
        .await;
    }
}

fn shown(reply: &Reply) -> String {
    match reply {
        Reply::Simple(text) | Reply::Bulk(text) => text.clone(),
        Reply::Error(text) => format!("(error) {text}"),
        Reply::Integer(number) => number.to_string(),
        Reply::Nil => "(nil)".to_owned(),
        Reply::Array(parts) => parts.iter().map(shown).collect::<Vec<_>>().join(" "),
    }
}

/// A process that uses leasehold.
pub(crate) async fn process(url: &str, ttl: Duration) -> Player {
    Player::open(Path::new(env!("CARGO_BIN_EXE_leasehold-actor")), url, ttl).await
}

/// A client of this process.
pub(crate) async fn client(url: &str, ttl: Duration) -> Locks {
    Locks::builder().ttl(ttl).open(url).await.expect("the server")
}

pub(crate) fn now() -> Moment {
    Clock::system().now()
}

/// How long ago that was, for people.
pub(crate) fn since(start: Moment) -> String {
    format!("{:.1} s", now().since(start).as_secs_f64())
}
