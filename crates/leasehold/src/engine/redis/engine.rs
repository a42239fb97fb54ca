//! The [`Engine`] trait, on the scripts.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use tokio::sync::mpsc::unbounded_channel;

use super::CAPABILITIES;
use super::pending_grants::Notification;
use super::records::StoredRecords;
use super::renewal_groups::RenewalGroup;
use super::replicas::ReplicaAcks;
use super::subscriber::Subscriber;
use super::wire::{self, Scripts};
use super::{inspect, renew};
use crate::clock::{Clock, Instant};
use crate::engine::Claim;
use crate::engine::{
    AcquireReply, Capabilities, ContenderView, Engine, ForceReleaseOutcome, Grant, LockView, LossEvents, Record,
    RecordStore, ReleaseReply, RenewReply, ServerRun, Step,
};
use crate::logic::table::Refusal;
use crate::redis_client::{
    Address, CachedScript, Config, LinkFactory, LiveConnection, Nodes, encode_contender, error, keys, short_run, values,
};
use crate::types::{ClaimId, LockName, Mode, Result, Token};

/// Poll interval for changes of a lock when notifications are unavailable.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Locks in Redis.
#[derive(Debug)]
pub struct RedisEngine {
    pub(super) config: Arc<Config>,
    pub(super) clock: Clock,
    capabilities: Capabilities,
    pub(super) nodes: Nodes,
    pub(super) subscriber: Arc<Subscriber>,
    pub(super) scripts: Scripts,
    /// In strict mode, the scripts for locks of a slot that is moving.
    migrating_scripts: Option<Scripts>,
    /// The channel of this client's inbox.
    inbox: Arc<str>,
    replicas: Option<ReplicaAcks>,
    records: StoredRecords,
    /// The retention, in seconds.
    pub(super) retention_secs: u64,
}

/// A script's answer about a claim.
enum ScriptAnswer {
    Granted(Token),
    Queued {
        ahead: usize,
        recheck: Option<Duration>,
        cooling: Option<Duration>,
        position: u64,
    },
    Busy {
        recheck: Option<Duration>,
        cooling: Option<Duration>,
    },
    Refused(Refusal),
    /// It was force released, and no trace of it is left.
    ForceReleased,
}

impl RedisEngine {
    /// Connects.
    pub(crate) async fn open(config: Config, clock: &Clock) -> Result<Arc<Self>> {
        let config = Arc::new(config);
        let scripts = Scripts::new(config.strict.is_some());
        let split = config.strict.is_some().then(Scripts::for_moving_slot);
        let number = format!("{:016x}", crate::random::random_bits() as u64);
        let channel = keys::inbox_channel(&config.prefix, &number);
        let (sender, reached) = unbounded_channel();
        let listener = Arc::new(Subscriber::new(clock, &channel, config.strict.is_some().then_some(sender)));
        let records = StoredRecords::new(config.prefix.clone());
        let link_factory = LinkFactory {
            config: Arc::clone(&config),
            scripts: scripts.all_scripts().into_iter().chain(records.scripts()).collect(),
            inbox: channel.clone(),
            needs_run_id: true,
            listener: Arc::clone(&listener) as _,
            map_stale: Arc::clone(&listener.map_stale),
        };
        let nodes = Nodes::open(link_factory).await?;
        let mut capabilities = CAPABILITIES;
        if let Some(max_lease) = config.strict {
            capabilities.max_ttl = capabilities.max_ttl.min(max_lease);
        }
        let replicas = ReplicaAcks::new(&config);
        let retention = config.retention.as_secs();
        let engine = Arc::new(Self {
            config,
            clock: clock.clone(),
            capabilities,
            nodes,
            subscriber: listener,
            scripts,
            migrating_scripts: split,
            inbox: channel.into(),
            replicas,
            records,
            retention_secs: retention,
        });
        if engine.config.strict.is_some() {
            tokio::spawn(super::strict::keep_epochs_fresh(Arc::downgrade(&engine), clock.clone(), reached));
        }
        Ok(engine)
    }

    pub(super) fn inbox(&self) -> &Arc<str> {
        &self.inbox
    }

    pub(super) fn key(&self, name: &LockName) -> String {
        wire::lock_key(&self.config.prefix, name.as_str())
    }

    /// Whether leases are renewed as groups: a group and its leases must be on one server.
    pub(super) fn can_group_renewals(&self) -> bool {
        self.nodes.slot("").is_none()
    }

    pub(super) fn new_renewal_group(&self, ttl: Duration) -> Arc<RenewalGroup> {
        let key = format!("{}b{:032x}", self.config.prefix, crate::random::unique_id());
        RenewalGroup::new(key, ttl)
    }

    /// How many keys a script has: those of the locks, and in strict mode one more.
    pub(super) fn key_count(&self, locks: usize) -> usize {
        locks + usize::from(self.config.strict.is_some())
    }

    /// Adds the key of strict mode, after the locks' keys.
    pub(super) fn add_epoch_key(&self, command: &mut Cmd, slot: Option<u16>) {
        if self.config.strict.is_some() {
            command.arg(keys::auxiliary_key(&self.config.prefix, 'e', slot));
        }
    }

    /// Adds the server's run, and in strict mode the longest lease, after all other arguments.
    pub(super) fn add_run_arguments(&self, command: &mut Cmd, live: &LiveConnection) {
        match self.config.strict {
            Some(max_lease) => command.arg(&*live.run_id).arg(max_lease.as_micros() as u64),
            None => command.arg(short_run(&live.run_id)),
        };
    }

    /// Runs one of the scripts on locks of one slot; `fill_command` adds their keys, and
    /// `add_arguments` the arguments before the run's.
    ///
    /// Strict mode has one more key. While the slot moves, that key and the locks may be on
    /// different nodes. The server refuses a script that names both (`TRYAGAIN`). A step that does
    /// not need that key runs without it: held locks stay held.
    pub(super) async fn run_script(
        &self,
        slot: Option<u16>,
        script_of: fn(&Scripts) -> &Arc<CachedScript>,
        keys: &[&str],
        add_arguments: &(dyn Fn(&mut Cmd) + Send + Sync),
    ) -> Result<(Value, LiveConnection)> {
        let fill_command = |command: &mut Cmd, live: &LiveConnection, with_epoch_key: bool| {
            for key in keys {
                command.arg(key);
            }
            if with_epoch_key {
                self.add_epoch_key(command, slot);
            }
            add_arguments(command);
            self.add_run_arguments(command, live);
        };
        let with_epoch = |command: &mut Cmd, live: &LiveConnection| fill_command(command, live, true);
        let answer =
            self.nodes.run_script(slot, script_of(&self.scripts), self.key_count(keys.len()), &with_epoch).await;
        match (&answer, &self.migrating_scripts) {
            (Err(error), Some(split)) if error::is_slot_moving(error) => {
                let alone = |command: &mut Cmd, live: &LiveConnection| fill_command(command, live, false);
                self.nodes.run_script(slot, script_of(split), keys.len(), &alone).await
            }
            _ => answer,
        }
    }

    /// Acquires the lock, or joins the queue.
    async fn acquire(&self, claim: &Claim, queue: bool) -> Result<AcquireReply> {
        // The claim was waiting when the last request failed, and may have been force released
        // since: a new attempt would queue it again.
        match self.subscriber.pending_grants.unanswered_wait(claim.id) {
            Some(true) => {
                self.subscriber.pending_grants.remove(claim.id);
                return Ok(AcquireReply::ForceReleased);
            }
            Some(false) => match self.heartbeat(claim).await? {
                AcquireReply::Busy { .. } => {}
                answer => return Ok(answer),
            },
            None => {}
        }
        self.subscriber.pending_grants.begin_attempt(claim.id);
        let contender = encode_contender(&claim.options, &self.inbox);
        let key = self.key(claim.name());
        let slot = self.nodes.slot(&key);
        let fill_command = |command: &mut Cmd, live: &LiveConnection| {
            command.arg(&key);
            self.add_epoch_key(command, slot);
            self.add_claim(command, claim.id);
            command.arg(if queue { "queue" } else { "try" }).arg(&contender);
            self.add_run_arguments(command, live);
        };
        self.query_claim_state(
            claim,
            self.nodes.run_script(slot, &self.scripts.attempt, self.key_count(1), &fill_command),
        )
        .await
    }

    /// Requests the state of a claim that may be waiting.
    async fn heartbeat(&self, claim: &Claim) -> Result<AcquireReply> {
        let key = self.key(claim.name());
        let then = |command: &mut Cmd| self.add_claim(command, claim.id);
        let keys = [key.as_str()];
        let reply = self.run_script(self.nodes.slot(&key), |scripts| &scripts.heartbeat, &keys, &then);
        self.query_claim_state(claim, reply).await
    }

    /// Adds the first arguments of every script about one claim.
    pub(super) fn add_claim(&self, command: &mut Cmd, claim: ClaimId) {
        command.arg(self.retention_secs).arg(&claim.bits().to_be_bytes());
    }

    /// Runs a script that returns a claim's state. If the claim waits, its messages are kept from
    /// now on.
    async fn query_claim_state(
        &self,
        claim: &Claim,
        request: impl Future<Output = Result<(Value, LiveConnection)>>,
    ) -> Result<AcquireReply> {
        let sent = self.clock.now();
        let expected = self.subscriber.pending_grants.begin_request(claim.id, sent);
        let (answer, live) = request.await?;
        match parse_answer(&answer, &live.address)? {
            ScriptAnswer::Granted(token) => {
                self.wait_for_replicas(&live.address).await?;
                // The answer, and the force release as well, may have arrived long before this task
                // ran.
                let force_released = self.subscriber.pending_grants.is_force_released(claim.id, token.0);
                expected.discard();
                Ok(if force_released {
                    AcquireReply::ForceReleased
                } else {
                    granted_answer(token, sent, claim.options.ttl)
                })
            }
            ScriptAnswer::Queued { ahead, recheck, cooling, position } => {
                self.subscriber.pending_grants.set_waiting(claim.id, sent, position);
                expected.keep();
                Ok(AcquireReply::Queued { ahead, recheck_after: recheck, cool_down: cooling })
            }
            ScriptAnswer::Busy { recheck, cooling } => {
                // The claim was force released while it waited, or its position has expired.
                let force_released = self.subscriber.pending_grants.is_force_released(claim.id, 0);
                expected.discard();
                Ok(match cooling {
                    _ if force_released => AcquireReply::ForceReleased,
                    Some(left) => AcquireReply::CoolingDown { left },
                    None => AcquireReply::Busy { recheck_after: recheck },
                })
            }
            ScriptAnswer::ForceReleased => {
                expected.discard();
                Ok(AcquireReply::ForceReleased)
            }
            ScriptAnswer::Refused(refusal) => {
                expected.discard();
                Ok(AcquireReply::Refused(refusal))
            }
        }
    }

    /// Waits for the replicas, if the URL requires that.
    pub(super) async fn wait_for_replicas(&self, address: &Address) -> Result<()> {
        self.wait_for_replicas_or(address, "the lock does not count as held").await
    }

    /// As above; `consequence` states what it means if they do not have the write.
    async fn wait_for_replicas_or(&self, address: &Address, consequence: &'static str) -> Result<()> {
        match &self.replicas {
            Some(replicas) => replicas.wait_acknowledged(address, consequence).await,
            None => Ok(()),
        }
    }

    /// Makes the server report the next change of the key. `false`: it cannot, since the key is
    /// moving to another server.
    async fn arm_watch(&self, key: &str, changes: u64) -> Result<bool> {
        let link = self.nodes.link(self.nodes.slot(key))?;
        let live = link.connection().await?;
        let mut commands = Pipeline::new();
        commands.cmd("CLIENT").arg("TRACKING").arg("ON").arg("OPTIN");
        commands.cmd("CLIENT").arg("CACHING").arg("YES");
        commands.cmd("EXISTS").arg(key);
        let answers =
            link.send_commands(&live, &commands).await.map_err(|cause| error::step_error(&live.address, cause))?;
        for answer in answers {
            match answer.extract_error() {
                Err(cause) if error::is_redirect(&cause) => {
                    self.nodes.mark_stale();
                    return Ok(false);
                }
                answered => answered.map_err(|cause| error::step_error(&live.address, cause))?,
            };
        }
        self.subscriber.key_watches.mark_armed(key, changes);
        Ok(true)
    }
}

/// Whole seconds, rounded up.
pub(super) fn secs_rounded_up(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

fn granted_answer(token: Token, sent: Instant, ttl: Duration) -> AcquireReply {
    AcquireReply::Granted(Grant::for_ttl(token, sent, ttl))
}

/// Reads the answer of the scripts `attempt` and `heartbeat`.
fn parse_answer(answer: &Value, address: &Address) -> Result<ScriptAnswer> {
    let parsed = match answer {
        Value::Array(parts) => parse_answer_parts(parts),
        token => values::integer(token)
            .and_then(|token| u64::try_from(token).ok())
            .map(|token| ScriptAnswer::Granted(Token(token))),
    };
    parsed.ok_or_else(|| error::unexpected_answer(address, answer))
}

fn parse_answer_parts(parts: &[Value]) -> Option<ScriptAnswer> {
    let number = |at: usize| parts.get(at).and_then(values::integer);
    let recheck = |at| number(at).map(|micros| u64::try_from(micros).ok().map(Duration::from_micros));
    let small = |at| number(at)?.try_into().ok();
    match values::bytes(parts.first()?)? {
        b"busy" => Some(ScriptAnswer::Busy { recheck: recheck(1)?, cooling: recheck(2)? }),
        b"queued" => Some(ScriptAnswer::Queued {
            ahead: number(1)?.try_into().ok()?,
            recheck: recheck(2)?,
            position: number(3)?.try_into().ok()?,
            cooling: recheck(4)?,
        }),
        b"limit" => Some(ScriptAnswer::Refused(Refusal::LimitMismatch(small(1)?))),
        b"held" => Some(ScriptAnswer::Refused(Refusal::Upgrade(match values::bytes(parts.get(1)?)? {
            b"E" => Mode::Exclusive,
            b"S" => Mode::Shared,
            b"P" => Mode::Permits { n: small(2)?, limit: small(3)? },
            _ => return None,
        }))),
        b"force-released" => Some(ScriptAnswer::ForceReleased),
        _ => None,
    }
}

impl Engine for RedisEngine {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn url(&self) -> String {
        self.config.redacted_url.clone()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>, queue: bool) -> Step<AcquireReply> {
        Step::new(async move { self.acquire(&claim, queue).await })
    }

    fn attempt_all(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Option<Vec<Grant>>> {
        Step::new(async move { super::acquire_all::attempt_all(&self, &self.clock, &claims).await })
    }

    fn wait(self: Arc<Self>, claim: Arc<Claim>, timeout: Duration) -> Step<AcquireReply> {
        Step::new(async move {
            let until = self.clock.now().saturating_add(timeout);
            loop {
                let wakeup = match self.subscriber.pending_grants.take_notification(claim.id) {
                    Some(Ok(Notification::ForceReleased)) => return Ok(AcquireReply::ForceReleased),
                    None | Some(Ok(Notification::Recheck)) => return self.heartbeat(&claim).await,
                    // Only an answer shows which server's replicas must have the grant.
                    Some(Ok(Notification::Granted(..))) if self.replicas.is_some() => {
                        return self.heartbeat(&claim).await;
                    }
                    Some(Ok(Notification::Granted(token, asked))) => {
                        self.subscriber.pending_grants.remove(claim.id);
                        return Ok(granted_answer(token, asked, claim.options.ttl));
                    }
                    Some(Err(wakeup)) => wakeup,
                };
                tokio::select! {
                    biased;
                    () = wakeup.notified() => {}
                    () = self.clock.sleep_until(until) => return self.heartbeat(&claim).await,
                }
            }
        })
    }

    fn server_id(&self, name: &LockName) -> u64 {
        // A single server has all locks.
        if self.can_group_renewals() {
            return 0;
        }
        self.nodes.server_id(self.nodes.slot(&self.key(name)))
    }

    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<RenewReply>> {
        Step::new(async move { renew::renew(&self, claims).await })
    }

    fn release(self: Arc<Self>, claim: Arc<Claim>) -> Step<ReleaseReply> {
        Step::new(async move {
            self.subscriber.pending_grants.remove(claim.id);
            let leaving = self.subscriber.renewal_groups.begin_leave(claim.id);
            let key = self.key(claim.name());
            let then = |command: &mut Cmd| self.add_claim(command, claim.id);
            let slot = self.nodes.slot(&key);
            let (answer, live) = self.run_script(slot, |scripts| &scripts.release, &[&key], &then).await?;
            leaving.complete();
            match answer {
                Value::Int(0) => Ok(ReleaseReply::Absent),
                Value::Int(1) => Ok(ReleaseReply::Released),
                Value::Int(2) => Ok(ReleaseReply::LeftQueue),
                unexpected => Err(error::unexpected_answer(&live.address, &unexpected)),
            }
        })
    }

    fn loss_events(&self) -> LossEvents {
        self.subscriber.losses.subscribe()
    }

    fn watch(self: Arc<Self>, name: LockName, timeout: Duration) -> Step<Step<()>> {
        let key = self.key(&name);
        Step::new(async move {
            let (wakeup, unarmed) = self.subscriber.key_watches.watch(&key);
            // Receives every change that the server reports from here on, even before the inner
            // step is polled.
            let notified = wakeup.notified_owned();
            let is_armed = match unarmed {
                None => true,
                Some(changes) => self.arm_watch(&key, changes).await?,
            };
            // Without notifications the caller polls.
            let timeout = if is_armed { timeout } else { timeout.min(POLL_INTERVAL) };
            Ok(Step::new(async move {
                tokio::select! {
                    () = notified => {}
                    () = self.clock.sleep_until(self.clock.now().saturating_add(timeout)) => {}
                }
                Ok(())
            }))
        })
    }

    fn inspect(self: Arc<Self>, name: LockName) -> Step<LockView> {
        Step::new(async move { inspect::inspect_lock(&self, &name).await })
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockView>> {
        Step::new(async move { inspect::list(&self, &prefix).await })
    }

    fn force_release(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<ForceReleaseOutcome> {
        Step::new(async move { inspect::force_release(&self, &name, claim, &reason).await })
    }

    fn request_release(self: Arc<Self>, name: LockName, claim: ClaimId, reason: String) -> Step<Option<ContenderView>> {
        Step::new(async move { inspect::request_release(&self, &name, claim, &reason).await })
    }

    fn shutdown(self: Arc<Self>) -> Step<()> {
        Step::ready(Ok(()))
    }

    fn records(self: Arc<Self>) -> Option<Arc<dyn RecordStore>> {
        Some(self)
    }
}

impl RecordStore for RedisEngine {
    fn get(self: Arc<Self>, name: LockName) -> Step<Record> {
        Step::new(async move { self.records.get(&self.nodes, &name).await })
    }

    fn get_in_run(self: Arc<Self>, name: LockName) -> Step<(Record, Option<ServerRun>)> {
        Step::new(async move {
            match self.config.strict {
                Some(_) => self.records.get_in_run(&self, &name).await,
                None => Ok((self.records.get(&self.nodes, &name).await?, None)),
            }
        })
    }

    fn compare_and_set(self: Arc<Self>, name: LockName, expected_version: u64, value: String) -> Step<Option<Record>> {
        Step::new(async move {
            let (record, live) = self.records.compare_and_set(&self.nodes, &name, expected_version, value).await?;
            if record.is_some() {
                self.wait_for_replicas_or(&live.address, "the record does not count as written").await?;
            }
            Ok(record)
        })
    }

    fn compare_and_set_in_run(
        self: Arc<Self>,
        name: LockName,
        expected_version: u64,
        value: String,
        run: ServerRun,
    ) -> Step<Option<Record>> {
        Step::new(async move {
            let (record, live) =
                self.records.compare_and_set_in_run(&self, &name, (expected_version, value), &run).await?;
            if record.is_some() {
                self.wait_for_replicas_or(&live.address, "the record does not count as written").await?;
            }
            Ok(record)
        })
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockName>> {
        Step::new(async move { self.records.list(&self.nodes, &prefix).await })
    }
}
