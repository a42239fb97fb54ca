//! Workers with their own network, as root.

use std::path::Path;
use std::process::Command;

use leasehold_testbed::{Actor, eventually};
use leasehold_verify::deploy::{Deployment, Local};
use leasehold_verify::dice::Dice;
use leasehold_verify::history::FaultKind;

use serde_json::{Value, json};

use crate::deploy::site::{BOUND, setup};

/// Whether a network namespace can be created; a container's root may lack the privilege.
fn possible() -> bool {
    Command::new("unshare").args(["--net", "true"]).status().is_ok_and(|status| status.success())
}

/// A client that connects, pings the server when it reads a line, and reports each step.
struct Client(Actor);

impl Client {
    /// Starts it behind this prefix of a command.
    fn start(enter: Vec<String>, url: &str) -> Self {
        let address = url.trim_start_matches("redis://").trim_end_matches('/');
        let (host, port) = address.split_once(':').expect("an address");
        let script = format!(
            "echo '\"begun\"'; exec 3<>/dev/tcp/{host}/{port} || exit; echo '\"connected\"'; read line; echo PING >&3; \
             echo '\"sent\"'; echo \"\\\"$(head -c 5 <&3)\\\"\""
        );
        let words = [enter, ["bash", "-c", &script].map(str::to_owned).into()].concat();
        let arguments: Vec<_> = words[1..].iter().map(String::as_str).collect();
        Self(Actor::spawn(Path::new(&words[0]), &arguments, &[]).expect("it starts"))
    }

    async fn reports(&mut self, step: &str) {
        assert_eq!(self.0.recv(BOUND).await.expect("a report"), json!(step));
    }

    /// Pings; the response, which is empty if the connection closes.
    async fn pings(&mut self) -> Value {
        self.reports("begun").await;
        let Ok(connected) = self.0.recv(BOUND).await else { return json!("") };
        assert_eq!(connected, json!("connected"));
        self.0.send(&Value::Null).await.expect("it reads");
        self.reports("sent").await;
        self.0.recv(BOUND).await.expect("a report")
    }
}

/// Waits until the server responds in the workers' network.
async fn answers(deployment: &Deployment) {
    eventually(BOUND, || async {
        let response = Client::start(deployment.enter(), deployment.url()).pings().await;
        if response == json!("+PONG") { Ok(()) } else { Err(format!("{}: {response}", deployment.url())) }
    })
    .await;
}

/// The server responds past the proxies, whatever happens to the workers' network.
async fn answers_past(deployment: &Deployment) {
    assert_eq!(Client::start(Vec::new(), deployment.own_url()).pings().await, json!("+PONG"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pulled_wire_is_silence_and_a_plugged_one_answers() {
    let mut asked = setup(Local::Redis, &[FaultKind::Partition], true);
    asked.apart = true;
    let mut deployment = Deployment::start(Local::Redis, &asked).await.expect("a deployment");
    assert_eq!(!deployment.enter().is_empty(), possible(), "a namespace wherever one can be made");
    answers(&deployment).await;
    let mut earlier = Client::start(deployment.enter(), deployment.url());
    earlier.reports("begun").await;
    earlier.reports("connected").await;
    let strike = deployment.begin(FaultKind::Partition, &mut Dice::new(1)).await.expect("a partition");
    let how = if possible() { "the wire is pulled" } else { "silent" };
    assert!(strike.target.ends_with(how), "{strike:?}");
    // The server gets later pings on another way, and not these: one on a connection from before, and one on a new one.
    // Pings of the workers, on a connection from before and on a new one, while others past the proxies are answered.
    earlier.0.send(&Value::Null).await.expect("it reads");
    earlier.reports("sent").await;
    let earlier = tokio::spawn(async move { earlier.0.recv(BOUND).await.expect("a report") });
    let mut fresh = Client::start(deployment.enter(), deployment.url());
    let fresh = tokio::spawn(async move { fresh.pings().await });
    for _ in 0..3 {
        answers_past(&deployment).await;
    }
    assert!(!earlier.is_finished());
    // The kernel may have given up connecting.
    assert!(!fresh.is_finished() || fresh.await.expect("no panic") == json!(""));
    let note = deployment.end(FaultKind::Partition).await.expect("its end");
    let late = if note.ends_with("arrives late") { "+PONG" } else { "" };
    assert_eq!(earlier.await.expect("no panic"), json!(late), "{note}");
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
