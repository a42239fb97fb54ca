//! The resource that the locks protect: registers in the conducting process, served over a socket.
//!
//! A worker may be stopped in the middle of a request. The resource serves the others meanwhile,
//! and the request may arrive long after the worker's lease, as with any real store. Requests run
//! one after the other. Each request and each reply is one line of JSON.

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

/// A request to a register.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The register.
    pub register: String,
    /// The hold under which the worker accesses it.
    pub hold: u64,
    /// The fencing token; `None`: no check.
    pub token: Option<u64>,
    /// The value to write; `None`: only read.
    pub value: Option<u64>,
}

/// A register's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Done, with the current value.
    Done(Option<u64>),
    /// Refused: the register has seen this higher token.
    Refused(u64),
}

/// The registers.
#[derive(Debug, Default)]
pub struct Registers(HashMap<String, Register>);

#[derive(Debug, Default)]
struct Register {
    fence: FenceState,
    value: Option<u64>,
}

impl Registers {
    /// Executes a request.
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

/// Serves the registers at a socket until dropped. It has its own thread, so that no other work in
/// this process delays a worker.
#[derive(Debug)]
pub struct RegisterServer {
    thread: Option<(oneshot::Sender<()>, thread::JoinHandle<()>)>,
}

impl RegisterServer {
    /// Serves registers at `path`.
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
            // Even if the thread panicked, its connections are closed.
            let _ = serving.join();
        }
    }
}

async fn serve_connections(listener: UnixListener) {
    let registers = Arc::new(Mutex::new(Registers::default()));
    let mut clients = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let registers = Arc::clone(&registers);
        clients.spawn(async move { serve_connection(stream, &registers).await });
        while clients.try_join_next().is_some() {}
    }
}

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
    /// Connects.
    ///
    /// # Errors
    /// If the resource is not served there.
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
