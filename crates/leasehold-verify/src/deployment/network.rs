//! The network between workers and servers: a proxy in front of each server, which causes its
//! faults.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leasehold_testbed::{Proxy, VirtualLinks};
use tokio::task::JoinHandle;

use super::{ActiveFault, RunError, format};
use crate::history::FaultKind;
use crate::rng::Rng;

/// The proxies in front of the servers, and the faults that they cause.
pub(super) struct Network {
    /// One per server, in the same order.
    proxies: Arc<Vec<Proxy>>,
    /// The virtual links between the workers' network namespace and the proxies, one each; `None`:
    /// the workers have no namespace of their own.
    links: Option<VirtualLinks>,
    /// Proxies in front of the servers that tell clients the others' addresses, such as Sentinels:
    /// they replace those addresses by the proxies'. No fault hits them.
    discovery_proxies: Vec<Proxy>,
    /// Whether the servers vote, so that the engine works while a minority is unreachable.
    has_quorum: bool,
    /// Whether a partition may hit all of the voting servers nevertheless.
    can_cut_all: bool,
    ttl: Duration,
    /// How long the engine's clients wait for a response.
    response_timeout: Duration,
    active_faults: BTreeMap<FaultKind, NetworkFault>,
}

/// An active network fault. Dropping it stops its task.
struct NetworkFault {
    /// The indices of the proxies that it hits.
    hit: Vec<usize>,
    /// Whether the connections are cut when it ends, so that delayed data is lost.
    cuts_at_end: bool,
    /// The task that repeats an action on the proxies, if the fault needs one.
    _task: Option<RepeatingTask>,
}

/// A task that repeats an action until it is dropped.
pub(super) struct RepeatingTask(JoinHandle<()>);

impl RepeatingTask {
    /// Starts the task.
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
    /// Starts a proxy in front of each of these servers. With `isolates_workers`, each proxy
    /// listens at the end of a virtual link, if such links can be created.
    pub(super) async fn start(
        servers: &[SocketAddr],
        scheme: &str,
        ttl: Duration,
        isolates_workers: bool,
    ) -> Result<Self, RunError> {
        // Without root, or in a container, links may be impossible. Then the proxies cause
        // partitions, which the fault's description states.
        let links = if isolates_workers { VirtualLinks::create(servers.len()).ok() } else { None };
        let mut proxies = Vec::new();
        for (number, server) in servers.iter().enumerate() {
            proxies.push(match links.as_ref().and_then(|links| links.host_address(number)) {
                Some(address) => Proxy::start_on(address, *server).await?,
                None => Proxy::start(*server).await?,
            });
        }
        Ok(Self {
            proxies: Arc::new(proxies),
            links,
            discovery_proxies: Vec::new(),
            can_cut_all: scheme == "zookeeper",
            has_quorum: matches!(scheme, "redlock" | "zookeeper") && servers.len() > 2,
            ttl,
            response_timeout: response_timeout(scheme, ttl),
            active_faults: BTreeMap::new(),
        })
    }

    /// Starts proxies in front of the servers that tell clients the addresses of `servers`. They
    /// replace these addresses, so that clients connect to the proxies.
    pub(super) async fn add_discovery_proxies(
        &mut self,
        discovery_servers: &[SocketAddr],
        servers: &[SocketAddr],
    ) -> Result<(), RunError> {
        for discovery_server in discovery_servers {
            let discovery_proxy = Proxy::start(*discovery_server).await?;
            for (server, proxy) in servers.iter().zip(self.proxies.iter()) {
                let (from, to) = (server.port().to_string(), proxy.addr().port().to_string());
                discovery_proxy.replace_in_replies(&from, &to)?;
            }
            self.discovery_proxies.push(discovery_proxy);
        }
        Ok(())
    }

    /// Replaces, in the replies of these servers, each other's addresses by the proxies', for
    /// servers that redirect clients to each other. Only whole addresses are replaced, as `MOVED`,
    /// `ASK` and `CLUSTER SLOTS` write them, because the digits of a port may also be part of a
    /// token.
    pub(super) fn translate_redirects(&self, servers: &[SocketAddr]) -> Result<(), RunError> {
        for redirecting in self.proxies.iter() {
            for (server, proxy) in servers.iter().zip(self.proxies.iter()) {
                let (ip, from, to) = (server.ip(), server.port(), proxy.addr().port());
                redirecting.replace_in_replies(&format!("{ip}:{from}"), &format!("{ip}:{to}"))?;
                redirecting.replace_in_replies(&format!("{ip}\r\n:{from}\r\n"), &format!("{ip}\r\n:{to}\r\n"))?;
            }
        }
        Ok(())
    }

    /// How many connections the proxies have accepted so far, without those to discovery servers.
    pub(super) fn accepted_connections(&self) -> u64 {
        self.proxies.iter().map(|proxy| proxy.counts().accepted).sum()
    }

    /// What to put before a worker's command, so that it runs in the workers' network namespace;
    /// empty if there is none.
    pub(super) fn worker_command_prefix(&self) -> Vec<String> {
        self.links.as_ref().map(VirtualLinks::command_prefix).unwrap_or_default()
    }

    /// The addresses for the workers' URL: the discovery proxies if there are any, otherwise the
    /// proxies.
    pub(super) fn entry_addrs(&self) -> Vec<SocketAddr> {
        let first = if self.discovery_proxies.is_empty() { &*self.proxies } else { &self.discovery_proxies };
        first.iter().map(Proxy::addr).collect()
    }

    /// Makes half of the connections pass no more data without closing them, as a power failure
    /// does, so that their clients notice it only by timeouts.
    pub(super) fn silence_half_of_connections(&self, rng: &mut Rng) {
        // A client connects to several servers at about the same time: the same half everywhere
        // means the same clients.
        let older = rng.one_in(2);
        self.proxies.iter().chain(&self.discovery_proxies).for_each(|proxy| proxy.silence_half(older));
    }

    /// Makes half of the connections to the server with this index pass no more data without
    /// closing them.
    pub(super) fn silence_half_of_server(&self, server: usize, rng: &mut Rng) {
        if let Some(proxy) = self.proxies.get(server) {
            proxy.silence_half(rng.one_in(2));
        }
    }

    /// Begins a network fault on randomly chosen proxies. `minority` are the indices of the servers
    /// that a partition may hit if the servers vote.
    pub(super) fn begin_fault(
        &mut self,
        fault: FaultKind,
        minority: &[usize],
        rng: &mut Rng,
    ) -> Result<ActiveFault, RunError> {
        let hit = self.choose_proxies(fault, minority, rng);
        let duration = match fault {
            // Longer than the TTL, so that holders lose their locks.
            FaultKind::Partition => rng.duration_in(self.ttl * 6 / 5, self.ttl * 5 / 2),
            _ => rng.duration_in(self.ttl / 2, self.ttl * 2),
        };
        let (description, network_fault) = self.start_fault(fault, hit, rng)?;
        let connections = format::server_list(
            "the connections to the server",
            "the connections to",
            &network_fault.hit,
            self.proxies.len(),
        );
        let others_serve = fault == FaultKind::Partition && network_fault.hit.len() < self.proxies.len().div_ceil(2);
        self.active_faults.insert(fault, network_fault);
        let active_fault = ActiveFault::new(format!("{connections}: {description}"), duration);
        Ok(if others_serve { active_fault.with_others_serving() } else { active_fault })
    }

    /// Chooses at random the indices of the proxies that the fault hits.
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

    /// Starts the fault on these proxies; returns what it does, in words, and its state.
    fn start_fault(
        &self,
        fault: FaultKind,
        hit: Vec<usize>,
        rng: &mut Rng,
    ) -> Result<(String, NetworkFault), RunError> {
        let proxy_at = |index: &usize| &self.proxies[*index];
        let mut cuts_at_end = false;
        let mut repeating_task = None;
        let description = match fault {
            FaultKind::Cut => {
                hit.iter().map(proxy_at).for_each(Proxy::cut);
                repeating_task = Some(self.repeat_on_random_proxy(&hit, rng, self.ttl / 2, Proxy::cut));
                "cut repeatedly".to_owned()
            }
            FaultKind::LostReply if rng.one_in(3) => {
                // The lost replies never arrive, so these connections must close when the fault
                // ends.
                cuts_at_end = true;
                hit.iter().map(proxy_at).for_each(|proxy| proxy.drop_replies(true));
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
                hit.iter().map(proxy_at).for_each(|proxy| proxy.delay(delay));
                format!("{} ms more each way", delay.as_millis())
            }
            FaultKind::Partition => {
                cuts_at_end = rng.one_in(2);
                match &self.links {
                    Some(links) => hit.iter().try_for_each(|index| links.disconnect(*index))?,
                    None => hit.iter().map(proxy_at).for_each(|proxy| proxy.freeze(true)),
                }
                let how = if self.links.is_some() { "the virtual link is disconnected" } else { "no traffic" };
                how.to_owned()
            }
            other => return Err(RunError::new(format!("{other} is not a network fault"))),
        };
        Ok((description, NetworkFault { hit, cuts_at_end, _task: repeating_task }))
    }

    /// Starts a task that repeats an action, each time on a random one of these proxies, with
    /// pauses of at most `max_pause`.
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
                if let Some(proxy) = rng.choose(&hit).and_then(|index| proxies.get(*index)) {
                    action(proxy);
                }
            }
        })
    }

    /// Ends a network fault; returns a note on what became of delayed messages, which may be empty.
    pub(super) fn end_fault(&mut self, fault: FaultKind) -> Result<String, RunError> {
        let Some(network_fault) = self.active_faults.remove(&fault) else { return Ok(String::new()) };
        if let Some(links) = self.links.as_ref().filter(|_| fault == FaultKind::Partition) {
            network_fault.hit.iter().try_for_each(|index| links.reconnect(*index))?;
        }
        for proxy in network_fault.hit.iter().filter_map(|index| self.proxies.get(*index)) {
            match fault {
                FaultKind::LostReply | FaultKind::Duplicate => {
                    proxy.cancel_pending_cuts();
                    proxy.drop_replies(false);
                }
                FaultKind::Delay => proxy.delay(Duration::ZERO),
                // The connections close before traffic resumes, so that delayed messages are lost.
                FaultKind::Partition if network_fault.cuts_at_end => {
                    proxy.cut();
                    proxy.freeze(false);
                }
                FaultKind::Partition => proxy.freeze(false),
                _ => {}
            }
            if network_fault.cuts_at_end {
                proxy.cut();
            }
        }
        let note = match (fault, network_fault.cuts_at_end) {
            (FaultKind::Partition, false) => "delayed messages arrive late",
            (FaultKind::Partition, true) => "delayed messages are lost",
            _ => "",
        };
        Ok(note.to_owned())
    }
}

/// The items of `minority` at these indices.
fn select_members(indices: &[usize], minority: &[usize]) -> Vec<usize> {
    indices.iter().filter_map(|at| minority.get(*at).copied()).collect()
}

/// How long the engine's clients wait for a response: a third of the TTL, between 50 ms and 5 s;
/// for a node of Redlock a tenth of the TTL, at most 250 ms.
fn response_timeout(scheme: &str, ttl: Duration) -> Duration {
    match scheme {
        "redlock" => (ttl / 10).min(Duration::from_millis(250)),
        _ => (ttl / 3).clamp(Duration::from_millis(50), Duration::from_secs(5)),
    }
}

/// A random delay for each direction: a response mostly arrives within the timeout, and sometimes
/// does not.
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
