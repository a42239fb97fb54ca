//! Every order of events within small bounds: three nodes, two or three clients, messages that
//! arrive in any order or never, and nodes that restart. The decisions of clients and nodes are the
//! real code; time passes in ticks, the same for all.

use std::fmt;
use std::time::Duration;

use leasehold::Token;
use leasehold::clock::Moment;
use leasehold::logic::ballots::Ballots;
use leasehold::logic::lease::Drift;
use leasehold::logic::quorum::{Vote, Written};
use stateright::{Checker, Model, Property};

use crate::quorum::client::{Answer, Client, Effects, Event, Order, Phase, Request, Terms, serve};

const NODES: usize = 3;
/// One tick of the common clock. Tokens use the same unit, as in production: a tick has space for
/// several.
const TICK: u64 = 10;
/// The duration of a lease.
const TTL: u64 = TICK;

/// A deliberate error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// A node that restarts has lost all data, and continues.
    Forgets,
    /// A node claims that it stored a token that is not higher than all others.
    StoresAny,
    /// A node forgets the token of a released claim.
    ForgetsTokens,
    /// A client accepts a majority of votes, and does not write the token.
    OneRound,
}

/// The bounds of the search.
#[derive(Clone, Debug)]
struct Bounds {
    owners: Vec<Option<u128>>,
    /// How many attempts each client makes.
    attempts: Vec<u64>,
    renewals: usize,
    restarts: usize,
    /// Whether clients may time out. (Messages are late or lost without that, too.)
    time_outs: bool,
    /// Whether clients release; leases end without that, too.
    releases: bool,
    ticks: u64,
    guesses: bool,
    /// Whether an answer arrives at once.
    prompt: bool,
    /// All clients have the same bounds.
    alike: bool,
    flaw: Flaw,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Message {
    Ask { client: usize, node: usize, request: Request },
    Tell { client: usize, node: usize, attempt: u64, answer: Answer },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u64,
    nodes: Vec<Ballots>,
    clients: Vec<Client>,
    attempts: Vec<u64>,
    /// In the order of sending; any message may arrive next, or never.
    wire: Vec<Message>,
    renewals: usize,
    restarts: usize,
    /// The clients that were granted the lock, in this order.
    grants: Vec<(usize, Token)>,
    /// Whether a grant resulted from a second round, and whether a lease was renewed.
    wrote: bool,
    extended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    Start(usize),
    /// The message at this position of the wire arrives.
    Arrives(usize),
    /// A client stops waiting for a node.
    TimesOut(usize, usize),
    Renew(usize),
    Release(usize),
    Restart(usize),
    Tick,
}

fn terms() -> Terms {
    let drift = Drift { ppm: 0, fixed: Duration::ZERO };
    Terms { ttl: Duration::from_nanos(TTL), node_ttl: TTL, drift }
}

/// Lets a node with this flaw handle a message.
fn serve_with(flaw: Flaw, node: &mut Ballots, now: u64, request: &Request) -> Option<Answer> {
    let order = match request.order {
        Order::Release if flaw == Flaw::ForgetsTokens => Order::Withdraw,
        order => order,
    };
    let answer = serve(node, now, &Request { order, ..*request });
    match (answer, order) {
        (Some(Answer::Vote(Vote::Yes { last, own: Token(0), bound })), Order::Take(own)) if flaw == Flaw::StoresAny => {
            Some(Answer::Vote(Vote::Yes { last, own, bound }))
        }
        _ => answer,
    }
}

impl State {
    fn moment(&self) -> Moment {
        Moment::from_nanos(self.now)
    }

    /// The token of a client that holds the lock now.
    fn holds(&self, client: usize) -> Option<Token> {
        self.clients[client].held().filter(|(_, until)| *until > self.moment()).map(|(token, _)| token)
    }

    fn follow(&mut self, client: usize, effects: Effects) {
        match effects.event {
            Some(Event::Granted(token)) => self.grants.push((client, token)),
            Some(Event::Extended) => self.extended = true,
            _ => {}
        }
        self.wire.extend(effects.sends.into_iter().map(|(node, request)| Message::Ask { client, node, request }));
        let clients = &self.clients;
        // An answer that no client waits for might as well be lost.
        self.wire.retain(|message| match message {
            Message::Tell { client, node, attempt, answer } => clients[*client].expects(*node, *attempt, *answer),
            Message::Ask { .. } => true,
        });
    }

    fn hear(&mut self, flaw: Flaw, client: usize, node: usize, attempt: u64, answer: Answer) {
        let now = self.moment();
        let writes = matches!(answer, Answer::Wrote(..));
        let mut effects = self.clients[client].hear(&terms(), now, node, attempt, answer);
        if let (Flaw::OneRound, Phase::Taking { taking, sent, .. }) = (flaw, &self.clients[client].phase)
            && let Some(token) = taking.writing()
        {
            let until = sent.after(terms().ttl);
            self.clients[client].phase = Phase::Held { token, until, renewal: None };
            effects = Effects { sends: Vec::new(), event: Some(Event::Granted(token)) };
        }
        self.wrote |= writes && matches!(effects.event, Some(Event::Granted(_)));
        self.follow(client, effects);
    }

    fn arrives(&mut self, bounds: &Bounds, place: usize) {
        match self.wire.remove(place) {
            Message::Tell { client, node, attempt, answer } => self.hear(bounds.flaw, client, node, attempt, answer),
            Message::Ask { client, node, request } => {
                let answer = serve_with(bounds.flaw, &mut self.nodes[node], self.now, &request);
                let attempt = request.ask.attempt;
                if let Some(answer) = answer
                    && self.clients[client].expects(node, attempt, answer)
                {
                    if bounds.prompt {
                        return self.hear(bounds.flaw, client, node, attempt, answer);
                    }
                    self.wire.push(Message::Tell { client, node, attempt, answer });
                }
            }
        }
    }

    fn times_out(&mut self, flaw: Flaw, client: usize, node: usize) {
        let answer = match self.clients[client].open[node] {
            Some(Order::Take(_)) => Answer::Vote(Vote::Silent),
            Some(Order::Write(token)) => Answer::Wrote(token, Written::Silent),
            _ => Answer::Renewed(None),
        };
        let attempt = self.clients[client].waiting().unwrap_or_default();
        self.hear(flaw, client, node, attempt, answer);
    }

    fn tick(&mut self) {
        self.now += TICK;
        for client in 0..self.clients.len() {
            let now = self.moment();
            let effects = self.clients[client].expire(&terms(), now);
            self.follow(client, effects);
        }
    }

    /// The order on the wire does not matter: states that differ only in it are the same.
    fn settle(&mut self) {
        self.wire.sort_by_key(|message| match message {
            Message::Ask { client, node, request } => (0, *client, *node, request.ask.attempt, request.order),
            Message::Tell { client, node, attempt, answer } => {
                let to = match answer {
                    Answer::Vote(_) => Order::Take(Token::default()),
                    Answer::Wrote(token, _) => Order::Write(*token),
                    Answer::Renewed(_) => Order::Renew(Token::default()),
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
            nodes: vec![Ballots::default(); NODES],
            clients: self.owners.iter().enumerate().map(client).collect(),
            attempts: vec![0; self.owners.len()],
            wire: Vec::new(),
            renewals: 0,
            restarts: 0,
            grants: Vec::new(),
            wrote: false,
            extended: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (id, client) in state.clients.iter().enumerate() {
            // Identical clients start in their order.
            let first = id == 0 || !self.alike || state.attempts[id - 1] > 0;
            match &client.phase {
                Phase::Idle if first && state.attempts[id] < self.attempts[id] => actions.push(Action::Start(id)),
                Phase::Idle | Phase::Taking { .. } => {}
                Phase::Held { renewal, .. } => {
                    if self.releases {
                        actions.push(Action::Release(id));
                    }
                    if renewal.is_none() && state.renewals < self.renewals {
                        actions.push(Action::Renew(id));
                    }
                }
            }
            if self.time_outs {
                let open = client.open.iter().enumerate().filter(|(_, open)| open.is_some());
                actions.extend(open.map(|(node, _)| Action::TimesOut(id, node)));
            }
        }
        actions.extend((0..state.wire.len()).map(Action::Arrives));
        if state.restarts < self.restarts {
            // The nodes are identical: it might as well be the first.
            actions.push(Action::Restart(0));
        }
        if state.now < self.ticks * TICK {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let now = state.moment();
        match action {
            Action::Start(client) => {
                state.attempts[client] += 1;
                let guess = if self.guesses { Token(state.now) } else { Token::default() };
                let attempt = state.attempts[client];
                let effects = state.clients[client].start(&terms(), now, attempt, guess);
                state.follow(client, effects);
            }
            Action::Arrives(place) => state.arrives(self, place),
            Action::TimesOut(client, node) => state.times_out(self.flaw, client, node),
            Action::Renew(client) => {
                state.renewals += 1;
                // Later than any attempt.
                let attempt = 100 + state.renewals as u64;
                let effects = state.clients[client].renew(&terms(), now, attempt);
                state.follow(client, effects);
            }
            Action::Release(client) => {
                let effects = state.clients[client].release(&terms());
                state.follow(client, effects);
            }
            Action::Restart(node) => {
                state.restarts += 1;
                state.nodes[node] = match self.flaw {
                    Flaw::Forgets => Ballots::default(),
                    _ => Ballots::abstaining(state.now + TTL),
                };
            }
            Action::Tick => state.tick(),
        }
        state.settle();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_OWNER, |model, state| model.pairs(state).all(|(a, b, _, _)| model.same(a, b))),
            Property::always(ONE_TOKEN, |model, state: &State| {
                model.pairs(state).all(|(a, b, t, u)| !model.same(a, b) || t == u)
            }),
            Property::always(TOKENS_RISE, |model, state: &State| {
                let grants = || state.grants.iter().enumerate();
                let rises = |i: usize, a: &(usize, Token), j: usize, b: &(usize, Token)| {
                    i >= j || model.same(a.0, b.0) || a.1 < b.1
                };
                grants().all(|(i, a)| grants().all(|(j, b)| rises(i, a, j, b)))
            }),
            Property::always(NO_HANG, |_, state: &State| {
                let waits = |client: &Client| client.open.iter().any(Option::is_some);
                state.clients.iter().all(|client| !matches!(client.phase, Phase::Taking { .. }) || waits(client))
            }),
            Property::sometimes(IN_TURN, |model, state: &State| {
                state.grants.iter().any(|(a, _)| state.grants.iter().any(|(b, _)| a != b && !model.same(*a, *b)))
            }),
            Property::sometimes(TOGETHER, |model, state| model.pairs(state).next().is_some()),
            Property::sometimes(SECOND_ROUND, |_, state: &State| state.wrote),
            Property::sometimes(RENEWED, |_, state: &State| state.extended),
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
const NO_HANG: &str = "whoever waits, waits for something";

impl Bounds {
    /// Whether two clients have the same owner.
    fn same(&self, a: usize, b: usize) -> bool {
        a == b || self.owners[a].is_some() && self.owners[a] == self.owners[b]
    }

    /// All pairs of clients that hold the lock now, with their tokens.
    fn pairs(&self, state: &State) -> impl Iterator<Item = (usize, usize, Token, Token)> {
        let held: Vec<_> = (0..state.clients.len()).filter_map(|id| Some((id, state.holds(id)?))).collect();
        let pair = |(i, (a, t)): (usize, &(usize, Token))| {
            held[i + 1..].iter().map(|(b, u)| (*a, *b, *t, *u)).collect::<Vec<_>>()
        };
        held.iter().enumerate().flat_map(pair).collect::<Vec<_>>().into_iter()
    }

    /// The shortest sequence that violates a property, as a text.
    fn trace(&self, name: &'static str) -> String {
        let checker = self.clone().checker().threads(1).finish_when(stateright::HasDiscoveries::AnyOf([name].into()));
        let checker = checker.spawn_bfs().join();
        let path = checker.discovery(name).unwrap_or_else(|| panic!("this flaw breaks nothing: {self:?}"));
        let mut lines = vec![format!("{name}: broken by")];
        for (state, action) in path.into_vec() {
            if let Some(action) = action {
                lines.push(format!("  {}", Told(&state, action)));
            }
        }
        lines.join("\n")
    }

    /// Searches all states and requires that no property fails. Returns the number of states.
    fn exhaust(&self, sights: &[&'static str]) -> usize {
        let checker = self.clone().checker().threads(2).spawn_bfs().join();
        println!("{} states, {} steps deep: {self:?}", checker.unique_state_count(), checker.max_depth());
        for name in [ONE_OWNER, ONE_TOKEN, TOKENS_RISE, NO_HANG] {
            if checker.discovery(name).is_some() {
                panic!("{}", self.trace(name));
            }
        }
        for name in sights {
            assert!(checker.discovery(name).is_some(), "never {name}: {self:?}");
        }
        checker.unique_state_count()
    }
}

/// A step as people read it.
struct Told<'a>(&'a State, Action);

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(state, action) = self;
        write!(f, "at {:>2}: ", state.now)?;
        match action {
            Action::Start(client) => write!(f, "client {client} begins"),
            Action::Arrives(place) => match &state.wire[*place] {
                Message::Ask { client, node, request } => {
                    write!(f, "node {node} gets from client {client}: {:?}", request.order)
                }
                Message::Tell { client, node, answer, .. } => {
                    write!(f, "client {client} hears from node {node}: {answer:?}")
                }
            },
            Action::TimesOut(client, node) => write!(f, "client {client} waits no longer for node {node}"),
            Action::Renew(client) => write!(f, "client {client} renews"),
            Action::Release(client) => write!(f, "client {client} gives back"),
            Action::Restart(node) => write!(f, "node {node} restarts"),
            Action::Tick => f.write_str("time passes"),
        }
    }
}

fn two() -> Bounds {
    Bounds {
        owners: vec![None, None],
        attempts: vec![1, 1],
        renewals: 0,
        restarts: 0,
        time_outs: false,
        releases: false,
        ticks: 1,
        guesses: true,
        prompt: false,
        alike: true,
        flaw: Flaw::None,
    }
}

/// Three clients: one that fails leaves state behind that the others run into.
fn three() -> Bounds {
    Bounds { owners: vec![None; 3], attempts: vec![1; 3], prompt: true, ..two() }
}

#[test]
fn a_node_that_forgets_lets_two_in() {
    for bounds in [two(), three()] {
        let trace = Bounds { restarts: 1, flaw: Flaw::Forgets, ..bounds }.trace(ONE_OWNER);
        println!("{trace}");
        assert!(trace.contains("restarts"), "{trace}");
    }
}

/// The smallest bounds in which each property can be violated; the larger ones take minutes.
#[test]
fn within_narrow_bounds_every_promise_holds() {
    let restarts = Bounds { restarts: 1, prompt: true, ..two() }.exhaust(&[RESTARTED]);
    let rounds = Bounds { guesses: false, prompt: true, ..two() }.exhaust(&[SECOND_ROUND]);
    let together = Bounds { owners: vec![Some(1); 2], prompt: true, ..two() }.exhaust(&[TOGETHER]);
    let renewed = Bounds { renewals: 1, prompt: true, ..two() }.exhaust(&[RENEWED]);
    println!("{restarts}, {rounds}, {together}, {renewed}");
    assert!([restarts, rounds, together, renewed].iter().all(|states| *states > 500));
}

#[cfg(feature = "nightly")]
#[test]
fn nodes_that_abstain_let_one_in() {
    let late = Bounds { restarts: 1, time_outs: true, ..two() }.exhaust(&[RESTARTED]);
    let long = Bounds { restarts: 1, ticks: 2, releases: true, prompt: true, ..two() }.exhaust(&[IN_TURN, RESTARTED]);
    assert!(late > 50_000 && long > 50_000, "{late}, {long}");
}

#[cfg(feature = "nightly")]
#[test]
fn three_clients_meet_nobody() {
    let restarts = Bounds { restarts: 1, ..three() }.exhaust(&[RESTARTED]);
    let rounds = Bounds { guesses: false, ..three() }.exhaust(&[SECOND_ROUND]);
    assert!(restarts > 50_000 && rounds > 50_000, "{restarts}, {rounds}");
}

#[cfg(feature = "nightly")]
#[test]
fn tokens_rise_over_losses_releases_and_second_rounds() {
    let lossy = Bounds { time_outs: true, releases: true, guesses: false, ..two() };
    let states = lossy.exhaust(&[IN_TURN, SECOND_ROUND]);
    assert!(states > 400_000, "{states}");
}

#[cfg(feature = "nightly")]
#[test]
fn claims_of_one_owner_share_their_token() {
    let states = Bounds { owners: vec![Some(1); 2], releases: true, ..two() }.exhaust(&[TOGETHER, SECOND_ROUND]);
    assert!(states > 100_000, "{states}");
}

#[cfg(feature = "nightly")]
#[test]
fn a_renewed_lease_is_as_good() {
    let states = Bounds { renewals: 1, ticks: 2, prompt: true, ..two() }.exhaust(&[IN_TURN, RENEWED]);
    assert!(states > 50_000, "{states}");
}

#[test]
fn the_checker_finds_tokens_that_do_not_rise() {
    for (flaw, guesses) in [(Flaw::StoresAny, true), (Flaw::ForgetsTokens, false), (Flaw::OneRound, false)] {
        println!("{flaw:?}: {}", Bounds { releases: true, guesses, flaw, ..two() }.trace(TOKENS_RISE));
    }
}
