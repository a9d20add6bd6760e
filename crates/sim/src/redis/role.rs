//! What a server is to others: a primary or a replica.

/// What a server is to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It takes writes.
    Primary {
        /// What it tells of its replicas when it is asked for its role.
        replicas: Vec<ReplicaStatus>,
    },
    /// It takes writes from its primary alone.
    Replica {
        /// Where its primary is.
        host: String,
        /// Where its primary is.
        port: u16,
        /// Whether it hears from its primary.
        is_linked: bool,
    },
}

/// A replica as its primary sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// Where it is.
    pub host: String,
    /// Where it is.
    pub port: u16,
    /// How far it has come, in bytes of the primary's stream.
    pub offset: i64,
}
