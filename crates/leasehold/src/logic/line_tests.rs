//! Many clients that know only what they have listed and been notified of, late, compared with the
//! true list.

use std::collections::VecDeque;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};

use super::super::table::{Party, Table, Verdict};
use super::*;
use crate::claim::{Owner, Token};
use crate::clock::Moment;

/// Rules that can be left out, to show that the simulation finds what they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// If a watched node was changed since it was created, the list is read again.
    ListingAgain,
    /// Positions are compared by their wrapped difference.
    Wrapping,
    /// A claim that is granted after others may have seen it wait notifies them.
    News,
    /// The same if it found its grant in its first list.
    NewsOfTheFirstList,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happening {
    Deleted,
    Changed,
    Children,
}

/// A server's messages to one client, in order.
#[derive(Clone, Debug)]
enum Word {
    List(Vec<Stand>),
    /// The version of the node that was to be watched; `None`: that node is gone, or the client's
    /// own.
    Armed(Option<u32>),
    /// The version and token of the host to ride on.
    Host(Option<(u32, u64)>),
    /// The rider's sequence number.
    Rides(Option<i32>),
    /// A watch has fired.
    Event(u32, Happening),
    /// The client's own node is gone.
    PutOut,
}

/// The state of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Lists { all: bool },
    Arms { and_list: bool },
    AsksHost(Id),
    Rides,
    Waits,
    Holds,
    Gone,
}

#[derive(Clone, Debug)]
struct Client {
    stand: Stand,
    queue: bool,
    /// Whether it has no position yet.
    new: bool,
    state: State,
    line: Line,
    /// The watch that it has, and whether it has fired.
    armed: Option<(Watch, u32, Option<Happening>)>,
    own_watched: bool,
    inbox: VecDeque<Word>,
    news: bool,
    token: u64,
}

#[derive(Clone, Debug)]
struct Node {
    stand: Stand,
    version: u32,
    czxid: u64,
    client: usize,
}

/// The true list, and all clients.
struct World {
    without: Without,
    nodes: Vec<Node>,
    next: i32,
    zxid: u64,
    /// Which client watches which node by which watch.
    watches: Vec<(usize, i32, u32)>,
    children: Vec<(usize, u32)>,
    own: Vec<(usize, i32)>,
    watch: u32,
    clients: Vec<Client>,
    granted: Vec<i32>,
    highest: u64,
}

impl World {
    fn new(without: Without, first: i32) -> Self {
        Self {
            without,
            nodes: Vec::new(),
            next: first,
            zxid: 0,
            watches: Vec::new(),
            children: Vec::new(),
            own: Vec::new(),
            watch: 0,
            clients: Vec::new(),
            granted: Vec::new(),
            highest: 0,
        }
    }

    fn line(&self, mut stands: Vec<Stand>) -> Line {
        if self.without == Without::Wrapping {
            stands.sort_by_key(|stand| (stand.place(), stand.ride.is_some(), stand.seq));
            return Line(stands);
        }
        Line::new(stands)
    }

    /// The true state, by the order in which the nodes were created.
    fn truth(&self) -> Line {
        let mut nodes: Vec<&Node> = self.nodes.iter().collect();
        nodes.sort_by_key(|node| {
            (node.stand.ride.map_or(node.czxid, |ride| ride.token), node.stand.ride.is_some(), node.czxid)
        });
        Line(nodes.into_iter().map(|node| node.stand.clone()).collect())
    }

    fn create(&mut self, client: usize, mut stand: Stand) -> Stand {
        stand.seq = self.next;
        self.next = self.next.wrapping_add(1);
        self.zxid += 1;
        self.nodes.push(Node { stand: stand.clone(), version: 0, czxid: self.zxid, client });
        self.children_changed();
        stand
    }

    fn children_changed(&mut self) {
        for (client, watch) in std::mem::take(&mut self.children) {
            self.clients[client].inbox.push_back(Word::Event(watch, Happening::Children));
        }
    }

    fn fire(&mut self, seq: i32, what: Happening) {
        let (fired, kept) = std::mem::take(&mut self.watches).into_iter().partition(|(_, node, _)| *node == seq);
        self.watches = kept;
        let fired: Vec<(usize, i32, u32)> = fired;
        for (client, _, watch) in fired {
            self.clients[client].inbox.push_back(Word::Event(watch, what));
        }
    }

    fn delete(&mut self, seq: i32) {
        let Some(at) = self.nodes.iter().position(|node| node.stand.seq == seq) else { return };
        self.nodes.remove(at);
        let put_out: Vec<usize> = self.own.iter().filter(|(_, own)| *own == seq).map(|(client, _)| *client).collect();
        self.own.retain(|(_, own)| *own != seq);
        put_out.into_iter().for_each(|client| self.clients[client].inbox.push_back(Word::PutOut));
        self.fire(seq, Happening::Deleted);
        self.children_changed();
    }

    fn node(&self, seq: i32) -> Option<&Node> {
        self.nodes.iter().find(|node| node.stand.seq == seq)
    }

    fn set_data(&mut self, seq: i32) {
        if let Some(node) = self.nodes.iter_mut().find(|node| node.stand.seq == seq) {
            node.version += 1;
            self.zxid += 1;
            self.fire(seq, Happening::Changed);
        }
    }

    fn join(&mut self, owner: Option<u64>, mode: Mode, queue: bool) {
        let client = self.clients.len();
        let stand = Stand { claim: ClaimId::from_bits(client as u128), mode, owner, ride: None, seq: 0 };
        let stand = self.create(client, stand);
        self.clients.push(Client {
            stand,
            queue,
            new: true,
            state: State::Waits,
            line: Line::default(),
            armed: None,
            own_watched: false,
            inbox: VecDeque::new(),
            news: false,
            token: self.zxid,
        });
        if self.nodes.len() == 1 { self.hold(client, false) } else { self.list(client, false) }
    }

    fn list(&mut self, client: usize, all: bool) {
        let stands = self.nodes.iter().map(|node| node.stand.clone()).collect();
        if all {
            self.watch += 1;
            self.children.push((client, self.watch));
            self.clients[client].armed = Some((Watch::All, self.watch, None));
        }
        self.clients[client].inbox.push_back(Word::List(stands));
        self.clients[client].state = State::Lists { all };
    }

    fn arm(&mut self, client: usize, watch: Watch, and_list: bool) {
        let Watch::One((_, target)) = watch else { return };
        let seq = self.clients[client].stand.seq;
        let next = self.clients[client].line.is_next_after(self.clients[client].stand.id(), watch);
        let mut version = self.node(target).map(|node| node.version);
        if version.is_some() {
            self.watch += 1;
            self.watches.push((client, target, self.watch));
        }
        if next && !self.clients[client].own_watched {
            if self.node(seq).is_some() {
                self.own.push((client, seq));
                self.clients[client].own_watched = true;
            } else {
                version = None;
            }
        }
        let me = &mut self.clients[client];
        me.armed = version.map(|_| (watch, self.watch, None));
        me.inbox.push_back(Word::Armed(version));
        me.state = State::Arms { and_list };
    }

    fn hold(&mut self, client: usize, seen: bool) {
        let me = &mut self.clients[client];
        me.state = State::Holds;
        me.armed = None;
        me.news = seen && self.without != Without::News;
    }

    fn leave(&mut self, client: usize) {
        self.clients[client].state = State::Gone;
        self.own.retain(|(whose, _)| *whose != client);
        let own: Vec<i32> = self.nodes.iter().filter(|node| node.client == client).map(|node| node.stand.seq).collect();
        own.into_iter().for_each(|seq| self.delete(seq));
    }

    fn tell(&mut self, client: usize) {
        if std::mem::take(&mut self.clients[client].news) && self.clients[client].state == State::Holds {
            self.set_data(self.clients[client].stand.seq);
        }
    }

    /// A client handles its oldest message. `false`: there was none.
    fn step(&mut self, client: usize) -> bool {
        let me = &mut self.clients[client];
        let Some(word) = me.inbox.pop_front() else { return false };
        match (me.state, word) {
            (State::Gone, _) => {}
            (_, Word::PutOut) => self.leave(client),
            (_, Word::Event(watch, what)) => {
                if let Some((_, armed, fired)) = &mut me.armed
                    && *armed == watch
                {
                    *fired = Some(what);
                }
                self.wake(client);
            }
            (State::Lists { all }, Word::List(stands)) => self.listed(client, stands, all),
            (State::Arms { and_list }, Word::Armed(version)) => {
                let enough = version == Some(0) || (version.is_some() && self.without == Without::ListingAgain);
                if enough && !and_list {
                    self.wait(client);
                } else {
                    self.list(client, false);
                }
            }
            (State::AsksHost(host), Word::Host(found)) => self.ride(client, host, found),
            (State::Rides, Word::Rides(Some(seq))) => {
                self.clients[client].stand =
                    self.node(seq).map_or(self.clients[client].stand.clone(), |n| n.stand.clone());
                self.clients[client].stand.seq = seq;
                self.hold(client, false);
            }
            (State::Rides, Word::Rides(None)) => self.list(client, false),
            (state, word) => panic!("{word:?} while {state:?}"),
        }
        true
    }

    fn listed(&mut self, client: usize, stands: Vec<Stand>, all: bool) {
        let line = self.line(stands);
        let me = &mut self.clients[client];
        me.line = line;
        let (id, queue) = (me.stand.id(), me.queue);
        match me.line.standing(id, me.new) {
            Standing::Holds => {
                let first = me.new && self.without == Without::NewsOfTheFirstList;
                let seen = if me.new { me.line.has_behind(id) && !first } else { true };
                self.hold(client, seen);
            }
            Standing::Refused(_) | Standing::Absent => self.leave(client),
            Standing::MayRide(host) => {
                let found =
                    self.node(host.1).map(|node| (node.version, node.stand.ride.map_or(node.czxid, |ride| ride.token)));
                self.clients[client].inbox.push_back(Word::Host(found));
                self.clients[client].state = State::AsksHost(host);
            }
            Standing::Waits { .. } if !queue => self.leave(client),
            Standing::Waits { watch: Watch::All, .. } if all => self.wait(client),
            Standing::Waits { watch: Watch::All, .. } => self.list(client, true),
            Standing::Waits { watch, .. } => {
                if me.armed.is_some_and(|(armed, ..)| armed == watch) {
                    self.wait(client);
                } else {
                    self.arm(client, watch, false);
                }
            }
        }
    }

    fn ride(&mut self, client: usize, host: Id, found: Option<(u32, u64)>) {
        let me = &self.clients[client];
        let (own, under) = (me.stand.seq, me.line.find(host).map(Stand::place));
        let fits = self.node(host.1).map(|node| node.version) == found.map(|(version, _)| version);
        let (Some((_, token)), Some(under), true, true) = (found, under, fits, self.node(own).is_some()) else {
            self.clients[client].inbox.push_back(Word::Rides(None));
            self.clients[client].state = State::Rides;
            return;
        };
        let stand = Stand { ride: Some(Ride { under, token }), ..me.stand.clone() };
        // One transaction.
        self.set_data(host.1);
        self.own.retain(|(whose, _)| *whose != client);
        self.delete(own);
        let stand = self.create(client, stand);
        let me = &mut self.clients[client];
        (me.armed, me.own_watched, me.token) = (None, false, token);
        me.inbox.push_back(Word::Rides(Some(stand.seq)));
        me.state = State::Rides;
    }

    fn wait(&mut self, client: usize) {
        self.clients[client].state = State::Waits;
        self.clients[client].new = false;
        let me = &mut self.clients[client];
        let next = me.armed.is_some_and(|(watch, ..)| me.line.is_next_after(me.stand.id(), watch));
        if next && !me.own_watched {
            // The reply carries no other information.
            let seq = me.stand.seq;
            if self.node(seq).is_none() {
                return self.leave(client);
            }
            self.own.push((client, seq));
            self.clients[client].own_watched = true;
        }
        self.wake(client);
    }

    /// A waiter whose watch has fired.
    fn wake(&mut self, client: usize) {
        let me = &mut self.clients[client];
        let (State::Waits, Some((watch, _, Some(what)))) = (me.state, me.armed) else { return };
        me.armed = None;
        match what {
            Happening::Deleted if me.own_watched && me.line.is_next_after(me.stand.id(), watch) => {
                self.hold(client, true)
            }
            Happening::Changed => self.arm(client, watch, true),
            Happening::Deleted | Happening::Children => self.list(client, false),
        }
    }

    /// The clients that believe to hold and were not force-released.
    fn believers(&self) -> Vec<&Client> {
        let there = |client: &&Client| client.state == State::Holds && self.node(client.stand.seq).is_some();
        self.clients.iter().filter(there).collect()
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        let believers = self.believers();
        for (at, one) in believers.iter().enumerate() {
            let others = believers.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, other)| *other);
            let strangers =
                others.clone().filter(|other| other.stand.owner.is_none() || other.stand.owner != one.stand.owner);
            let beside = strangers.map(|other| (other.stand.owner, other.stand.mode));
            prop_assert!(fits_owned(one.stand.mode, beside), "{:?} beside {believers:?}", one.stand);
            for other in others.filter(|other| one.stand.owner.is_some() && other.stand.owner == one.stand.owner) {
                prop_assert_eq!(one.token, other.token, "an owner has one token");
            }
        }
        let truth = self.truth();
        let holders = &truth.stands()[..truth.holders()];
        for one in &believers {
            prop_assert!(holders.contains(&one.stand), "{:?} believes to hold; the list: {truth:?}", one.stand);
        }
        // Tokens rise with the grants.
        for stand in holders {
            if !self.granted.contains(&stand.seq) {
                self.granted.push(stand.seq);
                let token = self.node(stand.seq).map_or(0, |node| stand.ride.map_or(node.czxid, |ride| ride.token));
                prop_assert!(stand.ride.is_some() || token > self.highest, "token {token} after {}", self.highest);
                self.highest = self.highest.max(token);
            }
        }
        Ok(())
    }

    /// Delivers and handles all messages.
    fn drain(&mut self) -> Result<(), TestCaseError> {
        let mut busy = true;
        for _ in 0..10_000 {
            if !busy {
                break;
            }
            busy = false;
            for client in 0..self.clients.len() {
                busy |= self.clients[client].news;
                self.tell(client);
                busy |= self.step(client);
                self.check()?;
            }
        }
        prop_assert!(!busy, "they never rest");
        let truth = self.truth();
        for (at, stand) in truth.stands().iter().enumerate() {
            let client =
                self.clients.iter().find(|client| client.stand.seq == stand.seq && client.state != State::Gone);
            let state = client.map(|client| client.state);
            let should = if at < truth.holders() { State::Holds } else { State::Waits };
            prop_assert_eq!(state, Some(should), "{:?} in {:?}", stand, truth);
        }
        Ok(())
    }
}

#[derive(Clone, Debug)]
enum Op {
    Join { owner: Option<u64>, mode: Mode, queue: bool },
    Step(usize),
    Tell(usize),
    Leave(usize),
    Evict(usize),
    Drain,
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![
        3 => Just(Mode::Exclusive),
        2 => Just(Mode::Shared),
        3 => (1u32..=3).prop_map(|n| Mode::Permits { n, limit: 3 }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (prop::option::of(0u64..2), mode(), prop::bool::weighted(0.85))
            .prop_map(|(owner, mode, queue)| Op::Join { owner, mode, queue }),
        24 => any::<usize>().prop_map(Op::Step),
        2 => any::<usize>().prop_map(Op::Tell),
        6 => any::<usize>().prop_map(Op::Leave),
        1 => any::<usize>().prop_map(Op::Evict),
        1 => Just(Op::Drain),
    ]
}

/// Numbers start where most locks do, or just before they wrap around.
fn first() -> impl Strategy<Value = i32> {
    prop_oneof![Just(0), (0..12).prop_map(|before| i32::MAX - before)]
}

fn simulate(without: Without, first: i32, ops: &[Op]) -> Result<(), TestCaseError> {
    let mut world = World::new(without, first);
    for op in ops {
        let alive: Vec<usize> =
            (0..world.clients.len()).filter(|client| world.clients[*client].state != State::Gone).collect();
        let pick = |at: usize| (!alive.is_empty()).then(|| alive[at % alive.len()]);
        match op {
            Op::Join { owner, mode, queue } if alive.len() < 7 => world.join(*owner, *mode, *queue),
            Op::Join { .. } => {}
            Op::Step(at) => drop(pick(*at).map(|client| world.step(client))),
            Op::Tell(at) => pick(*at).into_iter().for_each(|client| world.tell(client)),
            Op::Leave(at) => pick(*at).into_iter().for_each(|client| world.leave(client)),
            Op::Evict(at) => {
                // A holder learns of it by other means; a waiter by its own watch or its next list.
                if let Some(client) = pick(*at).filter(|client| world.clients[*client].state == State::Holds) {
                    world.leave(client);
                } else if let Some(client) = pick(*at).filter(|client| world.clients[*client].own_watched) {
                    world.delete(world.clients[client].stand.seq);
                }
            }
            Op::Drain => world.drain()?,
        }
        world.check()?;
    }
    world.drain()?;
    // Every claim is granted in the end.
    while let Some(first) = world.truth().stands().first().map(|stand| stand.seq) {
        let client = world.node(first).map_or(0, |node| node.client);
        world.leave(client);
        world.drain()?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(feature = "nightly") { 3_000 } else { 500 }))]

    /// However late messages are: no client believes to hold beside another, and once all messages
    /// are delivered, every holder knows that it holds.
    #[test]
    fn clients_that_are_told_late_agree_with_the_list(first in first(), ops in prop::collection::vec(op(), 0..120)) {
        simulate(Without::Nothing, first, &ops)?;
    }
}

const EXCLUSION: [&str; 2] = ["beside", "believes"];
const ASLEEP: [&str; 1] = ["Waits"];

/// Searches for a history that fails in one of these ways. A mistake may have several consequences,
/// and which of them a random history shows first is chance.
fn finds_the_mistake(without: Without, consequence: &[&str]) {
    let config = Config { cases: 30_000, failure_persistence: None, max_shrink_iters: 2_000, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let found = runner.run(&(first(), prop::collection::vec(op(), 0..120)), |(first, ops)| {
        let failure = simulate(without, first, &ops).err();
        match failure.filter(|failure| consequence.iter().any(|words| failure.to_string().contains(words))) {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    });
    assert!(matches!(found, Err(TestError::Fail(..))), "without {without:?} nothing was found: {found:?}");
}

#[test]
fn without_listing_again_a_rider_is_overlooked() {
    finds_the_mistake(Without::ListingAgain, &EXCLUSION);
}

#[test]
fn without_wrapping_somebody_passes_the_holder() {
    finds_the_mistake(Without::Wrapping, &EXCLUSION);
}

#[test]
fn without_news_somebody_who_fits_sleeps() {
    finds_the_mistake(Without::News, &ASLEEP);
}

#[test]
fn without_news_of_the_first_list_somebody_who_fits_sleeps() {
    finds_the_mistake(Without::NewsOfTheFirstList, &ASLEEP);
}

#[test]
fn a_claim_that_stands_twice_holds_only_by_its_own_number() {
    let stand =
        |claim, seq| Stand { claim: ClaimId::from_bits(claim), mode: Mode::Exclusive, owner: None, ride: None, seq };
    let line = Line::new(vec![stand(1, 7), stand(2, 8), stand(1, 9)]);
    assert_eq!(line.standing((ClaimId::from_bits(1), 7), false), Standing::Holds);
    assert_eq!(
        line.standing((ClaimId::from_bits(1), 9), false),
        Standing::Waits { ahead: 1, watch: Watch::One((ClaimId::from_bits(2), 8)) }
    );
}

#[test]
fn one_that_will_be_refused_does_not_have_others_refused() {
    let stand = |claim, seq, limit| Stand {
        claim: ClaimId::from_bits(claim),
        mode: Mode::Permits { n: 1, limit },
        owner: None,
        ride: None,
        seq,
    };
    let line = Line::new(vec![stand(1, 7, 2), stand(2, 8, 3), stand(3, 9, 2)]);
    assert_eq!(line.standing((ClaimId::from_bits(2), 8), true), Standing::Refused(Refusal::OtherLimit(2)));
    assert!(matches!(line.standing((ClaimId::from_bits(3), 9), true), Standing::Waits { .. }));
}

/// The list, with all clients informed at once.
#[derive(Default)]
struct Prompt(Vec<Stand>);

impl Prompt {
    fn settle(&mut self) {
        loop {
            let line = Line::new(self.0.clone());
            let riding = line.stands().iter().find_map(|stand| match line.standing(stand.id(), false) {
                Standing::MayRide(host) => Some((stand.seq, host)),
                _ => None,
            });
            let Some((seq, host)) = riding else { return };
            self.ride(&line, seq, host);
        }
    }

    fn ride(&mut self, line: &Line, seq: i32, host: Id) {
        let under = line.find(host).map_or(0, Stand::place);
        self.0
            .iter_mut()
            .filter(|stand| stand.seq == seq)
            .for_each(|stand| stand.ride = Some(Ride { under, token: 0 }));
    }

    /// The answer to a claim that has just joined.
    fn attempt(&mut self, stand: Stand, queue: bool) -> &'static str {
        let (seq, id) = (stand.seq, stand.id());
        self.0.push(stand);
        let line = Line::new(self.0.clone());
        match line.standing(id, true) {
            Standing::Holds => "granted",
            Standing::MayRide(host) => {
                self.ride(&line, seq, host);
                "granted"
            }
            Standing::Waits { .. } if queue => "queued",
            Standing::Waits { .. } => {
                self.0.retain(|stand| stand.seq != seq);
                "busy"
            }
            Standing::Refused(_) | Standing::Absent => {
                self.0.retain(|stand| stand.seq != seq);
                "refused"
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(feature = "nightly") { 2_000 } else { 400 }))]

    /// Where no message is late and nothing expires, the list behaves as the specification.
    #[test]
    fn the_list_holds_whom_the_table_holds(
        first in first(),
        ops in prop::collection::vec(
            prop_oneof![
                3 => (prop::option::of(0u64..3), mode(), any::<bool>()).prop_map(|(owner, mode, queue)| Ok((owner, mode, queue))),
                2 => any::<usize>().prop_map(Err),
            ],
            0..60,
        ),
    ) {
        let (mut list, mut table) = (Prompt::default(), Table::default());
        let (now, mut last) = (Moment::default(), 0);
        let mut token = || {
            last += 1;
            Token(last)
        };
        let mut seq = first;
        for (id, op) in ops.into_iter().enumerate() {
            let claim = ClaimId::from_bits(id as u128);
            match op {
                Ok((owner, mode, queue)) => {
                    let party = Party {
                        claim,
                        owner: owner.map(|owner| Owner::from_bits(owner.into())),
                        mode,
                        ttl: std::time::Duration::from_secs(10),
                        until: now,
                        token: Token::default(),
                        place: 0,
                        note: (),
                    };
                    let says = match table.attempt(party, queue, now, &mut token).0 {
                        Verdict::Granted(..) => "granted",
                        Verdict::Queued(_) => "queued",
                        Verdict::Busy => "busy",
                        Verdict::Refused(_) => "refused",
                    };
                    prop_assert_eq!(list.attempt(Stand { claim, mode, owner, ride: None, seq }, queue), says);
                    seq = seq.wrapping_add(1);
                }
                Err(at) if !list.0.is_empty() => {
                    let gone = list.0.remove(at % list.0.len());
                    table.depart(gone.claim, now, &mut token);
                }
                Err(_) => {}
            }
            list.settle();
            let line = Line::new(list.0.clone());
            let (holders, waiters) = line.stands().split_at(line.holders());
            let mut held: Vec<ClaimId> = holders.iter().map(|stand| stand.claim).collect();
            let mut should: Vec<ClaimId> = table.holders.iter().map(|party| party.claim).collect();
            held.sort();
            should.sort();
            prop_assert_eq!(held, should);
            prop_assert!(waiters.iter().map(|stand| stand.claim).eq(table.waiters.iter().map(|party| party.claim)));
        }
    }
}
