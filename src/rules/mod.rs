//! What a request is: which route it takes, who sent it, and which buckets it takes from.
//!
//! Everything here is decided from a request's head and settings that were prepared at load time;
//! nothing waits, and nothing knows of stores or services.

mod access;
mod account;
mod address_text;
mod ban;
mod client;
mod cost;
mod domain;
mod enforcement;
mod field;
mod forwarded;
#[cfg(all(feature = "jwt", any(test, fuzzing)))]
pub mod fuzzing;
mod hash;
#[cfg(feature = "jwt")]
mod jwt;
mod limit_rule;
mod limit_use;
mod normal_path;
mod override_id;
mod overrides;
mod part;
mod parted;
mod route;
mod source;
mod status_set;

pub use access::{Access, AccessList, AccessLists, Listed};
pub use account::{Account, AccountRules, AccountSource, AccountWildcards};
#[cfg(feature = "gateway")]
pub(crate) use address_text::push_address;
pub use ban::{Ban, Terms, TermsError};
pub use client::{AddressHeader, Client, ClientRules};
pub use cost::{Cost, Estimate, MeasuredCost, Pending, said_by};
pub use enforcement::{Enforcement, EnforcementError};
pub use forwarded::{
    ForwardedElement, ForwardedElements, MalformedForwarded, Node, parse_forwarded,
};
pub use hash::{HashKey, SecretHash, looks_hashed};
#[cfg(feature = "jwt")]
pub use jwt::{Jwt, JwtAlgorithm, JwtError, JwtKeys};
pub use limit_rule::{Limit, LimitNameError, Missing};
pub use limit_use::{Admission, Deferred, LimitUse, SpendWhen, Subject};
pub use normal_path::{PathFault, path_fault};
pub use override_id::{IdDoubt, IdError, OverrideScope};
pub use overrides::Override;
pub use route::{
    Captures, HostPattern, PathPattern, PathSet, PatternError, RouteId, RouteMatch, RouteMatcher,
    RouteTable, preflighted,
};
pub use source::{KeySource, RequestAttributes, SourceError};
pub use status_set::{StatusSet, Statuses, StatusesError};
