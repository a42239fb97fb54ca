//! The store in Redis: each operation is one script, on the same kind of connection as the locks.

use std::sync::Arc;
use std::time::Duration;

use ::redis::{Cmd, PushInfo, PushKind, Value};
use tokio::sync::Notify;

use super::bells::Bells;
use super::wire::{self, Message, PREFIX, Scripts};
use crate::engine::EngineUrl;
use crate::engine::redis::config::{Config, Protocol};
use crate::engine::redis::link::{Live, Owner};
use crate::engine::redis::nodes::{Maker, Nodes};
use crate::engine::redis::{error, wire as engine};
use crate::error::{Error, ErrorKind, Result};
use crate::logic::cache::{Said, Step};

/// The keys in one deployment of Redis.
#[derive(Debug)]
pub(crate) struct Redis {
    nodes: Nodes,
    scripts: Scripts,
    prefix: String,
    inbox: String,
    channels: String,
    /// The URL, without secrets.
    pub(crate) shown: String,
    pub(crate) bells: Arc<Bells>,
}

impl Redis {
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
        let (bells, stale) = (Arc::<Bells>::default(), Arc::<Notify>::default());
        let inbox = format!("{:016x}", crate::random::bits() as u64);
        let channel = engine::channel(&config.prefix, &inbox);
        let (prefix, channels) = (config.prefix.clone(), engine::channel(&config.prefix, ""));
        let shown = config.shown.clone();
        let ears = Ears { channel: channel.clone(), bells: Arc::clone(&bells), stale: Arc::clone(&stale) };
        let scripts = Scripts::new();
        let maker = Maker {
            config: Arc::new(config),
            scripts: scripts.each(),
            inbox: channel,
            wants_run: false,
            owner: Arc::new(ears),
            stale,
        };
        let nodes = if lazy { Nodes::begin(maker).await? } else { Nodes::open(maker).await? };
        Ok(Self { nodes, scripts, prefix, inbox, channels, shown, bells })
    }

    pub(crate) fn key(&self, key: &str) -> String {
        wire::entry_key(&self.prefix, key)
    }

    pub(crate) async fn step(&self, key: &str, step: &Step) -> Result<Said> {
        let key = self.key(key);
        let fill = |command: &mut Cmd, _: &Live| {
            command.arg(&key).arg(&self.inbox).arg(&self.channels);
            wire::arguments(command, step);
        };
        let slot = self.nodes.slot(&key);
        let (value, live) = self.nodes.script(slot, self.scripts.of(step), 1, &fill).await?;
        wire::answer(step, value).ok_or_else(|| error::odd(&live.address, &Value::Nil))
    }

    async fn plain(&self, key: &str, words: &[&[u8]]) -> Result<Value> {
        let key = wire::plain_key(&self.prefix, key);
        let fill = |command: &mut Cmd, _: &Live| {
            command.arg(&key).arg(words);
        };
        Ok(self.nodes.script(self.nodes.slot(&key), &self.scripts.plain, 1, &fill).await?.0)
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
struct Ears {
    channel: String,
    bells: Arc<Bells>,
    stale: Arc<Notify>,
}

impl Owner for Ears {
    fn message(&self, info: PushInfo) {
        if let (PushKind::Message, [channel, text]) = (info.kind, &info.data[..])
            && engine::bytes(channel) == Some(self.channel.as_bytes())
        {
            match engine::bytes(text).and_then(Message::read) {
                Some(Message { lease, key, failure }) => self.bells.ring(&key, lease, failure.as_deref()),
                None => tracing::warn!("a message that is not understood came to our inbox"),
            }
        }
    }

    fn up(&self, _: &Live, again: bool) {
        if again {
            self.bells.ring_all();
        }
    }

    fn down(&self) {
        self.stale.notify_one();
    }

    fn moved(&self) {
        self.bells.ring_all();
    }
}
