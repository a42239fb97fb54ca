//! The ACL rules in docs/redis-acl.md for renewal groups.

use std::sync::Arc;

use leasehold::clock::ManualClock;
use leasehold::engine::{AcquireReply, RenewReply};
use leasehold::{Claim, ErrorKind, Holder, LockName, LockOptions, Mode};
use leasehold_testbed::redis::Reply;
use leasehold_testbed::{eventually, redis};

use crate::redis_deployments::acl::{assert_denied, url_without};
use crate::redis_deployments::deployment::{LONG_TTL, TEST_TIMEOUT, patient_url, raw_command};

/// Grouped renewals use other commands. Only the keeper calls them, so the test calls them as the
/// keeper does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permissions_that_grouped_renewals_need() {
    let (server, manual_clock) = (redis::start().await.expect("a server"), ManualClock::running());
    for missing in ["+get", "+set", "+del"] {
        let url = url_without(&server, missing).await;
        let engine = leasehold::registry::open(&patient_url(&url), &manual_clock.clock()).await.expect("an engine");
        let claim = |number| {
            let name = LockName::new(format!("{missing}-{number}")).expect("a name");
            let holder = Arc::new(Holder::this_process());
            Arc::new(Claim::new(Arc::new(LockOptions::new(name, Mode::Exclusive, None, LONG_TTL, holder))))
        };
        let claims: Vec<_> = (0..20).map(claim).collect();
        // An empty group is removed.
        for claim in claims.iter().filter(|_| missing != "+del") {
            let answer = Arc::clone(&engine).attempt(Arc::clone(claim), false).await.expect("an answer");
            assert!(matches!(answer, AcquireReply::Granted(_)), "{answer:?}");
        }
        let mut renewed = Arc::clone(&engine).renew(claims.clone()).await;
        if missing == "+get" {
            assert!(renewed.is_ok(), "a new group is not read: {renewed:?}");
            let killed = raw_command(server.addr(), &["CLIENT", "KILL", "TYPE", "pubsub"]).await;
            assert!(matches!(killed, Reply::Integer(1..)), "{killed:?}");
            renewed = eventually(TEST_TIMEOUT, || async {
                // A group that was renewed a moment ago is not renewed again.
                manual_clock.advance(LONG_TTL / 5);
                match Arc::clone(&engine).renew(claims.clone()).await {
                    Err(error) if error.kind() != ErrorKind::Unavailable => Ok(Err(error)),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
        }
        assert_denied(&renewed.expect_err(missing), &missing[1..]);
        let alone = claim(99);
        Arc::clone(&engine).attempt(Arc::clone(&alone), false).await.expect("an answer");
        let renewed =
            Arc::clone(&engine).renew(vec![alone]).await.expect("a single renewal needs none of these permissions");
        assert!(matches!(renewed[..], [RenewReply::Renewed(_)]), "{renewed:?}");
    }
}
