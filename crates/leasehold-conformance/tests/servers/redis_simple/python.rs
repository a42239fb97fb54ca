//! Controls a Python process that uses redis-py.

use std::path::Path;

use leasehold_conformance::test_context::TEST_TIMEOUT;
use leasehold_testbed::{Actor, Server};
use serde_json::{Value, json};

/// Debian's own Python: another one that comes first in PATH lacks Debian's packages.
const PYTHON: &str = "/usr/bin/python3";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/servers/redis_simple/locker.py");

/// The default TTL of redis-py's locks, in seconds: longer than any test.
pub(crate) const TIMEOUT: f64 = 600.0;

/// A process that uses redis-py's `Lock`.
pub(crate) struct RedisPyProcess(Actor);

impl RedisPyProcess {
    pub(crate) fn start(server: &Server) -> Self {
        let package = Path::new("/usr/lib/python3/dist-packages/redis/__init__.py");
        assert!(package.is_file(), "redis-py is not installed; as root: apt-get install python3-redis");
        let started = Actor::spawn(Path::new(PYTHON), &[SCRIPT, &server.port().to_string()], &[]);
        Self(started.expect("Python"))
    }

    pub(crate) async fn send(&mut self, request: Value) {
        self.0.send(&request).await.expect("Python reads requests");
    }

    pub(crate) async fn receive(&mut self) -> Value {
        self.0.recv(TEST_TIMEOUT).await.expect("Python's reply")
    }

    async fn request(&mut self, request: Value) -> Value {
        self.send(request).await;
        self.receive().await
    }

    /// `acquire(blocking=False)` on a lock with this TTL in seconds.
    pub(crate) async fn try_acquire(&mut self, name: &str, timeout: Option<f64>) -> bool {
        let answer = self.request(json!({ "do": "acquire", "name": name, "timeout": timeout, "wait": false })).await;
        answer.as_bool().expect("yes or no")
    }

    /// Starts `acquire()`; the reply comes later.
    pub(crate) async fn begin_acquire(&mut self, name: &str) {
        self.send(json!({ "do": "acquire", "name": name, "timeout": TIMEOUT, "wait": true })).await;
    }

    /// `release()`: "released", or the name of the exception.
    pub(crate) async fn release(&mut self, name: &str) -> String {
        let answer = self.request(json!({ "do": "release", "name": name })).await;
        answer.as_str().expect("a string").to_owned()
    }

    /// `owned()`.
    pub(crate) async fn owned(&mut self, name: &str) -> bool {
        self.request(json!({ "do": "owned", "name": name })).await.as_bool().expect("yes or no")
    }

    /// Starts to increment a key `rounds` times; the reply comes later.
    pub(crate) async fn begin_count(&mut self, name: &str, key: &str, rounds: u32, locked: bool) {
        let order =
            json!({ "do": "count", "name": name, "key": key, "rounds": rounds, "locked": locked, "timeout": TIMEOUT });
        self.send(order).await;
    }

    /// Kills the process.
    pub(crate) fn kill(&mut self) {
        self.0.sigkill().expect("a killed process");
    }
}
