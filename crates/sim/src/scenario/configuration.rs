//! The configuration of a gateway, structured, and as the files that a gateway reads.

use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Store, Topology};

/// What a gateway enforces.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Configuration {
    /// The limits.
    pub limits: Vec<Limit>,
    /// The routes; the path of the one at index `n` is `/rn`.
    pub routes: Vec<Route>,
    /// The bans.
    pub bans: Vec<Ban>,
}

/// A named limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// Its name.
    pub name: String,
    /// What it is counted per.
    pub per: Per,
    /// How it counts.
    pub algorithm: Algorithm,
    /// How much passes.
    pub parameters: Parameters,
    /// Units taken in advance.
    pub prefetch: Option<Prefetch>,
    /// Other parameters for some subjects.
    pub overrides: Vec<Override>,
}

/// What a limit is counted per.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Per {
    /// The client's address.
    Address,
    /// The account, which is the value of `x-api-key`.
    Account,
    Global,
}

/// How a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Algorithm {
    /// `gcra`.
    Gcra,
    /// `fixed_window` with `align: period`.
    FixedWindow,
    /// `fixed_window` with `align: first_request`.
    WindowFromFirst,
    /// `sliding_window`.
    SlidingWindow {
        /// Whether denied requests count.
        count_denied: bool,
    },
    /// `sliding_log`.
    SlidingLog {
        /// Whether denied requests count.
        count_denied: bool,
    },
    /// `in_flight`; the count of the parameters is the number of places.
    InFlight,
}

/// How much a limit lets through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameters {
    /// Units of a full bucket; the `count` for all algorithms but GCRA.
    pub burst: u64,
    /// Units a period.
    pub count: u64,
    /// The period.
    pub period: Duration,
}

/// `prefetch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prefetch {
    /// Units that a gateway holds at most.
    pub units: u64,
    /// For how long.
    pub max_age: Duration,
}

/// Other parameters of a limit for one subject.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Override {
    /// The subject.
    pub id: String,
    /// What applies.
    pub parameters: Parameters,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Route {
    /// Its limits.
    pub limits: Vec<LimitUse>,
    /// What a denied request gets.
    pub on_denied: OnDenied,
}

/// A limit on a route.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LimitUse {
    /// The limit's name.
    pub limit: String,
    /// What a request does with the bucket.
    pub kind: LimitKind,
    /// What a request takes.
    pub cost: Cost,
    /// Whether only responses with a status from 400 to 599 take.
    pub spend_on_errors: bool,
    /// Whether responses with a status from 500 to 599 give back.
    pub refund_on_5xx: bool,
    /// Whether its denials are acted upon.
    pub enforce: bool,
}

/// `kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LimitKind {
    /// Denies and takes.
    CheckAndSpend,
    CheckOnly,
    SpendOnly,
}

/// The cost of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cost {
    Fixed(u64),
    /// What the request says by `x-cost`, or the default.
    RequestHeader {
        /// Where it says nothing.
        default: u64,
    },
    /// What the response says by `x-cost`, or the default.
    ResponseHeader {
        /// Where it says nothing.
        default: u64,
    },
}

/// `on_denied` of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnDenied {
    /// 429.
    Reject,
    /// Requests wait.
    Delay {
        /// For how long at most.
        up_to: Duration,
        /// How many at a time.
        max_requests: u64,
    },
    /// The response of a decoy, with status 200 and the header `x-decoy: 1`.
    Shadow,
}

/// A ban.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ban {
    /// Its name.
    pub name: String,
    /// Whom it bans.
    pub per: Per,
    /// What causes it.
    pub strikes: Strikes,
    /// How long the first one is.
    pub length: Duration,
    /// How much longer each is than the one before.
    pub factor: u64,
    /// The longest.
    pub max: Duration,
}

/// What causes a ban.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Strikes {
    /// Denials by these limits.
    pub limits: Vec<String>,
    /// Whether responses with a status from 500 to 599 are strikes.
    pub on_5xx: bool,
    /// How many strikes.
    pub count: u64,
    /// Within how long.
    pub period: Duration,
}

impl Configuration {
    /// The text of `gateway.yaml`. `store` is everything below `store.redis` that says where Redis
    /// is, such as `url: redis://10.0.0.1:6379`, or empty with the memory store. Limits are in the
    /// same file; Weir reads no other.
    #[must_use]
    pub fn yaml(&self, settings: &Store, redis: &str) -> String {
        let mut text = String::new();
        self.write(settings, redis, &mut text).unwrap_or_default();
        text
    }

    fn write(&self, store: &Store, redis: &str, out: &mut String) -> std::fmt::Result {
        writeln!(out, "listen: {{address: \"127.0.0.1:8080\"}}")?;
        writeln!(out, "admin: {{address: \"127.0.0.1:9901\"}}")?;
        writeln!(
            out,
            "watch: false\nworkers: 1\nhash_key: {{file: hash.key}}"
        )?;
        writeln!(out, "account: [{{header: x-api-key}}]")?;
        if store.topology == Topology::Memory {
            writeln!(out, "store: {{memory: {{max_buckets: 10000}}}}")?;
        } else {
            writeln!(out, "store:\n  memory: {{max_buckets: 10000}}")?;
            writeln!(
                out,
                "  clock: {}",
                if store.local_clock { "local" } else { "store" }
            )?;
            writeln!(out, "  redis:\n    {redis}")?;
            writeln!(out, "    on_failure: {}", store.on_failure.yaml())?;
            writeln!(out, "    timeout: {}", duration(store.timeout))?;
            writeln!(out, "    lease: {}", duration(store.lease))?;
        }
        writeln!(
            out,
            "upstreams: {{app: {{servers: [\"http://127.0.0.1:3000\"]}}}}"
        )?;
        writeln!(
            out,
            "decoys: {{decoy: {{headers: {{x-decoy: \"1\"}}, body: decoy}}}}"
        )?;
        self.write_rules(out)
    }

    /// The part of `gateway.yaml` that says what is limited.
    #[must_use]
    pub fn rules(&self) -> String {
        let mut text = String::new();
        self.write_rules(&mut text).unwrap_or_default();
        text
    }

    fn write_rules(&self, out: &mut String) -> std::fmt::Result {
        self.write_limits(out)?;
        self.write_bans(out)?;
        writeln!(out, "routes:")?;
        for (index, route) in self.routes.iter().enumerate() {
            route.write(index, out)?;
        }
        Ok(())
    }

    fn write_limits(&self, out: &mut String) -> std::fmt::Result {
        if self.limits.is_empty() {
            writeln!(out, "limits: {{}}")?;
        } else {
            writeln!(out, "limits:")?;
        }
        for limit in &self.limits {
            write!(out, "  {}: {{per: {}", limit.name, limit.per.yaml())?;
            match limit.algorithm {
                Algorithm::Gcra | Algorithm::InFlight => {}
                Algorithm::FixedWindow => write!(out, ", algorithm: fixed_window")?,
                Algorithm::WindowFromFirst => {
                    write!(out, ", algorithm: fixed_window, align: first_request")?;
                }
                Algorithm::SlidingWindow { count_denied } => {
                    write!(
                        out,
                        ", algorithm: sliding_window, count_denied: {count_denied}"
                    )?;
                }
                Algorithm::SlidingLog { count_denied } => {
                    write!(
                        out,
                        ", algorithm: sliding_log, count_denied: {count_denied}"
                    )?;
                }
            }
            write!(out, ", {}", limit.parameters.yaml(limit.algorithm))?;
            if let Some(prefetch) = limit.prefetch {
                let age = duration(prefetch.max_age);
                write!(
                    out,
                    ", prefetch: {{units: {}, max_age: {age}}}",
                    prefetch.units
                )?;
            }
            writeln!(out, "}}")?;
        }
        if self.limits.iter().all(|limit| limit.overrides.is_empty()) {
            return writeln!(out, "overrides: []");
        }
        writeln!(out, "overrides:")?;
        for limit in &self.limits {
            for one in &limit.overrides {
                let parameters = one.parameters.yaml(limit.algorithm);
                writeln!(
                    out,
                    "  - {}: {{{parameters}, ids: [\"{}\"]}}",
                    limit.name, one.id
                )?;
            }
        }
        Ok(())
    }

    fn write_bans(&self, out: &mut String) -> std::fmt::Result {
        if self.bans.is_empty() {
            return Ok(());
        }
        writeln!(out, "bans:")?;
        for ban in &self.bans {
            writeln!(out, "  {}:\n    per: {}", ban.name, ban.per.yaml())?;
            write!(out, "    strikes: {{count: {}", ban.strikes.count)?;
            write!(out, ", period: {}", duration(ban.strikes.period))?;
            if !ban.strikes.limits.is_empty() {
                // The laws take every denial for a strike.
                write!(out, ", workers: 0")?;
                write!(out, ", limits: [{}]", ban.strikes.limits.join(", "))?;
            }
            if ban.strikes.on_5xx {
                write!(out, ", status: 5xx")?;
            }
            writeln!(out, "}}\n    for: {}", duration(ban.length))?;
            if ban.factor > 1 {
                writeln!(
                    out,
                    "    factor: {}\n    max: {}",
                    ban.factor,
                    duration(ban.max)
                )?;
            }
            // No other response has this status: what never fits gets 403.
            writeln!(out, "    on_denied: {{reject: {{status: 410}}}}")?;
        }
        Ok(())
    }

    /// The limit of this name.
    #[must_use]
    pub fn limit(&self, name: &str) -> Option<&Limit> {
        self.limits.iter().find(|limit| limit.name == name)
    }
}

impl Configuration {
    /// One route, which uses these limits so, and no ban.
    pub(super) fn new(limits: Vec<Limit>, uses: Vec<LimitUse>, on_denied: OnDenied) -> Self {
        let route = Route {
            limits: uses,
            on_denied,
        };
        Self {
            limits,
            routes: vec![route],
            bans: Vec::new(),
        }
    }
}

impl LimitUse {
    /// Each request takes what it costs, or is denied.
    pub(super) fn new(limit: &Limit, cost: Cost) -> Self {
        Self {
            limit: limit.name.clone(),
            kind: LimitKind::CheckAndSpend,
            cost,
            spend_on_errors: false,
            refund_on_5xx: false,
            enforce: true,
        }
    }
}

impl Limit {
    /// The one of a number, without prefetch and overrides.
    pub(super) fn new(
        index: usize,
        per: Per,
        algorithm: Algorithm,
        parameters: Parameters,
    ) -> Self {
        Self {
            name: format!("L{index}"),
            per,
            algorithm,
            parameters,
            prefetch: None,
            overrides: Vec::new(),
        }
    }

    /// What applies to a subject by the configuration alone.
    #[must_use]
    pub fn parameters(&self, subject: &str) -> Parameters {
        let own = self.overrides.iter().find(|one| one.id == subject);
        own.map_or(self.parameters, |one| one.parameters)
    }
}

impl Per {
    /// As in `per: address`.
    #[must_use]
    pub fn yaml(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Account => "account",
            Self::Global => "global",
        }
    }
}

impl Parameters {
    /// As keys of a limit, also as the body of an override.
    fn yaml(self, algorithm: Algorithm) -> String {
        let period = duration(self.period);
        match algorithm {
            Algorithm::InFlight => format!("in_flight: {}", self.count),
            Algorithm::Gcra => {
                format!(
                    "burst: {}, count: {}, period: {period}",
                    self.burst, self.count
                )
            }
            _ => format!("count: {}, period: {period}", self.count),
        }
    }

    /// As the JSON body of `PUT /v1/overrides/...`, without braces.
    #[must_use]
    pub fn json(self, algorithm: Algorithm) -> String {
        let period = duration(self.period);
        match algorithm {
            Algorithm::InFlight => format!(r#""in_flight": {}"#, self.count),
            Algorithm::Gcra => format!(
                r#""burst": {}, "count": {}, "period": "{period}""#,
                self.burst, self.count
            ),
            _ => format!(r#""count": {}, "period": "{period}""#, self.count),
        }
    }
}

impl Route {
    /// For how long its requests may wait.
    #[must_use]
    pub fn delay(&self) -> Duration {
        match self.on_denied {
            OnDenied::Delay { up_to, .. } => up_to,
            OnDenied::Reject | OnDenied::Shadow => Duration::ZERO,
        }
    }

    fn write(&self, index: usize, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "  - name: r{index}\n    match: {{path: /r{index}}}\n    upstream: app"
        )?;
        match self.on_denied {
            OnDenied::Reject => {}
            OnDenied::Shadow => {
                writeln!(
                    out,
                    "    on_denied: {{shadow: decoy}}\n    ratelimit_headers: none"
                )?;
            }
            OnDenied::Delay {
                up_to,
                max_requests,
            } => writeln!(
                out,
                "    on_denied: {{delay: {{up_to: {}, max_requests: {max_requests}}}}}",
                duration(up_to)
            )?,
        }
        if self.limits.is_empty() {
            return writeln!(out, "    limits: []");
        }
        writeln!(out, "    limits:")?;
        for one in &self.limits {
            write!(out, "      - {{limit: {}", one.limit)?;
            match one.kind {
                LimitKind::CheckAndSpend => {}
                LimitKind::CheckOnly => write!(out, ", kind: check_only")?,
                LimitKind::SpendOnly => write!(out, ", kind: spend_only")?,
            }
            match one.cost {
                Cost::Fixed(1) => {}
                Cost::Fixed(cost) => write!(out, ", cost: {cost}")?,
                Cost::RequestHeader { default } => {
                    write!(
                        out,
                        ", cost: {{request_header: x-cost, default: {default}}}"
                    )?;
                }
                Cost::ResponseHeader { default } => {
                    write!(
                        out,
                        ", cost: {{response_header: x-cost, default: {default}}}"
                    )?;
                }
            }
            if one.spend_on_errors {
                write!(out, ", spend_on: {{status: 400-599}}")?;
            }
            if one.refund_on_5xx {
                write!(out, ", refund_on: {{status: 5xx}}")?;
            }
            if !one.enforce {
                write!(out, ", enforce: false")?;
            }
            writeln!(out, "}}")?;
        }
        Ok(())
    }
}

/// A duration as Weir's files have it.
#[must_use]
pub fn duration(duration: Duration) -> String {
    match (duration.as_nanos(), duration.subsec_millis()) {
        (nanos, _) if nanos % 1_000_000 != 0 => format!("{nanos}ns"),
        (_, 0) => format!("{}s", duration.as_secs()),
        _ => format!("{}ms", duration.as_millis()),
    }
}
