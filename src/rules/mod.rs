//! What a request is: which route it takes, who sent it, and which buckets it takes from.
//!
//! Everything here is decided from a request's head and settings that were prepared at load time;
//! nothing waits, and nothing knows of stores or services.

mod access_list;
mod account;
mod ban;
mod client_address;
mod cost;
mod enforcement;
mod forwarded;
#[cfg(all(feature = "jwt", any(test, fuzzing)))]
pub mod fuzzing;
mod hash;
mod host;
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
mod status_set;
mod subject_id;

pub use access_list::{Access, AccessList, AccessLists, ListEntry};
pub use account::{Account, AccountRules, AccountSource, AccountWildcards};
pub use ban::{Ban, BanSchedule, BanScheduleError};
pub use client_address::{AddressHeader, Client, ClientRules};
pub use cost::{Cost, Estimate, MeasuredCost, PendingCost, cost_header};
pub use enforcement::{Enforcement, EnforcementError};
pub use forwarded::{
    ForwardedElement, ForwardedElements, MalformedForwarded, Node, parse_forwarded,
};
pub use hash::{HashKey, SecretHash, looks_hashed};
pub use host::HostPattern;
#[cfg(feature = "jwt")]
pub use jwt::{Jwt, JwtAlgorithm, JwtError, JwtKeys};
#[cfg(feature = "gateway")]
pub(crate) use key_parts::push_address;
pub use key_source::{KeySource, RequestAttributes, SourceError};
pub use limit::{Limit, LimitNameError, Missing};
pub use limit_use::{Admission, Deferred, LimitMatch, LimitUse, SpendWhen};
pub use normal_path::{PathFault, path_fault};
pub use overrides::Override;
pub use route::{
    Captures, PathPattern, PathSet, PatternError, RouteId, RouteMatch, RouteMatcher, RouteTable,
    preflighted,
};
pub use status_set::{StatusSet, Statuses, StatusesError};
pub use subject_id::{IdError, IdWarning, OverrideScope};
