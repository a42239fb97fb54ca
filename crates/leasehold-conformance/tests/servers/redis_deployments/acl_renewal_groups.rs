//! The ACL lines of docs/redis-acl.md for many leases that are renewed together.

use std::sync::Arc;

use leasehold::clock::ManualClock;
use leasehold::engine::{AcquireReply, RenewReply};
use leasehold::{Claim, ErrorKind, Holder, LockName, LockOptions, Mode};
use leasehold_testbed::redis::Reply;
use leasehold_testbed::{eventually, redis};

use crate::redis_deployments::acl::{assert_denied, url_without};
use crate::redis_deployments::deployment::{LONG_TTL, TEST_TIMEOUT, patient_url, raw_command};

/// Many leases are renewed together by other commands. Nobody but the keeper calls that, so it is called here as the keeper does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permissions_that_grouped_renewals_need() {
    let (server, hand) = (redis::start().await.expect("a server"), ManualClock::running());
    for missing in ["+get", "+set", "+setrange", "+del"] {
        let url = url_without(&server, missing).await;
        let engine = leasehold::registry::open(&patient_url(&url), &hand.clock()).await.expect("an engine");
        let claim = |number| {
            let name = LockName::new(format!("{missing}-{number}")).expect("a name");
            let holder = Arc::new(Holder::this_process());
            Arc::new(Claim::new(Arc::new(LockOptions::new(name, Mode::Exclusive, None, LONG_TTL, holder))))
        };
        let claims: Vec<_> = (0..20).map(claim).collect();
        // A bundle that nobody comes into is removed again.
        for claim in claims.iter().filter(|_| missing != "+del") {
            let answer = Arc::clone(&engine).attempt(Arc::clone(claim), false).await.expect("an answer");
            assert!(matches!(answer, AcquireReply::Granted(_)), "{answer:?}");
        }
        let mut renewed = Arc::clone(&engine).renew(claims.clone()).await;
        if missing == "+get" {
            assert!(renewed.is_ok(), "a new bundle is not read: {renewed:?}");
            let doubt = raw_command(server.addr(), &["CLIENT", "KILL", "TYPE", "pubsub"]).await;
            assert!(matches!(doubt, Reply::Integer(1..)), "{doubt:?}");
            renewed = eventually(TEST_TIMEOUT, || async {
                // A bundle that was renewed a moment ago is not asked for again.
                hand.advance(LONG_TTL / 5);
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
        let renewed = Arc::clone(&engine).renew(vec![alone]).await.expect("one needs none of it");
        assert!(matches!(renewed[..], [RenewReply::Renewed(_)]), "{renewed:?}");
    }
}
