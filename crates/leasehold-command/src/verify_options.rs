//! The option values of `leasehold-verify`, for the shell completions of `leasehold verify`.

/// The values of `--workload`.
pub const WORKLOADS: [&str; 10] =
    ["mutex", "reentrant", "rwlock", "semaphore", "fenced", "unfenced", "counter", "queue", "election", "ticks"];

/// The values of `--faults`, besides several with commas between them.
pub const FAULTS: [&str; 21] = [
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
    "read-only",
    "hang",
    "reshard",
    "grow",
];

/// The values of `--local`.
pub const ENGINES: [&str; 9] =
    ["memory", "file", "redis", "redis-sentinel", "redis-cluster", "redlock", "zookeeper", "mysql", "postgres"];
