//! What every store must do, and how stores are held against each other.

pub(super) mod contract;
pub(super) mod definitions;
mod differential;
mod failures;
pub(super) mod laws;
pub(super) mod lease_contract;
mod lease_differential;
mod reference;
pub(crate) mod support;
pub(super) mod window_contract;
