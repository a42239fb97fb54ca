//! No server outlives its test, however the test ends.

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use leasehold_testbed::{
    Actor, Server, eventually,
    redis::{self, Redis, Reply, RespClient},
};

use crate::common::is_alive;

const TEST_TIMEOUT: Duration = leasehold_testbed::TEST_TIMEOUT;
/// The environment variable that names the file into which the test process that is killed writes
/// its server's process id.
const REPORT_VARIABLE: &str = "LEASEHOLD_TESTBED_REPORT";

async fn wait_until_gone(pids: &[u32]) {
    eventually(TEST_TIMEOUT, || async {
        match pids.iter().find(|&&pid| is_alive(pid)) {
            None => Ok(()),
            Some(pid) => Err(format!("process {pid} is still there")),
        }
    })
    .await;
}

#[tokio::test]
async fn a_dropped_server_is_removed_with_its_folder_even_if_paused() {
    let mut server = redis::start().await.unwrap();
    let (pid, folder) = (server.pid().unwrap(), server.dir().to_owned());
    server.pause().unwrap();
    drop(server);
    assert!(!is_alive(pid));
    assert!(!folder.exists());
}

#[tokio::test]
async fn a_panicking_test_kills_its_server() {
    let server = redis::start().await.unwrap();
    let pid = server.pid().unwrap();
    let test = move |server: Server| panic!("on purpose, with {server:?} in hand");
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(server)));
    assert!(panicked.is_err());
    assert!(!is_alive(pid));
}

#[tokio::test]
async fn child_processes_of_a_server_are_paused_and_killed_with_it() {
    // This Redis writes its file in a child process, which needs a second for each key.
    let slow = ["--rdb-key-save-delay", "1000000"];
    let mut server = Redis::new().args(&slow).start().await.unwrap();
    let mut client = RespClient::connect(server.addr()).await.unwrap();
    for n in 0..60 {
        client.command(&["SET", &n.to_string(), "v"]).await.unwrap();
    }
    client.command(&["BGSAVE"]).await.unwrap();
    let pid = server.pid().unwrap();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let child: u32 = children.trim().parse().expect("one child that saves");
    assert!(is_alive(child));
    server.pause().unwrap();
    let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap();
    assert!(stat.contains(") T "), "{stat}");
    server.resume().unwrap();
    server.kill().unwrap();
    assert!(!is_alive(pid) && !is_alive(child), "both are gone when kill returns");
}

#[tokio::test]
async fn a_server_outlives_the_thread_that_started_it() {
    let start = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let server = runtime.block_on(redis::start()).unwrap();
        (server, fs::read_link("/proc/thread-self").unwrap())
    };
    // The kernel ties a child to the thread that spawned it: the testbed must not spawn it in this
    // one.
    let (server, thread) = thread::spawn(start).join().unwrap();
    let thread = Path::new("/proc").join(thread);
    eventually(TEST_TIMEOUT, || async { if thread.exists() { Err("the thread is still there") } else { Ok(()) } })
        .await;
    let mut client = RespClient::connect(server.addr()).await.unwrap();
    let pong = client.command(&["PING"]).await.unwrap();
    assert_eq!(pong, Reply::Simple("PONG".to_owned()));
}

/// Runs in two processes: as the test, and as the test process that the test starts and kills.
#[tokio::test]
async fn a_killed_test_process_leaves_nothing_running() {
    if let Some(report) = env::var_os(REPORT_VARIABLE) {
        run_until_killed(PathBuf::from(report)).await.unwrap();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("pids");
    let mut victim = Command::new(env::current_exe().unwrap())
        .args(["--exact", "process_cleanup::a_killed_test_process_leaves_nothing_running"])
        .env(REPORT_VARIABLE, &report)
        // The killed process cannot remove its server's folder; it is removed with this test's.
        .env("TMPDIR", folder.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let pids = eventually(TEST_TIMEOUT, || async { fs::read_to_string(&report) }).await;
    let pids: Vec<u32> = pids.lines().map(|pid| pid.parse().unwrap()).collect();
    assert!(pids.len() == 4 && pids.iter().all(|&pid| is_alive(pid)), "{pids:?}");
    victim.kill().unwrap();
    victim.wait().unwrap();
    wait_until_gone(&pids).await;
}

async fn run_until_killed(report: PathBuf) -> Result<(), Box<dyn Error>> {
    let plain = redis::start().await?;
    let mut paused = redis::start().await?;
    paused.pause()?;
    let other_user = Redis::new().run_as("redis").start().await?;
    let actor = Actor::spawn(Path::new("/bin/sleep"), &["600"], &[])?;
    let mut pids = vec![actor.pid()];
    pids.extend([&plain, &paused, &other_user].into_iter().filter_map(Server::pid));
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    let draft = report.with_extension("draft");
    fs::write(&draft, pids.join("\n"))?;
    fs::rename(&draft, &report)?;
    // The process waits here until it is killed; the bound ends it if that fails.
    tokio::time::sleep(4 * TEST_TIMEOUT).await;
    Ok(())
}
