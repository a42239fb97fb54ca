//! Runs one plan step by step on the model and the subject.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::engine::{AcquireReply, ContenderView, Engine, LockView, LossEvent, LossEvents, RenewReply};
use leasehold::{Claim, ClaimId, Holder, LockName, LockOptions, Owner, Token};

use super::comparison::ModelComparison;
use super::plan::{ClaimSpec, LOCKS, Operation, Plan, claim_letter};
use super::rules;

/// The result of a force release that found its claim.
const FORCE_RELEASED: &str = "force released";
/// The result of a force release that did not find its claim.
const NO_CLAIM: &str = "no such claim";

/// The pause between two inspections of the subject.
const INSPECT_INTERVAL: Duration = Duration::from_millis(10);

/// A token of the subject. For the fence token of a force release, also the claims that waited
/// then.
type SubjectToken = (Token, Option<HashSet<ClaimId>>);

/// Where a token of the tested engine must lie among its earlier tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenOrder {
    /// At the same place as the model's token among the model's.
    Same,
    /// Below the fence token of a force release that its client did not know of at the grant.
    BelowForceRelease,
}

/// The result of a step in terms of claim letters; equal results look the same to a user.
type StepResult = (String, Option<Token>);

pub(super) struct StepRunner<'a> {
    comparison: &'a ModelComparison,
    claim_specs: &'a [ClaimSpec],
    claims: Vec<Arc<Claim>>,
    /// Maps tokens of the model to tokens of the subject, by lock.
    token_pairs: HashMap<char, HashMap<Token, SubjectToken>>,
    /// The loss events of the subject's clients, and the claims they reported.
    loss_events: Vec<LossEvents>,
    reported_lost: HashSet<ClaimId>,
    /// Claims that were seen to hold.
    seen_holders: HashSet<ClaimId>,
    /// Force-released claims that have not been reported in a reply.
    force_released: HashSet<ClaimId>,
    timeline: String,
}

impl<'a> StepRunner<'a> {
    pub(super) fn new(comparison: &'a ModelComparison, plan: &'a Plan, run: u32) -> Self {
        let ttl = Duration::from_secs(if comparison.clock.is_some() { 1 } else { 600 });
        let claim = |spec: &ClaimSpec| {
            let name = LockName::new(format!("model {run} {}", spec.lock)).expect("a valid name");
            let owner = spec.owner.map(|owner| Owner::named(&owner.to_string()));
            let holder = Arc::new(Holder::this_process());
            Arc::new(Claim::new(Arc::new(LockOptions::new(name, spec.mode, owner, ttl, holder))))
        };
        Self {
            comparison,
            claim_specs: &plan.claim_specs,
            claims: plan.claim_specs.iter().map(claim).collect(),
            token_pairs: HashMap::new(),
            loss_events: comparison.subject.iter().map(|client| client.loss_events()).collect(),
            reported_lost: HashSet::new(),
            seen_holders: HashSet::new(),
            force_released: HashSet::new(),
            timeline: String::new(),
        }
    }

    pub(super) async fn run(&mut self, plan: &Plan) -> Result<(), String> {
        for (number, op) in plan.operations.iter().enumerate() {
            let _ = write!(self.timeline, "\n{:>3}. {op}: ", number + 1);
            if let Err(problem) = self.step(*op).await {
                return Err(format!("{}\n     {problem}", self.timeline.trim_start_matches('\n')));
            }
        }
        Ok(())
    }

    /// Releases all claims, also after a difference was found.
    pub(super) async fn clean_up(self) {
        for (number, claim) in self.claims.iter().enumerate() {
            let _ = Arc::clone(&self.comparison.model).release(Arc::clone(claim)).await;
            let _ = self.client(number).release(Arc::clone(claim)).await;
        }
    }

    fn client(&self, claim: usize) -> Arc<dyn Engine> {
        Arc::clone(&self.comparison.subject[claim % self.comparison.subject.len()])
    }

    async fn step(&mut self, operation: Operation) -> Result<(), String> {
        if let Operation::AdvanceTime { ms } = operation {
            if let Some(clock) = &self.comparison.clock {
                clock.advance(Duration::from_millis(ms));
            }
            // For every lock: the first client to see the end of a lease determines the start of
            // the next one.
            for lock in LOCKS {
                self.compare_views(lock).await?;
            }
            return Ok(());
        }
        let (Operation::Attempt { claim, .. }
        | Operation::Wait { claim }
        | Operation::Renew { claim }
        | Operation::Release { claim }
        | Operation::ForceRelease { claim }) = operation
        else {
            return Ok(());
        };
        let lock = self.claim_specs[claim].lock;
        if !self.is_applicable(operation, claim).await {
            self.timeline.push_str("not now");
            return Ok(());
        }
        if matches!(operation, Operation::ForceRelease { .. }) {
            self.compare_force_release(operation, claim, lock).await?;
            return self.compare_views(lock).await;
        }
        let model = self.apply(Arc::clone(&self.comparison.model), operation, claim).await?;
        let subject = self.subject(operation, claim).await?;
        self.timeline.push_str(&model.0);
        // On Redis a force release is a message. The server sends it before the reply to the
        // claim's next request, but the client may read it only during that request, and then gets
        // the force release instead of the reply. For the client the force release comes after the
        // request, and it releases what it may have acquired.
        let may_overtake = self.client(claim).url().starts_with("redis");
        let has_reply = matches!(model.0.as_str(), "busy" | "granted");
        if may_overtake
            && has_reply
            && subject.0 == "already force-released"
            && self.force_released.remove(&self.claims[claim].id)
        {
            return self.compare_views(lock).await;
        }
        self.compare_results(lock, claim, &model, &subject).await?;
        if model.0 == "granted" {
            self.seen_holders.insert(self.claims[claim].id);
        }
        self.compare_views(lock).await
    }

    /// The subject's result. On ZooKeeper and in databases a force-released claim stays
    /// force-released until it is released, because its client may have missed the reply; an
    /// attempt after that starts over.
    async fn subject(&mut self, op: Operation, claim: usize) -> Result<StepResult, String> {
        let (client, id) = (self.client(claim), self.claims[claim].id);
        let stays = ["zookeeper", "mysql", "postgres"].iter().any(|scheme| client.url().starts_with(scheme));
        let seen = self.apply(Arc::clone(&client), op, claim).await?;
        let ended = seen.0 == "already force-released" || matches!(op, Operation::Release { .. });
        if stays && ended && self.force_released.remove(&id) && seen.0 == "already force-released" {
            self.apply(Arc::clone(&client), Operation::Release { claim }, claim).await?;
            return self.apply(client, op, claim).await;
        }
        Ok(seen)
    }

    /// The same claim is force-released. A suggested fence token is above the force-released
    /// holder's token and below those of the remaining holders. The distance between tokens is up
    /// to the engine.
    async fn compare_force_release(&mut self, operation: Operation, claim: usize, lock: char) -> Result<(), String> {
        let id = self.claims[claim].id;
        let waited: HashSet<ClaimId> =
            self.inspect(&self.comparison.model, claim).await.waiters.iter().map(|contender| contender.claim).collect();
        let before = self.inspect(&self.comparison.subject[0], claim).await;
        let model = self.apply(Arc::clone(&self.comparison.model), operation, claim).await?;
        let subject = self.apply(self.client(claim), operation, claim).await?;
        self.timeline.push_str(&model.0);
        if model.0 != subject.0 {
            return Err(format!("{}, says the model; the engine: {}", model.0, subject.0));
        }
        if subject.0 == FORCE_RELEASED {
            self.force_released.insert(id);
        }
        let (own, stay): (Vec<_>, Vec<_>) = before.holders.iter().partition(|contender| contender.claim == id);
        let own = own.first().and_then(|contender| contender.token);
        match subject.1 {
            Some(suggested) if own.is_none_or(|own| own >= suggested) => {
                return Err(format!("fence token {suggested} does not reject {own:?}"));
            }
            Some(suggested) if stay.iter().any(|contender| contender.token <= Some(suggested)) => {
                return Err(format!("fence token {suggested} rejects a remaining holder: {stay:?}"));
            }
            // If waiters already have their tokens, there may be no token in between.
            None if own.is_some() && stay.is_empty() && waited.is_empty() => {
                return Err("no fence token, although there is no other claim".to_owned());
            }
            _ => {}
        }
        if let (true, Some(ours), Some(theirs)) = (stay.is_empty(), model.1, subject.1) {
            self.compare_results(lock, claim, &model, &subject).await?;
            self.token_pairs.entry(lock).or_default().insert(ours, (theirs, Some(waited)));
        }
        Ok(())
    }

    /// A claim sends heartbeats only while it waits, and renewals only while it does not.
    async fn is_applicable(&self, operation: Operation, claim: usize) -> bool {
        let view = self.inspect(&self.comparison.model, claim).await;
        let waits = view.waiters.iter().any(|contender| contender.claim == self.claims[claim].id);
        match operation {
            Operation::Wait { .. } => waits,
            Operation::Renew { .. } => !waits,
            _ => true,
        }
    }

    async fn inspect(&self, engine: &Arc<dyn Engine>, claim: usize) -> LockView {
        Arc::clone(engine).inspect(self.claims[claim].name().clone()).await.expect("an inspection")
    }

    async fn apply(&self, engine: Arc<dyn Engine>, operation: Operation, number: usize) -> Result<StepResult, String> {
        let claim = Arc::clone(&self.claims[number]);
        let wrong = |error: leasehold::Error| format!("error: {error}");
        Ok(match operation {
            Operation::Attempt { queue, .. } => describe_answer(engine.attempt(claim, queue).await.map_err(wrong)?),
            Operation::Wait { .. } => describe_answer(engine.wait(claim, Duration::ZERO).await.map_err(wrong)?),
            Operation::Renew { .. } => {
                let lost = engine.renew(vec![claim]).await.map_err(wrong)? == [RenewReply::Lost];
                (if lost { "lost" } else { "held" }.to_owned(), None)
            }
            Operation::Release { .. } => (format!("{:?}", engine.release(claim).await.map_err(wrong)?), None),
            Operation::ForceRelease { .. } => {
                let force_released =
                    engine.force_release(claim.name().clone(), claim.id, String::new()).await.map_err(wrong)?;
                let who = if force_released.contender.is_some() { FORCE_RELEASED } else { NO_CLAIM };
                (who.to_owned(), force_released.fence_token)
            }
            Operation::AdvanceTime { .. } => (String::new(), None),
        })
    }

    /// The results look the same to a user. A claim that waited during another client's force
    /// release may already have a token below the fence token; then its client must report that it
    /// lost the lock.
    async fn compare_results(
        &mut self,
        lock: char,
        claim: usize,
        model: &StepResult,
        subject: &StepResult,
    ) -> Result<(), String> {
        if self.compare_tokens(lock, self.claims[claim].id, model, subject)? == TokenOrder::BelowForceRelease {
            self.wait_for_loss(claim).await?;
        }
        Ok(())
    }

    /// Waits until a claim's client reports the loss of its lock.
    async fn wait_for_loss(&mut self, claim: usize) -> Result<(), String> {
        let id = self.claims[claim].id;
        let client = claim % self.loss_events.len();
        let reported = async {
            while !self.reported_lost.contains(&id) {
                let events = self.loss_events[client].next().await;
                self.reported_lost.extend(events.into_iter().filter_map(|loss| match loss {
                    // A possible loss is a loss here: nothing else causes it.
                    LossEvent::Lost(claim) | LossEvent::MaybeLost(claim) => Some(claim),
                    LossEvent::Resync | LossEvent::ReleaseRequested(_) => None,
                }));
            }
        };
        let late =
            |_| format!("{} has a token below an earlier fence token, but no loss was reported", claim_letter(claim));
        tokio::time::timeout(self.comparison.current_grant_timeout(), reported).await.map_err(late)
    }

    /// The descriptions are equal and the tokens are in the same order, or a claim that waited
    /// during a force release has a token below the fence token.
    fn compare_tokens(
        &mut self,
        lock: char,
        claim_id: ClaimId,
        model: &StepResult,
        subject: &StepResult,
    ) -> Result<TokenOrder, String> {
        if model.0 != subject.0 || model.1.is_some() != subject.1.is_some() {
            return Err(format!("{}, says the model; the engine: {}", model.0, subject.0));
        }
        let (Some(ours), Some(theirs)) = (model.1, subject.1) else { return Ok(TokenOrder::Same) };
        let known = self.token_pairs.entry(lock).or_default();
        let mut order = TokenOrder::Same;
        for (before, (stands_for, force_released)) in known.iter() {
            if before.cmp(&ours) == stands_for.cmp(&theirs) {
                continue;
            }
            match force_released {
                // The token may have been assigned earlier.
                Some(_) if *before < ours && *stands_for == theirs => {}
                Some(waited) if *before < ours && waited.contains(&claim_id) => order = TokenOrder::BelowForceRelease,
                _ => {
                    let order = if *before == ours { "the same" } else { "a higher one" };
                    return Err(format!("token {theirs} after token {stands_for}: it should be {order}"));
                }
            }
        }
        known.entry(ours).or_insert((theirs, None));
        Ok(order)
    }

    /// Lets granted waiters receive their grants, and compares the inspections.
    async fn compare_views(&mut self, lock: char) -> Result<(), String> {
        let Some(any) = self.claim_specs.iter().position(|spec| spec.lock == lock) else { return Ok(()) };
        let model = self.inspect(&self.comparison.model, any).await;
        for holder in &model.holders {
            let Some(claim) = self.claims.iter().position(|claim| claim.id == holder.claim) else { continue };
            if self.seen_holders.insert(holder.claim) {
                let wait = |engine: Arc<dyn Engine>| {
                    engine.wait(Arc::clone(&self.claims[claim]), self.comparison.current_grant_timeout())
                };
                let results = [wait(Arc::clone(&self.comparison.model)).await, wait(self.client(claim)).await];
                let [ours, theirs] =
                    results.map(|result| result.map_or_else(|error| (error.to_string(), None), describe_answer));
                let _ = write!(self.timeline, "; {} {}", claim_letter(claim), ours.0);
                self.compare_results(lock, claim, &ours, &theirs).await?;
            }
        }
        for (claim, _) in self.claims.iter().zip(self.claim_specs).filter(|(_, spec)| spec.lock == lock) {
            if !model.holders.iter().any(|holder| holder.claim == claim.id) {
                self.seen_holders.remove(&claim.id);
            }
        }
        // A local hand-off in another client may be written a moment later.
        let clock = Clock::system();
        let deadline = clock.now().saturating_add(self.comparison.current_grant_timeout());
        loop {
            let shown = self.inspect(&self.comparison.subject[0], any).await;
            match self.compare_view(lock, &model, &shown) {
                Err(_) if clock.now() < deadline => {
                    clock.sleep_until(clock.now().saturating_add(INSPECT_INTERVAL)).await
                }
                compared => return compared,
            }
        }
    }

    fn compare_view(&mut self, lock: char, model: &LockView, subject: &LockView) -> Result<(), String> {
        let letters = |contenders: &[ContenderView]| -> String {
            let of = |contender: &ContenderView| {
                self.claims.iter().position(|claim| claim.id == contender.claim).map_or('?', claim_letter)
            };
            contenders.iter().map(of).collect()
        };
        // In the order of grants; where an owner's further claims are placed is up to the engine.
        let in_order = |view: &LockView| {
            let mut view = view.clone();
            view.holders.sort_by_key(|contender| (contender.token, contender.claim));
            view
        };
        let (model, subject) = (&in_order(model), &in_order(subject));
        let show = |view: &LockView| format!("held by [{}], [{}] wait", letters(&view.holders), letters(&view.waiters));
        let (ours, theirs) = (show(model), show(subject));
        if ours != theirs {
            return Err(format!("{ours}, says the model; the engine: {theirs}"));
        }
        for (model, subject) in model.holders.iter().zip(&subject.holders) {
            let (ours, theirs) = (format!("{}", model.mode), format!("{}", subject.mode));
            // A claim with a token below a fence token was already reported at its grant.
            let _: TokenOrder =
                self.compare_tokens(lock, model.claim, &(ours, model.token), &(theirs, subject.token))?;
        }
        let owner = |id| self.claims.iter().position(|claim| claim.id == id).and_then(|at| self.claim_specs[at].owner);
        rules::check_view(subject, owner).map_err(|problem| format!("{theirs}: {problem}"))
    }
}

fn describe_answer(answer: AcquireReply) -> StepResult {
    match answer {
        AcquireReply::Granted(grant) => ("granted".to_owned(), Some(grant.token)),
        AcquireReply::Queued { ahead, .. } => (format!("queued behind {ahead}"), None),
        AcquireReply::Busy { .. } => ("busy".to_owned(), None),
        AcquireReply::CoolingDown { .. } => ("cooling down".to_owned(), None),
        AcquireReply::Refused(refusal) => (format!("{refusal:?}"), None),
        AcquireReply::ForceReleased => ("already force-released".to_owned(), None),
    }
}
