//! What requests are counted by where no gateway identifies their senders: the address of the peer,
//! or a key of one's own.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::{Extensions, HeaderMap, Method, Request, Uri};

use super::{ClientIdentity, Peer};
use crate::rules::{Account, Client, HashKey};

/// Finds what a request is counted by.
///
/// ```
/// use weir::limit::Quota;
/// use weir::middleware::{KeyExtractor, RateLimitLayer, RequestHead};
///
/// struct ByTenant;
///
/// impl KeyExtractor for ByTenant {
///     type Key = String;
///
///     fn extract(&self, request: &RequestHead<'_>) -> Option<String> {
///         let tenant = request.headers.get("x-tenant")?.to_str().ok()?;
///         Some(tenant.to_lowercase())
///     }
/// }
///
/// let limits = RateLimitLayer::per_key(Quota::per_second(10), ByTenant)?;
/// # Ok::<(), weir::limit::QuotaError>(())
/// ```
pub trait KeyExtractor: Send + Sync + 'static {
    /// What requests are counted by. Keys that display alike are the same.
    type Key: Display;

    /// The key of a request. One that has none is denied with 403.
    fn extract(&self, request: &RequestHead<'_>) -> Option<Self::Key>;
}

/// What a request says before its body.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'r> {
    /// The method.
    pub method: &'r Method,
    /// The request target.
    pub uri: &'r Uri,
    /// The headers.
    pub headers: &'r HeaderMap,
    /// What other layers and the server have left.
    pub extensions: &'r Extensions,
}

/// Identifies the senders of requests that nothing above the limits has identified.
#[derive(Clone)]
pub(super) struct Identification(
    Arc<dyn Fn(&RequestHead<'_>) -> Option<ClientIdentity> + Send + Sync>,
);

impl Identification {
    /// By the address that `peer` finds.
    pub(super) fn by_address(
        peer: impl Fn(&Extensions) -> Option<IpAddr> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(move |request| {
            let known = request.extensions.get::<ClientIdentity>();
            match known {
                Some(_) => None,
                None => Some(identity(Some(peer(request.extensions)?), None)),
            }
        }))
    }

    /// By the key that `extractor` finds.
    pub(super) fn by_key<K: KeyExtractor>(extractor: K) -> Self {
        let key = HashKey::random();
        Self(Arc::new(move |request| {
            let found = extractor.extract(request)?.to_string();
            let account = Some(key.hash(found.as_bytes()).into());
            Some(identity(peer(request.extensions), account))
        }))
    }

    /// Leaves in a request who sent it.
    pub(super) fn identify<B>(&self, request: &mut Request<B>) {
        let found = (self.0)(&RequestHead {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        });
        if let Some(identity) = found {
            request.extensions_mut().insert(identity);
        }
    }
}

/// The peer's address, where a server has left it.
pub(super) fn peer(extensions: &Extensions) -> Option<IpAddr> {
    let peer = extensions.get::<Peer>().map(|peer| peer.address);
    peer.or_else(|| Some(extensions.get::<SocketAddr>()?.ip()))
}

fn identity(address: Option<IpAddr>, account: Option<Account>) -> ClientIdentity {
    let address = address.map_or(ClientIdentity::UNKNOWN, |address| address.to_canonical());
    ClientIdentity {
        client: Client {
            address,
            peer: address,
            peer_is_trusted: false,
        },
        account,
        secure: false,
    }
}
