//! A Sentinel in memory that a test scripts: it names the master and the epoch that the test chose,
//! after a delay, or never.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::io::{AsyncWriteExt, BufReader, DuplexStream};

use super::network::Host;
use super::resp;
use super::server::TRIP;
use crate::clock::Clock;

/// When a Sentinel answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answers {
    /// Questions about the master after this time, and all other commands at once.
    After(Duration),
    /// It accepts connections, and never sends anything.
    Never,
}

/// What the test has chosen.
#[derive(Clone, Copy)]
struct Script {
    /// Its address, like `h:6379`.
    master: &'static str,
    epoch: u64,
    answers: Answers,
}

pub(super) struct Sentinel {
    clock: Clock,
    script: Mutex<Script>,
    asked: AtomicU64,
}

impl Sentinel {
    /// A Sentinel that names this master, by the election of this epoch.
    pub(super) fn new(master: &'static str, epoch: u64) -> Arc<Self> {
        let script = Script { master, epoch, answers: Answers::After(TRIP) };
        Arc::new(Self { clock: Clock::tokio(), script: Mutex::new(script), asked: AtomicU64::new(0) })
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().expect("one thread")
    }

    /// From now on, names this master.
    pub(super) fn name(&self, master: &'static str, epoch: u64) {
        let mut script = self.script();
        (script.master, script.epoch) = (master, epoch);
    }

    /// From now on, answers after this time, or never.
    pub(super) fn answer(&self, answers: Answers) {
        self.script().answers = answers;
    }

    /// How many questions about the master it has answered.
    pub(super) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Host for Sentinel {
    fn accept(self: Arc<Self>) -> io::Result<DuplexStream> {
        let (client_side, server_side) = tokio::io::duplex(1 << 16);
        tokio::spawn(serve(self, server_side));
        Ok(client_side)
    }
}

/// Serves one connection until its end.
async fn serve(sentinel: Arc<Sentinel>, stream: DuplexStream) {
    let (read, mut write) = tokio::io::split(stream);
    let mut read = BufReader::new(read);
    // The client asks for the master and then for its epoch: both answers are of one moment.
    let mut named = *sentinel.script();
    while let Some(words) = resp::request(&mut read).await {
        let Answers::After(time) = sentinel.script().answers else {
            return std::future::pending().await;
        };
        let answer = match (&words[0][..], words.get(1).map(Vec::as_slice)) {
            (b"HELLO", _) => resp::hello(),
            (b"SUBSCRIBE", Some(channel)) => resp::subscribed(channel),
            (b"SENTINEL", Some(b"get-master-addr-by-name")) => {
                sentinel.clock.sleep(time).await;
                named = *sentinel.script();
                sentinel.asked.fetch_add(1, Ordering::Relaxed);
                let (host, port) = named.master.split_once(':').expect("an address");
                [b"*2\r\n", &resp::text(host.as_bytes())[..], &resp::text(port.as_bytes())].concat()
            }
            (b"SENTINEL", Some(b"MASTER")) => format!("%1\r\n+config-epoch\r\n+{}\r\n", named.epoch).into_bytes(),
            _ => b"-ERR unknown command\r\n".to_vec(),
        };
        if write.write_all(&answer).await.is_err() {
            return;
        }
    }
}
