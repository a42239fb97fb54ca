//! The network between workers and servers: a proxy before each server, and what is done to it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leasehold_testbed::{Proxy, Wires};
use tokio::task::JoinHandle;

use super::{Strike, Trouble, words};
use crate::dice::Dice;
use crate::history::FaultKind;

/// One proxy for each server.
pub(super) struct Lines {
    proxies: Arc<Vec<Proxy>>,
    /// What the workers come by to the proxies, one for each, where they have a network of their own.
    wires: Option<Wires>,
    /// Before those who tell clients where the servers are: they name our proxies instead. They are not disturbed.
    guides: Vec<Proxy>,
    /// Whether the servers vote, so that a part of them can be out of reach.
    votes: bool,
    /// Whether all of them can be out of reach all the same.
    whole: bool,
    ttl: Duration,
    /// How long clients wait for an answer.
    patience: Duration,
    going_on: BTreeMap<FaultKind, Disturbance>,
}

/// What goes on, until it is dropped.
struct Disturbance {
    hit: Vec<usize>,
    /// Whether connections are cut at the end.
    cut: bool,
    _pulse: Option<Pulse>,
}

/// Does something again and again, until it is dropped.
pub(super) struct Pulse(JoinHandle<()>);

impl Pulse {
    pub(super) fn new(task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(task))
    }

    /// Ends it; when this returns, it does nothing any more.
    pub(super) async fn stop(mut self) {
        self.0.abort();
        // It was cancelled, which is what was wanted.
        let _ = (&mut self.0).await;
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Lines {
    /// Puts a proxy before each of these; at the far end of a wire, if the workers are to have a network of their own.
    pub(super) async fn before(
        servers: &[SocketAddr],
        scheme: &str,
        ttl: Duration,
        apart: bool,
    ) -> Result<Self, Trouble> {
        // Root in a container may not be allowed to: then partitions are made by the proxies, and their words say so.
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

    /// Puts proxies before those who tell clients where `servers` are, so that clients come to us.
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

    /// Has all of these servers, which tell clients of each other, name our proxies instead. Only whole addresses are replaced, as `MOVED`, `ASK` and
    /// `CLUSTER SLOTS` write them: a number of five digits may stand in any token.
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

    /// The words before a worker's command.
    pub(super) fn enter(&self) -> Vec<String> {
        self.wires.as_ref().map(Wires::enter).unwrap_or_default()
    }

    /// Where workers connect to first.
    pub(super) fn addrs(&self) -> Vec<SocketAddr> {
        let first = if self.guides.is_empty() { &*self.proxies } else { &self.guides };
        first.iter().map(Proxy::addr).collect()
    }

    /// Has half of the connections go silent, so that those who have them do not hear what becomes of the servers; as it is when a
    /// machine loses its power.
    pub(super) fn silence_half(&self, dice: &mut Dice) {
        // Who connects to several servers does so at about the same time: the same half everywhere is the same clients.
        let older = dice.one_in(2);
        self.proxies.iter().chain(&self.guides).for_each(|line| line.silence_half(older));
    }

    /// The same for the connections to one server alone.
    pub(super) fn silence_half_of(&self, server: usize, dice: &mut Dice) {
        if let Some(line) = self.proxies.get(server) {
            line.silence_half(dice.one_in(2));
        }
    }

    /// Begins a fault of the network; `minority` is what may be out of reach where servers vote.
    pub(super) fn begin(&mut self, fault: FaultKind, minority: &[usize], dice: &mut Dice) -> Result<Strike, Trouble> {
        let hit = self.choose(fault, minority, dice);
        let lasts = match fault {
            // Whoever holds must lose it.
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

    /// Which lines are hit.
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
                // Connections that lost a reply stay mute: they must end with the fault.
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

    /// Has something done to one of these lines now and then, at most `longest` apart.
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
                // What was held back does not arrive if the connections are gone.
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

/// These of the minority.
fn named(some: &[usize], minority: &[usize]) -> Vec<usize> {
    some.iter().filter_map(|at| minority.get(*at).copied()).collect()
}

/// How long clients wait for one answer: a third of the TTL, between 50 ms and 5 s; for one node of Redlock a tenth, at most 250 ms.
fn patience(scheme: &str, ttl: Duration) -> Duration {
    match scheme {
        "redlock" => (ttl / 10).min(Duration::from_millis(250)),
        _ => (ttl / 3).clamp(Duration::from_millis(50), Duration::from_secs(5)),
    }
}

/// How long each chunk is held back: mostly an answer still comes in time, now and then it does not.
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
