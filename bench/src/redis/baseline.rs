//! The baseline: bare commands, sent by the same client library with the engine's settings.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo,
    RedisResult, cmd,
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::BoxError;
use crate::baseline::monotonic_now;

/// A script that deletes the key if it still has our value.
const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
/// A script that extends the TTL of those keys that still have our value.
const COMPARE_AND_EXTEND: &str = "for i, key in ipairs(KEYS) do if redis.call('GET', key) == ARGV[1] then \
                                   redis.call('PEXPIRE', key, ARGV[2]) end end return 1";
/// How many leases one renewal may name.
const RENEWAL_CHUNK: usize = 128;

/// Opens a connection like the engine's; the receiver gets the server's push messages.
async fn connect(url: &str) -> RedisResult<(MultiplexedConnection, UnboundedReceiver<PushInfo>)> {
    let settings = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
    let tcp = TcpSettings::default().set_nodelay(true);
    let info = url.into_connection_info()?.set_redis_settings(settings).set_tcp_settings(tcp);
    let (sender, receiver) = unbounded_channel();
    let options = AsyncConnectionConfig::new()
        .set_response_timeout(None)
        .set_pipeline_buffer_size(1024)
        .set_push_sender(move |message: PushInfo| sender.send(message));
    Ok((Client::open(info)?.get_multiplexed_async_connection_with_config(&options).await?, receiver))
}

/// The two commands of the simplest lock, and the simplest round trips.
#[derive(Clone)]
pub(crate) struct Baseline {
    connection: MultiplexedConnection,
    delete_script: String,
    extend_script: String,
    noop_script: String,
}

impl Baseline {
    pub(crate) async fn open(url: &str) -> RedisResult<Self> {
        let (mut connection, _) = connect(url).await?;
        let load = async |connection: &mut MultiplexedConnection, script: &str| -> RedisResult<String> {
            cmd("SCRIPT").arg("LOAD").arg(script).query_async(connection).await
        };
        let delete = load(&mut connection, COMPARE_AND_DELETE).await?;
        let prolong = load(&mut connection, COMPARE_AND_EXTEND).await?;
        let noop = load(&mut connection, "return 1").await?;
        Ok(Self { connection, delete_script: delete, extend_script: prolong, noop_script: noop })
    }

    /// Acquires and releases the textbook lock with this key.
    pub(crate) async fn run_cycle(&mut self, key: &str) -> Result<(), BoxError> {
        let (taken, deleted) = (self.acquire(key).await?, self.release(key).await?);
        if taken && deleted { Ok(()) } else { Err("the baseline's lock was held".into()) }
    }

    /// Sets the key if it does not exist; returns whether it did not: the lock was free.
    pub(crate) async fn acquire(&mut self, key: &str) -> RedisResult<bool> {
        let mut set = cmd("SET");
        set.arg(key).arg("me").arg("NX").arg("PX").arg(30_000);
        let taken: Option<String> = set.query_async(&mut self.connection).await?;
        Ok(taken.is_some())
    }

    /// Deletes the key if it has our value; returns whether it had: the lock was ours.
    pub(crate) async fn release(&mut self, key: &str) -> RedisResult<bool> {
        let mut delete = cmd("EVALSHA");
        delete.arg(&self.delete_script).arg(1).arg(key).arg("me");
        let deleted: u32 = delete.query_async(&mut self.connection).await?;
        Ok(deleted == 1)
    }

    /// The shortest round trip.
    pub(crate) async fn ping(&mut self) -> RedisResult<()> {
        cmd("PING").query_async(&mut self.connection).await
    }

    /// The shortest round trip through a script.
    pub(crate) async fn call_noop_script(&mut self) -> RedisResult<()> {
        let _: u32 = cmd("EVALSHA").arg(&self.noop_script).arg(0).query_async(&mut self.connection).await?;
        Ok(())
    }

    /// Creates `count` plain keys and renews each once, in chunks.
    pub(crate) async fn create_keys(&mut self, count: usize) -> RedisResult<()> {
        for first in (0..count).step_by(RENEWAL_CHUNK) {
            let mut pipe = redis::pipe();
            for index in first..count.min(first + RENEWAL_CHUNK) {
                pipe.cmd("SET").arg(format!("floor-{index}")).arg("me").arg("PX").arg(30_000).ignore();
            }
            pipe.exec_async(&mut self.connection).await?;
        }
        Ok(())
    }

    /// Renews each of `count` plain keys once, in chunks.
    pub(crate) async fn renew_keys(&mut self, count: usize) -> RedisResult<()> {
        for first in (0..count).step_by(RENEWAL_CHUNK) {
            let keys: Vec<String> =
                (first..count.min(first + RENEWAL_CHUNK)).map(|index| format!("floor-{index}")).collect();
            let mut renew = cmd("EVALSHA");
            renew.arg(&self.extend_script).arg(keys.len()).arg(keys).arg("me").arg(30_000);
            let _: u32 = renew.query_async(&mut self.connection).await?;
        }
        Ok(())
    }

    /// Deletes the plain keys.
    pub(crate) async fn delete_keys(&mut self, count: usize) -> RedisResult<()> {
        for first in (0..count).step_by(RENEWAL_CHUNK) {
            let keys: Vec<String> =
                (first..count.min(first + RENEWAL_CHUNK)).map(|index| format!("floor-{index}")).collect();
            let _: u32 = cmd("DEL").arg(keys).query_async(&mut self.connection).await?;
        }
        Ok(())
    }
}

/// One of two clients that send a message back and forth, each with its own connection and channel.
pub(crate) struct PubSubClient {
    connection: MultiplexedConnection,
    messages: UnboundedReceiver<PushInfo>,
    other_channel: &'static str,
}

impl PubSubClient {
    pub(crate) async fn open_pair(url: &str) -> RedisResult<[Self; 2]> {
        let open = async |own: &str, other| -> RedisResult<Self> {
            let (mut connection, inbox) = connect(url).await?;
            connection.subscribe(own).await?;
            Ok(Self { connection, messages: inbox, other_channel: other })
        };
        Ok([open("ping", "pong").await?, open("pong", "ping").await?])
    }

    async fn send_message(&mut self) -> Result<(), BoxError> {
        let receivers: u32 =
            cmd("PUBLISH").arg(self.other_channel).arg("ball").query_async(&mut self.connection).await?;
        if receivers == 1 { Ok(()) } else { Err("no subscriber received the message".into()) }
    }

    async fn receive_message(&mut self) -> Result<(), BoxError> {
        loop {
            let received = self.messages.recv().await.ok_or("the connection was lost")?;
            if received.kind == PushKind::Message {
                return Ok(());
            }
        }
    }
}

/// The time from sending a message until the other client's connection receives it.
pub(crate) async fn message_time([one, two]: &mut [PubSubClient; 2]) -> Result<Duration, BoxError> {
    let start = monotonic_now();
    let received = async {
        two.receive_message().await?;
        Ok::<Duration, BoxError>(monotonic_now())
    };
    let ((), received) = tokio::try_join!(one.send_message(), received)?;
    Ok(received.saturating_sub(start))
}

/// Sends a message to the other client and back, `rounds` times: two messages through the server in
/// each round. Returns rounds per second.
pub(crate) async fn ping_pong([one, two]: &mut [PubSubClient; 2], rounds: u32) -> Result<f64, BoxError> {
    let start = monotonic_now();
    let serves = async {
        for _ in 0..rounds {
            one.send_message().await?;
            one.receive_message().await?;
        }
        Ok::<(), BoxError>(())
    };
    let returns = async {
        for _ in 0..rounds {
            two.receive_message().await?;
            two.send_message().await?;
        }
        Ok::<(), BoxError>(())
    };
    tokio::try_join!(serves, returns)?;
    Ok(f64::from(rounds) / (monotonic_now() - start).as_secs_f64())
}

/// The median time of `count` calls.
pub(crate) async fn p50<E, F>(count: u32, mut call: F) -> Result<Duration, E>
where
    F: AsyncFnMut() -> Result<(), E>,
{
    let mut times = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let start = monotonic_now();
        call().await?;
        times.push(monotonic_now() - start);
    }
    Ok(super::median_value(&mut times))
}
