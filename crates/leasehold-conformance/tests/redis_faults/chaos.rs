//! Everything at once: many clients, all modes, time-outs and cancellations, and connections that break at random.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{Guard, Locks, Owner, Token};
use leasehold_conformance::world::{LONG, SOON};
use leasehold_testbed::eventually;
use tokio::time::{Instant, timeout};

use crate::site::{Site, until_empty};

/// How long it goes on; `LEASEHOLD_CHAOS` says how many seconds instead.
const LASTS: Duration = Duration::from_secs(5);
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

/// Who is inside a lock, as the holders themselves say it.
#[derive(Default)]
struct Inside {
    holders: HashMap<u64, (Use, Option<Owner>)>,
    /// The highest token so far, and the guards of which it is not the first.
    last: Token,
}

impl Inside {
    /// What is wrong with this set of holders.
    fn wrong(&self) -> Option<String> {
        let mut uses: Vec<(Use, Option<Owner>)> = self.holders.values().copied().collect();
        // Of one owner only its largest hold counts.
        let owners: Vec<_> = uses.iter().filter_map(|(_, owner)| *owner).collect();
        for owner in owners {
            let size = |held: &(Use, Option<Owner>)| match held.0 {
                Use::Alone => u32::MAX,
                Use::Shared => 1,
                Use::Permits(n) => n,
            };
            let largest = uses.iter().filter(|held| held.1 == Some(owner)).max_by_key(|held| size(held)).copied();
            uses.retain(|held| held.1 != Some(owner));
            uses.extend(largest);
        }
        let alone = uses.iter().any(|(held, _)| *held == Use::Alone);
        let shared = uses.iter().filter(|(held, _)| *held == Use::Shared).count();
        let permits: u32 = uses.iter().map(|(held, _)| if let Use::Permits(n) = held { *n } else { 0 }).sum();
        let fits = if alone { uses.len() == 1 } else { (shared == 0 || permits == 0) && permits <= LIMIT };
        (!fits).then(|| format!("{uses:?}"))
    }
}

/// What all tasks share.
#[derive(Default)]
struct Watch {
    rooms: [Mutex<Inside>; 3],
    next: AtomicU64,
    granted: AtomicU64,
    lost: AtomicU64,
    over: AtomicBool,
    wrong: Mutex<Vec<String>>,
}

impl Watch {
    fn complain(&self, what: String) {
        self.wrong.lock().expect("no panic").push(what);
    }

    /// Is inside for a while, as long as the guard is held.
    async fn visit(&self, room: usize, held: Use, owner: Option<Owner>, guard: &Guard, dice: &mut Dice) {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        {
            let mut inside = self.rooms[room].lock().expect("no panic");
            if !guard.is_held() {
                return;
            }
            let nested = owner.is_some() && inside.holders.values().any(|(_, other)| *other == owner);
            inside.holders.insert(number, (held, owner));
            if let Some(wrong) = inside.wrong() {
                self.complain(format!("together in {}: {wrong}", NAMES[room]));
            }
            // A holder may have been let in before another whose guard came later; alone, nobody can.
            if held == Use::Alone && !nested && guard.token() <= inside.last && owner.is_none() {
                self.complain(format!("token {} after {} in {}", guard.token(), inside.last, NAMES[room]));
            }
            inside.last = inside.last.max(guard.token());
        }
        for _ in 0..dice.below(4) {
            tokio::task::yield_now().await;
        }
        self.rooms[room].lock().expect("no panic").holders.remove(&number);
    }
}

/// One request, of any kind, bounded, cancelled or not.
async fn one(locks: &Locks, owners: &[Owner], watch: &Watch, dice: &mut Dice) {
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
            let fair = ["timeout", "conflict", "unavailable"].contains(&error.kind().as_str());
            return if fair { () } else { watch.complain(error.to_string()) };
        }
    };
    watch.granted.fetch_add(1, Ordering::SeqCst);
    watch.visit(room, held, owner, &guard, dice).await;
    match dice.below(4) {
        0 => drop(guard),
        1 => drop(timeout(Duration::from_micros(dice.below(2000)), guard.release()).await),
        _ => match guard.release().await {
            Ok(leasehold::Outcome::Released) => {}
            Ok(leasehold::Outcome::WasLost(_)) => drop(watch.lost.fetch_add(1, Ordering::SeqCst)),
            Err(error) => watch.complain(format!("a release: {error}")),
        },
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_meets_anybody_and_nothing_is_left() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seed = number("LEASEHOLD_SEED").unwrap_or_else(|| leasehold::ClaimId::random().bits() as u64);
    println!("LEASEHOLD_SEED={seed}");
    let lasts = number("LEASEHOLD_CHAOS").map_or(LASTS, Duration::from_secs);
    let site = Arc::new(Site::new().await);
    let (watch, owners) = (Arc::new(Watch::default()), Arc::new([Owner::new(), Owner::new()]));
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(site.locks(LONG).await);
    }
    let mut tasks = Vec::new();
    for number in 0..CLIENTS * TASKS {
        let (locks, watch, owners) = (clients[number % CLIENTS].clone(), Arc::clone(&watch), Arc::clone(&owners));
        let mut dice = Dice(seed ^ (number as u64) << 32);
        tasks.push(tokio::spawn(async move {
            while !watch.over.load(Ordering::SeqCst) {
                one(&locks, &owners[..], &watch, &mut dice).await;
            }
        }));
    }
    // One connection breaks after the other, each after some work was done.
    let (start, mut dice, mut kills) = (Instant::now(), Dice(seed), 0);
    while start.elapsed() < lasts {
        let (before, work) = (watch.granted.load(Ordering::SeqCst), dice.below(60));
        eventually(SOON, || async {
            let done = watch.granted.load(Ordering::SeqCst) > before + work || start.elapsed() >= lasts;
            if done { Ok(()) } else { Err("nobody is served any more") }
        })
        .await;
        let list = site.text(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
        let ids: Vec<_> = list.lines().filter_map(|line| line.split([' ', '=']).nth(1)).collect();
        if let Some(id) = ids.get(dice.below(ids.len().max(1) as u64) as usize) {
            // It may be gone already.
            site.ask(&["CLIENT", "KILL", "ID", id]).await;
            kills += 1;
        }
    }
    watch.over.store(true, Ordering::SeqCst);
    for task in tasks {
        timeout(SOON * 4, task).await.expect("nobody hangs").expect("no panic");
    }
    let wrong = watch.wrong.lock().expect("no panic").clone();
    assert!(wrong.is_empty(), "{} times: {:?}", wrong.len(), &wrong[..wrong.len().min(5)]);
    assert_eq!(watch.lost.load(Ordering::SeqCst), 0, "no lease has ended, so none was lost");
    let granted = watch.granted.load(Ordering::SeqCst);
    println!("{granted} grants, {kills} broken connections");
    assert!(granted > 100 && kills > 3, "{granted} grants, {kills} broken connections");
    for locks in &clients {
        eventually(SOON, || locks.settle()).await;
        assert_eq!(locks.held(), 0);
    }
    until_empty(&clients[0], SOON).await;
    site.all_keys_expire().await;
}
