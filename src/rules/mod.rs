//! What a request is: which route it takes, who sent it, and which buckets it takes from.
//!
//! Everything here is decided from a request's head and settings that were prepared at load time;
//! nothing waits, and nothing knows of stores or services.
//!
//! ```
//! use http::{HeaderMap, Method, Uri};
//! use weir::rules::{PathPattern, RouteId, RouteMatcher, RouteTable};
//!
//! let route = |methods, path| RouteMatcher {
//!     methods,
//!     path,
//!     host: None,
//!     path_regex: None,
//!     headers: Vec::new(),
//!     query: Vec::new(),
//!     preflights: false,
//! };
//! let invites = PathPattern::parse("/teams/{team}/invites")?;
//! let routes = RouteTable::new(vec![
//!     route(Vec::new(), PathPattern::everything()),
//!     route(vec![Method::POST], invites),
//! ]);
//!
//! let uri = Uri::from_static("/teams/red/invites");
//! let found = routes.find(&Method::POST, &uri, &HeaderMap::new()).ok_or("no route")?;
//! assert_eq!(found.id, RouteId(1));
//! assert_eq!(found.captures.get("team"), Some("red"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod access_list;
mod account;
#[cfg(feature = "gateway")]
mod anchored_regex;
#[cfg(not(feature = "gateway"))]
#[path = "no_regex.rs"]
mod anchored_regex;
mod ban;
#[cfg(feature = "gateway")]
mod basic_auth;
mod client_address;
mod client_certificate;
mod cost;
mod enforcement;
mod forwarded;
#[cfg(all(feature = "jwt", any(test, fuzzing)))]
pub mod fuzzing;
mod hash;
mod host;
mod json_units;
#[cfg(feature = "jwt")]
mod jwt;
mod key_parts;
mod key_source;
mod limit;
mod limit_use;
mod normal_path;
mod overrides;
mod request_values;
mod route;
mod subject_hash;
mod subject_id;
mod value_pattern;

pub use crate::status_set::{StatusSet, Statuses, StatusesError};
pub use access_list::{Access, AccessList, AccessLists, ListEntry};
pub use account::{Account, AccountRules, AccountSource, AccountWildcards, Verification};
pub use anchored_regex::AnchoredRegex;
#[cfg(feature = "gateway")]
pub use anchored_regex::RegexError;
pub use ban::{Ban, BanSchedule, BanScheduleError, Banned, BannedError, StandingBans};
#[cfg(feature = "gateway")]
pub use basic_auth::{BasicAuth, BasicAuthError};
#[cfg(feature = "gateway")]
pub(crate) use client_address::unmapped;
pub use client_address::{AddressHeader, Client, ClientRules};
pub use client_certificate::{CertificateField, ClientCertificate};
pub(crate) use cost::cost_header;
pub use cost::{Cost, Estimate, MeasuredCost, PendingCost};
pub(crate) use enforcement::hundredths;
pub use enforcement::{Enforcement, EnforcementError};
pub(crate) use forwarded::parse_forwarded;
pub(crate) use hash::looks_hashed;
pub use hash::{HashKey, SecretHash};
pub use host::HostPattern;
pub(crate) use host::host as requested_host;
pub use json_units::{EventUnits, JsonPointer, JsonPointerError, JsonUnits};
#[cfg(feature = "jwt")]
pub use jwt::{Jwt, JwtAlgorithm, JwtError, JwtKeys, RemoteKeys, TokenKeys};
#[cfg(feature = "gateway")]
pub(crate) use key_parts::push_address;
pub use key_source::{KeySource, RequestAttributes, SourceError};
pub use limit::{Limit, LimitNameError, Missing};
pub use limit_use::{Admission, Deferred, LimitMatch, LimitUse, SpendWhen};
pub(crate) use normal_path::{PathFault, path_fault};
pub use overrides::{Override, OverrideOrigin};
pub(crate) use request_values::is_lookalike;
pub(crate) use route::preflighted;
pub use route::{
    Captures, PathPattern, PathPrefix, PathRegex, PathSet, PatternError, RouteId, RouteMatch,
    RouteMatcher, RouteTable, with_one_slash,
};
pub use subject_hash::SubjectHash;
pub(crate) use subject_id::IdWarning;
pub use subject_id::{IdError, OverrideScope};
pub use value_pattern::ValuePattern;
