//! A request of the past, as a log tells of it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, StatusCode};

use crate::telemetry::Disposition;
use crate::time::Timestamp;

/// A request, with no more of it than the rules ask for.
#[derive(Debug)]
pub struct Line {
    /// When it was decided about, or arrived where the log does not say that.
    pub at: Timestamp,
    /// When its response began.
    pub answered: Timestamp,
    /// When its response was over.
    pub ended: Timestamp,
    /// The client's address.
    pub client: IpAddr,
    /// The method.
    pub method: Method,
    /// The path, and the query where it is logged.
    pub target: PathAndQuery,
    /// The status of the response; none if the client left before.
    pub status: Option<StatusCode>,
    /// What only some rules ask for.
    pub details: Option<Box<Details>>,
    /// What Weir decided at the time.
    pub recorded: Option<Recorded>,
}

/// What only some rules ask for.
#[derive(Clone, Debug, Default)]
pub struct Details {
    /// The headers that the log has, `Host` among them.
    pub headers: HeaderMap,
    /// The account, as the log has it.
    pub account: Option<Box<str>>,
    /// The route that it took at the time.
    pub route: Option<Box<str>>,
}

/// Which details are kept of lines.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wants {
    /// The host.
    pub host: bool,
    /// All other headers that the log has.
    pub headers: bool,
    /// The account.
    pub account: bool,
    /// The route that was taken.
    pub route: bool,
}

impl Wants {
    /// What either wants.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            host: self.host || other.host,
            headers: self.headers || other.headers,
            account: self.account || other.account,
            route: self.route || other.route,
        }
    }
}

/// What Weir's log says that was decided.
#[derive(Clone, Copy, Debug)]
pub struct Recorded {
    /// The decision.
    pub decision: Disposition,
    /// The limit or the ban that decided.
    pub by: Option<Name>,
    /// Whether the store decided. Without it, as when Redis was out of reach, nothing can be compared.
    pub is_comparable: bool,
}

/// The name of a limit or a ban, as a number of [`Names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(u16);

/// The names of all limits and bans of the configurations, of which lines know the numbers.
#[derive(Debug, Default)]
pub struct Names {
    names: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, Name>,
}

impl Name {
    /// A name that is in none of the configurations.
    pub const UNKNOWN: Self = Self(u16::MAX);
}

impl Names {
    /// The number of a name, which gets one if it has none.
    pub fn add(&mut self, name: &str) -> Name {
        if let Some(known) = self.numbers.get(name) {
            return *known;
        }
        let number = u16::try_from(self.names.len()).map_or(Name::UNKNOWN, Name);
        let name: Arc<str> = name.into();
        self.names.push(Arc::clone(&name));
        self.numbers.insert(name, number);
        number
    }

    /// The number of a name.
    pub fn find(&self, name: &str) -> Name {
        self.numbers.get(name).copied().unwrap_or(Name::UNKNOWN)
    }

    /// The name of a number.
    pub fn name(&self, name: Name) -> &str {
        let known = self.names.get(usize::from(name.0));
        known.map_or("(unknown)", |name| name)
    }
}

/// The parts of a line, as they stand in it.
#[derive(Debug)]
pub struct RawLine<'l> {
    pub at: Timestamp,
    pub answered: Timestamp,
    pub ended: Timestamp,
    pub client: IpAddr,
    pub method: &'l [u8],
    pub path: &'l str,
    pub query: Option<&'l str>,
    pub status: Option<u16>,
    pub host: Option<&'l str>,
    /// Other headers.
    pub headers: &'l [(&'l str, &'l str)],
    pub account: Option<&'l str>,
    pub route: Option<&'l str>,
    pub recorded: Option<Recorded>,
}

impl RawLine<'_> {
    /// The line with the details that are wanted; none where it is not a request that HTTP allows.
    pub fn line(&self, wants: Wants) -> Option<Line> {
        let target = match self.query.filter(|query| !query.is_empty()) {
            Some(query) => format!("{}?{query}", self.path).parse().ok()?,
            None => self.path.parse().ok()?,
        };
        let status = self.status.filter(|status| *status != LEFT);
        Some(Line {
            at: self.at,
            answered: self.answered,
            ended: self.ended,
            client: self.client.to_canonical(),
            method: Method::from_bytes(self.method).ok()?,
            target,
            status: status.and_then(|status| StatusCode::from_u16(status).ok()),
            details: self.details(wants),
            recorded: self.recorded,
        })
    }

    fn details(&self, wants: Wants) -> Option<Box<Details>> {
        let host = self.host.filter(|_| wants.host);
        let account = self.account.filter(|_| wants.account);
        let route = self.route.filter(|_| wants.route);
        let named = if wants.headers { self.headers } else { &[] };
        if host.is_none() && account.is_none() && route.is_none() && named.is_empty() {
            return None;
        }
        let mut headers = HeaderMap::new();
        if let Some(host) = host.and_then(|host| HeaderValue::from_str(host).ok()) {
            headers.insert(http::header::HOST, host);
        }
        for (name, value) in named {
            if let (Ok(name), Ok(value)) = (
                http::HeaderName::from_bytes(name.as_bytes()),
                HeaderValue::from_str(value),
            ) {
                headers.append(name, value);
            }
        }
        Some(Box::new(Details {
            headers,
            account: account.map(Into::into),
            route: route.map(Into::into),
        }))
    }
}

/// The status that stands in logs, after nginx, for a client that left before the response.
const LEFT: u16 = 499;
