//! Implements the engine trait with locks that sessions hold.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::super::records::Shelf;
use super::room::Room;
use super::seat::{Seat, Stage};
use super::serve::serve;
use crate::claim::Claim;
use crate::clock::Moment;
use crate::engine::{Answer, Capabilities, Engine, Grant, Losses, Record, RecordStore, Released, Renewal, Step};
use crate::error::Result;
use crate::logic::lease::{self as rules, Validity};
use crate::name::LockName;

/// Locks that sessions of a database hold.
#[derive(Debug)]
pub struct HeldEngine {
    can: Capabilities,
    room: Arc<Room>,
    records: Shelf,
    /// Connections live on the runtime that opened the engine.
    runtime: tokio::runtime::Handle,
}

impl HeldEngine {
    pub(super) fn new(room: Arc<Room>, can: Capabilities) -> Self {
        let runtime = tokio::runtime::Handle::current();
        runtime.spawn(super::watch::watch(Arc::downgrade(&room)));
        Self { can, records: Shelf::new(&room.side), room, runtime }
    }

    /// The claim's entry, with a task of its own.
    fn seat(&self, claim: &Claim, queue: bool) -> Arc<Seat> {
        let (seat, orders) = self.room.seats.take(claim, &self.room.clock);
        if let Some(orders) = orders {
            self.runtime.spawn(serve(Arc::clone(&self.room), Arc::clone(&seat), orders, queue));
        }
        seat
    }

    /// The claim's state, as the answer to a request sent at `sent`.
    async fn answer(&self, seat: &Seat, stage: Stage, sent: Moment) -> Result<Answer> {
        match stage {
            Stage::New | Stage::Waiting => Ok(Answer::Queued { ahead: 0, recheck: None, cooling: None }),
            Stage::Gone(None) => Ok(Answer::Busy { recheck: None }),
            Stage::Gone(Some(trouble)) => Err(trouble.tell(&self.room)),
            Stage::Held { token, until } => {
                // It was granted before this request, so the session must show until when it holds
                // now.
                let until = if until.before(seat.ttl) < sent { seat.prove().await } else { Some(until) };
                Ok(match until {
                    Some(until) => Answer::Granted(Grant { token, validity: Validity::FromSend(until.since(sent)) }),
                    None => Answer::Busy { recheck: None },
                })
            }
        }
    }
}

impl Engine for HeldEngine {
    fn capabilities(&self) -> &Capabilities {
        &self.can
    }

    fn url(&self) -> String {
        self.room.config.shown.clone()
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>, queue: bool) -> Step<Answer> {
        let sent = self.room.clock.now();
        Step::new(async move {
            let seat = self.seat(&claim, queue);
            seat.show(sent);
            let mut stages = seat.stage.subscribe();
            let stage = match stages.wait_for(|stage| !matches!(stage, Stage::New)).await {
                Ok(stage) => stage.clone(),
                Err(_) => Stage::Gone(None),
            };
            self.answer(&seat, stage, sent).await
        })
    }

    fn attempt_all(self: Arc<Self>, _claims: Vec<Arc<Claim>>) -> Step<Option<Vec<Grant>>> {
        Step::ready(Ok(None))
    }

    fn wait(self: Arc<Self>, claim: Arc<Claim>, patience: Duration) -> Step<Answer> {
        let sent = self.room.clock.now();
        Step::new(async move {
            let Some(seat) = self.room.seats.find(claim.id) else {
                return Ok(Answer::Busy { recheck: None });
            };
            seat.show(sent);
            let mut stages = seat.stage.subscribe();
            let changed = stages.wait_for(|stage| !matches!(stage, Stage::New | Stage::Waiting));
            let stage = tokio::select! {
                biased;
                stage = changed => stage.map_or(Stage::Gone(None), |stage| stage.clone()),
                () = self.room.clock.sleep_until(sent.after(patience)) => Stage::Waiting,
            };
            self.answer(&seat, stage, sent).await
        })
    }

    fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) -> Step<Vec<Renewal>> {
        let sent = self.room.clock.now();
        let within = rules::renewal_timeout(claims.iter().map(|claim| claim.terms.ttl));
        Step::new(async move {
            let one = async |claim: &Arc<Claim>| {
                let Some(seat) = self.room.seats.find(claim.id) else { return Renewal::Lost };
                seat.show(sent);
                match self.room.clock.timeout(within, seat.prove()).await {
                    Ok(Some(until)) => Renewal::Renewed(Validity::FromSend(until.since(sent).min(claim.terms.ttl))),
                    Ok(None) => Renewal::Lost,
                    // This claim's session did not answer; those of the others may.
                    Err(_) => {
                        tracing::warn!(name = %claim.name(), "a session gave no answer within {within:?}");
                        Renewal::Unknown
                    }
                }
            };
            Ok(join_all(claims.iter().map(one)).await)
        })
    }

    fn release(self: Arc<Self>, claim: Arc<Claim>) -> Step<Released> {
        Step::new(async move {
            let Some(seat) = self.room.seats.find(claim.id) else { return Ok(Released::Absent) };
            match seat.leave().await {
                Some(Ok(released)) => Ok(released),
                Some(Err(trouble)) => Err(trouble.tell(&self.room)),
                None => Ok(Released::Absent),
            }
        })
    }

    fn losses(&self) -> Losses {
        self.room.board.listen()
    }

    fn farewell(self: Arc<Self>) -> Step<()> {
        Step::new(async move {
            self.room.close().await;
            Ok(())
        })
    }

    fn records(self: Arc<Self>) -> Option<Arc<dyn RecordStore>> {
        Some(self)
    }
}

impl RecordStore for HeldEngine {
    fn get(self: Arc<Self>, name: LockName) -> Step<Record> {
        Step::new(async move { self.records.read(&name).await })
    }

    fn compare_and_set(self: Arc<Self>, name: LockName, over: u64, value: String) -> Step<Option<Record>> {
        Step::new(async move { self.records.write(&name, over, value).await })
    }

    fn list(self: Arc<Self>, prefix: String) -> Step<Vec<LockName>> {
        Step::new(async move { self.records.names(&prefix).await })
    }
}
