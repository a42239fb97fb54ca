//! Runs the model and the subject side by side, and searches for a difference.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use leasehold::ClaimId;
use leasehold::clock::{Clock, ManualClock};
use leasehold::engine::Engine;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};

use super::plan::Plan;
use super::step_runner::StepRunner;
use crate::test_context::TEST_TIMEOUT;

/// The grant timeout while a difference is being shrunk.
const SHRINKING_TIMEOUT: Duration = Duration::from_secs(1);

/// The model and the subject.
#[derive(Debug)]
pub struct ModelComparison {
    pub(super) model: Arc<dyn Engine>,
    /// The subject's clients, which the claims use in turn.
    pub(super) subject: Vec<Arc<dyn Engine>>,
    /// The clock of both, if the test moves the subject's clock; otherwise `None`, and no time
    /// passes.
    pub(super) clock: Option<ManualClock>,
    /// The time in which a grant of the model must reach the subject's waiter.
    pub(super) grant_timeout: Duration,
    next_run: AtomicU32,
    has_differed: AtomicBool,
}

/// A plan on which the subject differs from the model.
pub struct Difference {
    /// The shortest such plan that was found.
    pub plan: Plan,
    /// The results step by step, and the difference.
    pub timeline: String,
    /// The value of `LEASEHOLD_SEED` that replays the search.
    pub seed: u64,
}

impl ModelComparison {
    /// A subject with its own clock: nothing expires, and no time passes.
    pub async fn new(subject: Vec<Arc<dyn Engine>>) -> Self {
        let model = leasehold::registry::open("memory:", &Clock::system()).await.expect("the model");
        Self {
            model,
            subject,
            clock: None,
            grant_timeout: TEST_TIMEOUT,
            next_run: AtomicU32::new(0),
            has_differed: AtomicBool::new(false),
        }
    }

    /// A subject that `open` creates on a clock that the test moves.
    pub async fn with_manual_clock(open: impl AsyncFn(Clock) -> Arc<dyn Engine>) -> Self {
        let manual_clock = ManualClock::new();
        let model = leasehold::registry::open("memory:", &manual_clock.clock()).await.expect("the model");
        let subject = vec![open(manual_clock.clock()).await];
        Self {
            model,
            subject,
            clock: Some(manual_clock),
            grant_timeout: Duration::ZERO,
            next_run: AtomicU32::new(0),
            has_differed: AtomicBool::new(false),
        }
    }

    /// Sets how long a grant may take to reach its waiter: short for a subject with a known flaw.
    #[must_use]
    pub fn with_grant_timeout(mut self, timeout: Duration) -> Self {
        self.grant_timeout = timeout;
        self
    }

    /// The time in which a grant must reach its waiter. It is shorter once a difference is found,
    /// so that shrinking does not take hours.
    pub(super) fn current_grant_timeout(&self) -> Duration {
        let most = if self.has_differed.load(Ordering::Relaxed) { SHRINKING_TIMEOUT } else { self.grant_timeout };
        most.min(self.grant_timeout)
    }

    /// Runs this many random plans and shrinks the first that differs. Must be called on a
    /// multi-threaded runtime.
    pub fn find_difference(&self, plans: u32) -> Option<Difference> {
        let chosen = std::env::var("LEASEHOLD_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = chosen.unwrap_or_else(|| (ClaimId::random().bits() & u128::from(u64::MAX)) as u64);
        let config =
            Config { cases: plans, failure_persistence: None, rng_seed: RngSeed::Fixed(seed), ..Config::default() };
        let strategy = Plan::strategy(self.subject[0].capabilities(), self.clock.is_some());
        let runtime = tokio::runtime::Handle::current();
        let run = |plan: Plan| runtime.block_on(self.run(&plan)).map_err(TestCaseError::fail);
        match tokio::task::block_in_place(|| TestRunner::new(config).run(&strategy, run)) {
            Ok(()) => None,
            Err(TestError::Fail(reason, plan)) => {
                let found = Difference { plan, timeline: reason.to_string(), seed };
                Some(tokio::task::block_in_place(|| runtime.block_on(self.shrink(found))))
            }
            Err(TestError::Abort(reason)) => panic!("the search was aborted: {reason}"),
        }
    }

    /// Removes every step that the difference does not need: the search stops removing steps once
    /// it has begun to change them.
    async fn shrink(&self, mut found: Difference) -> Difference {
        let mut step = 0;
        while step < found.plan.operations.len() {
            let mut plan = found.plan.clone();
            plan.operations.remove(step);
            match self.run(&plan).await {
                Err(timeline) => {
                    found = Difference { plan, timeline, seed: found.seed };
                    step = 0;
                }
                Ok(()) => step += 1,
            }
        }
        found
    }

    /// Runs one plan on the model and the subject.
    ///
    /// # Errors
    /// The timeline, if they differ.
    pub async fn run(&self, plan: &Plan) -> Result<(), String> {
        // New lock names, so that leftovers of a failed run have no effect.
        let run = self.next_run.fetch_add(1, Ordering::Relaxed);
        let mut steps = StepRunner::new(self, plan, run);
        let result = steps.run(plan).await;
        self.has_differed.fetch_or(result.is_err(), Ordering::Relaxed);
        steps.clean_up().await;
        result
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plan, timeline, seed } = self;
        write!(
            f,
            "the engine does not do what the model does (LEASEHOLD_SEED={seed})\n{plan}\nwhat happened:\n{timeline}"
        )
    }
}

impl fmt::Debug for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
