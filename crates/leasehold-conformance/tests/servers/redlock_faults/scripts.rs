//! The scripts are what `logic/ballots.rs` says: random steps on a real server, compared one by one, with a time of our own.

use leasehold::logic::ballots::{Ask, Ballots};
use leasehold::logic::quorum::{Vote, Written};
use leasehold::{ClaimId, Owner, Token};
use leasehold_testbed::redis::{self, Reply, Resp};

use crate::redlock_faults::site::Dice;

macro_rules! script {
    ($file:literal) => {
        include_str!(concat!("../../../../leasehold/src/engine/", $file))
    };
}

/// Instead of the server's time: the last two arguments are the time, and until when the node abstains.
const HEAD: &str = "local clock = ARGV[#ARGV - 1]
local now, frozen, extra = num(clock), num(ARGV[#ARGV]), 2
local floor = fmt('%016.0f', frozen)
if frozen <= now then frozen = 0 end
";
/// Far away, so that no key expires.
const BEGIN: u64 = 4_000_000_000_000_000;
const RETENTION: &str = "600";
const SEQUENCES: u64 = if cfg!(feature = "nightly") { 400 } else { 100 };
const STEPS: u64 = 40;
const LOCKS: usize = 2;
const OWNERS: [Option<&[u8; 16]>; 5] =
    [None, None, Some(b"owner-----------"), Some(b"owner-----------"), Some(b"other-----------")];

fn digits(number: u64) -> String {
    format!("{number:016}")
}

fn id(claim: usize) -> String {
    format!("claim----------{claim}")
}

/// A server, the scripts on it, and what they should do.
struct Pair {
    hand: Resp,
    /// By name: where the server has it.
    stored: Vec<(&'static str, String)>,
    locks: [Ballots; LOCKS],
    keys: [String; LOCKS],
    now: u64,
    frozen: u64,
    attempts: u64,
}

impl Pair {
    async fn script(&mut self, name: &str, keys: &[&str], arguments: &[&str]) -> Reply {
        let sha = self.stored.iter().find(|(known, _)| *known == name).expect("a script").1.clone();
        let (count, now, frozen) = ((keys.len() + 1).to_string(), digits(self.now), self.frozen.to_string());
        let words = [&["EVALSHA", &sha, &count], keys, &["beside"], arguments, &[&now, &frozen]].concat();
        match self.hand.command(&words).await.expect("an answer") {
            Reply::Error(error) => panic!("{name}: {error}"),
            reply => reply,
        }
    }

    /// Begins anew, on other keys.
    fn begin(&mut self, sequence: u64, frozen: u64) {
        self.keys = [0, 1].map(|lock| format!("{sequence}-{lock}"));
        (self.now, self.frozen, self.attempts) = (BEGIN, frozen, 1000);
        self.locks = [(); LOCKS].map(|()| Ballots::abstaining(frozen));
    }

    /// What a server has of a lock: the highest token, and until when each of the claims lasts.
    async fn stock(&mut self, lock: usize) -> (Token, [Option<u64>; 5]) {
        let text = match self.hand.command(&["GET", &self.keys[lock]]).await.expect("an answer") {
            Reply::Bulk(text) => text,
            Reply::Nil => return (Token::default(), [None; 5]),
            other => panic!("{other:?}"),
        };
        let number = |from: usize, to: usize| text[from..to].parse::<u64>().expect("a number");
        let (mut last, mut ends, mut at) = (number(0, 16), [None; 5], 48);
        while at < text.len() {
            let claim = (0..5).find(|claim| id(*claim) == text[at..at + 16]).expect("one of ours");
            last = last.max(number(at + 32, at + 48));
            ends[claim] = Some(number(at + 48, at + 64) + number(at + 69, at + 81));
            at += 68 + number(at + 64, at + 68) as usize;
        }
        (Token(last), ends)
    }

    async fn compare(&mut self, lock: usize, story: &[String]) {
        let (last, ends) = self.stock(lock).await;
        let story = || story.join("\n");
        assert_eq!(
            last.max(Token(self.frozen)),
            self.locks[lock].last(),
            "the highest token of lock {lock}\n{}",
            story()
        );
        for (at, seen) in ends.into_iter().enumerate() {
            let said = self.locks[lock].ends(claim_id(at));
            let live = |end: &u64| *end > self.now;
            assert_eq!(seen.filter(live), said.filter(live), "claim {at} of lock {lock}\n{}", story());
        }
    }
}

fn claim_id(claim: usize) -> ClaimId {
    let bytes: [u8; 16] = id(claim).into_bytes().try_into().expect("16 bytes");
    ClaimId::from_bits(u128::from_be_bytes(bytes))
}

fn owner_text(claim: usize) -> &'static str {
    OWNERS[claim].map_or("\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", |owner| std::str::from_utf8(owner).expect("text"))
}

fn ask(claim: usize, attempt: u64, ttl: u64) -> Ask {
    let owner = OWNERS[claim].map(|owner| Owner::from_bits(u128::from_be_bytes(*owner)));
    Ask { claim: claim_id(claim), attempt, owner, ttl }
}

fn party(claim: usize, ttl: u64) -> String {
    format!("E{ttl:012}{}the rest", owner_text(claim))
}

/// The answer of `take`, as the engine reads it.
fn vote(reply: &Reply, guess: Token) -> Vote {
    match reply {
        Reply::Integer(1) => Vote::Yes { last: guess, own: guess, bound: Token::default() },
        Reply::Bulk(text) => {
            let token = |at: usize| Token(text[at..at + 16].parse().expect("a number"));
            match &text[..1] {
                "N" => Vote::No { last: token(1) },
                "A" => Vote::Abstains,
                "Y" => Vote::Yes { last: token(1), own: token(33), bound: token(49) },
                _ => panic!("{text}"),
            }
        }
        other => panic!("{other:?}"),
    }
}

/// The answer of `write`, as the engine reads it.
fn written(reply: &Reply) -> Written {
    let Reply::Bulk(text) = reply else { panic!("{reply:?}") };
    let token = || Token(text[1..17].parse().expect("a number"));
    match &text[..1] {
        "S" => Written::Stored,
        "G" => Written::Gone,
        "A" => Written::Silent,
        "B" => Written::Bound(token()),
        "L" => Written::Behind(token()),
        _ => panic!("{text}"),
    }
}

/// What a step is about.
#[derive(Debug)]
struct Step {
    lock: usize,
    claim: usize,
    attempt: u64,
    token: Token,
    ttl: u64,
}

impl Step {
    fn random(pair: &mut Pair, dice: &mut Dice) -> Self {
        let lock = dice.below(LOCKS as u64) as usize;
        let last = pair.locks[lock].last().0;
        // Most often the next attempt, sometimes one from before.
        pair.attempts += dice.below(2);
        let attempt = pair.attempts - if dice.below(4) == 0 { dice.below(4) } else { 0 };
        let token = [0, last, last + 1, last.saturating_sub(1), last + dice.below(4), 1 + dice.below(20)];
        let token = Token(token[dice.below(6) as usize]);
        Self { lock, claim: dice.below(5) as usize, attempt, token, ttl: [300, 1000, 5000][dice.below(3) as usize] }
    }
}

async fn step(pair: &mut Pair, dice: &mut Dice, story: &mut Vec<String>) {
    pair.now += [0, 0, 1, 150, 400, 2000][dice.below(6) as usize];
    // A clock that is set back, once in a while.
    pair.now -= if dice.below(10) == 0 { dice.below(3000) } else { 0 };
    let step = Step::random(pair, dice);
    let Step { lock, claim, attempt, token, ttl } = step;
    let (key, id, party) = (pair.keys[lock].clone(), id(claim), party(claim, ttl));
    let (number, written_token) = (digits(attempt), digits(token.0));
    let (ask, now) = (ask(claim, attempt, ttl), pair.now);
    let kind = ["take", "take", "write", "write", "renew", "renew", "release", "withdraw", "evict"];
    let kind = kind[dice.below(9) as usize];
    story.push(format!("{now}: {kind} {step:?}"));
    let told = story.join("\n");
    match kind {
        "take" => {
            let reply = pair.script("take", &[&key], &[&id, &number, RETENTION, &written_token, &party]).await;
            assert_eq!(vote(&reply, token), pair.locks[lock].take(now, ask, token), "{told}");
        }
        // A second round always has a token.
        "write" if token > Token::default() => {
            let arguments = [&id, &number, RETENTION, &written_token, owner_text(claim)];
            let reply = pair.script("write", &[&key], &arguments).await;
            assert_eq!(written(&reply), pair.locks[lock].write(now, ask, token), "{told}");
        }
        "renew" if token > Token::default() => renew(pair, &ask, token, &party, &told).await,
        "release" | "withdraw" => {
            let granted = if kind == "release" { "1" } else { "0" };
            let reply = pair.script("release", &[&key], &[&id, &number, RETENTION, granted]).await;
            let said = match kind {
                "release" => pair.locks[lock].release(ask.claim, attempt),
                _ => pair.locks[lock].withdraw(ask.claim, attempt),
            };
            assert_eq!(reply, Reply::Integer(said.into()), "{told}");
        }
        "evict" => {
            let last = pair.locks[lock].last();
            // Also where the claim is not, or only where it is.
            let always = attempt % 2 == 0;
            let written_always = if always { "1" } else { "0" };
            let reply = pair.script("evict", &[&key], &[&id, "", RETENTION, &written_token, written_always]).await;
            let said = pair.locks[lock].evict(now, ask.claim, token, always);
            let Reply::Array(parts) = reply else { panic!("{reply:?}") };
            assert_eq!(parts[..2], [Reply::Integer(said.stored.into()), Reply::Bulk(digits(last.0))], "{told}");
            assert_eq!(parts[4..], [said.there, said.others].map(|yes| Reply::Integer(yes.into())), "{told}");
        }
        _ => {}
    }
    for lock in 0..LOCKS {
        pair.compare(lock, story).await;
    }
}

/// One request for both locks, as the keeper makes it.
async fn renew(pair: &mut Pair, ask: &Ask, token: Token, party: &str, told: &str) {
    let keys = pair.keys.clone();
    let claim = (0..5).find(|at| claim_id(*at) == ask.claim).map(id).expect("one of ours");
    let (attempt, token_text) = (digits(ask.attempt), digits(token.0));
    let each = [claim.as_str(), &token_text, party];
    let arguments = [&[attempt.as_str(), RETENTION], &each[..], &each[..]].concat();
    let reply = pair.script("renew", &[&keys[0], &keys[1]], &arguments).await;
    let now = pair.now;
    let said: String = pair
        .locks
        .iter_mut()
        .map(|lock| match lock.renew(now, *ask, token) {
            Some(true) => '1',
            Some(false) => '0',
            None => 'A',
        })
        .collect();
    assert_eq!(reply, Reply::Bulk(said), "{told}");
}

async fn sequences(abstaining: bool) {
    let server = redis::start().await.expect("a server");
    let mut hand = Resp::connect(server.addr()).await.expect("a connection");
    let (words, see) = (script!("redis/scripts/words.lua"), script!("redlock/scripts/see.lua"));
    let take = [script!("redlock/scripts/take_first.lua"), see, script!("redlock/scripts/take.lua")];
    let write = [script!("redlock/scripts/write_first.lua"), see, script!("redlock/scripts/write.lua")];
    let mut stored = Vec::new();
    for (name, text) in [
        ("take", take.concat()),
        ("write", write.concat()),
        ("renew", [see, script!("redlock/scripts/renew.lua")].concat()),
        ("evict", [see, script!("redlock/scripts/evict.lua")].concat()),
        ("release", script!("redlock/scripts/release.lua").to_owned()),
    ] {
        let text = if name == "release" { [words, &text].concat() } else { [words, HEAD, &text].concat() };
        let Reply::Bulk(sha) = hand.command(&["SCRIPT", "LOAD", &text]).await.expect("an answer") else {
            panic!("{name} is no script")
        };
        stored.push((name, sha));
    }
    let (locks, keys) = Default::default();
    let mut pair = Pair { hand, stored, locks, keys, now: 0, frozen: 0, attempts: 0 };
    let seed = Dice::seed();
    for sequence in 0..SEQUENCES {
        let mut dice = Dice(seed.wrapping_add(sequence));
        let frozen = if abstaining { BEGIN + dice.below(8000) } else { 0 };
        pair.begin(sequence, frozen);
        let mut story = vec![format!("sequence {sequence}, abstaining until {frozen}")];
        for _ in 0..STEPS {
            step(&mut pair, &mut dice, &mut story).await;
        }
    }
}

#[tokio::test]
async fn the_scripts_do_what_the_specification_says() {
    sequences(false).await;
}

#[tokio::test]
async fn the_scripts_do_what_the_specification_says_of_a_node_that_abstains() {
    sequences(true).await;
}
