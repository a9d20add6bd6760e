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

pub use weir_rules::{
    Access, AccessList, AccessLists, Account, AccountRules, AccountSource, AccountWildcards,
    AddressHeader, Admission, AnchoredRegex, Ban, BanSchedule, BanScheduleError, Banned,
    BannedError, Captures, CertificateField, Client, ClientCertificate, ClientRules, Cost,
    Credentials, Deferred, Enforcement, EnforcementError, Estimate, EventUnits, Expression,
    HashKey, HostPattern, IdError, JsonPointer, JsonPointerError, JsonUnits, KeySource, Limit,
    LimitMatch, LimitNameError, LimitUse, ListEntry, MeasuredCost, Missing, Nat64Prefixes,
    Override, OverrideOrigin, OverrideScope, PathPattern, PathPrefix, PathRegex, PathSet,
    PatternError, PendingCost, RequestAttributes, RouteId, RouteMatch, RouteMatcher, RouteTable,
    SecretHash, SourceError, SpendWhen, StandingBans, StatusSet, Statuses, StatusesError,
    SubjectHash, ValuePattern, Verification, with_one_slash,
};
#[cfg(feature = "jwt")]
pub use weir_rules::{Jwt, JwtAlgorithm, JwtError, JwtKeys, RemoteKeys, TokenKeys};
#[cfg(feature = "gateway")]
pub use {
    weir_passwords::{BasicAuth, BasicAuthError},
    weir_regex::{RegexError, anchored as anchored_regex},
};
