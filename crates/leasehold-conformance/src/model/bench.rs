//! The model and the subject side by side, and the search for a difference.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use leasehold::ClaimId;
use leasehold::clock::{Clock, ManualClock};
use leasehold::engine::Engine;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};

use super::plan::Plan;
use super::steps::Steps;
use crate::world::SOON;

/// How long a grant may take while a difference is made shorter.
const SHRINKING: Duration = Duration::from_secs(1);

/// The model and the subject.
#[derive(Debug)]
pub struct Bench {
    pub(super) model: Arc<dyn Engine>,
    /// Clients of the subject; the claims take turns among them.
    pub(super) subject: Vec<Arc<dyn Engine>>,
    /// Moves the time of both, if the subject lets itself be moved.
    pub(super) hand: Option<ManualClock>,
    /// How long a grant that the model has made may take to reach its waiter.
    pub(super) patience: Duration,
    runs: AtomicU32,
    differed: AtomicBool,
}

/// A plan on which the subject does not do what the model does.
pub struct Difference {
    /// The shortest one that was found.
    pub plan: Plan,
    /// What happened, step by step, and what differs.
    pub story: String,
    /// What replays the search: `LEASEHOLD_SEED`.
    pub seed: u64,
}

impl Bench {
    /// A subject that keeps its own time: nothing expires, and no time passes.
    pub async fn new(subject: Vec<Arc<dyn Engine>>) -> Self {
        let model = leasehold::engine::open("memory:", &Clock::system()).await.expect("the model");
        Self { model, subject, hand: None, patience: SOON, runs: AtomicU32::new(0), differed: AtomicBool::new(false) }
    }

    /// A subject, made by `open` on a clock that the test moves.
    pub async fn on_a_hand_moved_clock(open: impl AsyncFn(Clock) -> Arc<dyn Engine>) -> Self {
        let hand = ManualClock::new();
        let model = leasehold::engine::open("memory:", &hand.clock()).await.expect("the model");
        let subject = vec![open(hand.clock()).await];
        Self {
            model,
            subject,
            hand: Some(hand),
            patience: Duration::ZERO,
            runs: AtomicU32::new(0),
            differed: AtomicBool::new(false),
        }
    }

    /// The same, with less patience: for a subject that is known to be wrong.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// How long a grant may take to reach its waiter. Once a difference is found, it is only made shorter: that must not take hours.
    pub(super) fn bears(&self) -> Duration {
        let most = if self.differed.load(Ordering::Relaxed) { SHRINKING } else { self.patience };
        most.min(self.patience)
    }

    /// Runs so many random plans and shrinks the first that differs. Must be called on a multi-threaded runtime.
    pub fn find_difference(&self, plans: u32) -> Option<Difference> {
        let chosen = std::env::var("LEASEHOLD_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = chosen.unwrap_or_else(|| (ClaimId::random().bits() & u128::from(u64::MAX)) as u64);
        let config =
            Config { cases: plans, failure_persistence: None, rng_seed: RngSeed::Fixed(seed), ..Config::default() };
        let strategy = Plan::strategy(self.subject[0].capabilities(), self.hand.is_some());
        let runtime = tokio::runtime::Handle::current();
        let run = |plan: Plan| runtime.block_on(self.run(&plan)).map_err(TestCaseError::fail);
        match tokio::task::block_in_place(|| TestRunner::new(config).run(&strategy, run)) {
            Ok(()) => None,
            Err(TestError::Fail(reason, plan)) => {
                let found = Difference { plan, story: reason.to_string(), seed };
                Some(tokio::task::block_in_place(|| runtime.block_on(self.shorten(found))))
            }
            Err(TestError::Abort(reason)) => panic!("the search was aborted: {reason}"),
        }
    }

    /// Leaves out every step without which the difference is still there: the search stops trying that once it has begun to
    /// change steps.
    async fn shorten(&self, mut found: Difference) -> Difference {
        let mut step = 0;
        while step < found.plan.ops.len() {
            let mut plan = found.plan.clone();
            plan.ops.remove(step);
            match self.run(&plan).await {
                Err(story) => {
                    found = Difference { plan, story, seed: found.seed };
                    step = 0;
                }
                Ok(()) => step += 1,
            }
        }
        found
    }

    /// Runs one plan on both.
    ///
    /// # Errors
    /// The story, if they differ.
    pub async fn run(&self, plan: &Plan) -> Result<(), String> {
        // Names of its own: whatever a failed run left behind is not met again.
        let run = self.runs.fetch_add(1, Ordering::Relaxed);
        let mut steps = Steps::new(self, plan, run);
        let result = steps.run(plan).await;
        self.differed.fetch_or(result.is_err(), Ordering::Relaxed);
        steps.clean_up().await;
        result
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plan, story, seed } = self;
        write!(f, "the engine does not do what the model does (LEASEHOLD_SEED={seed})\n{plan}\nwhat happened:\n{story}")
    }
}

impl fmt::Debug for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
