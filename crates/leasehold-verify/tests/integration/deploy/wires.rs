//! Workers with their own network, as root.

use std::process::Command;
use std::time::Duration;

use leasehold_testbed::eventually;
use leasehold_verify::deploy::{Deployment, Local};
use leasehold_verify::dice::Dice;
use leasehold_verify::history::FaultKind;

use crate::deploy::site::setup;

/// On any machine, however busy, a reachable server responds within this time.
const BOUND: Duration = Duration::from_secs(120);

/// Whether a network namespace can be created; a container's root may lack the privilege.
fn possible() -> bool {
    Command::new("unshare").args(["--net", "true"]).status().is_ok_and(|status| status.success())
}

/// Pings the server from the workers' network, for at most a second.
fn pings(deployment: &Deployment) -> bool {
    let address = deployment.url().trim_start_matches("redis://").trim_end_matches('/');
    let (host, port) = address.split_once(':').expect("an address");
    let script = format!("exec 3<>/dev/tcp/{host}/{port}; echo PING >&3; head -c 5 <&3");
    let words = [deployment.enter(), ["timeout", "1", "bash", "-c", &script].map(str::to_owned).into()].concat();
    let output = Command::new(&words[0]).args(&words[1..]).output().expect("it runs");
    output.stdout == b"+PONG"
}

/// Waits until it responds.
async fn answers(deployment: &Deployment) {
    eventually(BOUND, || async { if pings(deployment) { Ok(()) } else { Err(deployment.url()) } }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pulled_wire_is_silence_and_a_plugged_one_answers() {
    let mut asked = setup(Local::Redis, &[FaultKind::Partition], true);
    asked.apart = true;
    let mut deployment = Deployment::start(Local::Redis, &asked).await.expect("a deployment");
    assert_eq!(!deployment.enter().is_empty(), possible(), "a namespace wherever one can be made");
    answers(&deployment).await;
    let strike = deployment.begin(FaultKind::Partition, &mut Dice::new(1)).await.expect("a partition");
    let how = if possible() { "the wire is pulled" } else { "silent" };
    assert!(strike.target.ends_with(how), "{strike:?}");
    assert!(!pings(&deployment));
    deployment.end(FaultKind::Partition).await.expect("its end");
    answers(&deployment).await;
}

/// Without a partition no namespace is needed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_partitions_there_are_no_wires() {
    let mut asked = setup(Local::Redis, &[FaultKind::Cut], true);
    asked.apart = true;
    let deployment = Deployment::start(Local::Redis, &asked).await.expect("a deployment");
    assert!(deployment.enter().is_empty());
    answers(&deployment).await;
}
