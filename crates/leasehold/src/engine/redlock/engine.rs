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
use super::node::{Ears, Node};
use super::server::{Remote, Request, Server, What};
use super::wire::{self, Scripts, Voted};
use super::{error, inspect};
use crate::claim::{Claim, ClaimId, Token};
use crate::clock::Clock;
use crate::engine::redis::config::Config as NodeConfig;
use crate::engine::redis::error::odd;
use crate::engine::redis::wire::{channel, party};
use crate::engine::{
    Answer, Capabilities, Engine, Evicted, Grant, LockView, LossBoard, Losses, PartyView, Released, Renewal, Step,
};
use crate::error::{Error, Result};
use crate::logic::lease::Validity;
use crate::logic::quorum::{self, Failure, Move, Outcome, Taking, Tally, Vote, Written};
use crate::name::LockName;

/// Poll interval for changes of a lock: Redlock has no change notifications.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// The number of the last attempt of a claim: a release with it ends every attempt.
const LAST: u64 = 9_999_999_999_999_999;

/// Locks on a majority of independent Redis servers.
#[derive(Debug)]
pub struct RedlockEngine {
    pub(super) config: Config,
    pub(super) clock: Clock,
    /// The number of our inbox.
    inbox: String,
    can: Capabilities,
    pub(super) nodes: Vec<Arc<Node>>,
    losses: Arc<LossBoard>,
    pub(super) tokens: Tokens,
}

/// Guesses tokens: above all that were seen, and not behind the nodes' clocks.
#[derive(Debug, Default)]
pub(super) struct Tokens(AtomicU64);

impl Tokens {
    /// Notes a token that a node reported.
    fn saw(&self, token: Token) {
        self.0.fetch_max(token.0.min(LAST / 2), Ordering::SeqCst);
    }

    /// The next guess, if `time` is the fastest of the nodes' clocks; zero if nothing is known yet.
    fn guess(&self, time: Token) -> Token {
        let next = |last: u64| (last > 0 || time.0 > 0).then(|| time.0.max(last + 1));
        let before = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
        Token(before.ok().and_then(next).unwrap_or_default())
    }
}

/// A request under way: its node, its purpose, and its answer.
pub(super) type Flight<T> = BoxFuture<'static, (usize, T, Result<Value>)>;

/// Requests under way.
pub(super) type Flights<T> = FuturesUnordered<Flight<T>>;

/// What a node was asked in an attempt.
#[derive(Clone, Copy)]
enum Asked {
    Take,
    Write(Token),
}

impl RedlockEngine {
    /// Connects to a majority.
    pub(crate) async fn open(config: Config, clock: &Clock) -> Result<Arc<Self>> {
        let scripts = Arc::new(Scripts::new(strict(&config).is_some()));
        let inbox = format!("{:016x}", crate::random::bits() as u64);
        let channel = channel(&config.nodes[0].prefix, &inbox);
        let reach =
            |node: &Arc<NodeConfig>, ears| -> Box<dyn Server> { Box::new(Remote::new(node, &scripts, &channel, ears)) };
        Self::open_on(config, clock, &inbox, reach).await
    }

    /// The same. `inbox` receives the messages about our claims. `reach` makes the connection to a
    /// node, which reports to the [`Ears`].
    pub(super) async fn open_on(
        config: Config,
        clock: &Clock,
        inbox: &str,
        reach: impl Fn(&Arc<NodeConfig>, Arc<Ears>) -> Box<dyn Server>,
    ) -> Result<Arc<Self>> {
        let strict = strict(&config);
        let losses = Arc::new(LossBoard::default());
        let nodes: Vec<_> = config.nodes.iter().map(|node| Node::new(node, clock, &losses, &reach)).collect();
        let mut can = Capabilities { drift: config.drift, ..CAPABILITIES };
        if config.quorum.nodes < 3 {
            can.caution = "fewer than three nodes: the failure of one ends all; five are usual";
            tracing::warn!(nodes = config.quorum.nodes, "{}", can.caution);
        }
        if let Some(most) = strict {
            can.max_ttl = can.max_ttl.min(most);
        }
        let (clock, inbox, tokens) = (clock.clone(), inbox.to_owned(), Tokens::default());
        let engine = Arc::new(Self { config, clock, inbox, can, nodes, losses, tokens });
        super::open::meet(&engine).await?;
        Ok(engine)
    }

    pub(super) fn key(&self, name: &LockName) -> String {
        wire::key(&self.config.nodes[0].prefix, name)
    }

    /// The fastest of the nodes' clocks, in us; zero if none is known yet. A clock that is a
    /// century ahead is ignored: a token has 16 digits.
    fn time(&self) -> Token {
        Token(self.nodes.iter().map(|node| node.time()).filter(|time| *time < LAST / 2).max().unwrap_or_default())
    }

    /// A token that most likely is above all that the nodes know.
    pub(super) fn guess(&self) -> Token {
        self.tokens.guess(self.time())
    }

    /// How long to wait for a node's answer about a lease of this TTL.
    fn most(&self, ttl: Duration) -> Duration {
        quorum::node_timeout(ttl, self.config.node_timeout)
    }

    fn retention(&self) -> Vec<u8> {
        self.config.nodes[0].retention.as_secs().to_string().into_bytes()
    }

    /// The nodes to ask: those that respond; or all, if these are too few.
    fn worth_asking(&self) -> Vec<bool> {
        let answer: Vec<_> = self.nodes.iter().map(|node| !node.is_silent()).collect();
        let enough = answer.iter().filter(|answers| **answers).count() >= self.config.quorum.needed;
        if enough { answer } else { vec![true; answer.len()] }
    }

    /// A request about one claim: the claim, the attempt, then the arguments of the script.
    fn about(&self, what: What, claim: &Claim, attempt: u64, rest: Vec<Vec<u8>>) -> Arc<Request> {
        let mut arguments = vec![claim.id.bits().to_be_bytes().to_vec(), wire::digits(attempt).into_bytes()];
        arguments.extend(rest);
        Request::new(what, vec![self.key(claim.name())], arguments)
    }

    fn party(&self, claim: &Claim) -> Vec<u8> {
        party(&claim.terms, &self.config.nodes[0].prefix, &self.inbox)
    }

    /// Acquires the lock on a majority.
    async fn take(&self, claim: &Claim) -> Result<Answer> {
        let (sent, most) = (self.clock.now(), self.most(claim.terms.ttl));
        let attempt = sent.as_nanos() / 1000;
        // Claims of one owner share a token: it cannot be guessed.
        let guess = match claim.terms.owner.is_none() && !self.config.always_two_rounds {
            true => self.guess(),
            false => Token::default(),
        };
        let rest = vec![self.retention(), wire::digits(guess.0).into_bytes(), self.party(claim)];
        let request = self.about(What::Take, claim, attempt, rest);
        let mut flights = Vec::new();
        let mut troubles = Troubles::default();
        let mut taking = Taking::new(self.config.quorum);
        for (at, worth) in self.worth_asking().into_iter().enumerate() {
            match worth {
                true => flights.push(self.flight(at, Asked::Take, &request, most)),
                false => {
                    taking.vote(at, Vote::Silent);
                    troubles.silent(&self.nodes[at]);
                }
            }
        }
        let mut flights = begin(flights).await;
        let outcome = loop {
            let Some((at, asked, answer)) = flights.next().await else { break Move::Failed(Failure::Unreachable) };
            let next = match asked {
                Asked::Take => {
                    let vote = self.vote(at, answer, guess, &mut troubles);
                    taking.at_least(self.time());
                    taking.vote(at, vote)
                }
                Asked::Write(token) => taking.wrote(at, token, self.written(at, answer, &mut troubles)),
            };
            let to = match (next, asked) {
                (Move::Write(_), _) => (0..self.nodes.len()).filter(|node| taking.said_yes(*node)).collect(),
                // A node that votes yes during the second round gets the token, too.
                (Move::Wait, Asked::Take) if taking.said_yes(at) => vec![at],
                (Move::Wait, _) => Vec::new(),
                (outcome, _) => break outcome,
            };
            if let Some(token) = taking.writing() {
                let rest =
                    vec![self.retention(), wire::digits(token.0).into_bytes(), wire::owner(claim.terms.owner).to_vec()];
                let request = self.about(What::Write, claim, attempt, rest);
                let writes = to.into_iter().map(|at| self.flight(at, Asked::Write(token), &request, most));
                flights.extend(begin(writes.collect()).await);
            }
        };
        request.over.store(true, Ordering::SeqCst);
        self.tokens.saw(taking.highest());
        finish(flights);
        let in_time = quorum::validity(sent, self.clock.now(), claim.terms.ttl, self.config.drift).is_some();
        match outcome {
            Move::Held(token) if in_time => {
                let validity = Validity::Until(sent.after(claim.terms.ttl));
                return Ok(Answer::Granted(Grant { token, validity }));
            }
            _ => self.withdraw(claim, attempt).await,
        }
        match outcome {
            Move::Failed(Failure::Unreachable) => Err(error::too_few(&self.config, &troubles.said)),
            Move::Failed(Failure::Abstaining) => Ok(Answer::Abstains { left: troubles.abstains.unwrap_or_default() }),
            _ => Ok(Answer::Busy { recheck: None }),
        }
    }

    fn flight<T: Copy + Send + 'static>(
        &self,
        at: usize,
        what: T,
        request: &Arc<Request>,
        most: Duration,
    ) -> Flight<T> {
        let (node, request) = (Arc::clone(&self.nodes[at]), Arc::clone(request));
        async move { (at, what, node.ask(&request, most).await) }.boxed()
    }

    fn vote(&self, at: usize, answer: Result<Value>, guess: Token, troubles: &mut Troubles) -> Vote {
        let address = &self.nodes[at].address;
        let voted = answer.and_then(|answer| Voted::read(&answer, guess).ok_or_else(|| odd(address, &answer)));
        match voted {
            Ok(voted) => {
                if let Some(micros) = voted.clock {
                    self.nodes[at].saw_time(micros);
                }
                troubles.abstains = troubles.abstains.max(voted.abstains);
                voted.vote
            }
            Err(error) => {
                troubles.said.push(error);
                Vote::Silent
            }
        }
    }

    fn written(&self, at: usize, answer: Result<Value>, troubles: &mut Troubles) -> Written {
        let address = &self.nodes[at].address;
        let written = answer.and_then(|answer| wire::written(&answer).ok_or_else(|| odd(address, &answer)));
        written.unwrap_or_else(|error| {
            troubles.said.push(error);
            Written::Silent
        })
    }

    /// Withdraws a failed attempt from all nodes, also from those that never answered; waits only
    /// for those that respond.
    async fn withdraw(&self, claim: &Claim, attempt: u64) {
        let request = self.about(What::Release, claim, attempt, vec![self.retention(), b"0".to_vec()]);
        let (mut flights, mut late) = (Vec::new(), Vec::new());
        for at in 0..self.nodes.len() {
            let silent = self.nodes[at].is_silent();
            let ending = self.ending(at, &request, claim.terms.ttl);
            if silent { late.push(ending) } else { flights.push(ending) }
        }
        finish(begin(late).await);
        let mut flights = begin(flights).await;
        while flights.next().await.is_some() {}
    }

    fn ending(&self, at: usize, request: &Arc<Request>, ttl: Duration) -> Flight<()> {
        let (node, request, most) = (Arc::clone(&self.nodes[at]), Arc::clone(request), self.most(ttl));
        async move { (at, (), node.end(request, most, ttl).await) }.boxed()
    }

    async fn give_back(&self, claim: &Claim) -> Result<Released> {
        let request = self.about(What::Release, claim, LAST, vec![self.retention(), b"1".to_vec()]);
        let mut tally = Tally::new(self.config.quorum);
        let mut flights = Vec::new();
        let (mut silent, mut said, mut found) = (Vec::new(), Vec::new(), false);
        let worth_asking = self.worth_asking();
        // An owner may acquire again at once. What is left of its claims, of each on other nodes,
        // must not add up to a majority.
        let mut awaited =
            if claim.terms.owner.is_some() { worth_asking.iter().filter(|worth| **worth).count() } else { 0 };
        for (at, worth) in worth_asking.iter().copied().enumerate() {
            flights.push(self.ending(at, &request, claim.terms.ttl));
            if !worth {
                silent.push(at);
            }
        }
        let mut flights = begin(flights).await;
        let mut outcome = Outcome::Open;
        for at in silent {
            outcome = tally.hear(at, None);
        }
        while outcome == Outcome::Open || awaited > 0 {
            let Some((at, (), answer)) = flights.next().await else { break };
            awaited = awaited.saturating_sub(usize::from(worth_asking[at]));
            let answer = match answer {
                Ok(Value::Int(there @ 0..=1)) => Some(there == 1),
                Ok(strange) => {
                    said.push(odd(&self.nodes[at].address, &strange));
                    None
                }
                Err(error) => {
                    said.push(error);
                    None
                }
            };
            found |= answer == Some(true);
            if outcome == Outcome::Open {
                outcome = tally.hear(at, answer);
            }
        }
        finish(flights);
        match outcome {
            Outcome::Done => Ok(Released::Released),
            _ if tally.heard() < self.config.quorum.needed => Err(error::too_few(&self.config, &said)),
            _ => Ok(if found { Released::Released } else { Released::Absent }),
        }
    }

    async fn extend(&self, claims: &[Arc<Claim>]) -> Result<Vec<Renewal>> {
        let attempt = wire::digits(self.clock.now().as_nanos() / 1000).into_bytes();
        let mut arguments = vec![attempt, self.retention()];
        for claim in claims {
            arguments.push(claim.id.bits().to_be_bytes().to_vec());
            arguments.push(wire::digits(claim.token().0).into_bytes());
            arguments.push(self.party(claim));
        }
        for node in &self.nodes {
            claims.iter().for_each(|claim| node.renews(claim));
        }
        let keys = claims.iter().map(|claim| self.key(claim.name())).collect();
        let request = Request::new(What::Renew, keys, arguments);
        let ttl = claims.iter().map(|claim| claim.terms.ttl).min().unwrap_or_default();
        let mut tallies = vec![Tally::new(self.config.quorum); claims.len()];
        let mut flights = Vec::new();
        let mut said = Vec::new();
        for (at, worth) in self.worth_asking().into_iter().enumerate() {
            match worth {
                true => flights.push(self.flight(at, (), &request, self.most(ttl))),
                false => {
                    for tally in &mut tallies {
                        tally.hear(at, None);
                    }
                }
            }
        }
        let mut flights = begin(flights).await;
        while tallies.iter().any(|tally| tally.outcome() == Outcome::Open) {
            let Some((at, (), answer)) = flights.next().await else { break };
            let address = &self.nodes[at].address;
            let read = |answer| wire::renewed(&answer, claims.len()).ok_or_else(|| odd(address, &answer));
            let answers = answer.and_then(read).unwrap_or_else(|error| {
                said.push(error);
                vec![None; claims.len()]
            });
            for (tally, answer) in tallies.iter_mut().zip(answers) {
                tally.hear(at, answer);
            }
        }
        request.over.store(true, Ordering::SeqCst);
        finish(flights);
        let renewal = |(tally, claim): (&Tally, &Arc<Claim>)| match tally.outcome() {
            Outcome::Done => Renewal::Renewed(Validity::FromSend(claim.terms.ttl)),
            Outcome::Refused => Renewal::Lost,
            Outcome::Open | Outcome::Unknown => Renewal::Unknown,
        };
        let answers: Vec<_> = tallies.iter().zip(claims).map(renewal).collect();
        if answers.iter().all(|answer| *answer == Renewal::Unknown) && said.len() > self.config.quorum.spare() {
            return Err(error::too_few(&self.config, &said));
        }
        Ok(answers)
    }

    /// Sends a request to all nodes, and waits for each.
    pub(super) async fn all<T, F>(&self, ask: impl Fn(Arc<Node>) -> F) -> Vec<Result<T>>
    where
        F: Future<Output = Result<T>>,
    {
        join_all(self.nodes.iter().map(|node| ask(Arc::clone(node)))).await
    }

    /// The same, without waiting for nodes that are not worth asking.
    pub(super) async fn all_who_answer<T, F>(&self, ask: impl Fn(Arc<Node>) -> F) -> Vec<Result<T>>
    where
        F: Future<Output = Result<T>>,
    {
        let one = |(node, worth): (&Arc<Node>, bool)| match worth {
            true => ask(Arc::clone(node)).left_future(),
            false => ready(Err(no_answer_lately(node))).right_future(),
        };
        join_all(self.nodes.iter().zip(self.worth_asking()).map(one)).await
    }
}

/// The longest lease, and so the cool-down of a node that may have lost leases; `None` without
/// strict mode.
fn strict(config: &Config) -> Option<Duration> {
    config.nodes.first().and_then(|node| node.strict)
}

/// The inbox of a client that receives no messages.
#[cfg(test)]
pub(super) const NO_INBOX: &str = "0000000000000000";

/// The errors of an attempt.
#[derive(Default)]
struct Troubles {
    said: Vec<Error>,
    abstains: Option<Duration>,
}

impl Troubles {
    fn silent(&mut self, node: &Node) {
        self.said.push(no_answer_lately(node));
    }
}

fn no_answer_lately(node: &Node) -> Error {
    crate::engine::redis::error::unreachable(&node.address, "no answer lately")
}

/// Sends all requests before it looks at any answer: no node is left out because others answered at
/// once.
async fn begin<T: Send + 'static>(mut flights: Vec<Flight<T>>) -> Flights<T> {
    poll_fn(|context| {
        for flight in &mut flights {
            if let Poll::Ready(answer) = flight.as_mut().poll(context) {
                *flight = ready(answer).boxed();
            }
        }
        Poll::Ready(())
    })
    .await;
    flights.into_iter().collect()
}

/// Receives answers that are no longer awaited, in the background.
pub(super) fn finish<T: Send + 'static>(mut flights: Flights<T>) {
    if !flights.is_empty() {
        tokio::spawn(async move { while flights.next().await.is_some() {} });
    }
}

impl Engine for RedlockEngine {
    fn capabilities(&self) -> &Capabilities {
        &self.can
    }

    fn url(&self) -> String {
        self.config.shown.clone()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>, _queue: bool) -> Step<Answer> {
        Step::new(async move { self.take(&claim).await })
    }

    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<Renewal>> {
        Step::new(async move { self.extend(&claims).await })
    }

    fn release(self: Arc<Self>, claim: Arc<Claim>) -> Step<Released> {
        Step::new(async move { self.give_back(&claim).await })
    }

    fn losses(&self) -> Losses {
        self.losses.listen()
    }

    fn watch(self: Arc<Self>, _name: LockName, patience: Duration) -> Step<Step<()>> {
        Step::ready(Ok(Step::new(async move {
            self.clock.sleep_until(self.clock.now().after(patience.min(LOOK_AGAIN))).await;
            Ok(())
        })))
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
}
