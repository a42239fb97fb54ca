//! Transactions: several writes, all of which are executed or none.

use std::fmt;

use crate::address;
use crate::client::Client;
use crate::create::{CreateMode, CreateOptions};
use crate::encode::{write_create, write_delete, write_set_data};
use crate::error::{Error, Result};
use crate::jute::{Reader, Writer};
use crate::types::Stat;
use crate::wire::{self, op};

/// Collects the writes of a transaction, and sends it.
///
/// ```no_run
/// use leasehold_zookeeper::{MultiWriteError, MultiWriter};
/// # use leasehold_zookeeper::Client;
///
/// # async fn example(client: &Client) -> Result<(), MultiWriteError> {
/// let mut writes: MultiWriter<'_> = client.new_multi_writer();
/// writes.add_check_version("/config", 7)?;
/// writes.add_set_data("/config/limit", b"10", None)?;
/// writes.add_delete("/config/draft", None)?;
/// writes.commit().await?;                        // all of them, or none
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MultiWriter<'a> {
    client: &'a Client,
    /// The encoded writes, each with its header.
    parts: Writer,
    /// The number of writes.
    count: usize,
}

/// The result of one part of a transaction that was executed.
///
/// ```no_run
/// use leasehold_zookeeper::MultiWriteResult;
/// # use leasehold_zookeeper::{Client, Error};
///
/// # async fn example(client: &Client) -> Result<(), Error> {
/// # let mut writes = client.new_multi_writer();
/// for result in writes.commit().await? {
///     if let MultiWriteResult::Create { path, .. } = result {
///         println!("created {path}");
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MultiWriteResult {
    /// The node has the required version.
    Check,
    /// The node was deleted.
    Delete,
    /// The node was created.
    #[non_exhaustive]
    Create {
        /// The path of the new node, with its number if the server numbers it.
        path: String,
    },
    /// The node's data was set.
    SetData {
        /// The node's stat now; its `num_children` includes nodes created by earlier parts.
        stat: Stat,
    },
}

/// Why a transaction failed; see the variants for its effect.
///
/// ```no_run
/// use leasehold_zookeeper::MultiWriteError;
/// # use leasehold_zookeeper::{Client, Error};
///
/// # async fn example(client: &Client) -> Result<(), Error> {
/// # let mut writes = client.new_multi_writer();
/// match writes.commit().await {
///     Err(MultiWriteError::OperationFailed { index, source }) => println!("part {index}: {source}"),
///     other => println!("{} parts", other?.len()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MultiWriteError {
    /// The transaction as a whole failed; if the connection was lost, it may have been executed.
    RequestFailed {
        /// Why the transaction failed.
        source: Error,
    },
    /// One part failed, and so the transaction had no effect.
    OperationFailed {
        /// The part that failed, counted from 0.
        index: usize,
        /// Why that part failed.
        source: Error,
    },
}

impl fmt::Display for MultiWriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RequestFailed { source } => write!(f, "the transaction failed: {source}"),
            Self::OperationFailed { index, source } => write!(f, "part {index} of the transaction failed: {source}"),
        }
    }
}

impl std::error::Error for MultiWriteError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // The text above contains the cause, so the chain goes on behind it.
            Self::RequestFailed { source } | Self::OperationFailed { source, .. } => source.source(),
        }
    }
}

impl From<MultiWriteError> for Error {
    fn from(error: MultiWriteError) -> Self {
        match error {
            MultiWriteError::RequestFailed { source } | MultiWriteError::OperationFailed { source, .. } => source,
        }
    }
}

impl From<Error> for MultiWriteError {
    fn from(source: Error) -> Self {
        Self::RequestFailed { source }
    }
}

impl<'a> MultiWriter<'a> {
    pub(crate) fn new(client: &'a Client) -> Self {
        Self { client, parts: Writer::new(), count: 0 }
    }

    fn add(&mut self, op: i32, write: impl FnOnce(&mut Writer) -> Result<()>) -> Result<()> {
        let mut part = Writer::new();
        header(&mut part, op, false);
        write(&mut part)?;
        self.parts.append(&part);
        self.count += 1;
        Ok(())
    }

    /// Requires that the node has this version; -1 stands for any.
    ///
    /// # Errors
    /// [`Error::BadArguments`] if no server accepts the path.
    pub fn add_check_version(&mut self, path: &str, version: i32) -> Result<()> {
        address::check_path(path)?;
        self.add(op::CHECK, |part| {
            part.text(path);
            part.int(version);
            Ok(())
        })
    }

    /// Creates a node; see [`Client::create`].
    ///
    /// # Errors
    /// [`Error::BadArguments`] if no server accepts the path.
    pub fn add_create(&mut self, path: &str, data: &[u8], options: &CreateOptions<'_>) -> Result<()> {
        let op = if options.mode == CreateMode::Container { op::CREATE_CONTAINER } else { op::CREATE };
        self.add(op, |part| write_create(part, path, data, options))
    }

    /// Sets a node's data, if it has this version; `None` stands for any.
    ///
    /// # Errors
    /// [`Error::BadArguments`] if no server accepts the path.
    pub fn add_set_data(&mut self, path: &str, data: &[u8], version: Option<i32>) -> Result<()> {
        self.add(op::SET_DATA, |part| write_set_data(part, path, data, version))
    }

    /// Deletes a node, if it has this version; `None` stands for any.
    ///
    /// # Errors
    /// [`Error::BadArguments`] if no server accepts the path.
    pub fn add_delete(&mut self, path: &str, version: Option<i32>) -> Result<()> {
        self.add(op::DELETE, |part| write_delete(part, path, version))
    }

    /// Sends the transaction, and starts an empty one. The reply has one result for each part, in
    /// their order.
    pub fn commit(&mut self) -> impl Future<Output = Result<Vec<MultiWriteResult>, MultiWriteError>> + Send + use<> {
        let (parts, count) = (std::mem::replace(&mut self.parts, Writer::new()), std::mem::take(&mut self.count));
        let mut request = wire::request(op::MULTI);
        request.append(&parts);
        header(&mut request, op::ERROR, true);
        let answer = (count > 0).then(|| self.client.send(Ok(request), None));
        async move {
            let Some(answer) = answer else { return Ok(Vec::new()) };
            answer.await.read(|reader| Ok(results(reader, count)))?
        }
    }
}

/// Writes the header before each part of a transaction; `done`: it is the one after the last part.
fn header(writer: &mut Writer, op: i32, done: bool) {
    writer.int(op);
    writer.flag(done);
    writer.int(-1);
}

/// Parses the reply to a transaction of `count` parts.
fn results(reader: &mut Reader<'_>, count: usize) -> Result<Vec<MultiWriteResult>, MultiWriteError> {
    let (mut done, mut codes) = (Vec::new(), Vec::new());
    loop {
        let (op, end, _) = (reader.int()?, reader.flag()?, reader.int()?);
        match op {
            _ if end => break,
            op::ERROR => codes.push(reader.int()?),
            op::CHECK => done.push(MultiWriteResult::Check),
            op::DELETE => done.push(MultiWriteResult::Delete),
            op::SET_DATA => done.push(MultiWriteResult::SetData { stat: Stat::read(reader)? }),
            op::CREATE => done.push(MultiWriteResult::Create { path: reader.text()?.to_owned() }),
            op::CREATE_WITH_STAT | op::CREATE_CONTAINER | op::CREATE_TTL => {
                done.push(MultiWriteResult::Create { path: reader.text()?.to_owned() });
                Stat::read(reader)?;
            }
            _ => return Err(Error::Malformed("an unknown part of a transaction").into()),
        }
    }
    // The parts before the failed one have code 0; those after it have the code of
    // `Error::RuntimeInconsistent`.
    if let Some(index) = codes.iter().position(|code| *code != 0) {
        return Err(MultiWriteError::OperationFailed { index, source: Error::from_code(codes[index]) });
    }
    if done.len() != count || !codes.is_empty() {
        return Err(Error::Malformed("a transaction has a different number of results and parts").into());
    }
    Ok(done)
}
