//! Holds of ours that have ended while the servers still have their nodes: their owner does not enter with them again, since it would get
//! the token of what is over.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::engine::ZookeeperEngine;
use super::seats::Seat;
use super::session::Session;
use super::{steps, wire};
use crate::claim::ClaimId;
use crate::error::Result;
use crate::logic::line::{Id, Line};

/// How many sessions are remembered, besides those that live: the servers have let older ones go long ago.
const REMEMBERED: usize = 1024;

/// The sessions that this client has had, by the servers' numbers for them.
#[derive(Debug, Default)]
pub(super) struct Past(Mutex<VecDeque<(i64, Weak<Session>)>>);

impl Past {
    /// One has been opened.
    pub(super) fn note(&self, session: &Arc<Session>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= REMEMBERED
            && let Some(oldest) = all.iter().position(|(_, session)| is_past(session))
        {
            all.remove(oldest);
        }
        all.push_back((session.client.session_id().0, Arc::downgrade(session)));
    }

    /// Whether this was one of ours, and is over: only the servers may still have it.
    fn has(&self, number: i64) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().any(|(one, session)| *one == number && is_past(session))
    }
}

/// Whether nobody relies on a session any more. If a login was refused, it is over earlier than what was promised of it.
fn is_past(session: &Weak<Session>) -> bool {
    session.upgrade().is_none_or(|session| session.is_over() && session.now() >= session.until())
}

/// Takes out the node of a claim, on the session of this number, if its hold was ours and has ended. `true`: it has, and is out.
pub(super) async fn take_out(
    engine: &ZookeeperEngine,
    seat: &Seat,
    (claim, number): (ClaimId, i64),
    path: &str,
) -> Result<bool> {
    let ending = engine.seats.find(claim).filter(|other| other.is_ending());
    if ending.is_none() && !engine.past.has(number) {
        return Ok(false);
    }
    // Before it is gone: whoever gives it back just now hears that it was there.
    ending.iter().for_each(|other| other.note_taken_out());
    steps::delete(&seat.session, path).await.map_err(|cause| engine.failed(cause))?;
    Ok(true)
}

/// Takes out what is in the line of the same owner's holds that have ended. `true`: something was.
pub(super) async fn sweep(engine: &ZookeeperEngine, seat: &Seat, line: &Line, id: Id) -> Result<bool> {
    let owner = line.find(id).and_then(|stand| stand.owner);
    let mut swept = false;
    for stand in line.stands().iter().filter(|stand| owner.is_some() && stand.owner == owner && stand.id() != id) {
        let path = format!("{}/{}", seat.folder, wire::node(stand));
        let stat = seat.session.client.check_stat(&path).await.map_err(|cause| engine.failed(cause))?;
        if let Some(stat) = stat {
            swept |= take_out(engine, seat, (stand.claim, stat.ephemeral_owner), &path).await?;
        }
    }
    Ok(swept)
}
