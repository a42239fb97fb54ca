//! What a scripted server does with each command. Of the scripts it implements what one exclusive
//! lock without a queue needs; a waiter gets the time of its next attempt.

use super::resp;
use super::server::{HeldLock, Reaction, ReceivedRequest, ScriptedServer};
use crate::redis_client::Contender;
use crate::types::ClaimId;

impl ScriptedServer {
    fn name(&self, words: &[Vec<u8>]) -> &'static str {
        match &words[0][..] {
            b"HELLO" => "hello",
            b"SUBSCRIBE" => "subscribe",
            b"SCRIPT" => "load",
            b"PING" => "ping",
            b"INFO" => "info",
            b"ROLE" => "role",
            b"EVALSHA" => self.scripts.get(&*String::from_utf8_lossy(&words[1])).copied().unwrap_or("other"),
            _ => "other",
        }
    }

    /// Records a request, and returns what to do with it.
    pub(super) fn heard(&self, words: &[Vec<u8>]) -> (Reaction, &'static str) {
        let kind = self.name(words);
        let claims = match kind {
            "attempt" | "heartbeat" | "release" => vec![claim(&words[5])],
            // The last word is the server's run.
            "renew" => words[3 + keys(words) + 3..words.len() - 1].iter().map(|word| claim(word)).collect(),
            _ => Vec::new(),
        };
        let request = ReceivedRequest { at: self.clock.now(), kind, claims };
        let mut state = self.state();
        state.requests.push(request.clone());
        ((state.on_request)(request), kind)
    }

    /// Does it, and returns the answer.
    pub(super) fn perform(&self, words: &[Vec<u8>], kind: &str) -> Vec<u8> {
        let (now, mut state) = (self.clock.now(), self.state());
        state.locks.retain(|_, held| held.expires_at > now);
        match kind {
            "hello" => resp::hello(),
            "subscribe" => resp::subscribed(&words[1]),
            "info" => resp::text(format!("# Server\r\nrun_id:{}\r\n", self.run).as_bytes()),
            "role" => b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n".to_vec(),
            "attempt" => {
                let (key, claim) = (&words[3], claim(&words[5]));
                let ttl = Contender::read(&words[7]).expect("a contender").ttl;
                if let Some(held) = state.locks.get(key).filter(|held| held.parse_claim != claim) {
                    let left = held.expires_at.duration_since(now).as_micros();
                    return format!("*3\r\n$4\r\nbusy\r\n:{left}\r\n:-1\r\n").into_bytes();
                }
                state.last_token += 1;
                let token = state.locks.get(key).map_or(state.last_token, |held| held.token);
                state.locks.insert(
                    key.clone(),
                    HeldLock { parse_claim: claim, token, ttl, expires_at: now.saturating_add(ttl) },
                );
                resp::int(token)
            }
            "renew" => {
                let (keys, claims) = words[3..].split_at(keys(words));
                let mut renew = |(key, id): (&Vec<u8>, &Vec<u8>)| match state.locks.get_mut(key) {
                    Some(held) if held.parse_claim == claim(id) => {
                        held.expires_at = now.saturating_add(held.ttl);
                        b'1'
                    }
                    _ => b'0',
                };
                resp::text(&keys.iter().zip(&claims[3..]).map(&mut renew).collect::<Vec<u8>>())
            }
            "release" => {
                let is_own = state.locks.get(&words[3]).is_some_and(|held| held.parse_claim == claim(&words[5]));
                if is_own {
                    state.locks.remove(&words[3]);
                }
                resp::int(is_own.into())
            }
            _ => b"+OK\r\n".to_vec(),
        }
    }
}

fn keys(words: &[Vec<u8>]) -> usize {
    String::from_utf8_lossy(&words[2]).parse().expect("a number of keys")
}

fn claim(bytes: &[u8]) -> ClaimId {
    ClaimId::from_bits(u128::from_be_bytes(bytes.try_into().expect("16 bytes")))
}
