//! Servers whose clocks are minutes apart, with every majority in turn.

use crate::redlock_faults::clocks::{ALIVE_SETS, assert_tokens_rise};
use crate::redlock_faults::fixture::PATIENT;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_over_any_majorities() {
    assert_tokens_rise(PATIENT, &ALIVE_SETS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_over_any_majorities_with_two_rounds_always() {
    assert_tokens_rise(&format!("second-round=always&{PATIENT}"), &ALIVE_SETS).await;
}
