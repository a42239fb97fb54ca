//! The requests about one node.

use crate::acl::Acl;
use crate::address;
use crate::client::Client;
use crate::create::{CreateMode, CreateOptions, CreateSequence};
use crate::encode::{build_request, path_request, write_create, write_delete, write_set_data};
use crate::error::{Error, Result};
use crate::session::WatchKind;
use crate::types::Stat;
use crate::watch::OneshotWatcher;
use crate::wire::op;

/// The node in which servers keep the ensemble's configuration.
const CONFIG: &str = "/zookeeper/config";

/// The server replied to a request with a watch, but no watch was set.
const UNWATCHED: Error = Error::Malformed("a requested watch was not set");

impl Client {
    /// Creates a node. Returns its stat and the number that the server appended to its name; -1 if
    /// it appended none.
    pub fn create(
        &self,
        path: &str,
        data: &[u8],
        options: &CreateOptions<'_>,
    ) -> impl Future<Output = Result<(Stat, CreateSequence)>> + Send + use<> {
        let op = if options.mode == CreateMode::Container { op::CREATE_CONTAINER } else { op::CREATE_WITH_STAT };
        let answer = self.send(build_request(op, |writer| write_create(writer, path, data, options)), None);
        let (prefix, sequential) = (path.len(), options.mode.is_sequential());
        async move {
            answer.await.read(|reader| {
                let path = reader.text()?;
                let sequence = if sequential {
                    let digits = path.get(prefix..).and_then(CreateSequence::read);
                    digits.ok_or(Error::Malformed("a sequential node has no number"))?
                } else {
                    CreateSequence(-1)
                };
                Ok((Stat::read(reader)?, sequence))
            })
        }
    }

    /// Creates a node without data, and its missing parents, all with these options.
    ///
    /// # Errors
    /// As [`create`](Self::create); an existing node is not an error.
    pub async fn mkdir(&self, path: &str, options: &CreateOptions<'_>) -> Result<()> {
        // From the node upwards, since a client may lack the right to create a node that exists
        // already.
        let mut missing = vec![path];
        while let Some(path) = missing.last() {
            match self.create(path, b"", options).await {
                Ok(_) | Err(Error::NodeExists) => drop(missing.pop()),
                Err(Error::NoNode) => missing.push(address::parent(path).ok_or(Error::NoNode)?),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Deletes a node, if it has this version; `None` stands for any.
    pub fn delete(&self, path: &str, version: Option<i32>) -> impl Future<Output = Result<()>> + Send + use<> {
        let answer = self.send(build_request(op::DELETE, |writer| write_delete(writer, path, version)), None);
        async move { answer.await.read(|_| Ok(())) }
    }

    /// Sets a node's data, if it has this version; `None` stands for any.
    pub fn set_data(
        &self,
        path: &str,
        data: &[u8],
        version: Option<i32>,
    ) -> impl Future<Output = Result<Stat>> + Send + use<> {
        let answer = self.send(build_request(op::SET_DATA, |writer| write_set_data(writer, path, data, version)), None);
        async move { answer.await.read(Stat::read) }
    }

    /// Reads a node's data.
    pub fn get_data(&self, path: &str) -> impl Future<Output = Result<(Vec<u8>, Stat)>> + Send + use<> {
        let answer = self.send(path_request(op::GET_DATA, path, Some(false)), None);
        async move { answer.await.read(|reader| Ok((reader.buffer()?.to_vec(), Stat::read(reader)?))) }
    }

    /// Reads a node's data, and watches for the node's change or deletion. If the node does not
    /// exist, no watch is left.
    pub fn get_and_watch_data(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Vec<u8>, Stat, OneshotWatcher)>> + Send + use<> {
        let watch = Some((WatchKind::Data, path.to_owned()));
        let answer = self.send(path_request(op::GET_DATA, path, Some(true)), watch);
        async move {
            let mut answer = answer.await;
            let watcher = answer.watcher.take();
            let (data, stat) = answer.read(|reader| Ok((reader.buffer()?.to_vec(), Stat::read(reader)?)))?;
            Ok((data, stat, watcher.ok_or(UNWATCHED)?))
        }
    }

    /// The stat of a node; `None` if it does not exist.
    pub fn check_stat(&self, path: &str) -> impl Future<Output = Result<Option<Stat>>> + Send + use<> {
        let answer = self.send(path_request(op::EXISTS, path, Some(false)), None);
        async move {
            match answer.await.read(Stat::read) {
                Err(Error::NoNode) => Ok(None),
                other => other.map(Some),
            }
        }
    }

    /// The stat of a node, `None` if it does not exist; watches for its creation, change or
    /// deletion.
    pub fn check_and_watch_stat(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Option<Stat>, OneshotWatcher)>> + Send + use<> {
        let watch = Some((WatchKind::Exists, path.to_owned()));
        let answer = self.send(path_request(op::EXISTS, path, Some(true)), watch);
        async move {
            let mut answer = answer.await;
            let watcher = answer.watcher.take();
            let stat = match answer.read(Stat::read) {
                Err(Error::NoNode) => None,
                other => Some(other?),
            };
            Ok((stat, watcher.ok_or(UNWATCHED)?))
        }
    }

    /// The names of a node's children, in no order.
    pub fn list_children(&self, path: &str) -> impl Future<Output = Result<Vec<String>>> + Send + use<> {
        let answer = self.send(path_request(op::GET_CHILDREN, path, Some(false)), None);
        async move { answer.await.read(|reader| reader.texts()) }
    }

    /// The names of a node's children, in no order; watches for the creation and deletion of
    /// children, and for the node's own deletion.
    pub fn list_and_watch_children(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Vec<String>, OneshotWatcher)>> + Send + use<> {
        let watch = Some((WatchKind::Children, path.to_owned()));
        let answer = self.send(path_request(op::GET_CHILDREN, path, Some(true)), watch);
        async move {
            let mut answer = answer.await;
            let watcher = answer.watcher.take();
            Ok((answer.read(|reader| reader.texts())?, watcher.ok_or(UNWATCHED)?))
        }
    }

    /// The names of a node's children, and the node's stat.
    pub fn get_children(&self, path: &str) -> impl Future<Output = Result<(Vec<String>, Stat)>> + Send + use<> {
        let answer = self.send(path_request(op::GET_CHILDREN_AND_STAT, path, Some(false)), None);
        async move { answer.await.read(|reader| Ok((reader.texts()?, Stat::read(reader)?))) }
    }

    /// The access rules of a node, and its stat.
    pub fn get_acl(&self, path: &str) -> impl Future<Output = Result<(Vec<Acl>, Stat)>> + Send + use<> {
        let answer = self.send(path_request(op::GET_ACL, path, None), None);
        async move { answer.await.read(|reader| Ok((reader.list(Acl::read)?, Stat::read(reader)?))) }
    }

    /// Makes the server catch up with the leader before it serves later requests.
    pub fn sync(&self, path: &str) -> impl Future<Output = Result<()>> + Send + use<> {
        let answer = self.send(path_request(op::SYNC, path, None), None);
        async move { answer.await.read(|_| Ok(())) }
    }

    /// The ensemble's own configuration (its members and their ports) as text, and its stat.
    pub fn get_config(&self) -> impl Future<Output = Result<(Vec<u8>, Stat)>> + Send + use<> {
        self.get_data(CONFIG)
    }
}
