//! `protocol=simple`: the textbook lock, to share locks with other programs.
//!
//! A lock is one string key, acquired with `SET key value NX PX` and released by
//! compare-and-delete. Its value is `<format>:<claim>:<token>`. Any other value is another holder.
//! The key is the lock's name, after a prefix if there is one. The protocol has no queue, modes,
//! owners or holder information, and refuses them. Waiters poll. Records have keys that no lock's
//! name can be. A token is the server's time in microseconds at the grant, and rises as long as that
//! clock does.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, Value};

use super::records::StoredRecords;
use super::subscriber::Subscriber;
use crate::clock::Clock;
use crate::engine::Claim;
use crate::engine::{
    AcquireReply, Capabilities, Engine, Grant, LossEvents, Record, RecordStore, ReleaseReply, RenewReply, Step,
};
use crate::redis_client::{CachedScript, Config, LinkFactory, LiveConnection, Nodes, error, values};
use crate::types::{FORMAT, LockName, Result, Token};

/// Capabilities of `redis:` with `protocol=simple`.
pub const CAPABILITIES: Capabilities = Capabilities {
    records: true,
    tolerates: "any client's crash, cut or pause; a restart of the server with its data",
    fails_when: "a fail-over or restart that loses a grant, a server clock that jumps, a program that deletes what is not its own",
    ..Capabilities::exclusive_only("redis-simple")
};

/// Textbook locks on Redis.
#[derive(Debug)]
pub(crate) struct SimpleEngine {
    config: Arc<Config>,
    clock: Clock,
    nodes: Nodes,
    subscriber: Arc<Subscriber>,
    acquire: Arc<CachedScript>,
    renew: Arc<CachedScript>,
    release: Arc<CachedScript>,
    records: StoredRecords,
}

/// Precedes the letter in the keys of records: no lock's name may contain it, and a lock's key is
/// its name.
const RECORD_SEPARATOR: char = '\u{1f}';

impl SimpleEngine {
    /// Connects.
    pub(crate) async fn open(config: Config, clock: &Clock) -> Result<Arc<Self>> {
        let config = Arc::new(config);
        let script = |text: &str| CachedScript::new(text.to_owned());
        let acquire = script(include_str!("scripts/simple_acquire.lua"));
        let renew = script(include_str!("scripts/simple_renew.lua"));
        let release = script(include_str!("scripts/simple_release.lua"));
        let listener = Arc::new(Subscriber::new(clock, "", None));
        let records = StoredRecords::new(format!("{}{RECORD_SEPARATOR}", config.prefix));
        let locks = [&acquire, &renew, &release].map(Arc::clone);
        let link_factory = LinkFactory {
            config: Arc::clone(&config),
            scripts: locks.into_iter().chain(records.scripts()).collect(),
            inbox: String::new(),
            needs_run_id: false,
            listener: Arc::clone(&listener) as _,
            map_stale: Arc::clone(&listener.map_stale),
        };
        let nodes = Nodes::open(link_factory).await?;
        Ok(Arc::new(Self {
            config,
            clock: clock.clone(),
            nodes,
            subscriber: listener,
            acquire,
            renew,
            release,
            records,
        }))
    }

    fn key(&self, claim: &Claim) -> String {
        format!("{}{}", self.config.prefix, claim.name())
    }

    /// Runs a script on a claim's lock.
    async fn run_script(&self, script: &CachedScript, claim: &Claim) -> Result<(Value, LiveConnection)> {
        let key = self.key(claim);
        let fill_command = |command: &mut Cmd, _: &LiveConnection| {
            command
                .arg(&key)
                .arg(format!("{FORMAT}:{:032x}:", claim.id.bits()))
                .arg(claim.options.ttl.as_millis() as u64);
        };
        self.nodes.run_script(self.nodes.slot(&key), script, 1, &fill_command).await
    }

    async fn run_and_test(&self, script: &CachedScript, claim: &Claim) -> Result<bool> {
        let (answer, live) = self.run_script(script, claim).await?;
        match answer {
            Value::Int(done @ 0..=1) => Ok(done == 1),
            unexpected => Err(error::unexpected_answer(&live.address, &unexpected)),
        }
    }
}

impl Engine for SimpleEngine {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn url(&self) -> String {
        self.config.redacted_url.clone()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>, _queue: bool) -> Step<AcquireReply> {
        Step::new(async move {
            let sent = self.clock.now();
            let (answer, live) = self.run_script(&self.acquire, &claim).await?;
            let read = || match &answer {
                Value::Int(token) => {
                    let token = Token(u64::try_from(*token).ok()?);
                    Some(AcquireReply::Granted(Grant::for_ttl(token, sent, claim.options.ttl)))
                }
                Value::Array(parts) => {
                    let left = parts.get(1).and_then(values::integer)?;
                    Some(AcquireReply::Busy { recheck_after: u64::try_from(left).ok().map(Duration::from_millis) })
                }
                _ => None,
            };
            read().ok_or_else(|| error::unexpected_answer(&live.address, &answer))
        })
    }

    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<RenewReply>> {
        Step::new(async move {
            let sent = self.clock.now();
            claims.iter().for_each(|claim| self.nodes.note_renewal_due(&self.key(claim), claim));
            let answers = join_all(claims.iter().map(|claim| self.run_and_test(&self.renew, claim))).await;
            let renewal = |(claim, answer): (&Arc<Claim>, Result<bool>)| match answer {
                Ok(true) => RenewReply::Renewed(sent.saturating_add(claim.options.ttl)),
                Ok(false) => RenewReply::Lost,
                Err(error) => {
                    tracing::warn!(%error, name = %claim.name(), "a lease could not be renewed; trying again");
                    RenewReply::Unknown
                }
            };
            Ok(claims.iter().zip(answers).map(renewal).collect())
        })
    }

    fn release(self: Arc<Self>, claim: Arc<Claim>) -> Step<ReleaseReply> {
        Step::new(async move {
            let was_held = self.run_and_test(&self.release, &claim).await?;
            Ok(if was_held { ReleaseReply::Released } else { ReleaseReply::Absent })
        })
    }

    fn loss_events(&self) -> LossEvents {
        self.subscriber.losses.subscribe()
    }

    fn shutdown(self: Arc<Self>) -> Step<()> {
        Step::ready(Ok(()))
    }

    fn records(self: Arc<Self>) -> Option<Arc<dyn RecordStore>> {
        Some(self)
    }
}

impl RecordStore for SimpleEngine {
    fn get(self: Arc<Self>, name: LockName) -> Step<Record> {
        Step::new(async move { self.records.get(&self.nodes, &name).await })
    }

    fn compare_and_set(self: Arc<Self>, name: LockName, expected_version: u64, value: String) -> Step<Option<Record>> {
        Step::new(async move { Ok(self.records.compare_and_set(&self.nodes, &name, expected_version, value).await?.0) })
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockName>> {
        Step::new(async move { self.records.list(&self.nodes, &prefix).await })
    }
}
