//! HTTP/2 to a server, by hyper's client: a few connections, each with many requests at a time.
//!
//! `connections` keeps the connections of one worker to one server, and says which of them has room
//! for another stream. `exchange` sends a request by one of them and awaits the head of the
//! response, with the same time-outs as over HTTP/1.1. `upload` is the request's body on its way:
//! it knows whose turn it is, and keeps a short body until it is certain that the server has begun
//! to process the request, as a stream that the server refuses can be sent again.

mod connections;
mod exchange;
mod upload;

pub(super) use connections::{Connections, StreamPermit};
pub(super) use exchange::{ResponseStream, exchange};
pub(super) use upload::Upload;
