//! The network between workers and servers: a proxy before each server, and its faults.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leasehold_testbed::{Proxy, Wires};
use tokio::task::JoinHandle;

use super::{Strike, Trouble, words};
use crate::dice::Dice;
use crate::history::FaultKind;

/// One proxy per server.
pub(super) struct Lines {
    proxies: Arc<Vec<Proxy>>,
    /// The workers' wires to the proxies, one each, if the workers have their own network.
    wires: Option<Wires>,
    /// Proxies before the servers that redirect clients: they replace addresses with our proxies'.
    /// No fault hits them.
    guides: Vec<Proxy>,
    /// Whether the servers vote, so that some of them can be unreachable.
    votes: bool,
    /// Whether all of them may be unreachable nevertheless.
    whole: bool,
    ttl: Duration,
    /// How long clients wait for a response.
    patience: Duration,
    going_on: BTreeMap<FaultKind, Disturbance>,
}

/// An active fault; dropping it ends it.
struct Disturbance {
    hit: Vec<usize>,
    /// Whether connections are cut at its end.
    cut: bool,
    _pulse: Option<Pulse>,
}

/// A task that repeats an action until it is dropped.
pub(super) struct Pulse(JoinHandle<()>);

impl Pulse {
    pub(super) fn new(task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(task))
    }

    /// Stops the task; when this returns, it does nothing more.
    pub(super) async fn stop(mut self) {
        self.0.abort();
        // The task was cancelled, as intended.
        let _ = (&mut self.0).await;
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Lines {
    /// Puts a proxy before each of these servers; at the far end of a wire, if the workers have
    /// their own network.
    pub(super) async fn before(
        servers: &[SocketAddr],
        scheme: &str,
        ttl: Duration,
        apart: bool,
    ) -> Result<Self, Trouble> {
        // Root in a container may lack the privilege: then the proxies cause partitions, and the
        // fault's description says so.
        let wires = if apart { Wires::lay(servers.len()).ok() } else { None };
        let mut proxies = Vec::new();
        for (number, server) in servers.iter().enumerate() {
            proxies.push(match wires.as_ref().and_then(|wires| wires.address(number)) {
                Some(end) => Proxy::start_on(end, *server).await?,
                None => Proxy::start(*server).await?,
            });
        }
        Ok(Self {
            proxies: Arc::new(proxies),
            wires,
            guides: Vec::new(),
            whole: scheme == "zookeeper",
            votes: matches!(scheme, "redlock" | "zookeeper") && servers.len() > 2,
            ttl,
            patience: patience(scheme, ttl),
            going_on: BTreeMap::new(),
        })
    }

    /// Puts proxies before the servers that tell clients where `servers` are, so that clients
    /// connect to our proxies.
    pub(super) async fn guided_by(&mut self, guides: &[SocketAddr], servers: &[SocketAddr]) -> Result<(), Trouble> {
        for guide in guides {
            let before = Proxy::start(*guide).await?;
            for (server, proxy) in servers.iter().zip(self.proxies.iter()) {
                before.translate(&server.port().to_string(), &proxy.addr().port().to_string())?;
            }
            self.guides.push(before);
        }
        Ok(())
    }

    /// Makes all of these servers, which redirect clients to each other, name our proxies instead.
    /// Only whole addresses are replaced, as `MOVED`, `ASK` and `CLUSTER SLOTS` write them: a
    /// number of five digits may also be part of a token.
    pub(super) fn named_by_each_other(&self, servers: &[SocketAddr]) -> Result<(), Trouble> {
        for before in self.proxies.iter() {
            for (server, proxy) in servers.iter().zip(self.proxies.iter()) {
                let (ip, from, to) = (server.ip(), server.port(), proxy.addr().port());
                before.translate(&format!("{ip}:{from}"), &format!("{ip}:{to}"))?;
                before.translate(&format!("{ip}\r\n:{from}\r\n"), &format!("{ip}\r\n:{to}\r\n"))?;
            }
        }
        Ok(())
    }

    /// How many connections were accepted so far.
    pub(super) fn connections(&self) -> u64 {
        self.proxies.iter().map(|line| line.counts().accepted).sum()
    }

    /// The prefix of a worker's command.
    pub(super) fn enter(&self) -> Vec<String> {
        self.wires.as_ref().map(Wires::enter).unwrap_or_default()
    }

    /// The addresses that workers connect to first.
    pub(super) fn addrs(&self) -> Vec<SocketAddr> {
        let first = if self.guides.is_empty() { &*self.proxies } else { &self.guides };
        first.iter().map(Proxy::addr).collect()
    }

    /// Silences half of the connections, so that their clients do not notice what happens to the
    /// servers, as in a power failure.
    pub(super) fn silence_half(&self, dice: &mut Dice) {
        // A client connects to several servers at about the same time: the same half everywhere
        // means the same clients.
        let older = dice.one_in(2);
        self.proxies.iter().chain(&self.guides).for_each(|line| line.silence_half(older));
    }

    /// The same for the connections to one server only.
    pub(super) fn silence_half_of(&self, server: usize, dice: &mut Dice) {
        if let Some(line) = self.proxies.get(server) {
            line.silence_half(dice.one_in(2));
        }
    }

    /// Begins a fault of the network; `minority` are the servers that may be unreachable where
    /// servers vote.
    pub(super) fn begin(&mut self, fault: FaultKind, minority: &[usize], dice: &mut Dice) -> Result<Strike, Trouble> {
        let hit = self.choose(fault, minority, dice);
        let lasts = match fault {
            // A holder must lose its lock.
            FaultKind::Partition => dice.time(self.ttl * 6 / 5, self.ttl * 5 / 2),
            _ => dice.time(self.ttl / 2, self.ttl * 2),
        };
        let (what, disturbance) = self.disturb(fault, hit, dice)?;
        let lines = words::servers("the line to the server", "the lines to", &disturbance.hit, self.proxies.len());
        let served = fault == FaultKind::Partition && disturbance.hit.len() < self.proxies.len().div_ceil(2);
        self.going_on.insert(fault, disturbance);
        let strike = Strike::new(format!("{lines}: {what}"), lasts);
        Ok(if served { strike.served() } else { strike })
    }

    /// The connections that the fault hits.
    fn choose(&self, fault: FaultKind, minority: &[usize], dice: &mut Dice) -> Vec<usize> {
        let count = self.proxies.len();
        if fault == FaultKind::Partition && self.votes && !(self.whole && dice.one_in(3)) {
            let some = dice.between(1, minority.len() as u64) as usize;
            return named(&dice.some(some, minority.len()), minority);
        }
        let some = if fault == FaultKind::Partition || dice.one_in(2) {
            count
        } else {
            dice.between(1, count as u64) as usize
        };
        dice.some(some, count)
    }

    fn disturb(&self, fault: FaultKind, hit: Vec<usize>, dice: &mut Dice) -> Result<(String, Disturbance), Trouble> {
        let at = |line: &usize| &self.proxies[*line];
        let mut cut = false;
        let mut pulse = None;
        let what = match fault {
            FaultKind::Cut => {
                hit.iter().map(at).for_each(Proxy::cut);
                pulse = Some(self.pulse(&hit, dice, self.ttl / 2, Proxy::cut));
                "cut again and again".to_owned()
            }
            FaultKind::LostReply if dice.one_in(3) => {
                // Connections that lost a reply stay silent: they must close with the fault.
                cut = true;
                hit.iter().map(at).for_each(|line| line.drop_replies(true));
                "no reply arrives".to_owned()
            }
            FaultKind::LostReply => {
                pulse = Some(self.pulse(&hit, dice, self.ttl / 5, Proxy::cut_after_request));
                "cut after a request, before its reply".to_owned()
            }
            FaultKind::Duplicate => {
                pulse = Some(self.pulse(&hit, dice, self.ttl / 5, Proxy::double_and_cut));
                "a request arrives twice, and is cut before its reply".to_owned()
            }
            FaultKind::Delay => {
                let delay = delay(self.patience, dice);
                hit.iter().map(at).for_each(|line| line.delay(delay));
                format!("{} ms more each way", delay.as_millis())
            }
            FaultKind::Partition => {
                cut = dice.one_in(2);
                match &self.wires {
                    Some(wires) => hit.iter().try_for_each(|line| wires.pull(*line))?,
                    None => hit.iter().map(at).for_each(|line| line.freeze(true)),
                }
                let how = if self.wires.is_some() { "the wire is pulled" } else { "silent" };
                how.to_owned()
            }
            other => return Err(Trouble::new(format!("{other} is no fault of the network"))),
        };
        Ok((what, Disturbance { hit, cut, _pulse: pulse }))
    }

    /// Repeats an action on one of these connections, with pauses of at most `longest`.
    fn pulse(&self, hit: &[usize], dice: &mut Dice, longest: Duration, act: fn(&Proxy)) -> Pulse {
        let (proxies, hit) = (Arc::clone(&self.proxies), hit.to_vec());
        let mut dice = Dice::new(dice.roll());
        Pulse::new(async move {
            loop {
                tokio::time::sleep(dice.time(longest / 10, longest)).await;
                if let Some(line) = dice.pick(&hit).and_then(|line| proxies.get(*line)) {
                    act(line);
                }
            }
        })
    }

    /// Ends a fault.
    pub(super) fn end(&mut self, fault: FaultKind) -> Result<String, Trouble> {
        let Some(disturbance) = self.going_on.remove(&fault) else { return Ok(String::new()) };
        if let Some(wires) = self.wires.as_ref().filter(|_| fault == FaultKind::Partition) {
            disturbance.hit.iter().try_for_each(|line| wires.plug(*line))?;
        }
        for line in disturbance.hit.iter().filter_map(|line| self.proxies.get(*line)) {
            match fault {
                FaultKind::LostReply | FaultKind::Duplicate => {
                    line.disarm();
                    line.drop_replies(false);
                }
                FaultKind::Delay => line.delay(Duration::ZERO),
                // Held-back messages do not arrive if their connections are closed first.
                FaultKind::Partition if disturbance.cut => {
                    line.cut();
                    line.freeze(false);
                }
                FaultKind::Partition => line.freeze(false),
                _ => {}
            }
            if disturbance.cut {
                line.cut();
            }
        }
        let note = match (fault, disturbance.cut) {
            (FaultKind::Partition, false) => "what was held back arrives late",
            (FaultKind::Partition, true) => "what was held back is lost",
            _ => "",
        };
        Ok(note.to_owned())
    }
}

/// These members of the minority.
fn named(some: &[usize], minority: &[usize]) -> Vec<usize> {
    some.iter().filter_map(|at| minority.get(*at).copied()).collect()
}

/// How long clients wait for a response: a third of the TTL, between 50 ms and 5 s; for a node of
/// Redlock a tenth, at most 250 ms.
fn patience(scheme: &str, ttl: Duration) -> Duration {
    match scheme {
        "redlock" => (ttl / 10).min(Duration::from_millis(250)),
        _ => (ttl / 3).clamp(Duration::from_millis(50), Duration::from_secs(5)),
    }
}

/// How long each chunk is held back: a response mostly arrives in time, and sometimes does not.
fn delay(patience: Duration, dice: &mut Dice) -> Duration {
    let percent = if dice.one_in(5) { dice.between(60, 100) } else { dice.between(5, 40) };
    patience * percent as u32 / 100
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_delays_are_within_the_patience_and_some_are_not() {
        let mut dice = Dice::new(1);
        let patience = patience("redis", Duration::from_millis(600));
        assert_eq!(patience, Duration::from_millis(200));
        let late = (0..1000).filter(|_| delay(patience, &mut dice) * 2 > patience).count();
        assert!((100..350).contains(&late), "{late}");
    }

    #[test]
    fn a_part_of_a_minority_is_of_that_minority() {
        assert_eq!(named(&[1], &[2, 4]), [4]);
        assert_eq!(named(&[0, 1], &[2, 4]), [2, 4]);
    }
}
