//! Sentinels that do not agree: an older election is not followed, however many name it. The servers are real; the Sentinels are scripted,
//! since real ones agree within two seconds.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::clock::ManualClock;
use leasehold::{Locks, Outcome};
use leasehold_testbed::{Server, eventually, redis};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::redis_deployments::deployment::{BOUND, LONG, client, raw, soon, text};

/// What a Sentinel names, how long it takes to say so, and how often it was asked.
struct Word {
    named: Mutex<(u16, u64)>,
    millis: AtomicU64,
    asked: AtomicU64,
}

/// A Sentinel that names whatever the test says.
struct Sentinel {
    addr: SocketAddr,
    word: Arc<Word>,
}

impl Sentinel {
    async fn start(master: &Server, epoch: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let named = Mutex::new((master.port(), epoch));
        let word = Arc::new(Word { named, millis: AtomicU64::new(0), asked: AtomicU64::new(0) });
        let said = Arc::clone(&word);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&said)));
            }
        });
        Self { addr, word }
    }

    fn names(&self, master: &Server, epoch: u64) {
        *self.word.named.lock().expect("no panic") = (master.port(), epoch);
    }

    /// From now on it takes so long to answer.
    fn takes(&self, millis: u64) {
        self.word.millis.store(millis, Ordering::SeqCst);
    }

    fn asked(&self) -> u64 {
        self.word.asked.load(Ordering::SeqCst)
    }
}

async fn serve(stream: TcpStream, word: Arc<Word>) {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    while let Some(words) = request(&mut read).await {
        let (port, epoch) = *word.named.lock().expect("no panic");
        let second = words.get(1).map(|word| word.to_lowercase()).unwrap_or_default();
        let answer = match (words[0].to_uppercase().as_str(), second.as_str()) {
            ("HELLO", _) => "%3\r\n+server\r\n+redis\r\n+version\r\n+7.0.15\r\n+proto\r\n:3\r\n".to_owned(),
            ("SUBSCRIBE", channel) => format!(">3\r\n+subscribe\r\n${}\r\n{channel}\r\n:1\r\n", channel.len()),
            ("SENTINEL", "get-master-addr-by-name") => {
                tokio::time::sleep(Duration::from_millis(word.millis.load(Ordering::SeqCst))).await;
                word.asked.fetch_add(1, Ordering::SeqCst);
                format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.to_string().len())
            }
            ("SENTINEL", _) => format!("%1\r\n+config-epoch\r\n+{epoch}\r\n"),
            _ => "+OK\r\n".to_owned(),
        };
        if write.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn request(read: &mut BufReader<tokio::net::tcp::OwnedReadHalf>) -> Option<Vec<String>> {
    let mut words = Vec::new();
    for _ in 0..header(read, '*').await? {
        let mut word = vec![0; header(read, '$').await? + 2];
        read.read_exact(&mut word).await.ok()?;
        word.truncate(word.len() - 2);
        words.push(String::from_utf8(word).ok()?);
    }
    Some(words)
}

async fn header(read: &mut BufReader<tokio::net::tcp::OwnedReadHalf>, kind: char) -> Option<usize> {
    let mut line = String::new();
    read.read_line(&mut line).await.ok()?;
    line.strip_prefix(kind)?.trim_end().parse().ok()
}

/// How many of our clients listen at the server.
async fn listeners(server: &Server) -> usize {
    text(raw(server.addr(), &["CLIENT", "LIST", "TYPE", "pubsub"]).await).lines().count()
}

/// Two masters, and three Sentinels that name the first of them.
async fn scene() -> (Server, Server, Sentinel, [Sentinel; 2], String) {
    let (old, new) = (redis::start().await.expect("a server"), redis::start().await.expect("a server"));
    let newest = Sentinel::start(&old, 4).await;
    let late = [Sentinel::start(&old, 4).await, Sentinel::start(&old, 4).await];
    let url = format!("redis+sentinel://{},{},{}/m", newest.addr, late[0].addr, late[1].addr);
    (old, new, newest, late, url)
}

/// Waits until the client is connected to the new master, and to the old one no more.
async fn followed(old: &Server, new: &Server) {
    eventually(BOUND, || async {
        let seen = (listeners(old).await, listeners(new).await);
        if seen == (0, 1) { Ok(()) } else { Err(format!("connections to the old and the new master: {seen:?}")) }
    })
    .await;
}

/// Two Sentinels have not heard of the last election and answer at once; the one that has takes its time. The client does not go back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_does_not_go_back_to_an_older_election() {
    for strict in ["", "?strict=600s"] {
        let (old, new, newest, late, url) = scene().await;
        let locks = client(&format!("{url}{strict}"), LONG).await;
        newest.names(&new, 5);
        followed(&old, &new).await;
        newest.takes(400);
        let before = late.each_ref().map(Sentinel::asked);
        let connections = connected(&old).await;
        raw(new.addr(), &["CLIENT", "KILL", "TYPE", "pubsub"]).await;
        eventually(BOUND, || async {
            let asked = late.iter().zip(before).all(|(sentinel, before)| sentinel.asked() >= before + 2);
            if asked { Ok(()) } else { Err("not asked again so far") }
        })
        .await;
        followed(&old, &new).await;
        if strict.is_empty() {
            let guard = soon("the lock", locks.mutex("a").lock()).await.expect("a lock");
            assert_eq!(guard.release().await.expect("an answer"), Outcome::Released);
        }
        assert_eq!(connected(&old).await, connections, "nobody went back to the old master");
    }
}

/// A client that is opened while most Sentinels know only an old election, and the one that knows the newest is slow: it waits for that one, and never
/// connects to the old master. A Sentinel that is down is not waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fresh_client_waits_for_every_sentinel() {
    let (old, new, newest, _late, url) = scene().await;
    newest.names(&new, 5);
    newest.takes(1000);
    let connections = connected(&old).await;
    // Far longer than the slow one takes, also on a busy machine.
    let locks = client(&format!("{url}?connect-timeout=60s"), LONG).await;
    let guard = soon("the lock", locks.mutex("a").lock()).await.expect("a lock");
    assert_eq!(guard.release().await.expect("an answer"), Outcome::Released);
    assert_eq!(connected(&old).await, connections, "no client connected to the old master");

    // Nothing listens on port 1.
    let down = url.replace(&format!("redis+sentinel://{}", newest.addr), "redis+sentinel://127.0.0.1:1");
    let locks = client(&format!("{down}?connect-timeout=60s"), LONG).await;
    let guard = soon("the lock", locks.mutex("a").lock()).await.expect("a lock");
    assert_eq!(guard.release().await.expect("an answer"), Outcome::Released);
}

/// A Sentinel that accepts connections and never responds does not keep a new client out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_hangs_keeps_no_client_out() {
    let (_old, new, newest, late, url) = scene().await;
    for sentinel in [&newest, &late[0], &late[1]] {
        sentinel.names(&new, 5);
    }
    newest.takes(3_600_000);
    let hand = ManualClock::running();
    let opening = tokio::spawn({
        let builder = Locks::builder().ttl(LONG).clock(hand.clock());
        async move { builder.open(&format!("{url}?connect-timeout=300s")).await }
    });
    eventually(BOUND, || async {
        if late.iter().all(|sentinel| sentinel.asked() > 0) { Ok(()) } else { Err("not asked so far") }
    })
    .await;
    // Once the two have answered it waits for a quarter of the connect timeout. All of that does not pass.
    let mut steps = 0..15;
    eventually(BOUND, || {
        steps.next().into_iter().for_each(|_| hand.advance(Duration::from_secs(10)));
        let opened = opening.is_finished();
        async move { if opened { Ok(()) } else { Err("it waits for the one that hangs") } }
    })
    .await;
    let locks = opening.await.expect("no panic").expect("two of three respond");
    let guard = soon("the lock", locks.mutex("a").lock()).await.expect("a lock");
    assert_eq!(guard.release().await.expect("an answer"), Outcome::Released);
}

/// One Sentinel alone knows of the newest election, and is slow to say so: it is followed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_slow_sentinel_is_enough_for_a_newer_election() {
    let (old, new, newest, _late, url) = scene().await;
    newest.takes(400);
    let locks = client(&url, LONG).await;
    assert_eq!(listeners(&old).await, 1);
    newest.names(&new, 5);
    followed(&old, &new).await;
    let guard = soon("the lock", locks.mutex("a").lock()).await.expect("a lock");
    assert_eq!(guard.release().await.expect("an answer"), Outcome::Released);
}

/// How often the library has connected to a server: those by hand say no HELLO.
async fn connected(server: &Server) -> u64 {
    let stats = text(raw(server.addr(), &["INFO", "commandstats"]).await);
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_hello:calls="));
    line.map_or(0, |line| line.split(',').next().and_then(|calls| calls.parse().ok()).expect("a number"))
}
