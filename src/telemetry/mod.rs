//! What Weir tells of itself.

mod upstreamed;

pub use upstreamed::{UpstreamFailed, Upstreamed};
