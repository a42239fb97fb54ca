//! Servers start, answer, fall silent, die and come back, on the port that they had.

use std::{fs, os::unix::fs::MetadataExt, time::Duration};

use leasehold_testbed::{
    Data, Error, Server,
    process::{Binary, Place, Probe, Recipe, Step},
    redis::{self, Redis, Reply, Resp},
};

use crate::common::alive;

const SILENCE: Duration = Duration::from_millis(300);

fn ok() -> Reply {
    Reply::Simple("OK".to_owned())
}

fn value(text: &str) -> Reply {
    Reply::Bulk(text.to_owned())
}

fn durable() -> Redis {
    Redis::new().args(&["--appendonly", "yes", "--appendfsync", "always"])
}

#[tokio::test]
async fn a_started_server_answers() {
    let server = redis::start().await.unwrap();
    let mut client = Resp::connect(server.addr()).await.unwrap();
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
    let mut client = Resp::connect(one.addr()).await.unwrap();
    assert_eq!(client.command(&["SET", "k", "v"]).await.unwrap(), ok());
    let mut other = Resp::connect(two.addr()).await.unwrap();
    assert_eq!(other.command(&["GET", "k"]).await.unwrap(), Reply::Nil);
}

#[tokio::test]
async fn a_killed_server_is_gone_and_keeps_its_files_or_loses_them() {
    let mut server = durable().start().await.unwrap();
    let (port, pid) = (server.port(), server.pid().unwrap());
    let mut client = Resp::connect(server.addr()).await.unwrap();
    assert_eq!(client.command(&["SET", "k", "v"]).await.unwrap(), ok());

    server.kill().unwrap();
    assert!(!alive(pid), "kill returns when the process is gone");
    assert_eq!(server.pid(), None);
    assert!(client.command(&["PING"]).await.is_err());
    assert!(Resp::connect(server.addr()).await.is_err());
    assert!(matches!(server.pause(), Err(Error::NotRunning { .. })));

    server.restart(Data::Keep).await.unwrap();
    assert_eq!(server.port(), port);
    let mut client = Resp::connect(server.addr()).await.unwrap();
    assert_eq!(client.command(&["GET", "k"]).await.unwrap(), value("v"));

    server.kill().unwrap();
    server.restart(Data::Wipe).await.unwrap();
    assert_eq!(server.port(), port);
    let mut client = Resp::connect(server.addr()).await.unwrap();
    assert_eq!(client.command(&["GET", "k"]).await.unwrap(), Reply::Nil);
}

#[tokio::test]
async fn stop_lets_a_server_save_and_kill_does_not() {
    // This one writes its data only when it is asked to end.
    let mut server = Redis::new().args(&["--save", "3600 1"]).start().await.unwrap();
    let mut client = Resp::connect(server.addr()).await.unwrap();
    client.command(&["SET", "saved", "v"]).await.unwrap();
    // A paused server must hear of it, too.
    server.pause().unwrap();
    server.stop().await.unwrap();
    server.restart(Data::Keep).await.unwrap();
    let mut client = Resp::connect(server.addr()).await.unwrap();
    assert_eq!(client.command(&["GET", "saved"]).await.unwrap(), value("v"));
    client.command(&["SET", "lost", "v"]).await.unwrap();
    server.kill().unwrap();
    server.restart(Data::Keep).await.unwrap();
    let mut client = Resp::connect(server.addr()).await.unwrap();
    assert_eq!(client.command(&["GET", "lost"]).await.unwrap(), Reply::Nil);
}

#[tokio::test]
async fn a_paused_server_is_silent_and_a_resumed_one_answers() {
    let mut server = redis::start().await.unwrap();
    let mut client = Resp::connect(server.addr()).await.unwrap().bound(SILENCE);
    server.pause().unwrap();
    let silence = client.command(&["INCR", "n"]).await;
    assert!(matches!(silence, Err(Error::TimedOut { .. })), "{silence:?}");
    server.resume().unwrap();
    // It was only late: the very same connection gets the reply now.
    let mut client = client.bound(leasehold_testbed::BOUND);
    assert_eq!(client.reply().await.unwrap(), Reply::Integer(1));
}

#[tokio::test]
async fn the_port_stays_ours_while_the_server_is_down() {
    let mut server = redis::start().await.unwrap();
    server.kill().unwrap();
    // An ordinary program that wants this very port without taking it by force.
    let stranger = tokio::net::TcpSocket::new_v4().unwrap();
    assert!(stranger.bind(server.addr()).is_err());
    server.restart(Data::Keep).await.unwrap();
}

#[tokio::test]
async fn a_server_that_does_not_start_shows_its_last_words() {
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
    let nobody = Redis::new().run_as("no-such-user").start().await;
    assert_eq!(we_are_root, matches!(nobody, Err(Error::UnknownUser { .. })));
}

/// A server whose program, or whose preparation, is something else.
struct Odd {
    binary: Binary,
    init: Vec<Step>,
}

impl Recipe for Odd {
    fn binary(&self) -> Binary {
        self.binary.clone()
    }
    fn arguments(&self, place: &Place) -> Vec<String> {
        Redis::new().arguments(place)
    }
    fn url(&self, _place: &Place) -> String {
        String::new()
    }
    fn probe<'a>(&'a self, _place: &'a Place) -> Probe<'a> {
        Box::pin(async { Ok(()) })
    }
    fn init(&self, _place: &Place) -> Vec<Step> {
        self.init.clone()
    }
}

#[tokio::test]
async fn a_missing_program_is_an_error_that_names_its_package() {
    let odd = Odd { binary: Binary::new("no-such-server", "some-package"), init: Vec::new() };
    let message = Server::start(odd).await.unwrap_err().to_string();
    let expected = "no-such-server is not installed; it is in the Debian package `some-package`: \
                    apt-get install some-package";
    assert_eq!(message, expected);
}

#[tokio::test]
async fn the_folder_is_prepared_once_and_again_after_a_wipe() {
    let note =
        |text: &str| Step { binary: Binary::new("sh", "dash"), arguments: vec!["-c".to_owned(), text.to_owned()] };
    let odd = Odd {
        binary: Binary::new("redis-server", "redis-server"),
        init: vec![note("echo first >> steps"), note("echo second >> steps")],
    };
    let mut server = Server::start(odd).await.unwrap();
    let steps = server.dir().join("steps");
    assert_eq!(fs::read_to_string(&steps).unwrap(), "first\nsecond\n");
    server.restart(Data::Keep).await.unwrap();
    assert_eq!(fs::read_to_string(&steps).unwrap(), "first\nsecond\n");
    fs::write(&steps, "old").unwrap();
    server.restart(Data::Wipe).await.unwrap();
    assert_eq!(fs::read_to_string(&steps).unwrap(), "first\nsecond\n");

    let failing =
        Odd { binary: Binary::new("redis-server", "redis-server"), init: vec![note("echo cannot prepare; exit 3")] };
    let message = Server::start(failing).await.unwrap_err().to_string();
    assert!(message.contains("cannot prepare"), "{message}");
}
