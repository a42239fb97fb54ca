//! Many clients that compute the queue from lists and watch events, which reach them late, compared
//! with the true list.

use std::collections::VecDeque;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};

use super::super::table::{Contender, LockTable, Verdict};
use super::*;
use crate::types::Instant;
use crate::types::{Owner, Token};

/// The rule that the clients leave out, to show that the simulation finds the error that it
/// prevents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OmittedRule {
    /// The clients follow all rules.
    None,
    /// If a watched node was changed since it was created, the client reads the list again.
    RelistOnChange,
    /// Positions are compared by their wrapped difference.
    WrappedOrder,
    /// A claim that is granted after others may have seen it wait changes its node to notify them.
    GrantNotification,
    /// A claim that finds in its first list that it is granted does so, too, if nodes are behind
    /// it.
    FirstListNotification,
}

/// What a watch reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeEvent {
    /// The watched node was deleted.
    Deleted,
    /// The data of the watched node was changed.
    Changed,
    /// A node was added to the list or removed from it.
    Children,
}

/// A server's messages to one client, in order.
#[derive(Clone, Debug)]
enum Message {
    /// All nodes of the list.
    List(Vec<QueueNode>),
    /// The version of the node that was to be watched; `None`: that node, or the client's own, does
    /// not exist any more.
    WatchSet(Option<u32>),
    /// The version and token of the node under which to re-enter; `None`: it does not exist any
    /// more.
    ParentRead(Option<(u32, u64)>),
    /// The sequence number of the re-entrant node; `None`: it could not be created.
    ChildCreated(Option<i32>),
    /// The watch with this number has fired.
    Event(u32, NodeEvent),
    /// The client's own node does not exist any more.
    ForceReleased,
}

/// What a client does, or which answer it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It reads the list; `all`: with a watch on all children.
    Listing { all: bool },
    /// It sets a watch on a node; `and_list`: it reads the list afterwards in any case.
    SettingWatch { and_list: bool },
    /// It reads the node under which it re-enters.
    ReadingParent(NodeId),
    /// It creates its re-entrant node.
    CreatingChild,
    /// It waits for its watch.
    Waits,
    /// It believes to hold the lock.
    Holds,
    /// It has released the lock, left the queue, or was force released.
    Gone,
}

/// A client with one claim.
#[derive(Clone, Debug)]
struct Client {
    node: QueueNode,
    /// Whether it waits if the lock is not free.
    queue: bool,
    /// Whether it has not waited yet, and so may still be refused.
    is_new: bool,
    state: State,
    /// The list as the client read it last.
    queue_view: NodeQueue,
    /// Its watch: the target, the number, and the event if it has fired.
    watch_set: Option<(WatchTarget, u32, Option<NodeEvent>)>,
    /// Whether it also watches its own node.
    own_watched: bool,
    /// The messages that it has not handled yet.
    inbox: VecDeque<Message>,
    /// Whether it must still change its node, to notify others of its grant.
    must_notify: bool,
    token: u64,
}

/// A node of the true list.
#[derive(Clone, Debug)]
struct Node {
    node: QueueNode,
    /// How often its data was changed.
    version: u32,
    /// The number of the transaction that created it, which is its claim's token.
    czxid: u64,
    /// The client that created it.
    client: usize,
}

/// The true list, and all clients.
struct World {
    omitted: OmittedRule,
    nodes: Vec<Node>,
    /// The sequence number of the next node.
    next_sequence: i32,
    /// The number of the last transaction.
    zxid: u64,
    /// The watches on nodes: the client, the node's sequence number, and the watch's number.
    watches: Vec<(usize, i32, u32)>,
    /// The watches on the whole list: the client, and the watch's number.
    child_watches: Vec<(usize, u32)>,
    /// The watches of clients on their own nodes: the client, and the node's sequence number.
    own_watches: Vec<(usize, i32)>,
    /// The number of the last watch.
    last_watch: u32,
    clients: Vec<Client>,
    /// The sequence numbers of all nodes that held the lock.
    granted: Vec<i32>,
    /// The highest token that was granted.
    highest_token: u64,
}

impl World {
    fn new(without: OmittedRule, first: i32) -> Self {
        Self {
            omitted: without,
            nodes: Vec::new(),
            next_sequence: first,
            zxid: 0,
            watches: Vec::new(),
            child_watches: Vec::new(),
            own_watches: Vec::new(),
            last_watch: 0,
            clients: Vec::new(),
            granted: Vec::new(),
            highest_token: 0,
        }
    }

    /// The queue that a client computes from a list.
    fn queue_of(&self, mut nodes: Vec<QueueNode>) -> NodeQueue {
        if self.omitted == OmittedRule::WrappedOrder {
            nodes.sort_by_key(|node| (node.position(), node.reentry.is_some(), node.sequence));
            return NodeQueue(nodes);
        }
        NodeQueue::new(nodes)
    }

    /// The true queue, by the order in which the nodes were created.
    fn true_queue(&self) -> NodeQueue {
        let mut nodes: Vec<&Node> = self.nodes.iter().collect();
        nodes.sort_by_key(|node| {
            (node.node.reentry.map_or(node.czxid, |reentry| reentry.token), node.node.reentry.is_some(), node.czxid)
        });
        NodeQueue(nodes.into_iter().map(|node| node.node.clone()).collect())
    }

    /// The server creates a node of this client, and returns it with its sequence number.
    fn create(&mut self, client: usize, mut node: QueueNode) -> QueueNode {
        node.sequence = self.next_sequence;
        self.next_sequence = self.next_sequence.wrapping_add(1);
        self.zxid += 1;
        self.nodes.push(Node { node: node.clone(), version: 0, czxid: self.zxid, client });
        self.children_changed();
        node
    }

    /// The watches on the whole list fire.
    fn children_changed(&mut self) {
        for (client, watch) in std::mem::take(&mut self.child_watches) {
            self.clients[client].inbox.push_back(Message::Event(watch, NodeEvent::Children));
        }
    }

    /// The watches on the node with this sequence number fire.
    fn fire(&mut self, seq: i32, event: NodeEvent) {
        let (fired, kept) = std::mem::take(&mut self.watches).into_iter().partition(|(_, node, _)| *node == seq);
        self.watches = kept;
        let fired: Vec<(usize, i32, u32)> = fired;
        for (client, _, watch) in fired {
            self.clients[client].inbox.push_back(Message::Event(watch, event));
        }
    }

    /// The server deletes the node with this sequence number, and its watches fire.
    fn delete(&mut self, seq: i32) {
        let Some(at) = self.nodes.iter().position(|node| node.node.sequence == seq) else { return };
        self.nodes.remove(at);
        let owners: Vec<usize> =
            self.own_watches.iter().filter(|(_, own)| *own == seq).map(|(client, _)| *client).collect();
        self.own_watches.retain(|(_, own)| *own != seq);
        owners.into_iter().for_each(|client| self.clients[client].inbox.push_back(Message::ForceReleased));
        self.fire(seq, NodeEvent::Deleted);
        self.children_changed();
    }

    fn node(&self, seq: i32) -> Option<&Node> {
        self.nodes.iter().find(|node| node.node.sequence == seq)
    }

    /// The server changes the data of a node, and its watches fire.
    fn set_data(&mut self, seq: i32) {
        if let Some(node) = self.nodes.iter_mut().find(|node| node.node.sequence == seq) {
            node.version += 1;
            self.zxid += 1;
            self.fire(seq, NodeEvent::Changed);
        }
    }

    /// A new client creates its node, and reads the list unless it is alone.
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

    /// A client reads the list; `all`: with a watch on all children.
    fn list(&mut self, client: usize, all: bool) {
        let nodes = self.nodes.iter().map(|node| node.node.clone()).collect();
        if all {
            self.last_watch += 1;
            self.child_watches.push((client, self.last_watch));
            self.clients[client].watch_set = Some((WatchTarget::AllHolders, self.last_watch, None));
        }
        self.clients[client].inbox.push_back(Message::List(nodes));
        self.clients[client].state = State::Listing { all };
    }

    /// A client sets a watch on a node; `and_list`: it reads the list afterwards in any case.
    fn set_watch(&mut self, client: usize, watch: WatchTarget, and_list: bool) {
        let WatchTarget::Node((_, target)) = watch else { return };
        let seq = self.clients[client].node.sequence;
        let next = self.clients[client].queue_view.is_next_after(self.clients[client].node.id(), watch);
        let mut version = self.node(target).map(|node| node.version);
        if version.is_some() {
            self.last_watch += 1;
            self.watches.push((client, target, self.last_watch));
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
        this.watch_set = version.map(|_| (watch, self.last_watch, None));
        this.inbox.push_back(Message::WatchSet(version));
        this.state = State::SettingWatch { and_list };
    }

    /// A client learns that it holds the lock. `seen_waiting`: others may have seen it wait, so it
    /// must notify them.
    fn hold(&mut self, client: usize, seen_waiting: bool) {
        let this = &mut self.clients[client];
        this.state = State::Holds;
        this.watch_set = None;
        this.must_notify = seen_waiting && self.omitted != OmittedRule::GrantNotification;
    }

    /// A client ends, and the server deletes its nodes.
    fn leave(&mut self, client: usize) {
        self.clients[client].state = State::Gone;
        self.own_watches.retain(|(watcher, _)| *watcher != client);
        let own: Vec<i32> =
            self.nodes.iter().filter(|node| node.client == client).map(|node| node.node.sequence).collect();
        own.into_iter().for_each(|seq| self.delete(seq));
    }

    /// A holder notifies others of its grant, if it must.
    fn notify_of_grant(&mut self, client: usize) {
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
            (State::ReadingParent(parent), Message::ParentRead(found)) => self.reenter(client, parent, found),
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

    /// A client handles the list that it has read.
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
            ClaimState::MayReenter(parent) => {
                let found = self
                    .node(parent.1)
                    .map(|node| (node.version, node.node.reentry.map_or(node.czxid, |reentry| reentry.token)));
                self.clients[client].inbox.push_back(Message::ParentRead(found));
                self.clients[client].state = State::ReadingParent(parent);
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

    /// A client replaces its node by a re-entrant one under `parent`, if that still has the version
    /// that it has `found` (version and token).
    fn reenter(&mut self, client: usize, parent: NodeId, found: Option<(u32, u64)>) {
        let this = &self.clients[client];
        let (own, under) = (this.node.sequence, this.queue_view.find(parent).map(QueueNode::position));
        let fits = self.node(parent.1).map(|node| node.version) == found.map(|(version, _)| version);
        let (Some((_, token)), Some(under), true, true) = (found, under, fits, self.node(own).is_some()) else {
            self.clients[client].inbox.push_back(Message::ChildCreated(None));
            self.clients[client].state = State::CreatingChild;
            return;
        };
        let own_node = QueueNode { reentry: Some(ReentryLink { parent_position: under, token }), ..this.node.clone() };
        // ZooKeeper does the following in one transaction.
        self.set_data(parent.1);
        self.own_watches.retain(|(watcher, _)| *watcher != client);
        self.delete(own);
        let own_node = self.create(client, own_node);
        let this = &mut self.clients[client];
        (this.watch_set, this.own_watched, this.token) = (None, false, token);
        this.inbox.push_back(Message::ChildCreated(Some(own_node.sequence)));
        this.state = State::CreatingChild;
    }

    /// A client waits for its watch, which may have fired already.
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

    /// Checks that the clients that believe to hold the lock hold it in the true queue, may hold it
    /// together, and have rising tokens.
    fn check(&mut self) -> Result<(), TestCaseError> {
        let believed = self.believed_holders();
        for (at, one) in believed.iter().enumerate() {
            let others = believed.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, other)| *other);
            let other_owners =
                others.clone().filter(|other| other.node.owner.is_none() || other.node.owner != one.node.owner);
            let holders_beside = other_owners.map(|other| (other.node.owner, other.node.mode));
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
                    own_node.reentry.is_some() || token > self.highest_token,
                    "token {token} after {}",
                    self.highest_token
                );
                self.highest_token = self.highest_token.max(token);
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
                self.notify_of_grant(client);
                busy |= self.step(client);
                self.check()?;
            }
        }
        prop_assert!(!busy, "the messages never end");
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

/// What happens next. A number chooses a client.
#[derive(Clone, Debug)]
enum Op {
    /// A new client creates its node.
    Join { owner: Option<u64>, mode: Mode, queue: bool },
    /// The client handles its oldest message.
    Step(usize),
    /// The client notifies others of its grant, if it must.
    Notify(usize),
    /// The client deletes its nodes.
    Leave(usize),
    /// An operator force releases the client.
    ForceRelease(usize),
    /// All clients handle all their messages.
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
        2 => any::<usize>().prop_map(Op::Notify),
        6 => any::<usize>().prop_map(Op::Leave),
        1 => any::<usize>().prop_map(Op::ForceRelease),
        1 => Just(Op::Drain),
    ]
}

/// Numbers start where most locks do, or just before they wrap around.
fn first() -> impl Strategy<Value = i32> {
    prop_oneof![Just(0), (0..12).prop_map(|before| i32::MAX - before)]
}

/// Lets the clients do these steps, and then handle all messages; `first` is the first sequence
/// number.
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
            Op::Notify(at) => pick(*at).into_iter().for_each(|client| world.notify_of_grant(client)),
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

/// Parts of the messages of failed exclusion.
const EXCLUSION: [&str; 2] = ["beside", "believes"];
/// A part of the message about a client that waits although it holds the lock.
const ASLEEP: [&str; 1] = ["Waits"];

/// Requires a history that fails with one of these messages if the clients leave out this rule. A
/// mistake may have several consequences, and which of them a random history shows first is chance.
fn assert_rule_is_needed(without: OmittedRule, consequence: &[&str]) {
    let config = Config { cases: 30_000, failure_persistence: None, max_shrink_iters: 2_000, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let found = runner.run(&(first(), prop::collection::vec(op(), 0..120)), |(first, ops)| {
        let failure = simulate(without, first, &ops).err();
        match failure.filter(|failure| consequence.iter().any(|words| failure.to_string().contains(words))) {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    });
    assert!(matches!(found, Err(TestError::Fail(..))), "no history fails without {without:?}: {found:?}");
}

#[test]
fn without_relisting_a_re_entrant_child_is_missed() {
    assert_rule_is_needed(OmittedRule::RelistOnChange, &EXCLUSION);
}

#[test]
fn without_wrapped_order_a_waiter_overtakes_the_holder() {
    assert_rule_is_needed(OmittedRule::WrappedOrder, &EXCLUSION);
}

#[test]
fn without_grant_notifications_a_grantable_waiter_is_not_woken() {
    assert_rule_is_needed(OmittedRule::GrantNotification, &ASLEEP);
}

#[test]
fn without_first_list_notifications_a_grantable_waiter_is_not_woken() {
    assert_rule_is_needed(OmittedRule::FirstListNotification, &ASLEEP);
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

/// The list, whose clients all learn of each change at once.
#[derive(Default)]
struct InformedQueue(Vec<QueueNode>);

impl InformedQueue {
    fn handle_all(&mut self) {
        loop {
            let queue = NodeQueue::new(self.0.clone());
            let reentrant = queue.nodes().iter().find_map(|node| match queue.state_of(node.id(), false) {
                ClaimState::MayReenter(parent) => Some((node.sequence, parent)),
                _ => None,
            });
            let Some((seq, parent)) = reentrant else { return };
            self.reenter(&queue, seq, parent);
        }
    }

    fn reenter(&mut self, queue: &NodeQueue, seq: i32, parent: NodeId) {
        let under = queue.find(parent).map_or(0, QueueNode::position);
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
            ClaimState::MayReenter(parent) => {
                self.reenter(&parsed_queue, seq, parent);
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
