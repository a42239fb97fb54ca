//! `protocol=simple`: the textbook lock, to share locks with other programs.
//!
//! A lock is one string key, acquired with `SET key value NX PX` and released by
//! compare-and-delete. The key is the lock's name, after a prefix if there is one. The protocol has
//! no queue, modes, owners or holder information, and refuses them. Waiters poll. Records have keys
//! that no lock's name can be. A token is the server's time in microseconds at the grant, and rises
//! as long as that clock does.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, Value};

use super::config::Config;
use super::ears::Ears;
use super::error;
use super::link::Live;
use super::nodes::{Maker, Nodes};
use super::records::Shelf;
use super::wire::{self, Stored};
use crate::claim::{Claim, Token};
use crate::clock::Clock;
use crate::engine::{Answer, Capabilities, Engine, Grant, Losses, Record, RecordStore, Released, Renewal, Step};
use crate::error::Result;
use crate::logic::lease::Validity;
use crate::name::LockName;

/// Capabilities of `redis:` with `protocol=simple`.
pub const CAPABILITIES: Capabilities = Capabilities {
    records: true,
    survives: "any client's crash, cut or pause; a restart of the server with its data",
    breaks: "a fail-over or restart that forgets a grant, a server clock that jumps, a program that deletes what is not its own",
    ..Capabilities::exclusive_only("redis-simple")
};

/// Textbook locks on Redis.
#[derive(Debug)]
pub(crate) struct SimpleEngine {
    config: Arc<Config>,
    clock: Clock,
    nodes: Nodes,
    ears: Arc<Ears>,
    take: Arc<Stored>,
    keep: Arc<Stored>,
    give: Arc<Stored>,
    records: Shelf,
}

/// Precedes the letter in the keys of records: no lock's name may contain it, and a lock's key is
/// its name.
const APART: char = '\u{1f}';

impl SimpleEngine {
    /// Connects.
    pub(crate) async fn open(config: Config, clock: &Clock) -> Result<Arc<Self>> {
        let config = Arc::new(config);
        let script = |text: &str| Stored::new(text.to_owned());
        let take = script(include_str!("scripts/simple_take.lua"));
        let keep = script(include_str!("scripts/simple_keep.lua"));
        let give = script(include_str!("scripts/simple_give.lua"));
        let ears = Arc::new(Ears::new(clock, "", None));
        let records = Shelf::new(format!("{}{APART}", config.prefix));
        let locks = [&take, &keep, &give].map(Arc::clone);
        let maker = Maker {
            config: Arc::clone(&config),
            scripts: locks.into_iter().chain(records.scripts()).collect(),
            inbox: String::new(),
            wants_run: false,
            owner: Arc::clone(&ears) as _,
            stale: Arc::clone(&ears.stale),
        };
        let nodes = Nodes::open(maker).await?;
        Ok(Arc::new(Self { config, clock: clock.clone(), nodes, ears, take, keep, give, records }))
    }

    fn key(&self, claim: &Claim) -> String {
        format!("{}{}", self.config.prefix, claim.name())
    }

    /// Runs a script on a claim's lock.
    async fn run(&self, script: &Stored, claim: &Claim) -> Result<(Value, Live)> {
        let key = self.key(claim);
        let fill = |command: &mut Cmd, _: &Live| {
            command.arg(&key).arg(format!("{:032x}", claim.id.bits())).arg(claim.terms.ttl.as_millis() as u64);
        };
        self.nodes.script(self.nodes.slot(&key), script, 1, &fill).await
    }

    async fn done(&self, script: &Stored, claim: &Claim) -> Result<bool> {
        let (answer, live) = self.run(script, claim).await?;
        match answer {
            Value::Int(done @ 0..=1) => Ok(done == 1),
            odd => Err(error::odd(&live.address, &odd)),
        }
    }
}

impl Engine for SimpleEngine {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn url(&self) -> String {
        self.config.shown.clone()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>, _queue: bool) -> Step<Answer> {
        Step::new(async move {
            let sent = self.clock.now();
            let (answer, live) = self.run(&self.take, &claim).await?;
            let read = || match &answer {
                Value::Int(token) => {
                    let validity = Validity::Until(sent.after(claim.terms.ttl));
                    Some(Answer::Granted(Grant { token: Token(u64::try_from(*token).ok()?), validity }))
                }
                Value::Array(parts) => {
                    let left = parts.get(1).and_then(wire::integer)?;
                    Some(Answer::Busy { recheck: u64::try_from(left).ok().map(Duration::from_millis) })
                }
                _ => None,
            };
            read().ok_or_else(|| error::odd(&live.address, &answer))
        })
    }

    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<Renewal>> {
        Step::new(async move {
            claims.iter().for_each(|claim| self.nodes.renews(&self.key(claim), claim));
            let answers = join_all(claims.iter().map(|claim| self.done(&self.keep, claim))).await;
            let renewal = |(claim, answer): (&Arc<Claim>, Result<bool>)| match answer {
                Ok(true) => Renewal::Renewed(Validity::FromSend(claim.terms.ttl)),
                Ok(false) => Renewal::Lost,
                Err(error) => {
                    tracing::warn!(%error, name = %claim.name(), "a lease could not be renewed; trying again");
                    Renewal::Unknown
                }
            };
            Ok(claims.iter().zip(answers).map(renewal).collect())
        })
    }

    fn release(self: Arc<Self>, claim: Arc<Claim>) -> Step<Released> {
        Step::new(async move {
            let ours = self.done(&self.give, &claim).await?;
            Ok(if ours { Released::Released } else { Released::Absent })
        })
    }

    fn losses(&self) -> Losses {
        self.ears.losses.listen()
    }

    fn farewell(self: Arc<Self>) -> Step<()> {
        Step::ready(Ok(()))
    }

    fn records(self: Arc<Self>) -> Option<Arc<dyn RecordStore>> {
        Some(self)
    }
}

impl RecordStore for SimpleEngine {
    fn get(self: Arc<Self>, name: LockName) -> Step<Record> {
        Step::new(async move { self.records.read(&self.nodes, &name).await })
    }

    fn compare_and_set(self: Arc<Self>, name: LockName, over: u64, value: String) -> Step<Option<Record>> {
        Step::new(async move { Ok(self.records.write(&self.nodes, &name, over, value).await?.0) })
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockName>> {
        Step::new(async move { self.records.names(&self.nodes, &prefix).await })
    }
}
