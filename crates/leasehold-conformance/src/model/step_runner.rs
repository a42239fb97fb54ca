//! One plan, step by step, on the model and the subject.

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

/// What came of an eviction.
const FORCE_RELEASED: &str = "put out";
const NO_CLAIM: &str = "nobody";

/// When an inspection is made once more.
const INSPECT_INTERVAL: Duration = Duration::from_millis(10);

/// The engine's token, and who waited if it is an eviction's.
type SubjectToken = (Token, Option<HashSet<ClaimId>>);

/// How a token stands to those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenOrder {
    /// As in the model.
    Same,
    /// Below an eviction's, of which its client had not heard when it let the claim in.
    BelowForceRelease,
}

/// What a step showed, told of claims by their letters: equal if it is the same to a user.
type StepResult = (String, Option<Token>);

pub(super) struct StepRunner<'a> {
    comparison: &'a ModelComparison,
    claim_specs: &'a [ClaimSpec],
    claims: Vec<Arc<Claim>>,
    /// Which token of the subject stands for which of the model, by lock.
    token_pairs: HashMap<char, HashMap<Token, SubjectToken>>,
    /// What the subject's clients tell without being asked, and who was told so.
    loss_events: Vec<LossEvents>,
    reported_lost: HashSet<ClaimId>,
    /// Who was seen to hold.
    seen_holders: HashSet<ClaimId>,
    /// Who was evicted, and has not been told so by an answer.
    force_released: HashSet<ClaimId>,
    timeline: String,
}

impl<'a> StepRunner<'a> {
    pub(super) fn new(bench: &'a ModelComparison, plan: &'a Plan, run: u32) -> Self {
        let ttl = Duration::from_secs(if bench.clock.is_some() { 1 } else { 600 });
        let claim = |wish: &ClaimSpec| {
            let name = LockName::new(format!("model {run} {}", wish.lock)).expect("a valid name");
            let owner = wish.owner.map(|owner| Owner::named(&owner.to_string()));
            let holder = Arc::new(Holder::this_process());
            Arc::new(Claim::new(Arc::new(LockOptions::new(name, wish.mode, owner, ttl, holder))))
        };
        Self {
            comparison: bench,
            claim_specs: &plan.claim_specs,
            claims: plan.claim_specs.iter().map(claim).collect(),
            token_pairs: HashMap::new(),
            loss_events: bench.subject.iter().map(|client| client.loss_events()).collect(),
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

    /// Ends all claims, whatever the run came to.
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
            if let Some(hand) = &self.comparison.clock {
                hand.advance(Duration::from_millis(ms));
            }
            // At every lock: who sees an end of a lease first decides when the next one's begins.
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
        // On Redis an eviction is a message. Its server sends it before the answer to the claim's next request, but the client may read it
        // only when that request is under way: then the claim gets it once, in place of the answer. To its client this is an eviction after
        // the request; it releases what it may have got.
        let crosses = self.client(claim).url().starts_with("redis");
        let answered = matches!(model.0.as_str(), "busy" | "granted");
        if crosses && answered && subject.0 == "evicted" && self.force_released.remove(&self.claims[claim].id) {
            return self.compare_views(lock).await;
        }
        self.compare_results(lock, claim, &model, &subject).await?;
        if model.0 == "granted" {
            self.seen_holders.insert(self.claims[claim].id);
        }
        self.compare_views(lock).await
    }

    /// What the subject answers. On ZooKeeper and in databases an evicted claim stays evicted until it is released, as its client may not have read the answer; an
    /// attempt after that starts over.
    async fn subject(&mut self, op: Operation, claim: usize) -> Result<StepResult, String> {
        let (client, id) = (self.client(claim), self.claims[claim].id);
        let stays = ["zookeeper", "mysql", "postgres"].iter().any(|scheme| client.url().starts_with(scheme));
        let seen = self.apply(Arc::clone(&client), op, claim).await?;
        let ended = seen.0 == "evicted" || matches!(op, Operation::Release { .. });
        if stays && ended && self.force_released.remove(&id) && seen.0 == "evicted" {
            self.apply(Arc::clone(&client), Operation::Release { claim }, claim).await?;
            return self.apply(client, op, claim).await;
        }
        Ok(seen)
    }

    /// The same is evicted. What is advised lies between the evicted holder's token and those of the holders that stay: where there are some, how far the
    /// tokens are apart is the engine's own.
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
            Some(advised) if own.is_none_or(|own| own >= advised) => {
                return Err(format!("token {advised} is advised against {own:?}"));
            }
            Some(advised) if stay.iter().any(|contender| contender.token <= Some(advised)) => {
                return Err(format!("token {advised} is advised, and refuses a holder that stays: {stay:?}"));
            }
            // Where waiters have their tokens already, there may be no number between.
            None if own.is_some() && stay.is_empty() && waited.is_empty() => {
                return Err("no token is advised, though nobody else is there".to_owned());
            }
            _ => {}
        }
        if let (true, Some(ours), Some(theirs)) = (stay.is_empty(), model.1, subject.1) {
            self.compare_results(lock, claim, &model, &subject).await?;
            self.token_pairs.entry(lock).or_default().insert(ours, (theirs, Some(waited)));
        }
        Ok(())
    }

    /// A claim shows that it waits only while it does, and is renewed only while it does not.
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
                let evicted =
                    engine.force_release(claim.name().clone(), claim.id, String::new()).await.map_err(wrong)?;
                let who = if evicted.contender.is_some() { FORCE_RELEASED } else { NO_CLAIM };
                (who.to_owned(), evicted.fence_token)
            }
            Operation::AdvanceTime { .. } => (String::new(), None),
        })
    }

    /// The same to a user. Whoever waited while another client put somebody out may have been promised a lower token than the eviction's; then it must
    /// hear that it has lost the lock.
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

    /// Waits until a claim's client tells that it has lost its lock.
    async fn wait_for_loss(&mut self, claim: usize) -> Result<(), String> {
        let id = self.claims[claim].id;
        let client = claim % self.loss_events.len();
        let told = async {
            while !self.reported_lost.contains(&id) {
                let news = self.loss_events[client].next().await;
                self.reported_lost.extend(news.into_iter().filter_map(|loss| match loss {
                    // What may be lost is, here: it is told of nothing else.
                    LossEvent::Lost(claim) | LossEvent::MaybeLost(claim) => Some(claim),
                    LossEvent::Resync | LossEvent::ReleaseRequested(_) => None,
                }));
            }
        };
        let late =
            |_| format!("{} has a lower token than an eviction before, and is never told so", claim_letter(claim));
        tokio::time::timeout(self.comparison.current_grant_timeout(), told).await.map_err(late)
    }

    /// The words are equal, and the tokens are in the same order; or who waited while somebody was put out has a lower one than the eviction.
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
        for (before, (stands_for, evicted)) in known.iter() {
            if before.cmp(&ours) == stands_for.cmp(&theirs) {
                continue;
            }
            match evicted {
                // It may have had its number before.
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

    /// Lets those who were granted hear of it, and compares what an inspection shows.
    async fn compare_views(&mut self, lock: char) -> Result<(), String> {
        let Some(any) = self.claim_specs.iter().position(|wish| wish.lock == lock) else { return Ok(()) };
        let model = self.inspect(&self.comparison.model, any).await;
        for holder in &model.holders {
            let Some(claim) = self.claims.iter().position(|claim| claim.id == holder.claim) else { continue };
            if self.seen_holders.insert(holder.claim) {
                let wait = |engine: Arc<dyn Engine>| {
                    engine.wait(Arc::clone(&self.claims[claim]), self.comparison.current_grant_timeout())
                };
                let told = [wait(Arc::clone(&self.comparison.model)).await, wait(self.client(claim)).await];
                let [ours, theirs] =
                    told.map(|told| told.map_or_else(|error| (error.to_string(), None), describe_answer));
                let _ = write!(self.timeline, "; {} {}", claim_letter(claim), ours.0);
                self.compare_results(lock, claim, &ours, &theirs).await?;
            }
        }
        for (claim, _) in self.claims.iter().zip(self.claim_specs).filter(|(_, wish)| wish.lock == lock) {
            if !model.holders.iter().any(|holder| holder.claim == claim.id) {
                self.seen_holders.remove(&claim.id);
            }
        }
        // What was passed on inside another client may be written down a moment later.
        let clock = Clock::system();
        let give_up = clock.now().saturating_add(self.comparison.current_grant_timeout());
        loop {
            let shown = self.inspect(&self.comparison.subject[0], any).await;
            match self.compare_view(lock, &model, &shown) {
                Err(_) if clock.now() < give_up => {
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
        // First granted first; where an owner's further claims stand among the others is the engine's choice.
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
            // Who has a lower token than an eviction was told so when it was let in.
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
        AcquireReply::CoolingDown { .. } => ("abstains".to_owned(), None),
        AcquireReply::Refused(refusal) => (format!("{refusal:?}"), None),
        AcquireReply::ForceReleased => ("evicted".to_owned(), None),
    }
}
