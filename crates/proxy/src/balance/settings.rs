//! How an upstream's servers share its requests: what the configuration decides.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use weir_http::status_set::StatusSet;

/// How the next server is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// Each in turn, as often as its weight says.
    #[default]
    RoundRobin,
    /// Two servers are chosen at random; the one with fewer requests in flight for its weight gets
    /// the request.
    LeastRequests,
    /// The server that a hash of the request's subject leads to.
    Hash,
}

/// How clients stay on their servers.
#[derive(Clone, PartialEq, Eq)]
pub struct Sticky {
    /// The cookie's name.
    pub cookie: Arc<str>,
    /// The first one signs cookies, and those of the others are valid as well. Gateways that share
    /// clients share them.
    pub keys: Vec<Arc<[u8]>>,
    /// How long a client keeps the cookie; until it ends its session by default.
    pub max_age: Option<Duration>,
}

/// Shows nothing of the keys.
impl fmt::Debug for Sticky {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sticky")
            .field("cookie", &self.cookie)
            .field("max_age", &self.max_age)
            .finish_non_exhaustive()
    }
}

/// When a server that fails gets no requests for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// How many failures in a row eject a server that still accepts connections.
    pub failures: u32,
    /// Which statuses are failures.
    pub status: StatusSet,
    /// For how long a server is ejected the first time; twice as long each time after that.
    pub base_time: Duration,
    /// For how long it is ejected at most.
    pub max_time: Duration,
    /// How many of the servers may be ejected at a time, in percent, rounded up; never all.
    pub max_ejected: u8,
}

impl Ejection {
    /// Unless configured otherwise, five failures in a row.
    pub const FAILURES: u32 = 5;
    /// Unless configured otherwise, a second.
    pub const BASE_TIME: Duration = Duration::from_secs(1);
    /// Unless configured otherwise, a minute.
    pub const MAX_TIME: Duration = Duration::from_secs(60);
    /// Unless configured otherwise, half of the servers.
    pub const MAX_EJECTED: u8 = 50;

    /// How many of `servers` may be ejected at a time.
    pub(super) fn max_ejected_servers(&self, servers: usize) -> usize {
        let share = (servers * usize::from(self.max_ejected)).div_ceil(100);
        share.min(servers.saturating_sub(1))
    }
}

impl Default for Ejection {
    fn default() -> Self {
        Self {
            failures: Self::FAILURES,
            status: "5xx".parse().ok().into_iter().collect(),
            base_time: Self::BASE_TIME,
            max_time: Self::MAX_TIME,
            max_ejected: Self::MAX_EJECTED,
        }
    }
}

/// When a request that failed is sent again, to another server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retries {
    /// How many retries there may be at a time, in percent of the requests in flight.
    pub budget: u8,
    /// After the server closed the connection without a response.
    pub on_closed: bool,
    /// After the server took too long to respond.
    pub on_timeout: bool,
    /// After a response with one of these statuses.
    pub on_status: StatusSet,
}

impl Retries {
    /// Unless configured otherwise, a fifth of the requests in flight.
    pub const BUDGET: u8 = 20;
    /// How many retries there may be at a time with few requests in flight.
    pub(super) const MIN_BUDGET: usize = 3;
    /// How long a retry waits for room in the budget.
    pub(crate) const MAX_WAIT: Duration = Duration::from_secs(1);
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            budget: Self::BUDGET,
            on_closed: true,
            on_timeout: true,
            on_status: StatusSet::default(),
        }
    }
}

/// How the process asks servers at intervals whether they are healthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The path, and query, that is asked for.
    pub path: Arc<str>,
    /// How long it waits between two checks.
    pub interval: Duration,
    /// How long a check may take.
    pub timeout: Duration,
    /// How many checks in a row must pass before a server that was unhealthy is healthy.
    pub healthy_after: u32,
    /// How many checks in a row must fail before a server that was healthy is unhealthy.
    pub unhealthy_after: u32,
    /// The statuses with which a check passes.
    pub expect: StatusSet,
}

impl HealthCheck {
    /// A check of this path, with what holds unless configured otherwise.
    pub fn new(path: Arc<str>) -> Self {
        Self {
            path,
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(1),
            healthy_after: 2,
            unhealthy_after: 3,
            expect: "200-399".parse().ok().into_iter().collect(),
        }
    }
}
