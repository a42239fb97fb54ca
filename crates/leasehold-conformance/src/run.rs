//! One case on one engine.

use std::path::Path;
use std::time::Duration;

use crate::cases::{CASES, Case};
use crate::subject::Subject;
use crate::test_context::{TEST_TIMEOUT, TestContext};

/// Ends a case that hangs in a call without a bound of its own. Later than [`TEST_TIMEOUT`]: a wait that ends then says what it saw.
const CASE_TIMEOUT: Duration = TEST_TIMEOUT.saturating_mul(3);

/// Runs a case on a fresh instance, and looks whether anything was left behind. If the engine cannot do what the case
/// needs, says so and checks that the engine refuses it.
///
/// # Panics
/// If the engine does not behave as it should, or there is no such case.
#[allow(clippy::print_stdout, reason = "a test that does not apply says so where the test runner shows it")]
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
