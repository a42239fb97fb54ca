//! The [`Engine`] trait, on majorities.

use std::future::{poll_fn, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, FutureExt, join_all};
use futures_util::stream::FuturesUnordered;
use redis::Value;

use super::CAPABILITIES;
use super::config::Config;
use super::node::{Node, NodeListener};
use super::server::{RedisServer, Request, RequestKind, Server};
use super::wire::{self, NodeVote, Scripts};
use super::{error, inspect};
use crate::clock::Clock;
use crate::engine::Claim;
use crate::engine::{
    AcquireReply, Capabilities, ContenderView, Engine, ForceReleaseOutcome, Grant, LockView, LossBroadcaster,
    LossEvents, ReleaseReply, RenewReply, Step,
};
use crate::logic::quorum::{self, AttemptAction, Failure, QuorumAttempt, QuorumOutcome, QuorumTally, Vote, WriteReply};
use crate::redis_client::error::{unexpected_answer, unreachable};
use crate::redis_client::keys::inbox_channel;
use crate::redis_client::{Config as NodeConfig, encode_contender};
use crate::types::{ClaimId, Error, LockName, Result, Token};

/// Poll interval for changes of a lock: Redlock has no change notifications.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The number of the last attempt of a claim: a release with it ends every attempt.
const LAST_ATTEMPT: u64 = 1 << 53;

/// Locks on a majority of independent Redis servers.
#[derive(Debug)]
pub struct RedlockEngine {
    pub(super) config: Config,
    pub(super) clock: Clock,
    /// The channel of this client's inbox; empty if it receives no messages.
    inbox: Arc<str>,
    capabilities: Capabilities,
    pub(super) nodes: Vec<Arc<Node>>,
    losses: Arc<LossBroadcaster>,
    pub(super) token_guesser: TokenGuesser,
}

/// Guesses tokens: above all that this client has read, and not behind the nodes' clocks.
#[derive(Debug, Default)]
pub(super) struct TokenGuesser(AtomicU64);

impl TokenGuesser {
    /// Notes a token that a node reported.
    fn observe(&self, token: Token) {
        self.0.fetch_max(token.0.min(LAST_ATTEMPT / 2), Ordering::SeqCst);
    }

    /// The next guess, if `fastest_clock` is the fastest of the nodes' clocks; zero if no clock is
    /// known yet.
    fn guess(&self, fastest_clock: Token) -> Token {
        let next = |last: u64| (last > 0 || fastest_clock.0 > 0).then(|| fastest_clock.0.max(last + 1));
        let previous = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
        Token(previous.ok().and_then(next).unwrap_or_default())
    }
}

/// A request under way: its node, its purpose, and its answer.
pub(super) type NodeCall<T> = BoxFuture<'static, (usize, T, Result<Value>)>;

/// Requests under way.
pub(super) type NodeCalls<T> = FuturesUnordered<NodeCall<T>>;

/// The round of an attempt to which a request belongs.
#[derive(Clone, Copy)]
enum AttemptRound {
    Acquire,
    StoreToken(Token),
}

impl RedlockEngine {
    /// Connects to a majority.
    pub(crate) async fn open(config: Config, clock: &Clock) -> Result<Arc<Self>> {
        let scripts = Arc::new(Scripts::new(longest_lease(&config).is_some()));
        let number = format!("{:016x}", crate::random::random_bits() as u64);
        let inbox = inbox_channel(&config.nodes[0].prefix, &number);
        let reach = |node: &Arc<NodeConfig>, listener| -> Box<dyn Server> {
            Box::new(RedisServer::new(node, &scripts, &inbox, listener))
        };
        Self::open_with(config, clock, &inbox, reach).await
    }

    /// The same. `inbox` receives the messages about this client's claims. `connect` makes the
    /// connection to a node, which reports to the [`NodeListener`].
    pub(super) async fn open_with(
        config: Config,
        clock: &Clock,
        inbox: &str,
        connect: impl Fn(&Arc<NodeConfig>, Arc<NodeListener>) -> Box<dyn Server>,
    ) -> Result<Arc<Self>> {
        let longest = longest_lease(&config);
        let losses = Arc::new(LossBroadcaster::default());
        let nodes: Vec<_> = config.nodes.iter().map(|node| Node::new(node, clock, &losses, &connect)).collect();
        let mut capabilities = Capabilities { drift: config.drift, ..CAPABILITIES };
        if config.quorum.node_count < 3 {
            capabilities.warning = "fewer than three nodes: the failure of one ends all; five are usual";
            tracing::warn!(nodes = config.quorum.node_count, "{}", capabilities.warning);
        }
        if let Some(max_lease) = longest {
            capabilities.max_ttl = capabilities.max_ttl.min(max_lease);
        }
        let (clock, inbox, tokens) = (clock.clone(), inbox.into(), TokenGuesser::default());
        let engine = Arc::new(Self { config, clock, inbox, capabilities, nodes, losses, token_guesser: tokens });
        super::open::connect_majority(&engine).await?;
        Ok(engine)
    }

    pub(super) fn key(&self, name: &LockName) -> String {
        wire::key(&self.config.nodes[0].prefix, name)
    }

    /// The fastest of the nodes' clocks, in µs; zero if none is known yet. A clock that is a
    /// century ahead is ignored: in the scripts a token is exact up to 2^53.
    fn fastest_clock(&self) -> Token {
        Token(
            self.nodes
                .iter()
                .map(|node| node.clock_us())
                .filter(|time| *time < LAST_ATTEMPT / 2)
                .max()
                .unwrap_or_default(),
        )
    }

    /// A token that most likely is above all that the nodes know.
    pub(super) fn guess(&self) -> Token {
        self.token_guesser.guess(self.fastest_clock())
    }

    /// How long to wait for a node's answer about a lease of this TTL.
    fn node_timeout(&self, ttl: Duration) -> Duration {
        quorum::node_timeout(ttl, self.config.node_timeout)
    }

    pub(super) fn retention(&self) -> Vec<u8> {
        self.config.nodes[0].retention.as_secs().to_string().into_bytes()
    }

    /// The nodes to ask: those that respond; or all, if these are too few.
    fn nodes_to_ask(&self) -> Vec<bool> {
        let answer: Vec<_> = self.nodes.iter().map(|node| !node.is_unresponsive()).collect();
        let enough = answer.iter().filter(|answers| **answers).count() >= self.config.quorum.majority;
        if enough { answer } else { vec![true; answer.len()] }
    }

    /// A request about one claim: the claim, the attempt, then the arguments of the script.
    fn claim_request(&self, kind: RequestKind, claim: &Claim, attempt: u64, rest: Vec<Vec<u8>>) -> Arc<Request> {
        let mut arguments = vec![self.retention(), claim.id.bits().to_be_bytes().to_vec(), wire::decimal(attempt)];
        arguments.extend(rest);
        Request::new(kind, vec![self.key(claim.name())], arguments)
    }

    fn encode_contender(&self, claim: &Claim) -> Vec<u8> {
        encode_contender(&claim.options, &self.inbox)
    }

    /// Acquires the lock on a majority.
    async fn acquire_on_majority(&self, claim: &Claim) -> Result<AcquireReply> {
        let (sent, timeout) = (self.clock.now(), self.node_timeout(claim.options.ttl));
        let attempt = sent.as_nanos() / 1000;
        // Claims of one owner share a token: it cannot be guessed.
        let guess = match claim.options.owner.is_none() && !self.config.always_two_rounds {
            true => self.guess(),
            false => Token::default(),
        };
        let rest = vec![wire::decimal(guess.0), self.encode_contender(claim)];
        let request = self.claim_request(RequestKind::Acquire, claim, attempt, rest);
        let mut calls = Vec::new();
        let mut errors = AttemptErrors::default();
        let mut quorum_attempt = QuorumAttempt::new(self.config.quorum);
        for (at, is_useful) in self.nodes_to_ask().into_iter().enumerate() {
            match is_useful {
                true => calls.push(self.call_node(at, AttemptRound::Acquire, &request, timeout)),
                false => {
                    quorum_attempt.vote(at, Vote::NoResponse);
                    errors.add_unresponsive(&self.nodes[at]);
                }
            }
        }
        let mut calls = start_calls(calls).await;
        let outcome = loop {
            let Some((at, asked, answer)) = calls.next().await else {
                break AttemptAction::Failed(Failure::Unreachable);
            };
            let next = match asked {
                AttemptRound::Acquire => {
                    let vote = self.read_vote(at, answer, guess, &mut errors);
                    quorum_attempt.observe_clock(self.fastest_clock());
                    quorum_attempt.vote(at, vote)
                }
                AttemptRound::StoreToken(token) => {
                    quorum_attempt.write_reply(at, token, self.read_written(at, answer, &mut errors))
                }
            };
            let to = match (next, asked) {
                (AttemptAction::Write(_), _) => {
                    (0..self.nodes.len()).filter(|node| quorum_attempt.has_yes_vote(*node)).collect()
                }
                // A node that votes yes during the second round gets the token, too.
                (AttemptAction::Wait, AttemptRound::Acquire) if quorum_attempt.has_yes_vote(at) => vec![at],
                (AttemptAction::Wait, _) => Vec::new(),
                (outcome, _) => break outcome,
            };
            if let Some(token) = quorum_attempt.pending_token() {
                let request = self.store_token_request(claim, attempt, token);
                let writes =
                    to.into_iter().map(|at| self.call_node(at, AttemptRound::StoreToken(token), &request, timeout));
                calls.extend(start_calls(writes.collect()).await);
            }
        };
        request.is_decided.store(true, Ordering::SeqCst);
        self.token_guesser.observe(quorum_attempt.highest());
        drain_calls(calls);
        let in_time = quorum::validity(sent, self.clock.now(), claim.options.ttl, self.config.drift).is_some();
        match outcome {
            AttemptAction::Held(token) if in_time => {
                return Ok(AcquireReply::Granted(Grant::for_ttl(token, sent, claim.options.ttl)));
            }
            _ => self.withdraw(claim, attempt).await,
        }
        match outcome {
            AttemptAction::Failed(Failure::Unreachable) => Err(error::no_majority(&self.config, &errors.errors)),
            AttemptAction::Failed(Failure::CoolingDown) => {
                Ok(AcquireReply::CoolingDown { left: errors.cooling_down.unwrap_or_default() })
            }
            _ => Ok(AcquireReply::Busy { recheck_after: None }),
        }
    }

    fn store_token_request(&self, claim: &Claim, attempt: u64, token: Token) -> Arc<Request> {
        let owner = wire::encode_owner(claim.options.owner).to_vec();
        let rest = vec![wire::decimal(token.0), owner];
        self.claim_request(RequestKind::StoreToken, claim, attempt, rest)
    }

    fn call_node<T: Copy + Send + 'static>(
        &self,
        at: usize,
        purpose: T,
        request: &Arc<Request>,
        timeout: Duration,
    ) -> NodeCall<T> {
        let (node, request) = (Arc::clone(&self.nodes[at]), Arc::clone(request));
        async move { (at, purpose, node.send(&request, timeout).await) }.boxed()
    }

    fn read_vote(&self, at: usize, answer: Result<Value>, guess: Token, errors: &mut AttemptErrors) -> Vote {
        let address = &self.nodes[at].address;
        let voted =
            answer.and_then(|answer| NodeVote::read(&answer, guess).ok_or_else(|| unexpected_answer(address, &answer)));
        match voted {
            Ok(voted) => {
                if let Some(micros) = voted.clock {
                    self.nodes[at].observe_clock(micros);
                }
                errors.cooling_down = errors.cooling_down.max(voted.cooling_down);
                voted.vote
            }
            Err(error) => {
                errors.errors.push(error);
                Vote::NoResponse
            }
        }
    }

    fn read_written(&self, at: usize, answer: Result<Value>, errors: &mut AttemptErrors) -> WriteReply {
        let address = &self.nodes[at].address;
        let written =
            answer.and_then(|answer| wire::parse_written(&answer).ok_or_else(|| unexpected_answer(address, &answer)));
        written.unwrap_or_else(|error| {
            errors.errors.push(error);
            WriteReply::NoResponse
        })
    }

    /// Withdraws a failed attempt from all nodes, also from those that never answered; waits only
    /// for those that respond.
    async fn withdraw(&self, claim: &Claim, attempt: u64) {
        let request = self.claim_request(RequestKind::Release, claim, attempt, vec![b"withdrawn".to_vec()]);
        let (mut calls, mut late) = (Vec::new(), Vec::new());
        for at in 0..self.nodes.len() {
            let unresponsive = self.nodes[at].is_unresponsive();
            let ending = self.call_release(at, &request, claim.options.ttl);
            if unresponsive { late.push(ending) } else { calls.push(ending) }
        }
        drain_calls(start_calls(late).await);
        let mut calls = start_calls(calls).await;
        while calls.next().await.is_some() {}
    }

    fn call_release(&self, at: usize, request: &Arc<Request>, ttl: Duration) -> NodeCall<()> {
        let (node, request, timeout) = (Arc::clone(&self.nodes[at]), Arc::clone(request), self.node_timeout(ttl));
        async move { (at, (), node.send_release(request, timeout, ttl).await) }.boxed()
    }

    async fn release_on_majority(&self, claim: &Claim) -> Result<ReleaseReply> {
        let request = self.claim_request(RequestKind::Release, claim, LAST_ATTEMPT, vec![b"granted".to_vec()]);
        let mut tally = QuorumTally::new(self.config.quorum);
        let mut calls = Vec::new();
        let (mut unresponsive, mut errors, mut found) = (Vec::new(), Vec::new(), false);
        let worth_asking = self.nodes_to_ask();
        // An owner may acquire again at once. The rests of its claims, of each on other nodes, must
        // not add up to a majority.
        let mut awaited =
            if claim.options.owner.is_some() { worth_asking.iter().filter(|is_useful| **is_useful).count() } else { 0 };
        for (at, is_useful) in worth_asking.iter().copied().enumerate() {
            calls.push(self.call_release(at, &request, claim.options.ttl));
            if !is_useful {
                unresponsive.push(at);
            }
        }
        let mut calls = start_calls(calls).await;
        let mut outcome = QuorumOutcome::Pending;
        for at in unresponsive {
            outcome = tally.record_answer(at, None);
        }
        while outcome == QuorumOutcome::Pending || awaited > 0 {
            let Some((at, (), answer)) = calls.next().await else { break };
            awaited = awaited.saturating_sub(usize::from(worth_asking[at]));
            let answer = match answer {
                Ok(Value::Int(there @ 0..=1)) => Some(there == 1),
                Ok(unexpected) => {
                    errors.push(unexpected_answer(&self.nodes[at].address, &unexpected));
                    None
                }
                Err(error) => {
                    errors.push(error);
                    None
                }
            };
            found |= answer == Some(true);
            if outcome == QuorumOutcome::Pending {
                outcome = tally.record_answer(at, answer);
            }
        }
        drain_calls(calls);
        match outcome {
            QuorumOutcome::Done => Ok(ReleaseReply::Released),
            _ if tally.answer_count() < self.config.quorum.majority => Err(error::no_majority(&self.config, &errors)),
            _ => Ok(if found { ReleaseReply::Released } else { ReleaseReply::Absent }),
        }
    }

    async fn renew_on_majority(&self, claims: &[Arc<Claim>]) -> Result<Vec<RenewReply>> {
        let sent = self.clock.now();
        let attempt = wire::decimal(sent.as_nanos() / 1000);
        let mut arguments = vec![self.retention(), attempt];
        for claim in claims {
            arguments.push(claim.id.bits().to_be_bytes().to_vec());
            arguments.push(wire::decimal(claim.token().0));
            arguments.push(self.encode_contender(claim));
        }
        for node in &self.nodes {
            claims.iter().for_each(|claim| node.note_renewal_due(claim));
        }
        let keys = claims.iter().map(|claim| self.key(claim.name())).collect();
        let request = Request::new(RequestKind::Renew, keys, arguments);
        let ttl = claims.iter().map(|claim| claim.options.ttl).min().unwrap_or_default();
        let mut tallies = vec![QuorumTally::new(self.config.quorum); claims.len()];
        let mut calls = Vec::new();
        let mut errors = Vec::new();
        for (at, is_useful) in self.nodes_to_ask().into_iter().enumerate() {
            match is_useful {
                true => calls.push(self.call_node(at, (), &request, self.node_timeout(ttl))),
                false => {
                    for tally in &mut tallies {
                        tally.record_answer(at, None);
                    }
                }
            }
        }
        let mut calls = start_calls(calls).await;
        while tallies.iter().any(|tally| tally.outcome() == QuorumOutcome::Pending) {
            let Some((at, (), answer)) = calls.next().await else { break };
            let address = &self.nodes[at].address;
            let read =
                |answer| wire::parse_renewed(&answer, claims.len()).ok_or_else(|| unexpected_answer(address, &answer));
            let answers = answer.and_then(read).unwrap_or_else(|error| {
                errors.push(error);
                vec![None; claims.len()]
            });
            for (tally, answer) in tallies.iter_mut().zip(answers) {
                tally.record_answer(at, answer);
            }
        }
        request.is_decided.store(true, Ordering::SeqCst);
        drain_calls(calls);
        let renewal = |(tally, claim): (&QuorumTally, &Arc<Claim>)| match tally.outcome() {
            QuorumOutcome::Done => RenewReply::Renewed(sent.saturating_add(claim.options.ttl)),
            QuorumOutcome::Refused => RenewReply::Lost,
            QuorumOutcome::Pending | QuorumOutcome::Unknown => RenewReply::Unknown,
        };
        let answers: Vec<_> = tallies.iter().zip(claims).map(renewal).collect();
        if answers.iter().all(|answer| *answer == RenewReply::Unknown)
            && errors.len() > self.config.quorum.tolerated_failures()
        {
            return Err(error::no_majority(&self.config, &errors));
        }
        Ok(answers)
    }

    /// Sends a request to all nodes, and waits for each.
    pub(super) async fn ask_all<T, F>(&self, call: impl Fn(Arc<Node>) -> F) -> Vec<Result<T>>
    where
        F: Future<Output = Result<T>>,
    {
        join_all(self.nodes.iter().map(|node| call(Arc::clone(node)))).await
    }

    /// As above, without waiting for unresponsive nodes.
    pub(super) async fn ask_responsive<T, F>(&self, call: impl Fn(Arc<Node>) -> F) -> Vec<Result<T>>
    where
        F: Future<Output = Result<T>>,
    {
        let one = |(node, is_useful): (&Arc<Node>, bool)| match is_useful {
            true => call(Arc::clone(node)).left_future(),
            false => ready(Err(unresponsive_error(node))).right_future(),
        };
        join_all(self.nodes.iter().zip(self.nodes_to_ask()).map(one)).await
    }
}

/// The longest lease, and so the cool-down of a node that may have lost leases; `None` without
/// strict mode.
fn longest_lease(config: &Config) -> Option<Duration> {
    config.nodes.first().and_then(|node| node.strict)
}

/// The errors of an attempt.
#[derive(Default)]
struct AttemptErrors {
    errors: Vec<Error>,
    cooling_down: Option<Duration>,
}

impl AttemptErrors {
    fn add_unresponsive(&mut self, node: &Node) {
        self.errors.push(unresponsive_error(node));
    }
}

fn unresponsive_error(node: &Node) -> Error {
    unreachable(&node.address, "no answer lately")
}

/// Sends all requests before it reads any answer: no node is left out because others answered at
/// once.
async fn start_calls<T: Send + 'static>(mut calls: Vec<NodeCall<T>>) -> NodeCalls<T> {
    poll_fn(|context| {
        for call in &mut calls {
            if let Poll::Ready(answer) = call.as_mut().poll(context) {
                *call = ready(answer).boxed();
            }
        }
        Poll::Ready(())
    })
    .await;
    calls.into_iter().collect()
}

/// Receives answers that are no longer awaited, in the background.
pub(super) fn drain_calls<T: Send + 'static>(mut calls: NodeCalls<T>) {
    if !calls.is_empty() {
        tokio::spawn(async move { while calls.next().await.is_some() {} });
    }
}

impl Engine for RedlockEngine {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn url(&self) -> String {
        self.config.redacted_url.clone()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>, _queue: bool) -> Step<AcquireReply> {
        Step::new(async move { self.acquire_on_majority(&claim).await })
    }

    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<RenewReply>> {
        Step::new(async move { self.renew_on_majority(&claims).await })
    }

    fn release(self: Arc<Self>, claim: Arc<Claim>) -> Step<ReleaseReply> {
        Step::new(async move { self.release_on_majority(&claim).await })
    }

    fn loss_events(&self) -> LossEvents {
        self.losses.subscribe()
    }

    fn watch(self: Arc<Self>, _name: LockName, timeout: Duration) -> Step<Step<()>> {
        Step::ready(Ok(Step::new(async move {
            self.clock.sleep_until(self.clock.now().saturating_add(timeout.min(POLL_INTERVAL))).await;
            Ok(())
        })))
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
}
