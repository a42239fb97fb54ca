//! Locks as programs implement them without leasehold, for the controls: the checker must detect
//! their mistakes.
//!
//! `SET key value NX PX ttl`, a token from `INCR`, and a delete of one's own value only. Plain
//! commands on one Redis cannot do better; a fail-over loses both the key and the counter.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{Clock, Moment};
use leasehold_testbed::redis::{Reply, Resp};
use tokio::sync::Mutex;

use super::Assignment;
use super::record::Recorder;
use crate::history::{Nanos, Outcome};

const DELETE_OWN: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";
const POLL: Duration = Duration::from_millis(5);
const BOUND: Duration = Duration::from_millis(500);

/// How to find the master.
#[derive(Debug)]
enum Way {
    Direct(SocketAddr),
    Sentinels(Vec<SocketAddr>, String),
}

/// A Redis to lock on.
#[derive(Debug)]
pub(super) struct Plain {
    way: Way,
    ttl: Duration,
    wall: bool,
    clock: Clock,
    link: Mutex<Option<Resp>>,
}

/// A lock that its holder believes to hold.
#[derive(Debug)]
pub(super) struct Hold {
    plain: Arc<Plain>,
    key: String,
    value: String,
    pub(super) token: u64,
    until: Moment,
    wall_until: Duration,
}

impl Plain {
    /// Parses the servers in the URL. With `wall`, holders use the wall clock.
    pub(super) fn new(assignment: &Assignment, wall: bool) -> Result<Self, String> {
        let url = assignment.url.split('?').next().unwrap_or_default();
        let unknown = || "the plain lock needs redis://address:port or redis+sentinel://addresses/name".to_owned();
        let (scheme, rest) = url.split_once("://").ok_or_else(unknown)?;
        let (hosts, name) = rest.split_once('/').unwrap_or((rest, ""));
        let addrs: Result<Vec<SocketAddr>, _> = hosts.split(',').map(str::parse).collect();
        let addrs = addrs.map_err(|_| unknown())?;
        let way = match (scheme, addrs.as_slice()) {
            ("redis", [addr]) => Way::Direct(*addr),
            ("redis+sentinel", _) => Way::Sentinels(addrs, name.to_owned()),
            _ => return Err(unknown()),
        };
        Ok(Self { way, ttl: assignment.ttl, wall, clock: Clock::system(), link: Mutex::new(None) })
    }

    async fn connect(&self) -> Result<Resp, String> {
        let addr = match &self.way {
            Way::Direct(addr) => *addr,
            Way::Sentinels(sentinels, name) => master(sentinels, name).await.ok_or("no Sentinel knows a master")?,
        };
        Resp::connect(addr).await.map(|resp| resp.bound(BOUND)).map_err(|error| error.to_string())
    }

    /// Sends a command; after an error the next call reconnects.
    async fn ask(&self, words: &[&str]) -> Result<Reply, String> {
        let mut link = self.link.lock().await;
        let mut resp = match link.take() {
            Some(resp) => resp,
            None => self.connect().await?,
        };
        let reply = resp.command(words).await.map_err(|error| error.to_string())?;
        match reply {
            Reply::Error(error) => Err(error),
            reply => {
                *link = Some(resp);
                Ok(reply)
            }
        }
    }

    /// Acquires the lock, and retries until the timeout.
    pub(super) async fn take(self: &Arc<Self>, lock: &str, wait: Option<Duration>) -> Result<Hold, Outcome> {
        let give_up = wait.map(|wait| self.clock.now().after(wait));
        let key = format!("plain:{lock}");
        let value = format!("{:?}", leasehold::ClaimId::random());
        let ttl = self.ttl.as_millis().to_string();
        loop {
            let sent = self.clock.now();
            let wall = wall_clock();
            match self.ask(&["SET", &key, &value, "NX", "PX", &ttl]).await {
                Ok(Reply::Simple(_)) => {
                    let token = match self.ask(&["INCR", &format!("{key}:token")]).await {
                        Ok(Reply::Integer(token)) => u64::try_from(token).unwrap_or_default(),
                        other => return Err(Outcome::Unknown { error: format!("{other:?}") }),
                    };
                    let plain = Arc::clone(self);
                    return Ok(Hold {
                        plain,
                        key,
                        value,
                        token,
                        until: sent.after(self.ttl),
                        wall_until: wall + self.ttl,
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
                Some(_) => tokio::time::sleep(POLL).await,
            }
        }
    }
}

async fn master(sentinels: &[SocketAddr], name: &str) -> Option<SocketAddr> {
    for sentinel in sentinels {
        let Ok(resp) = Resp::connect(*sentinel).await else { continue };
        let asked = resp.bound(BOUND).command(&["SENTINEL", "get-master-addr-by-name", name]).await;
        if let Ok(Reply::Array(parts)) = asked
            && let [Reply::Bulk(host), Reply::Bulk(port)] = parts.as_slice()
        {
            return format!("{host}:{port}").parse().ok();
        }
    }
    None
}

/// The mistake itself: a clock that can be set.
#[allow(clippy::disallowed_methods, reason = "the control shows what comes of it")]
fn wall_clock() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

impl Hold {
    pub(super) fn is_held(&self) -> bool {
        if self.plain.wall { wall_clock() < self.wall_until } else { self.plain.clock.now() < self.until }
    }

    /// The deadline, by the clock that the holder uses.
    pub(super) fn deadline(&self, recorder: &Recorder) -> Nanos {
        if self.plain.wall {
            recorder.now() + self.wall_until.saturating_sub(wall_clock()).as_nanos() as u64
        } else {
            recorder.at(self.until)
        }
    }

    pub(super) async fn lost(&self) -> String {
        while self.is_held() {
            tokio::time::sleep(POLL).await;
        }
        "its time is over".to_owned()
    }

    pub(super) async fn release(self) -> Outcome {
        match self.plain.ask(&["EVAL", DELETE_OWN, "1", &self.key, &self.value]).await {
            Ok(Reply::Integer(1)) => Outcome::Released,
            Ok(_) => Outcome::WasLost { reason: "it was somebody else's".to_owned() },
            Err(error) => Outcome::Unknown { error },
        }
    }
}
