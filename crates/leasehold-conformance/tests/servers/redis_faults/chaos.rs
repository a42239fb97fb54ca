//! Everything at once: many clients, all modes, time-outs and cancellations, connections that break at random, a server that
//! forgets its scripts and stands still; with leases that last, and with leases that end.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{Guard, Locks, Owner, Token, Watch};
use leasehold_conformance::world::{LONG, SOON};
use leasehold_testbed::eventually;
use tokio::time::{Instant, timeout};

use crate::redis_faults::site::{Site, until_empty};

/// How long it goes on; `LEASEHOLD_CHAOS` says how many seconds instead.
const LASTS: Duration = Duration::from_secs(4);
const CLIENTS: usize = 4;
const TASKS: usize = 16;
const NAMES: [&str; 3] = ["a", "b", "c"];
const LIMIT: u32 = 3;

/// Numbers that look random and are the same for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// How a lock is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Alone,
    Shared,
    Permits(u32),
}

impl Use {
    fn size(self) -> u32 {
        match self {
            Self::Alone => u32::MAX,
            Self::Shared => 1,
            Self::Permits(n) => n,
        }
    }
}

/// One who is inside a lock.
struct Visitor {
    held: Use,
    owner: Option<Owner>,
    watch: Watch,
}

/// Who is inside a lock, as the holders themselves say it.
#[derive(Default)]
struct Inside {
    visitors: HashMap<u64, Visitor>,
    /// The highest token so far.
    last: Token,
}

impl Inside {
    /// What is wrong with those who are inside and whose guards say that they are held.
    fn wrong(&self) -> Option<String> {
        let mut uses: Vec<(Use, Option<Owner>)> = Vec::new();
        for visitor in self.visitors.values().filter(|visitor| visitor.watch.is_held()) {
            // Of one owner only its largest hold counts.
            match uses.iter_mut().find(|(_, owner)| owner.is_some() && *owner == visitor.owner) {
                Some((held, _)) if held.size() < visitor.held.size() => *held = visitor.held,
                Some(_) => {}
                None => uses.push((visitor.held, visitor.owner)),
            }
        }
        let alone = uses.iter().any(|(held, _)| *held == Use::Alone);
        let shared = uses.iter().filter(|(held, _)| *held == Use::Shared).count();
        let permits: u32 = uses.iter().map(|(held, _)| if let Use::Permits(n) = held { *n } else { 0 }).sum();
        let fits = if alone { uses.len() == 1 } else { (shared == 0 || permits == 0) && permits <= LIMIT };
        (!fits).then(|| format!("{uses:?}"))
    }
}

/// What all tasks share.
struct Scene {
    rooms: [Mutex<Inside>; 3],
    /// How long a lock is held, at most.
    longest: Duration,
    next: AtomicU64,
    granted: AtomicU64,
    lost: AtomicU64,
    over: AtomicBool,
    wrong: Mutex<Vec<String>>,
}

impl Scene {
    fn new(longest: Duration) -> Self {
        let zero = AtomicU64::default;
        let (rooms, over, wrong) = (Default::default(), AtomicBool::default(), Mutex::default());
        Self { rooms, longest, next: zero(), granted: zero(), lost: zero(), over, wrong }
    }

    fn complain(&self, what: String) {
        self.wrong.lock().expect("no panic").push(what);
    }

    /// Is inside for a while.
    async fn visit(&self, room: usize, held: Use, owner: Option<Owner>, guard: &Guard, dice: &mut Dice) {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        {
            let mut inside = self.rooms[room].lock().expect("no panic");
            if !guard.is_held() {
                return;
            }
            inside.visitors.insert(number, Visitor { held, owner, watch: guard.watch() });
            if let Some(wrong) = inside.wrong() {
                self.complain(format!("together in {}: {wrong}", NAMES[room]));
            }
            // One who shares may have been let in before another whose guard came earlier; alone, nobody can.
            if held == Use::Alone && owner.is_none() && guard.token() <= inside.last {
                self.complain(format!("token {} after {} in {}", guard.token(), inside.last, NAMES[room]));
            }
            inside.last = inside.last.max(guard.token());
        }
        if dice.below(40) == 0 {
            let clock = leasehold::clock::Clock::system();
            let for_long = self.longest.mul_f64(dice.below(1000) as f64 / 1000.0);
            clock.sleep_until(clock.now().after(for_long)).await;
        }
        for _ in 0..dice.below(4) {
            tokio::task::yield_now().await;
        }
        self.rooms[room].lock().expect("no panic").visitors.remove(&number);
    }
}

/// One request, of any kind, bounded, cancelled or not.
async fn one(locks: &Locks, owners: &[Owner], scene: &Scene, dice: &mut Dice) {
    let room = dice.below(3) as usize;
    let owner = (dice.below(4) == 0).then(|| owners[dice.below(owners.len() as u64) as usize]);
    let held = match dice.below(4) {
        0 | 1 => Use::Alone,
        2 => Use::Shared,
        _ => Use::Permits(1 + dice.below(LIMIT.into()) as u32),
    };
    let wait = [Duration::from_millis(5 + dice.below(200)), SOON * 2][dice.below(2) as usize];
    let (name, tries) = (NAMES[room], dice.below(6) == 0);
    macro_rules! ask {
        ($what:expr, $lock:ident($($arg:expr)?), $try_lock:ident) => {{
            let mut what = $what.wait(wait);
            if let Some(owner) = &owner {
                what = what.owner(owner);
            }
            if tries { what.$try_lock($($arg)?).await } else { what.$lock($($arg)?).await.map(Some) }
        }};
    }
    let asking = async {
        match held {
            Use::Alone => ask!(locks.mutex(name), lock(), try_lock),
            Use::Shared => ask!(locks.rwlock(name), read(), try_read),
            Use::Permits(n) => ask!(locks.semaphore(name, LIMIT), acquire(n), try_acquire),
        }
    };
    let patience = if dice.below(5) == 0 { Duration::from_micros(dice.below(20_000)) } else { SOON * 4 };
    let guard = match timeout(patience, asking).await {
        Err(_) | Ok(Ok(None)) => return,
        Ok(Ok(Some(guard))) => guard,
        Ok(Err(error)) => {
            let refused = error.to_string().contains("refuses the step");
            if refused || !["timeout", "conflict", "unavailable"].contains(&error.kind().as_str()) {
                scene.complain(error.to_string());
            }
            return;
        }
    };
    scene.granted.fetch_add(1, Ordering::SeqCst);
    scene.visit(room, held, owner, &guard, dice).await;
    match dice.below(4) {
        0 => drop(guard),
        1 => drop(timeout(Duration::from_micros(dice.below(2000)), guard.release()).await),
        _ => match guard.release().await {
            Ok(leasehold::Outcome::Released) => {}
            Ok(leasehold::Outcome::WasLost(_)) => drop(scene.lost.fetch_add(1, Ordering::SeqCst)),
            Err(error) if error.kind() == leasehold::ErrorKind::Unavailable => {}
            Err(error) => scene.complain(format!("a release: {error}")),
        },
    }
}

/// What goes wrong from outside.
async fn disturb(site: &mut Site, dice: &mut Dice, pauses: bool) {
    match dice.below(10) {
        0 => drop(site.text(&["SCRIPT", "FLUSH"]).await),
        1 if pauses => {
            site.server.pause().expect("a paused server");
            let clock = leasehold::clock::Clock::system();
            clock.sleep_until(clock.now().after(Duration::from_millis(dice.below(1200)))).await;
            site.server.resume().expect("a running server");
        }
        _ => {
            let list = site.text(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
            let ids: Vec<_> = list.lines().filter_map(|line| line.split([' ', '=']).nth(1)).collect();
            if let Some(id) = ids.get(dice.below(ids.len().max(1) as u64) as usize) {
                // It may be gone already.
                site.number(&["CLIENT", "KILL", "ID", id]).await;
            }
        }
    }
}

async fn chaos(ttl: Duration, longest: Duration, pauses: bool) -> (u64, u64) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seed = number("LEASEHOLD_SEED").unwrap_or_else(|| leasehold::ClaimId::random().bits() as u64);
    println!("LEASEHOLD_SEED={seed}");
    let lasts = number("LEASEHOLD_CHAOS").map_or(LASTS, Duration::from_secs);
    let mut site = Site::new().await;
    let (scene, owners) = (Arc::new(Scene::new(longest)), Arc::new([Owner::new(), Owner::new()]));
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(site.locks(ttl).await);
    }
    let mut tasks = Vec::new();
    for number in 0..CLIENTS * TASKS {
        let (locks, scene, owners) = (clients[number % CLIENTS].clone(), Arc::clone(&scene), Arc::clone(&owners));
        let mut dice = Dice(seed ^ (number as u64) << 32);
        tasks.push(tokio::spawn(async move {
            while !scene.over.load(Ordering::SeqCst) {
                one(&locks, &owners[..], &scene, &mut dice).await;
            }
        }));
    }
    // One thing goes wrong after the other, each after some work was done.
    let (start, mut dice, mut times) = (Instant::now(), Dice(seed), 0);
    while start.elapsed() < lasts {
        let (before, work) = (scene.granted.load(Ordering::SeqCst), dice.below(60));
        eventually(SOON, || async {
            let done = scene.granted.load(Ordering::SeqCst) > before + work || start.elapsed() >= lasts;
            if done { Ok(()) } else { Err("nobody is served any more") }
        })
        .await;
        disturb(&mut site, &mut dice, pauses).await;
        times += 1;
    }
    scene.over.store(true, Ordering::SeqCst);
    for task in tasks {
        timeout(SOON * 4, task).await.expect("nobody hangs").expect("no panic");
    }
    let wrong = scene.wrong.lock().expect("no panic").clone();
    assert!(wrong.is_empty(), "{} times: {:?}", wrong.len(), &wrong[..wrong.len().min(5)]);
    let (granted, lost) = (scene.granted.load(Ordering::SeqCst), scene.lost.load(Ordering::SeqCst));
    println!("{granted} grants, {lost} lost, {times} disturbances");
    assert!(granted > 100 && times > 3, "{granted} grants, {times} disturbances");
    eventually(SOON, || async { clients[0].list("").await.map(drop) }).await;
    for locks in &clients {
        eventually(SOON, || locks.settle()).await;
        assert_eq!(locks.held(), 0);
    }
    until_empty(&clients[0], SOON).await;
    site.all_keys_expire().await;
    (granted, lost)
}

/// No lease ends here, so none may be lost, either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_meets_anybody_and_nothing_is_lost_or_left() {
    let (_, lost) = chaos(LONG, Duration::from_millis(20), false).await;
    assert_eq!(lost, 0);
}

/// Leases end while they are renewed, waited for and handed over, since the server stands still now and then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_meets_anybody_while_leases_end() {
    chaos(Duration::from_millis(500), Duration::from_millis(700), true).await;
}
