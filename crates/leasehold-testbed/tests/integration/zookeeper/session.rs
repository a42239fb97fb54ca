//! Just enough of ZooKeeper's protocol to open a session and touch nodes.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// How long an answer may take; a server that says nothing for so long serves nobody.
const ANSWER_BOUND: Duration = leasehold_testbed::BOUND;

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const GET_DATA: i32 = 4;
const CREATE_CONTAINER: i32 = 19;
const CREATE_TTL: i32 = 21;

/// What a node is to be.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Persistent,
    Ephemeral,
    Container,
    /// Lives so long after its last change.
    Ttl(Duration),
}

/// The server's own code, such as -101 for a node that is not there.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) i32);

pub(crate) const NO_NODE: Refused = Refused(-101);

pub(crate) struct Session<S> {
    stream: S,
    /// What the server granted.
    pub(crate) timeout: Duration,
    calls: i32,
}

impl Session<TcpStream> {
    pub(crate) async fn open(addr: SocketAddr, timeout: Duration) -> io::Result<Self> {
        Self::over(TcpStream::connect(addr).await?, timeout).await
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Session<S> {
    /// Opens a session on a connection.
    pub(crate) async fn over(mut stream: S, wanted: Duration) -> io::Result<Self> {
        let mut hello = Vec::new();
        hello.extend(0_i32.to_be_bytes());
        hello.extend(0_i64.to_be_bytes());
        hello.extend(i32::try_from(wanted.as_millis()).unwrap().to_be_bytes());
        hello.extend(0_i64.to_be_bytes());
        text(&mut hello, &"\0".repeat(16));
        hello.push(0);
        send(&mut stream, &hello).await?;
        let answer = receive(&mut stream).await?;
        let granted = u64::try_from(int(&answer, 4)).unwrap();
        Ok(Self { stream, timeout: Duration::from_millis(granted), calls: 0 })
    }

    pub(crate) async fn create(&mut self, path: &str, data: &str, kind: Kind) -> io::Result<Result<(), Refused>> {
        let (call, flags) = match kind {
            Kind::Persistent => (CREATE, 0_i32),
            Kind::Ephemeral => (CREATE, 1),
            Kind::Container => (CREATE_CONTAINER, 4),
            Kind::Ttl(_) => (CREATE_TTL, 5),
        };
        let mut request = Vec::new();
        text(&mut request, path);
        text(&mut request, data);
        // One entry: all rights to everybody.
        request.extend([1_i32, 31].map(i32::to_be_bytes).concat());
        text(&mut request, "world");
        text(&mut request, "anyone");
        request.extend(flags.to_be_bytes());
        if let Kind::Ttl(life) = kind {
            request.extend(i64::try_from(life.as_millis()).unwrap().to_be_bytes());
        }
        Ok(self.call(call, &request).await?.map(drop))
    }

    pub(crate) async fn delete(&mut self, path: &str) -> io::Result<Result<(), Refused>> {
        let mut request = Vec::new();
        text(&mut request, path);
        request.extend((-1_i32).to_be_bytes());
        Ok(self.call(DELETE, &request).await?.map(drop))
    }

    /// What is in a node.
    pub(crate) async fn get(&mut self, path: &str) -> io::Result<Result<String, Refused>> {
        let mut request = Vec::new();
        text(&mut request, path);
        request.push(0);
        Ok(self.call(GET_DATA, &request).await?.map(|answer| {
            let length = usize::try_from(int(&answer, 0)).unwrap();
            String::from_utf8(answer[4..4 + length].to_vec()).unwrap()
        }))
    }

    async fn call(&mut self, call: i32, body: &[u8]) -> io::Result<Result<Vec<u8>, Refused>> {
        self.calls += 1;
        let head = [self.calls, call].map(i32::to_be_bytes).concat();
        send(&mut self.stream, &[&head, body].concat()).await?;
        let answer = receive(&mut self.stream).await?;
        assert_eq!(int(&answer, 0), self.calls, "an answer to something else");
        match int(&answer, 12) {
            0 => Ok(Ok(answer[16..].to_vec())),
            code => Ok(Err(Refused(code))),
        }
    }
}

fn text(request: &mut Vec<u8>, text: &str) {
    request.extend(i32::try_from(text.len()).unwrap().to_be_bytes());
    request.extend(text.as_bytes());
}

fn int(answer: &[u8], at: usize) -> i32 {
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
    timeout(ANSWER_BOUND, reading).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
