//! A minimal ZooKeeper client: it opens a session, and creates, reads and deletes nodes.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// The timeout of a reply.
const REPLY_TIMEOUT: Duration = leasehold_testbed::TEST_TIMEOUT;

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const GET_DATA: i32 = 4;
const CREATE_CONTAINER: i32 = 19;
const CREATE_TTL: i32 = 21;

/// The lifetime of a new node.
#[derive(Clone, Copy)]
pub(crate) enum NodeKind {
    Persistent,
    Ephemeral,
    Container,
    /// The node is removed this long after its last change.
    Ttl(Duration),
}

/// The server's error code, such as -101 for a node that does not exist.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ErrorCode(pub(crate) i32);

pub(crate) const NO_NODE: ErrorCode = ErrorCode(-101);

pub(crate) struct Session<S> {
    stream: S,
    /// The session timeout that the server granted.
    pub(crate) timeout: Duration,
    last_request_id: i32,
}

impl Session<TcpStream> {
    pub(crate) async fn open(addr: SocketAddr, timeout: Duration) -> io::Result<Self> {
        Self::open_on(TcpStream::connect(addr).await?, timeout).await
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Session<S> {
    /// Opens a session on an existing connection, and requests the timeout `wanted`.
    pub(crate) async fn open_on(mut stream: S, wanted: Duration) -> io::Result<Self> {
        let mut hello = Vec::new();
        hello.extend(0_i32.to_be_bytes());
        hello.extend(0_i64.to_be_bytes());
        hello.extend(i32::try_from(wanted.as_millis()).unwrap().to_be_bytes());
        hello.extend(0_i64.to_be_bytes());
        write_text(&mut hello, &"\0".repeat(16));
        hello.push(0);
        send(&mut stream, &hello).await?;
        let answer = receive(&mut stream).await?;
        let granted = u64::try_from(read_int(&answer, 4)).unwrap();
        Ok(Self { stream, timeout: Duration::from_millis(granted), last_request_id: 0 })
    }

    pub(crate) async fn create(&mut self, path: &str, data: &str, kind: NodeKind) -> io::Result<Result<(), ErrorCode>> {
        let (call, flags) = match kind {
            NodeKind::Persistent => (CREATE, 0_i32),
            NodeKind::Ephemeral => (CREATE, 1),
            NodeKind::Container => (CREATE_CONTAINER, 4),
            NodeKind::Ttl(_) => (CREATE_TTL, 5),
        };
        let mut request = Vec::new();
        write_text(&mut request, path);
        write_text(&mut request, data);
        // An ACL with one rule: all permissions for every client.
        request.extend([1_i32, 31].map(i32::to_be_bytes).concat());
        write_text(&mut request, "world");
        write_text(&mut request, "anyone");
        request.extend(flags.to_be_bytes());
        if let NodeKind::Ttl(life) = kind {
            request.extend(i64::try_from(life.as_millis()).unwrap().to_be_bytes());
        }
        Ok(self.request(call, &request).await?.map(drop))
    }

    pub(crate) async fn delete(&mut self, path: &str) -> io::Result<Result<(), ErrorCode>> {
        let mut request = Vec::new();
        write_text(&mut request, path);
        request.extend((-1_i32).to_be_bytes());
        Ok(self.request(DELETE, &request).await?.map(drop))
    }

    /// Reads the data of a node.
    pub(crate) async fn get(&mut self, path: &str) -> io::Result<Result<String, ErrorCode>> {
        let mut request = Vec::new();
        write_text(&mut request, path);
        request.push(0);
        Ok(self.request(GET_DATA, &request).await?.map(|answer| {
            let length = usize::try_from(read_int(&answer, 0)).unwrap();
            String::from_utf8(answer[4..4 + length].to_vec()).unwrap()
        }))
    }

    async fn request(&mut self, call: i32, body: &[u8]) -> io::Result<Result<Vec<u8>, ErrorCode>> {
        self.last_request_id += 1;
        let head = [self.last_request_id, call].map(i32::to_be_bytes).concat();
        send(&mut self.stream, &[&head, body].concat()).await?;
        let answer = receive(&mut self.stream).await?;
        assert_eq!(read_int(&answer, 0), self.last_request_id, "an answer to something else");
        match read_int(&answer, 12) {
            0 => Ok(Ok(answer[16..].to_vec())),
            code => Ok(Err(ErrorCode(code))),
        }
    }
}

fn write_text(request: &mut Vec<u8>, text: &str) {
    request.extend(i32::try_from(text.len()).unwrap().to_be_bytes());
    request.extend(text.as_bytes());
}

fn read_int(answer: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(answer[at..at + 4].try_into().unwrap())
}

async fn send(stream: &mut (impl AsyncWrite + Unpin), body: &[u8]) -> io::Result<()> {
    let length = i32::try_from(body.len()).unwrap().to_be_bytes();
    stream.write_all(&[&length, body].concat()).await?;
    stream.flush().await
}

async fn receive(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let reading = async {
        let mut answer = vec![0; usize::try_from(stream.read_i32().await?).unwrap()];
        stream.read_exact(&mut answer).await?;
        Ok(answer)
    };
    timeout(REPLY_TIMEOUT, reading).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
