//! The option values of `leasehold-verify`, for the shell completions of `leasehold verify`.

/// The values of `--workload`.
pub const WORKLOADS: [&str; 10] =
    ["mutex", "reentrant", "rwlock", "semaphore", "fenced", "unfenced", "counter", "queue", "election", "ticks"];

/// The values of `--faults`, besides several with commas between them.
pub const FAULTS: [&str; 17] = [
    "all",
    "none",
    "kill",
    "stop",
    "cut",
    "lost-reply",
    "delay",
    "duplicate",
    "crash",
    "wipe",
    "failover",
    "leader",
    "partition",
    "clock",
    "ahead",
    "evict",
    "disk-full",
];

/// The values of `--local`.
pub const ENGINES: [&str; 7] = ["memory", "file", "redis", "redlock", "zookeeper", "mysql", "postgres"];
