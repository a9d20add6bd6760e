//! The JSON Schemas of the configuration's files, which tests derive from the types of keys.

/// That of `gateway.yaml`.
pub const GATEWAY: &str = include_str!("../../docs/schema/gateway.json");

/// That of `defaults.yaml`.
pub const DEFAULTS: &str = include_str!("../../docs/schema/defaults.json");

/// That of `overrides.yaml`.
pub const OVERRIDES: &str = include_str!("../../docs/schema/overrides.json");
