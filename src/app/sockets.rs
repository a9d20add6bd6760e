//! Where the process listens until it ends, with the certificates that are in force there.

use std::net::SocketAddr;

use crate::config::Listener;
use crate::server::Tls;
use crate::telemetry::Metrics;

/// The sockets of the process, as its first configuration had them.
#[derive(Clone, Debug)]
pub(super) struct Sockets(Vec<Socket>);

#[derive(Clone, Debug)]
struct Socket {
    address: SocketAddr,
    tls: Option<Tls>,
}

impl Sockets {
    /// Sockets with these certificates in force.
    pub(super) fn new(listeners: &[Listener]) -> Self {
        let sockets = listeners.iter().map(|listener| Socket {
            address: listener.address,
            tls: listener.certificates.clone().map(Tls::new),
        });
        Self(sockets.collect())
    }

    /// Their addresses as they are configured.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.0.iter().map(|it| it.address).collect()
    }

    /// Which of them speak TLS.
    pub(super) fn tls(&self) -> Vec<Option<Tls>> {
        self.0.iter().map(|it| it.tls.clone()).collect()
    }

    /// Shows when the first of the certificates in force expires, if there are any.
    pub(super) fn show_on(&self, metrics: &Metrics) {
        let tls: Vec<Tls> = self.tls().into_iter().flatten().collect();
        if !tls.is_empty() {
            metrics.certificates(move || {
                let expiry = tls.iter().filter_map(Tls::expires).min();
                expiry.unwrap_or_default().as_secs()
            });
        }
    }

    /// Brings the certificates of another configuration into force. A socket that it has not, or has
    /// without TLS, keeps those that it has.
    pub(super) fn renew(&self, listeners: &[Listener]) {
        for (index, socket) in self.0.iter().enumerate() {
            // The system picks a port for each 0, so that only their order tells them apart.
            let same_place = listeners.get(index).into_iter();
            let mut candidates = same_place.chain(listeners);
            let new = candidates.find(|it| it.address == socket.address);
            let certificates = new.and_then(|it| it.certificates.clone());
            if let (Some(tls), Some(certificates)) = (&socket.tls, certificates) {
                tls.renew(certificates);
            }
        }
    }
}
