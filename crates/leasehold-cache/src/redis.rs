//! The store in Redis: each operation is one script, on the same kind of connection as the locks.

use std::sync::Arc;
use std::time::Duration;

use ::redis::{Cmd, PushInfo, PushKind, Value};
use tokio::sync::Notify;

use super::protocol::{self, Message, PREFIX, Scripts};
use super::wakeups::Wakeups;
use crate::logic::{Operation, OperationReply};
use leasehold::engine::EngineUrl;
use leasehold::{Error, ErrorKind, Result};
use leasehold_internals::redis::{
    Config, LinkFactory, LinkListener, LiveConnection, Nodes, Protocol, error, keys, values,
};

/// The store of a cache in one deployment of Redis: a server, a Sentinel set or a cluster.
#[derive(Debug)]
pub(crate) struct RedisStore {
    nodes: Nodes,
    scripts: Scripts,
    /// What the names of all keys begin with.
    prefix: String,
    /// The end of the name of this client's inbox channel.
    inbox: String,
    /// What the names of all inbox channels begin with.
    channels: String,
    /// The URL of the deployment without passwords, for errors.
    pub(crate) display_url: String,
    pub(crate) wakeups: Arc<Wakeups>,
}

impl RedisStore {
    /// Connects; with `lazy`, a single server need not respond yet.
    pub(crate) async fn open(url: &EngineUrl, lazy: bool) -> Result<Self> {
        let mut config = Config::read(url)?;
        if config.strict.is_some() || config.replicas > 0 || config.protocol != Protocol::Full {
            let message = "strict, replicas and protocol are for locks: a cache has none of them";
            return Err(Error::new(ErrorKind::InvalidUrl, message));
        }
        if url.option("prefix").is_none() {
            PREFIX.clone_into(&mut config.prefix);
        }
        let (wakeups, map_stale) = (Arc::<Wakeups>::default(), Arc::<Notify>::default());
        let inbox = format!("{:016x}", leasehold_internals::random::random_bits() as u64);
        let channel = keys::inbox_channel(&config.prefix, &inbox);
        let (prefix, channels) = (config.prefix.clone(), keys::inbox_channel(&config.prefix, ""));
        let display_url = config.redacted_url.clone();
        let listener = RedisSubscriber {
            channel: channel.clone(),
            wakeups: Arc::clone(&wakeups),
            needs_refresh: Arc::clone(&map_stale),
        };
        let scripts = Scripts::new();
        let factory = LinkFactory {
            config: Arc::new(config),
            scripts: scripts.all(),
            inbox: channel,
            needs_run_id: false,
            listener: Arc::new(listener),
            map_stale,
        };
        let nodes = if lazy { Nodes::start(factory).await? } else { Nodes::open(factory).await? };
        Ok(Self { nodes, scripts, prefix, inbox, channels, display_url, wakeups })
    }

    pub(crate) fn key(&self, key: &str) -> String {
        protocol::entry_key(&self.prefix, key)
    }

    pub(crate) async fn apply(&self, key: &str, operation: &Operation) -> Result<OperationReply> {
        let key = self.key(key);
        let fill = |command: &mut Cmd, _: &LiveConnection| {
            command.arg(&key).arg(&self.inbox).arg(&self.channels);
            protocol::push_arguments(command, operation);
        };
        let slot = self.nodes.slot(&key);
        let (value, live) = self.nodes.run_script(slot, self.scripts.for_operation(operation), 1, &fill).await?;
        protocol::parse_reply(operation, value).ok_or_else(|| error::unexpected_answer(&live.address, &Value::Nil))
    }

    /// Runs one command on the value of a textbook strategy: `GET`, `SET` or `DEL`, and its
    /// arguments.
    async fn plain(&self, key: &str, words: &[&[u8]]) -> Result<Value> {
        let key = protocol::plain_key(&self.prefix, key);
        let fill = |command: &mut Cmd, _: &LiveConnection| {
            command.arg(&key).arg(words);
        };
        Ok(self.nodes.run_script(self.nodes.slot(&key), &self.scripts.textbook, 1, &fill).await?.0)
    }

    pub(crate) async fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        match self.plain(key, &[b"GET"]).await? {
            Value::BulkString(data) => Ok(Some(data)),
            _ => Ok(None),
        }
    }

    pub(crate) async fn put(&self, key: &str, data: &[u8], ttl: Duration) -> Result<()> {
        let ms = ttl.as_millis().max(1).to_string();
        self.plain(key, &[b"SET", data, ms.as_bytes()]).await.map(drop)
    }

    pub(crate) async fn delete(&self, key: &str) -> Result<()> {
        self.plain(key, &[b"DEL"]).await.map(drop)
    }
}

/// Receives notifications for all waiting readers of this process.
#[derive(Debug)]
struct RedisSubscriber {
    channel: String,
    wakeups: Arc<Wakeups>,
    /// Notified when the map of the cluster or of the Sentinel set must be read again.
    needs_refresh: Arc<Notify>,
}

impl LinkListener for RedisSubscriber {
    fn on_message(&self, info: PushInfo) {
        if let (PushKind::Message, [channel, text]) = (info.kind, &info.data[..])
            && values::bytes(channel) == Some(self.channel.as_bytes())
        {
            match values::bytes(text).and_then(Message::parse) {
                Some(Message { lease, key, failure }) => self.wakeups.notify(&key, lease, failure.as_deref()),
                None => tracing::warn!("received an unknown message in this client's inbox"),
            }
        }
    }

    fn on_connected(&self, _: &LiveConnection, again: bool) {
        if again {
            self.wakeups.notify_all();
        }
    }

    fn on_disconnected(&self) {
        self.needs_refresh.notify_one();
    }

    fn on_slots_moved(&self) {
        self.wakeups.notify_all();
    }
}
