//! Tests workers in their own network namespace, which needs root.

use std::path::Path;
use std::process::Command;

use leasehold_testbed::{Actor, eventually};
use leasehold_verify::deployment::{Deployment, LocalEngine};
use leasehold_verify::history::FaultKind;
use leasehold_verify::rng::Rng;

use serde_json::{Value, json};

use crate::deployment::fixture::{TEST_TIMEOUT, options};

/// Whether a network namespace can be created; a container's root may lack the privilege.
fn can_create_namespace() -> bool {
    Command::new("unshare").args(["--net", "true"]).status().is_ok_and(|status| status.success())
}

/// A shell script that connects to a Redis server, pings it when it reads a line, and reports each
/// step.
struct Client(Actor);

impl Client {
    /// Starts the script with this prefix of its command, which enters a network namespace.
    fn start(command_prefix: Vec<String>, url: &str) -> Self {
        let address = url.trim_start_matches("redis://").trim_end_matches('/');
        let (host, port) = address.split_once(':').expect("an address");
        let script = format!(
            "echo '\"begun\"'; exec 3<>/dev/tcp/{host}/{port} || exit; echo '\"connected\"'; read line; echo PING >&3; \
             echo '\"sent\"'; echo \"\\\"$(head -c 5 <&3)\\\"\""
        );
        let words = [command_prefix, ["bash", "-c", &script].map(str::to_owned).into()].concat();
        let arguments: Vec<_> = words[1..].iter().map(String::as_str).collect();
        Self(Actor::spawn(Path::new(&words[0]), &arguments, &[]).expect("it starts"))
    }

    /// Fails unless the next report is this step.
    async fn reports(&mut self, step: &str) {
        assert_eq!(self.0.recv(TEST_TIMEOUT).await.expect("a report"), json!(step));
    }

    /// Pings the server; returns its response, which is empty if the connection closes or cannot be
    /// opened.
    async fn responds_to_ping(&mut self) -> Value {
        self.reports("begun").await;
        let Ok(connected) = self.0.recv(TEST_TIMEOUT).await else { return json!("") };
        assert_eq!(connected, json!("connected"));
        self.0.send(&Value::Null).await.expect("it reads");
        self.reports("sent").await;
        self.0.recv(TEST_TIMEOUT).await.expect("a report")
    }
}

/// Waits until the server responds in the workers' network namespace.
async fn wait_for_response(deployment: &Deployment) {
    eventually(TEST_TIMEOUT, || async {
        let response = Client::start(deployment.worker_command_prefix(), deployment.url()).responds_to_ping().await;
        if response == json!("+PONG") { Ok(()) } else { Err(format!("{}: {response}", deployment.url())) }
    })
    .await;
}

/// Fails unless the server responds without the proxies, outside the workers' network namespace.
async fn assert_responds_without_proxies(deployment: &Deployment) {
    assert_eq!(Client::start(Vec::new(), deployment.direct_url()).responds_to_ping().await, json!("+PONG"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disconnected_link_drops_traffic_and_a_reconnected_one_carries_it() {
    let mut setup = options(LocalEngine::Redis, &[FaultKind::Partition], true);
    setup.isolates_workers = true;
    let mut deployment = Deployment::start(LocalEngine::Redis, &setup).await.expect("a deployment");
    assert_eq!(
        !deployment.worker_command_prefix().is_empty(),
        can_create_namespace(),
        "a namespace where one can be created"
    );
    wait_for_response(&deployment).await;
    let mut earlier = Client::start(deployment.worker_command_prefix(), deployment.url());
    earlier.reports("begun").await;
    earlier.reports("connected").await;
    let active_fault = deployment.begin_fault(FaultKind::Partition, &mut Rng::new(1)).await.expect("a partition");
    let how = if can_create_namespace() { "the virtual link is disconnected" } else { "no traffic" };
    assert!(active_fault.target.ends_with(how), "{active_fault:?}");

    // The workers' pings get no response, on a connection from before and on a new one, while the
    // server responds without the proxies.
    earlier.0.send(&Value::Null).await.expect("it reads");
    earlier.reports("sent").await;
    let earlier = tokio::spawn(async move { earlier.0.recv(TEST_TIMEOUT).await.expect("a report") });
    let mut fresh = Client::start(deployment.worker_command_prefix(), deployment.url());
    let fresh = tokio::spawn(async move { fresh.responds_to_ping().await });
    for _ in 0..3 {
        assert_responds_without_proxies(&deployment).await;
    }
    assert!(!earlier.is_finished());
    // The kernel may have given up the new connection.
    assert!(!fresh.is_finished() || fresh.await.expect("no panic") == json!(""));
    let note = deployment.end_fault(FaultKind::Partition).await.expect("its end");
    let late = if note.ends_with("arrive late") { "+PONG" } else { "" };
    assert_eq!(earlier.await.expect("no panic"), json!(late), "{note}");
    wait_for_response(&deployment).await;
}

/// Without a partition no namespace is needed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_partitions_no_namespace_is_created() {
    let mut setup = options(LocalEngine::Redis, &[FaultKind::Cut], true);
    setup.isolates_workers = true;
    let deployment = Deployment::start(LocalEngine::Redis, &setup).await.expect("a deployment");
    assert!(deployment.worker_command_prefix().is_empty());
    wait_for_response(&deployment).await;
}
