//! The scripts match `logic/acceptor.rs`: random steps on a real server with a simulated time,
//! compared one by one.

use leasehold::{ClaimId, Owner, Token};
use leasehold_internals::logic::acceptor::{AcceptorState, ClaimRequest};
use leasehold_internals::logic::quorum::{Vote, WriteReply};
use leasehold_internals::redis::{Rest, Stored, StoredContender};
use leasehold_internals::redlock::wire::{NodeLock, Scripts};
use leasehold_testbed::redis::{self, Reply, RespClient};

use crate::redlock_faults::fixture::Rng;

/// Replaces the server's time: the last two arguments are the time and the end of the cool-down.
const TEST_PROLOGUE: &str =
    "local now, cool_down_until, run_arguments = tonumber(ARGV[#ARGV - 1]), tonumber(ARGV[#ARGV]), 2
local min_token = cool_down_until
if cool_down_until <= now then cool_down_until = 0 end
";
/// Far in the future, so that no key expires.
const START_US: u64 = 4_000_000_000_000_000;
const RETENTION: &str = "600";
const SEQUENCES: u64 = if cfg!(feature = "nightly") { 400 } else { 100 };
const STEPS: u64 = 40;
const LOCKS: usize = 2;
const OWNERS: [Option<&[u8; 16]>; 5] =
    [None, None, Some(b"owner-----------"), Some(b"owner-----------"), Some(b"other-----------")];

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
    async fn run_script(&mut self, name: &str, keys: &[&str], arguments: &[&[u8]]) -> Reply {
        let sha = self.scripts.iter().find(|(known, _)| *known == name).expect("a script").1.clone();
        let (count, now, frozen) = (keys.len().to_string(), self.now.to_string(), self.cool_down_end.to_string());
        let mut words: Vec<&[u8]> = ["EVALSHA", &sha, &count].iter().chain(keys).map(|word| word.as_bytes()).collect();
        words.extend([RETENTION.as_bytes()].iter().chain(arguments).chain(&[now.as_bytes(), frozen.as_bytes()]));
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
        let reply = self.connection.command(&["GET", &self.keys[lock]]).await.expect("an answer");
        let Some(stored) = reply.bytes() else { return (Token::default(), [None; 5]) };
        let stored = NodeLock::read(stored).expect("a lock");
        let (mut last, mut ends) = (stored.ended_token, [None; 5]);
        for vote in stored.stored_votes().expect("votes") {
            let claim = (0..5).find(|claim| claim_id(*claim) == vote.claim).expect("a known claim");
            last = last.max(vote.token);
            let contender = StoredContender::read(&vote.contender.0).expect("a contender");
            ends[claim] = Some(vote.since + contender.ttl);
        }
        (last, ends)
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

fn owner_bytes(claim: usize) -> &'static [u8; 16] {
    OWNERS[claim].unwrap_or(&[0; 16])
}

fn claim_request(claim: usize, attempt: u64, ttl: u64) -> ClaimRequest {
    let owner = OWNERS[claim].map(|owner| Owner::from_bits(u128::from_be_bytes(*owner)));
    ClaimRequest { claim: claim_id(claim), attempt, owner, ttl }
}

fn encode_contender(claim: usize, ttl: u64) -> Vec<u8> {
    let owner = u128::from_be_bytes(*owner_bytes(claim));
    StoredContender { mode: 'E', ttl, owner, permits: 0, limit: 0, inbox: "".into(), holder: Rest::default() }.write()
}

/// The word and the numbers of a reply.
fn word_and_numbers(reply: &Reply) -> (&str, Vec<u64>) {
    let Reply::Array(parts) = reply else { panic!("{reply:?}") };
    let Reply::Bulk(word) = &parts[0] else { panic!("{reply:?}") };
    let number = |part: &Reply| match part {
        Reply::Integer(number) => u64::try_from(*number).expect("a positive number"),
        other => panic!("{other:?}"),
    };
    (word, parts[1..].iter().map(number).collect())
}

/// The reply of `take`, parsed as the engine does.
fn parse_vote(reply: &Reply, guess: Token) -> Vote {
    if *reply == Reply::Integer(1) {
        return Vote::Yes { last_token: guess, own_token: guess, owner_token: Token::default() };
    }
    match word_and_numbers(reply) {
        ("no", numbers) => Vote::No { last_token: Token(numbers[0]) },
        ("cooling-down", _) => Vote::CoolingDown,
        ("yes", numbers) => {
            Vote::Yes { last_token: Token(numbers[0]), own_token: Token(numbers[2]), owner_token: Token(numbers[3]) }
        }
        other => panic!("{other:?}"),
    }
}

/// The reply of `write`, parsed as the engine does.
fn parse_written(reply: &Reply) -> WriteReply {
    match word_and_numbers(reply) {
        ("stored", _) => WriteReply::Stored,
        ("missing", _) => WriteReply::ClaimMissing,
        ("cooling-down", _) => WriteReply::NoResponse,
        ("owner", numbers) => WriteReply::OwnerToken(Token(numbers[0])),
        ("low", numbers) => WriteReply::TokenTooLow(Token(numbers[0])),
        other => panic!("{other:?}"),
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
    let (number, written_token) = (attempt.to_string(), token.0.to_string());
    let (id, number, written_token) = (id.as_bytes(), number.as_bytes(), written_token.as_bytes());
    let (request, now) = (claim_request(claim, attempt, ttl), pair.now);
    let kind = ["take", "take", "write", "write", "renew", "renew", "release", "withdraw", "force-release"];
    let kind = kind[rng.below(9) as usize];
    steps.push(format!("{now}: {kind} {step:?}"));
    let history = steps.join("\n");
    match kind {
        "take" => {
            let reply = pair.run_script("take", &[&key], &[id, number, written_token, &contender]).await;
            assert_eq!(parse_vote(&reply, token), pair.locks[lock].acquire(now, request, token), "{history}");
        }
        // A second round always has a token.
        "write" if token > Token::default() => {
            let arguments: [&[u8]; 4] = [id, number, written_token, owner_bytes(claim)];
            let reply = pair.run_script("write", &[&key], &arguments).await;
            assert_eq!(parse_written(&reply), pair.locks[lock].write_token(now, request, token), "{history}");
        }
        "renew" if token > Token::default() => renew_both(pair, &request, token, &contender, &history).await,
        "release" | "withdraw" => {
            let granted = if kind == "release" { "granted" } else { "withdrawn" };
            let reply = pair.run_script("release", &[&key], &[id, number, granted.as_bytes()]).await;
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
            let written_always = if always { "always" } else { "if-present" };
            let reply =
                pair.run_script("force-release", &[&key], &[id, written_token, written_always.as_bytes()]).await;
            let expected = pair.locks[lock].force_release(now, request.claim, token, always);
            let Reply::Array(parts) = reply else { panic!("{reply:?}") };
            let (number, flag) = (|number: u64| Reply::Integer(number as i64), |yes: bool| Reply::Integer(yes.into()));
            assert_eq!(parts[..2], [flag(expected.is_stored), number(last.0)], "{history}");
            assert_eq!(parts[3] != Reply::Nil, expected.was_present, "{history}");
            assert_eq!(parts[4], flag(expected.others_remain), "{history}");
        }
        _ => {}
    }
    for lock in 0..LOCKS {
        pair.assert_same(lock, steps).await;
    }
}

/// One request for both locks, as the keeper sends it.
async fn renew_both(pair: &mut ScriptsAndModel, request: &ClaimRequest, token: Token, contender: &[u8], steps: &str) {
    let keys = pair.keys.clone();
    let claim = (0..5).find(|at| claim_id(*at) == request.claim).map(claim_text).expect("a known claim");
    let (attempt, token_text) = (request.attempt.to_string(), token.0.to_string());
    let each = [claim.as_bytes(), token_text.as_bytes(), contender];
    let arguments = [&[attempt.as_bytes()], &each[..], &each[..]].concat();
    let reply = pair.run_script("renew", &[&keys[0], &keys[1]], &arguments).await;
    let now = pair.now;
    let expected: String = pair
        .locks
        .iter_mut()
        .map(|lock| match lock.renew(now, *request, token) {
            Some(true) => '1',
            Some(false) => '0',
            None => '2',
        })
        .collect();
    assert_eq!(reply, Reply::Bulk(expected), "{steps}");
}

async fn run_sequences(cooling_down: bool) {
    let server = redis::start().await.expect("a server");
    let mut raw = RespClient::connect(server.addr()).await.expect("a connection");
    let scripts = Scripts::assemble(TEST_PROLOGUE);
    let mut stored = Vec::new();
    for (name, script) in [
        ("take", &scripts.acquire),
        ("write", &scripts.store_token),
        ("renew", &scripts.renew),
        ("force-release", &scripts.force_release),
        ("release", &scripts.release),
    ] {
        let Reply::Bulk(sha) = raw.command(&["SCRIPT", "LOAD", script.text()]).await.expect("an answer") else {
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
