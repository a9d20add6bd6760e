//! Finds out who sent a request: the client's address and account.
//!
//! The layer needs to know the peer that it came from, which a server has to leave as a [`Peer`]
//! in the request's extensions. A request without one comes from an [unknown
//! address](ClientIdentity::UNKNOWN), which is trusted by no rule.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Request;
use tower::{Layer, Service};

use crate::rules::{Account, AccountRules, Client, ClientRules};

/// The other end of the connection that a request came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its address.
    pub address: IpAddr,
    /// Whether the connection is encrypted.
    pub secure: bool,
}

/// Who sent a request, as far as is known. It travels in the request's extensions.
#[derive(Clone, Debug)]
pub struct ClientIdentity {
    /// The client's address, and the peer's.
    pub client: Client,
    /// The account that the request names.
    pub account: Option<Account>,
    /// Whether the peer's connection is encrypted.
    pub secure: bool,
}

impl ClientIdentity {
    /// The address of a client that came by no known connection. A limit that counts addresses
    /// refuses its requests, unless it is told to count them together.
    pub const UNKNOWN: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

    /// A number that tells clients apart, within this process alone. Errs on the side of taking
    /// two for one: who has an account is the same from wherever, and one machine of IPv6 has a
    /// network's worth of addresses.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        match (&self.account, self.client.address) {
            (Some(account), _) => account.id.hash(&mut hasher),
            (None, IpAddr::V4(address)) => address.hash(&mut hasher),
            (None, IpAddr::V6(address)) => (address.to_bits() >> 64).hash(&mut hasher),
        }
        hasher.finish()
    }
}

/// Identifies the senders of requests.
#[derive(Clone, Debug)]
pub struct IdentifyLayer(Arc<Rules>);

#[derive(Debug)]
struct Rules {
    client: ClientRules,
    account: AccountRules,
}

impl IdentifyLayer {
    /// Identifies senders by these rules.
    pub fn new(client: ClientRules, account: AccountRules) -> Self {
        Self(Arc::new(Rules { client, account }))
    }
}

impl<S> Layer<S> for IdentifyLayer {
    type Service = Identify<S>;

    fn layer(&self, inner: S) -> Identify<S> {
        Identify {
            inner,
            rules: Arc::clone(&self.0),
        }
    }
}

/// A service whose requests say who sent them; see [`IdentifyLayer`].
#[derive(Clone, Debug)]
pub struct Identify<S> {
    inner: S,
    rules: Arc<Rules>,
}

impl Rules {
    fn sender<B>(&self, request: &Request<B>) -> ClientIdentity {
        let unknown = Peer {
            address: ClientIdentity::UNKNOWN,
            secure: false,
        };
        let peer = request.extensions().get().copied().unwrap_or(unknown);
        ClientIdentity {
            client: self.client.client(peer.address, request.headers()),
            account: self.account.account(request.headers()),
            secure: peer.secure,
        }
    }
}

impl<S, B> Service<Request<B>> for Identify<S>
where
    S: Service<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> S::Future {
        let sender = self.rules.sender(&request);
        request.extensions_mut().insert(sender);
        self.inner.call(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::HashKey;

    fn fingerprint(address: &str, account: Option<&str>) -> u64 {
        let key = HashKey::from_bytes(&[7; 16]).unwrap();
        let address = address.parse().unwrap();
        let sender = ClientIdentity {
            client: Client {
                address,
                peer: address,
                peer_is_trusted: false,
            },
            account: account.map(|name| key.hash(name.as_bytes()).into()),
            secure: false,
        };
        sender.fingerprint()
    }

    /// Decoys repeat what two clients got alike. A client that came from two addresses counted as
    /// two, and what was meant for it alone was shown to others.
    #[test]
    fn one_client_from_several_addresses_is_one() {
        let at_home = fingerprint("203.0.113.9", Some("acme"));
        assert_eq!(at_home, fingerprint("198.51.100.7", Some("acme")));
        assert_ne!(at_home, fingerprint("203.0.113.9", Some("other")));
        let machine = fingerprint("2001:db8::1", None);
        assert_eq!(machine, fingerprint("2001:db8::2", None));
        assert_ne!(machine, fingerprint("2001:db8:0:1::1", None));
        assert_ne!(
            fingerprint("203.0.113.9", None),
            fingerprint("203.0.113.8", None)
        );
    }
}
