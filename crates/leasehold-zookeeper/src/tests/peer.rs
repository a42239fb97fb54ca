//! The server's side of a connection, controlled by a test.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::Client;
use crate::address::Server;
use crate::error::Result;
use crate::jute::{Reader, Writer};
use crate::session::{self, Settings};
use crate::transport::Transport;
use crate::wire::{op, xid};

/// The session timeout that tests request and grant.
pub(super) const TIMEOUT: Duration = Duration::from_secs(12);
/// The session's number, as the scripted servers assign it.
pub(super) const ID: i64 = 0x1234;
/// The session's password, as the scripted servers assign it.
pub(super) const PASSWORD: [u8; 16] = [7; 16];

/// Connects in memory, and gives the server's end of each connection to the test.
struct TestTransport(UnboundedSender<Peer>);

impl Transport for TestTransport {
    type Stream = DuplexStream;

    async fn connect(&self, server: &Server) -> io::Result<DuplexStream> {
        let (local, remote) = tokio::io::duplex(64 * 1024);
        let peer = Peer { host: server.host.clone(), stream: remote, opened_at: Instant::now() };
        self.0.send(peer).map_err(|_| io::ErrorKind::ConnectionRefused)?;
        Ok(local)
    }
}

/// The connections that a client opens, to any of its servers.
pub(super) struct Ensemble(UnboundedReceiver<Peer>);

impl Ensemble {
    /// Waits for the next connection.
    pub(super) async fn next(&mut self) -> Peer {
        self.0.recv().await.expect("a session that connects")
    }

    /// Waits for the next connection, and opens the session on it.
    pub(super) async fn next_session(&mut self) -> Peer {
        let mut peer = self.next().await;
        peer.accept_session().await;
        peer.answer_ping().await;
        peer
    }
}

pub(super) fn settings() -> Settings {
    Settings { session_timeout: TIMEOUT, ..Settings::default() }
}

/// Opens a session with these servers, which the test controls.
pub(super) fn open(settings: Settings, servers: &str) -> (JoinHandle<Result<Client>>, Ensemble) {
    let (sender, peers) = unbounded_channel();
    let servers = Server::parse_list(servers).expect("servers");
    (tokio::spawn(session::open(settings, TestTransport(sender), servers)), Ensemble(peers))
}

/// Opens a session with one of these servers; returns the server's end of its connection, too.
pub(super) async fn open_connected(servers: &str) -> (Client, Peer, Ensemble) {
    let (opening, mut ensemble) = open(settings(), servers);
    let peer = ensemble.next_session().await;
    (opening.await.expect("no panic").expect("a session"), peer, ensemble)
}

/// The server's end of one connection.
pub(super) struct Peer {
    /// The host that the client has connected to.
    pub(super) host: String,
    pub(super) stream: DuplexStream,
    /// When the connection was opened.
    pub(super) opened_at: Instant,
}

/// A client's first packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ConnectRequest {
    pub(super) last_zxid: i64,
    pub(super) id: i64,
    pub(super) password: Vec<u8>,
}

/// A packet of the client.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) xid: i32,
    pub(super) op: i32,
    pub(super) body: Vec<u8>,
}

impl Packet {
    pub(super) fn path(&self) -> String {
        Reader::new(&self.body).text().expect("a path").to_owned()
    }
}

impl Peer {
    /// Reads one frame of the client, without its length.
    pub(super) async fn frame(&mut self) -> io::Result<Vec<u8>> {
        let length = self.stream.read_i32().await?;
        let mut frame = vec![0; usize::try_from(length).expect("a length")];
        self.stream.read_exact(&mut frame).await?;
        Ok(frame)
    }

    pub(super) async fn send(&mut self, writer: Writer) {
        self.stream.write_all(&writer.finish()).await.expect("a client that reads");
    }

    pub(super) async fn read_connect_request(&mut self) -> ConnectRequest {
        let frame = self.frame().await.expect("a connect request");
        let mut reader = Reader::new(&frame);
        let _ = reader.int().expect("the protocol");
        let last_zxid = reader.long().expect("a zxid");
        assert_eq!(reader.int(), Ok(i32::try_from(TIMEOUT.as_millis()).expect("a timeout")));
        ConnectRequest {
            last_zxid,
            id: reader.long().expect("an id"),
            password: reader.buffer().expect("a password").to_vec(),
        }
    }

    /// Replies to the client's first packet; a timeout of 0 tells it that the session is over.
    pub(super) async fn send_connect_response(&mut self, timeout: Duration) {
        let mut writer = Writer::new();
        writer.int(0);
        writer.int(i32::try_from(timeout.as_millis()).expect("a timeout"));
        writer.long(if timeout.is_zero() { 0 } else { ID });
        writer.buffer(&PASSWORD);
        writer.flag(false);
        self.send(writer).await;
    }

    pub(super) async fn accept_session(&mut self) -> ConnectRequest {
        let request = self.read_connect_request().await;
        self.send_connect_response(TIMEOUT).await;
        request
    }

    /// Reads the client's next packet after the first.
    pub(super) async fn packet(&mut self) -> Packet {
        let frame = self.frame().await.expect("a packet");
        let mut reader = Reader::new(&frame);
        let (xid, op) = (reader.int().expect("an xid"), reader.int().expect("an op"));
        Packet { xid, op, body: frame[8..].to_vec() }
    }

    /// Reads the client's next packet, which must be of the kind `op`.
    pub(super) async fn expect(&mut self, op: i32) -> Packet {
        let packet = self.packet().await;
        assert_eq!(packet.op, op, "{packet:?}");
        packet
    }

    /// Waits for a ping and replies to it.
    pub(super) async fn answer_ping(&mut self) {
        assert_eq!(self.expect(op::PING).await.xid, xid::PING);
        self.reply(xid::PING, 0, 0, |_| {}).await;
    }

    pub(super) async fn reply(&mut self, xid: i32, zxid: i64, code: i32, body: impl FnOnce(&mut Writer)) {
        let mut writer = Writer::new();
        writer.int(xid);
        writer.long(zxid);
        writer.int(code);
        body(&mut writer);
        self.send(writer).await;
    }

    /// Sends a watch's event: 1 created, 2 deleted, 3 data set, 4 children changed.
    pub(super) async fn send_event(&mut self, event: i32, path: &str) {
        self.reply(xid::EVENT, -1, 0, |writer| {
            writer.int(event);
            writer.int(3);
            writer.text(path);
        })
        .await;
    }

    /// Whether the client has disconnected.
    pub(super) async fn is_disconnected(&mut self) -> bool {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).await.is_ok()
    }
}

/// Writes a node's stat with `czxid` for each transaction, and 0 for all else.
pub(super) fn stat(writer: &mut Writer, czxid: i64) {
    (0..4).for_each(|_| writer.long(czxid));
    (0..3).for_each(|_| writer.int(0));
    writer.long(0);
    (0..2).for_each(|_| writer.int(0));
    writer.long(czxid);
}
