//! A Redis server in memory, without sockets or a clock of its own.
//!
//! It knows the commands that Weir sends, and answers them byte for byte as Redis 7.0 does, which
//! `tests/redis` holds it to. What it does depends on nothing but what it is told: the bytes of its
//! clients, the time by its own clock, and what the world does to it.
//!
//! What a real server leaves to chance is fixed here: the order of `SCAN`, the fields of a hash in
//! the order in which they were added (Redis shuffles those of more than 128), and which key is
//! evicted, where Redis takes samples. Memory is counted by a model, and `INFO` tells little.
//!
//! Not simulated: keyspace notifications, `WATCH`, client-side caching, scripts, blocking commands,
//! and publishing but for what Sentinels publish, since Weir uses none of these.

mod bitfield;
mod call;
mod checks;
mod client;
mod cluster;
mod command;
mod effect;
mod execution;
mod hashes;
mod keyspace;
mod protocol;
mod replication;
mod role;
mod scan;
mod sentinel;
mod server;
mod session;
mod sorted_set;
mod sorted_sets;
mod strings;
mod users;
mod watched;

pub use client::ClientId;
pub use cluster::{ClusterNode, ClusterView, SLOTS, slot_of};
pub use effect::Effect;
pub use replication::{MovedKey, Snapshot};
pub use role::{ReplicaStatus, Role};
pub use sentinel::Sentinel;
pub use server::{Conditions, Config, EMPTY_BYTES, Eviction, Now, Output, Server};
pub use users::{Rights, User};
pub use watched::Watched;
