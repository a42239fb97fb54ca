//! One holder at a time.

use std::sync::Arc;

use leasehold::Locks;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::brief::times;
use crate::player::Player;
use crate::probe::{Room, count};
use crate::protocol::Order;
use crate::world::{LONG, World};

const TASKS: u32 = 12;
const ROUNDS: u32 = times(6, 40);

/// Many tasks of two clients go through a room. Returns the room and the tokens.
async fn storm(clients: &[Locks], name: Option<&str>) -> (Arc<Room>, Vec<u64>) {
    let room = Arc::new(Room::default());
    let start = Arc::new(Barrier::new(TASKS as usize));
    let mut tasks = JoinSet::new();
    for locks in clients.iter().cycle().take(TASKS as usize) {
        let (locks, room, start) = (locks.clone(), Arc::clone(&room), Arc::clone(&start));
        let name = name.map(str::to_owned);
        tasks.spawn(async move {
            start.wait().await;
            let mut tokens = Vec::new();
            for _ in 0..ROUNDS {
                let Some(name) = &name else {
                    room.visit(1).await;
                    continue;
                };
                let guard = locks.mutex(name).lock().await.expect("a lock");
                room.visit(1).await;
                tokens.push(guard.token().0);
                let _ = guard.release().await.expect("a release");
            }
            tokens
        });
    }
    let tokens = tasks.join_all().await.into_iter().flatten().collect();
    (room, tokens)
}

/// Tasks that take turns are never inside together; tasks that do not are found out.
pub async fn tasks_never_overlap(world: &World) {
    let clients = [world.locks().await, world.locks().await];
    let (control, _) = storm(&clients, None).await;
    assert!(control.most() > 1, "the room would not notice");
    let (room, mut tokens) = storm(&clients, Some("storm")).await;
    assert_eq!(room.most(), 1, "so many were inside together");
    assert_eq!(room.entered(), TASKS * ROUNDS, "a visit was lost");
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), (TASKS * ROUNDS) as usize, "a token was given twice");
    assert!(clients.iter().all(|locks| locks.held() == 0));
}

/// Processes that take turns are never inside together; processes that do not are found out.
pub async fn processes_never_overlap(world: &World) {
    let mut players: Vec<Player> = Vec::new();
    for _ in 0..4 {
        players.push(world.player(LONG).await);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let order = |rounds, locked| Order::Storm {
        name: "storm".to_owned(),
        folder: folder.path().to_owned(),
        rounds,
        locked,
    };
    for player in &mut players {
        player.tell(&order(ROUNDS, true)).await;
    }
    let mut all = Vec::new();
    for player in &mut players {
        let (met, tokens) = player.calm().await;
        assert_eq!(met, 0, "somebody else was inside");
        assert!(tokens.is_sorted(), "tokens rise: {tokens:?}");
        all.extend(tokens);
    }
    let rounds = players.len() * ROUNDS as usize;
    assert_eq!(count(folder.path()).expect("a count") as usize, rounds, "a visit was lost");
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), rounds, "a token was given twice");
    world.until_free("storm").await;

    for player in &mut players {
        player.tell(&order(u32::MAX, false)).await;
    }
    let calms = players.iter_mut().map(|player| Box::pin(player.calm()));
    let ((met, _), ..) = futures_util::future::select_all(calms).await;
    assert!(met > 0, "the folder would not notice");
}

/// What one client holds, another cannot take, until it is given back.
pub async fn clients_see_each_other(world: &World) {
    let (one, other) = (world.locks().await, world.locks().await);
    let guard = one.mutex("a").lock().await.expect("a lock");
    assert!(guard.is_held());
    assert!(other.mutex("a").try_lock().await.expect("an answer").is_none());
    assert!(one.mutex("a").try_lock().await.expect("an answer").is_none(), "nor can the same client");
    let _ = guard.release().await.expect("a release");
    let guard = other.mutex("a").try_lock().await.expect("an answer").expect("a free lock");
    let _ = guard.release().await.expect("a release");
}
