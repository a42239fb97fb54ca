//! One holder at a time.

use std::sync::Arc;

use leasehold::Locks;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::actor_process::ActorProcess;
use crate::overlap_probe::{OverlapProbe, folder_visit_count};
use crate::protocol::ActorCommand;
use crate::short_leases::repetitions;
use crate::test_context::{LONG_TTL, TestContext};

const TASKS: u32 = 12;
const ROUNDS: u32 = repetitions(6, 40);

/// Many tasks of two clients visit a probe. Returns the probe and the tokens.
async fn run_contention(clients: &[Locks], name: Option<&str>) -> (Arc<OverlapProbe>, Vec<u64>) {
    let probe = Arc::new(OverlapProbe::default());
    let start = Arc::new(Barrier::new(TASKS as usize));
    let mut tasks = JoinSet::new();
    for locks in clients.iter().cycle().take(TASKS as usize) {
        let (locks, probe, start) = (locks.clone(), Arc::clone(&probe), Arc::clone(&start));
        let name = name.map(str::to_owned);
        tasks.spawn(async move {
            start.wait().await;
            let mut tokens = Vec::new();
            for _ in 0..ROUNDS {
                let Some(name) = &name else {
                    probe.visit(1).await;
                    continue;
                };
                let guard = locks.mutex(name).lock().await.expect("a lock");
                probe.visit(1).await;
                tokens.push(guard.token().0);
                let _ = guard.release().await.expect("a release");
            }
            tokens
        });
    }
    let tokens = tasks.join_all().await.into_iter().flatten().collect();
    (probe, tokens)
}

/// Tasks with the lock never overlap; tasks without it are detected.
pub async fn tasks_never_overlap(context: &TestContext) {
    let clients = [context.open_locks().await, context.open_locks().await];
    let (control, _) = run_contention(&clients, None).await;
    assert!(control.max_concurrent() > 1, "the probe detects no overlap");
    let (probe, mut tokens) = run_contention(&clients, Some("storm")).await;
    assert_eq!(probe.max_concurrent(), 1, "overlapping visits");
    assert_eq!(probe.visit_count(), TASKS * ROUNDS, "a visit was lost");
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), (TASKS * ROUNDS) as usize, "a token was granted twice");
    assert!(clients.iter().all(|locks| locks.held_count() == 0));
}

/// Processes with the lock never overlap; processes without it are detected.
pub async fn processes_never_overlap(context: &TestContext) {
    let mut actors: Vec<ActorProcess> = Vec::new();
    for _ in 0..4 {
        actors.push(context.spawn_actor(LONG_TTL).await);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let order = |rounds, locked| ActorCommand::Contend {
        name: "storm".to_owned(),
        folder: folder.path().to_owned(),
        rounds,
        locked,
    };
    for actor in &mut actors {
        actor.send(&order(ROUNDS, true)).await;
    }
    let mut all = Vec::new();
    for actor in &mut actors {
        let (met, tokens) = actor.wait_contention_result().await;
        assert_eq!(met, 0, "another process was inside");
        assert!(tokens.is_sorted(), "tokens rise: {tokens:?}");
        all.extend(tokens);
    }
    let rounds = actors.len() * ROUNDS as usize;
    assert_eq!(folder_visit_count(folder.path()).expect("a count") as usize, rounds, "a visit was lost");
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), rounds, "a token was granted twice");
    context.wait_until_free("storm").await;

    for actor in &mut actors {
        actor.send(&order(u32::MAX, false)).await;
    }
    let results = actors.iter_mut().map(|actor| Box::pin(actor.wait_contention_result()));
    let ((met, _), ..) = futures_util::future::select_all(results).await;
    assert!(met > 0, "the folder detects no overlap");
}

/// While one client holds the lock, no client can acquire it.
pub async fn clients_exclude_each_other(context: &TestContext) {
    let (one, other) = (context.open_locks().await, context.open_locks().await);
    let guard = one.mutex("a").lock().await.expect("a lock");
    assert!(guard.is_held());
    assert!(other.mutex("a").try_lock().await.expect("an answer").is_none());
    assert!(one.mutex("a").try_lock().await.expect("an answer").is_none(), "not even the same client");
    let _ = guard.release().await.expect("a release");
    let guard = other.mutex("a").try_lock().await.expect("an answer").expect("a free lock");
    let _ = guard.release().await.expect("a release");
}
