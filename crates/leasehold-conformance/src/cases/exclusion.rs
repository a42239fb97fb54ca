//! One holder at a time.

use std::sync::Arc;

use leasehold::Locks;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::short_leases::repetitions;
use crate::actor_process::ActorProcess;
use crate::overlap_probe::{OverlapProbe, folder_visit_count};
use crate::protocol::ActorCommand;
use crate::test_context::{LONG_TTL, TestContext};

const TASKS: u32 = 12;
const ROUNDS: u32 = repetitions(6, 40);

/// Many tasks of two clients go through a room. Returns the room and the tokens.
async fn run_contention(clients: &[Locks], name: Option<&str>) -> (Arc<OverlapProbe>, Vec<u64>) {
    let room = Arc::new(OverlapProbe::default());
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
pub async fn tasks_never_overlap(context: &TestContext) {
    let clients = [context.open_locks().await, context.open_locks().await];
    let (control, _) = run_contention(&clients, None).await;
    assert!(control.max_concurrent() > 1, "the room would not notice");
    let (room, mut tokens) = run_contention(&clients, Some("storm")).await;
    assert_eq!(room.max_concurrent(), 1, "so many were inside together");
    assert_eq!(room.visit_count(), TASKS * ROUNDS, "a visit was lost");
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), (TASKS * ROUNDS) as usize, "a token was given twice");
    assert!(clients.iter().all(|locks| locks.held_count() == 0));
}

/// Processes that take turns are never inside together; processes that do not are found out.
pub async fn processes_never_overlap(context: &TestContext) {
    let mut players: Vec<ActorProcess> = Vec::new();
    for _ in 0..4 {
        players.push(context.spawn_actor(LONG_TTL).await);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let order = |rounds, locked| ActorCommand::Contend {
        name: "storm".to_owned(),
        folder: folder.path().to_owned(),
        rounds,
        locked,
    };
    for player in &mut players {
        player.send(&order(ROUNDS, true)).await;
    }
    let mut all = Vec::new();
    for player in &mut players {
        let (met, tokens) = player.wait_contention_result().await;
        assert_eq!(met, 0, "somebody else was inside");
        assert!(tokens.is_sorted(), "tokens rise: {tokens:?}");
        all.extend(tokens);
    }
    let rounds = players.len() * ROUNDS as usize;
    assert_eq!(folder_visit_count(folder.path()).expect("a count") as usize, rounds, "a visit was lost");
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), rounds, "a token was given twice");
    context.wait_until_free("storm").await;

    for player in &mut players {
        player.send(&order(u32::MAX, false)).await;
    }
    let calms = players.iter_mut().map(|player| Box::pin(player.wait_contention_result()));
    let ((met, _), ..) = futures_util::future::select_all(calms).await;
    assert!(met > 0, "the folder would not notice");
}

/// What one client holds, another cannot take, until it is given back.
pub async fn clients_exclude_each_other(context: &TestContext) {
    let (one, other) = (context.open_locks().await, context.open_locks().await);
    let guard = one.mutex("a").lock().await.expect("a lock");
    assert!(guard.is_held());
    assert!(other.mutex("a").try_lock().await.expect("an answer").is_none());
    assert!(one.mutex("a").try_lock().await.expect("an answer").is_none(), "nor can the same client");
    let _ = guard.release().await.expect("a release");
    let guard = other.mutex("a").try_lock().await.expect("an answer").expect("a free lock");
    let _ = guard.release().await.expect("a release");
}
