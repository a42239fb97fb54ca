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
    pipe::{Ended, Pipe, Way},
    rules::Shared,
};

/// How long a server may take to finish a connection whose client was cut off.
const DRAIN_BOUND: Duration = Duration::from_secs(5);
/// How long to leave a listener alone that has failed, for want of file descriptors as a rule.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// What the two directions of one connection know of each other.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) shared: Arc<Shared>,
    pub(super) epoch: u64,
    /// The how manieth it is.
    pub(super) number: u64,
    /// A reply was swallowed: no later one may pass as if it had not been.
    mute: AtomicBool,
    /// The request after which this connection is to be cut has been sent.
    doomed: AtomicBool,
}

// Relaxed is enough: both are only touched under the lock of the rules.
impl Link {
    pub(super) fn is_mute(&self) -> bool {
        self.mute.load(Ordering::Relaxed)
    }

    pub(super) fn set_mute(&self) {
        self.mute.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_doomed(&self) -> bool {
        self.doomed.load(Ordering::Relaxed)
    }

    pub(super) fn set_doomed(&self) {
        self.doomed.store(true, Ordering::Relaxed);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let mut rules = self.shared.rules();
        rules.counts.open -= 1;
        rules.open.remove(&self.number);
        rules.silent.remove(&self.number);
    }
}

/// Serves clients for as long as it is polled.
pub(super) async fn accept_all(listener: TcpListener, shared: Arc<Shared>, target: SocketAddr) {
    loop {
        let Ok((client, epoch, number)) = shared.accept(&listener).await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (mute, doomed) = (AtomicBool::new(false), AtomicBool::new(false));
        let link = Link { shared: Arc::clone(&shared), epoch, number, mute, doomed };
        tokio::spawn(async move {
            // An error ends this connection, which is all that it can mean.
            let _ = serve(client, target, &link).await;
        });
    }
}

async fn serve(client: TcpStream, target: SocketAddr, link: &Link) -> io::Result<()> {
    if !link.shared.thawed(link.epoch).await {
        return Ok(());
    }
    let server = TcpStream::connect(target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let requests = Pipe::new(Way::Request, from_client, to_server, link);
    let replies = Pipe::new(Way::Reply, from_server, to_client, link);
    // Both end in peace, or the first that does not takes the other with it.
    match tokio::try_join!(requests.run(), replies.run()) {
        Err(Ended::Doomed(from_server)) => drain(from_server, link).await,
        Ok(_) | Err(Ended::Broken) => Ok(()),
    }
}

/// The client is gone and the server has been told that no more will come. It is listened to until
/// it closes: a reset now could make it give up the very request that was to be carried out.
async fn drain(mut from_server: OwnedReadHalf, link: &Link) -> io::Result<()> {
    let mut scratch = [0; 4096];
    let reading = async {
        loop {
            match from_server.read(&mut scratch).await? {
                0 => return Ok(()),
                read => link.shared.rules().counts.swallowed_bytes += read as u64,
            }
        }
    };
    timeout(DRAIN_BOUND, reading).await.unwrap_or(Ok(()))
}
