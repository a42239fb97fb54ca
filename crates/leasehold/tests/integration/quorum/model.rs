//! A model checker's search of every order of events within small bounds: three nodes, two or three
//! clients, messages that arrive in any order or never, and nodes that restart. The decisions of
//! clients and nodes are the real code. Time passes in ticks, the same for all.

use std::fmt;
use std::time::Duration;

use leasehold::Token;
use leasehold::clock::Instant;
use leasehold::internals::logic::acceptor::AcceptorState;
use leasehold::internals::logic::lease::Drift;
use leasehold::internals::logic::quorum::{Vote, WriteReply};
use stateright::{Checker, Model, Property};

use crate::quorum::client::{
    Answer, ClaimOutcome, ClaimPhase, Client, Effects, LeaseTimes, NodeCommand, Request, handle_request,
};

const NODES: usize = 3;
/// One tick of the common clock, in its unit. Tokens have the same unit, as in production, so
/// several tokens lie within a tick.
const TICK: u64 = 10;
/// The duration of a lease, in the unit of the clock.
const TTL: u64 = TICK;

/// A deliberate mistake, which the search must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    /// No mistake.
    None,
    /// A node that restarts has lost all data, and continues without a cool-down.
    LosesData,
    /// A node answers that it stored a token that is not higher than all others.
    StoresAny,
    /// A node does not keep the token of a released claim.
    LosesTokens,
    /// A client counts the lock as held after a majority of votes, before the token is stored.
    OneRound,
}

/// The bounds of the search.
#[derive(Clone, Debug)]
struct Bounds {
    /// The owner of each client's claim; `None`: it has no owner.
    owners: Vec<Option<u128>>,
    /// The most attempts of each client.
    attempts: Vec<u64>,
    /// The most renewals of all clients together.
    renewals: usize,
    /// The most restarts of a node.
    restarts: usize,
    /// Whether clients may time out. (Messages may be late or lost in any case.)
    time_outs: bool,
    /// Whether clients may release. (Leases end in any case.)
    releases: bool,
    /// How many ticks pass at most.
    ticks: u64,
    /// Whether a client's first round carries a guess of the token.
    guesses: bool,
    /// Whether an answer arrives as soon as it is sent. If not, it may be late or lost.
    answers_arrive_at_once: bool,
    /// Whether all clients have the same bounds, so that their order does not matter.
    are_symmetric: bool,
    flaw: Flaw,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Message {
    Request { client: usize, node: usize, request: Request },
    Answer { client: usize, node: usize, attempt: u64, answer: Answer },
}

/// The state of all nodes, clients and messages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u64,
    nodes: Vec<AcceptorState>,
    clients: Vec<Client>,
    /// How many attempts each client has made.
    attempts: Vec<u64>,
    /// The messages on their way; any of them may arrive next, or never.
    in_flight: Vec<Message>,
    /// How many renewals the clients have made together.
    renewals: usize,
    /// How often a node has restarted.
    restarts: usize,
    /// The clients that were granted the lock, in this order, and their tokens.
    grants: Vec<(usize, Token)>,
    /// Whether some client was granted the lock after a second round.
    had_second_round: bool,
    /// Whether some lease was renewed.
    had_renewal: bool,
}

/// An event that may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    /// This client begins an attempt.
    Start(usize),
    /// The message at this index of `in_flight` arrives.
    Deliver(usize),
    /// A client (first) stops waiting for the answer of a node (second).
    TimeOut(usize, usize),
    /// This client begins a renewal.
    Renew(usize),
    /// This client releases the lock.
    Release(usize),
    /// This node restarts.
    Restart(usize),
    /// The clock advances by [`TICK`].
    Tick,
}

fn lease_times() -> LeaseTimes {
    let drift = Drift { ppm: 0, fixed: Duration::ZERO };
    LeaseTimes { ttl: Duration::from_nanos(TTL), node_ttl: TTL, drift }
}

/// Lets a node with this flaw handle a message. `None`: the message has no answer.
fn serve_with(flaw: Flaw, node: &mut AcceptorState, now: u64, request: &Request) -> Option<Answer> {
    let command = match request.command {
        NodeCommand::Release if flaw == Flaw::LosesTokens => NodeCommand::Withdraw,
        command => command,
    };
    let answer = handle_request(node, now, &Request { command, ..*request });
    match (answer, command) {
        (
            Some(Answer::Vote(Vote::Yes { last_token: last, own_token: Token(0), owner_token: bound })),
            NodeCommand::Acquire(own),
        ) if flaw == Flaw::StoresAny => {
            Some(Answer::Vote(Vote::Yes { last_token: last, own_token: own, owner_token: bound }))
        }
        _ => answer,
    }
}

impl State {
    /// The time, as clients measure it.
    fn now_on_client_clock(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    /// The token of a client that holds the lock now; `None`: it does not.
    fn held_token(&self, client: usize) -> Option<Token> {
        self.clients[client]
            .held_lease()
            .filter(|(_, until)| *until > self.now_on_client_clock())
            .map(|(token, _)| token)
    }

    fn apply_effects(&mut self, client: usize, effects: Effects) {
        match effects.event {
            Some(ClaimOutcome::Granted(token)) => self.grants.push((client, token)),
            Some(ClaimOutcome::Extended) => self.had_renewal = true,
            _ => {}
        }
        self.in_flight.extend(effects.requests.into_iter().map(|(node, request)| Message::Request {
            client,
            node,
            request,
        }));
        let clients = &self.clients;
        // An answer that its client does not wait for changes nothing: dropping it reduces the
        // number of states.
        self.in_flight.retain(|message| match message {
            Message::Answer { client, node, attempt, answer } => {
                clients[*client].is_waiting_for(*node, *attempt, *answer)
            }
            Message::Request { .. } => true,
        });
    }

    fn handle_answer(&mut self, flaw: Flaw, client: usize, node: usize, attempt: u64, answer: Answer) {
        let now = self.now_on_client_clock();
        let writes = matches!(answer, Answer::WriteReply(..));
        let mut effects = self.clients[client].handle_answer(&lease_times(), now, node, attempt, answer);
        if let (Flaw::OneRound, ClaimPhase::Acquiring { quorum_attempt, sent, .. }) =
            (flaw, &self.clients[client].phase)
            && let Some(token) = quorum_attempt.pending_token()
        {
            let until = sent.saturating_add(lease_times().ttl);
            self.clients[client].phase = ClaimPhase::Held { token, until, renewal: None };
            effects = Effects { requests: Vec::new(), event: Some(ClaimOutcome::Granted(token)) };
        }
        self.had_second_round |= writes && matches!(effects.event, Some(ClaimOutcome::Granted(_)));
        self.apply_effects(client, effects);
    }

    fn deliver(&mut self, bounds: &Bounds, index: usize) {
        match self.in_flight.remove(index) {
            Message::Answer { client, node, attempt, answer } => {
                self.handle_answer(bounds.flaw, client, node, attempt, answer)
            }
            Message::Request { client, node, request } => {
                let answer = serve_with(bounds.flaw, &mut self.nodes[node], self.now, &request);
                let attempt = request.claim_request.attempt;
                if let Some(answer) = answer
                    && self.clients[client].is_waiting_for(node, attempt, answer)
                {
                    if bounds.answers_arrive_at_once {
                        return self.handle_answer(bounds.flaw, client, node, attempt, answer);
                    }
                    self.in_flight.push(Message::Answer { client, node, attempt, answer });
                }
            }
        }
    }

    fn time_out(&mut self, flaw: Flaw, client: usize, node: usize) {
        let answer = match self.clients[client].unanswered[node] {
            Some(NodeCommand::Acquire(_)) => Answer::Vote(Vote::NoResponse),
            Some(NodeCommand::Write(token)) => Answer::WriteReply(token, WriteReply::NoResponse),
            _ => Answer::Renewed(None),
        };
        let attempt = self.clients[client].pending_attempt().unwrap_or_default();
        self.handle_answer(flaw, client, node, attempt, answer);
    }

    fn tick(&mut self) {
        self.now += TICK;
        for client in 0..self.clients.len() {
            let now = self.now_on_client_clock();
            let effects = self.clients[client].expire(&lease_times(), now);
            self.apply_effects(client, effects);
        }
    }

    /// Sorts the messages in flight: states that differ only in their order are the same.
    fn canonicalize(&mut self) {
        self.in_flight.sort_by_key(|message| match message {
            Message::Request { client, node, request } => {
                (0, *client, *node, request.claim_request.attempt, request.command)
            }
            Message::Answer { client, node, attempt, answer } => {
                let to = match answer {
                    Answer::Vote(_) => NodeCommand::Acquire(Token::default()),
                    Answer::WriteReply(token, _) => NodeCommand::Write(*token),
                    Answer::Renewed(_) => NodeCommand::Renew(Token::default()),
                };
                (1, *client, *node, *attempt, to)
            }
        });
    }
}

impl Model for Bounds {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let client = |(id, owner): (usize, &Option<u128>)| Client::new(id as u128 + 1, *owner, NODES);
        vec![State {
            now: TICK,
            nodes: vec![AcceptorState::default(); NODES],
            clients: self.owners.iter().enumerate().map(client).collect(),
            attempts: vec![0; self.owners.len()],
            in_flight: Vec::new(),
            renewals: 0,
            restarts: 0,
            grants: Vec::new(),
            had_second_round: false,
            had_renewal: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (id, client) in state.clients.iter().enumerate() {
            // Identical clients start in the order of their indexes.
            let first = id == 0 || !self.are_symmetric || state.attempts[id - 1] > 0;
            match &client.phase {
                ClaimPhase::Idle if first && state.attempts[id] < self.attempts[id] => actions.push(Action::Start(id)),
                ClaimPhase::Idle | ClaimPhase::Acquiring { .. } => {}
                ClaimPhase::Held { renewal, .. } => {
                    if self.releases {
                        actions.push(Action::Release(id));
                    }
                    if renewal.is_none() && state.renewals < self.renewals {
                        actions.push(Action::Renew(id));
                    }
                }
            }
            if self.time_outs {
                let open = client.unanswered.iter().enumerate().filter(|(_, open)| open.is_some());
                actions.extend(open.map(|(node, _)| Action::TimeOut(id, node)));
            }
        }
        actions.extend((0..state.in_flight.len()).map(Action::Deliver));
        if state.restarts < self.restarts {
            // The nodes are identical, so only the first restarts.
            actions.push(Action::Restart(0));
        }
        if state.now < self.ticks * TICK {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let now = state.now_on_client_clock();
        match action {
            Action::Start(client) => {
                state.attempts[client] += 1;
                let guess = if self.guesses { Token(state.now) } else { Token::default() };
                let attempt = state.attempts[client];
                let effects = state.clients[client].start(&lease_times(), now, attempt, guess);
                state.apply_effects(client, effects);
            }
            Action::Deliver(index) => state.deliver(self, index),
            Action::TimeOut(client, node) => state.time_out(self.flaw, client, node),
            Action::Renew(client) => {
                state.renewals += 1;
                // Above the number of any attempt.
                let attempt = 100 + state.renewals as u64;
                let effects = state.clients[client].renew(&lease_times(), now, attempt);
                state.apply_effects(client, effects);
            }
            Action::Release(client) => {
                let effects = state.clients[client].release(&lease_times());
                state.apply_effects(client, effects);
            }
            Action::Restart(node) => {
                state.restarts += 1;
                state.nodes[node] = match self.flaw {
                    Flaw::LosesData => AcceptorState::default(),
                    _ => AcceptorState::cooling_down(state.now + TTL),
                };
            }
            Action::Tick => state.tick(),
        }
        state.canonicalize();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_OWNER, |model, state| {
                model.holder_pairs(state).all(|(a, b, _, _)| model.have_same_owner(a, b))
            }),
            Property::always(ONE_TOKEN, |model, state: &State| {
                model.holder_pairs(state).all(|(a, b, t, u)| !model.have_same_owner(a, b) || t == u)
            }),
            Property::always(TOKENS_RISE, |model, state: &State| {
                let grants = || state.grants.iter().enumerate();
                let rises = |i: usize, a: &(usize, Token), j: usize, b: &(usize, Token)| {
                    i >= j || model.have_same_owner(a.0, b.0) || a.1 < b.1
                };
                grants().all(|(i, a)| grants().all(|(j, b)| rises(i, a, j, b)))
            }),
            Property::always(NO_HANG, |_, state: &State| {
                let waits = |client: &Client| client.unanswered.iter().any(Option::is_some);
                state
                    .clients
                    .iter()
                    .all(|client| !matches!(client.phase, ClaimPhase::Acquiring { .. }) || waits(client))
            }),
            Property::sometimes(IN_TURN, |model, state: &State| {
                state
                    .grants
                    .iter()
                    .any(|(a, _)| state.grants.iter().any(|(b, _)| a != b && !model.have_same_owner(*a, *b)))
            }),
            Property::sometimes(TOGETHER, |model, state| model.holder_pairs(state).next().is_some()),
            Property::sometimes(SECOND_ROUND, |_, state: &State| state.had_second_round),
            Property::sometimes(RENEWED, |_, state: &State| state.had_renewal),
            Property::sometimes(RESTARTED, |_, state: &State| state.restarts > 0 && !state.grants.is_empty()),
        ]
    }
}

const ONE_OWNER: &str = "two owners never hold the lock at the same time";
const ONE_TOKEN: &str = "claims of one owner have one token";
const TOKENS_RISE: &str = "tokens rise from owner to owner";
const IN_TURN: &str = "held by two in turn";
const TOGETHER: &str = "held by one owner twice";
const SECOND_ROUND: &str = "held after a second round";
const RENEWED: &str = "renewed";
const RESTARTED: &str = "held after a restart";
const NO_HANG: &str = "every waiter waits for an event";

impl Bounds {
    /// Whether two clients have the same owner, or are the same.
    fn have_same_owner(&self, a: usize, b: usize) -> bool {
        a == b || self.owners[a].is_some() && self.owners[a] == self.owners[b]
    }

    /// All pairs of clients that hold the lock now: both clients, and then both tokens.
    fn holder_pairs(&self, state: &State) -> impl Iterator<Item = (usize, usize, Token, Token)> {
        let held: Vec<_> = (0..state.clients.len()).filter_map(|id| Some((id, state.held_token(id)?))).collect();
        let pair = |(i, (a, t)): (usize, &(usize, Token))| {
            held[i + 1..].iter().map(|(b, u)| (*a, *b, *t, *u)).collect::<Vec<_>>()
        };
        held.iter().enumerate().flat_map(pair).collect::<Vec<_>>().into_iter()
    }

    /// The shortest sequence of events that violates this property, as text. Panics if there is
    /// none.
    fn trace(&self, name: &'static str) -> String {
        let checker = self.clone().checker().threads(1).finish_when(stateright::HasDiscoveries::AnyOf([name].into()));
        let checker = checker.spawn_bfs().join();
        let path = checker.discovery(name).unwrap_or_else(|| panic!("this flaw violates no property: {self:?}"));
        let mut lines = vec![format!("{name}: violated by")];
        for (state, action) in path.into_vec() {
            if let Some(action) = action {
                lines.push(format!("  {}", ReadableStep(&state, action)));
            }
        }
        lines.join("\n")
    }

    /// Searches all states. Panics if one violates a property, or if none has one of the
    /// `expected_events`. Returns the number of states.
    fn check_all_states(&self, expected_events: &[&'static str]) -> usize {
        let checker = self.clone().checker().threads(2).spawn_bfs().join();
        println!("{} states, {} steps deep: {self:?}", checker.unique_state_count(), checker.max_depth());
        for name in [ONE_OWNER, ONE_TOKEN, TOKENS_RISE, NO_HANG] {
            if checker.discovery(name).is_some() {
                panic!("{}", self.trace(name));
            }
        }
        for name in expected_events {
            assert!(checker.discovery(name).is_some(), "no state is `{name}`: {self:?}");
        }
        checker.unique_state_count()
    }
}

/// An event in this state, as text.
struct ReadableStep<'a>(&'a State, Action);

impl fmt::Display for ReadableStep<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(state, action) = self;
        write!(f, "at {:>2}: ", state.now)?;
        match action {
            Action::Start(client) => write!(f, "client {client} begins"),
            Action::Deliver(index) => match &state.in_flight[*index] {
                Message::Request { client, node, request } => {
                    write!(f, "node {node} gets from client {client}: {:?}", request.command)
                }
                Message::Answer { client, node, answer, .. } => {
                    write!(f, "client {client} receives from node {node}: {answer:?}")
                }
            },
            Action::TimeOut(client, node) => write!(f, "client {client} stops waiting for node {node}"),
            Action::Renew(client) => write!(f, "client {client} renews"),
            Action::Release(client) => write!(f, "client {client} releases"),
            Action::Restart(node) => write!(f, "node {node} restarts"),
            Action::Tick => f.write_str("time passes"),
        }
    }
}

/// Two clients without owners, one attempt each, and no faults but late and lost messages.
fn two_clients() -> Bounds {
    Bounds {
        owners: vec![None, None],
        attempts: vec![1, 1],
        renewals: 0,
        restarts: 0,
        time_outs: false,
        releases: false,
        ticks: 1,
        guesses: true,
        answers_arrive_at_once: false,
        are_symmetric: true,
        flaw: Flaw::None,
    }
}

/// Three clients: if one fails, the two others find the claims that it left on the nodes.
fn three_clients() -> Bounds {
    Bounds { owners: vec![None; 3], attempts: vec![1; 3], answers_arrive_at_once: true, ..two_clients() }
}

#[test]
fn a_node_that_loses_its_data_admits_two_holders() {
    for bounds in [two_clients(), three_clients()] {
        let trace = Bounds { restarts: 1, flaw: Flaw::LosesData, ..bounds }.trace(ONE_OWNER);
        println!("{trace}");
        assert!(trace.contains("restarts"), "{trace}");
    }
}

/// The smallest bounds in which each property can be violated. The nightly tests have larger
/// bounds, which take minutes.
#[test]
fn within_narrow_bounds_every_guarantee_holds() {
    let restarts = Bounds { restarts: 1, answers_arrive_at_once: true, ..two_clients() }.check_all_states(&[RESTARTED]);
    let rounds =
        Bounds { guesses: false, answers_arrive_at_once: true, ..two_clients() }.check_all_states(&[SECOND_ROUND]);
    let together = Bounds { owners: vec![Some(1); 2], answers_arrive_at_once: true, ..two_clients() }
        .check_all_states(&[TOGETHER]);
    let renewed = Bounds { renewals: 1, answers_arrive_at_once: true, ..two_clients() }.check_all_states(&[RENEWED]);
    println!("{restarts}, {rounds}, {together}, {renewed}");
    assert!([restarts, rounds, together, renewed].iter().all(|states| *states > 500));
}

#[cfg(feature = "nightly")]
#[test]
fn nodes_that_cool_down_admit_one_holder() {
    let late = Bounds { restarts: 1, time_outs: true, ..two_clients() }.check_all_states(&[RESTARTED]);
    let long = Bounds { restarts: 1, ticks: 2, releases: true, answers_arrive_at_once: true, ..two_clients() }
        .check_all_states(&[IN_TURN, RESTARTED]);
    assert!(late > 50_000 && long > 50_000, "{late}, {long}");
}

#[cfg(feature = "nightly")]
#[test]
fn three_clients_never_hold_together() {
    let restarts = Bounds { restarts: 1, ..three_clients() }.check_all_states(&[RESTARTED]);
    let rounds = Bounds { guesses: false, ..three_clients() }.check_all_states(&[SECOND_ROUND]);
    assert!(restarts > 50_000 && rounds > 50_000, "{restarts}, {rounds}");
}

#[cfg(feature = "nightly")]
#[test]
fn tokens_rise_across_losses_releases_and_second_rounds() {
    let lossy = Bounds { time_outs: true, releases: true, guesses: false, ..two_clients() };
    let states = lossy.check_all_states(&[IN_TURN, SECOND_ROUND]);
    assert!(states > 400_000, "{states}");
}

#[cfg(feature = "nightly")]
#[test]
fn claims_of_one_owner_share_their_token() {
    let states = Bounds { owners: vec![Some(1); 2], releases: true, ..two_clients() }
        .check_all_states(&[TOGETHER, SECOND_ROUND]);
    assert!(states > 100_000, "{states}");
}

#[cfg(feature = "nightly")]
#[test]
fn a_renewed_lease_excludes_others() {
    let states = Bounds { renewals: 1, ticks: 2, answers_arrive_at_once: true, ..two_clients() }
        .check_all_states(&[IN_TURN, RENEWED]);
    assert!(states > 50_000, "{states}");
}

#[test]
fn the_checker_finds_tokens_that_do_not_rise() {
    for (flaw, guesses) in [(Flaw::StoresAny, true), (Flaw::LosesTokens, false), (Flaw::OneRound, false)] {
        println!("{flaw:?}: {}", Bounds { releases: true, guesses, flaw, ..two_clients() }.trace(TOKENS_RISE));
    }
}
