//! Locks as programs implement them with plain Redis commands, for negative controls: the checker
//! must find the violations that they cause.
//!
//! A lock is `SET key value NX PX ttl`, its token comes from `INCR`, and a release deletes the key
//! only if it has the holder's value. A fail-over loses both the key and the counter.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{Clock, Instant};
use leasehold_testbed::redis::{Reply, RespClient};
use tokio::sync::Mutex;

use super::Assignment;
use super::recorder::Recorder;
use crate::history::{Outcome, RunNanos};

/// A Lua script that deletes the lock's key if it has the holder's value; returns 1 if it did, else
/// 0.
const DELETE_OWN: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";
/// The pause between two attempts to acquire a lock, or two checks of a held one.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How long a Redis command may take.
const COMMAND_TIMEOUT: Duration = Duration::from_millis(500);

/// How to find the Redis master.
#[derive(Debug)]
enum MasterAddress {
    /// A single server at this address.
    Direct(SocketAddr),
    /// The Sentinels to ask, and the name of the master.
    Sentinels(Vec<SocketAddr>, String),
}

/// Plain locks on one Redis master.
#[derive(Debug)]
pub(super) struct PlainLocks {
    master_address: MasterAddress,
    ttl: Duration,
    /// Whether holders decide by the wall clock, which can be set, whether they hold the lock.
    uses_wall_clock: bool,
    clock: Clock,
    /// The open connection to the master; `None`: the next command connects.
    connection: Mutex<Option<RespClient>>,
}

/// A lock that its holder believes it holds.
#[derive(Debug)]
pub(super) struct PlainHold {
    locks: Arc<PlainLocks>,
    key: String,
    value: String,
    pub(super) token: u64,
    /// When the key expires, by the monotonic clock.
    deadline: Instant,
    /// When the key expires, by the wall clock: the time since 1970.
    wall_deadline: Duration,
}

impl PlainLocks {
    /// Reads the servers' addresses from the engine's URL. Fails with a message if it is not a
    /// Redis URL with IP addresses.
    pub(super) fn new(assignment: &Assignment, uses_wall_clock: bool) -> Result<Self, String> {
        let url = assignment.url.split('?').next().unwrap_or_default();
        let unknown = || "the plain lock needs redis://address:port or redis+sentinel://addresses/name".to_owned();
        let (scheme, rest) = url.split_once("://").ok_or_else(unknown)?;
        let (hosts, name) = rest.split_once('/').unwrap_or((rest, ""));
        let addrs: Result<Vec<SocketAddr>, _> = hosts.split(',').map(str::parse).collect();
        let addrs = addrs.map_err(|_| unknown())?;
        let master_address = match (scheme, addrs.as_slice()) {
            ("redis", [addr]) => MasterAddress::Direct(*addr),
            ("redis+sentinel", _) => MasterAddress::Sentinels(addrs, name.to_owned()),
            _ => return Err(unknown()),
        };
        Ok(Self {
            master_address,
            ttl: assignment.ttl,
            uses_wall_clock,
            clock: Clock::system(),
            connection: Mutex::new(None),
        })
    }

    /// Connects to the current master.
    async fn connect(&self) -> Result<RespClient, String> {
        let addr = match &self.master_address {
            MasterAddress::Direct(addr) => *addr,
            MasterAddress::Sentinels(sentinels, name) => {
                query_master(sentinels, name).await.ok_or("no Sentinel reports a master")?
            }
        };
        RespClient::connect(addr).await.map(|resp| resp.timeout(COMMAND_TIMEOUT)).map_err(|error| error.to_string())
    }

    /// Sends a command; after an error the next call reconnects.
    async fn command(&self, arguments: &[&str]) -> Result<Reply, String> {
        let mut connection = self.connection.lock().await;
        let mut resp = match connection.take() {
            Some(resp) => resp,
            None => self.connect().await?,
        };
        let reply = resp.command(arguments).await.map_err(|error| error.to_string())?;
        match reply {
            Reply::Error(error) => Err(error),
            reply => {
                *connection = Some(resp);
                Ok(reply)
            }
        }
    }

    /// Acquires the lock, and retries until the timeout; `None`: one attempt. `Err` is the outcome
    /// to record if the lock is not acquired.
    pub(super) async fn acquire(self: &Arc<Self>, lock: &str, timeout: Option<Duration>) -> Result<PlainHold, Outcome> {
        let give_up = timeout.map(|wait| self.clock.now().saturating_add(wait));
        let key = format!("plain:{lock}");
        let value = format!("{:?}", leasehold::ClaimId::random());
        let ttl = self.ttl.as_millis().to_string();
        loop {
            let sent = self.clock.now();
            let wall = wall_clock();
            match self.command(&["SET", &key, &value, "NX", "PX", &ttl]).await {
                Ok(Reply::Simple(_)) => {
                    let token = match self.command(&["INCR", &format!("{key}:token")]).await {
                        Ok(Reply::Integer(token)) => u64::try_from(token).unwrap_or_default(),
                        other => return Err(Outcome::Unknown { error: format!("{other:?}") }),
                    };
                    let plain = Arc::clone(self);
                    return Ok(PlainHold {
                        locks: plain,
                        key,
                        value,
                        token,
                        deadline: sent.saturating_add(self.ttl),
                        wall_deadline: wall + self.ttl,
                    });
                }
                Ok(_) => {}
                Err(error) if give_up.is_none_or(|give_up| self.clock.now() >= give_up) => {
                    return Err(Outcome::Unknown { error });
                }
                Err(_) => {}
            }
            match give_up {
                None => return Err(Outcome::Busy),
                Some(give_up) if self.clock.now() >= give_up => return Err(Outcome::TimedOut),
                Some(_) => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    }
}

/// Asks the Sentinels, one after the other, for the address of the master; `None`: none answers.
async fn query_master(sentinels: &[SocketAddr], name: &str) -> Option<SocketAddr> {
    for sentinel in sentinels {
        let Ok(resp) = RespClient::connect(*sentinel).await else { continue };
        let reply = resp.timeout(COMMAND_TIMEOUT).command(&["SENTINEL", "get-master-addr-by-name", name]).await;
        if let Ok(Reply::Array(parts)) = reply
            && let [Reply::Bulk(host), Reply::Bulk(port)] = parts.as_slice()
        {
            return format!("{host}:{port}").parse().ok();
        }
    }
    None
}

/// The time since 1970 by the wall clock, which can be set: to rely on it is the mistake that the
/// control shows.
#[allow(clippy::disallowed_methods, reason = "the negative control shows what this clock causes")]
fn wall_clock() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

impl PlainHold {
    /// Whether the holder believes that it holds the lock.
    pub(super) fn is_held(&self) -> bool {
        if self.locks.uses_wall_clock {
            wall_clock() < self.wall_deadline
        } else {
            self.locks.clock.now() < self.deadline
        }
    }

    /// When the key expires by the clock that the holder uses, as a time since the start of the
    /// run.
    pub(super) fn deadline(&self, recorder: &Recorder) -> RunNanos {
        if self.locks.uses_wall_clock {
            recorder.now() + self.wall_deadline.saturating_sub(wall_clock()).as_nanos() as u64
        } else {
            recorder.to_run_time(self.deadline)
        }
    }

    /// Waits until the TTL is over; returns the reason for the loss.
    pub(super) async fn lost(&self) -> String {
        while self.is_held() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        "its TTL is over".to_owned()
    }

    /// Deletes the lock's key if it is the holder's own; returns the outcome to record.
    pub(super) async fn release(self) -> Outcome {
        match self.locks.command(&["EVAL", DELETE_OWN, "1", &self.key, &self.value]).await {
            Ok(Reply::Integer(1)) => Outcome::Released,
            Ok(_) => Outcome::WasLost { reason: "it belonged to another holder".to_owned() },
            Err(error) => Outcome::Unknown { error },
        }
    }
}
