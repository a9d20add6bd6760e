//! Scenarios in words, for timelines and for the lines of seeds that fail.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use super::{
    Act, Algorithm, Behaviour, Client, Clock, Configuration, Fault, FaultKind, Keeps, LimitKind,
    LinkFault, OnFailure, Parameters, Route, Scenario, Store, Topology, duration,
};

impl Scenario {
    /// What kind of scenario it is: the store, the gateways, how limits count, what goes wrong.
    #[must_use]
    pub fn summary(&self) -> String {
        let (limits, routes, bans) = match self.configurations.first() {
            Some(first) => (&first.limits[..], &first.routes[..], !first.bans.is_empty()),
            None => (&[][..], &[][..], false),
        };
        let kinds = limits.iter().map(|limit| match limit.prefetch {
            Some(_) => format!("{} with prefetch", limit.algorithm.name()),
            None => limit.algorithm.name().into(),
        });
        let delays = |route: &Route| !route.delay().is_zero();
        let faults = self.faults.iter().map(|fault| fault.kind.name());
        let parts = [
            (true, self.store.kind()),
            (true, plural(self.gateways.len(), "gateway")),
            (true, counted(kinds)),
            (routes.iter().any(delays), "delays".into()),
            (bans, "bans".into()),
            (
                self.configurations.len() > 1,
                plural(self.configurations.len(), "configuration"),
            ),
            (
                self.circumstances().contains(&"kind: check_only"),
                "check_only".into(),
            ),
            (!self.faults.is_empty(), counted(faults)),
        ];
        let parts = parts.into_iter().filter(|(is_there, _)| *is_there);
        let parts: Vec<String> = parts.map(|(_, text)| text).collect();
        parts.join("; ")
    }
}

fn plural(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

/// `a x 2, b`.
fn counted(all: impl Iterator<Item = String>) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for one in all {
        *counts.entry(one).or_default() += 1;
    }
    let texts = counts.into_iter().map(|(what, count)| match count {
        1 => what,
        _ => format!("{what} x {count}"),
    });
    texts.collect::<Vec<_>>().join(", ")
}

impl Store {
    fn kind(&self) -> String {
        let servers = match self.topology {
            Topology::Memory => return "memory".into(),
            Topology::Single => "one Redis",
            Topology::Sentinel { .. } => "Sentinel",
            Topology::Cluster { .. } => "Cluster",
        };
        let clock = if self.local_clock {
            ", clock: local"
        } else {
            ""
        };
        format!("{servers}, on_failure: {}{clock}", self.on_failure.yaml())
    }
}

impl Display for Store {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.topology {
            Topology::Memory | Topology::Single => {}
            Topology::Sentinel {
                replicas,
                sentinels,
                lag,
            } => write!(
                f,
                "{}, {sentinels} Sentinels; a write takes {lag:?} to a replica; ",
                plural(replicas, "replica"),
            )?,
            Topology::Cluster {
                primaries,
                replicas,
                lag,
            } => write!(
                f,
                "{primaries} primaries with {} each; a write takes {lag:?} to a replica; ",
                plural(replicas, "replica"),
            )?,
        }
        f.write_str(&self.kind())?;
        match self.topology {
            Topology::Memory => Ok(()),
            _ => write!(
                f,
                ", timeout: {}, lease: {}",
                duration(self.timeout),
                duration(self.lease)
            ),
        }
    }
}

impl Display for Clock {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return f.write_str("right");
        }
        let off = Duration::from_nanos(self.ahead.unsigned_abs());
        let side = if self.ahead < 0 { "behind" } else { "ahead" };
        let pace = if self.drift < 0 { "slow" } else { "fast" };
        let drift = self.drift.unsigned_abs();
        write!(f, "{off:.3?} {side}, and runs {drift} ppm {pace}")
    }
}

impl OnFailure {
    /// As in `on_failure: local`.
    #[must_use]
    pub fn yaml(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Local => "local",
        }
    }
}

impl Algorithm {
    fn name(self) -> &'static str {
        match self {
            Self::Gcra => "gcra",
            Self::FixedWindow | Self::WindowFromFirst => "fixed_window",
            Self::SlidingWindow { .. } => "sliding_window",
            Self::SlidingLog { .. } => "sliding_log",
            Self::InFlight => "in_flight",
        }
    }
}

impl Configuration {
    /// What a request on a route asks the store for, all at once and afterwards.
    #[must_use]
    pub fn batch(&self, route: &Route) -> String {
        let is_place = |name: &str| {
            let limit = self.limit(name);
            limit.is_some_and(|limit| limit.algorithm == Algorithm::InFlight)
        };
        let bans = self
            .bans
            .iter()
            .map(|ban| format!("the ban {:?}", ban.name));
        let (places, buckets): (Vec<_>, Vec<_>) =
            route.limits.iter().partition(|one| is_place(&one.limit));
        let buckets = buckets.iter().map(|one| match one.kind {
            LimitKind::CheckOnly => format!("{} (a look)", one.limit),
            _ => one.limit.clone(),
        });
        let batch: Vec<String> = bans.chain(buckets).collect();
        let mut text = match batch.is_empty() {
            true => "no batch".into(),
            false => format!("one batch: {}", batch.join(", ")),
        };
        if !places.is_empty() {
            let places: Vec<&str> = places.iter().map(|one| one.limit.as_str()).collect();
            text += &format!("; if these allow it, a place of {}", places.join(", "));
        }
        text
    }
}

impl Display for Parameters {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            burst,
            count,
            period,
        } = self;
        write!(f, "burst {burst}, count {count}, period {period:?}")
    }
}

impl Display for Client {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            id, address, route, ..
        } = self;
        let account = self.account.as_deref().unwrap_or("without an account");
        let gateway = match self.gateway {
            Some(gateway) => format!("gateway {gateway}"),
            None => "each gateway in turn".into(),
        };
        write!(
            f,
            "client {id}: {address}, {account}, asks for r{route} at {gateway}, {} at once each \
             {:?} from {:.3?} until {:.3?}, {}; the app takes {:?} to {:?}",
            self.at_once,
            self.interval,
            self.from,
            self.until,
            self.behaviour,
            self.app_takes.0,
            self.app_takes.1,
        )?;
        match self.app_fails {
            0 => Ok(()),
            percent => write!(f, ", and fails in {percent} of 100"),
        }
    }
}

impl Display for Behaviour {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steady => f.write_str("whatever it is told"),
            Self::Obeys => f.write_str("and obeys Retry-After"),
            Self::Hammers => f.write_str("at once if denied"),
            Self::Leaves(after) => write!(f, "and leaves within {after:?}"),
            Self::Lies => f.write_str("with false addresses and costs"),
        }
    }
}

impl Display for Act {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let ends = |length: &Option<Duration>| match length {
            Some(length) => format!("for {length:?}"),
            None => "without an end".into(),
        };
        match self {
            Self::Reload { configuration } => write!(f, "reload configuration {configuration}"),
            Self::Ban {
                ban,
                subject,
                length,
            } => write!(f, "ban {subject} by {ban:?} {}", ends(length)),
            Self::Lift { ban, subject } => write!(f, "lift the ban {ban:?} of {subject}"),
            Self::SetOverride {
                limit,
                subject,
                parameters,
                length,
            } => {
                let ends = ends(length);
                write!(f, "override {limit} of {subject} by {parameters}, {ends}")
            }
            Self::DeleteOverride { limit, subject } => {
                write!(f, "delete the override of {limit} of {subject}")
            }
            Self::Refund {
                limit,
                subject,
                cost,
            } => write!(f, "give {cost} units of {limit} back to {subject}"),
            Self::Reset { limit, subject } => write!(f, "reset {limit} of {subject}"),
            Self::Show { limit, subject } => write!(f, "show {limit} of {subject}"),
            Self::ShowBan { ban, subject } => write!(f, "show the ban {ban:?} of {subject}"),
        }
    }
}

impl FaultKind {
    /// Its name; a fault of the network has one for each thing that can be wrong.
    #[must_use]
    pub fn name(&self) -> String {
        let text = match self {
            Self::Link { what, .. } => format!("Link::{what:?}"),
            kind => format!("{kind:?}"),
        };
        let name = text.split([' ', '(', '{']).next();
        name.unwrap_or_default().into()
    }
}

impl Display for Fault {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let until = |lasts: &Duration| format!("until {:.3?}", self.at + *lasts);
        let again = |after: &Option<Duration>| match after {
            Some(after) => format!("and starts again at {:.3?}", self.at + *after),
            None => "for good".into(),
        };
        match &self.kind {
            FaultKind::Link {
                gateway,
                server,
                lasts,
                what,
            } => {
                let (gateway, server) = (whose("gateway", *gateway), whose("server", *server));
                let until = until(lasts);
                write!(
                    f,
                    "the network between {gateway} and {server} {what} {until}"
                )
            }
            FaultKind::KillGateway {
                gateway,
                restarts_after,
            } => write!(f, "gateway {gateway} is killed {}", again(restarts_after)),
            FaultKind::StopGateway {
                gateway,
                restarts_after,
            } => write!(f, "gateway {gateway} drains {}", again(restarts_after)),
            FaultKind::FreezeGateway { gateway, lasts } => {
                write!(f, "gateway {gateway} stands still {}", until(lasts))
            }
            FaultKind::StepGatewayClock { gateway, by } => {
                write!(f, "the clock of gateway {gateway} is set {}", set(*by))
            }
            FaultKind::StepServerClock { server, by } => {
                let server = whose("server", *server);
                write!(f, "the clock of {server} is set {}", set(*by))
            }
            FaultKind::FreezeServer { server, lasts } => {
                write!(f, "server {server} stands still {}", until(lasts))
            }
            FaultKind::RestartServer {
                server,
                down,
                keeps,
            } => {
                let until = until(down);
                write!(f, "server {server} is down {until}, and then knows {keeps}")
            }
            FaultKind::Failover { server } => {
                write!(
                    f,
                    "an operator has a replica take the place of server {server}"
                )
            }
            FaultKind::MoveSlots {
                slots,
                from,
                to,
                lasts,
            } => {
                let until = until(&(*lasts * u32::from(*slots)));
                write!(
                    f,
                    "{slots} slots move from server {from} to server {to} {until}"
                )
            }
            FaultKind::OutOfMemory { server, lasts } => {
                write!(
                    f,
                    "server {server} has no memory for writes {}",
                    until(lasts)
                )
            }
            FaultKind::Refuse {
                server,
                lasts,
                command,
            } => write!(f, "server {server} refuses {command} {}", until(lasts)),
            FaultKind::Flush { server } => write!(f, "server {server} loses all its data"),
            FaultKind::Evict { server, left } => {
                write!(
                    f,
                    "server {server} evicts keys until {left}% of its data is left"
                )
            }
            FaultKind::SlowApp { lasts, by } => {
                write!(f, "the app takes {by:?} longer {}", until(lasts))
            }
        }
    }
}

fn whose(what: &str, index: Option<usize>) -> String {
    match index {
        Some(index) => format!("{what} {index}"),
        None => format!("all {what}s"),
    }
}

/// By how much a clock is set.
fn set(by: i64) -> String {
    let side = if by < 0 { "back" } else { "ahead" };
    format!("{side} by {:.3?}", Duration::from_nanos(by.unsigned_abs()))
}

impl Display for LinkFault {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slow(by) => write!(f, "is slower by up to {by:?}"),
            Self::Stall => f.write_str("delivers nothing"),
            Self::HalfOpen => f.write_str("loses all that its connections carry, without a sign,"),
            Self::Refused => f.write_str("breaks, and refuses connections"),
            Self::Reset => f.write_str("breaks once, and has its effect"),
            Self::Lossy(percent) => write!(f, "breaks at {percent} of 100 writes"),
            Self::RepliesLost => f.write_str("loses replies"),
        }
    }
}

impl Display for Keeps {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::Everything => f.write_str("what it knew"),
            Self::AllBut(lost) => write!(f, "what it knew {lost:?} before"),
        }
    }
}
