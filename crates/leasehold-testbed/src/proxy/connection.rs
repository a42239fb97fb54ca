//! One connection through the proxy, from the client's connect to the last close.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf},
    time::{sleep, timeout},
};

use super::{
    pipe::{ConnectionEnd, Direction, Pipe},
    rules::SharedRules,
};

/// The time limit for a server to close a connection whose client was cut off.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after a listener has failed, usually because file descriptors are exhausted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// The shared state of a connection's two directions.
#[derive(Debug)]
pub(super) struct ProxyConnection {
    pub(super) shared: Arc<SharedRules>,
    /// How many cuts there were before the connection was accepted.
    pub(super) epoch: u64,
    /// The connection's number in the order of acceptance, from 1.
    pub(super) number: u64,
    /// Whether a reply was dropped: then no later reply may pass.
    is_muted: AtomicBool,
    /// Whether the connection is cut when the next reply arrives: its request was already
    /// forwarded.
    is_cut_pending: AtomicBool,
}

// `Relaxed` suffices for both flags: they are only used under the lock of the rules.
impl ProxyConnection {
    pub(super) fn is_muted(&self) -> bool {
        self.is_muted.load(Ordering::Relaxed)
    }

    pub(super) fn set_muted(&self) {
        self.is_muted.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_cut_pending(&self) -> bool {
        self.is_cut_pending.load(Ordering::Relaxed)
    }

    pub(super) fn set_cut_pending(&self) {
        self.is_cut_pending.store(true, Ordering::Relaxed);
    }
}

impl Drop for ProxyConnection {
    fn drop(&mut self) {
        let mut rules = self.shared.rules();
        rules.counts.open -= 1;
        rules.open_connections.remove(&self.number);
        rules.silent_connections.remove(&self.number);
    }
}

/// Accepts clients and forwards their connections to `target`, until the future is dropped.
pub(super) async fn accept_connections(listener: TcpListener, shared: Arc<SharedRules>, target: SocketAddr) {
    loop {
        let Ok((client, epoch, number)) = shared.accept(&listener).await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let connection = ProxyConnection {
            shared: Arc::clone(&shared),
            epoch,
            number,
            is_muted: AtomicBool::new(false),
            is_cut_pending: AtomicBool::new(false),
        };
        tokio::spawn(async move {
            // An error only ends this connection.
            let _ = serve_connection(client, target, &connection).await;
        });
    }
}

async fn serve_connection(client: TcpStream, target: SocketAddr, connection: &ProxyConnection) -> io::Result<()> {
    if !connection.shared.wait_until_unfrozen(connection.epoch).await {
        return Ok(());
    }
    let server = TcpStream::connect(target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let requests = Pipe::new(Direction::Request, from_client, to_server, connection);
    let replies = Pipe::new(Direction::Reply, from_server, to_client, connection);
    // Both directions close normally, or the first failure ends both.
    match tokio::try_join!(requests.run(), replies.run()) {
        Err(ConnectionEnd::CutAfterReply(from_server)) => drain(from_server, connection).await,
        Ok(_) | Err(ConnectionEnd::Broken) => Ok(()),
    }
}

/// Reads and drops the server's replies until it closes the connection, after the client's side was
/// cut: a reset could make the server drop the request that it should execute.
async fn drain(mut from_server: OwnedReadHalf, connection: &ProxyConnection) -> io::Result<()> {
    let mut buffer = [0; 4096];
    let reading = async {
        loop {
            match from_server.read(&mut buffer).await? {
                0 => return Ok(()),
                read => connection.shared.rules().counts.dropped_bytes += read as u64,
            }
        }
    };
    timeout(DRAIN_TIMEOUT, reading).await.unwrap_or(Ok(()))
}
