//! Redirects the connections of one JVM: a minimal SOCKS5 server.

use std::{
    collections::HashMap,
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::Arc,
    thread,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::TcpStream,
    runtime,
    sync::oneshot,
    time::sleep,
};

use crate::{Error, Result, process::is_listening};

/// The pause after a listener has failed, usually because file descriptors are exhausted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

// The numbers of the SOCKS5 protocol (RFC 1928).
const VERSION: u8 = 5;
const NO_PASSWORD: u8 = 0;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const SUCCEEDED: u8 = 0;
const FAILURE: u8 = 1;
const REFUSED: u8 = 5;

/// A SOCKS5 server that accepts only known targets, and redirects each of them. Dropping it closes
/// its connections and ends it. Like a proxy, it has its own thread.
#[derive(Debug)]
pub(super) struct SocksRouter {
    port: u16,
    thread: Option<(oneshot::Sender<()>, thread::JoinHandle<()>)>,
}

/// The actual address for each requested target.
type Routes = HashMap<SocketAddr, SocketAddr>;

impl SocksRouter {
    pub(super) fn start(routes: Routes) -> Result<Self> {
        let starting = || Error::io("starting a router");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(starting())?;
        listener.set_nonblocking(true).map_err(starting())?;
        let port = listener.local_addr().map_err(starting())?.port();
        let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(starting())?;
        let listener = {
            let _context = runtime.enter();
            tokio::net::TcpListener::from_std(listener).map_err(starting())?
        };
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new()
            .name(format!("testbed-router-{port}"))
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = accept_connections(listener, Arc::new(routes)) => {}
                        _ = stopped => {}
                    }
                });
            })
            .map_err(starting())?;
        Ok(Self { port, thread: Some((stop, thread)) })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for SocksRouter {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.thread.take() {
            drop(stop);
            // The result is ignored: even if the thread panicked, its connections are closed.
            let _ = thread.join();
        }
    }
}

async fn accept_connections(listener: tokio::net::TcpListener, routes: Arc<Routes>) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let routes = Arc::clone(&routes);
        tokio::spawn(async move {
            // An error only ends this connection.
            let _ = serve_connection(client, &routes).await;
        });
    }
}

async fn serve_connection(mut client: TcpStream, routes: &Routes) -> io::Result<()> {
    client.set_nodelay(true)?;
    let Some(target) = read_target(&mut client).await? else {
        return write_reply(&mut client, FAILURE).await;
    };
    // Connects before it replies: a follower whose connection is refused retries until its leader
    // is ready, but a follower whose connection is accepted and then closed abandons the leader.
    let Some(&place) = routes.get(&target).filter(|_| is_listening(target.port())) else {
        return write_reply(&mut client, REFUSED).await;
    };
    let Ok(mut server) = TcpStream::connect(place).await else {
        return write_reply(&mut client, REFUSED).await;
    };
    server.set_nodelay(true)?;
    write_reply(&mut client, SUCCEEDED).await?;
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}

/// Reads the address to which the client wants to connect; `None` for an unsupported request.
async fn read_target(client: &mut TcpStream) -> io::Result<Option<SocketAddr>> {
    let [_, methods] = read_bytes(client).await?;
    let mut offered = vec![0; usize::from(methods)];
    client.read_exact(&mut offered).await?;
    client.write_all(&[VERSION, NO_PASSWORD]).await?;
    let [version, command, _, kind] = read_bytes(client).await?;
    if (version, command, kind) != (VERSION, CONNECT, IPV4) {
        return Ok(None);
    }
    let [a, b, c, d, high, low] = read_bytes(client).await?;
    Ok(Some((Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low])).into()))
}

async fn write_reply(client: &mut TcpStream, answer: u8) -> io::Result<()> {
    client.write_all(&[VERSION, answer, 0, IPV4, 0, 0, 0, 0, 0, 0]).await
}

async fn read_bytes<const N: usize>(client: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    client.read_exact(&mut bytes).await?;
    Ok(bytes)
}
