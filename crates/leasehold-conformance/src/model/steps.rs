//! One plan, step by step, on the model and the subject.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::engine::{Answer, Engine, LockView, Loss, Losses, PartyView, Renewal};
use leasehold::{Claim, ClaimId, Holder, LockName, Owner, Terms, Token};

use super::bench::Bench;
use super::plan::{LOCKS, Op, Plan, Wish, letter};
use super::rules;

/// What came of an eviction.
const PUT_OUT: &str = "put out";
const NOBODY: &str = "nobody";

/// When an inspection is made once more.
const AGAIN: Duration = Duration::from_millis(10);

/// The engine's token, and who waited if it is an eviction's.
type Theirs = (Token, Option<HashSet<ClaimId>>);

/// How a token stands to those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// As in the model.
    Same,
    /// Below an eviction's, of which its client had not heard when it let the claim in.
    Below,
}

/// What a step showed, told of claims by their letters: equal if it is the same to a user.
type Seen = (String, Option<Token>);

pub(super) struct Steps<'a> {
    bench: &'a Bench,
    wishes: &'a [Wish],
    claims: Vec<Arc<Claim>>,
    /// Which token of the subject stands for which of the model, by lock.
    tokens: HashMap<char, HashMap<Token, Theirs>>,
    /// What the subject's clients tell without being asked, and who was told so.
    losses: Vec<Losses>,
    lost: HashSet<ClaimId>,
    /// Who was seen to hold.
    holding: HashSet<ClaimId>,
    /// Who was evicted, and has not been told so by an answer.
    evicted: HashSet<ClaimId>,
    story: String,
}

impl<'a> Steps<'a> {
    pub(super) fn new(bench: &'a Bench, plan: &'a Plan, run: u32) -> Self {
        let ttl = Duration::from_secs(if bench.hand.is_some() { 1 } else { 600 });
        let claim = |wish: &Wish| {
            let name = LockName::new(format!("model {run} {}", wish.lock)).expect("a valid name");
            let owner = wish.owner.map(|owner| Owner::named(&owner.to_string()));
            let holder = Arc::new(Holder::this_process());
            Arc::new(Claim::new(Arc::new(Terms::new(name, wish.mode, owner, ttl, holder))))
        };
        Self {
            bench,
            wishes: &plan.wishes,
            claims: plan.wishes.iter().map(claim).collect(),
            tokens: HashMap::new(),
            losses: bench.subject.iter().map(|client| client.losses()).collect(),
            lost: HashSet::new(),
            holding: HashSet::new(),
            evicted: HashSet::new(),
            story: String::new(),
        }
    }

    pub(super) async fn run(&mut self, plan: &Plan) -> Result<(), String> {
        for (number, op) in plan.ops.iter().enumerate() {
            let _ = write!(self.story, "\n{:>3}. {op}: ", number + 1);
            if let Err(problem) = self.step(*op).await {
                return Err(format!("{}\n     {problem}", self.story.trim_start_matches('\n')));
            }
        }
        Ok(())
    }

    /// Ends all claims, whatever the run came to.
    pub(super) async fn clean_up(self) {
        for (number, claim) in self.claims.iter().enumerate() {
            let _ = Arc::clone(&self.bench.model).release(Arc::clone(claim)).await;
            let _ = self.client(number).release(Arc::clone(claim)).await;
        }
    }

    fn client(&self, claim: usize) -> Arc<dyn Engine> {
        Arc::clone(&self.bench.subject[claim % self.bench.subject.len()])
    }

    async fn step(&mut self, op: Op) -> Result<(), String> {
        if let Op::Pass { ms } = op {
            if let Some(hand) = &self.bench.hand {
                hand.advance(Duration::from_millis(ms));
            }
            // At every lock: who sees an end of a lease first decides when the next one's begins.
            for lock in LOCKS {
                self.look(lock).await?;
            }
            return Ok(());
        }
        let (Op::Attempt { claim, .. }
        | Op::Wait { claim }
        | Op::Renew { claim }
        | Op::Release { claim }
        | Op::Evict { claim }) = op
        else {
            return Ok(());
        };
        let lock = self.wishes[claim].lock;
        if !self.makes_sense(op, claim).await {
            self.story.push_str("not now");
            return Ok(());
        }
        if matches!(op, Op::Evict { .. }) {
            self.evict(op, claim, lock).await?;
            return self.look(lock).await;
        }
        let model = self.act(Arc::clone(&self.bench.model), op, claim).await?;
        let subject = self.subject(op, claim).await?;
        self.story.push_str(&model.0);
        // On Redis an eviction is a message. Its server sends it before the answer to the claim's next request, but the client may read it
        // only when that request is under way: then the claim gets it once, in place of the answer. To its client this is an eviction after
        // the request; it releases what it may have got.
        let crosses = self.client(claim).url().starts_with("redis");
        let answered = matches!(model.0.as_str(), "busy" | "granted");
        if crosses && answered && subject.0 == "evicted" && self.evicted.remove(&self.claims[claim].id) {
            return self.look(lock).await;
        }
        self.compare(lock, claim, &model, &subject).await?;
        if model.0 == "granted" {
            self.holding.insert(self.claims[claim].id);
        }
        self.look(lock).await
    }

    /// What the subject answers. On ZooKeeper and in databases an evicted claim stays evicted until it is released, as its client may not have read the answer; an
    /// attempt after that starts over.
    async fn subject(&mut self, op: Op, claim: usize) -> Result<Seen, String> {
        let (client, id) = (self.client(claim), self.claims[claim].id);
        let stays = ["zookeeper", "mysql", "postgres"].iter().any(|scheme| client.url().starts_with(scheme));
        let seen = self.act(Arc::clone(&client), op, claim).await?;
        let ended = seen.0 == "evicted" || matches!(op, Op::Release { .. });
        if stays && ended && self.evicted.remove(&id) && seen.0 == "evicted" {
            self.act(Arc::clone(&client), Op::Release { claim }, claim).await?;
            return self.act(client, op, claim).await;
        }
        Ok(seen)
    }

    /// The same is evicted. What is advised lies between the evicted holder's token and those of the holders that stay: where there are some, how far the
    /// tokens are apart is the engine's own.
    async fn evict(&mut self, op: Op, claim: usize, lock: char) -> Result<(), String> {
        let id = self.claims[claim].id;
        let waited: HashSet<ClaimId> =
            self.view(&self.bench.model, claim).await.waiters.iter().map(|party| party.claim).collect();
        let before = self.view(&self.bench.subject[0], claim).await;
        let model = self.act(Arc::clone(&self.bench.model), op, claim).await?;
        let subject = self.act(self.client(claim), op, claim).await?;
        self.story.push_str(&model.0);
        if model.0 != subject.0 {
            return Err(format!("{}, says the model; the engine: {}", model.0, subject.0));
        }
        if subject.0 == PUT_OUT {
            self.evicted.insert(id);
        }
        let (own, stay): (Vec<_>, Vec<_>) = before.holders.iter().partition(|party| party.claim == id);
        let own = own.first().and_then(|party| party.token);
        match subject.1 {
            Some(advised) if own.is_none_or(|own| own >= advised) => {
                return Err(format!("token {advised} is advised against {own:?}"));
            }
            Some(advised) if stay.iter().any(|party| party.token <= Some(advised)) => {
                return Err(format!("token {advised} is advised, and refuses a holder that stays: {stay:?}"));
            }
            // Where waiters have their tokens already, there may be no number between.
            None if own.is_some() && stay.is_empty() && waited.is_empty() => {
                return Err("no token is advised, though nobody else is there".to_owned());
            }
            _ => {}
        }
        if let (true, Some(ours), Some(theirs)) = (stay.is_empty(), model.1, subject.1) {
            self.compare(lock, claim, &model, &subject).await?;
            self.tokens.entry(lock).or_default().insert(ours, (theirs, Some(waited)));
        }
        Ok(())
    }

    /// A claim shows that it waits only while it does, and is renewed only while it does not.
    async fn makes_sense(&self, op: Op, claim: usize) -> bool {
        let view = self.view(&self.bench.model, claim).await;
        let waits = view.waiters.iter().any(|party| party.claim == self.claims[claim].id);
        match op {
            Op::Wait { .. } => waits,
            Op::Renew { .. } => !waits,
            _ => true,
        }
    }

    async fn view(&self, engine: &Arc<dyn Engine>, claim: usize) -> LockView {
        Arc::clone(engine).inspect(self.claims[claim].name().clone()).await.expect("an inspection")
    }

    async fn act(&self, engine: Arc<dyn Engine>, op: Op, number: usize) -> Result<Seen, String> {
        let claim = Arc::clone(&self.claims[number]);
        let wrong = |error: leasehold::Error| format!("error: {error}");
        Ok(match op {
            Op::Attempt { queue, .. } => answer(engine.attempt(claim, queue).await.map_err(wrong)?),
            Op::Wait { .. } => answer(engine.wait(claim, Duration::ZERO).await.map_err(wrong)?),
            Op::Renew { .. } => {
                let lost = engine.renew(vec![claim]).await.map_err(wrong)? == [Renewal::Lost];
                (if lost { "lost" } else { "held" }.to_owned(), None)
            }
            Op::Release { .. } => (format!("{:?}", engine.release(claim).await.map_err(wrong)?), None),
            Op::Evict { .. } => {
                let evicted = engine.evict(claim.name().clone(), claim.id, String::new()).await.map_err(wrong)?;
                let who = if evicted.party.is_some() { PUT_OUT } else { NOBODY };
                (who.to_owned(), evicted.token)
            }
            Op::Pass { .. } => (String::new(), None),
        })
    }

    /// The same to a user. Whoever waited while another client put somebody out may have been promised a lower token than the eviction's; then it must
    /// hear that it has lost the lock.
    async fn compare(&mut self, lock: char, claim: usize, model: &Seen, subject: &Seen) -> Result<(), String> {
        if self.same(lock, self.claims[claim].id, model, subject)? == Order::Below {
            self.is_told(claim).await?;
        }
        Ok(())
    }

    /// Waits until a claim's client tells that it has lost its lock.
    async fn is_told(&mut self, claim: usize) -> Result<(), String> {
        let id = self.claims[claim].id;
        let client = claim % self.losses.len();
        let told = async {
            while !self.lost.contains(&id) {
                let news = self.losses[client].next().await;
                self.lost.extend(news.into_iter().filter_map(|loss| match loss {
                    // What may be lost is, here: it is told of nothing else.
                    Loss::Of(claim) | Loss::Check(claim) => Some(claim),
                    Loss::Doubt | Loss::ReleaseRequested(_) => None,
                }));
            }
        };
        let late = |_| format!("{} has a lower token than an eviction before, and is never told so", letter(claim));
        tokio::time::timeout(self.bench.bears(), told).await.map_err(late)
    }

    /// The words are equal, and the tokens are in the same order; or who waited while somebody was put out has a lower one than the eviction.
    fn same(&mut self, lock: char, who: ClaimId, model: &Seen, subject: &Seen) -> Result<Order, String> {
        if model.0 != subject.0 || model.1.is_some() != subject.1.is_some() {
            return Err(format!("{}, says the model; the engine: {}", model.0, subject.0));
        }
        let (Some(ours), Some(theirs)) = (model.1, subject.1) else { return Ok(Order::Same) };
        let known = self.tokens.entry(lock).or_default();
        let mut order = Order::Same;
        for (before, (stands_for, evicted)) in known.iter() {
            if before.cmp(&ours) == stands_for.cmp(&theirs) {
                continue;
            }
            match evicted {
                // It may have had its number before.
                Some(_) if *before < ours && *stands_for == theirs => {}
                Some(waited) if *before < ours && waited.contains(&who) => order = Order::Below,
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
    async fn look(&mut self, lock: char) -> Result<(), String> {
        let Some(any) = self.wishes.iter().position(|wish| wish.lock == lock) else { return Ok(()) };
        let model = self.view(&self.bench.model, any).await;
        for holder in &model.holders {
            let Some(claim) = self.claims.iter().position(|claim| claim.id == holder.claim) else { continue };
            if self.holding.insert(holder.claim) {
                let wait = |engine: Arc<dyn Engine>| engine.wait(Arc::clone(&self.claims[claim]), self.bench.bears());
                let told = [wait(Arc::clone(&self.bench.model)).await, wait(self.client(claim)).await];
                let [ours, theirs] = told.map(|told| told.map_or_else(|error| (error.to_string(), None), answer));
                let _ = write!(self.story, "; {} {}", letter(claim), ours.0);
                self.compare(lock, claim, &ours, &theirs).await?;
            }
        }
        for (claim, _) in self.claims.iter().zip(self.wishes).filter(|(_, wish)| wish.lock == lock) {
            if !model.holders.iter().any(|holder| holder.claim == claim.id) {
                self.holding.remove(&claim.id);
            }
        }
        // What was passed on inside another client may be written down a moment later.
        let clock = Clock::system();
        let give_up = clock.now().after(self.bench.bears());
        loop {
            let shown = self.view(&self.bench.subject[0], any).await;
            match self.same_view(lock, &model, &shown) {
                Err(_) if clock.now() < give_up => clock.sleep_until(clock.now().after(AGAIN)).await,
                compared => return compared,
            }
        }
    }

    fn same_view(&mut self, lock: char, model: &LockView, subject: &LockView) -> Result<(), String> {
        let letters = |parties: &[PartyView]| -> String {
            let of =
                |party: &PartyView| self.claims.iter().position(|claim| claim.id == party.claim).map_or('?', letter);
            parties.iter().map(of).collect()
        };
        // First granted first; where an owner's further claims stand among the others is the engine's choice.
        let in_order = |view: &LockView| {
            let mut view = view.clone();
            view.holders.sort_by_key(|party| (party.token, party.claim));
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
            let _: Order = self.same(lock, model.claim, &(ours, model.token), &(theirs, subject.token))?;
        }
        let owner = |id| self.claims.iter().position(|claim| claim.id == id).and_then(|at| self.wishes[at].owner);
        rules::check(subject, owner).map_err(|problem| format!("{theirs}: {problem}"))
    }
}

fn answer(answer: Answer) -> Seen {
    match answer {
        Answer::Granted(grant) => ("granted".to_owned(), Some(grant.token)),
        Answer::Queued { ahead, .. } => (format!("queued behind {ahead}"), None),
        Answer::Busy { .. } => ("busy".to_owned(), None),
        Answer::Abstains { .. } => ("abstains".to_owned(), None),
        Answer::Refused(refusal) => (format!("{refusal:?}"), None),
        Answer::Evicted => ("evicted".to_owned(), None),
    }
}
