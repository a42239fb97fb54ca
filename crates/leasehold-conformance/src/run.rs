//! Runs one case on one engine.

use std::path::Path;
use std::time::Duration;

use crate::cases::{CASES, Case};
use crate::subject::Subject;
use crate::test_context::{TEST_TIMEOUT, TestContext};

/// The time limit of a case, for one that hangs in a call without its own timeout. Longer than
/// [`TEST_TIMEOUT`], so that a timed-out wait can report its cause.
const CASE_TIMEOUT: Duration = TEST_TIMEOUT.saturating_mul(3);

/// Runs a case on a fresh instance, and checks that nothing is left behind. If the engine lacks a
/// capability that the case needs, checks instead that the engine rejects such calls.
///
/// # Panics
/// If the engine misbehaves, or there is no such case.
#[allow(clippy::print_stdout, reason = "a case that does not apply prints the reason")]
pub async fn run(case: &str, subject: &impl Subject, actor: &str) {
    let case: &Case = CASES.iter().find(|known| known.name == case).expect("a case of the list");
    let context = TestContext::new(subject.instance().await, Path::new(actor)).await;
    let body = async {
        let missing = case.missing_requirements(context.capabilities());
        if missing.is_empty() {
            (case.run)(&context).await;
        }
        for need in missing {
            let engine = context.capabilities().engine;
            println!("{} does not apply: the {engine} engine has no {}", case.name, need.capability);
            if let Some(refused) = need.check_refused {
                refused(&context).await;
            }
        }
        context.wait_until_empty().await;
    };
    let ended = tokio::time::timeout(CASE_TIMEOUT, body).await;
    assert!(ended.is_ok(), "{} hangs", case.name);
}
