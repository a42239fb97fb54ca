//! The [`Engine`] trait, on the scripts.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use tokio::sync::mpsc::unbounded_channel;

use super::CAPABILITIES;
use super::bundles::Bundle;
use super::config::{Address, Config};
use super::ears::Ears;
use super::link::Live;
use super::mailbox::News;
use super::nodes::{Maker, Nodes};
use super::records::Shelf;
use super::replicas::Replicas;
use super::wire::{self, Scripts, Stored};
use super::{error, inspect, renew};
use crate::claim::{Claim, ClaimId, Mode, Token};
use crate::clock::{Clock, Moment};
use crate::engine::{
    Answer, Capabilities, Engine, Evicted, Grant, LockView, Losses, PartyView, Record, RecordStore, Released, Renewal,
    ServerRun, Step,
};
use crate::error::{Error, ErrorKind, Result};
use crate::logic::lease::Validity;
use crate::logic::table::Refusal;
use crate::name::LockName;

/// Poll interval for changes of a lock when notifications are unavailable.
const ON_ITS_WAY: Duration = Duration::from_millis(250);

/// Locks in Redis.
#[derive(Debug)]
pub struct RedisEngine {
    pub(super) config: Arc<Config>,
    pub(super) clock: Clock,
    can: Capabilities,
    pub(super) nodes: Nodes,
    pub(super) ears: Arc<Ears>,
    pub(super) scripts: Scripts,
    /// In strict mode, the scripts for locks of a slot that is moving.
    split: Option<Scripts>,
    inbox: String,
    replicas: Option<Replicas>,
    records: Shelf,
    /// The retention, in seconds.
    pub(super) retention: u64,
}

/// A script's answer about a claim.
enum Said {
    Granted(Token),
    Queued {
        ahead: usize,
        recheck: Option<Duration>,
        cooling: Option<Duration>,
        place: u64,
    },
    Busy {
        recheck: Option<Duration>,
    },
    Refused(Refusal),
    /// It was force released, and nothing is left of it.
    Evicted,
    /// Too many claims hold the lock or wait for it.
    Full,
}

impl RedisEngine {
    /// Connects.
    pub(crate) async fn open(config: Config, clock: &Clock) -> Result<Arc<Self>> {
        let config = Arc::new(config);
        let scripts = Scripts::new(config.strict.is_some());
        let split = config.strict.is_some().then(Scripts::split);
        let inbox = format!("{:016x}", crate::random::bits() as u64);
        let channel = wire::channel(&config.prefix, &inbox);
        let (sender, reached) = unbounded_channel();
        let ears = Arc::new(Ears::new(clock, &channel, config.strict.is_some().then_some(sender)));
        let records = Shelf::new(config.prefix.clone());
        let maker = Maker {
            config: Arc::clone(&config),
            scripts: scripts.each().into_iter().chain(records.scripts()).collect(),
            inbox: channel,
            wants_run: true,
            owner: Arc::clone(&ears) as _,
            stale: Arc::clone(&ears.stale),
        };
        let nodes = Nodes::open(maker).await?;
        let mut can = CAPABILITIES;
        if let Some(most) = config.strict {
            can.max_ttl = can.max_ttl.min(most);
        }
        let replicas = Replicas::new(&config);
        let retention = config.retention.as_secs();
        let engine = Arc::new(Self {
            config,
            clock: clock.clone(),
            can,
            nodes,
            ears,
            scripts,
            split,
            inbox,
            replicas,
            records,
            retention,
        });
        if engine.config.strict.is_some() {
            tokio::spawn(super::strict::keep_warm(Arc::downgrade(&engine), clock.clone(), reached));
        }
        Ok(engine)
    }

    pub(super) fn inbox(&self) -> &str {
        &self.inbox
    }

    pub(super) fn key(&self, name: &LockName) -> String {
        wire::lock_key(&self.config.prefix, name.as_str())
    }

    /// Whether leases are bundled: a bundle and its leases must be on one server.
    pub(super) fn can_bundle(&self) -> bool {
        self.nodes.slot("").is_none()
    }

    pub(super) fn new_bundle(&self, ttl: Duration) -> Arc<Bundle> {
        let key = format!("{}b{:032x}", self.config.prefix, crate::random::unique());
        Bundle::new(key, ttl)
    }

    /// How many keys a script has: those of the locks, and in strict mode one more.
    pub(super) fn keys(&self, locks: usize) -> usize {
        locks + usize::from(self.config.strict.is_some())
    }

    /// Adds the key of strict mode, after the locks' keys.
    pub(super) fn epoch_key(&self, command: &mut Cmd, slot: Option<u16>) {
        if self.config.strict.is_some() {
            command.arg(wire::beside(&self.config.prefix, 'e', slot));
        }
    }

    /// Adds the server's run, and in strict mode the longest lease, after all other arguments.
    pub(super) fn run_arguments(&self, command: &mut Cmd, live: &Live) {
        match self.config.strict {
            Some(most) => command.arg(&*live.run).arg(most.as_micros() as u64),
            None => command.arg(wire::short_run(&live.run)),
        };
    }

    /// Runs one of our scripts on locks of one slot; `fill` adds their keys, and `then` the
    /// arguments before the run's.
    ///
    /// Strict mode has one more key. While the slot moves, that key and the locks may be on
    /// different nodes. The server refuses a script that names both (`TRYAGAIN`). A step that does
    /// not need that key runs without it: held locks stay held.
    pub(super) async fn script(
        &self,
        slot: Option<u16>,
        which: fn(&Scripts) -> &Arc<Stored>,
        keys: &[&str],
        then: &(dyn Fn(&mut Cmd) + Send + Sync),
    ) -> Result<(Value, Live)> {
        let fill = |command: &mut Cmd, live: &Live, beside: bool| {
            for key in keys {
                command.arg(key);
            }
            if beside {
                self.epoch_key(command, slot);
            }
            then(command);
            self.run_arguments(command, live);
        };
        let whole = |command: &mut Cmd, live: &Live| fill(command, live, true);
        let answer = self.nodes.script(slot, which(&self.scripts), self.keys(keys.len()), &whole).await;
        match (&answer, &self.split) {
            (Err(error), Some(split)) if error::is_split(error) => {
                let alone = |command: &mut Cmd, live: &Live| fill(command, live, false);
                self.nodes.script(slot, which(split), keys.len(), &alone).await
            }
            _ => answer,
        }
    }

    /// Acquires the lock, or joins the queue.
    async fn take(&self, claim: &Claim, queue: bool) -> Result<Answer> {
        // The claim was waiting when the last request failed, and may have been force released
        // since: a new attempt would queue it again.
        match self.ears.mailbox.interrupted(claim.id) {
            Some(true) => {
                self.ears.mailbox.forget(claim.id);
                return Ok(Answer::Evicted);
            }
            Some(false) => match self.look(claim).await? {
                Answer::Busy { .. } => {}
                answer => return Ok(answer),
            },
            None => {}
        }
        self.ears.mailbox.anew(claim.id);
        let party = wire::party(&claim.terms, &self.config.prefix, &self.inbox);
        let key = self.key(claim.name());
        let slot = self.nodes.slot(&key);
        let fill = |command: &mut Cmd, live: &Live| {
            command.arg(&key);
            self.epoch_key(command, slot);
            self.arguments(command, claim, queue, &party);
            self.run_arguments(command, live);
        };
        self.stands(claim, self.nodes.script(slot, &self.scripts.attempt, self.keys(1), &fill)).await
    }

    /// Asks for the state of a claim that may be waiting.
    async fn look(&self, claim: &Claim) -> Result<Answer> {
        let key = self.key(claim.name());
        let then = |command: &mut Cmd| self.arguments(command, claim, true, b"");
        let keys = [key.as_str()];
        let asking = self.script(self.nodes.slot(&key), |scripts| &scripts.look, &keys, &then);
        self.stands(claim, asking).await
    }

    /// Adds the arguments of the scripts `attempt` and `look`.
    fn arguments(&self, command: &mut Cmd, claim: &Claim, queue: bool, party: &[u8]) {
        command.arg(&claim.id.bits().to_be_bytes()).arg(u8::from(queue)).arg(self.retention);
        command.arg(seconds(claim.terms.ttl)).arg(party);
    }

    /// Runs a script that returns a claim's state. If the claim waits, the mailbox keeps its
    /// messages from now on.
    async fn stands(&self, claim: &Claim, asking: impl Future<Output = Result<(Value, Live)>>) -> Result<Answer> {
        let sent = self.clock.now();
        let expected = self.ears.mailbox.expect(claim.id, sent);
        let (answer, live) = asking.await?;
        match read(&answer, &live.address)? {
            Said::Granted(token) => {
                self.replicated(&live.address).await?;
                // The answer, and the force release as well, may have arrived long before this task
                // ran.
                let evicted = self.ears.mailbox.is_evicted(claim.id, token.0);
                expected.forget();
                Ok(if evicted { Answer::Evicted } else { granted(token, sent, claim.terms.ttl) })
            }
            Said::Queued { ahead, recheck, cooling, place } => {
                self.ears.mailbox.waits(claim.id, sent, place);
                expected.keep();
                Ok(Answer::Queued { ahead, recheck, cooling })
            }
            Said::Busy { recheck } => {
                // The claim was force released while it waited, or its position has expired.
                let evicted = self.ears.mailbox.is_evicted(claim.id, 0);
                expected.forget();
                Ok(if evicted { Answer::Evicted } else { Answer::Busy { recheck } })
            }
            Said::Evicted => {
                expected.forget();
                Ok(Answer::Evicted)
            }
            Said::Refused(refusal) => {
                expected.forget();
                Ok(Answer::Refused(refusal))
            }
            Said::Full => {
                let message = "999,999 claims hold this lock or wait for it, and that is the most";
                Err(Error::new(ErrorKind::Full, message).retryable())
            }
        }
    }

    /// Waits for the replicas, if the URL asks for that.
    pub(super) async fn replicated(&self, address: &Address) -> Result<()> {
        self.replicated_or(address, "the lock does not count as held").await
    }

    /// The same; `otherwise` states what it means if they do not have it.
    async fn replicated_or(&self, address: &Address, otherwise: &'static str) -> Result<()> {
        match &self.replicas {
            Some(replicas) => replicas.have_it(address, otherwise).await,
            None => Ok(()),
        }
    }

    /// Asks the server to report the next change of the key. `false`: it cannot, since the key is
    /// moving to another server.
    async fn arm(&self, key: &str, changes: u64) -> Result<bool> {
        let link = self.nodes.link(self.nodes.slot(key))?;
        let live = link.live().await?;
        let mut commands = Pipeline::new();
        commands.cmd("CLIENT").arg("TRACKING").arg("ON").arg("OPTIN");
        commands.cmd("CLIENT").arg("CACHING").arg("YES");
        commands.cmd("EXISTS").arg(key);
        let answers = link.commands(&live, &commands).await.map_err(|cause| error::step(&live.address, cause))?;
        for answer in answers {
            match answer.extract_error() {
                Err(cause) if error::is_elsewhere(&cause) => {
                    self.nodes.is_stale();
                    return Ok(false);
                }
                answered => answered.map_err(|cause| error::step(&live.address, cause))?,
            };
        }
        self.ears.watches.armed(key, changes);
        Ok(true)
    }
}

/// Whole seconds, rounded up.
pub(super) fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

fn granted(token: Token, sent: Moment, ttl: Duration) -> Answer {
    Answer::Granted(Grant { token, validity: Validity::Until(sent.after(ttl)) })
}

/// Reads the answer of the scripts `attempt` and `look`.
fn read(answer: &Value, address: &Address) -> Result<Said> {
    let said = match answer {
        Value::Array(parts) => read_parts(parts),
        token => {
            wire::integer(token).and_then(|token| u64::try_from(token).ok()).map(|token| Said::Granted(Token(token)))
        }
    };
    said.ok_or_else(|| error::odd(address, answer))
}

fn read_parts(parts: &[Value]) -> Option<Said> {
    let number = |at: usize| parts.get(at).and_then(wire::integer);
    let recheck = |at| number(at).map(|us| u64::try_from(us).ok().map(Duration::from_micros));
    let small = |at| number(at)?.try_into().ok();
    match number(0)? {
        0 => Some(Said::Busy { recheck: recheck(1)? }),
        1 => Some(Said::Queued {
            ahead: number(1)?.try_into().ok()?,
            recheck: recheck(2)?,
            place: number(3)?.try_into().ok()?,
            // The short path of the script returns none: it is not used during a cool-down.
            cooling: recheck(4).flatten(),
        }),
        2 => Some(Said::Refused(match parts.get(1).and_then(wire::bytes)? {
            b"limit" => Refusal::OtherLimit(small(2)?),
            b"E" => Refusal::Upgrade(Mode::Exclusive),
            b"S" => Refusal::Upgrade(Mode::Shared),
            b"P" => Refusal::Upgrade(Mode::Permits { n: small(2)?, limit: small(3)? }),
            _ => return None,
        })),
        3 => Some(Said::Full),
        4 => Some(Said::Evicted),
        _ => None,
    }
}

impl Engine for RedisEngine {
    fn capabilities(&self) -> &Capabilities {
        &self.can
    }

    fn url(&self) -> String {
        self.config.shown.clone()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>, queue: bool) -> Step<Answer> {
        Step::new(async move { self.take(&claim, queue).await })
    }

    fn attempt_all(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Option<Vec<Grant>>> {
        Step::new(async move { super::all::attempt(&self, &self.clock, &claims).await })
    }

    fn wait(self: Arc<Self>, claim: Arc<Claim>, patience: Duration) -> Step<Answer> {
        Step::new(async move {
            let until = self.clock.now().after(patience);
            loop {
                let bell = match self.ears.mailbox.take(claim.id) {
                    Some(Ok(News::Evicted)) => return Ok(Answer::Evicted),
                    None | Some(Ok(News::Look)) => return self.look(&claim).await,
                    // Only an answer shows which server's replicas must have the grant.
                    Some(Ok(News::Granted(..))) if self.replicas.is_some() => return self.look(&claim).await,
                    Some(Ok(News::Granted(token, asked))) => {
                        self.ears.mailbox.forget(claim.id);
                        return Ok(granted(token, asked, claim.terms.ttl));
                    }
                    Some(Err(bell)) => bell,
                };
                tokio::select! {
                    biased;
                    () = bell.notified() => {}
                    () = self.clock.sleep_until(until) => return self.look(&claim).await,
                }
            }
        })
    }

    fn place(&self, name: &LockName) -> u64 {
        // A single server has all locks.
        if self.can_bundle() {
            return 0;
        }
        self.nodes.place(self.nodes.slot(&self.key(name)))
    }

    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<Renewal>> {
        Step::new(async move { renew::renew(&self, claims).await })
    }

    fn release(self: Arc<Self>, claim: Arc<Claim>) -> Step<Released> {
        Step::new(async move {
            self.ears.mailbox.forget(claim.id);
            let leaving = self.ears.bundles.leave(claim.id);
            let key = self.key(claim.name());
            let then = |command: &mut Cmd| {
                command.arg(&claim.id.bits().to_be_bytes()).arg("").arg(self.retention);
            };
            let slot = self.nodes.slot(&key);
            let (answer, live) = self.script(slot, |scripts| &scripts.release, &[&key], &then).await?;
            leaving.done();
            match answer {
                Value::Int(0) => Ok(Released::Absent),
                Value::Int(1) => Ok(Released::Released),
                Value::Int(2) => Ok(Released::LeftQueue),
                odd => Err(error::odd(&live.address, &odd)),
            }
        })
    }

    fn losses(&self) -> Losses {
        self.ears.losses.listen()
    }

    fn watch(self: Arc<Self>, name: LockName, patience: Duration) -> Step<Step<()>> {
        let key = self.key(&name);
        Step::new(async move {
            let (bell, unarmed) = self.ears.watches.watch(&key);
            // Receives every change that the server reports from here on, even before the inner
            // step is polled.
            let heard = bell.notified_owned();
            let told = match unarmed {
                None => true,
                Some(changes) => self.arm(&key, changes).await?,
            };
            // Without notifications the caller polls.
            let patience = if told { patience } else { patience.min(ON_ITS_WAY) };
            Ok(Step::new(async move {
                tokio::select! {
                    () = heard => {}
                    () = self.clock.sleep_until(self.clock.now().after(patience)) => {}
                }
                Ok(())
            }))
        })
    }

    fn inspect(self: Arc<Self>, name: LockName) -> Step<LockView> {
        Step::new(async move { inspect::one(&self, &name).await })
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockView>> {
        Step::new(async move { inspect::list(&self, &prefix).await })
    }

    fn evict(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<Evicted> {
        Step::new(async move { inspect::evict(&self, &name, claim, &reason).await })
    }

    fn request_release(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<Option<PartyView>> {
        Step::new(async move { inspect::request_release(&self, &name, claim, &reason).await })
    }

    fn farewell(self: Arc<Self>) -> Step<()> {
        Step::ready(Ok(()))
    }

    fn records(self: Arc<Self>) -> Option<Arc<dyn RecordStore>> {
        Some(self)
    }
}

impl RecordStore for RedisEngine {
    fn get(self: Arc<Self>, name: LockName) -> Step<Record> {
        Step::new(async move { self.records.read(&self.nodes, &name).await })
    }

    fn get_in_run(self: Arc<Self>, name: LockName) -> Step<(Record, Option<ServerRun>)> {
        Step::new(async move {
            match self.config.strict {
                Some(_) => self.records.read_in_run(&self, &name).await,
                None => Ok((self.records.read(&self.nodes, &name).await?, None)),
            }
        })
    }

    fn compare_and_set(self: Arc<Self>, name: LockName, over: u64, value: String) -> Step<Option<Record>> {
        Step::new(async move {
            let (record, live) = self.records.write(&self.nodes, &name, over, value).await?;
            if record.is_some() {
                self.replicated_or(&live.address, "the record does not count as written").await?;
            }
            Ok(record)
        })
    }

    fn compare_and_set_in_run(
        self: Arc<Self>,
        name: LockName,
        over: u64,
        value: String,
        run: ServerRun,
    ) -> Step<Option<Record>> {
        Step::new(async move {
            let (record, live) = self.records.write_in_run(&self, &name, (over, value), &run).await?;
            if record.is_some() {
                self.replicated_or(&live.address, "the record does not count as written").await?;
            }
            Ok(record)
        })
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockName>> {
        Step::new(async move { self.records.names(&self.nodes, &prefix).await })
    }
}
