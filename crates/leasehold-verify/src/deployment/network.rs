//! The network between workers and servers: a proxy before each server, and its faults.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leasehold_testbed::{Proxy, VirtualLinks};
use tokio::task::JoinHandle;

use super::{ActiveFault, RunError, format};
use crate::history::FaultKind;
use crate::rng::Rng;

/// One proxy per server.
pub(super) struct Network {
    proxies: Arc<Vec<Proxy>>,
    /// The workers' wires to the proxies, one each, if the workers have their own network.
    links: Option<VirtualLinks>,
    /// Proxies before the servers that redirect clients: they replace addresses with our proxies'.
    /// No fault hits them.
    discovery_proxies: Vec<Proxy>,
    /// Whether the servers vote, so that some of them can be unreachable.
    has_quorum: bool,
    /// Whether all of them may be unreachable nevertheless.
    can_cut_all: bool,
    ttl: Duration,
    /// How long clients wait for a response.
    response_timeout: Duration,
    active_faults: BTreeMap<FaultKind, NetworkFault>,
}

/// An active fault; dropping it ends it.
struct NetworkFault {
    hit: Vec<usize>,
    /// Whether connections are cut at its end.
    cuts_at_end: bool,
    _task: Option<RepeatingTask>,
}

/// A task that repeats an action until it is dropped.
pub(super) struct RepeatingTask(JoinHandle<()>);

impl RepeatingTask {
    pub(super) fn new(task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(task))
    }

    /// Stops the task, and waits until it has ended.
    pub(super) async fn stop(mut self) {
        self.0.abort();
        // The task was cancelled, as intended.
        let _ = (&mut self.0).await;
    }
}

impl Drop for RepeatingTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Network {
    /// Puts a proxy before each of these servers; at the far end of a wire, if the workers have
    /// their own network.
    pub(super) async fn start(
        servers: &[SocketAddr],
        scheme: &str,
        ttl: Duration,
        isolates_workers: bool,
    ) -> Result<Self, RunError> {
        // Root in a container may lack the privilege: then the proxies cause partitions, and the
        // fault's description states it.
        let wires = if isolates_workers { VirtualLinks::create(servers.len()).ok() } else { None };
        let mut proxies = Vec::new();
        for (number, server) in servers.iter().enumerate() {
            proxies.push(match wires.as_ref().and_then(|wires| wires.host_address(number)) {
                Some(end) => Proxy::start_on(end, *server).await?,
                None => Proxy::start(*server).await?,
            });
        }
        Ok(Self {
            proxies: Arc::new(proxies),
            links: wires,
            discovery_proxies: Vec::new(),
            can_cut_all: scheme == "zookeeper",
            has_quorum: matches!(scheme, "redlock" | "zookeeper") && servers.len() > 2,
            ttl,
            response_timeout: response_timeout(scheme, ttl),
            active_faults: BTreeMap::new(),
        })
    }

    /// Puts proxies before the servers that inform clients where `servers` are, so that clients
    /// connect to our proxies.
    pub(super) async fn add_discovery_proxies(
        &mut self,
        discovery_servers: &[SocketAddr],
        servers: &[SocketAddr],
    ) -> Result<(), RunError> {
        for guide in discovery_servers {
            let before = Proxy::start(*guide).await?;
            for (server, proxy) in servers.iter().zip(self.proxies.iter()) {
                before.replace_in_replies(&server.port().to_string(), &proxy.addr().port().to_string())?;
            }
            self.discovery_proxies.push(before);
        }
        Ok(())
    }

    /// Makes all of these servers, which redirect clients to each other, name our proxies instead.
    /// Only whole addresses are replaced, as `MOVED`, `ASK` and `CLUSTER SLOTS` write them: a
    /// number of five digits may also be part of a token.
    pub(super) fn translate_redirects(&self, servers: &[SocketAddr]) -> Result<(), RunError> {
        for before in self.proxies.iter() {
            for (server, proxy) in servers.iter().zip(self.proxies.iter()) {
                let (ip, from, to) = (server.ip(), server.port(), proxy.addr().port());
                before.replace_in_replies(&format!("{ip}:{from}"), &format!("{ip}:{to}"))?;
                before.replace_in_replies(&format!("{ip}\r\n:{from}\r\n"), &format!("{ip}\r\n:{to}\r\n"))?;
            }
        }
        Ok(())
    }

    /// How many connections were accepted so far.
    pub(super) fn accepted_connections(&self) -> u64 {
        self.proxies.iter().map(|line| line.counts().accepted).sum()
    }

    /// The prefix of a worker's command.
    pub(super) fn worker_command_prefix(&self) -> Vec<String> {
        self.links.as_ref().map(VirtualLinks::command_prefix).unwrap_or_default()
    }

    /// The addresses that workers connect to first.
    pub(super) fn entry_addrs(&self) -> Vec<SocketAddr> {
        let first = if self.discovery_proxies.is_empty() { &*self.proxies } else { &self.discovery_proxies };
        first.iter().map(Proxy::addr).collect()
    }

    /// Silences half of the connections, as a power failure does: their clients do not notice the
    /// fault.
    pub(super) fn silence_half_of_connections(&self, rng: &mut Rng) {
        // A client connects to several servers at about the same time: the same half everywhere
        // means the same clients.
        let older = rng.one_in(2);
        self.proxies.iter().chain(&self.discovery_proxies).for_each(|line| line.silence_half(older));
    }

    /// The same for the connections to one server only.
    pub(super) fn silence_half_of_server(&self, server: usize, rng: &mut Rng) {
        if let Some(line) = self.proxies.get(server) {
            line.silence_half(rng.one_in(2));
        }
    }

    /// Begins a fault of the network; `minority` are the servers that may be unreachable where
    /// servers vote.
    pub(super) fn begin_fault(
        &mut self,
        fault: FaultKind,
        minority: &[usize],
        rng: &mut Rng,
    ) -> Result<ActiveFault, RunError> {
        let hit = self.choose_proxies(fault, minority, rng);
        let duration = match fault {
            // A holder must lose its lock.
            FaultKind::Partition => rng.duration_in(self.ttl * 6 / 5, self.ttl * 5 / 2),
            _ => rng.duration_in(self.ttl / 2, self.ttl * 2),
        };
        let (what, disturbance) = self.start_fault(fault, hit, rng)?;
        let connections = format::server_list(
            "the connections to the server",
            "the connections to",
            &disturbance.hit,
            self.proxies.len(),
        );
        let served = fault == FaultKind::Partition && disturbance.hit.len() < self.proxies.len().div_ceil(2);
        self.active_faults.insert(fault, disturbance);
        let active_fault = ActiveFault::new(format!("{connections}: {what}"), duration);
        Ok(if served { active_fault.with_others_serving() } else { active_fault })
    }

    /// The connections that the fault hits.
    fn choose_proxies(&self, fault: FaultKind, minority: &[usize], rng: &mut Rng) -> Vec<usize> {
        let count = self.proxies.len();
        if fault == FaultKind::Partition && self.has_quorum && !(self.can_cut_all && rng.one_in(3)) {
            let some = rng.in_range(1, minority.len() as u64) as usize;
            return select_members(&rng.choose_indices(some, minority.len()), minority);
        }
        let some =
            if fault == FaultKind::Partition || rng.one_in(2) { count } else { rng.in_range(1, count as u64) as usize };
        rng.choose_indices(some, count)
    }

    fn start_fault(
        &self,
        fault: FaultKind,
        hit: Vec<usize>,
        rng: &mut Rng,
    ) -> Result<(String, NetworkFault), RunError> {
        let at = |line: &usize| &self.proxies[*line];
        let mut cut = false;
        let mut repeating_task = None;
        let what = match fault {
            FaultKind::Cut => {
                hit.iter().map(at).for_each(Proxy::cut);
                repeating_task = Some(self.repeat_on_random_proxy(&hit, rng, self.ttl / 2, Proxy::cut));
                "cut repeatedly".to_owned()
            }
            FaultKind::LostReply if rng.one_in(3) => {
                // Connections that lost a reply stay silent: they must close with the fault.
                cut = true;
                hit.iter().map(at).for_each(|line| line.drop_replies(true));
                "no reply arrives".to_owned()
            }
            FaultKind::LostReply => {
                repeating_task = Some(self.repeat_on_random_proxy(&hit, rng, self.ttl / 5, Proxy::cut_after_request));
                "cut after a request, before its reply".to_owned()
            }
            FaultKind::Duplicate => {
                repeating_task = Some(self.repeat_on_random_proxy(&hit, rng, self.ttl / 5, Proxy::duplicate_and_cut));
                "a request arrives twice, and is cut before its reply".to_owned()
            }
            FaultKind::Delay => {
                let delay = random_delay(self.response_timeout, rng);
                hit.iter().map(at).for_each(|line| line.delay(delay));
                format!("{} ms more each way", delay.as_millis())
            }
            FaultKind::Partition => {
                cut = rng.one_in(2);
                match &self.links {
                    Some(wires) => hit.iter().try_for_each(|line| wires.disconnect(*line))?,
                    None => hit.iter().map(at).for_each(|line| line.freeze(true)),
                }
                let how = if self.links.is_some() { "the wire is disconnected" } else { "silent" };
                how.to_owned()
            }
            other => return Err(RunError::new(format!("{other} is not a network fault"))),
        };
        Ok((what, NetworkFault { hit, cuts_at_end: cut, _task: repeating_task }))
    }

    /// Repeats an action on one of these connections, with pauses of at most `max_pause`.
    fn repeat_on_random_proxy(
        &self,
        hit: &[usize],
        rng: &mut Rng,
        max_pause: Duration,
        action: fn(&Proxy),
    ) -> RepeatingTask {
        let (proxies, hit) = (Arc::clone(&self.proxies), hit.to_vec());
        let mut rng = Rng::new(rng.next_u64());
        RepeatingTask::new(async move {
            loop {
                tokio::time::sleep(rng.duration_in(max_pause / 10, max_pause)).await;
                if let Some(line) = rng.choose(&hit).and_then(|line| proxies.get(*line)) {
                    action(line);
                }
            }
        })
    }

    /// Ends a fault.
    pub(super) fn end_fault(&mut self, fault: FaultKind) -> Result<String, RunError> {
        let Some(disturbance) = self.active_faults.remove(&fault) else { return Ok(String::new()) };
        if let Some(wires) = self.links.as_ref().filter(|_| fault == FaultKind::Partition) {
            disturbance.hit.iter().try_for_each(|line| wires.reconnect(*line))?;
        }
        for line in disturbance.hit.iter().filter_map(|line| self.proxies.get(*line)) {
            match fault {
                FaultKind::LostReply | FaultKind::Duplicate => {
                    line.cancel_pending_cuts();
                    line.drop_replies(false);
                }
                FaultKind::Delay => line.delay(Duration::ZERO),
                // Delayed messages do not arrive if their connections close first.
                FaultKind::Partition if disturbance.cuts_at_end => {
                    line.cut();
                    line.freeze(false);
                }
                FaultKind::Partition => line.freeze(false),
                _ => {}
            }
            if disturbance.cuts_at_end {
                line.cut();
            }
        }
        let note = match (fault, disturbance.cuts_at_end) {
            (FaultKind::Partition, false) => "delayed messages arrive late",
            (FaultKind::Partition, true) => "delayed messages are lost",
            _ => "",
        };
        Ok(note.to_owned())
    }
}

/// These members of the minority.
fn select_members(indices: &[usize], minority: &[usize]) -> Vec<usize> {
    indices.iter().filter_map(|at| minority.get(*at).copied()).collect()
}

/// How long clients wait for a response: a third of the TTL, between 50 ms and 5 s; for a node of
/// Redlock a tenth, at most 250 ms.
fn response_timeout(scheme: &str, ttl: Duration) -> Duration {
    match scheme {
        "redlock" => (ttl / 10).min(Duration::from_millis(250)),
        _ => (ttl / 3).clamp(Duration::from_millis(50), Duration::from_secs(5)),
    }
}

/// The delay of each chunk: a response mostly arrives in time, and sometimes does not.
fn random_delay(response_timeout: Duration, rng: &mut Rng) -> Duration {
    let percent = if rng.one_in(5) { rng.in_range(60, 100) } else { rng.in_range(5, 40) };
    response_timeout * percent as u32 / 100
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_delays_are_within_the_response_timeout_and_some_are_not() {
        let mut rng = Rng::new(1);
        let timeout = response_timeout("redis", Duration::from_millis(600));
        assert_eq!(timeout, Duration::from_millis(200));
        let late = (0..1000).filter(|_| random_delay(timeout, &mut rng) * 2 > timeout).count();
        assert!((100..350).contains(&late), "{late}");
    }

    #[test]
    fn selected_members_belong_to_the_minority() {
        assert_eq!(select_members(&[1], &[2, 4]), [4]);
        assert_eq!(select_members(&[0, 1], &[2, 4]), [2, 4]);
    }
}
