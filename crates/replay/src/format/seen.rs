//! What the lines of a log have, so that no rule is replayed that asks for what they have not.

use std::collections::HashSet;

use http::HeaderName;

use super::{Format, LogLine, Parser, split_query};

/// What rules ask of a log.
#[derive(Clone, Debug, Default)]
pub struct LogNeeds {
    pub host: bool,
    pub headers: HashSet<HeaderName>,
    pub account: bool,
    pub query: bool,
    /// When responses ended, after requests began.
    pub durations: bool,
    pub status: bool,
}

/// What the first lines of a log have.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The requests that were looked at.
    pub requests: u64,
    with_host: u64,
    headers: HashSet<HeaderName>,
    /// The routes that requests took, by Weir's log.
    routes: HashSet<Box<str>>,
    pub has_accounts: bool,
    /// Whether the lines have the queries of those requests that had one.
    pub has_queries: bool,
    /// Whether any request has a query.
    pub is_any_query_given: bool,
    pub has_durations: bool,
    pub has_statuses: bool,
    /// Whether the lines are of a form that always has these headers, but for those that a request
    /// did not have.
    has_all_headers: bool,
}

impl Seen {
    pub fn new(format: &Format) -> Self {
        Self {
            has_all_headers: format.has_all_headers_but("").is_some(),
            ..Self::default()
        }
    }

    pub fn note(&mut self, line: &LogLine) {
        self.requests += 1;
        self.has_durations |= line.ended > line.at;
        self.has_statuses |= line.status.is_some();
        let target = str::from_utf8(&line.target).unwrap_or_default();
        self.is_any_query_given |= split_query(target).1.is_some();
        self.has_queries |= self.is_any_query_given;
        let Some(details) = &line.details else { return };
        self.has_accounts |= details.account.is_some();
        let route = details.route.as_ref();
        if let Some(route) = route.filter(|route| !self.routes.contains(*route)) {
            self.routes.insert(route.clone());
        }
        for name in details.headers.keys() {
            match *name == http::header::HOST {
                true => self.with_host += 1,
                // The headers of clients may be any number.
                false if self.has_all_headers || self.headers.contains(name) => {}
                false => drop(self.headers.insert(name.clone())),
            }
        }
    }

    /// Whether requests have their hosts. A few have them in any log, as those of open proxies do.
    pub const fn has_host(&self) -> bool {
        2 * self.with_host >= self.requests
    }

    /// Whether any request has a header of this name.
    pub fn has_header(&self, name: &HeaderName) -> bool {
        self.headers.contains(name)
    }

    /// Whether any request took a route of this name.
    pub fn has_route(&self, name: &str) -> bool {
        self.routes.contains(name)
    }

    /// Notes what the form says of all lines that were parsed.
    pub fn note_form(&mut self, parser: &Parser<'_>) {
        self.has_queries |= parser.logs_queries();
    }

    /// Whether all is there that rules ask for.
    pub fn is_enough(&self, needs: &LogNeeds) -> bool {
        self.requests > 0
            && (!needs.host || self.has_host())
            && (!needs.account || self.has_accounts)
            && (!needs.query || self.has_queries)
            && (!needs.durations || self.has_durations)
            && (!needs.status || self.has_statuses)
            && (self.has_all_headers || needs.headers.is_subset(&self.headers))
    }
}

impl LogNeeds {
    /// What either asks for.
    pub fn merge(&mut self, other: Self) {
        self.host |= other.host;
        self.headers.extend(other.headers);
        self.account |= other.account;
        self.query |= other.query;
        self.durations |= other.durations;
        self.status |= other.status;
    }
}
