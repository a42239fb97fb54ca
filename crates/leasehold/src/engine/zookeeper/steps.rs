//! What one claim does at the servers: it joins the queue of its lock, waits, and leaves.

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

/// How many times an operation starts over because other clients changed the lock meanwhile.
const MAX_TRIES: usize = 64;
/// How many claims may hold one lock or wait for it. Each claim that waits for permits reads the
/// whole list.
const MAX_CONTENDERS: i32 = 10_000;

/// The state of a claim, as the nodes at the servers show it.
#[derive(Debug)]
pub(super) enum ClaimStatus {
    /// It holds the lock.
    Held,
    /// It is queued behind this many waiters.
    Waiting(usize),
    /// Waiting cannot help, for this reason.
    Refused(Refusal),
    /// An operator force released it.
    ForceReleased,
}

/// The error after [`MAX_TRIES`] tries.
fn contended_error() -> Error {
    let message = "other clients change this lock too fast to read it; try again";
    Error::new(ErrorKind::Unavailable, message).retryable().effect_unknown().at_engine(error::NAME)
}

/// Requests the lock for a claim, for the first time or again, and returns the claim's state. A
/// claim without a node gets one, and so joins the queue.
pub(super) async fn request_lock(
    engine: &ZookeeperEngine,
    entry: &Arc<ClaimEntry>,
    claim: &Claim,
    remote: &mut RemoteState,
) -> Result<ClaimStatus> {
    for _ in 0..MAX_TRIES {
        // Only a new claim is refused if waiting cannot help. One that waits already goes on
        // waiting.
        let is_new = !remote.is_established;
        let found = match &remote.stage {
            NodeStage::New => {
                if create_node(engine, entry, claim, remote).await? {
                    return Ok(ClaimStatus::Held);
                }
                read_position(engine, entry, claim, remote, is_new).await?
            }
            NodeStage::CreateSent | NodeStage::Gone => {
                find_node(engine, entry, remote).await?;
                continue;
            }
            NodeStage::ForceReleased => return Ok(ClaimStatus::ForceReleased),
            // A repeated request: the node may have been deleted meanwhile.
            NodeStage::Created(own) => match confirm_node(engine, &entry.session, &entry.path(own)).await? {
                true if entry.is_held() => Some(ClaimStatus::Held),
                true => read_position(engine, entry, claim, remote, is_new).await?,
                false => None,
            },
        };
        if let Some(status) = found {
            remote.is_established = !matches!(status, ClaimStatus::Refused(_));
            return Ok(status);
        }
        mark_node_lost(entry, remote);
    }
    Err(contended_error())
}

/// Forgets the claim's node and its grant.
fn reset_state(entry: &ClaimEntry, remote: &mut RemoteState) {
    entry.reset();
    *remote = RemoteState::default();
}

/// Notes that another client or the server deleted the claim's node. Unless it was force released,
/// the claim then starts again with a new node.
fn mark_node_lost(entry: &ClaimEntry, remote: &mut RemoteState) {
    reset_state(entry, remote);
    remote.stage = NodeStage::Gone;
}

/// Creates the claim's node, and the lock's folder if it may be missing. `true`: it is the only
/// node in the folder, so the claim holds the lock.
async fn create_node(
    engine: &ZookeeperEngine,
    entry: &ClaimEntry,
    claim: &Claim,
    remote: &mut RemoteState,
) -> Result<bool> {
    let (session, options) = (&entry.session, &claim.options);
    let (folder, name) = (&entry.folder, claim.name().as_str().as_bytes());
    let prefix = wire::node_prefix(claim.id, options.mode, wire::hash_owner(options.owner), None);
    let record = wire::holder_data(&options.holder, options.ttl);
    let acls = engine.config.access.acls();
    let (container, ephemeral) =
        (CreateMode::Container.with_acls(acls), CreateMode::EphemeralSequential.with_acls(acls));
    for _ in 0..MAX_TRIES {
        let may_lack_folder = !engine.is_folder_known(claim.name());
        let sent = session.now();
        let mut all = session.client.new_multi_writer();
        let mut added = if may_lack_folder { all.add_create(folder, name, &container) } else { Ok(()) };
        added = added.and_then(|()| all.add_create(&format!("{folder}/{prefix}"), record.as_bytes(), &ephemeral));
        added = added.and_then(|()| all.add_set_data(folder, name, None));
        added.map_err(|cause| engine.request_error(cause))?;
        remote.stage = NodeStage::CreateSent;
        let result = all.commit().await;
        session.note_write(sent, &result);
        match result {
            Ok(done) => {
                engine.set_folder_known(claim.name(), true);
                let [.., MultiWriteResult::Create { path, .. }, MultiWriteResult::SetData { stat }] = &done[..] else {
                    return Err(unexpected_reply(&format!("{done:?}")));
                };
                remote.stage = NodeStage::Created(parse_node(path, stat.mzxid)?);
                if stat.num_children > MAX_CONTENDERS {
                    delete(session, path).await.map_err(|cause| engine.request_error(cause).effect_unknown())?;
                    remote.stage = NodeStage::New;
                    let message =
                        format!("{MAX_CONTENDERS} claims hold this lock or wait for it, and that is the limit");
                    return Err(Error::new(ErrorKind::Full, message).at_engine(error::NAME));
                }
                return Ok(stat.num_children == 1);
            }
            Err(MultiWriteError::OperationFailed { index: 0, source: Cause::NodeExists }) if may_lack_folder => {
                engine.set_folder_known(claim.name(), true);
            }
            Err(MultiWriteError::OperationFailed { source: Cause::NoNode, .. }) if may_lack_folder => {
                remote.stage = NodeStage::New;
                create_base(engine, session).await?;
            }
            Err(MultiWriteError::OperationFailed { source: Cause::NoNode, .. }) => {
                engine.set_folder_known(claim.name(), false);
            }
            Err(MultiWriteError::OperationFailed { source, .. }) => {
                remote.stage = NodeStage::New;
                return Err(engine.request_error(source));
            }
            Err(other) => return Err(engine.request_error(error::into_cause(other))),
        }
        remote.stage = NodeStage::New;
    }
    Err(contended_error())
}

/// The claim's node with this path, which the transaction `zxid` created.
fn parse_node(path: &str, zxid: i64) -> Result<ClaimNode> {
    let node = path.rsplit('/').next().unwrap_or_default();
    let parsed = wire::parse_node_name(node).ok_or_else(|| unexpected_reply(path))?;
    Ok(ClaimNode { node: node.to_owned(), entry: parsed, czxid: zxid.cast_unsigned() })
}

/// The error for a reply that the request cannot have.
fn unexpected_reply(detail: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the server sent an unexpected answer: {detail}")).at_engine(error::NAME)
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

/// Finds out which node the claim has, after a creation without an answer or a deletion. If it has
/// none, also finds out whether the claim was force released.
async fn find_node(engine: &ZookeeperEngine, entry: &ClaimEntry, remote: &mut RemoteState) -> Result<()> {
    let session = &entry.session;
    if matches!(remote.stage, NodeStage::CreateSent) {
        entry.mark_unconfirmed_create();
    }
    let mut found = None;
    for node in
        list_claim_nodes(session, &entry.folder, entry.claim).await.map_err(|cause| engine.request_error(cause))?
    {
        let path = format!("{}/{node}", entry.folder);
        let stat = session.client.check_stat(&path).await.map_err(|cause| engine.request_error(cause))?;
        match stat {
            // A node on an earlier session of this client, behind which others would wait until
            // that session ends; or a second node of the claim.
            Some(stat) if stat.ephemeral_owner != session.client.session_id().0 || found.is_some() => {
                delete(session, &path).await.map_err(|cause| engine.request_error(cause))?;
            }
            Some(stat) => found = Some(parse_node(&path, stat.czxid)?),
            None => {}
        }
    }
    let stage = match found {
        Some(own) => NodeStage::Created(own),
        // Without a node, the claim cannot be force released any more: only a mark that exists now
        // counts.
        None if inspect::was_force_released(engine, session, entry.claim).await? => NodeStage::ForceReleased,
        None => NodeStage::New,
    };
    // Set last: if this function fails before, the claim's nodes must be searched for again.
    // Otherwise a node could stay that no client deletes.
    remote.stage = stage;
    Ok(())
}

/// The names of all nodes that a claim has now, oldest first.
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
    let own_nodes = |node: &&String| wire::parse_node_name(node).is_some_and(|parsed| parsed.claim == claim);
    let mut own_nodes: Vec<String> = nodes.iter().filter(own_nodes).cloned().collect();
    own_nodes.sort_by_key(|node| wire::parse_node_name(node).map_or(0, |parsed| parsed.sequence));
    Ok(own_nodes)
}

/// Deletes a node; `false` if it did not exist.
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

/// Whether a node exists. The check is a write, which only the leader can commit, so it also shows
/// that the session exists.
async fn confirm_node(engine: &ZookeeperEngine, session: &Session, path: &str) -> Result<bool> {
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

/// Reads the list of nodes, finds the claim's state in it, and sets the watches that a waiter
/// needs. Re-enters if the owner holds the lock. `None`: the claim's node was deleted. `is_new`:
/// the claim may be refused.
async fn read_position(
    engine: &ZookeeperEngine,
    entry: &Arc<ClaimEntry>,
    claim: &Claim,
    remote: &mut RemoteState,
    is_new: bool,
) -> Result<Option<ClaimStatus>> {
    let (session, folder) = (&entry.session, &entry.folder);
    let mut watches_folder = false;
    // Until this function ends, the claim may already hold the lock, or watch the wrong node.
    if let Some(armed) = &mut remote.armed_watch {
        armed.is_sufficient = false;
    }
    for _ in 0..MAX_TRIES {
        let NodeStage::Created(own) = &remote.stage else { return Ok(None) };
        let id = own.entry.id();
        let connection_changes = session.connection_changes();
        let sent = session.now();
        let (nodes, event) = if watches_folder {
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
        remote.queue = build_queue(engine, session, folder, &nodes).await?;
        match remote.queue.state_of(id, is_new) {
            ClaimState::Held => return Ok(Some(ClaimStatus::Held)),
            // Another claim of the same owner excludes this one. If that one has ended, its node is
            // deleted, and the list is read again.
            ClaimState::Refused(Refusal::Upgrade(_))
                if ended_holds::delete_ended_holds(engine, entry, &remote.queue, id).await? => {}
            ClaimState::Refused(refusal) => return Ok(Some(ClaimStatus::Refused(refusal))),
            ClaimState::Absent => return Ok(None),
            ClaimState::MayReenter(host) => {
                if re_enter(engine, entry, claim, remote, host).await? {
                    return Ok(Some(ClaimStatus::Held));
                }
            }
            ClaimState::Waiting { ahead, watch: WatchTarget::AllHolders } => match event {
                Some(event) => {
                    remote.armed_watch =
                        Some(ArmedWatch::new(WatchTarget::AllHolders, event, connection_changes).mark_sufficient());
                    return Ok(Some(ClaimStatus::Waiting(ahead)));
                }
                None => watches_folder = true,
            },
            ClaimState::Waiting { ahead, watch } => {
                let is_armed =
                    remote.armed_watch.as_mut().is_some_and(|armed| armed.watch == watch && armed.is_uninterrupted());
                // If the list was read after the watch was set, no event is missed.
                if is_armed || arm_watch(engine, entry, remote, watch).await? == TargetState::Untouched {
                    let exists = !remote.queue.is_next_after(id, watch) || watch_own(engine, entry, remote).await?;
                    remote.armed_watch.iter_mut().for_each(|armed| armed.is_sufficient = true);
                    return Ok(exists.then_some(ClaimStatus::Waiting(ahead)));
                }
            }
        }
    }
    Err(contended_error())
}

/// What setting a watch showed about the watched node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TargetState {
    /// It exists, unchanged since its creation.
    Untouched,
    /// It exists, but its data has changed: another claim may have re-entered with it since the
    /// list was read.
    Changed,
    /// It does not exist, or the claim's own node does not.
    Gone,
}

/// Sets a watch on one node ahead. If the claim is the next to hold the lock after that, also
/// watches the claim's own node, so that it can acquire the lock without another request.
async fn arm_watch(
    engine: &ZookeeperEngine,
    entry: &Arc<ClaimEntry>,
    remote: &mut RemoteState,
    watch: WatchTarget,
) -> Result<TargetState> {
    let session = &entry.session;
    let (WatchTarget::Node(target), NodeStage::Created(own)) = (watch, &remote.stage) else {
        return Ok(TargetState::Gone);
    };
    let Some(node) = remote.queue.find(target) else { return Ok(TargetState::Gone) };
    let path = format!("{}/{}", entry.folder, wire::node_name(node));
    let is_next = remote.queue.is_next_after(own.entry.id(), watch);
    remote.armed_watch = None;
    let connection_changes = session.connection_changes();
    let sent = session.now();
    // Unlike `exists`, this leaves no watch if the node does not exist.
    let watching = session.client.get_and_watch_data(&path);
    // Both requests are sent before either is answered.
    let (result, own_exists) =
        join(watching, async { if is_next { watch_own(engine, entry, remote).await } else { Ok(true) } }).await;
    session.note_read(sent, &result);
    match (result, own_exists?) {
        (_, false) | (Err(Cause::NoNode), _) => Ok(TargetState::Gone),
        (Ok((_, stat, watcher)), true) => {
            remote.armed_watch = Some(ArmedWatch::new(watch, watcher.changed().boxed(), connection_changes));
            Ok(if stat.version == 0 { TargetState::Untouched } else { TargetState::Changed })
        }
        (Err(cause), true) => Err(engine.request_error(cause)),
    }
}

/// Sets a watch on the claim's own node, unless there is one. `false`: the node was deleted.
async fn watch_own(engine: &ZookeeperEngine, entry: &ClaimEntry, remote: &mut RemoteState) -> Result<bool> {
    let NodeStage::Created(own) = &remote.stage else { return Ok(false) };
    if remote.own_watch.is_some() {
        return Ok(true);
    }
    match entry.session.client.get_and_watch_data(&entry.path(own)).await {
        Ok((_, _, watcher)) => {
            remote.own_watch = Some(watcher.changed().boxed());
            Ok(true)
        }
        Err(Cause::NoNode) => Ok(false),
        Err(cause) => Err(engine.request_error(cause)),
    }
}

/// Re-enters: replaces the claim's node by one that shares the position of the owner's node `host`,
/// which holds the lock. `false`: it could not, because that node was deleted or has changed; the
/// caller reads the list again.
async fn re_enter(
    engine: &ZookeeperEngine,
    entry: &ClaimEntry,
    claim: &Claim,
    remote: &mut RemoteState,
    host: NodeId,
) -> Result<bool> {
    let (NodeStage::Created(former), Some(node)) = (&remote.stage, remote.queue.find(host)) else { return Ok(false) };
    let (session, options, folder, former) = (&entry.session, &claim.options, &entry.folder, former.clone());
    let host = format!("{folder}/{}", wire::node_name(node));
    let (host_claim, parent_position) = (node.claim, node.position());
    let token = node.reentry.map(|reentry| reentry.token);
    let (data, stat) = match session.client.get_data(&host).await {
        Ok(found) => found,
        Err(Cause::NoNode) => return Ok(false),
        Err(cause) => return Err(engine.request_error(cause)),
    };
    if ended_holds::delete_ended_hold(engine, entry, (host_claim, stat.ephemeral_owner), &host).await? {
        return Ok(false);
    }
    let reentry = ReentryLink { parent_position, token: token.unwrap_or(stat.czxid.cast_unsigned()) };
    let prefix = wire::node_prefix(claim.id, options.mode, wire::hash_owner(options.owner), Some(reentry));
    let record = wire::holder_data(&options.holder, options.ttl);
    let ephemeral = CreateMode::EphemeralSequential.with_acls(engine.config.access.acls());
    let sent = session.now();
    let mut all = session.client.new_multi_writer();
    // Writing the host's data again makes the waiter that watches it read the list.
    let added = all
        .add_set_data(&host, &data, Some(stat.version))
        .and_then(|()| all.add_delete(&entry.path(&former), None))
        .and_then(|()| all.add_create(&format!("{folder}/{prefix}"), record.as_bytes(), &ephemeral));
    added.map_err(|cause| engine.request_error(cause))?;
    remote.armed_watch = None;
    remote.own_watch = None;
    remote.stage = NodeStage::CreateSent;
    let result = all.commit().await;
    session.note_write(sent, &result);
    if matches!(result, Err(MultiWriteError::OperationFailed { .. })) {
        remote.stage = NodeStage::Created(former);
    }
    match result {
        Ok(done) => {
            let [MultiWriteResult::SetData { stat }, _, MultiWriteResult::Create { path, .. }] = &done[..] else {
                return Err(unexpected_reply(&format!("{done:?}")));
            };
            remote.stage = NodeStage::Created(parse_node(path, stat.mzxid)?);
            Ok(true)
        }
        Err(MultiWriteError::OperationFailed { source: Cause::NoNode | Cause::BadVersion, .. }) => Ok(false),
        Err(other) => Err(engine.request_error(error::into_cause(other))),
    }
}

/// Waits until the claim holds the lock, or until `until`. `None`: its node was deleted, and it was
/// not force released.
pub(super) async fn wait_for_grant(
    engine: &ZookeeperEngine,
    entry: &Arc<ClaimEntry>,
    claim: &Claim,
    remote: &mut RemoteState,
    until: Instant,
) -> Result<Option<ClaimStatus>> {
    let found = wait_loop(engine, entry, claim, remote, until).await?;
    if found.is_some() {
        return Ok(found);
    }
    if !matches!(remote.stage, NodeStage::New) {
        mark_node_lost(entry, remote);
        if entry.session.is_over() {
            // The next attempt, on a new session, finds out whether it was force released.
            return Ok(None);
        }
        find_node(engine, entry, remote).await?;
    }
    match &remote.stage {
        NodeStage::ForceReleased => return Ok(Some(ClaimStatus::ForceReleased)),
        NodeStage::New => engine.claims.remove(entry),
        _ => {}
    }
    Ok(None)
}

/// Waits for an event on a waiter's own node; never completes if that is not watched.
async fn next_own_event(own: &mut Option<WatchFuture>) -> WatchedEvent {
    match own {
        Some(own) => own.await,
        None => std::future::pending().await,
    }
}

/// Whether an event on a waiter's own node means that it does not wait any more.
fn ends_wait(event: EventType) -> bool {
    matches!(event, EventType::NodeDeleted | EventType::Session)
}

/// Waits as [`wait_for_grant`] does, but does not find out whether a deleted node was force
/// released.
async fn wait_loop(
    engine: &ZookeeperEngine,
    entry: &Arc<ClaimEntry>,
    claim: &Claim,
    remote: &mut RemoteState,
    until: Instant,
) -> Result<Option<ClaimStatus>> {
    loop {
        let (node, id) = match &remote.stage {
            NodeStage::Created(own) => (entry.path(own), own.entry.id()),
            NodeStage::New => return Ok(None),
            NodeStage::ForceReleased => return Ok(Some(ClaimStatus::ForceReleased)),
            // The last call was dropped half-way: find out which node the claim has.
            NodeStage::CreateSent | NodeStage::Gone => {
                find_node(engine, entry, remote).await?;
                continue;
            }
        };
        let Some(armed) = remote.armed_watch.as_mut().filter(|armed| armed.is_sufficient) else {
            // There is no sufficient watch yet, or the last call was dropped half-way.
            match read_position(engine, entry, claim, remote, false).await? {
                Some(ClaimStatus::Waiting(_)) => continue,
                other => return Ok(other),
            }
        };
        let event = tokio::select! {
            biased;
            // Events on the claim's own node come first: a force-released waiter must not acquire
            // the lock.
            event = next_own_event(&mut remote.own_watch) => {
                remote.own_watch = None;
                if ends_wait(event.event_type) {
                    return Ok(None);
                }
                remote.armed_watch = None;
                continue;
            }
            event = armed.event.as_mut() => event,
            () = engine.clock.sleep_until(until) => {
                // A write shows that the session exists, and that the leader knows that.
                if !confirm_node(engine, &entry.session, &node).await? {
                    return Ok(None);
                }
                return read_position(engine, entry, claim, remote, false).await;
            }
        };
        let (is_uninterrupted, watch) = (armed.is_uninterrupted(), armed.watch);
        remote.armed_watch = None;
        // An event on the claim's own node may have come after `select!` checked for one, and
        // before the other event.
        if let Some(event) = remote.own_watch.as_mut().and_then(FutureExt::now_or_never) {
            remote.own_watch = None;
            if ends_wait(event.event_type) {
                return Ok(None);
            }
        }
        match (event.event_type, watch) {
            (EventType::Session, _) => return Ok(None),
            // All events since the list was read have arrived, in order: the claim ahead has left,
            // none has re-entered with it, and this claim's node exists. So this claim holds the
            // lock.
            (EventType::NodeDeleted, WatchTarget::Node(_))
                if is_uninterrupted && remote.own_watch.is_some() && remote.queue.is_next_after(id, watch) =>
            {
                return Ok(Some(ClaimStatus::Held));
            }
            // The watched claim was granted the lock, or another one has re-entered with it: set a
            // new watch first, and then read the list.
            (EventType::NodeDataChanged, WatchTarget::Node(_)) => {
                arm_watch(engine, entry, remote, watch).await?;
            }
            _ => {}
        }
        match read_position(engine, entry, claim, remote, false).await? {
            Some(ClaimStatus::Waiting(_)) => {}
            other => return Ok(other),
        }
    }
}

/// Deletes the node of a claim that holds or waits, and removes the claim's entry. `false`: it had
/// no node.
pub(super) async fn remove_claim(
    registry: &Arc<ClaimRegistry>,
    entry: &Arc<ClaimEntry>,
    remote: &mut RemoteState,
) -> std::result::Result<bool, Cause> {
    let exists = match &remote.stage {
        _ if entry.is_gone() => false,
        NodeStage::New | NodeStage::Gone | NodeStage::ForceReleased => false,
        NodeStage::Created(own) => {
            let path = entry.path(own);
            // Set before the deletion, so that the claim's own watch does not report a loss.
            let held_path = entry.held_path();
            entry.set_held(None);
            let exists = delete(&entry.session, &path).await.inspect_err(|_| {
                entry.set_held(held_path);
            })?;
            if !wire::has_ordered_sequence(&own.entry) {
                // The sequence of the folder's node names has ended. Deletes the folder, so that
                // the next claim recreates it and the sequence starts at 0. Fails if the folder has
                // nodes.
                let _ = delete(&entry.session, &entry.folder).await;
            }
            exists || entry.was_node_deleted()
        }
        NodeStage::CreateSent => {
            let mut exists = false;
            entry.mark_unconfirmed_create();
            for node in list_claim_nodes(&entry.session, &entry.folder, entry.claim).await? {
                exists |= delete(&entry.session, &format!("{}/{node}", entry.folder)).await?;
            }
            exists
        }
    };
    reset_state(entry, remote);
    registry.remove(entry);
    if entry.has_unconfirmed_create() && !entry.is_gone() {
        ended_holds::delete_late_nodes(registry, entry);
    }
    Ok(exists)
}

/// Reads the queue of a lock as it is now.
pub(super) async fn read_queue(engine: &ZookeeperEngine, session: &Session, folder: &str) -> Result<NodeQueue> {
    let (synced, listed) = join(session.client.sync(folder), session.client.list_children(folder)).await;
    match synced.and(listed) {
        Ok(nodes) => build_queue(engine, session, folder, &nodes).await,
        Err(Cause::NoNode) => Ok(NodeQueue::default()),
        Err(cause) => Err(engine.request_error(cause)),
    }
}

/// The queue that these nodes form. If their sequence has ended, asks the servers for the
/// transactions that created them, which give the order.
pub(super) async fn build_queue(
    engine: &ZookeeperEngine,
    session: &Session,
    folder: &str,
    nodes: &[String],
) -> Result<NodeQueue> {
    let parsed = wire::parse_node_names(nodes)?;
    if parsed.iter().all(wire::has_ordered_sequence) {
        return Ok(NodeQueue::new(parsed));
    }
    let with_stats = parsed.into_iter().map(|node| async move {
        let stat = session.client.check_stat(&format!("{folder}/{}", wire::node_name(&node))).await;
        let stat = stat.map_err(|cause| engine.request_error(cause))?;
        Ok::<_, Error>(stat.map(|stat| (stat.czxid, node)))
    });
    // A node that was deleted in between has no transaction, and is left out.
    Ok(wire::queue_by_transaction(try_join_all(with_stats).await?.into_iter().flatten().collect()))
}
