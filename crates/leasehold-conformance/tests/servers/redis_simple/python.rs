//! A Python process with redis-py, from the test's side.

use std::path::Path;

use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::{Actor, Server};
use serde_json::{Value, json};

/// Debian's own: another one that comes first in PATH does not know Debian's packages.
const PYTHON: &str = "/usr/bin/python3";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/servers/redis_simple/locker.py");

/// How long redis-py's locks last where nothing else is said, in seconds: longer than any test.
pub(crate) const TIMEOUT: f64 = 600.0;

/// A process that takes redis-py's lock.
pub(crate) struct RedisPyProcess(Actor);

impl RedisPyProcess {
    pub(crate) fn start(server: &Server) -> Self {
        let package = Path::new("/usr/lib/python3/dist-packages/redis/__init__.py");
        assert!(package.is_file(), "redis-py is not installed; as root: apt-get install python3-redis");
        let started = Actor::spawn(Path::new(PYTHON), &[SCRIPT, &server.port().to_string()], &[]);
        Self(started.expect("Python"))
    }

    pub(crate) async fn send(&mut self, request: Value) {
        self.0.send(&request).await.expect("Python listens");
    }

    pub(crate) async fn receive(&mut self) -> Value {
        self.0.recv(TEST_TIMEOUT).await.expect("Python's answer")
    }

    async fn request(&mut self, request: Value) -> Value {
        self.send(request).await;
        self.receive().await
    }

    /// `acquire(blocking=False)` on a lock that lasts so many seconds.
    pub(crate) async fn try_acquire(&mut self, name: &str, timeout: Option<f64>) -> bool {
        let answer = self.request(json!({ "do": "acquire", "name": name, "timeout": timeout, "wait": false })).await;
        answer.as_bool().expect("yes or no")
    }

    /// `acquire()`, begun; the answer comes later.
    pub(crate) async fn begin_acquire(&mut self, name: &str) {
        self.send(json!({ "do": "acquire", "name": name, "timeout": TIMEOUT, "wait": true })).await;
    }

    /// `release()`: "released", or the name of the exception.
    pub(crate) async fn release(&mut self, name: &str) -> String {
        let answer = self.request(json!({ "do": "release", "name": name })).await;
        answer.as_str().expect("a word").to_owned()
    }

    /// `owned()`.
    pub(crate) async fn owned(&mut self, name: &str) -> bool {
        self.request(json!({ "do": "owned", "name": name })).await.as_bool().expect("yes or no")
    }

    /// Adds one to a key so often, begun; the answer comes later.
    pub(crate) async fn begin_count(&mut self, name: &str, key: &str, rounds: u32, locked: bool) {
        let order =
            json!({ "do": "count", "name": name, "key": key, "rounds": rounds, "locked": locked, "timeout": TIMEOUT });
        self.send(order).await;
    }

    /// Ends it as a crash does.
    pub(crate) fn kill(&mut self) {
        self.0.sigkill().expect("a killed process");
    }
}
