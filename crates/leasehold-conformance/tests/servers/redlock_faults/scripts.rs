//! The scripts match `logic/acceptor.rs`: random steps on a real server with a simulated time,
//! compared one by one.

use leasehold::{ClaimId, Owner, Token};
use leasehold_internals::logic::acceptor::{AcceptorState, ClaimRequest};
use leasehold_internals::logic::quorum::{Vote, WriteReply};
use leasehold_testbed::redis::{self, Reply, RespClient};

use crate::redlock_faults::fixture::Rng;

macro_rules! script {
    ($file:literal) => {
        include_str!(concat!("../../../../leasehold/src/", $file))
    };
}

/// Replaces the server's time: the last two arguments are the time and the end of the cool-down.
const TEST_PROLOGUE: &str = "local clock = ARGV[#ARGV - 1]
local now, frozen, extra = num(clock), num(ARGV[#ARGV]), 2
local floor = fmt('%016.0f', frozen)
if frozen <= now then frozen = 0 end
";
/// Far in the future, so that no key expires.
const START_US: u64 = 4_000_000_000_000_000;
const RETENTION: &str = "600";
const SEQUENCES: u64 = if cfg!(feature = "nightly") { 400 } else { 100 };
const STEPS: u64 = 40;
const LOCKS: usize = 2;
const OWNERS: [Option<&[u8; 16]>; 5] =
    [None, None, Some(b"owner-----------"), Some(b"owner-----------"), Some(b"other-----------")];

fn digits(number: u64) -> String {
    format!("{number:016}")
}

fn claim_text(claim: usize) -> String {
    format!("claim----------{claim}")
}

/// A server with the scripts, and the model of what they should do.
struct ScriptsAndModel {
    connection: RespClient,
    /// The scripts' SHA digests by name.
    scripts: Vec<(&'static str, String)>,
    locks: [AcceptorState; LOCKS],
    keys: [String; LOCKS],
    now: u64,
    cool_down_end: u64,
    attempts: u64,
}

impl ScriptsAndModel {
    async fn run_script(&mut self, name: &str, keys: &[&str], arguments: &[&str]) -> Reply {
        let sha = self.scripts.iter().find(|(known, _)| *known == name).expect("a script").1.clone();
        let (count, now, frozen) = ((keys.len() + 1).to_string(), digits(self.now), self.cool_down_end.to_string());
        let words = [&["EVALSHA", &sha, &count], keys, &["beside"], arguments, &[&now, &frozen]].concat();
        match self.connection.command(&words).await.expect("an answer") {
            Reply::Error(error) => panic!("{name}: {error}"),
            reply => reply,
        }
    }

    /// Starts over with new keys.
    fn reset(&mut self, sequence: u64, cool_down_end: u64) {
        self.keys = [0, 1].map(|lock| format!("{sequence}-{lock}"));
        (self.now, self.cool_down_end, self.attempts) = (START_US, cool_down_end, 1000);
        self.locks = [(); LOCKS].map(|()| AcceptorState::cooling_down(cool_down_end));
    }

    /// A server's record of a lock: the highest token, and the deadline of each claim.
    async fn read_lock(&mut self, lock: usize) -> (Token, [Option<u64>; 5]) {
        let text = match self.connection.command(&["GET", &self.keys[lock]]).await.expect("an answer") {
            Reply::Bulk(text) => text,
            Reply::Nil => return (Token::default(), [None; 5]),
            other => panic!("{other:?}"),
        };
        let number = |from: usize, to: usize| text[from..to].parse::<u64>().expect("a number");
        let (mut last, mut ends, mut at) = (number(1, 17), [None; 5], 49);
        while at < text.len() {
            let claim = (0..5).find(|claim| claim_text(*claim) == text[at..at + 16]).expect("a known claim");
            last = last.max(number(at + 32, at + 48));
            ends[claim] = Some(number(at + 48, at + 64) + number(at + 69, at + 81));
            at += 68 + number(at + 64, at + 68) as usize;
        }
        (Token(last), ends)
    }

    async fn assert_same(&mut self, lock: usize, steps: &[String]) {
        let (last, ends) = self.read_lock(lock).await;
        let steps = || steps.join("\n");
        assert_eq!(
            last.max(Token(self.cool_down_end)),
            self.locks[lock].last_token(),
            "the highest token of lock {lock}\n{}",
            steps()
        );
        for (at, seen) in ends.into_iter().enumerate() {
            let expected = self.locks[lock].expires_at(claim_id(at));
            let live = |end: &u64| *end > self.now;
            assert_eq!(seen.filter(live), expected.filter(live), "claim {at} of lock {lock}\n{}", steps());
        }
    }
}

fn claim_id(claim: usize) -> ClaimId {
    let bytes: [u8; 16] = claim_text(claim).into_bytes().try_into().expect("16 bytes");
    ClaimId::from_bits(u128::from_be_bytes(bytes))
}

fn owner_text(claim: usize) -> &'static str {
    OWNERS[claim].map_or("\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", |owner| std::str::from_utf8(owner).expect("text"))
}

fn claim_request(claim: usize, attempt: u64, ttl: u64) -> ClaimRequest {
    let owner = OWNERS[claim].map(|owner| Owner::from_bits(u128::from_be_bytes(*owner)));
    ClaimRequest { claim: claim_id(claim), attempt, owner, ttl }
}

fn encode_contender(claim: usize, ttl: u64) -> String {
    format!("E{ttl:012}{}the rest", owner_text(claim))
}

/// The reply of `take`, parsed as the engine does.
fn parse_vote(reply: &Reply, guess: Token) -> Vote {
    match reply {
        Reply::Integer(1) => Vote::Yes { last_token: guess, own_token: guess, owner_token: Token::default() },
        Reply::Bulk(text) => {
            let token = |at: usize| Token(text[at..at + 16].parse().expect("a number"));
            match &text[..1] {
                "N" => Vote::No { last_token: token(1) },
                "A" => Vote::CoolingDown,
                "Y" => Vote::Yes { last_token: token(1), own_token: token(33), owner_token: token(49) },
                _ => panic!("{text}"),
            }
        }
        other => panic!("{other:?}"),
    }
}

/// The reply of `write`, parsed as the engine does.
fn parse_written(reply: &Reply) -> WriteReply {
    let Reply::Bulk(text) = reply else { panic!("{reply:?}") };
    let token = || Token(text[1..17].parse().expect("a number"));
    match &text[..1] {
        "S" => WriteReply::Stored,
        "G" => WriteReply::ClaimMissing,
        "A" => WriteReply::NoResponse,
        "B" => WriteReply::OwnerToken(token()),
        "L" => WriteReply::TokenTooLow(token()),
        _ => panic!("{text}"),
    }
}

/// The arguments of a step.
#[derive(Debug)]
struct Step {
    lock: usize,
    claim: usize,
    attempt: u64,
    token: Token,
    ttl: u64,
}

impl Step {
    fn random(pair: &mut ScriptsAndModel, rng: &mut Rng) -> Self {
        let lock = rng.below(LOCKS as u64) as usize;
        let last = pair.locks[lock].last_token().0;
        // Usually the next attempt, sometimes an earlier one.
        pair.attempts += rng.below(2);
        let attempt = pair.attempts - if rng.below(4) == 0 { rng.below(4) } else { 0 };
        let token = [0, last, last + 1, last.saturating_sub(1), last + rng.below(4), 1 + rng.below(20)];
        let token = Token(token[rng.below(6) as usize]);
        Self { lock, claim: rng.below(5) as usize, attempt, token, ttl: [300, 1000, 5000][rng.below(3) as usize] }
    }
}

async fn run_step(pair: &mut ScriptsAndModel, rng: &mut Rng, steps: &mut Vec<String>) {
    pair.now += [0, 0, 1, 150, 400, 2000][rng.below(6) as usize];
    // Sometimes the clock is set back.
    pair.now -= if rng.below(10) == 0 { rng.below(3000) } else { 0 };
    let step = Step::random(pair, rng);
    let Step { lock, claim, attempt, token, ttl } = step;
    let (key, id, contender) = (pair.keys[lock].clone(), claim_text(claim), encode_contender(claim, ttl));
    let (number, written_token) = (digits(attempt), digits(token.0));
    let (request, now) = (claim_request(claim, attempt, ttl), pair.now);
    let kind = ["take", "take", "write", "write", "renew", "renew", "release", "withdraw", "force-release"];
    let kind = kind[rng.below(9) as usize];
    steps.push(format!("{now}: {kind} {step:?}"));
    let history = steps.join("\n");
    match kind {
        "take" => {
            let reply = pair.run_script("take", &[&key], &[&id, &number, RETENTION, &written_token, &contender]).await;
            assert_eq!(parse_vote(&reply, token), pair.locks[lock].acquire(now, request, token), "{history}");
        }
        // A second round always has a token.
        "write" if token > Token::default() => {
            let arguments = [&id, &number, RETENTION, &written_token, owner_text(claim)];
            let reply = pair.run_script("write", &[&key], &arguments).await;
            assert_eq!(parse_written(&reply), pair.locks[lock].write_token(now, request, token), "{history}");
        }
        "renew" if token > Token::default() => renew_both(pair, &request, token, &contender, &history).await,
        "release" | "withdraw" => {
            let granted = if kind == "release" { "1" } else { "0" };
            let reply = pair.run_script("release", &[&key], &[&id, &number, RETENTION, granted]).await;
            let expected = match kind {
                "release" => pair.locks[lock].release(request.claim, attempt),
                _ => pair.locks[lock].withdraw(request.claim, attempt),
            };
            assert_eq!(reply, Reply::Integer(expected.into()), "{history}");
        }
        "force-release" => {
            let last = pair.locks[lock].last_token();
            // Sometimes also if the claim is absent.
            let always = attempt % 2 == 0;
            let written_always = if always { "1" } else { "0" };
            let reply =
                pair.run_script("force-release", &[&key], &[&id, "", RETENTION, &written_token, written_always]).await;
            let expected = pair.locks[lock].force_release(now, request.claim, token, always);
            let Reply::Array(parts) = reply else { panic!("{reply:?}") };
            assert_eq!(
                parts[..2],
                [Reply::Integer(expected.is_stored.into()), Reply::Bulk(digits(last.0))],
                "{history}"
            );
            assert_eq!(
                parts[4..],
                [expected.was_present, expected.others_remain].map(|yes| Reply::Integer(yes.into())),
                "{history}"
            );
        }
        _ => {}
    }
    for lock in 0..LOCKS {
        pair.assert_same(lock, steps).await;
    }
}

/// One request for both locks, as the keeper sends it.
async fn renew_both(pair: &mut ScriptsAndModel, request: &ClaimRequest, token: Token, contender: &str, steps: &str) {
    let keys = pair.keys.clone();
    let claim = (0..5).find(|at| claim_id(*at) == request.claim).map(claim_text).expect("a known claim");
    let (attempt, token_text) = (digits(request.attempt), digits(token.0));
    let each = [claim.as_str(), &token_text, contender];
    let arguments = [&[attempt.as_str(), RETENTION], &each[..], &each[..]].concat();
    let reply = pair.run_script("renew", &[&keys[0], &keys[1]], &arguments).await;
    let now = pair.now;
    let expected: String = pair
        .locks
        .iter_mut()
        .map(|lock| match lock.renew(now, *request, token) {
            Some(true) => '1',
            Some(false) => '0',
            None => 'A',
        })
        .collect();
    assert_eq!(reply, Reply::Bulk(expected), "{steps}");
}

async fn run_sequences(cooling_down: bool) {
    let server = redis::start().await.expect("a server");
    let mut raw = RespClient::connect(server.addr()).await.expect("a connection");
    let (words, see) = (script!("redis_client/scripts/prelude.lua"), script!("engine/redlock/scripts/record.lua"));
    let take =
        [script!("engine/redlock/scripts/acquire_first.lua"), see, script!("engine/redlock/scripts/acquire.lua")];
    let write = [
        script!("engine/redlock/scripts/store_token_first.lua"),
        see,
        script!("engine/redlock/scripts/store_token.lua"),
    ];
    let mut stored = Vec::new();
    for (name, text) in [
        ("take", take.concat()),
        ("write", write.concat()),
        ("renew", [see, script!("engine/redlock/scripts/renew.lua")].concat()),
        ("force-release", [see, script!("engine/redlock/scripts/force_release.lua")].concat()),
        ("release", script!("engine/redlock/scripts/release.lua").to_owned()),
    ] {
        let text = if name == "release" { [words, &text].concat() } else { [words, TEST_PROLOGUE, &text].concat() };
        let Reply::Bulk(sha) = raw.command(&["SCRIPT", "LOAD", &text]).await.expect("an answer") else {
            panic!("{name} is not a script")
        };
        stored.push((name, sha));
    }
    let (locks, keys) = Default::default();
    let mut pair =
        ScriptsAndModel { connection: raw, scripts: stored, locks, keys, now: 0, cool_down_end: 0, attempts: 0 };
    let seed = Rng::seed();
    for sequence in 0..SEQUENCES {
        let mut rng = Rng(seed.wrapping_add(sequence));
        let frozen = if cooling_down { START_US + rng.below(8000) } else { 0 };
        pair.reset(sequence, frozen);
        let mut steps = vec![format!("sequence {sequence}, cooling down until {frozen}")];
        for _ in 0..STEPS {
            run_step(&mut pair, &mut rng, &mut steps).await;
        }
    }
}

#[tokio::test]
async fn the_scripts_match_the_specification() {
    run_sequences(false).await;
}

#[tokio::test]
async fn the_scripts_match_the_specification_during_a_cool_down() {
    run_sequences(true).await;
}
