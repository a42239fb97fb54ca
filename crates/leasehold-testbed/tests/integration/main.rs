//! Tests of the testbed itself: real servers start, die, pause and are partitioned as requested.

mod actor;
mod actor_clock;
mod common;
mod disk;
mod eventually;
mod mariadb;
mod port_theft;
mod postgres;
mod process_cleanup;
mod proxy;
mod proxy_silence;
mod redis_clock;
mod redis_cluster;
mod redis_sentinel;
mod redis_tls;
mod server;
mod zookeeper;
