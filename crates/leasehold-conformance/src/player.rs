//! Another process, from the test's side.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use leasehold_testbed::Actor;

use crate::protocol::{Ask, Order, Report};
use crate::world::SOON;

/// A process that takes locks as it is told.
#[derive(Debug)]
pub struct Player {
    actor: Actor,
    /// What it said before it was asked for.
    heard: VecDeque<Report>,
}

impl Player {
    /// Starts the program, and has it open the engine.
    pub async fn open(exe: &Path, url: &str, ttl: Duration) -> Self {
        Self::open_with(exe, &[], url, ttl).await
    }

    /// As [`open`](Self::open), with `env` added to its environment.
    pub async fn open_with(exe: &Path, env: &[(&str, &str)], url: &str, ttl: Duration) -> Self {
        let actor = Actor::spawn(exe, &[], env).unwrap_or_else(|error| panic!("{error}"));
        let mut player = Self { actor, heard: VecDeque::new() };
        let ttl_ms = u64::try_from(ttl.as_millis()).expect("a sensible TTL");
        player.tell(&Order::Open { url: url.to_owned(), ttl_ms }).await;
        player.hear("the engine to be open", |report| matches!(report, Report::Opened { .. }).then_some(())).await;
        player
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.actor.pid()
    }

    /// The process, to be killed, stopped and resumed.
    pub fn process(&mut self) -> &mut Actor {
        &mut self.actor
    }

    /// Gives an order.
    pub async fn tell(&mut self, order: &Order) {
        let line = serde_json::to_value(order).expect("an order is JSON");
        self.actor.send(&line).await.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Waits for the first report, unheard so far, of which `pick` makes something.
    pub async fn hear<T>(&mut self, what: &str, pick: impl Fn(&Report) -> Option<T>) -> T {
        if let Some(at) = self.heard.iter().position(|report| pick(report).is_some()) {
            let report = self.heard.remove(at).expect("it was just found");
            return pick(&report).expect("it was just picked");
        }
        loop {
            let line = self.actor.recv(SOON).await.unwrap_or_else(|error| panic!("waiting for {what}: {error}"));
            let report: Report = serde_json::from_value(line).expect("an actor's report");
            match pick(&report) {
                Some(found) => return found,
                None => self.heard.push_back(report),
            }
        }
    }

    /// Asks for a lock and waits for it; its token and the moment of the grant.
    pub async fn lock(&mut self, ask: Ask) -> (u64, u64) {
        let guard = ask.guard.clone();
        self.tell(&Order::Lock(ask)).await;
        self.granted(&guard).await
    }

    /// Waits until a lock is granted; its token and the moment of the grant.
    pub async fn granted(&mut self, wanted: &str) -> (u64, u64) {
        let answer = self.hear(wanted, |report| match report {
            Report::Granted { guard, token, at } if guard == wanted => Some(Ok((*token, *at))),
            Report::Failed { guard, message, .. } if guard == wanted => Some(Err(message.clone())),
            Report::Busy { guard } if guard == wanted => Some(Err("it is busy".to_owned())),
            _ => None,
        });
        answer.await.unwrap_or_else(|message| panic!("{wanted} was not granted: {message}"))
    }

    /// Whether a guard is held, by its own word, and the moment when it said so.
    pub async fn held(&mut self, wanted: &str) -> (bool, u64) {
        self.tell(&Order::Held { guard: wanted.to_owned() }).await;
        self.hear("whether it is held", |report| match report {
            Report::Held { guard, held, at, .. } if guard == wanted => Some((*held, *at)),
            _ => None,
        })
        .await
    }

    /// Gives a guard back; what came of it.
    pub async fn release(&mut self, wanted: &str) -> String {
        self.tell(&Order::Release { guard: wanted.to_owned() }).await;
        self.hear("a release", |report| match report {
            Report::Released { guard, outcome } if guard == wanted => Some(outcome.clone()),
            Report::Failed { guard, message, .. } if guard == wanted => Some(message.clone()),
            _ => None,
        })
        .await
    }

    /// Waits until it says, unasked, that a guard is lost; the reason.
    pub async fn lost(&mut self, wanted: &str) -> String {
        self.hear("the loss", |report| match report {
            Report::Lost { guard, reason, .. } if guard == wanted => Some(reason.clone()),
            _ => None,
        })
        .await
    }

    /// Writes to a register; whether it was accepted.
    pub async fn write(&mut self, wanted: &str, register: &Path, value: u64, fenced: bool) -> bool {
        let (guard, register) = (wanted.to_owned(), register.to_owned());
        self.tell(&Order::Write { guard, register, value, fenced }).await;
        self.hear("a write", |report| match report {
            Report::Written { guard, accepted } if guard == wanted => Some(*accepted),
            _ => None,
        })
        .await
    }

    /// What its wall clock shows: milliseconds since 1970.
    pub async fn wall(&mut self) -> u64 {
        self.tell(&Order::Wall).await;
        self.hear("its wall clock", |report| if let Report::Wall { ms } = report { Some(*ms) } else { None }).await
    }

    /// Writes a record over a version; its new one, and what the engine's clock showed.
    pub async fn record(&mut self, name: &str, over: u64, value: &str) -> (u64, Duration) {
        self.tell(&Order::Record { name: name.to_owned(), over, value: value.to_owned() }).await;
        let answer = self.hear("a record", |report| match report {
            Report::Recorded { version, now_us } => Some(Ok((*version, Duration::from_micros(*now_us)))),
            Report::Failed { message, .. } => Some(Err(message.clone())),
            _ => None,
        });
        answer.await.unwrap_or_else(|message| panic!("{name} was not written: {message}"))
    }

    /// Waits for the end of a storm: how often it met somebody, and its tokens.
    pub async fn calm(&mut self) -> (u32, Vec<u64>) {
        self.hear("the end of the storm", |report| match report {
            Report::Calm { met, tokens } => Some(Ok((*met, tokens.clone()))),
            Report::Failed { message, .. } => Some(Err(message.clone())),
            _ => None,
        })
        .await
        .unwrap_or_else(|message| panic!("the storm failed: {message}"))
    }
}
