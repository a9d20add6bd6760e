//! The gateway's parts that the benches, the tests of allocations and the simulator put together.
//! Nothing here is promised to stay; the feature `internals` is for this project's own tests.

pub use crate::app::{ActiveUpstreams, Layers, SharedState, SocketlessGateway};
pub use weir_config::load;
pub use weir_http::request::{BoxedRequest, HttpRequest};
pub use weir_middleware::{Backend, LimitedBody, Metered, UpstreamRouter};
pub use weir_proxy::{Proxy, Upstream, UpstreamSettings};
pub use weir_redis::{Connect, Socket};
pub use weir_runtime::blocking::run_inline;
pub use weir_server::{
    AdminBody, Connection, Draining, Http, HttpSettings, RequestBody, Transport, service_fn,
};
