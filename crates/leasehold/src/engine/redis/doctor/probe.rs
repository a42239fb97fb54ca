//! What a lock does, done once: scripts, the keys of one lock, a message. Nothing is left behind.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind};
use tokio::sync::mpsc;

use super::super::config::{Address, Config};
use super::super::connect;
use super::ask::{Known, No, ask, words};
use super::facts::{Aim, Echo, Kind};
use super::slot::nobodys_name;

/// A message that takes longer than this does not come.
const ECHO_PATIENCE: Duration = Duration::from_secs(2);

/// The digest of `return 1`.
const RETURN_1: &str = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";

/// The keys of one lock, written, read and removed in one moment: nobody sees them.
const LAYOUT: &str = "\
redis.call('SET', KEYS[1], 'F', 'PX', 10000)
redis.call('HSET', KEYS[2], 'a', '1')
redis.call('PEXPIRE', KEYS[2], 10000)
redis.call('ZADD', KEYS[3], 1, 'a')
redis.call('PEXPIRE', KEYS[3], 10000)
local there = redis.call('GET', KEYS[1]) == 'F' and redis.call('HGET', KEYS[2], 'a') and redis.call('ZCARD', KEYS[3])
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
return there";

/// The same for the textbook's lock.
const SIMPLE_LAYOUT: &str = "\
redis.call('SET', KEYS[1], 'x', 'NX', 'PX', 10000)
if redis.call('GET', KEYS[1]) ~= 'x' then return 0 end
return redis.call('DEL', KEYS[1])";

/// Every way in which scripts are sent.
pub(super) async fn scripts(link: &mut MultiplexedConnection) -> Known<()> {
    one(ask(link, &words(&["EVAL", "return 1", "0"])).await?)?;
    let _: String = ask(link, &words(&["SCRIPT", "LOAD", "return 1"])).await?;
    one(ask(link, &words(&["EVALSHA", RETURN_1, "0"])).await?)
}

/// The server's clock, inside a script.
pub(super) async fn script_time(link: &mut MultiplexedConnection) -> Known<()> {
    one(ask(link, &words(&["EVAL", "return redis.call('TIME')[1] and 1", "0"])).await?)
}

/// The keys of one lock of nobody.
pub(super) async fn layout(link: &mut MultiplexedConnection, aim: &Aim, slots: &[RangeInclusive<u16>]) -> Known<()> {
    let (prefix, name) = (&aim.prefix, nobodys_name(slots));
    let command = if aim.simple {
        words(&["EVAL", SIMPLE_LAYOUT, "1", &format!("{prefix}{name}")])
    } else {
        let [main, hash, queue] = ['l', 'r', 'z'].map(|letter| format!("{prefix}{letter}{{{name}}}"));
        words(&["EVAL", LAYOUT, "3", &main, &hash, &queue])
    };
    one(ask(link, &command).await?)
}

fn one(answer: i64) -> Known<()> {
    if answer == 1 { Ok(()) } else { Err(No::Refused(format!("the script answered {answer} instead of 1"))) }
}

/// Sends ourselves a message from within a script, as a release does.
pub(super) async fn echo(
    link: &mut MultiplexedConnection,
    config: &Config,
    address: &Address,
    aim: &Aim,
) -> Known<Echo> {
    let channel = format!("{}doctor:{:032x}", aim.prefix, crate::random::bits());
    let publish = words(&["EVAL", "return redis.call('PUBLISH', ARGV[1], 'x')", "0", &channel]);
    send(link, config, address, ["SUBSCRIBE", &channel], publish).await
}

/// The same within one shard.
pub(super) async fn sharded_echo(
    link: &mut MultiplexedConnection,
    config: &Config,
    address: &Address,
    aim: &Aim,
    slots: &[RangeInclusive<u16>],
) -> Option<Known<Echo>> {
    if aim.simple || aim.kind != Kind::Cluster {
        return None;
    }
    let channel = format!("{}doctor:{{{}}}", aim.prefix, nobodys_name(slots));
    let publish = words(&["EVAL", "return redis.call('SPUBLISH', KEYS[1], 'x')", "1", &channel]);
    Some(send(link, config, address, ["SSUBSCRIBE", &channel], publish).await)
}

async fn send(
    link: &mut MultiplexedConnection,
    config: &Config,
    address: &Address,
    subscribe: [&str; 2],
    publish: redis::Cmd,
) -> Known<Echo> {
    let (post, mut inbox) = mpsc::unbounded_channel();
    let hear: connect::Hear = Arc::new(move |message: PushInfo| {
        if matches!(message.kind, PushKind::Message | PushKind::SMessage) {
            let _ = post.send(());
        }
    });
    let ear = connect::node(config, address, Some(hear)).await;
    let mut ear = ear.map_err(|error| No::Lost(error.to_string()))?;
    let _: redis::Value = ask(&mut ear, &words(&subscribe)).await?;
    let receivers = ask(link, &publish).await?;
    let heard = tokio::time::timeout(ECHO_PATIENCE, inbox.recv()).await;
    Ok(Echo { receivers, heard: matches!(heard, Ok(Some(()))) })
}
