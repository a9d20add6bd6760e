//! The gateway's parts that the benches and the tests of allocations put together. Nothing here is
//! promised to stay; the feature `internals` is for this package's own tests.

pub use crate::app::Layers;
pub use crate::config::load;
pub use crate::middleware::{KnownBans, LimitedBody, Metered, TarpitSlots, UpstreamRouter};
pub use crate::proxy::{Proxy, Upstream, UpstreamSettings};
pub use crate::server::{Connection, Draining, Http, HttpSettings, RequestBody, Transport};
