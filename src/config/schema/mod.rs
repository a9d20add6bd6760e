//! What may be written in the files: plain types without logic, one for each table of
//! `docs/CONFIG.md`. An unknown key is an error everywhere.

mod bans;
mod gateway;
mod limits;
mod routes;

pub(super) use bans::{Allow, Ban, Block, ListFile, Strikes, Treatment};
pub(super) use gateway::{
    AccountSource, Admin, ClientAddress, Connections, Gateway, Jwt, JwtAlgorithm, KeyPair,
    Listener, Log, LogAccount, LogFormat, Memory, OnFailure, Redis, Secret, Store, Workers,
};
pub(super) use limits::{
    AlgorithmName, AlignTo, CalendarUnit, DefaultLimit, Defaults, MissingValue, OverrideEntry,
    Overrides,
};
pub(super) use routes::{
    Builtin, Cors, Decoy, Enforce, HeaderForm, LimitUse, Match, MeasuredCost, OnDenied, PathCase,
    Rejection, Route, RouteDefaults, Upstream, UseKind,
};
