//! Looking at locks and putting holders out, with two servers down: a majority is enough, and who was put out stays out.

use leasehold::{ClaimId, LostReason, Outcome};
use leasehold_conformance::world::SOON;
use leasehold_testbed::redis::Reply;
use leasehold_testbed::{Data, eventually};
use tokio::time::timeout;

use crate::redlock_faults::site::{Ahead, LASTING, NODES, PATIENT, Site, client, give_back, lock};

/// Finds a claim among those of a lock's record, which follow what is said of the last that was given back; nil: it is not there.
const FIND: &str = "local id = string.gsub(ARGV[1], '..', function(byte) return string.char(tonumber(byte, 16)) end)
return string.find(redis.call('GET', KEYS[1]) or '', id, 49, true)";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_put_out_with_two_servers_down_stays_out() {
    stays_out(&[[1, 3]]).await;
}

/// One pair of servers after the other is down meanwhile.
pub(super) async fn stays_out(pairs: &[[usize; 2]]) {
    let mut site = Site::durable().await;
    let ahead = Ahead::new();
    let (locks, other) = (site.locks_on(&ahead).await, site.locks_on(&ahead).await);
    for down in pairs {
        let (held, beside) = (lock(&locks, "held").await, lock(&locks, "beside").await);
        site.until_claims("held", 1).await;
        site.kill(down);
        let view = eventually(SOON, || other.inspect("held")).await;
        let seen: Vec<_> = view.holders.iter().map(|holder| holder.token).collect();
        assert_eq!(seen, [Some(held.token())], "{down:?}: {view:?}");
        assert!(view.holders[0].holder.pid == std::process::id() && view.last_token == Some(held.token()));
        let listed = other.list("").await.expect("a list");
        let names: Vec<_> = listed.iter().map(|view| view.name.as_str()).collect();
        assert_eq!(names, ["beside", "held"]);
        let evicted = other.evict("held", view.holders[0].claim).await.expect("an eviction");
        let fence = evicted.token.expect("a token");
        assert!(evicted.party.is_some() && fence > held.token(), "{down:?}: {evicted:?}");
        // The nodes tell it: no renewal is due for a long time.
        assert_eq!(timeout(SOON, held.lost()).await.expect("it is told"), LostReason::Taken);
        assert!(!held.is_held());
        let next = lock(&other, "held").await;
        assert!(next.token() > fence, "{down:?}");
        // The two have missed all that, and still have the old claim on record.
        site.restart(down, Data::Keep).await;
        assert_eq!(held.release().await.expect("an outcome"), Outcome::WasLost(LostReason::Taken));
        until_gone(&site, "held", view.holders[0].claim).await;
        site.until_told(&ahead, &[&next, &beside], "held", 1).await;
        assert!(beside.is_held(), "nobody else is touched");
        let again = other.evict("held", view.holders[0].claim).await.expect("an eviction");
        assert_eq!((&again.party, again.token), (&None, None), "it is gone");
        ahead.renewed(&[&next, &beside], LASTING).await;
        give_back(next).await;
        give_back(beside).await;
        for name in ["held", "beside"] {
            site.until_claims(name, 0).await;
        }
        assert!(other.list("").await.expect("a list").is_empty());
    }
}

/// Waits until no server has this claim on record: those that were down are told of its end when they are back.
async fn until_gone(site: &Site, name: &str, claim: ClaimId) {
    let (key, id) = (site.key(name), format!("{:032x}", claim.bits()));
    eventually(SOON, || async {
        for at in 0..NODES {
            if site.ask(at, &["EVAL", FIND, "1", &key, &id]).await != Reply::Nil {
                return Err(format!("server {at} has it still"));
            }
        }
        Ok(())
    })
    .await;
}

/// A renewal of somebody who was put out brings nothing back, on any server, however often it comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_of_who_was_put_out_bring_nothing_back() {
    let (site, ahead) = (Site::shared().await, Ahead::new());
    let (proxies, url) = site.proxies(PATIENT).await;
    let (locks, other) = (client(&url, LASTING, &ahead.clock()).await, site.locks().await);
    let held = lock(&locks, "a").await;
    let claim = other.inspect("a").await.expect("a view").holders[0].claim;
    // What it sends from here on arrives after the eviction.
    proxies.iter().for_each(|line| line.freeze(true));
    other.evict("a", claim).await.expect("an eviction");
    assert_eq!(site.all_claims("a").await, [0; NODES]);
    let sent = |at: usize| proxies[at].counts().request_bytes;
    let before: Vec<_> = (0..NODES).map(sent).collect();
    // It asks several times, hears nothing, and so it is lost.
    eventually(SOON, || async {
        ahead.jump(LASTING / 20);
        if held.is_held() { Err("it is held still") } else { Ok(()) }
    })
    .await;
    timeout(SOON, held.lost()).await.expect("it is told");
    proxies.iter().for_each(|line| line.freeze(false));
    eventually(SOON, || async {
        let arrived = (0..NODES).filter(|at| sent(*at) > before[*at]).count();
        if arrived == NODES { Ok(()) } else { Err(format!("{arrived} lines have spoken again")) }
    })
    .await;
    eventually(SOON, || locks.settle()).await;
    site.until_claims("a", 0).await;
    let next = other.mutex("a").try_lock().await.expect("an answer").expect("free");
    site.until_claims("a", 1).await;
    assert!(next.is_held());
    give_back(next).await;
}
