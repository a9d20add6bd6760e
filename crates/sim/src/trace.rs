//! What happened in a simulation, as plain events in the order of world time.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::scenario::client::Request;

/// A simulation that is over.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// Its events, the earliest first.
    pub events: Vec<Event>,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// World time.
    pub at: Duration,
    /// What.
    pub what: What,
}

/// A moment of world time, in the form in which timelines and laws name it.
#[must_use]
pub fn moment(at: Duration) -> String {
    format!("{}.{:06}", at.as_secs(), at.subsec_micros())
}

/// What happened. Gateways, servers, operations and faults are named by their index in the
/// scenario.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    Sent(Request),
    /// A request got to the app.
    ReachedApp {
        request: (u64, u32),
        gateway: usize,
    },
    /// The head of a response got to the client.
    Answered {
        request: (u64, u32),
        status: u16,
        /// All its header fields, names in lower case.
        headers: Vec<(String, String)>,
    },
    /// The last byte of a response got to the client.
    Finished {
        request: (u64, u32),
    },
    /// A client did not wait for the response, or for its end.
    Left {
        request: (u64, u32),
    },
    /// A request found no gateway, or lost its connection when one died.
    Broken {
        request: (u64, u32),
    },
    /// An operator sent a request to the admin API.
    Operated {
        operation: usize,
    },
    /// An operator got a response; 0 if there was none.
    OperationAnswered {
        operation: usize,
        status: u16,
        body: String,
    },
    /// A gateway started to serve, with a configuration.
    Started {
        gateway: usize,
        configuration: usize,
    },
    /// A gateway died or ended.
    Ended {
        gateway: usize,
    },
    /// Requests that come from now on are decided by this configuration.
    InForce {
        gateway: usize,
        configuration: usize,
    },
    /// A fault began.
    FaultBegan {
        fault: usize,
    },
    /// A fault ended: what it did to the network or the server is undone.
    FaultEnded {
        fault: usize,
    },
    /// A server became a primary, by a failover or otherwise.
    Promoted {
        server: usize,
        /// The primary whose place it took.
        replaced: usize,
        /// Writes of the former primary that it had not got, as far as the world knows.
        lost_writes: u64,
    },
    /// Slot 0 of a Cluster, whose node's clock gateways follow, moved from one server to another.
    SlotZeroMoved {
        from: usize,
        to: usize,
    },
    /// A line of a gateway's log, access log not included.
    Log {
        gateway: usize,
        /// `ERROR`, `WARN`, `INFO`.
        level: String,
        /// The text with its fields.
        line: String,
    },
    /// The last fault is over, and nobody sends requests any more.
    Quiet,
    /// What a gateway holds at the end of the quiet time.
    Holds {
        gateway: usize,
        /// Tasks, requests, leases and connections, by name.
        counts: Vec<(String, u64)>,
    },
}
