//! How long the parts of an exchange may take.

use std::time::Duration;

/// The time-outs of an upstream, or of a route that says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// How long a request may take to get a new connection, to any of the servers.
    pub connect: Duration,
    /// How long the upstream may keep a request waiting for the head of the response, or an
    /// unfinished request body waiting to be taken further. Waiting for the client does not count.
    pub response: Duration,
    /// How long the upstream may keep a request waiting for more of the response's body.
    pub body: Duration,
    /// How long all of it may take, retries and the client's part included; as long as it likes
    /// without a bound.
    pub total: Option<Duration>,
}

impl Default for Timeouts {
    /// 5 s to connect, 60 s until the response's head, and 5 min between two pieces of its body, as
    /// events may be rare.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            response: Duration::from_secs(60),
            body: Duration::from_secs(300),
            total: None,
        }
    }
}
