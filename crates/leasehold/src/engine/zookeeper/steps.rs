//! The steps of one claim: joining the queue, waiting, and leaving.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{join, try_join_all};
use leasehold_zookeeper::{CreateMode, Error as Cause, EventType, MultiWriteError, MultiWriteResult, WatchedEvent};

use super::engine::ZookeeperEngine;
use super::seats::{Armed, Own, Place, Seat, Seats, Stage};
use super::session::{Event, Session};
use super::{endings, error, inspect, wire};
use crate::claim::{Claim, ClaimId};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::logic::line::{Id, Line, Ride, Standing, Watch};
use crate::logic::table::Refusal;

/// How many times a step is tried that other clients disturb.
const TRIES: usize = 64;

/// The state of a claim.
#[derive(Debug)]
pub(super) enum Look {
    Holds,
    Waits(usize),
    Refused(Refusal),
    /// An operator evicted it.
    Evicted,
}

fn disturbed() -> Error {
    let message = "others change this lock so fast that it could not be read; try again";
    Error::new(ErrorKind::Unavailable, message).retryable().effect_unknown().at_engine(error::NAME)
}

/// Requests the lock for a claim, for the first time or again.
pub(super) async fn ask(engine: &ZookeeperEngine, seat: &Arc<Seat>, claim: &Claim, place: &mut Place) -> Result<Look> {
    for _ in 0..TRIES {
        // A request that can never be granted is refused at once, but not when a waiting claim
        // tries again.
        let new = !place.settled;
        let found = match &place.stage {
            Stage::New => {
                if enter(engine, seat, claim, place).await? {
                    return Ok(Look::Holds);
                }
                look(engine, seat, claim, place, new).await?
            }
            Stage::Sent | Stage::Gone => {
                find(engine, seat, place).await?;
                continue;
            }
            Stage::Evicted => return Ok(Look::Evicted),
            // A retry: the last answer may have been lost, and the node, too.
            Stage::In(own) => match confirm(engine, &seat.session, &seat.path(own)).await? {
                true if seat.is_held() => Some(Look::Holds),
                true => look(engine, seat, claim, place, new).await?,
                false => None,
            },
        };
        if let Some(look) = found {
            place.settled = !matches!(look, Look::Refused(_));
            return Ok(look);
        }
        lose(seat, place);
    }
    Err(disturbed())
}

fn forget(seat: &Seat, place: &mut Place) {
    seat.renew();
    *place = Place::default();
}

/// Notes that the claim's node is gone, and not by its own client. The claim starts again, unless
/// it was evicted.
fn lose(seat: &Seat, place: &mut Place) {
    forget(seat, place);
    place.stage = Stage::Gone;
}

/// Creates the claim's node. `true`: it is the only one.
async fn enter(engine: &ZookeeperEngine, seat: &Seat, claim: &Claim, place: &mut Place) -> Result<bool> {
    let (session, terms) = (&seat.session, &claim.terms);
    let (folder, name) = (&seat.folder, claim.name().as_str().as_bytes());
    let prefix = wire::prefix(claim.id, terms.mode, wire::owner(terms.owner), None);
    let record = wire::record(&terms.holder, terms.ttl);
    let acls = engine.config.access.acls();
    let (container, ephemeral) =
        (CreateMode::Container.with_acls(acls), CreateMode::EphemeralSequential.with_acls(acls));
    for _ in 0..TRIES {
        let cold = !engine.knows_folder(claim.name());
        let sent = session.now();
        let mut all = session.client.new_multi_writer();
        let mut added = if cold { all.add_create(folder, name, &container) } else { Ok(()) };
        added = added.and_then(|()| all.add_create(&format!("{folder}/{prefix}"), record.as_bytes(), &ephemeral));
        added = added.and_then(|()| all.add_set_data(folder, name, None));
        added.map_err(|cause| engine.failed(cause))?;
        place.stage = Stage::Sent;
        let result = all.commit().await;
        session.wrote(sent, &result);
        match result {
            Ok(done) => {
                engine.note_folder(claim.name(), true);
                let [.., MultiWriteResult::Create { path, .. }, MultiWriteResult::SetData { stat }] = &done[..] else {
                    return Err(odd(&format!("{done:?}")));
                };
                place.stage = Stage::In(own(path, stat.mzxid)?);
                return Ok(stat.num_children == 1);
            }
            Err(MultiWriteError::OperationFailed { index: 0, source: Cause::NodeExists }) if cold => {
                engine.note_folder(claim.name(), true);
            }
            Err(MultiWriteError::OperationFailed { source: Cause::NoNode, .. }) if cold => {
                place.stage = Stage::New;
                make_base(engine, session).await?;
            }
            Err(MultiWriteError::OperationFailed { source: Cause::NoNode, .. }) => {
                engine.note_folder(claim.name(), false);
            }
            Err(MultiWriteError::OperationFailed { source, .. }) => {
                place.stage = Stage::New;
                return Err(engine.failed(source));
            }
            Err(other) => return Err(engine.failed(error::cause(other))),
        }
        place.stage = Stage::New;
    }
    Err(disturbed())
}

fn own(path: &str, zxid: i64) -> Result<Own> {
    let node = path.rsplit('/').next().unwrap_or_default();
    let stand = wire::stand(node).ok_or_else(|| odd(path))?;
    Ok(Own { node: node.to_owned(), stand, czxid: zxid.cast_unsigned() })
}

fn odd(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the server answered what nobody asked for: {what}")).at_engine(error::NAME)
}

/// Creates the folder of all locks, and its parents.
async fn make_base(engine: &ZookeeperEngine, session: &Session) -> Result<()> {
    make_persistent(engine, session, &engine.config.base).await
}

/// Creates a persistent node, and its parents.
pub(super) async fn make_persistent(engine: &ZookeeperEngine, session: &Session, path: &str) -> Result<()> {
    let options = CreateMode::Persistent.with_acls(engine.config.access.acls());
    let sent = session.now();
    let result = session.client.mkdir(path, &options).await;
    session.wrote(sent, &result);
    result.map_err(|cause| engine.failed(cause))
}

/// Looks for a node whose creation was not confirmed, or which is gone. If there is none, the claim
/// may have been evicted.
async fn find(engine: &ZookeeperEngine, seat: &Seat, place: &mut Place) -> Result<()> {
    let session = &seat.session;
    if matches!(place.stage, Stage::Sent) {
        seat.note_doubt();
    }
    let mut found = None;
    for node in nodes_of(session, &seat.folder, seat.claim).await.map_err(|cause| engine.failed(cause))? {
        let path = format!("{}/{node}", seat.folder);
        let stat = session.client.check_stat(&path).await.map_err(|cause| engine.failed(cause))?;
        match stat {
            // Belongs to an earlier session of ours, and would end with it, but others wait for it
            // meanwhile. Or it is a second node.
            Some(stat) if stat.ephemeral_owner != session.client.session_id().0 || found.is_some() => {
                delete(session, &path).await.map_err(|cause| engine.failed(cause))?;
            }
            Some(stat) => found = Some(own(&path, stat.czxid)?),
            None => {}
        }
    }
    let stage = match found {
        Some(own) => Stage::In(own),
        // No eviction finds the claim any more, until it has another node: only one before counts.
        None if inspect::was_evicted(engine, session, seat.claim).await? => Stage::Evicted,
        None => Stage::New,
    };
    // Not earlier: if this step breaks off, the remaining nodes must be looked for again. No other
    // client can tell that they belong to no claim.
    place.stage = stage;
    Ok(())
}

/// All nodes of a claim at present, in their order.
pub(super) async fn nodes_of(
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
    let own = |node: &&String| wire::stand(node).is_some_and(|stand| stand.claim == claim);
    let mut own: Vec<String> = nodes.iter().filter(own).cloned().collect();
    own.sort_by_key(|node| wire::stand(node).map_or(0, |stand| stand.seq));
    Ok(own)
}

/// Deletes a node. `true`: it existed.
pub(super) async fn delete(session: &Session, path: &str) -> std::result::Result<bool, Cause> {
    let sent = session.now();
    let result = session.client.delete(path, None).await;
    session.wrote(sent, &result);
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
    check.add_check_version(path, -1).map_err(|cause| engine.failed(cause))?;
    let result = check.commit().await;
    session.wrote(sent, &result);
    match result {
        Ok(_) => Ok(true),
        Err(MultiWriteError::OperationFailed { source: Cause::NoNode, .. }) => Ok(false),
        Err(other) => Err(engine.failed(error::cause(other))),
    }
}

/// Reads the list, finds the claim's position in it, and sets watches if it waits. `None`: its node
/// is gone.
async fn look(
    engine: &ZookeeperEngine,
    seat: &Arc<Seat>,
    claim: &Claim,
    place: &mut Place,
    new: bool,
) -> Result<Option<Look>> {
    let (session, folder) = (&seat.session, &seat.folder);
    let mut all = false;
    // Until this step ends, the claim may already hold, or watch the wrong node.
    if let Some(armed) = &mut place.armed {
        armed.enough = false;
    }
    for _ in 0..TRIES {
        let Stage::In(own) = &place.stage else { return Ok(None) };
        let id = own.stand.id();
        let breaks = session.breaks();
        let sent = session.now();
        let (nodes, event) = if all {
            let result = session.client.list_and_watch_children(folder).await;
            session.read(sent, &result);
            match result {
                Ok((nodes, watcher)) => (nodes, Some(watcher.changed().boxed())),
                Err(Cause::NoNode) => return Ok(None),
                Err(cause) => return Err(engine.failed(cause)),
            }
        } else {
            let result = session.client.list_children(folder).await;
            session.read(sent, &result);
            match result {
                Ok(nodes) => (nodes, None),
                Err(Cause::NoNode) => return Ok(None),
                Err(cause) => return Err(engine.failed(cause)),
            }
        };
        if !nodes.contains(&own.node) {
            return Ok(None);
        }
        place.line = line(session, folder, &nodes).await.map_err(|cause| engine.failed(cause))?;
        match place.line.standing(id, new) {
            Standing::Holds => return Ok(Some(Look::Holds)),
            // A hold that has ended is no reason to refuse: it is deleted, and the list read again.
            Standing::Refused(Refusal::Upgrade(_)) if endings::sweep(engine, seat, &place.line, id).await? => {}
            Standing::Refused(refusal) => return Ok(Some(Look::Refused(refusal))),
            Standing::Absent => return Ok(None),
            Standing::MayRide(host) => {
                if ride(engine, seat, claim, place, host).await? {
                    return Ok(Some(Look::Holds));
                }
            }
            Standing::Waits { ahead, watch: Watch::All } => match event {
                Some(event) => {
                    place.armed = Some(Armed::new(Watch::All, event, breaks).enough());
                    return Ok(Some(Look::Waits(ahead)));
                }
                None => all = true,
            },
            Standing::Waits { ahead, watch } => {
                let armed = place.armed.as_mut().is_some_and(|armed| armed.watch == watch && armed.is_steady());
                // If the list was read after the watch was set, no event can be missed.
                if armed || arm(engine, seat, place, watch).await? == Target::Untouched {
                    let there = !place.line.is_next_after(id, watch) || watch_own(engine, seat, place).await?;
                    place.armed.iter_mut().for_each(|armed| armed.enough = true);
                    return Ok(there.then_some(Look::Waits(ahead)));
                }
            }
        }
    }
    Err(disturbed())
}

/// The state of the node to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// It exists, unchanged since its creation.
    Untouched,
    /// It exists, but has changed: another claim may have joined it after our list was read.
    Changed,
    /// It does not exist, or our own node does not.
    Gone,
}

/// Watches one claim ahead. If ours is the next claim, it watches its own node, too: then it
/// acquires the lock without another request.
async fn arm(engine: &ZookeeperEngine, seat: &Arc<Seat>, place: &mut Place, watch: Watch) -> Result<Target> {
    let session = &seat.session;
    let (Watch::One(target), Stage::In(own)) = (watch, &place.stage) else { return Ok(Target::Gone) };
    let Some(stand) = place.line.find(target) else { return Ok(Target::Gone) };
    let path = format!("{}/{}", seat.folder, wire::node(stand));
    let next = place.line.is_next_after(own.stand.id(), watch);
    place.armed = None;
    let breaks = session.breaks();
    let sent = session.now();
    // Unlike `exists`, this leaves no watch if the node does not exist.
    let watching = session.client.get_and_watch_data(&path);
    // Both requests are sent before either is answered.
    let (result, own) =
        join(watching, async { if next { watch_own(engine, seat, place).await } else { Ok(true) } }).await;
    session.read(sent, &result);
    match (result, own?) {
        (_, false) | (Err(Cause::NoNode), _) => Ok(Target::Gone),
        (Ok((_, stat, watcher)), true) => {
            place.armed = Some(Armed::new(watch, watcher.changed().boxed(), breaks));
            Ok(if stat.version == 0 { Target::Untouched } else { Target::Changed })
        }
        (Err(cause), true) => Err(engine.failed(cause)),
    }
}

/// Watches the claim's own node, unless it is watched already. `false`: it is gone.
async fn watch_own(engine: &ZookeeperEngine, seat: &Seat, place: &mut Place) -> Result<bool> {
    let Stage::In(own) = &place.stage else { return Ok(false) };
    if place.own.is_some() {
        return Ok(true);
    }
    match seat.session.client.get_and_watch_data(&seat.path(own)).await {
        Ok((_, _, watcher)) => {
            place.own = Some(watcher.changed().boxed());
            Ok(true)
        }
        Err(Cause::NoNode) => Ok(false),
        Err(cause) => Err(engine.failed(cause)),
    }
}

/// Re-enters with a holding claim of the same owner. `false`: that claim is gone, had ended and was
/// deleted, or changed meanwhile.
async fn ride(engine: &ZookeeperEngine, seat: &Seat, claim: &Claim, place: &mut Place, host: Id) -> Result<bool> {
    let (Stage::In(first), Some(stand)) = (&place.stage, place.line.find(host)) else { return Ok(false) };
    let (session, terms, folder, first) = (&seat.session, &claim.terms, &seat.folder, first.clone());
    let host = format!("{folder}/{}", wire::node(stand));
    let (whose, under) = (stand.claim, stand.place());
    let token = stand.ride.map(|ride| ride.token);
    let (data, stat) = match session.client.get_data(&host).await {
        Ok(found) => found,
        Err(Cause::NoNode) => return Ok(false),
        Err(cause) => return Err(engine.failed(cause)),
    };
    if endings::take_out(engine, seat, (whose, stat.ephemeral_owner), &host).await? {
        return Ok(false);
    }
    let ride = Ride { under, token: token.unwrap_or(stat.czxid.cast_unsigned()) };
    let prefix = wire::prefix(claim.id, terms.mode, wire::owner(terms.owner), Some(ride));
    let record = wire::record(&terms.holder, terms.ttl);
    let ephemeral = CreateMode::EphemeralSequential.with_acls(engine.config.access.acls());
    let sent = session.now();
    let mut all = session.client.new_multi_writer();
    // The changed data makes the waiter that watches the host look again.
    let added = all
        .add_set_data(&host, &data, Some(stat.version))
        .and_then(|()| all.add_delete(&seat.path(&first), None))
        .and_then(|()| all.add_create(&format!("{folder}/{prefix}"), record.as_bytes(), &ephemeral));
    added.map_err(|cause| engine.failed(cause))?;
    place.armed = None;
    place.own = None;
    place.stage = Stage::Sent;
    let result = all.commit().await;
    session.wrote(sent, &result);
    if matches!(result, Err(MultiWriteError::OperationFailed { .. })) {
        place.stage = Stage::In(first);
    }
    match result {
        Ok(done) => {
            let [MultiWriteResult::SetData { stat }, _, MultiWriteResult::Create { path, .. }] = &done[..] else {
                return Err(odd(&format!("{done:?}")));
            };
            place.stage = Stage::In(own(path, stat.mzxid)?);
            Ok(true)
        }
        Err(MultiWriteError::OperationFailed { source: Cause::NoNode | Cause::BadVersion, .. }) => Ok(false),
        Err(other) => Err(engine.failed(error::cause(other))),
    }
}

/// Waits until the claim holds, or `until`. `None`: its node is gone.
pub(super) async fn wait(
    engine: &ZookeeperEngine,
    seat: &Arc<Seat>,
    claim: &Claim,
    place: &mut Place,
    until: Moment,
) -> Result<Option<Look>> {
    let found = waited(engine, seat, claim, place, until).await?;
    if found.is_some() {
        return Ok(found);
    }
    if !matches!(place.stage, Stage::New) {
        lose(seat, place);
        if seat.session.is_over() {
            // The next attempt looks for its mark, on a new session.
            return Ok(None);
        }
        find(engine, seat, place).await?;
    }
    match &place.stage {
        Stage::Evicted => return Ok(Some(Look::Evicted)),
        Stage::New => engine.seats.leave(seat),
        _ => {}
    }
    Ok(None)
}

/// The next event on a waiter's own node; never, if it is not watched.
async fn own_event(own: &mut Option<Event>) -> WatchedEvent {
    match own {
        Some(own) => own.await,
        None => std::future::pending().await,
    }
}

/// Whether an event on its own node ends the waiting.
fn ends(event: EventType) -> bool {
    matches!(event, EventType::NodeDeleted | EventType::Session)
}

async fn waited(
    engine: &ZookeeperEngine,
    seat: &Arc<Seat>,
    claim: &Claim,
    place: &mut Place,
    until: Moment,
) -> Result<Option<Look>> {
    loop {
        let (node, id) = match &place.stage {
            Stage::In(own) => (seat.path(own), own.stand.id()),
            Stage::New => return Ok(None),
            Stage::Evicted => return Ok(Some(Look::Evicted)),
            // The last step broke off: find out which node the claim has.
            Stage::Sent | Stage::Gone => {
                find(engine, seat, place).await?;
                continue;
            }
        };
        let Some(armed) = place.armed.as_mut().filter(|armed| armed.enough) else {
            // There is no sufficient watch yet, or the last step broke off.
            match look(engine, seat, claim, place, false).await? {
                Some(Look::Waits(_)) => continue,
                other => return Ok(other),
            }
        };
        let event = tokio::select! {
            biased;
            // Events on our own node come first: a force-released waiter is not next.
            event = own_event(&mut place.own) => {
                place.own = None;
                if ends(event.event_type) {
                    return Ok(None);
                }
                place.armed = None;
                continue;
            }
            event = armed.event.as_mut() => event,
            () = engine.clock.sleep_until(until) => {
                // A write shows that our session lives, and that the leader knows it.
                if !confirm(engine, &seat.session, &node).await? {
                    return Ok(None);
                }
                return look(engine, seat, claim, place, false).await;
            }
        };
        let (steady, watch) = (armed.is_steady(), armed.watch);
        place.armed = None;
        // It may have come just after the first check, and before the other event.
        if let Some(event) = place.own.as_mut().and_then(FutureExt::now_or_never) {
            place.own = None;
            if ends(event.event_type) {
                return Ok(None);
            }
        }
        match (event.event_type, watch) {
            (EventType::Session, _) => return Ok(None),
            // All events since our list was read have arrived, in order: the claim ahead has left,
            // none has joined it, and our node exists.
            (EventType::NodeDeleted, Watch::One(_))
                if steady && place.own.is_some() && place.line.is_next_after(id, watch) =>
            {
                return Ok(Some(Look::Holds));
            }
            // That claim was granted the lock, or another has joined it: set a new watch first,
            // then read the list.
            (EventType::NodeDataChanged, Watch::One(_)) => {
                arm(engine, seat, place, watch).await?;
            }
            _ => {}
        }
        match look(engine, seat, claim, place, false).await? {
            Some(Look::Waits(_)) => {}
            other => return Ok(other),
        }
    }
}

/// Removes the claim, whether it holds or waits. `true`: it had a node.
pub(super) async fn leave(seats: &Arc<Seats>, seat: &Arc<Seat>, place: &mut Place) -> std::result::Result<bool, Cause> {
    let there = match &place.stage {
        _ if seat.is_gone() => false,
        Stage::New | Stage::Gone | Stage::Evicted => false,
        Stage::In(own) => {
            let path = seat.path(own);
            // Not held any more, whatever the outcome: our own watch must not report a loss.
            let held = seat.held_path();
            seat.set_held(None);
            let there = delete(&seat.session, &path).await.inspect_err(|_| {
                seat.set_held(held);
            })?;
            if !wire::is_in_order(&own.stand) {
                // The next claim recreates the folder, which counts from 0. If it has a node
                // already, it stays.
                let _ = delete(&seat.session, &seat.folder).await;
            }
            there || seat.was_taken_out()
        }
        Stage::Sent => {
            let mut there = false;
            seat.note_doubt();
            for node in nodes_of(&seat.session, &seat.folder, seat.claim).await? {
                there |= delete(&seat.session, &format!("{}/{node}", seat.folder)).await?;
            }
            there
        }
    };
    forget(seat, place);
    seats.leave(seat);
    if seat.is_doubted() && !seat.is_gone() {
        endings::sweep_late(seats, seat);
    }
    Ok(there)
}

/// The queue of a lock, as of now.
pub(super) async fn read_line(engine: &ZookeeperEngine, session: &Session, folder: &str) -> Result<Line> {
    let (synced, listed) = join(session.client.sync(folder), session.client.list_children(folder)).await;
    let read = match synced.and(listed) {
        Ok(nodes) => line(session, folder, &nodes).await,
        Err(Cause::NoNode) => Ok(Line::default()),
        Err(cause) => Err(cause),
    };
    read.map_err(|cause| engine.failed(cause))
}

/// The queue that a list of nodes makes.
pub(super) async fn line(session: &Session, folder: &str, nodes: &[String]) -> std::result::Result<Line, Cause> {
    let stands = wire::stands(nodes);
    if stands.iter().all(wire::is_in_order) {
        return Ok(Line::new(stands));
    }
    let made = stands.into_iter().map(|stand| async move {
        let stat = session.client.check_stat(&format!("{folder}/{}", wire::node(&stand))).await?;
        Ok::<_, Cause>(stat.map(|stat| (stat.czxid, stand)))
    });
    // A claim that has left meanwhile is not in the queue.
    Ok(wire::line_of_transactions(try_join_all(made).await?.into_iter().flatten().collect()))
}
