//! Identifies the client of a request: its address and account.
//!
//! The layer needs to know the peer that it came from, which a server has to leave as a [`Peer`] in
//! the request's extensions. A request without one comes from an [unknown
//! address](ClientIdentity::UNKNOWN), which is trusted by no rule. Where the limits stand alone,
//! they identify clients themselves, by address or by a [`KeyExtractor`].
//!
//! Passwords take long to verify, so the layer leaves that to the limits, which do it once something
//! needs the account.

use std::fmt::Display;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use http::request::Parts;
use http::{Extensions, HeaderMap, HeaderName, Method, Uri, Version};
use tower::{Layer, Service};
use weir_http::address::canonical;
use weir_http::list;
use weir_http::request::HttpRequest;
use weir_limit::time::Timestamp;
use weir_rules::{
    Account, AccountRules, Captures, Client, ClientRules, HashKey, Nat64Prefixes,
    RequestAttributes, Verification, client_element,
};

use super::RequestContext;
use super::verifiers::Verifiers;

const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The other end of the connection that a request came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its address.
    pub address: IpAddr,
    /// Whether the connection is encrypted.
    pub secure: bool,
}

/// The client of a request, as far as it is known.
#[derive(Clone, Debug)]
pub struct ClientIdentity {
    /// The client's address, and the peer's.
    pub client: Client,
    /// The account that the request names.
    pub account: Option<Account>,
    /// Whether the client asked by TLS, as a trusted proxy says or by the connection.
    pub secure: bool,
}

impl ClientIdentity {
    /// The address of a client that came by no known connection. A limit that counts addresses
    /// refuses its requests, unless it is told to count them together.
    pub const UNKNOWN: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

    /// The identity of a client without an account. `is_encrypted` says whether the peer's
    /// connection is, and `nat64` which translators' addresses stand for those of IPv4.
    pub fn new(
        client: Client,
        is_encrypted: bool,
        headers: &HeaderMap,
        nat64: &Nat64Prefixes,
    ) -> Self {
        Self {
            secure: asked_by_tls(&client, is_encrypted, headers, nat64),
            client,
            account: None,
        }
    }

    /// The client of a request with these extensions, as a layer has identified it; or else one
    /// that is an extension itself.
    pub fn from_extensions(extensions: &Extensions) -> Option<&Self> {
        RequestContext::identity(extensions).or_else(|| extensions.get())
    }

    /// The scheme of the client's request.
    pub fn scheme(&self) -> &'static str {
        if self.secure { "https" } else { "http" }
    }

    /// A number that tells clients apart, within this process alone. Errs on the side of taking
    /// two for one: an account is the same client from any address, and one machine of IPv6 has a
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

/// Whether a client asked by TLS: as a trusted proxy says in `X-Forwarded-Proto` or else in
/// `Forwarded`, or else if the connection `is_encrypted`.
///
/// Of several proxies, the first one in `X-Forwarded-Proto` spoke with the client.
fn asked_by_tls(
    client: &Client,
    is_encrypted: bool,
    headers: &HeaderMap,
    nat64: &Nat64Prefixes,
) -> bool {
    let told = || told_tls(client, headers, nat64);
    let told = client.peer_is_trusted.then(told);
    told.flatten().unwrap_or(is_encrypted)
}

fn told_tls(client: &Client, headers: &HeaderMap, nat64: &Nat64Prefixes) -> Option<bool> {
    if let Some(list) = headers.get(FORWARDED_PROTO) {
        return is_tls_scheme(list::elements(list).next()?);
    }
    let (_, element) = client_element(headers, client.address, nat64)?;
    is_tls_scheme(element.proto?.as_bytes())
}

/// Whether a scheme is one over TLS, where it is known. The handshake of a WebSocket is a request by
/// HTTP, and `wss` is to it what `https` is (RFC 6455 section 3); Traefik writes these schemes.
pub(crate) fn is_tls_scheme(scheme: &[u8]) -> Option<bool> {
    let is_one_of =
        |known: [&[u8]; 2]| known.iter().any(|known| scheme.eq_ignore_ascii_case(known));
    match scheme {
        _ if is_one_of([b"https", b"wss"]) => Some(true),
        _ if is_one_of([b"http", b"ws"]) => Some(false),
        _ => None,
    }
}

/// Identifies the clients of requests.
#[derive(Clone, Debug)]
pub struct IdentifyLayer(Arc<Rules>);

#[derive(Debug)]
struct Rules {
    client: ClientRules,
    /// None if nothing names an account.
    account: Option<AccountRules>,
    /// None if no credentials take long to verify.
    verifiers: Option<Verifiers>,
}

impl IdentifyLayer {
    /// Identifies clients by these rules.
    pub fn new(client: ClientRules, account: AccountRules) -> Self {
        let verifiers = account.verifies_passwords().then(Verifiers::new);
        Self(Arc::new(Rules {
            client,
            account: (!account.is_empty()).then_some(account),
            verifiers,
        }))
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

/// A service whose requests name their client; see [`IdentifyLayer`].
#[derive(Clone, Debug)]
pub struct Identify<S> {
    inner: S,
    rules: Arc<Rules>,
}

impl Rules {
    fn client(&self, peer: Option<Peer>, headers: &HeaderMap) -> Client {
        let address = peer.map_or(ClientIdentity::UNKNOWN, |peer| peer.address);
        self.client.client(address, headers)
    }

    fn identity(&self, extensions: &Extensions, headers: &HeaderMap) -> ClientIdentity {
        let peer = connection_peer(extensions);
        let is_encrypted = peer.is_some_and(|peer| peer.secure);
        let client = self.client(peer, headers);
        ClientIdentity::new(client, is_encrypted, headers, self.client.nat64_prefixes())
    }

    fn account<Q: HttpRequest>(&self, request: &Q) -> Option<Account> {
        let account = self.account.as_ref()?;
        let certificate = RequestContext::certificate(request.extensions());
        account.account_of(request.headers(), certificate)
    }

    /// What has to be done before the request's account is known.
    fn verification<Q: HttpRequest>(&self, request: &Q) -> Option<Verification> {
        let certificate = RequestContext::certificate(request.extensions());
        let account = self.account.as_ref()?;
        account.unverified(request.headers(), certificate)
    }
}

/// The account of a request whose password nobody has verified yet. It takes a fraction of a second
/// of computing to learn, which is done once something needs the account.
#[derive(Debug)]
pub(super) struct UnverifiedAccount {
    rules: Arc<Rules>,
    learned: OnceLock<Account>,
}

impl UnverifiedAccount {
    pub(super) fn learned(&self) -> Option<&Account> {
        self.learned.get()
    }

    /// Verifies the request's password, and leaves the account in its identity. False if that takes
    /// too long.
    pub(super) async fn verify<Q: HttpRequest>(&self, request: &mut Q) -> bool {
        let address =
            ClientIdentity::from_extensions(request.extensions()).map(|known| known.client.address);
        let address = address.unwrap_or(ClientIdentity::UNKNOWN);
        if let (Some(verifiers), Some(verification)) =
            (&self.rules.verifiers, self.rules.verification(request))
            && !verifiers.verify(address, verification).await
        {
            return false;
        }
        let account = self.rules.account(request);
        if let Some(account) = &account {
            // Nobody else learns it.
            let _ = self.learned.set(account.clone());
        }
        let context = RequestContext::entry(request.extensions_mut());
        if let Some(identity) = &mut context.identity {
            identity.account = account;
        }
        true
    }
}

impl<S, Q> Service<Q> for Identify<S>
where
    S: Service<Q>,
    Q: HttpRequest,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Q) -> Self::Future {
        let mut identity = self.rules.identity(request.extensions(), request.headers());
        let verifiers = self.rules.verifiers.as_ref();
        let unverified = verifiers.and_then(|_| self.rules.verification(&request));
        let unverified = unverified.map(|_| {
            Arc::new(UnverifiedAccount {
                rules: Arc::clone(&self.rules),
                learned: OnceLock::new(),
            })
        });
        // What comes after the password in the list is asked once this is known to be wrong.
        if unverified.is_none() {
            identity.account = self.rules.account(&request);
        }
        let context = RequestContext::entry(request.extensions_mut());
        context.identity = Some(identity);
        context.unverified = unverified;
        self.inner.call(request)
    }
}

/// Finds what a request is counted by.
///
/// ```
/// # mod weir {
/// #     pub use weir_limit as limit;
/// #     pub mod middleware { pub use weir_middleware::*; }
/// # }
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

/// A request without its body.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'r> {
    /// The method.
    pub method: &'r Method,
    /// The request target.
    pub uri: &'r Uri,
    /// The version of HTTP.
    pub version: Version,
    /// The headers.
    pub headers: &'r HeaderMap,
    /// What other layers and the server have left.
    pub extensions: &'r Extensions,
}

impl<'r> RequestHead<'r> {
    /// That of a request.
    pub fn new<Q: HttpRequest>(request: &'r Q) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            version: request.version(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }

    /// What subjects and templates are made of, if layers above have left the client and the route
    /// here. Neither goes by the time, so it does not tell that.
    pub(crate) fn attributes(&self) -> RequestAttributes<'r> {
        let (routed, identity, _) = RequestContext::routed_client(self.extensions);
        let route = routed.map_or("", |routed| routed.route.name());
        let captures = routed.map_or(Captures::NONE, |routed| &routed.captures);
        self.attributes_of(identity, (route, captures), Timestamp::from_nanos(0))
    }

    /// What limits and bans go by where the request is of this client, on a route of this name, which
    /// captured this.
    #[inline]
    pub(crate) fn attributes_of(
        &self,
        identity: Option<&'r ClientIdentity>,
        (route, captures): (&'r str, &'r Captures),
        now: Timestamp,
    ) -> RequestAttributes<'r> {
        RequestAttributes {
            method: self.method,
            uri: self.uri,
            headers: self.headers,
            client: identity.map_or(ClientIdentity::UNKNOWN, |identity| identity.client.address),
            secure: identity.is_some_and(|identity| identity.secure),
            account: identity.and_then(|identity| identity.account.as_ref()),
            route,
            captures,
            now,
        }
    }
}

impl<'r> From<&'r Parts> for RequestHead<'r> {
    fn from(head: &'r Parts) -> Self {
        Self {
            method: &head.method,
            uri: &head.uri,
            version: head.version,
            headers: &head.headers,
            extensions: &head.extensions,
        }
    }
}

/// Identifies the clients of requests that no layer above the limits has identified.
#[derive(Clone)]
pub(super) struct Identification {
    identify: Arc<Identifier>,
    /// By which keys are hashed; none where there are only addresses.
    hash_key: Option<HashKey>,
    /// Whether other processes may have the same.
    is_given: bool,
}

type Identifier =
    dyn Fn(&RequestHead<'_>, Option<&HashKey>) -> Option<ClientIdentity> + Send + Sync;

impl Identification {
    /// By the address that `peer` finds.
    pub(super) fn by_address(
        peer: impl Fn(&Extensions) -> Option<IpAddr> + Send + Sync + 'static,
    ) -> Self {
        let identify = move |request: &RequestHead<'_>, _: Option<&HashKey>| {
            match ClientIdentity::from_extensions(request.extensions) {
                Some(_) => None,
                None => Some(identity(Some(peer(request.extensions)?), None)),
            }
        };
        Self {
            identify: Arc::new(identify),
            hash_key: None,
            is_given: false,
        }
    }

    /// By the key that `extractor` finds.
    pub(super) fn by_key<K: KeyExtractor>(extractor: K) -> Self {
        let identify = move |request: &RequestHead<'_>, key: Option<&HashKey>| {
            let found = extractor.extract(request)?.to_string();
            let account = Some(key?.hash(found.as_bytes()).into());
            Some(identity(peer(request.extensions), account))
        };
        Self {
            identify: Arc::new(identify),
            hash_key: Some(HashKey::random()),
            is_given: false,
        }
    }

    /// The same, with keys hashed by this one.
    pub(super) fn with_hash_key(mut self, key: HashKey) -> Self {
        self.hash_key = self.hash_key.map(|_| key);
        self.is_given = true;
        self
    }

    /// Whether no other process finds the buckets of the same keys.
    pub(super) fn is_of_this_process(&self) -> bool {
        self.hash_key.is_some() && !self.is_given
    }

    /// Leaves the identity of the client in a request.
    pub(super) fn identify<Q: HttpRequest>(&self, request: &mut Q) {
        let head = RequestHead::new(request);
        let found = (self.identify)(&head, self.hash_key.as_ref());
        if found.is_some() {
            RequestContext::entry(request.extensions_mut()).identity = found;
        }
    }
}

/// The peer's address, where a server has left it.
pub(super) fn peer(extensions: &Extensions) -> Option<IpAddr> {
    let peer = connection_peer(extensions).map(|peer| peer.address);
    peer.or_else(|| Some(extensions.get::<SocketAddr>()?.ip()))
}

fn connection_peer(extensions: &Extensions) -> Option<Peer> {
    RequestContext::peer(extensions).or_else(|| extensions.get().copied())
}

/// The client behind a connection of its own.
pub(crate) fn identity(address: Option<IpAddr>, account: Option<Account>) -> ClientIdentity {
    let address = address.map_or(ClientIdentity::UNKNOWN, canonical);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(address: &str, account: Option<&str>) -> u64 {
        let key = HashKey::from_bytes(&[7; 16]).unwrap();
        let account = account.map(|name| key.hash(name.as_bytes()).into());
        identity(Some(address.parse().unwrap()), account).fingerprint()
    }

    #[test]
    fn the_scheme_is_what_a_trusted_proxy_says_and_else_that_of_the_connection() {
        let scheme = |peer_is_trusted, is_encrypted, headers: &[(&'static str, &'static str)]| {
            let client = Client {
                address: "192.0.2.1".parse().unwrap(),
                peer: "10.0.0.1".parse().unwrap(),
                peer_is_trusted,
            };
            let headers = headers.iter().map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    http::HeaderValue::from_static(value),
                )
            });
            let nat64 = Nat64Prefixes::new(["2001:db8:64::".parse().unwrap()]);
            match asked_by_tls(&client, is_encrypted, &headers.collect(), &nat64) {
                true => "https",
                false => "http",
            }
        };
        const PROTO: &str = "x-forwarded-proto";
        for (told, expected) in [
            ("https", "https"),
            ("HTTPS", "https"),
            ("https, http", "https"),
            ("http,https", "http"),
            ("wss", "https"),
            ("Wss, http", "https"),
            ("ws", "http"),
            ("gopher", "http"),
            ("", "http"),
        ] {
            assert_eq!(scheme(true, false, &[(PROTO, told)]), expected, "{told}");
            assert_eq!(scheme(false, false, &[(PROTO, told)]), "http", "{told}");
            assert_eq!(scheme(false, true, &[(PROTO, told)]), "https", "{told}");
        }
        assert_eq!(scheme(true, true, &[(PROTO, "ws")]), "http");
        assert_eq!(scheme(true, true, &[(PROTO, "gopher")]), "https");
        let forwarded = (
            "forwarded",
            "for=192.0.2.1;proto=https, for=10.0.0.2;proto=http",
        );
        assert_eq!(scheme(true, false, &[forwarded]), "https");
        assert_eq!(scheme(false, false, &[forwarded]), "http");
        assert_eq!(scheme(true, false, &[forwarded, (PROTO, "http")]), "http");
        // The client wrote the first element, and the proxy the second.
        let forged = "for=6.6.6.6;proto=https, for=192.0.2.1;proto=http";
        assert_eq!(scheme(true, false, &[("forwarded", forged)]), "http");
        let hidden = "for=6.6.6.6;proto=https, for=_hidden;proto=http";
        assert_eq!(scheme(true, true, &[("forwarded", hidden)]), "http");
        let translated = "for=\"[2001:db8:64::192.0.2.1]\";proto=https, for=10.0.0.2;proto=http";
        assert_eq!(scheme(true, false, &[("forwarded", translated)]), "https");
        assert_eq!(
            scheme(true, false, &[("forwarded", "for=192.0.2.1;proto=wss")]),
            "https"
        );
        assert_eq!(scheme(true, true, &[]), "https");
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
