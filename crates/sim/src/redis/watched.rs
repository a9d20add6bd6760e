//! A primary as a Sentinel knows it.

/// A primary that a Sentinel watches.
#[derive(Clone, Debug)]
pub struct Watched {
    /// Where it is.
    pub host: String,
    /// Where it is.
    pub port: u16,
    /// Counts the failovers.
    pub epoch: u64,
    /// How many replicas are known.
    pub replicas: usize,
    /// How many other Sentinels are known.
    pub sentinels: usize,
    /// How many Sentinels have to agree that it is down.
    pub quorum: usize,
    /// The replica that takes its place, once that is a primary, until the failover is over.
    pub(super) promoted: Option<(String, u16)>,
}

impl Watched {
    /// A primary that was never replaced.
    pub fn new(host: &str, port: u16) -> Self {
        Self {
            host: host.to_owned(),
            port,
            epoch: 0,
            replicas: 0,
            sentinels: 0,
            quorum: 1,
            promoted: None,
        }
    }

    pub(super) fn of_replica(&self, name: &str, (host, port): (&str, u16)) -> String {
        let primary = format!("{name} {} {}", self.host, self.port);
        format!("slave {host}:{port} {host} {port} @ {primary}")
    }
}
