//! Everything at once: three clients, one lock, servers that die, restart and hang at random, never more than two at a time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::clock::Moment;
use leasehold::logic::fence::{Seen, admits};
use leasehold::{Guard, Locks, Token, Watch};
use leasehold_conformance::world::SOON;
use leasehold_testbed::redis::Reply;
use leasehold_testbed::{Data, Proxy, eventually};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::redlock_faults::site::{Dice, NODES, Site, give_back, lock};

const CLIENTS: usize = 3;
/// Of those who go about on bad lines, or among servers that abstain for as long.
const TTL: Duration = Duration::from_secs(1);
/// Of those whose servers must always answer: one that takes longer than a tenth of it, for as long as all of it, is not there.
const LONG_TTL: Duration = Duration::from_secs(3);
/// How often something goes wrong, at least.
const DISTURBANCES: u32 = 8;

/// When somebody could rely on the lock, on the one clock that all have.
struct Stay {
    token: Token,
    from: Moment,
    to: Moment,
}

/// What the lock protects, and who says that it holds it.
#[derive(Default)]
struct Room {
    inside: Option<Watch>,
    stays: Vec<Stay>,
    register: Seen,
    wrong: Vec<String>,
}

impl Room {
    fn enter(&mut self, guard: &Guard, now: Moment) {
        // Who is inside first, then who comes: if both are held at the later moment, they meet.
        let meets = self.inside.as_ref().is_some_and(Watch::is_held) && guard.is_held();
        if meets {
            self.wrong.push(format!("{} meets another", guard.token()));
        }
        if guard.is_held() {
            let admitted = admits(self.register, guard.token(), None);
            if !admitted || guard.token() == self.register.token {
                self.wrong.push(format!("{} after {}", guard.token(), self.register.token));
            }
            self.register = Seen { token: guard.token(), owner: None };
        }
        self.inside = Some(guard.watch());
        self.stays.push(Stay { token: guard.token(), from: now, to: now });
    }

    /// It is over; it was relied on until now, or until its deadline if that was before.
    fn leave(&mut self, guard: &Guard, now: Moment) {
        let to = now.min(guard.deadline());
        if let Some(stay) = self.stays.iter_mut().find(|stay| stay.token == guard.token()) {
            stay.to = to;
        }
        self.inside = None;
    }

    /// Whether validity and tokens tell the same story.
    fn check(mut self, rounds: u64) {
        self.stays.retain(|stay| stay.to > stay.from);
        self.stays.sort_by_key(|stay| stay.from);
        for pair in self.stays.windows(2) {
            if pair[0].to > pair[1].from {
                let by = pair[0].to.since(pair[1].from);
                self.wrong.push(format!("{} and {} overlap by {by:?}", pair[0].token, pair[1].token));
            }
            if pair[0].token >= pair[1].token {
                self.wrong.push(format!("{} and then {}", pair[0].token, pair[1].token));
            }
        }
        assert!(self.wrong.is_empty(), "{} times: {:?}", self.wrong.len(), &self.wrong[..self.wrong.len().min(5)]);
        assert!(self.stays.len() as u64 >= rounds * 9 / 10, "only {} of {rounds} were of use", self.stays.len());
    }
}

/// What all share.
#[derive(Default)]
struct Scene {
    room: Mutex<Room>,
    rounds: AtomicU64,
    over: AtomicBool,
    errors: Mutex<Vec<String>>,
}

async fn work(locks: Locks, scene: Arc<Scene>, ttl: Duration, mut dice: Dice) {
    let clock = locks.clock().clone();
    while !scene.over.load(Ordering::SeqCst) {
        let guard = match locks.mutex("a").wait(SOON).lock().await {
            Ok(guard) => guard,
            Err(error) => {
                scene.errors.lock().expect("no panic").push(error.to_string());
                continue;
            }
        };
        scene.room.lock().expect("no panic").enter(&guard, clock.now());
        for _ in 0..dice.below(4) {
            tokio::task::yield_now().await;
        }
        // Now and then for longer than a lease lasts.
        let longest = if dice.below(60) == 0 { ttl * 3 / 2 } else { Duration::from_millis(8) };
        let stay = Duration::from_millis(dice.below(longest.as_millis() as u64));
        clock.sleep_until(clock.now().after(stay)).await;
        scene.room.lock().expect("no panic").leave(&guard, clock.now());
        match dice.below(4) {
            0 => drop(guard),
            _ => drop(guard.release().await),
        }
        scene.rounds.fetch_add(1, Ordering::SeqCst);
    }
}

/// One or two servers die or hang, and are well again.
async fn disturb(site: &mut Site, dice: &mut Dice, data: Data, scene: &Scene) {
    let first = dice.below(NODES as u64) as usize;
    let second = (first + 1 + dice.below(NODES as u64 - 1) as usize) % NODES;
    let which = &[first, second][..1 + dice.below(2) as usize];
    let hangs = dice.below(3) == 0;
    if hangs {
        site.pause(which)
    } else {
        site.kill(which)
    }
    some_rounds(scene, dice.below(12)).await;
    if hangs {
        site.resume(which);
        // It is there again when it has done what was asked of it meanwhile, and answers.
        for at in which {
            site.ask(*at, &["PING"]).await;
        }
    } else {
        site.restart(which, data).await;
        // To a client, a server is down until it has called it again, which may take it a second.
        eventually(SOON, || all_have_called(site, which)).await;
    }
}

/// Whether every client is connected to these servers.
async fn all_have_called(site: &Site, which: &[usize]) -> Result<(), String> {
    for at in which {
        let Reply::Bulk(list) = site.ask(*at, &["CLIENT", "LIST"]).await else { return Err("no list".to_owned()) };
        // One of them asks for the list.
        if list.lines().count() <= CLIENTS {
            return Err(format!("server {at} has not been called by all: {list}"));
        }
    }
    Ok(())
}

/// Waits until so many more rounds were done.
async fn some_rounds(scene: &Scene, rounds: u64) {
    let before = scene.rounds.load(Ordering::SeqCst);
    eventually(SOON, || async {
        let done = scene.rounds.load(Ordering::SeqCst) - before;
        if done >= rounds { Ok(()) } else { Err(format!("{done} of {rounds} rounds")) }
    })
    .await;
}

/// Has all clients work.
fn begin(clients: &[Locks], scene: &Arc<Scene>, ttl: Duration, seed: u64) -> Vec<JoinHandle<()>> {
    let dice = |at: usize| Dice(seed ^ (at as u64 + 1) << 32);
    let spawn = |(at, locks): (usize, &Locks)| tokio::spawn(work(locks.clone(), Arc::clone(scene), ttl, dice(at)));
    clients.iter().enumerate().map(spawn).collect()
}

async fn chaos(mut site: Site, ttl: Duration, options: &str, data: Data, rounds: u64) {
    let seed = Dice::seed();
    let scene = Arc::new(Scene::default());
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(site.locks_with(ttl, options).await);
    }
    let tasks = begin(&clients, &scene, ttl, seed);
    let (mut dice, mut times) = (Dice(seed), 0);
    some_rounds(&scene, 3).await;
    while scene.rounds.load(Ordering::SeqCst) < rounds || times < DISTURBANCES {
        disturb(&mut site, &mut dice, data, &scene).await;
        times += 1;
        if options.contains("strict") {
            // Who abstains is as good as down: no other may go before it votes again.
            let clock = clients[0].clock();
            eventually(SOON, || all_vote(&site)).await;
            clock.sleep_until(clock.now().after(ttl)).await;
        }
    }
    finish(&site, &scene, &clients, tasks, times).await;
    let errors = scene.errors.lock().expect("no panic").clone();
    assert!(errors.is_empty(), "a majority was always there: {errors:?}");
}

/// Ends the work, and looks at what came of it.
async fn finish(site: &Site, scene: &Scene, clients: &[Locks], tasks: Vec<JoinHandle<()>>, times: u32) {
    scene.over.store(true, Ordering::SeqCst);
    for task in tasks {
        timeout(SOON * 2, task).await.expect("nobody hangs").expect("no panic");
    }
    let done = scene.rounds.load(Ordering::SeqCst);
    println!("{done} rounds, {times} disturbances");
    std::mem::take(&mut *scene.room.lock().expect("no panic")).check(done);
    for locks in clients {
        eventually(SOON, || locks.settle()).await;
    }
    // What ended with its TTL is swept up by the next one who looks, where it was not reached before.
    eventually(SOON, || async {
        give_back(lock(&clients[0], "a").await).await;
        let left = site.all_claims("a").await;
        if left.iter().sum::<usize>() == 0 { Ok(()) } else { Err(format!("left behind: {left:?}")) }
    })
    .await;
}

/// Each server knows in which run it is: its wait has begun.
async fn all_vote(site: &Site) -> Result<(), String> {
    for at in 0..NODES {
        let known = site.ask(at, &["EXISTS", "leasehold:e"]).await;
        if known != Reply::Integer(1) {
            return Err(format!("server {at} was not touched since its restart"));
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_meets_anybody_while_servers_die_and_come_back_with_their_data() {
    chaos(Site::durable().await, LONG_TTL, "", Data::Keep, 1000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_meets_anybody_while_servers_forget_and_abstain() {
    chaos(Site::new().await, LONG_TTL, "strict=3s", Data::Wipe, 300).await;
}

/// Up to two lines of each client go bad, of each other ones.
fn spoil(lines: &[Proxy], dice: &mut Dice) {
    for _ in 0..dice.below(3) {
        let line = &lines[dice.below(NODES as u64) as usize];
        match dice.below(5) {
            0 => line.delay(Duration::from_millis(dice.below(200))),
            1 => line.freeze(true),
            2 => line.drop_replies(true),
            3 => line.cut_after_request(),
            _ => line.cut(),
        }
    }
}

fn mend(line: &Proxy) {
    line.delay(Duration::ZERO);
    line.freeze(false);
    line.drop_replies(false);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_meets_anybody_on_bad_lines() {
    const ROUNDS: u64 = 300;
    let (site, seed, scene) = (Site::new().await, Dice::seed(), Arc::new(Scene::default()));
    let (mut clients, mut lines) = (Vec::new(), Vec::new());
    for _ in 0..CLIENTS {
        let (locks, proxies) = site.proxied(TTL, "connect-timeout=300ms").await;
        clients.push(locks);
        lines.push(proxies);
    }
    let tasks = begin(&clients, &scene, TTL, seed);
    let (mut dice, mut times) = (Dice(seed), 0);
    while scene.rounds.load(Ordering::SeqCst) < ROUNDS || times < DISTURBANCES {
        lines.iter().for_each(|lines| spoil(lines, &mut dice));
        some_rounds(&scene, 1 + dice.below(12)).await;
        lines.iter().flatten().for_each(mend);
        times += 1;
        // A line that lost a reply is mute until its client has noticed.
        for locks in &clients {
            eventually(SOON, || locks.inspect("a")).await;
        }
    }
    finish(&site, &scene, &clients, tasks, times).await;
    // Lines that are still mute may be too many for a moment; that is said, and nothing else.
    let errors = scene.errors.lock().expect("no panic").clone();
    let other = errors.iter().find(|error| !error.contains("3 of 5 nodes must answer"));
    assert!(other.is_none() && errors.len() < 20, "{} errors: {errors:?}", errors.len());
}
