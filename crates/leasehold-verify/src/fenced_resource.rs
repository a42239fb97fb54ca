//! The resource that the locks protect: registers in the conductor's process, served over a Unix
//! socket.
//!
//! A worker that is stopped in the middle of a request does not block the others, and its request
//! may arrive long after its lease has ended, as with any real store. Requests are executed one
//! after the other. Each request and each reply is one line of JSON.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use leasehold::{Owner, Token};
use leasehold_internals::logic::fence::{FenceState, admits};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// A request of a worker to read or write a register.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The register's name.
    pub register: String,
    /// The number of the call that acquired the lock; it identifies the owner of the token.
    pub hold: u64,
    /// The presented fencing token; `None`: none, so the register checks none.
    pub token: Option<u64>,
    /// The value to write; `None`: the request only reads.
    pub value: Option<u64>,
}

/// A register's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The request was executed, and this is the register's value now; `None`: nothing was written
    /// yet.
    Done(Option<u64>),
    /// The request was refused, because the register has seen this token, which is higher or has
    /// another owner.
    Refused(u64),
}

/// All registers, by name.
#[derive(Debug, Default)]
pub struct Registers(HashMap<String, Register>);

/// A register: its value, and the highest token that it has seen with the owner that presented it.
#[derive(Debug, Default)]
struct Register {
    fence: FenceState,
    value: Option<u64>,
}

impl Registers {
    /// Executes a request; a register that does not exist yet is created without a value.
    pub fn execute(&mut self, request: &Request) -> Reply {
        let register = self.0.entry(request.register.clone()).or_default();
        if let Some(token) = request.token {
            let (token, owner) = (Token(token), Some(Owner::named(&request.hold.to_string())));
            if !admits(register.fence, token, owner) {
                return Reply::Refused(register.fence.token.0);
            }
            register.fence = FenceState { token, owner };
        }
        if request.value.is_some() {
            register.value = request.value;
        }
        Reply::Done(register.value)
    }
}

/// Serves the registers at a Unix socket until it is dropped, on a thread of its own so that other
/// work of the process delays no worker.
#[derive(Debug)]
pub struct RegisterServer {
    thread: Option<(oneshot::Sender<()>, thread::JoinHandle<()>)>,
}

impl RegisterServer {
    /// Starts to serve new registers at the socket `path`.
    ///
    /// # Errors
    /// If the socket or the thread cannot be created.
    pub fn start(path: &Path) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _context = runtime.enter();
            UnixListener::bind(path)?
        };
        let (stop, stopped) = oneshot::channel();
        let serving = thread::Builder::new().name("resource".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = serve_connections(listener) => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { thread: Some((stop, serving)) })
    }
}

impl Drop for RegisterServer {
    fn drop(&mut self) {
        if let Some((stop, serving)) = self.thread.take() {
            drop(stop);
            // The connections are closed even if the thread panicked.
            let _ = serving.join();
        }
    }
}

/// Accepts connections and serves each; ends only if accepting fails.
async fn serve_connections(listener: UnixListener) {
    let registers = Arc::new(Mutex::new(Registers::default()));
    let mut clients = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let registers = Arc::clone(&registers);
        clients.spawn(async move { serve_connection(stream, &registers).await });
        while clients.try_join_next().is_some() {}
    }
}

/// Serves the requests of one connection until it closes.
async fn serve_connection(stream: UnixStream, registers: &Mutex<Registers>) -> io::Result<()> {
    let (reading, mut writing) = stream.into_split();
    let mut lines = BufReader::new(reading).lines();
    while let Some(line) = lines.next_line().await? {
        let request: Request = serde_json::from_str(&line)?;
        let answer = registers.lock().unwrap_or_else(PoisonError::into_inner).execute(&request);
        let mut text = serde_json::to_string(&answer)?;
        text.push('\n');
        writing.write_all(text.as_bytes()).await?;
    }
    Ok(())
}

/// A worker's connection to the resource. One request at a time.
#[derive(Debug)]
pub struct RegisterClient {
    replies: tokio::io::Lines<BufReader<tokio::net::unix::OwnedReadHalf>>,
    writer: tokio::net::unix::OwnedWriteHalf,
}

impl RegisterClient {
    /// Connects to the resource at the socket `path`.
    ///
    /// # Errors
    /// If no resource is served there.
    pub async fn connect(path: &Path) -> io::Result<Self> {
        let (reading, writing) = UnixStream::connect(path).await?.into_split();
        Ok(Self { replies: BufReader::new(reading).lines(), writer: writing })
    }

    /// Sends a request and waits for its reply.
    ///
    /// # Errors
    /// If the connection breaks; whether the request was executed is then unknown.
    pub async fn request(&mut self, request: &Request) -> io::Result<Reply> {
        let mut text = serde_json::to_string(request)?;
        text.push('\n');
        self.writer.write_all(text.as_bytes()).await?;
        match self.replies.next_line().await? {
            Some(line) => Ok(serde_json::from_str(&line)?),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(registers: &mut Registers, hold: u64, token: Option<u64>, value: Option<u64>) -> Reply {
        registers.execute(&Request { register: "r".to_owned(), hold, token, value })
    }

    #[test]
    fn an_old_token_is_refused_after_a_newer_one_was_only_read() {
        let mut registers = Registers::default();
        assert_eq!(request(&mut registers, 1, Some(1), Some(10)), Reply::Done(Some(10)));
        assert_eq!(request(&mut registers, 2, Some(2), None), Reply::Done(Some(10)));
        assert_eq!(request(&mut registers, 1, Some(1), Some(11)), Reply::Refused(2));
        assert_eq!(request(&mut registers, 3, Some(2), Some(12)), Reply::Refused(2), "the same token of another hold");
        assert_eq!(request(&mut registers, 2, Some(2), Some(13)), Reply::Done(Some(13)));
    }

    #[test]
    fn without_tokens_the_last_write_wins() {
        let mut registers = Registers::default();
        assert_eq!(request(&mut registers, 2, None, Some(2)), Reply::Done(Some(2)));
        assert_eq!(request(&mut registers, 1, None, Some(1)), Reply::Done(Some(1)));
    }
}
