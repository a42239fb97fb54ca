//! The machine's monotonic clock. On Linux and Android it also counts while the machine is
//! suspended.

use super::Instant;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
use super::nanos;

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn now() -> Instant {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Instant(seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
#[allow(clippy::disallowed_methods, reason = "this is the clock")]
pub(super) fn now() -> Instant {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    Instant(nanos(START.get_or_init(Instant::now).elapsed()) + 1)
}
