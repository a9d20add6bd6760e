//! What happens in a simulation: plain data that a seed determines, and that can be shrunk by
//! leaving out parts. Times are world time: since the beginning of the simulation.

pub mod client;
mod configuration;
mod display;
mod focus;
mod generate;
mod rare;
mod stores;

use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use configuration::{
    Algorithm, Ban, Configuration, Cost, Limit, LimitKind, LimitUse, OnDenied, Override,
    Parameters, Per, Prefetch, Route, Strikes, duration,
};
pub use generate::subject;

/// One simulation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    /// Where the randomness of the world comes from: latencies, ports, hash seeds.
    pub seed: u64,
    /// Wall time at the beginning, nanoseconds since the Unix epoch.
    pub epoch: u64,
    /// For how long clients, operators and faults are active.
    pub duration: Duration,
    /// How long the world is left alone after that.
    pub quiet: Duration,
    /// The store that all gateways share.
    pub store: Store,
    /// What gateways are configured with, by index.
    pub configurations: Vec<Configuration>,
    /// The gateways.
    pub gateways: Vec<Gateway>,
    /// The clients.
    pub clients: Vec<Client>,
    /// What operators do, in any order.
    pub operations: Vec<Operation>,
    /// What goes wrong, in any order.
    pub faults: Vec<Fault>,
}

/// Where buckets are, and how gateways use it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Store {
    /// The servers.
    pub topology: Topology,
    /// What a gateway does without Redis.
    pub on_failure: OnFailure,
    /// How long a call may take.
    pub timeout: Duration,
    /// How long a place in flight outlives its gateway.
    pub lease: Duration,
    /// Whether gateways decide by their own clocks (`store.clock: local`).
    pub local_clock: bool,
    /// One-way latency between a gateway and a server: the least and the greatest.
    pub latency: (Duration, Duration),
    /// The clocks of the servers, by index.
    pub clocks: Vec<Clock>,
}

/// The servers that hold buckets. A server is named by its index: of a Cluster or under Sentinels,
/// primaries come first, and then the replicas of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Topology {
    /// Each gateway's own memory.
    Memory,
    /// One Redis server.
    Single,
    /// A primary with replicas, watched by Sentinels.
    Sentinel {
        replicas: usize,
        sentinels: usize,
        /// How long a write takes to reach a replica.
        lag: Duration,
    },
    /// A Redis Cluster.
    Cluster {
        primaries: usize,
        replicas: usize,
        /// How long a write takes to reach a replica.
        lag: Duration,
    },
}

impl Scenario {
    /// What it has that is no fault, and that runs should meet.
    #[must_use]
    pub fn circumstances(&self) -> Vec<&'static str> {
        let mut routes = self.configurations.iter().flat_map(|one| &one.routes);
        let looks = routes.any(|route| {
            let mut uses = route.limits.iter();
            uses.any(|one| one.kind == LimitKind::CheckOnly)
        });
        let limits = |one: &Configuration| one.limits.len();
        let most = self.configurations.iter().map(limits).max();
        let drops = self
            .configurations
            .iter()
            .any(|one| Some(limits(one)) < most);
        let all = [
            (drops, "a limit that reloads drop"),
            (looks, "kind: check_only"),
            (self.store.local_clock, "clock: local"),
        ];
        let met = all.into_iter().filter(|(is_met, _)| *is_met);
        met.map(|(_, name)| name).collect()
    }
}

impl Topology {
    /// How many servers hold buckets, Sentinels not counted.
    #[must_use]
    pub fn servers(self) -> usize {
        match self {
            Self::Memory => 0,
            Self::Single => 1,
            Self::Sentinel { replicas, .. } => 1 + replicas,
            Self::Cluster {
                primaries,
                replicas,
                ..
            } => primaries * (1 + replicas),
        }
    }
}

/// `store.redis.on_failure`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnFailure {
    /// Requests pass.
    Allow,
    /// Requests get 503.
    Deny,
    /// The memory store decides.
    Local,
}

/// A machine's clock, beside the world's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// How much it is ahead at the beginning, in nanoseconds.
    pub ahead: i64,
    /// How much faster it runs, in parts per million. Of a gateway, the monotonic clock as well.
    pub drift: i32,
}

/// One gateway process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gateway {
    /// The machine's clock.
    pub clock: Clock,
    /// When it starts.
    pub starts: Duration,
    /// Index of its configuration at the start.
    pub configuration: usize,
}

/// Who sends requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Client {
    /// Its own number, which stays when others are left out: its randomness depends on it.
    pub id: u64,
    /// Its address.
    pub address: IpAddr,
    /// The value of `x-api-key`, if it sends one.
    pub account: Option<String>,
    /// Index of the route that it asks for; routes are the same in all configurations.
    pub route: usize,
    /// Which gateway it asks: always this one, or each in turn.
    pub gateway: Option<usize>,
    /// Its first request.
    pub from: Duration,
    /// No request from here on.
    pub until: Duration,
    /// The mean time between two requests.
    pub interval: Duration,
    /// How many requests it sends at once.
    pub at_once: u32,
    /// How it behaves.
    pub behaviour: Behaviour,
    /// Least and greatest time that the app takes for one of its requests.
    pub app_takes: (Duration, Duration),
    /// How many of 100 of its requests the app fails, with 500.
    pub app_fails: u64,
    /// The greatest cost of one of its requests, for limits whose cost the request or response
    /// says.
    pub cost: u64,
}

/// How a client behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Behaviour {
    /// One request after the other at its interval, whatever it is told.
    Steady,
    /// Waits for Retry-After when denied, and then sends the same request again.
    Obeys,
    /// Sends again as soon as it is denied.
    Hammers,
    /// Gives up requests that are not answered within this time.
    Leaves(Duration),
    /// Sends headers that claim other addresses, and costs out of range.
    Lies,
}

/// What an operator or a deployment does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// When.
    pub at: Duration,
    /// Which gateway is asked.
    pub gateway: usize,
    /// What.
    pub act: Act,
}

/// What is asked of a gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Act {
    /// Puts a configuration in place of the one in force, and reloads.
    Reload { configuration: usize },
    /// `PUT /v1/bans/{ban}/{subject}`.
    Ban {
        ban: String,
        subject: String,
        /// For how long; `None` is for ever.
        length: Option<Duration>,
    },
    /// `DELETE /v1/bans/{ban}/{subject}`.
    Lift { ban: String, subject: String },
    /// `PUT /v1/overrides/{limit}/{subject}`.
    SetOverride {
        limit: String,
        subject: String,
        parameters: Parameters,
        /// For how long; `None` is until it is deleted.
        length: Option<Duration>,
    },
    /// `DELETE /v1/overrides/{limit}/{subject}`.
    DeleteOverride { limit: String, subject: String },
    /// `POST /v1/buckets/{limit}/{subject}/refund`.
    Refund {
        limit: String,
        subject: String,
        /// How many units.
        cost: u64,
    },
    /// `DELETE /v1/buckets/{limit}/{subject}`.
    Reset { limit: String, subject: String },
    /// `GET /v1/buckets/{limit}/{subject}`. At the end of each scenario, of each subject.
    Show { limit: String, subject: String },
    /// `GET /v1/bans/{ban}/{subject}`.
    ShowBan { ban: String, subject: String },
}

/// Something that goes wrong.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// When it begins.
    pub at: Duration,
    /// What.
    pub kind: FaultKind,
}

/// What goes wrong. A gateway or server that is `None` stands for all of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FaultKind {
    /// The network between a gateway and a server.
    Link {
        gateway: Option<usize>,
        server: Option<usize>,
        lasts: Duration,
        what: LinkFault,
    },
    /// `kill -9`; nothing is cleaned up.
    KillGateway {
        gateway: usize,
        /// How long after that it starts again, if it does.
        restarts_after: Option<Duration>,
    },
    /// SIGTERM: the gateway drains and ends.
    StopGateway {
        gateway: usize,
        /// How long after that it starts again, if it does.
        restarts_after: Option<Duration>,
    },
    /// SIGSTOP, and SIGCONT after `lasts`.
    FreezeGateway { gateway: usize, lasts: Duration },
    /// The wall clock of a gateway's machine is set.
    StepGatewayClock {
        gateway: usize,
        /// By how many nanoseconds.
        by: i64,
    },
    /// The clock of a server's machine is set.
    StepServerClock {
        /// Which; `None` is all.
        server: Option<usize>,
        /// By how many nanoseconds.
        by: i64,
    },
    /// A server that does nothing, with open sockets. A primary is replaced if that lasts.
    FreezeServer { server: usize, lasts: Duration },
    /// A server that dies, and starts again. A primary with replicas is replaced if that lasts.
    RestartServer {
        server: usize,
        down: Duration,
        /// What it knows when it is back.
        keeps: Keeps,
    },
    /// A failover that an operator asks for (`SENTINEL FAILOVER`, `CLUSTER FAILOVER`).
    Failover {
        /// The primary that is replaced.
        server: usize,
    },
    /// Slots of a Cluster move to another primary while they are used.
    MoveSlots {
        /// How many, of those that are in use first.
        slots: u16,
        from: usize,
        to: usize,
        /// How long the migration of each takes.
        lasts: Duration,
    },
    /// A server has no memory left, and refuses writes.
    OutOfMemory { server: usize, lasts: Duration },
    /// A server refuses commands for lack of rights.
    Refuse {
        server: usize,
        lasts: Duration,
        /// The command, in capitals.
        command: String,
    },
    /// Everything in a server is deleted.
    Flush { server: usize },
    /// A primary that is short of memory evicts the keys that expire next (`volatile-ttl`).
    Evict {
        server: usize,
        /// How many of 100 bytes of its data are left.
        left: u64,
    },
    /// The app of all gateways takes this much longer.
    SlowApp {
        lasts: Duration,
        /// How much longer it takes.
        by: Duration,
    },
}

/// What is wrong with a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkFault {
    /// Everything arrives later by up to this much.
    Slow(Duration),
    /// Nothing arrives; it does when the fault is over.
    Stall,
    /// Everything that is sent is lost without a sign, in both directions, for good.
    HalfOpen,
    /// Connections break, and new ones are refused.
    Refused,
    /// Connections break once, with what was on its way; new ones work.
    Reset,
    /// In each 100 writes, this many break the connection in the middle of what is sent.
    Lossy(u64),
    /// Replies are lost and requests arrive.
    RepliesLost,
}

/// What a server knows after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Keeps {
    Nothing,
    Everything,
    /// What it knew this long before its death.
    AllBut(Duration),
}
