//! Sentinels that do not agree: a client does not follow an older election, however many Sentinels
//! name it. Real Sentinels agree within two seconds.

use std::sync::Arc;
use std::time::Duration;

use super::network::Network;
use super::sentinel::{Answers, Sentinel};
use super::server::{ScriptedServer, TRIP};
use super::{TTL, millis};
use crate::Locks;
use crate::clock::Clock;
use crate::core::guard::ReleaseOutcome;
use crate::virtual_time;

const OLD: &str = "old:6379";
const NEW: &str = "new:6379";
/// Longer than an older election that a majority names is ignored, and than several pauses between
/// two questions to a Sentinel.
const LONG: Duration = Duration::from_secs(60);

/// Two masters, and three Sentinels that name the old one, by election 4.
struct Deployment {
    clock: Clock,
    old: Arc<ScriptedServer>,
    new: Arc<ScriptedServer>,
    /// The Sentinel that learns of election 5 first.
    newest: Arc<Sentinel>,
    late: [Arc<Sentinel>; 2],
    network: Arc<Network>,
}

impl Deployment {
    fn new() -> Self {
        let (old, new) = (ScriptedServer::new(1), ScriptedServer::new(2));
        let [newest, second, third] = std::array::from_fn(|_| Sentinel::new(OLD, 4));
        let network = Network::new([
            (OLD, Arc::clone(&old) as _),
            (NEW, Arc::clone(&new) as _),
            ("s1:26379", Arc::clone(&newest) as _),
            ("s2:26379", Arc::clone(&second) as _),
            ("s3:26379", Arc::clone(&third) as _),
        ]);
        Self { clock: old.clock.clone(), old, new, newest, late: [second, third], network }
    }

    async fn open(&self, options: &str) -> Locks {
        self.open_by("s1,s2,s3", options).await
    }

    /// Opens locks through these Sentinels.
    async fn open_by(&self, sentinels: &str, options: &str) -> Locks {
        let url = format!("redis+sentinel://{sentinels}/m{options}");
        self.network.open(&url, TTL, &self.clock).await.expect(&url)
    }

    /// How many connections the old and the new master have.
    fn connections(&self) -> (usize, usize) {
        (self.old.connections(), self.new.connections())
    }

    /// Waits until the client is connected to the new master, and no longer to the old one.
    async fn until_followed(&self) {
        self.until("connected to the new master", || self.connections() == (0, 1)).await;
    }

    async fn until(&self, description: &str, is_so: impl Fn() -> bool) {
        let waiting = async {
            while !is_so() {
                self.clock.sleep(TRIP).await;
            }
        };
        let waited = self.clock.timeout(LONG, waiting).await;
        assert!(waited.is_ok(), "not within {LONG:?}: {description}; connections: {:?}", self.connections());
    }
}

fn with<F: Future<Output = ()>>(test: impl FnOnce(Deployment) -> F) {
    virtual_time::run_seed(1, async { test(Deployment::new()).await });
}

async fn lock_and_release(locks: &Locks) {
    let guard = locks.mutex("a").timeout(TTL).lock().await.unwrap();
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Released);
}

/// Two Sentinels do not know the last election and answer at once; the one that knows it is slow.
/// The client does not go back.
#[test]
fn a_client_never_follows_an_older_election() {
    for strict in ["", "?strict=600s"] {
        with(async |deployment| {
            let locks = deployment.open(strict).await;
            assert_eq!(deployment.connections(), (1, 0));
            deployment.newest.name(NEW, 5);
            deployment.until_followed().await;
            deployment.newest.answer(Answers::After(millis(400)));
            let (asked, connects) =
                (deployment.late.each_ref().map(|late| late.asked()), deployment.old.connect_times().len());
            deployment.new.disconnect_all();
            let again = || deployment.late.iter().zip(asked).all(|(late, before)| late.asked() >= before + 2);
            deployment.until("the Sentinels are asked again", again).await;
            deployment.until_followed().await;
            deployment.clock.sleep(LONG).await;
            assert_eq!(
                deployment.old.connect_times().len(),
                connects,
                "{strict}: the client did not connect to the old master"
            );
            assert!(deployment.new.connect_times().len() > 1, "{strict}: it connected to the new master again");
            assert_eq!(deployment.connections(), (0, 1), "{strict}");
            if strict.is_empty() {
                lock_and_release(&locks).await;
            }
        });
    }
}

/// Most Sentinels know only an old election, and the one that knows the newest is slow. A client
/// that is opened then waits for that one, and never connects to the old master.
#[test]
fn a_fresh_client_waits_for_every_sentinel() {
    with(async |deployment| {
        deployment.newest.name(NEW, 5);
        deployment.newest.answer(Answers::After(millis(1000)));
        // A quarter of it is longer than the slow one takes.
        let locks = deployment.open("?connect-timeout=6s").await;
        lock_and_release(&locks).await;
        deployment.clock.sleep(LONG).await;
        assert!(deployment.old.connect_times().is_empty(), "no client connected to the old master");
        assert_eq!(deployment.connections(), (0, 1));
    });
}

#[test]
fn a_fresh_client_does_not_wait_for_a_sentinel_that_is_down() {
    with(async |deployment| {
        let start = deployment.clock.now();
        let locks = deployment.open_by("down,s2,s3", "?connect-timeout=6s").await;
        let took = deployment.clock.now().duration_since(start);
        assert!(took < millis(100), "{took:?}");
        lock_and_release(&locks).await;
    });
}

/// A Sentinel that accepts connections and does not respond delays a new client by a quarter of
/// `connect-timeout`, also if it hangs only at the question for the master.
#[test]
fn a_hung_sentinel_does_not_block_new_clients() {
    for hanging in [Answers::Never, Answers::After(Duration::from_secs(3600))] {
        with(async |deployment| {
            for sentinel in [&deployment.newest, &deployment.late[0], &deployment.late[1]] {
                sentinel.name(NEW, 5);
            }
            deployment.newest.answer(hanging);
            let start = deployment.clock.now();
            let locks = deployment.open("?connect-timeout=40s").await;
            let took = deployment.clock.now().duration_since(start);
            assert!(took < Duration::from_secs(11), "{hanging:?}: {took:?}");
            lock_and_release(&locks).await;
        });
    }
}

/// One Sentinel alone knows the newest election, and is slow: the client follows it.
#[test]
fn one_slow_sentinel_is_enough_for_a_newer_election() {
    with(async |deployment| {
        deployment.newest.answer(Answers::After(millis(400)));
        let locks = deployment.open("").await;
        assert_eq!(deployment.connections(), (1, 0));
        deployment.newest.name(NEW, 5);
        deployment.until_followed().await;
        lock_and_release(&locks).await;
    });
}
