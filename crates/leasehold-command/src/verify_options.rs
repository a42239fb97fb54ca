//! The option values of `leasehold-verify`, for the shell completions of `leasehold verify`.

/// The values of `leasehold verify --workload`.
pub const WORKLOADS: [&str; 10] =
    ["mutex", "reentrant", "rwlock", "semaphore", "fenced", "unfenced", "counter", "queue", "election", "ticks"];

/// The values of `leasehold verify --faults`; several can be joined with commas.
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

/// The values of `leasehold verify --local`: the engines whose servers it can start itself.
pub const ENGINES: [&str; 9] =
    ["memory", "file", "redis", "redis-sentinel", "redis-cluster", "redlock", "zookeeper", "mysql", "postgres"];
