//! Servers start, respond, pause, die and restart, always on the same port.

use std::{fs, os::unix::fs::MetadataExt, time::Duration};

use leasehold_testbed::{
    Data, Error, Server,
    process::{Binary, InitStep, Probe, ServerSpec, Workspace},
    redis::{self, Redis, Reply, RespClient},
};

use crate::common::is_alive;

const SILENCE_TIMEOUT: Duration = Duration::from_millis(300);

fn ok() -> Reply {
    Reply::Simple("OK".to_owned())
}

fn value(text: &str) -> Reply {
    Reply::Bulk(text.to_owned())
}

fn durable_redis() -> Redis {
    Redis::new().args(&["--appendonly", "yes", "--appendfsync", "always"])
}

#[tokio::test]
async fn a_started_server_answers() {
    let server = redis::start().await.unwrap();
    let mut client = RespClient::connect(server.addr()).await.unwrap();
    let pong = client.command(&["PING"]).await.unwrap();
    assert_eq!(pong, Reply::Simple("PONG".to_owned()));
    assert!(server.log().contains("Ready to accept"), "{}", server.log());
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}/", server.port()));
    let folder = client.command(&["CONFIG", "GET", "dir"]).await.unwrap();
    let own = value(&server.dir().to_string_lossy());
    assert_eq!(folder, Reply::Array(vec![value("dir"), own]));
}

#[tokio::test]
async fn two_servers_side_by_side_share_nothing() {
    let (one, two) = tokio::join!(redis::start(), redis::start());
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_ne!(one.port(), two.port());
    assert_ne!(one.dir(), two.dir());
    let mut client = RespClient::connect(one.addr()).await.unwrap();
    assert_eq!(client.command(&["SET", "k", "v"]).await.unwrap(), ok());
    let mut other = RespClient::connect(two.addr()).await.unwrap();
    assert_eq!(other.command(&["GET", "k"]).await.unwrap(), Reply::Nil);
}

#[tokio::test]
async fn a_killed_server_keeps_its_files_unless_wiped() {
    let mut server = durable_redis().start().await.unwrap();
    let (port, pid) = (server.port(), server.pid().unwrap());
    let mut client = RespClient::connect(server.addr()).await.unwrap();
    assert_eq!(client.command(&["SET", "k", "v"]).await.unwrap(), ok());

    server.kill().unwrap();
    assert!(!is_alive(pid), "kill returns when the process is gone");
    assert_eq!(server.pid(), None);
    assert!(client.command(&["PING"]).await.is_err());
    assert!(RespClient::connect(server.addr()).await.is_err());
    assert!(matches!(server.pause(), Err(Error::NotRunning { .. })));

    server.restart(Data::Keep).await.unwrap();
    assert_eq!(server.port(), port);
    let mut client = RespClient::connect(server.addr()).await.unwrap();
    assert_eq!(client.command(&["GET", "k"]).await.unwrap(), value("v"));

    server.kill().unwrap();
    server.restart(Data::Wipe).await.unwrap();
    assert_eq!(server.port(), port);
    let mut client = RespClient::connect(server.addr()).await.unwrap();
    assert_eq!(client.command(&["GET", "k"]).await.unwrap(), Reply::Nil);
}

#[tokio::test]
async fn stop_lets_a_server_save_its_data_and_kill_does_not() {
    // This Redis writes its data only at a clean shutdown.
    let mut server = Redis::new().args(&["--save", "3600 1"]).start().await.unwrap();
    let mut client = RespClient::connect(server.addr()).await.unwrap();
    client.command(&["SET", "saved", "v"]).await.unwrap();
    // A paused server must also get the signal to shut down.
    server.pause().unwrap();
    server.stop().await.unwrap();
    server.restart(Data::Keep).await.unwrap();
    let mut client = RespClient::connect(server.addr()).await.unwrap();
    assert_eq!(client.command(&["GET", "saved"]).await.unwrap(), value("v"));
    client.command(&["SET", "lost", "v"]).await.unwrap();
    server.kill().unwrap();
    server.restart(Data::Keep).await.unwrap();
    let mut client = RespClient::connect(server.addr()).await.unwrap();
    assert_eq!(client.command(&["GET", "lost"]).await.unwrap(), Reply::Nil);
}

#[tokio::test]
async fn a_paused_server_does_not_respond_until_resumed() {
    let mut server = redis::start().await.unwrap();
    let mut client = RespClient::connect(server.addr()).await.unwrap().timeout(SILENCE_TIMEOUT);
    server.pause().unwrap();
    let silence = client.command(&["INCR", "n"]).await;
    assert!(matches!(silence, Err(Error::TimedOut { .. })), "{silence:?}");
    server.resume().unwrap();
    // The reply was only delayed: it arrives on the same connection.
    let mut client = client.timeout(leasehold_testbed::TEST_TIMEOUT);
    assert_eq!(client.reply().await.unwrap(), Reply::Integer(1));
}

#[tokio::test]
async fn the_port_stays_reserved_while_the_server_is_down() {
    let mut server = redis::start().await.unwrap();
    server.kill().unwrap();
    // Another program that tries to bind this port without SO_REUSEADDR.
    let other_socket = tokio::net::TcpSocket::new_v4().unwrap();
    assert!(other_socket.bind(server.addr()).is_err());
    server.restart(Data::Keep).await.unwrap();
}

#[tokio::test]
async fn a_server_that_does_not_start_shows_the_end_of_its_log() {
    let broken = Redis::new().args(&["--no-such-option", "1"]).start().await;
    let message = broken.unwrap_err().to_string();
    assert!(message.contains("redis-server ended"), "{message}");
    assert!(message.contains("no-such-option"), "{message}");
}

#[tokio::test]
async fn a_server_runs_as_the_user_it_asks_for() {
    let server = Redis::new().run_as("redis").start().await.unwrap();
    let process = fs::metadata(format!("/proc/{}", server.pid().unwrap())).unwrap();
    let folder = fs::metadata(server.dir()).unwrap();
    assert_eq!(process.uid(), folder.uid());
    let we_are_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    assert_eq!(we_are_root, process.uid() != fs::metadata("/proc/self").unwrap().uid());
    let unknown_user = Redis::new().run_as("no-such-user").start().await;
    assert_eq!(we_are_root, matches!(unknown_user, Err(Error::UnknownUser { .. })));
}

/// A server with any program and any steps that fill its data folder.
struct CustomServer {
    binary: Binary,
    init_steps: Vec<InitStep>,
}

impl ServerSpec for CustomServer {
    fn binary(&self) -> Binary {
        self.binary.clone()
    }
    fn arguments(&self, workspace: &Workspace) -> Vec<String> {
        Redis::new().arguments(workspace)
    }
    fn url(&self, _workspace: &Workspace) -> String {
        String::new()
    }
    fn probe<'a>(&'a self, _workspace: &'a Workspace) -> Probe<'a> {
        Box::pin(async { Ok(()) })
    }
    fn init_steps(&self, _workspace: &Workspace) -> Vec<InitStep> {
        self.init_steps.clone()
    }
}

#[tokio::test]
async fn a_missing_program_is_an_error_that_names_its_package() {
    let odd = CustomServer { binary: Binary::new("no-such-server", "some-package"), init_steps: Vec::new() };
    let message = Server::start(odd).await.unwrap_err().to_string();
    let expected = "no-such-server is not installed; it is in the Debian package `some-package`: \
                    apt-get install some-package";
    assert_eq!(message, expected);
}

#[tokio::test]
async fn the_init_steps_run_once_and_again_after_a_wipe() {
    let note =
        |text: &str| InitStep { binary: Binary::new("sh", "dash"), arguments: vec!["-c".to_owned(), text.to_owned()] };
    let odd = CustomServer {
        binary: Binary::new("redis-server", "redis-server"),
        init_steps: vec![note("echo first >> steps"), note("echo second >> steps")],
    };
    let mut server = Server::start(odd).await.unwrap();
    let steps = server.dir().join("steps");
    assert_eq!(fs::read_to_string(&steps).unwrap(), "first\nsecond\n");
    server.restart(Data::Keep).await.unwrap();
    assert_eq!(fs::read_to_string(&steps).unwrap(), "first\nsecond\n");
    fs::write(&steps, "old").unwrap();
    server.restart(Data::Wipe).await.unwrap();
    assert_eq!(fs::read_to_string(&steps).unwrap(), "first\nsecond\n");

    let failing = CustomServer {
        binary: Binary::new("redis-server", "redis-server"),
        init_steps: vec![note("echo cannot prepare; exit 3")],
    };
    let message = Server::start(failing).await.unwrap_err().to_string();
    assert!(message.contains("cannot prepare"), "{message}");
}
