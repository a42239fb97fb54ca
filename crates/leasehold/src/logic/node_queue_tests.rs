//! Many clients that know only what they have listed and been notified of, late, compared with the
//! true list.

use std::collections::VecDeque;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};

use super::super::table::{Contender, LockTable, Verdict};
use super::*;
use crate::types::Instant;
use crate::types::{Owner, Token};

/// Rules that can be left out, to show that the simulation finds what they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OmittedRule {
    None,
    /// If a watched node was changed since it was created, the list is read again.
    RelistOnChange,
    /// Positions are compared by their wrapped difference.
    WrappedOrder,
    /// A claim that is granted after others may have seen it wait notifies them.
    GrantNotification,
    /// The same if it found its grant in its first list.
    FirstListNotification,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeEvent {
    Deleted,
    Changed,
    Children,
}

/// A server's messages to one client, in order.
#[derive(Clone, Debug)]
enum Message {
    List(Vec<QueueNode>),
    /// The version of the node that was to be watched; `None`: that node does not exist any more,
    /// or is the client's own.
    WatchSet(Option<u32>),
    /// The version and token of the host to ride on.
    ParentRead(Option<(u32, u64)>),
    /// The re-entrant claim's sequence number.
    ChildCreated(Option<i32>),
    /// A watch has fired.
    Event(u32, NodeEvent),
    /// The client's own node does not exist any more.
    ForceReleased,
}

/// The state of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Listing { all: bool },
    SettingWatch { and_list: bool },
    ReadingParent(NodeId),
    CreatingChild,
    Waits,
    Holds,
    Gone,
}

#[derive(Clone, Debug)]
struct Client {
    node: QueueNode,
    queue: bool,
    /// Whether it has no position yet.
    is_new: bool,
    state: State,
    queue_view: NodeQueue,
    /// The watch that it has, and whether it has fired.
    watch_set: Option<(WatchTarget, u32, Option<NodeEvent>)>,
    own_watched: bool,
    inbox: VecDeque<Message>,
    must_notify: bool,
    token: u64,
}

#[derive(Clone, Debug)]
struct Node {
    node: QueueNode,
    version: u32,
    czxid: u64,
    client: usize,
}

/// The true list, and all clients.
struct World {
    omitted: OmittedRule,
    nodes: Vec<Node>,
    next: i32,
    zxid: u64,
    /// Which client watches which node by which watch.
    watches: Vec<(usize, i32, u32)>,
    children: Vec<(usize, u32)>,
    own_watches: Vec<(usize, i32)>,
    watch: u32,
    clients: Vec<Client>,
    granted: Vec<i32>,
    highest: u64,
}

impl World {
    fn new(without: OmittedRule, first: i32) -> Self {
        Self {
            omitted: without,
            nodes: Vec::new(),
            next: first,
            zxid: 0,
            watches: Vec::new(),
            children: Vec::new(),
            own_watches: Vec::new(),
            watch: 0,
            clients: Vec::new(),
            granted: Vec::new(),
            highest: 0,
        }
    }

    fn queue_of(&self, mut nodes: Vec<QueueNode>) -> NodeQueue {
        if self.omitted == OmittedRule::WrappedOrder {
            nodes.sort_by_key(|node| (node.position(), node.reentry.is_some(), node.sequence));
            return NodeQueue(nodes);
        }
        NodeQueue::new(nodes)
    }

    /// The true state, by the order in which the nodes were created.
    fn true_queue(&self) -> NodeQueue {
        let mut nodes: Vec<&Node> = self.nodes.iter().collect();
        nodes.sort_by_key(|node| {
            (node.node.reentry.map_or(node.czxid, |reentry| reentry.token), node.node.reentry.is_some(), node.czxid)
        });
        NodeQueue(nodes.into_iter().map(|node| node.node.clone()).collect())
    }

    fn create(&mut self, client: usize, mut node: QueueNode) -> QueueNode {
        node.sequence = self.next;
        self.next = self.next.wrapping_add(1);
        self.zxid += 1;
        self.nodes.push(Node { node: node.clone(), version: 0, czxid: self.zxid, client });
        self.children_changed();
        node
    }

    fn children_changed(&mut self) {
        for (client, watch) in std::mem::take(&mut self.children) {
            self.clients[client].inbox.push_back(Message::Event(watch, NodeEvent::Children));
        }
    }

    fn fire(&mut self, seq: i32, event: NodeEvent) {
        let (fired, kept) = std::mem::take(&mut self.watches).into_iter().partition(|(_, node, _)| *node == seq);
        self.watches = kept;
        let fired: Vec<(usize, i32, u32)> = fired;
        for (client, _, watch) in fired {
            self.clients[client].inbox.push_back(Message::Event(watch, event));
        }
    }

    fn delete(&mut self, seq: i32) {
        let Some(at) = self.nodes.iter().position(|node| node.node.sequence == seq) else { return };
        self.nodes.remove(at);
        let put_out: Vec<usize> =
            self.own_watches.iter().filter(|(_, own)| *own == seq).map(|(client, _)| *client).collect();
        self.own_watches.retain(|(_, own)| *own != seq);
        put_out.into_iter().for_each(|client| self.clients[client].inbox.push_back(Message::ForceReleased));
        self.fire(seq, NodeEvent::Deleted);
        self.children_changed();
    }

    fn node(&self, seq: i32) -> Option<&Node> {
        self.nodes.iter().find(|node| node.node.sequence == seq)
    }

    fn set_data(&mut self, seq: i32) {
        if let Some(node) = self.nodes.iter_mut().find(|node| node.node.sequence == seq) {
            node.version += 1;
            self.zxid += 1;
            self.fire(seq, NodeEvent::Changed);
        }
    }

    fn join(&mut self, owner: Option<u64>, mode: Mode, queue: bool) {
        let client = self.clients.len();
        let node = QueueNode { claim: ClaimId::from_bits(client as u128), mode, owner, reentry: None, sequence: 0 };
        let node = self.create(client, node);
        self.clients.push(Client {
            node,
            queue,
            is_new: true,
            state: State::Waits,
            queue_view: NodeQueue::default(),
            watch_set: None,
            own_watched: false,
            inbox: VecDeque::new(),
            must_notify: false,
            token: self.zxid,
        });
        if self.nodes.len() == 1 { self.hold(client, false) } else { self.list(client, false) }
    }

    fn list(&mut self, client: usize, all: bool) {
        let nodes = self.nodes.iter().map(|node| node.node.clone()).collect();
        if all {
            self.watch += 1;
            self.children.push((client, self.watch));
            self.clients[client].watch_set = Some((WatchTarget::AllHolders, self.watch, None));
        }
        self.clients[client].inbox.push_back(Message::List(nodes));
        self.clients[client].state = State::Listing { all };
    }

    fn set_watch(&mut self, client: usize, watch: WatchTarget, and_list: bool) {
        let WatchTarget::Node((_, target)) = watch else { return };
        let seq = self.clients[client].node.sequence;
        let next = self.clients[client].queue_view.is_next_after(self.clients[client].node.id(), watch);
        let mut version = self.node(target).map(|node| node.version);
        if version.is_some() {
            self.watch += 1;
            self.watches.push((client, target, self.watch));
        }
        if next && !self.clients[client].own_watched {
            if self.node(seq).is_some() {
                self.own_watches.push((client, seq));
                self.clients[client].own_watched = true;
            } else {
                version = None;
            }
        }
        let this = &mut self.clients[client];
        this.watch_set = version.map(|_| (watch, self.watch, None));
        this.inbox.push_back(Message::WatchSet(version));
        this.state = State::SettingWatch { and_list };
    }

    fn hold(&mut self, client: usize, seen: bool) {
        let this = &mut self.clients[client];
        this.state = State::Holds;
        this.watch_set = None;
        this.must_notify = seen && self.omitted != OmittedRule::GrantNotification;
    }

    fn leave(&mut self, client: usize) {
        self.clients[client].state = State::Gone;
        self.own_watches.retain(|(watcher, _)| *watcher != client);
        let own: Vec<i32> =
            self.nodes.iter().filter(|node| node.client == client).map(|node| node.node.sequence).collect();
        own.into_iter().for_each(|seq| self.delete(seq));
    }

    fn deliver_next(&mut self, client: usize) {
        if std::mem::take(&mut self.clients[client].must_notify) && self.clients[client].state == State::Holds {
            self.set_data(self.clients[client].node.sequence);
        }
    }

    /// A client handles its oldest message. `false`: there was none.
    fn step(&mut self, client: usize) -> bool {
        let this = &mut self.clients[client];
        let Some(word) = this.inbox.pop_front() else { return false };
        match (this.state, word) {
            (State::Gone, _) => {}
            (_, Message::ForceReleased) => self.leave(client),
            (_, Message::Event(watch, event)) => {
                if let Some((_, armed, fired)) = &mut this.watch_set
                    && *armed == watch
                {
                    *fired = Some(event);
                }
                self.handle_fired_watch(client);
            }
            (State::Listing { all }, Message::List(nodes)) => self.listed(client, nodes, all),
            (State::SettingWatch { and_list }, Message::WatchSet(version)) => {
                let enough = version == Some(0) || (version.is_some() && self.omitted == OmittedRule::RelistOnChange);
                if enough && !and_list {
                    self.wait(client);
                } else {
                    self.list(client, false);
                }
            }
            (State::ReadingParent(host), Message::ParentRead(found)) => self.reenter(client, host, found),
            (State::CreatingChild, Message::ChildCreated(Some(seq))) => {
                self.clients[client].node =
                    self.node(seq).map_or(self.clients[client].node.clone(), |n| n.node.clone());
                self.clients[client].node.sequence = seq;
                self.hold(client, false);
            }
            (State::CreatingChild, Message::ChildCreated(None)) => self.list(client, false),
            (state, word) => panic!("{word:?} while {state:?}"),
        }
        true
    }

    fn listed(&mut self, client: usize, nodes: Vec<QueueNode>, all: bool) {
        let parsed_queue = self.queue_of(nodes);
        let this = &mut self.clients[client];
        this.queue_view = parsed_queue;
        let (id, queue) = (this.node.id(), this.queue);
        match this.queue_view.state_of(id, this.is_new) {
            ClaimState::Held => {
                let first = this.is_new && self.omitted == OmittedRule::FirstListNotification;
                let seen = if this.is_new { this.queue_view.has_node_behind(id) && !first } else { true };
                self.hold(client, seen);
            }
            ClaimState::Refused(_) | ClaimState::Absent => self.leave(client),
            ClaimState::MayReenter(host) => {
                let found = self
                    .node(host.1)
                    .map(|node| (node.version, node.node.reentry.map_or(node.czxid, |reentry| reentry.token)));
                self.clients[client].inbox.push_back(Message::ParentRead(found));
                self.clients[client].state = State::ReadingParent(host);
            }
            ClaimState::Waiting { .. } if !queue => self.leave(client),
            ClaimState::Waiting { watch: WatchTarget::AllHolders, .. } if all => self.wait(client),
            ClaimState::Waiting { watch: WatchTarget::AllHolders, .. } => self.list(client, true),
            ClaimState::Waiting { watch, .. } => {
                if this.watch_set.is_some_and(|(armed, ..)| armed == watch) {
                    self.wait(client);
                } else {
                    self.set_watch(client, watch, false);
                }
            }
        }
    }

    fn reenter(&mut self, client: usize, host: NodeId, found: Option<(u32, u64)>) {
        let this = &self.clients[client];
        let (own, under) = (this.node.sequence, this.queue_view.find(host).map(QueueNode::position));
        let fits = self.node(host.1).map(|node| node.version) == found.map(|(version, _)| version);
        let (Some((_, token)), Some(under), true, true) = (found, under, fits, self.node(own).is_some()) else {
            self.clients[client].inbox.push_back(Message::ChildCreated(None));
            self.clients[client].state = State::CreatingChild;
            return;
        };
        let own_node = QueueNode { reentry: Some(ReentryLink { parent_position: under, token }), ..this.node.clone() };
        // One transaction.
        self.set_data(host.1);
        self.own_watches.retain(|(watcher, _)| *watcher != client);
        self.delete(own);
        let own_node = self.create(client, own_node);
        let this = &mut self.clients[client];
        (this.watch_set, this.own_watched, this.token) = (None, false, token);
        this.inbox.push_back(Message::ChildCreated(Some(own_node.sequence)));
        this.state = State::CreatingChild;
    }

    fn wait(&mut self, client: usize) {
        self.clients[client].state = State::Waits;
        self.clients[client].is_new = false;
        let this = &mut self.clients[client];
        let next = this.watch_set.is_some_and(|(watch, ..)| this.queue_view.is_next_after(this.node.id(), watch));
        if next && !this.own_watched {
            // The reply carries no other information.
            let seq = this.node.sequence;
            if self.node(seq).is_none() {
                return self.leave(client);
            }
            self.own_watches.push((client, seq));
            self.clients[client].own_watched = true;
        }
        self.handle_fired_watch(client);
    }

    /// A waiter whose watch has fired.
    fn handle_fired_watch(&mut self, client: usize) {
        let this = &mut self.clients[client];
        let (State::Waits, Some((watch, _, Some(event)))) = (this.state, this.watch_set) else { return };
        this.watch_set = None;
        match event {
            NodeEvent::Deleted if this.own_watched && this.queue_view.is_next_after(this.node.id(), watch) => {
                self.hold(client, true)
            }
            NodeEvent::Changed => self.set_watch(client, watch, true),
            NodeEvent::Deleted | NodeEvent::Children => self.list(client, false),
        }
    }

    /// The clients that believe to hold and were not force-released.
    fn believed_holders(&self) -> Vec<&Client> {
        let really_holds = |client: &&Client| client.state == State::Holds && self.node(client.node.sequence).is_some();
        self.clients.iter().filter(really_holds).collect()
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        let believed = self.believed_holders();
        for (at, one) in believed.iter().enumerate() {
            let others = believed.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, other)| *other);
            let strangers =
                others.clone().filter(|other| other.node.owner.is_none() || other.node.owner != one.node.owner);
            let holders_beside = strangers.map(|other| (other.node.owner, other.node.mode));
            prop_assert!(fits_owned(one.node.mode, holders_beside), "{:?} beside {believed:?}", one.node);
            for other in others.filter(|other| one.node.owner.is_some() && other.node.owner == one.node.owner) {
                prop_assert_eq!(one.token, other.token, "an owner has one token");
            }
        }
        let true_queue = self.true_queue();
        let holders = &true_queue.nodes()[..true_queue.holder_count()];
        for one in &believed {
            prop_assert!(holders.contains(&one.node), "{:?} believes to hold; the list: {true_queue:?}", one.node);
        }
        // Tokens rise with the grants.
        for own_node in holders {
            if !self.granted.contains(&own_node.sequence) {
                self.granted.push(own_node.sequence);
                let token = self
                    .node(own_node.sequence)
                    .map_or(0, |node| own_node.reentry.map_or(node.czxid, |reentry| reentry.token));
                prop_assert!(
                    own_node.reentry.is_some() || token > self.highest,
                    "token {token} after {}",
                    self.highest
                );
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
                busy |= self.clients[client].must_notify;
                self.deliver_next(client);
                busy |= self.step(client);
                self.check()?;
            }
        }
        prop_assert!(!busy, "they never rest");
        let true_queue = self.true_queue();
        for (at, node) in true_queue.nodes().iter().enumerate() {
            let client =
                self.clients.iter().find(|client| client.node.sequence == node.sequence && client.state != State::Gone);
            let state = client.map(|client| client.state);
            let should = if at < true_queue.holder_count() { State::Holds } else { State::Waits };
            prop_assert_eq!(state, Some(should), "{:?} in {:?}", node, true_queue);
        }
        Ok(())
    }
}

#[derive(Clone, Debug)]
enum Op {
    Join { owner: Option<u64>, mode: Mode, queue: bool },
    Step(usize),
    Deliver(usize),
    Leave(usize),
    ForceRelease(usize),
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
        2 => any::<usize>().prop_map(Op::Deliver),
        6 => any::<usize>().prop_map(Op::Leave),
        1 => any::<usize>().prop_map(Op::ForceRelease),
        1 => Just(Op::Drain),
    ]
}

/// Numbers start where most locks do, or just before they wrap around.
fn first() -> impl Strategy<Value = i32> {
    prop_oneof![Just(0), (0..12).prop_map(|before| i32::MAX - before)]
}

fn simulate(without: OmittedRule, first: i32, ops: &[Op]) -> Result<(), TestCaseError> {
    let mut world = World::new(without, first);
    for op in ops {
        let alive: Vec<usize> =
            (0..world.clients.len()).filter(|client| world.clients[*client].state != State::Gone).collect();
        let pick = |at: usize| (!alive.is_empty()).then(|| alive[at % alive.len()]);
        match op {
            Op::Join { owner, mode, queue } if alive.len() < 7 => world.join(*owner, *mode, *queue),
            Op::Join { .. } => {}
            Op::Step(at) => drop(pick(*at).map(|client| world.step(client))),
            Op::Deliver(at) => pick(*at).into_iter().for_each(|client| world.deliver_next(client)),
            Op::Leave(at) => pick(*at).into_iter().for_each(|client| world.leave(client)),
            Op::ForceRelease(at) => {
                // A holder learns of it in another way; a waiter by its own watch or its next list.
                if let Some(client) = pick(*at).filter(|client| world.clients[*client].state == State::Holds) {
                    world.leave(client);
                } else if let Some(client) = pick(*at).filter(|client| world.clients[*client].own_watched) {
                    world.delete(world.clients[client].node.sequence);
                }
            }
            Op::Drain => world.drain()?,
        }
        world.check()?;
    }
    world.drain()?;
    // Every claim is granted in the end.
    while let Some(first) = world.true_queue().nodes().first().map(|own_node| own_node.sequence) {
        let client = world.node(first).map_or(0, |node| node.client);
        world.leave(client);
        world.drain()?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(feature = "nightly") { 3_000 } else { 500 }))]

    /// However late messages are: no client believes that it holds together with another, and once
    /// all messages are delivered, every holder knows that it holds.
    #[test]
    fn clients_with_late_messages_agree_with_the_list(first in first(), ops in prop::collection::vec(op(), 0..120)) {
        simulate(OmittedRule::None, first, &ops)?;
    }
}

const EXCLUSION: [&str; 2] = ["beside", "believes"];
const ASLEEP: [&str; 1] = ["Waits"];

/// Searches for a history that fails in one of these ways. A mistake may have several consequences,
/// and which of them a random history shows first is chance.
fn finds_the_flaw(without: OmittedRule, consequence: &[&str]) {
    let config = Config { cases: 30_000, failure_persistence: None, max_shrink_iters: 2_000, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let found = runner.run(&(first(), prop::collection::vec(op(), 0..120)), |(first, ops)| {
        let failure = simulate(without, first, &ops).err();
        match failure.filter(|failure| consequence.iter().any(|words| failure.to_string().contains(words))) {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    });
    assert!(matches!(found, Err(TestError::Fail(..))), "without {without:?} no flaw was found: {found:?}");
}

#[test]
fn without_relisting_a_re_entrant_child_is_missed() {
    finds_the_flaw(OmittedRule::RelistOnChange, &EXCLUSION);
}

#[test]
fn without_wrapped_order_a_waiter_overtakes_the_holder() {
    finds_the_flaw(OmittedRule::WrappedOrder, &EXCLUSION);
}

#[test]
fn without_grant_notifications_a_grantable_waiter_is_not_woken() {
    finds_the_flaw(OmittedRule::GrantNotification, &ASLEEP);
}

#[test]
fn without_first_list_notifications_a_grantable_waiter_is_not_woken() {
    finds_the_flaw(OmittedRule::FirstListNotification, &ASLEEP);
}

#[test]
fn a_claim_with_two_nodes_holds_only_by_its_own_sequence_number() {
    let node = |claim, seq| QueueNode {
        claim: ClaimId::from_bits(claim),
        mode: Mode::Exclusive,
        owner: None,
        reentry: None,
        sequence: seq,
    };
    let queue = NodeQueue::new(vec![node(1, 7), node(2, 8), node(1, 9)]);
    assert_eq!(queue.state_of((ClaimId::from_bits(1), 7), false), ClaimState::Held);
    assert_eq!(
        queue.state_of((ClaimId::from_bits(1), 9), false),
        ClaimState::Waiting { ahead: 1, watch: WatchTarget::Node((ClaimId::from_bits(2), 8)) }
    );
}

#[test]
fn a_claim_that_will_be_refused_does_not_cause_others_to_be_refused() {
    let node = |claim, seq, limit| QueueNode {
        claim: ClaimId::from_bits(claim),
        mode: Mode::Permits { n: 1, limit },
        owner: None,
        reentry: None,
        sequence: seq,
    };
    let queue = NodeQueue::new(vec![node(1, 7, 2), node(2, 8, 3), node(3, 9, 2)]);
    assert_eq!(queue.state_of((ClaimId::from_bits(2), 8), true), ClaimState::Refused(Refusal::LimitMismatch(2)));
    assert!(matches!(queue.state_of((ClaimId::from_bits(3), 9), true), ClaimState::Waiting { .. }));
}

/// The list, with all clients informed at once.
#[derive(Default)]
struct InformedQueue(Vec<QueueNode>);

impl InformedQueue {
    fn handle_all(&mut self) {
        loop {
            let queue = NodeQueue::new(self.0.clone());
            let reentrant = queue.nodes().iter().find_map(|node| match queue.state_of(node.id(), false) {
                ClaimState::MayReenter(host) => Some((node.sequence, host)),
                _ => None,
            });
            let Some((seq, host)) = reentrant else { return };
            self.reenter(&queue, seq, host);
        }
    }

    fn reenter(&mut self, queue: &NodeQueue, seq: i32, host: NodeId) {
        let under = queue.find(host).map_or(0, QueueNode::position);
        self.0
            .iter_mut()
            .filter(|node| node.sequence == seq)
            .for_each(|node| node.reentry = Some(ReentryLink { parent_position: under, token: 0 }));
    }

    /// The answer to a claim that has just joined.
    fn attempt(&mut self, node: QueueNode, queue: bool) -> &'static str {
        let (seq, id) = (node.sequence, node.id());
        self.0.push(node);
        let parsed_queue = NodeQueue::new(self.0.clone());
        match parsed_queue.state_of(id, true) {
            ClaimState::Held => "granted",
            ClaimState::MayReenter(host) => {
                self.reenter(&parsed_queue, seq, host);
                "granted"
            }
            ClaimState::Waiting { .. } if queue => "queued",
            ClaimState::Waiting { .. } => {
                self.0.retain(|node| node.sequence != seq);
                "busy"
            }
            ClaimState::Refused(_) | ClaimState::Absent => {
                self.0.retain(|node| node.sequence != seq);
                "refused"
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(feature = "nightly") { 2_000 } else { 400 }))]

    /// Without late messages and expiries, the list behaves as the specification.
    #[test]
    fn the_list_and_the_table_have_the_same_holders(
        first in first(),
        ops in prop::collection::vec(
            prop_oneof![
                3 => (prop::option::of(0u64..3), mode(), any::<bool>()).prop_map(|(owner, mode, queue)| Ok((owner, mode, queue))),
                2 => any::<usize>().prop_map(Err),
            ],
            0..60,
        ),
    ) {
        let (mut list, mut table) = (InformedQueue::default(), LockTable::default());
        let (now, mut last) = (Instant::default(), 0);
        let mut token = || {
            last += 1;
            Token(last)
        };
        let mut seq = first;
        for (id, op) in ops.into_iter().enumerate() {
            let claim = ClaimId::from_bits(id as u128);
            match op {
                Ok((owner, mode, queue)) => {
                    let contender = Contender {
                        claim,
                        owner: owner.map(|owner| Owner::from_bits(owner.into())),
                        mode,
                        ttl: std::time::Duration::from_secs(10),
                        expires_at: now,
                        token: Token::default(),
                        order: 0,
                        details: (),
                    };
                    let expected = match table.attempt(contender, queue, now, &mut token).0 {
                        Verdict::Granted(..) => "granted",
                        Verdict::Queued(_) => "queued",
                        Verdict::Busy => "busy",
                        Verdict::Refused(_) => "refused",
                    };
                    prop_assert_eq!(list.attempt(QueueNode { claim, mode, owner, reentry: None, sequence: seq }, queue), expected);
                    seq = seq.wrapping_add(1);
                }
                Err(at) if !list.0.is_empty() => {
                    let removed = list.0.remove(at % list.0.len());
                    table.release(removed.claim, now, &mut token);
                }
                Err(_) => {}
            }
            list.handle_all();
            let parsed_queue = NodeQueue::new(list.0.clone());
            let (holders, waiters) = parsed_queue.nodes().split_at(parsed_queue.holder_count());
            let mut held: Vec<ClaimId> = holders.iter().map(|node| node.claim).collect();
            let mut should: Vec<ClaimId> = table.holders.iter().map(|contender| contender.claim).collect();
            held.sort();
            should.sort();
            prop_assert_eq!(held, should);
            prop_assert!(waiters.iter().map(|node| node.claim).eq(table.waiters.iter().map(|contender| contender.claim)));
        }
    }
}
