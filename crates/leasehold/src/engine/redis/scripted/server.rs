//! A server in memory that a test scripts: it answers, late or never, refuses, sends malformed
//! answers, or ends the connection.
//!
//! Of the scripts it implements what one exclusive lock without a queue needs; a waiter gets the
//! time of its next attempt.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::io::{AsyncWriteExt, BufReader, DuplexStream};
use tokio::sync::Notify;

use super::super::config::Config;
use super::super::dial::{Dial, Dialer};
use super::super::engine::RedisEngine;
use super::super::wire::{Party, Scripts};
use super::resp;
use crate::Locks;
use crate::claim::ClaimId;
use crate::clock::{Clock, Moment};
use crate::engine::EngineUrl;
use crate::error::Result;

/// The shortest time for an answer.
pub(super) const TRIP: Duration = Duration::from_millis(1);

/// What the server does with one request.
#[derive(Clone, Debug)]
pub(super) enum Deed {
    Answer,
    /// Does it, and answers after this time.
    After(Duration),
    Refuse(&'static str),
    /// Does nothing, and sends this.
    Say(&'static [u8]),
    /// Does it, and ends the connection instead of answering.
    Lose,
    Cut,
    /// Reads, and sends nothing more.
    Hang,
}

/// What happens to a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Welcome {
    Open,
    Refused,
    /// Accepted, and then never answered.
    Mute,
}

/// A request, as it arrived.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) at: Moment,
    pub(super) what: &'static str,
    pub(super) claims: Vec<ClaimId>,
}

#[derive(Debug)]
struct Held {
    claim: ClaimId,
    token: u64,
    ttl: Duration,
    until: Moment,
}

type Choose<T, A> = Box<dyn FnMut(A) -> T + Send>;

struct State {
    welcome: Choose<Welcome, usize>,
    deed: Choose<Deed, Seen>,
    dials: Vec<Moment>,
    seen: Vec<Seen>,
    locks: BTreeMap<Vec<u8>, Held>,
    token: u64,
}

pub(super) struct Scripted {
    pub(super) clock: Clock,
    scripts: BTreeMap<String, &'static str>,
    state: Mutex<State>,
    cut: Notify,
}

impl Scripted {
    pub(super) fn new() -> Arc<Self> {
        let scripts = Scripts::new(false);
        let named = [
            (&scripts.attempt, "attempt"),
            (&scripts.look, "look"),
            (&scripts.release, "release"),
            (&scripts.renew, "renew"),
        ];
        let state = State {
            welcome: Box::new(|_| Welcome::Open),
            deed: Box::new(|_| Deed::Answer),
            dials: Vec::new(),
            seen: Vec::new(),
            locks: BTreeMap::new(),
            token: 0,
        };
        Arc::new(Self {
            clock: Clock::tokio(),
            scripts: named.iter().map(|(script, name)| (script.sha().to_owned(), *name)).collect(),
            state: Mutex::new(state),
            cut: Notify::new(),
        })
    }

    /// Opens locks on this server.
    pub(super) async fn open(self: &Arc<Self>, ttl: Duration) -> Result<Locks> {
        let mut config = Config::read(&EngineUrl::parse("redis://h")?)?.on(&self.clock);
        config.dial = Dial::Scripted(Arc::new(Way(Arc::clone(self))));
        let engine = RedisEngine::open(config, &self.clock).await?;
        Ok(Locks::builder().clock(self.clock.clone()).ttl(ttl).open_engine(engine))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("one thread")
    }

    /// From now on, does this with each request.
    pub(super) fn script(&self, deed: impl FnMut(Seen) -> Deed + Send + 'static) {
        self.state().deed = Box::new(deed);
    }

    /// From now on, does this with each connection; the closure gets the number of earlier ones.
    pub(super) fn welcome(&self, welcome: impl FnMut(usize) -> Welcome + Send + 'static) {
        self.state().welcome = Box::new(welcome);
    }

    /// Ends all connections.
    pub(super) fn cut(&self) {
        self.cut.notify_waiters();
    }

    /// When connections were requested.
    pub(super) fn dials(&self) -> Vec<Moment> {
        self.state().dials.clone()
    }

    /// The requests of this kind so far.
    pub(super) fn seen(&self, what: &str) -> Vec<Seen> {
        self.state().seen.iter().filter(|seen| seen.what == what).cloned().collect()
    }

    /// The claims that hold a lock, by the server's state.
    pub(super) fn holders(&self) -> Vec<ClaimId> {
        let now = self.clock.now();
        self.state().locks.values().filter(|held| held.until > now).map(|held| held.claim).collect()
    }

    fn name(&self, words: &[Vec<u8>]) -> &'static str {
        match &words[0][..] {
            b"HELLO" => "hello",
            b"SUBSCRIBE" => "subscribe",
            b"SCRIPT" => "load",
            b"PING" => "ping",
            b"INFO" => "info",
            b"EVALSHA" => self.scripts.get(&*String::from_utf8_lossy(&words[1])).copied().unwrap_or("other"),
            _ => "other",
        }
    }

    /// Records a request, and returns what to do with it.
    fn heard(&self, words: &[Vec<u8>]) -> (Deed, &'static str) {
        let what = self.name(words);
        let claims = match what {
            "attempt" | "look" | "release" => vec![claim(&words[4])],
            // The last word is the server's run.
            "renew" => words[3 + keys(words) + 4..words.len() - 1].iter().map(|word| claim(word)).collect(),
            _ => Vec::new(),
        };
        let seen = Seen { at: self.clock.now(), what, claims };
        let mut state = self.state();
        state.seen.push(seen.clone());
        ((state.deed)(seen), what)
    }

    /// Does it, and returns the answer.
    fn perform(&self, words: &[Vec<u8>], what: &str) -> Vec<u8> {
        let (now, mut state) = (self.clock.now(), self.state());
        state.locks.retain(|_, held| held.until > now);
        match what {
            "hello" => resp::hello(),
            "subscribe" => resp::subscribed(&words[1]),
            "info" => resp::text(b"# Server\r\nrun_id:0123456789abcdef\r\n"),
            "attempt" => {
                let (key, claim) = (&words[3], claim(&words[4]));
                let ttl = Party::read(&words[8]).expect("a party").ttl;
                if let Some(held) = state.locks.get(key).filter(|held| held.claim != claim) {
                    let left = held.until.since(now).as_micros();
                    return format!("*2\r\n:0\r\n:{left}\r\n").into_bytes();
                }
                state.token += 1;
                let token = state.locks.get(key).map_or(state.token, |held| held.token);
                state.locks.insert(key.clone(), Held { claim, token, ttl, until: now.after(ttl) });
                resp::int(token)
            }
            "renew" => {
                let (keys, claims) = words[3..].split_at(keys(words));
                let mut renew = |(key, id): (&Vec<u8>, &Vec<u8>)| match state.locks.get_mut(key) {
                    Some(held) if held.claim == claim(id) => {
                        held.until = now.after(held.ttl);
                        b'1'
                    }
                    _ => b'0',
                };
                resp::text(&keys.iter().zip(&claims[4..]).map(&mut renew).collect::<Vec<u8>>())
            }
            "release" => {
                let mine = state.locks.get(&words[3]).is_some_and(|held| held.claim == claim(&words[4]));
                if mine {
                    state.locks.remove(&words[3]);
                }
                resp::int(mine.into())
            }
            _ => b"+OK\r\n".to_vec(),
        }
    }
}

fn keys(words: &[Vec<u8>]) -> usize {
    String::from_utf8_lossy(&words[2]).parse().expect("a number of keys")
}

fn claim(bytes: &[u8]) -> ClaimId {
    ClaimId::from_bits(u128::from_be_bytes(bytes.try_into().expect("16 bytes")))
}

/// Connects to a scripted server.
struct Way(Arc<Scripted>);

impl Dialer for Way {
    fn dial(&self) -> BoxFuture<'_, std::io::Result<DuplexStream>> {
        let welcome = {
            let mut state = self.0.state();
            let (before, now) = (state.dials.len(), self.0.clock.now());
            state.dials.push(now);
            (state.welcome)(before)
        };
        async move {
            if welcome == Welcome::Refused {
                return Err(std::io::ErrorKind::ConnectionRefused.into());
            }
            let (ours, theirs) = tokio::io::duplex(1 << 16);
            match welcome {
                Welcome::Mute => drop(tokio::spawn(async move {
                    let _open = theirs;
                    std::future::pending::<()>().await;
                })),
                _ => drop(tokio::spawn(serve(Arc::clone(&self.0), theirs))),
            }
            Ok(ours)
        }
        .boxed()
    }
}

/// Serves one connection until its end.
async fn serve(server: Arc<Scripted>, stream: DuplexStream) {
    let (read, mut write) = tokio::io::split(stream);
    let mut read = BufReader::new(read);
    loop {
        let words = tokio::select! {
            biased;
            () = server.cut.notified() => return,
            words = resp::request(&mut read) => match words {
                Some(words) => words,
                None => return,
            },
        };
        let (deed, what) = server.heard(&words);
        let answer = match deed {
            Deed::Answer | Deed::After(_) => server.perform(&words, what),
            Deed::Refuse(why) => format!("-{why}\r\n").into_bytes(),
            Deed::Say(bytes) => bytes.to_vec(),
            Deed::Lose => return drop(server.perform(&words, what)),
            Deed::Cut => return,
            Deed::Hang => std::future::pending().await,
        };
        let time = match deed {
            Deed::After(time) => time,
            _ if matches!(what, "load" | "subscribe") => Duration::ZERO,
            _ => TRIP,
        };
        tokio::select! {
            biased;
            () = server.cut.notified() => return,
            () = server.clock.sleep(time) => {}
        }
        if write.write_all(&answer).await.is_err() {
            return;
        }
    }
}
