//! The route of a request, its client and account, and the buckets that it takes from.
//!
//! Everything here is decided from a request's head and settings that were prepared at load time;
//! nothing waits, and nothing knows of stores or services. The crate `weir` has what is promised of it
//! to users, as `weir::rules`; what else is public here serves Weir's other crates.

#![forbid(unsafe_code)]

mod access_list;
mod account;
mod anchored_regex;
mod ban;
mod client_address;
mod client_certificate;
mod cost;
mod descriptors;
mod enforcement;
mod forwarded;
#[cfg(all(feature = "jwt", any(test, fuzzing, feature = "fuzzing")))]
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

pub use access_list::{Access, AccessList, AccessLists, ListEntry};
pub use account::{
    Account, AccountRules, AccountSource, AccountWildcards, Credentials, Verification,
};
pub use anchored_regex::{AnchoredRegex, Expression};
pub use ban::{Ban, BanSchedule, BanScheduleError, Banned, BannedError, StandingBans};
pub use client_address::{AddressHeader, Client, ClientRules};
pub use client_address::{canonical_network, unmapped};
pub use client_certificate::{CertificateField, ClientCertificate};
pub use cost::cost_header;
pub use cost::{Cost, Estimate, MeasuredCost, PendingCost};
pub use descriptors::{
    DescriptorEntry, DescriptorRule, DescriptorRules, DescriptorValues, NotInDescriptors,
};
pub use enforcement::hundredths;
pub use enforcement::{Enforcement, EnforcementError};
pub use forwarded::Node;
pub use forwarded::{ForwardedElement, client_element, forwarded_elements};
pub use hash::looks_hashed;
pub use hash::{HashKey, SecretHash};
pub use host::HostPattern;
pub use host::host as requested_host;
pub use json_units::{EventUnits, JsonPointer, JsonPointerError, JsonUnits};
#[cfg(feature = "jwt")]
pub use jwt::{Jwt, JwtAlgorithm, JwtError, JwtKeys, RemoteKeys, TokenKeys};
pub use key_parts::push_address;
pub use key_source::{KeySource, RequestAttributes, SourceError};
pub use limit::{Limit, LimitNameError, Missing};
pub use limit_use::{
    Admission, Deferred, LimitMatch, LimitUse, PlainCost, ResponseUse, SpendWhen, YieldsTo,
};
pub use normal_path::{PathFault, path_fault};
pub use overrides::{Override, OverrideOrigin};
pub use request_values::{basic as basic_credentials, is_lookalike};
pub use route::*;
pub use subject_hash::SubjectHash;
pub use subject_id::IdWarning;
pub use subject_id::{IdError, OverrideScope};
pub use value_pattern::ValuePattern;
pub use weir_http::address::{Nat64Prefixes, canonical as canonical_address};
pub use weir_http::status_set::{StatusSet, Statuses, StatusesError};
