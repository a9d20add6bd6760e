//! The registrable domain of a host.
