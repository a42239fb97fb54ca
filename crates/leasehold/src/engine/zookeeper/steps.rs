//! The steps of one claim: joining the queue, waiting, and leaving.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{join, try_join_all};
use leasehold_zookeeper::{CreateMode, Error as Cause, EventType, MultiWriteError, MultiWriteResult, WatchedEvent};

use super::claim_registry::{ArmedWatch, ClaimEntry, ClaimNode, ClaimRegistry, NodeStage, RemoteState};
use super::engine::ZookeeperEngine;
use super::session::{Session, WatchFuture};
use super::{ended_holds, error, inspect, wire};
use crate::clock::Instant;
use crate::engine::Claim;
use crate::logic::node_queue::{ClaimState, NodeId, NodeQueue, ReentryLink, WatchTarget};
use crate::logic::table::Refusal;
use crate::types::{ClaimId, Error, ErrorKind, Result};

/// How many times a step is tried that other clients disturb.
const MAX_TRIES: usize = 64;
/// The most nodes in a lock's folder: each claim that waits for permits reads the whole list.
const MAX_CONTENDERS: i32 = 10_000;

/// The state of a claim.
#[derive(Debug)]
pub(super) enum ClaimStatus {
    Held,
    Waiting(usize),
    Refused(Refusal),
    /// An operator evicted it.
    Evicted,
}

fn contended_error() -> Error {
    let message = "others change this lock so fast that it could not be read; try again";
    Error::new(ErrorKind::Unavailable, message).retryable().effect_unknown().at_engine(error::NAME)
}

/// Requests the lock for a claim, for the first time or again.
pub(super) async fn request_lock(
    engine: &ZookeeperEngine,
    seat: &Arc<ClaimEntry>,
    claim: &Claim,
    place: &mut RemoteState,
) -> Result<ClaimStatus> {
    for _ in 0..MAX_TRIES {
        // A request that can never be granted is refused at once, but not when a waiting claim
        // tries again.
        let new = !place.is_established;
        let found = match &place.stage {
            NodeStage::New => {
                if create_node(engine, seat, claim, place).await? {
                    return Ok(ClaimStatus::Held);
                }
                read_position(engine, seat, claim, place, new).await?
            }
            NodeStage::CreateSent | NodeStage::Gone => {
                find_node(engine, seat, place).await?;
                continue;
            }
            NodeStage::Evicted => return Ok(ClaimStatus::Evicted),
            // A retry: the last answer may have been lost, and the node, too.
            NodeStage::Created(own) => match confirm(engine, &seat.session, &seat.path(own)).await? {
                true if seat.is_held() => Some(ClaimStatus::Held),
                true => read_position(engine, seat, claim, place, new).await?,
                false => None,
            },
        };
        if let Some(look) = found {
            place.is_established = !matches!(look, ClaimStatus::Refused(_));
            return Ok(look);
        }
        lose(seat, place);
    }
    Err(contended_error())
}

fn reset_state(seat: &ClaimEntry, place: &mut RemoteState) {
    seat.reset();
    *place = RemoteState::default();
}

/// Notes that the claim's node is gone, and not by its own client. The claim starts again, unless
/// it was evicted.
fn lose(seat: &ClaimEntry, place: &mut RemoteState) {
    reset_state(seat, place);
    place.stage = NodeStage::Gone;
}

/// Creates the claim's node. `true`: it is the only one.
async fn create_node(
    engine: &ZookeeperEngine,
    seat: &ClaimEntry,
    claim: &Claim,
    place: &mut RemoteState,
) -> Result<bool> {
    let (session, terms) = (&seat.session, &claim.options);
    let (folder, name) = (&seat.folder, claim.name().as_str().as_bytes());
    let prefix = wire::node_prefix(claim.id, terms.mode, wire::hash_owner(terms.owner), None);
    let record = wire::holder_data(&terms.holder, terms.ttl);
    let acls = engine.config.access.acls();
    let (container, ephemeral) =
        (CreateMode::Container.with_acls(acls), CreateMode::EphemeralSequential.with_acls(acls));
    for _ in 0..MAX_TRIES {
        let cold = !engine.is_folder_known(claim.name());
        let sent = session.now();
        let mut all = session.client.new_multi_writer();
        let mut added = if cold { all.add_create(folder, name, &container) } else { Ok(()) };
        added = added.and_then(|()| all.add_create(&format!("{folder}/{prefix}"), record.as_bytes(), &ephemeral));
        added = added.and_then(|()| all.add_set_data(folder, name, None));
        added.map_err(|cause| engine.request_error(cause))?;
        place.stage = NodeStage::CreateSent;
        let result = all.commit().await;
        session.note_write(sent, &result);
        match result {
            Ok(done) => {
                engine.set_folder_known(claim.name(), true);
                let [.., MultiWriteResult::Create { path, .. }, MultiWriteResult::SetData { stat }] = &done[..] else {
                    return Err(unexpected_reply(&format!("{done:?}")));
                };
                place.stage = NodeStage::Created(parse_node(path, stat.mzxid)?);
                if stat.num_children > MAX_CONTENDERS {
                    delete(session, path).await.map_err(|cause| engine.request_error(cause))?;
                    place.stage = NodeStage::New;
                    let message =
                        format!("{MAX_CONTENDERS} claims hold this lock or wait for it, and that is the most");
                    return Err(Error::new(ErrorKind::Full, message).at_engine(error::NAME));
                }
                return Ok(stat.num_children == 1);
            }
            Err(MultiWriteError::OperationFailed { index: 0, source: Cause::NodeExists }) if cold => {
                engine.set_folder_known(claim.name(), true);
            }
            Err(MultiWriteError::OperationFailed { source: Cause::NoNode, .. }) if cold => {
                place.stage = NodeStage::New;
                create_base(engine, session).await?;
            }
            Err(MultiWriteError::OperationFailed { source: Cause::NoNode, .. }) => {
                engine.set_folder_known(claim.name(), false);
            }
            Err(MultiWriteError::OperationFailed { source, .. }) => {
                place.stage = NodeStage::New;
                return Err(engine.request_error(source));
            }
            Err(other) => return Err(engine.request_error(error::into_cause(other))),
        }
        place.stage = NodeStage::New;
    }
    Err(contended_error())
}

fn parse_node(path: &str, zxid: i64) -> Result<ClaimNode> {
    let node = path.rsplit('/').next().unwrap_or_default();
    let stand = wire::parse_node_name(node).ok_or_else(|| unexpected_reply(path))?;
    Ok(ClaimNode { node: node.to_owned(), entry: stand, czxid: zxid.cast_unsigned() })
}

fn unexpected_reply(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the server answered what nobody asked for: {what}")).at_engine(error::NAME)
}

/// Creates the folder of all locks, and its parents.
async fn create_base(engine: &ZookeeperEngine, session: &Session) -> Result<()> {
    create_persistent(engine, session, &engine.config.base).await
}

/// Creates a persistent node, and its parents.
pub(super) async fn create_persistent(engine: &ZookeeperEngine, session: &Session, path: &str) -> Result<()> {
    let options = CreateMode::Persistent.with_acls(engine.config.access.acls());
    let sent = session.now();
    let result = session.client.mkdir(path, &options).await;
    session.note_write(sent, &result);
    result.map_err(|cause| engine.request_error(cause))
}

/// Looks for a node whose creation was not confirmed, or which is gone. If there is none, the claim
/// may have been evicted.
async fn find_node(engine: &ZookeeperEngine, seat: &ClaimEntry, place: &mut RemoteState) -> Result<()> {
    let session = &seat.session;
    if matches!(place.stage, NodeStage::CreateSent) {
        seat.mark_unconfirmed_create();
    }
    let mut found = None;
    for node in
        list_claim_nodes(session, &seat.folder, seat.claim).await.map_err(|cause| engine.request_error(cause))?
    {
        let path = format!("{}/{node}", seat.folder);
        let stat = session.client.check_stat(&path).await.map_err(|cause| engine.request_error(cause))?;
        match stat {
            // Belongs to an earlier session of ours, and would end with it, but others wait for it
            // meanwhile. Or it is a second node.
            Some(stat) if stat.ephemeral_owner != session.client.session_id().0 || found.is_some() => {
                delete(session, &path).await.map_err(|cause| engine.request_error(cause))?;
            }
            Some(stat) => found = Some(parse_node(&path, stat.czxid)?),
            None => {}
        }
    }
    let stage = match found {
        Some(own) => NodeStage::Created(own),
        // No eviction finds the claim any more, until it has another node: only one before counts.
        None if inspect::was_force_released(engine, session, seat.claim).await? => NodeStage::Evicted,
        None => NodeStage::New,
    };
    // Not earlier: if this step breaks off, the remaining nodes must be looked for again. No other
    // client can tell that they belong to no claim.
    place.stage = stage;
    Ok(())
}

/// All nodes of a claim at present, in their order.
pub(super) async fn list_claim_nodes(
    session: &Session,
    folder: &str,
    claim: ClaimId,
) -> std::result::Result<Vec<String>, Cause> {
    let client = &session.client;
    // The server may lag behind: `sync` makes it catch up first.
    let (synced, listed) = join(client.sync(folder), client.list_children(folder)).await;
    let nodes = match synced.and(listed) {
        Ok(nodes) => nodes,
        Err(Cause::NoNode) => Vec::new(),
        Err(cause) => return Err(cause),
    };
    let own = |node: &&String| wire::parse_node_name(node).is_some_and(|stand| stand.claim == claim);
    let mut own: Vec<String> = nodes.iter().filter(own).cloned().collect();
    own.sort_by_key(|node| wire::parse_node_name(node).map_or(0, |stand| stand.sequence));
    Ok(own)
}

/// Deletes a node. `true`: it existed.
pub(super) async fn delete(session: &Session, path: &str) -> std::result::Result<bool, Cause> {
    let sent = session.now();
    let result = session.client.delete(path, None).await;
    session.note_write(sent, &result);
    match result {
        Ok(()) => Ok(true),
        Err(Cause::NoNode) => Ok(false),
        Err(cause) => Err(cause),
    }
}

/// Whether a node exists, checked by a write, which only the leader can commit.
async fn confirm(engine: &ZookeeperEngine, session: &Session, path: &str) -> Result<bool> {
    let sent = session.now();
    let mut check = session.client.new_multi_writer();
    check.add_check_version(path, -1).map_err(|cause| engine.request_error(cause))?;
    let result = check.commit().await;
    session.note_write(sent, &result);
    match result {
        Ok(_) => Ok(true),
        Err(MultiWriteError::OperationFailed { source: Cause::NoNode, .. }) => Ok(false),
        Err(other) => Err(engine.request_error(error::into_cause(other))),
    }
}

/// Reads the list, finds the claim's position in it, and sets watches if it waits. `None`: its node
/// is gone.
async fn read_position(
    engine: &ZookeeperEngine,
    seat: &Arc<ClaimEntry>,
    claim: &Claim,
    place: &mut RemoteState,
    new: bool,
) -> Result<Option<ClaimStatus>> {
    let (session, folder) = (&seat.session, &seat.folder);
    let mut all = false;
    // Until this step ends, the claim may already hold, or watch the wrong node.
    if let Some(armed) = &mut place.armed_watch {
        armed.is_sufficient = false;
    }
    for _ in 0..MAX_TRIES {
        let NodeStage::Created(own) = &place.stage else { return Ok(None) };
        let id = own.entry.id();
        let breaks = session.connection_changes();
        let sent = session.now();
        let (nodes, event) = if all {
            let result = session.client.list_and_watch_children(folder).await;
            session.note_read(sent, &result);
            match result {
                Ok((nodes, watcher)) => (nodes, Some(watcher.changed().boxed())),
                Err(Cause::NoNode) => return Ok(None),
                Err(cause) => return Err(engine.request_error(cause)),
            }
        } else {
            let result = session.client.list_children(folder).await;
            session.note_read(sent, &result);
            match result {
                Ok(nodes) => (nodes, None),
                Err(Cause::NoNode) => return Ok(None),
                Err(cause) => return Err(engine.request_error(cause)),
            }
        };
        if !nodes.contains(&own.node) {
            return Ok(None);
        }
        place.queue = build_queue(session, folder, &nodes).await.map_err(|cause| engine.request_error(cause))?;
        match place.queue.state_of(id, new) {
            ClaimState::Held => return Ok(Some(ClaimStatus::Held)),
            // A hold that has ended is no reason to refuse: it is deleted, and the list read again.
            ClaimState::Refused(Refusal::Upgrade(_))
                if ended_holds::delete_ended_holds(engine, seat, &place.queue, id).await? => {}
            ClaimState::Refused(refusal) => return Ok(Some(ClaimStatus::Refused(refusal))),
            ClaimState::Absent => return Ok(None),
            ClaimState::MayReenter(host) => {
                if re_enter(engine, seat, claim, place, host).await? {
                    return Ok(Some(ClaimStatus::Held));
                }
            }
            ClaimState::Waiting { ahead, watch: WatchTarget::AllHolders } => match event {
                Some(event) => {
                    place.armed_watch = Some(ArmedWatch::new(WatchTarget::AllHolders, event, breaks).mark_sufficient());
                    return Ok(Some(ClaimStatus::Waiting(ahead)));
                }
                None => all = true,
            },
            ClaimState::Waiting { ahead, watch } => {
                let armed =
                    place.armed_watch.as_mut().is_some_and(|armed| armed.watch == watch && armed.is_uninterrupted());
                // If the list was read after the watch was set, no event can be missed.
                if armed || arm_watch(engine, seat, place, watch).await? == TargetState::Untouched {
                    let there = !place.queue.is_next_after(id, watch) || watch_own(engine, seat, place).await?;
                    place.armed_watch.iter_mut().for_each(|armed| armed.is_sufficient = true);
                    return Ok(there.then_some(ClaimStatus::Waiting(ahead)));
                }
            }
        }
    }
    Err(contended_error())
}

/// The state of the node to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TargetState {
    /// It exists, unchanged since its creation.
    Untouched,
    /// It exists, but has changed: another claim may have joined it after our list was read.
    Changed,
    /// It does not exist, or our own node does not.
    Gone,
}

/// Watches one claim ahead. If ours is the next claim, it watches its own node, too: then it
/// acquires the lock without another request.
async fn arm_watch(
    engine: &ZookeeperEngine,
    seat: &Arc<ClaimEntry>,
    place: &mut RemoteState,
    watch: WatchTarget,
) -> Result<TargetState> {
    let session = &seat.session;
    let (WatchTarget::Node(target), NodeStage::Created(own)) = (watch, &place.stage) else {
        return Ok(TargetState::Gone);
    };
    let Some(stand) = place.queue.find(target) else { return Ok(TargetState::Gone) };
    let path = format!("{}/{}", seat.folder, wire::node_name(stand));
    let next = place.queue.is_next_after(own.entry.id(), watch);
    place.armed_watch = None;
    let breaks = session.connection_changes();
    let sent = session.now();
    // Unlike `exists`, this leaves no watch if the node does not exist.
    let watching = session.client.get_and_watch_data(&path);
    // Both requests are sent before either is answered.
    let (result, own) =
        join(watching, async { if next { watch_own(engine, seat, place).await } else { Ok(true) } }).await;
    session.note_read(sent, &result);
    match (result, own?) {
        (_, false) | (Err(Cause::NoNode), _) => Ok(TargetState::Gone),
        (Ok((_, stat, watcher)), true) => {
            place.armed_watch = Some(ArmedWatch::new(watch, watcher.changed().boxed(), breaks));
            Ok(if stat.version == 0 { TargetState::Untouched } else { TargetState::Changed })
        }
        (Err(cause), true) => Err(engine.request_error(cause)),
    }
}

/// Watches the claim's own node, unless it is watched already. `false`: it is gone.
async fn watch_own(engine: &ZookeeperEngine, seat: &ClaimEntry, place: &mut RemoteState) -> Result<bool> {
    let NodeStage::Created(own) = &place.stage else { return Ok(false) };
    if place.own_watch.is_some() {
        return Ok(true);
    }
    match seat.session.client.get_and_watch_data(&seat.path(own)).await {
        Ok((_, _, watcher)) => {
            place.own_watch = Some(watcher.changed().boxed());
            Ok(true)
        }
        Err(Cause::NoNode) => Ok(false),
        Err(cause) => Err(engine.request_error(cause)),
    }
}

/// Re-enters with a holding claim of the same owner. `false`: that claim is gone, had ended and was
/// deleted, or changed meanwhile.
async fn re_enter(
    engine: &ZookeeperEngine,
    seat: &ClaimEntry,
    claim: &Claim,
    place: &mut RemoteState,
    host: NodeId,
) -> Result<bool> {
    let (NodeStage::Created(first), Some(stand)) = (&place.stage, place.queue.find(host)) else { return Ok(false) };
    let (session, terms, folder, first) = (&seat.session, &claim.options, &seat.folder, first.clone());
    let host = format!("{folder}/{}", wire::node_name(stand));
    let (whose, under) = (stand.claim, stand.position());
    let token = stand.reentry.map(|ride| ride.token);
    let (data, stat) = match session.client.get_data(&host).await {
        Ok(found) => found,
        Err(Cause::NoNode) => return Ok(false),
        Err(cause) => return Err(engine.request_error(cause)),
    };
    if ended_holds::delete_ended_hold(engine, seat, (whose, stat.ephemeral_owner), &host).await? {
        return Ok(false);
    }
    let ride = ReentryLink { parent_position: under, token: token.unwrap_or(stat.czxid.cast_unsigned()) };
    let prefix = wire::node_prefix(claim.id, terms.mode, wire::hash_owner(terms.owner), Some(ride));
    let record = wire::holder_data(&terms.holder, terms.ttl);
    let ephemeral = CreateMode::EphemeralSequential.with_acls(engine.config.access.acls());
    let sent = session.now();
    let mut all = session.client.new_multi_writer();
    // The changed data makes the waiter that watches the host look again.
    let added = all
        .add_set_data(&host, &data, Some(stat.version))
        .and_then(|()| all.add_delete(&seat.path(&first), None))
        .and_then(|()| all.add_create(&format!("{folder}/{prefix}"), record.as_bytes(), &ephemeral));
    added.map_err(|cause| engine.request_error(cause))?;
    place.armed_watch = None;
    place.own_watch = None;
    place.stage = NodeStage::CreateSent;
    let result = all.commit().await;
    session.note_write(sent, &result);
    if matches!(result, Err(MultiWriteError::OperationFailed { .. })) {
        place.stage = NodeStage::Created(first);
    }
    match result {
        Ok(done) => {
            let [MultiWriteResult::SetData { stat }, _, MultiWriteResult::Create { path, .. }] = &done[..] else {
                return Err(unexpected_reply(&format!("{done:?}")));
            };
            place.stage = NodeStage::Created(parse_node(path, stat.mzxid)?);
            Ok(true)
        }
        Err(MultiWriteError::OperationFailed { source: Cause::NoNode | Cause::BadVersion, .. }) => Ok(false),
        Err(other) => Err(engine.request_error(error::into_cause(other))),
    }
}

/// Waits until the claim holds, or `until`. `None`: its node is gone.
pub(super) async fn wait_for_grant(
    engine: &ZookeeperEngine,
    seat: &Arc<ClaimEntry>,
    claim: &Claim,
    place: &mut RemoteState,
    until: Instant,
) -> Result<Option<ClaimStatus>> {
    let found = wait_loop(engine, seat, claim, place, until).await?;
    if found.is_some() {
        return Ok(found);
    }
    if !matches!(place.stage, NodeStage::New) {
        lose(seat, place);
        if seat.session.is_over() {
            // The next attempt looks for its mark, on a new session.
            return Ok(None);
        }
        find_node(engine, seat, place).await?;
    }
    match &place.stage {
        NodeStage::Evicted => return Ok(Some(ClaimStatus::Evicted)),
        NodeStage::New => engine.claims.remove(seat),
        _ => {}
    }
    Ok(None)
}

/// The next event on a waiter's own node; never, if it is not watched.
async fn next_own_event(own: &mut Option<WatchFuture>) -> WatchedEvent {
    match own {
        Some(own) => own.await,
        None => std::future::pending().await,
    }
}

/// Whether an event on its own node ends the waiting.
fn ends(event: EventType) -> bool {
    matches!(event, EventType::NodeDeleted | EventType::Session)
}

async fn wait_loop(
    engine: &ZookeeperEngine,
    seat: &Arc<ClaimEntry>,
    claim: &Claim,
    place: &mut RemoteState,
    until: Instant,
) -> Result<Option<ClaimStatus>> {
    loop {
        let (node, id) = match &place.stage {
            NodeStage::Created(own) => (seat.path(own), own.entry.id()),
            NodeStage::New => return Ok(None),
            NodeStage::Evicted => return Ok(Some(ClaimStatus::Evicted)),
            // The last step broke off: find out which node the claim has.
            NodeStage::CreateSent | NodeStage::Gone => {
                find_node(engine, seat, place).await?;
                continue;
            }
        };
        let Some(armed) = place.armed_watch.as_mut().filter(|armed| armed.is_sufficient) else {
            // There is no sufficient watch yet, or the last step broke off.
            match read_position(engine, seat, claim, place, false).await? {
                Some(ClaimStatus::Waiting(_)) => continue,
                other => return Ok(other),
            }
        };
        let event = tokio::select! {
            biased;
            // Events on our own node come first: a force-released waiter is not next.
            event = next_own_event(&mut place.own_watch) => {
                place.own_watch = None;
                if ends(event.event_type) {
                    return Ok(None);
                }
                place.armed_watch = None;
                continue;
            }
            event = armed.event.as_mut() => event,
            () = engine.clock.sleep_until(until) => {
                // A write shows that our session lives, and that the leader knows it.
                if !confirm(engine, &seat.session, &node).await? {
                    return Ok(None);
                }
                return read_position(engine, seat, claim, place, false).await;
            }
        };
        let (steady, watch) = (armed.is_uninterrupted(), armed.watch);
        place.armed_watch = None;
        // It may have come just after the first check, and before the other event.
        if let Some(event) = place.own_watch.as_mut().and_then(FutureExt::now_or_never) {
            place.own_watch = None;
            if ends(event.event_type) {
                return Ok(None);
            }
        }
        match (event.event_type, watch) {
            (EventType::Session, _) => return Ok(None),
            // All events since our list was read have arrived, in order: the claim ahead has left,
            // none has joined it, and our node exists.
            (EventType::NodeDeleted, WatchTarget::Node(_))
                if steady && place.own_watch.is_some() && place.queue.is_next_after(id, watch) =>
            {
                return Ok(Some(ClaimStatus::Held));
            }
            // That claim was granted the lock, or another has joined it: set a new watch first,
            // then read the list.
            (EventType::NodeDataChanged, WatchTarget::Node(_)) => {
                arm_watch(engine, seat, place, watch).await?;
            }
            _ => {}
        }
        match read_position(engine, seat, claim, place, false).await? {
            Some(ClaimStatus::Waiting(_)) => {}
            other => return Ok(other),
        }
    }
}

/// Removes the claim, whether it holds or waits. `true`: it had a node.
pub(super) async fn remove_claim(
    seats: &Arc<ClaimRegistry>,
    seat: &Arc<ClaimEntry>,
    place: &mut RemoteState,
) -> std::result::Result<bool, Cause> {
    let there = match &place.stage {
        _ if seat.is_gone() => false,
        NodeStage::New | NodeStage::Gone | NodeStage::Evicted => false,
        NodeStage::Created(own) => {
            let path = seat.path(own);
            // Not held any more, whatever the outcome: our own watch must not report a loss.
            let held = seat.held_path();
            seat.set_held(None);
            let there = delete(&seat.session, &path).await.inspect_err(|_| {
                seat.set_held(held);
            })?;
            if !wire::has_ordered_sequence(&own.entry) {
                // The next claim recreates the folder, which counts from 0. If it has a node
                // already, it stays.
                let _ = delete(&seat.session, &seat.folder).await;
            }
            there || seat.was_node_deleted()
        }
        NodeStage::CreateSent => {
            let mut there = false;
            seat.mark_unconfirmed_create();
            for node in list_claim_nodes(&seat.session, &seat.folder, seat.claim).await? {
                there |= delete(&seat.session, &format!("{}/{node}", seat.folder)).await?;
            }
            there
        }
    };
    reset_state(seat, place);
    seats.remove(seat);
    if seat.has_unconfirmed_create() && !seat.is_gone() {
        ended_holds::delete_late_nodes(seats, seat);
    }
    Ok(there)
}

/// The queue of a lock, as of now.
pub(super) async fn read_queue(engine: &ZookeeperEngine, session: &Session, folder: &str) -> Result<NodeQueue> {
    let (synced, listed) = join(session.client.sync(folder), session.client.list_children(folder)).await;
    let read = match synced.and(listed) {
        Ok(nodes) => build_queue(session, folder, &nodes).await,
        Err(Cause::NoNode) => Ok(NodeQueue::default()),
        Err(cause) => Err(cause),
    };
    read.map_err(|cause| engine.request_error(cause))
}

/// The queue that a list of nodes makes.
pub(super) async fn build_queue(
    session: &Session,
    folder: &str,
    nodes: &[String],
) -> std::result::Result<NodeQueue, Cause> {
    let stands = wire::parse_node_names(nodes);
    if stands.iter().all(wire::has_ordered_sequence) {
        return Ok(NodeQueue::new(stands));
    }
    let made = stands.into_iter().map(|stand| async move {
        let stat = session.client.check_stat(&format!("{folder}/{}", wire::node_name(&stand))).await?;
        Ok::<_, Cause>(stat.map(|stat| (stat.czxid, stand)))
    });
    // A claim that has left meanwhile is not in the queue.
    Ok(wire::queue_by_transaction(try_join_all(made).await?.into_iter().flatten().collect()))
}
