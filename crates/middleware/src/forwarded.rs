//! Tells the upstream whom a request comes from: `X-Forwarded-For`, `-Proto` and `-Host`, and
//! `Forwarded` (RFC 7239).
//!
//! What a trusted proxy wrote is kept and continued, in the header that it is trusted to write. The
//! others are written anew, as is everything that other clients write about themselves: it may be a
//! client's invention, and the app behind may believe it.
//!
//! Apps read the first element of `Forwarded`, the last one, or one at a certain distance from the
//! end. So each element that is written here has the scheme and the host that the client asked by,
//! the same as in `X-Forwarded-Proto` and `-Host`.

use std::cell::Cell;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::time::Instant;

use http::header::{self, Entry, HeaderName, HeaderValue};
use http::{HeaderMap, Uri};
use tower::{Layer, Service};
use weir_http::host::is_host_and_port;
use weir_http::list;
use weir_http::request::HttpRequest;
use weir_rules::{
    AddressHeader, Client, ForwardedElement, Nat64Prefixes, client_element, forwarded_elements,
    is_lookalike, push_address,
};

use crate::ClientIdentity;
use crate::header_text::HeaderText;
use crate::steps::remove_names;
use crate::untrusted_forwarders::UntrustedForwarders;

const FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// What else apps believe of a proxy, and so must not come from clients.
const BELIEVED: [HeaderName; 8] = [
    HeaderName::from_static("x-forwarded-port"),
    HeaderName::from_static("x-forwarded-prefix"),
    HeaderName::from_static("x-forwarded-server"),
    HeaderName::from_static("x-real-ip"),
    HeaderName::from_static("x-client-ip"),
    // Which certificate a client has shown to a proxy, by Envoy's name and by RFC 9440.
    HeaderName::from_static("x-forwarded-client-cert"),
    HeaderName::from_static("client-cert"),
    HeaderName::from_static("client-cert-chain"),
];

/// Whether an app may take a name for that of a forwarding field.
fn resembles_forwarding(name: &HeaderName) -> bool {
    let is_forwarded = || {
        let real = name.as_str().replace('_', "-");
        real.starts_with("x-forwarded-")
    };
    name.as_str().contains('_')
        && (is_forwarded() || BELIEVED.iter().any(|real| is_lookalike(name, real)))
}

/// Of so many denied requests on a thread, one is looked at for forwarding fields.
const DENIED_PER_LOOK: u32 = 16;

thread_local! {
    /// Denied requests since the last look. The first one is looked at.
    static DENIED: Cell<u32> = const { Cell::new(DENIED_PER_LOOK - 1) };
}

/// Sets or sanitises the forwarding fields.
#[derive(Clone, Debug)]
pub struct ForwardedLayer {
    /// The header that trusted proxies write.
    written: AddressHeader,
    /// The translators whose addresses stand for those of IPv4 in what they write.
    nat64: Nat64Prefixes,
    /// The headers that the configuration goes by.
    read: Arc<[HeaderName]>,
    /// Whether a name without `_` may resemble one of these.
    reads_underscores: bool,
    /// Peers whose claims are replaced, and that may be proxies that somebody forgot.
    untrusted: Arc<UntrustedForwarders>,
}

impl ForwardedLayer {
    /// Continues the header that trusted proxies write, and keeps clients from it. The
    /// configuration goes by the headers that are `read`: what an app may take for one of these
    /// in its place is removed.
    pub fn new(written: AddressHeader, read: impl IntoIterator<Item = HeaderName>) -> Self {
        let read: Arc<[HeaderName]> = read.into_iter().collect();
        Self {
            written,
            nat64: Nat64Prefixes::default(),
            reads_underscores: read.iter().any(|name| name.as_str().contains('_')),
            read,
            untrusted: Arc::default(),
        }
    }

    /// The same with translators of one's own, whose addresses stand for those of IPv4.
    #[must_use]
    pub fn with_nat64_prefixes(self, nat64: Nat64Prefixes) -> Self {
        Self { nat64, ..self }
    }

    /// The peers whose requests often name other clients, although nobody trusts them.
    pub fn untrusted_forwarders(&self) -> Vec<IpAddr> {
        self.untrusted.reported()
    }

    /// Counts a request that was denied, and so comes no further: a proxy that nobody trusts may have
    /// most of its requests denied. Returns whether it is one of the few that are looked at.
    pub(super) fn count_denied<Q: HttpRequest>(&self, request: &Q) -> bool {
        let denied = DENIED.get().wrapping_add(1);
        DENIED.set(denied);
        if !denied.is_multiple_of(DENIED_PER_LOOK) {
            return false;
        }
        self.look_at_denied(request);
        true
    }

    fn look_at_denied<Q: HttpRequest>(&self, request: &Q) {
        let identity = ClientIdentity::from_extensions(request.extensions());
        let Some(client) = identity.map(|identity| identity.client) else {
            return;
        };
        let headers = request.headers();
        let own = self.address_header();
        let names_others = headers.contains_key(FOR)
            || headers.contains_key(header::FORWARDED)
            || own.is_some_and(|name| headers.contains_key(name));
        if names_others && !client.peer_is_trusted {
            let now = Instant::now();
            self.untrusted.count(client.peer, DENIED_PER_LOOK, now);
        }
    }

    /// The header with the client's address alone, where the gateway reads one.
    fn address_header(&self) -> Option<&HeaderName> {
        match &self.written {
            AddressHeader::Single(name) => Some(name),
            AddressHeader::XForwardedFor | AddressHeader::Forwarded => None,
        }
    }
}

impl<S> Layer<S> for ForwardedLayer {
    type Service = Forwarded<S>;

    fn layer(&self, inner: S) -> Forwarded<S> {
        Forwarded {
            inner,
            layer: self.clone(),
        }
    }
}

/// A service whose requests name the client that they come from; see [`ForwardedLayer`].
#[derive(Clone, Debug)]
pub struct Forwarded<S> {
    inner: S,
    layer: ForwardedLayer,
}

impl ForwardedLayer {
    /// Names the client of a request for `host`, which came by TLS if it is `secure`.
    fn rewrite(
        &self,
        client: Client,
        secure: bool,
        host: Option<HeaderValue>,
        headers: &mut HeaderMap,
    ) {
        // Most requests have none of the names, which one look at each shows.
        let is_suspect = |name: &HeaderName| {
            let name = name.as_str().as_bytes();
            matches!(name, [b'x', b'-', ..] | [b'c', b'l', ..]) || name.contains(&b'_')
        };
        let has_suspects = self.reads_underscores || headers.keys().any(is_suspect);
        if has_suspects {
            self.remove_lookalikes(headers);
        }
        let proto = if secure { "https" } else { "http" };
        if client.peer_is_trusted {
            let host = self.told_host(client, headers).or(host);
            let asked = AskedBy {
                proto,
                host: host.as_ref(),
            };
            self.continue_addresses(client, asked, headers);
            set_if_absent(headers, PROTO, || HeaderValue::from_static(proto));
            if let Some(host) = host {
                set_if_absent(headers, HOST, || host);
            }
        } else {
            let mut names_others = false;
            if has_suspects {
                for name in &BELIEVED {
                    let is_address = matches!(name.as_str(), "x-real-ip" | "x-client-ip");
                    names_others |= headers.remove(name).is_some() && is_address;
                }
            }
            if let Some(name) = self.address_header() {
                names_others |= headers.remove(name).is_some();
            }
            let asked = AskedBy {
                proto,
                host: host.as_ref(),
            };
            names_others |= start_chains(headers, client.peer, asked);
            if names_others {
                self.untrusted.count(client.peer, 1, Instant::now());
            }
            headers.insert(PROTO, HeaderValue::from_static(proto));
            match host {
                Some(host) => headers.insert(HOST, host),
                None => headers.remove(HOST),
            };
        }
    }

    /// Adds the peer to the list that it was trusted to write, and writes the other list anew from
    /// what is known: the client, and the peer.
    fn continue_addresses(&self, client: Client, asked: AskedBy<'_>, headers: &mut HeaderMap) {
        let Client { address, peer, .. } = client;
        let is_written = |written: &AddressHeader| self.written == *written;
        let mut value = HeaderText::default();
        if is_written(&AddressHeader::XForwardedFor) && headers.contains_key(FOR) {
            for line in headers.get_all(FOR) {
                value.push_bytes(line.as_bytes());
                value.push(", ");
            }
        } else if address != peer {
            put_address(&mut value, address);
            value.push(", ");
        }
        put_address(&mut value, peer);
        set(headers, FOR, value);

        let mut value = HeaderText::default();
        if is_written(&AddressHeader::Forwarded) && headers.contains_key(header::FORWARDED) {
            let of_client = client_element(headers, address, &self.nat64);
            put_elements(&mut value, of_client.as_ref(), asked, headers);
        } else if address != peer {
            put_element(&mut value, address, asked);
            value.push(", ");
        }
        put_element(&mut value, peer, asked);
        set(headers, header::FORWARDED, value);
    }

    /// The host that a trusted proxy says the client asked for: in `X-Forwarded-Host`, or else in
    /// `Forwarded` if that is the header that it writes. One that writes another may pass on what
    /// the client sent, and an app builds links from this host.
    fn told_host(&self, client: Client, headers: &HeaderMap) -> Option<HeaderValue> {
        if let Some(list) = headers.get(HOST) {
            return HeaderValue::from_bytes(list::members(list).next()?).ok();
        }
        if self.written != AddressHeader::Forwarded {
            return None;
        }
        let (_, element) = client_element(headers, client.address, &self.nat64)?;
        let host = element.host?;
        let host = is_host_and_port(host.as_bytes()).then_some(host)?;
        HeaderValue::from_str(&host).ok()
    }

    /// No proxy writes such names, so they are not believed of any peer.
    fn remove_lookalikes(&self, headers: &mut HeaderMap) {
        let read = || self.read.iter().chain(self.address_header());
        remove_names(headers, |name| {
            resembles_forwarding(name) || read().any(|real| is_lookalike(name, real))
        });
    }
}

/// The host that the client asked for: the URI's authority in HTTP/2 and absolute URIs, else the
/// `host` field.
fn host(uri: &Uri, headers: &HeaderMap) -> Option<HeaderValue> {
    match uri.authority() {
        Some(authority) => {
            let authority = authority.as_str();
            // A user and password are no part of what `host` would have said.
            let host = authority.rsplit_once('@');
            HeaderValue::try_from(host.map_or(authority, |(_, host)| host)).ok()
        }
        None => headers.get(header::HOST).cloned(),
    }
}

/// How the client asked.
#[derive(Clone, Copy)]
struct AskedBy<'h> {
    proto: &'static str,
    host: Option<&'h HeaderValue>,
}

/// Writes the elements of `Forwarded` that proxies have sent, as one line, since many apps read but
/// one. The client's element gets what it lacks.
fn put_elements(
    value: &mut HeaderText,
    of_client: Option<&(usize, ForwardedElement<'_>)>,
    asked: AskedBy<'_>,
    headers: &HeaderMap,
) {
    for (index, element) in forwarded_elements(headers).enumerate() {
        value.push_bytes(element);
        if let Some((_, of_client)) = of_client.filter(|(at, _)| *at == index) {
            if of_client.host.is_none() {
                put_host(value, asked.host);
            }
            if of_client.proto.is_none() {
                put_proto(value, asked.proto);
            }
        }
        value.push(", ");
    }
}

/// Writes both lists anew, from the peer alone. The address is part of the element in `Forwarded`,
/// so one piece of memory has both values. Returns whether there was one of the lists.
fn start_chains(headers: &mut HeaderMap, peer: IpAddr, asked: AskedBy<'_>) -> bool {
    let mut element = HeaderText::default();
    let address = put_element(&mut element, peer, asked);
    let element = element.into_bytes();
    let mut replaced = false;
    for (name, value) in [(FOR, element.slice(address)), (header::FORWARDED, element)] {
        // A value that cannot be sent leaves no claim behind either.
        let before = match HeaderValue::from_maybe_shared(value) {
            Ok(value) => headers.insert(name, value),
            Err(_) => headers.remove(name),
        };
        replaced |= before.is_some();
    }
    replaced
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: HeaderText) {
    // A value that cannot be sent leaves no claim behind either.
    match value.into_value() {
        Some(value) => headers.insert(name, value),
        None => headers.remove(name),
    };
}

fn set_if_absent(headers: &mut HeaderMap, name: HeaderName, value: impl FnOnce() -> HeaderValue) {
    if let Entry::Vacant(vacant) = headers.entry(name) {
        vacant.insert(value());
    }
}

fn put_address(value: &mut HeaderText, address: IpAddr) {
    push_address(address, |piece| value.push(piece));
}

/// The address of an element of `Forwarded`, and where in the value it is. One of IPv6 needs
/// brackets and quotes.
fn put_node(value: &mut HeaderText, address: IpAddr) -> Range<usize> {
    let (open, close) = if address.is_ipv6() {
        ("for=\"[", "]\"")
    } else {
        ("for=", "")
    };
    value.push(open);
    let start = value.len();
    put_address(value, address);
    let end = value.len();
    value.push(close);
    start..end
}

/// One element of `Forwarded` (RFC 7239 section 4), and where in the value its address is.
fn put_element(value: &mut HeaderText, node: IpAddr, asked: AskedBy<'_>) -> Range<usize> {
    let address = put_node(value, node);
    put_host(value, asked.host);
    put_proto(value, asked.proto);
    address
}

/// A name goes without quotes, which some apps take for a part of it. A port needs them.
fn put_host(value: &mut HeaderText, host: Option<&HeaderValue>) {
    let Some(host) = host else { return };
    let quote = match host.as_bytes() {
        name if is_token(name) => "",
        text if is_plain(text) => "\"",
        _ => return,
    };
    value.push(";host=");
    value.push(quote);
    value.push_bytes(host.as_bytes());
    value.push(quote);
}

fn put_proto(value: &mut HeaderText, proto: &str) {
    value.push(";proto=");
    value.push(proto);
}

/// Whether a host is a token (RFC 9110 section 5.6.2), as names without a port are.
fn is_token(host: &[u8]) -> bool {
    let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    !host.is_empty() && host.iter().all(is_of_name)
}

/// Whether a host can stand in a quoted string as it is. No real one has anything else.
fn is_plain(host: &[u8]) -> bool {
    host.iter()
        .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\'))
}

impl<S, Q> Service<Q> for Forwarded<S>
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

    fn call(&mut self, mut request: Q) -> S::Future {
        let identity = ClientIdentity::from_extensions(request.extensions());
        if let Some((client, secure)) = identity.map(|identity| (identity.client, identity.secure))
        {
            let host = host(request.uri(), request.headers());
            self.layer
                .rewrite(client, secure, host, request.headers_mut());
        }
        self.inner.call(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Fields = [(&'static str, &'static str)];

    fn rewritten(peer: &str, trusted: bool, fields: &Fields) -> HeaderMap {
        let peer = peer.parse().unwrap();
        let client = Client {
            address: peer,
            peer,
            peer_is_trusted: trusted,
        };
        let written = AddressHeader::Single(HeaderName::from_static("cf-connecting-ip"));
        rewrite(client, written, fields)
    }

    /// What a trusted proxy at 10.0.0.1 sent for a client at 2001:db8::7.
    fn proxied(written: AddressHeader, fields: &Fields) -> HeaderMap {
        let client = Client {
            address: "2001:db8::7".parse().unwrap(),
            peer: "10.0.0.1".parse().unwrap(),
            peer_is_trusted: true,
        };
        rewrite(client, written, fields)
    }

    fn rewrite(client: Client, written: AddressHeader, fields: &Fields) -> HeaderMap {
        let identity = ClientIdentity::new(
            client,
            false,
            &header_map(fields),
            &Nat64Prefixes::default(),
        );
        asked(&identity, written, "/", fields)
    }

    fn header_map(fields: &Fields) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for &(name, value) in fields {
            headers.append(name, HeaderValue::from_static(value));
        }
        headers
    }

    fn asked(
        identity: &ClientIdentity,
        written: AddressHeader,
        uri: &'static str,
        fields: &Fields,
    ) -> HeaderMap {
        let mut headers = header_map(fields);
        let layer = ForwardedLayer::new(written, [HeaderName::from_static("x-api-key")]);
        let host = host(&Uri::from_static(uri), &headers);
        layer.rewrite(identity.client, identity.secure, host, &mut headers);
        headers
    }

    fn lines(headers: &HeaderMap, name: HeaderName) -> Vec<&str> {
        headers
            .get_all(name)
            .iter()
            .map(|value| value.to_str().unwrap())
            .collect()
    }

    #[test]
    fn what_an_untrusted_peer_claims_is_thrown_away() {
        let claims = [
            ("host", "app.example.com"),
            ("x-forwarded-for", "1.1.1.1"),
            ("x-forwarded-for", "2.2.2.2"),
            ("forwarded", "for=1.1.1.1"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "evil.example"),
            ("x-real-ip", "1.1.1.1"),
            ("cf-connecting-ip", "1.1.1.1"),
        ];
        let headers = rewritten("203.0.113.9", false, &claims);
        assert_eq!(lines(&headers, FOR), ["203.0.113.9"]);
        assert_eq!(
            lines(&headers, header::FORWARDED),
            ["for=203.0.113.9;host=app.example.com;proto=http"]
        );
        assert_eq!(lines(&headers, PROTO), ["http"]);
        assert_eq!(lines(&headers, HOST), ["app.example.com"]);
        assert!(!headers.contains_key("x-real-ip") && !headers.contains_key("cf-connecting-ip"));
    }

    #[test]
    fn a_forgotten_proxy_is_noticed_by_whatever_field_names_its_clients() {
        for (field, names_others) in [
            ("x-forwarded-for", true),
            ("forwarded", true),
            ("x-real-ip", true),
            ("x-client-ip", true),
            ("x-forwarded-port", false),
            ("x-request-id", false),
        ] {
            let layer = ForwardedLayer::new(AddressHeader::XForwardedFor, []);
            let peer = "10.0.0.9".parse().unwrap();
            let client = Client {
                address: peer,
                peer,
                peer_is_trusted: false,
            };
            for _ in 0..100 {
                let mut headers = HeaderMap::new();
                headers.insert(field, HeaderValue::from_static("192.0.2.1"));
                layer.rewrite(client, false, None, &mut headers);
            }
            let noticed = !layer.untrusted_forwarders().is_empty();
            assert_eq!(noticed, names_others, "{field}");
        }
    }

    #[test]
    fn nothing_that_apps_believe_of_a_proxy_comes_from_anybody_else() {
        let claims = BELIEVED.map(|name| (name, HeaderValue::from_static("1.1.1.1")));
        for name in [
            "x-forwarded-port",
            "x-forwarded-prefix",
            "x-forwarded-server",
            "x-real-ip",
            "x-client-ip",
        ] {
            assert!(claims.iter().any(|(claimed, _)| *claimed == name), "{name}");
            let claim = [(name, "1.1.1.1")];
            let names = |trusted| {
                let headers = rewritten("203.0.113.9", trusted, &claim);
                headers.contains_key(name)
            };
            assert_eq!((names(false), names(true)), (false, true), "{name}");
        }
    }

    #[test]
    fn a_client_that_names_no_host_has_none_told_of_it() {
        let claims = [("x-forwarded-host", "evil.example")];
        let headers = rewritten("203.0.113.9", false, &claims);
        assert!(!headers.contains_key(HOST), "{headers:?}");
        let forwarded = lines(&headers, header::FORWARDED);
        assert_eq!(forwarded, ["for=203.0.113.9;proto=http"]);
    }

    #[test]
    fn scheme_and_host_are_those_that_the_client_has_asked_by() {
        for trusted in [false, true] {
            let peer = "203.0.113.9".parse().unwrap();
            let identity = ClientIdentity {
                client: Client {
                    address: peer,
                    peer,
                    peer_is_trusted: trusted,
                },
                account: None,
                secure: true,
            };
            let fields = [("host", "other.example")];
            let uri = "https://app.example.com/path";
            let headers = asked(&identity, AddressHeader::XForwardedFor, uri, &fields);
            assert_eq!(lines(&headers, PROTO), ["https"]);
            assert_eq!(lines(&headers, HOST), ["app.example.com"]);
            let forwarded = lines(&headers, header::FORWARDED);
            assert!(forwarded[0].ends_with(";proto=https"), "{forwarded:?}");
        }
    }

    #[test]
    fn an_untrusted_client_of_ipv6_is_named_in_brackets() {
        let headers = rewritten("2001:db8::7", false, &[("host", "app")]);
        assert_eq!(lines(&headers, FOR), ["2001:db8::7"]);
        assert_eq!(
            lines(&headers, header::FORWARDED),
            ["for=\"[2001:db8::7]\";host=app;proto=http"]
        );
    }

    #[test]
    fn the_host_is_told_without_user_and_password() {
        let uri = Uri::from_static("http://app.example.com@evil.example:81/");
        let told = host(&uri, &HeaderMap::new()).unwrap();
        assert_eq!(told, "evil.example:81");
    }

    #[test]
    fn names_that_apps_take_for_forwarding_headers_are_removed_from_every_request() {
        let claims = [
            ("x_forwarded_for", "1.1.1.1"),
            ("x-forwarded_proto", "https"),
            ("x_real_ip", "1.1.1.1"),
            ("cf_connecting-ip", "1.1.1.1"),
            ("x_api_key", "another account's"),
            ("x_other", "stays"),
        ];
        for trusted in [false, true] {
            let headers = rewritten("203.0.113.9", trusted, &claims);
            let with_underscore: Vec<_> = headers
                .keys()
                .filter(|name| name.as_str().contains('_'))
                .collect();
            assert_eq!(with_underscore, ["x_other"]);
        }
    }

    const SAID: &Fields = &[
        ("host", "inside"),
        ("x-forwarded-for", "2001:db8::7"),
        ("x-forwarded-for", "2.2.2.2"),
        ("forwarded", "for=\"[2001:db8::7]\""),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "outside"),
    ];

    #[test]
    fn what_a_trusted_proxy_said_is_continued_in_one_line() {
        let headers = proxied(AddressHeader::XForwardedFor, SAID);
        assert_eq!(lines(&headers, FOR), ["2001:db8::7, 2.2.2.2, 10.0.0.1"]);
        assert_eq!(lines(&headers, PROTO), ["https"]);
        assert_eq!(lines(&headers, HOST), ["outside"]);
        let headers = proxied(AddressHeader::Forwarded, SAID);
        assert_eq!(
            lines(&headers, header::FORWARDED),
            [
                "for=\"[2001:db8::7]\";host=outside;proto=https, for=10.0.0.1;host=outside;proto=https"
            ]
        );
    }

    /// Apps that prefer `Forwarded` redirected to HTTPS for ever behind a proxy that ends TLS:
    /// hypercorn reads the element at a certain distance from the end, Rack the last one, and
    /// Spring the first one.
    #[test]
    fn no_element_of_forwarded_contradicts_how_the_client_asked_whichever_header_proxies_write() {
        let headers = [
            (
                AddressHeader::XForwardedFor,
                "x-forwarded-for",
                "2001:db8::7",
            ),
            (
                AddressHeader::Forwarded,
                "forwarded",
                "for=\"[2001:db8::7]\"",
            ),
            (
                AddressHeader::Single(HeaderName::from_static("x-real-ip")),
                "x-real-ip",
                "2001:db8::7",
            ),
        ];
        const HTTPS: (&str, &str) = ("x-forwarded-proto", "https");
        for (written, name, value) in headers {
            let told = |more: &Fields| {
                let fields = [&[("host", "app:8080"), (name, value)], more].concat();
                let headers = proxied(written.clone(), &fields);
                let line = lines(&headers, header::FORWARDED).join("|");
                assert_eq!(lines(&headers, PROTO), ["https"], "{name} {more:?}");
                (line, lines(&headers, HOST).join("|"))
            };
            let both = |asked: &str| format!("for=\"[2001:db8::7]\";{asked}, for=10.0.0.1;{asked}");
            assert_eq!(
                told(&[HTTPS]),
                (both("host=\"app:8080\";proto=https"), "app:8080".to_owned()),
                "{name}"
            );
            let outside = ("x-forwarded-host", "outside.example");
            assert_eq!(
                told(&[HTTPS, outside]),
                (
                    both("host=outside.example;proto=https"),
                    "outside.example".to_owned()
                ),
                "{name}"
            );
        }
    }

    #[test]
    fn what_a_proxy_says_in_forwarded_alone_is_in_the_other_fields_too() {
        let said = "for=6.6.6.6;proto=http;host=evil.example, \
                    for=\"[2001:db8::7]\";proto=https;host=\"outside:8443\"";
        let headers = proxied(
            AddressHeader::Forwarded,
            &[("host", "inside"), ("forwarded", said)],
        );
        assert_eq!(lines(&headers, PROTO), ["https"]);
        assert_eq!(lines(&headers, HOST), ["outside:8443"]);
        let forwarded = lines(&headers, header::FORWARDED).join("|");
        let own = ", for=10.0.0.1;host=\"outside:8443\";proto=https";
        assert!(forwarded.ends_with(own), "{forwarded}");
        // Two proxies: each has said how it was asked, and the first one spoke with the client.
        let said = "for=\"[2001:db8::7]\";proto=https, for=10.0.0.9;proto=http";
        let headers = proxied(AddressHeader::Forwarded, &[("forwarded", said)]);
        assert_eq!(lines(&headers, PROTO), ["https"]);
        let expected = format!("{said}, for=10.0.0.1;proto=https");
        assert_eq!(lines(&headers, header::FORWARDED), [expected]);
    }

    #[test]
    fn the_element_of_a_client_behind_a_translator_of_ones_own_is_found() {
        let client = Client {
            address: "192.0.2.1".parse().unwrap(),
            peer: "10.0.0.1".parse().unwrap(),
            peer_is_trusted: true,
        };
        let nat64 = Nat64Prefixes::new(["2001:db8:64::".parse().unwrap()]);
        let said = "for=\"[2001:db8:64::192.0.2.1]\";host=outside, for=10.0.0.2;host=inside";
        let mut headers = header_map(&[("forwarded", said)]);
        let layer = ForwardedLayer::new(AddressHeader::Forwarded, []).with_nat64_prefixes(nat64);
        layer.rewrite(client, true, None, &mut headers);
        assert_eq!(lines(&headers, HOST), ["outside"]);
        let expected = said.replace("outside", "outside;proto=https");
        let expected = format!("{expected}, for=10.0.0.1;host=outside;proto=https");
        assert_eq!(lines(&headers, header::FORWARDED), [expected]);
    }

    /// Proxies that write `X-Forwarded-For` pass a client's own `Forwarded` on, and apps send
    /// links of the host that they are told, by mail for example.
    #[test]
    fn a_host_in_forwarded_is_the_clients_invention_where_proxies_write_another_header() {
        let single = AddressHeader::Single(HeaderName::from_static("x-real-ip"));
        let said = "for=1.1.1.1;host=evil.example, \
                    for=\"[2001:db8::7]\";host=evil.example;proto=https";
        for written in [AddressHeader::XForwardedFor, single] {
            let fields = [("host", "app"), ("forwarded", said)];
            let headers = proxied(written.clone(), &fields);
            assert_eq!(lines(&headers, HOST), ["app"]);
            let anew = "for=\"[2001:db8::7]\";host=app;proto=https, \
                        for=10.0.0.1;host=app;proto=https";
            assert_eq!(lines(&headers, header::FORWARDED), [anew]);
            assert_eq!(
                lines(&headers, PROTO),
                ["https"],
                "believed with any header"
            );
            let told = [&fields[..], &[("x-forwarded-host", "outside")]].concat();
            assert_eq!(lines(&proxied(written, &told), HOST), ["outside"]);
        }
    }

    #[test]
    fn a_host_in_forwarded_that_is_none_is_not_believed() {
        for said in [
            "for=\"[2001:db8::7]\";host=\"a/b\"",
            "for=\"[2001:db8::7]\";host=\"user@evil.example\"",
            "for=\"[2001:db8::7]\";host=\"a:x\"",
            "for=\"[2001:db8::7]\";host=\"[::1\"",
        ] {
            let fields = [("host", "app"), ("forwarded", said)];
            let headers = proxied(AddressHeader::Forwarded, &fields);
            assert_eq!(lines(&headers, HOST), ["app"], "{said}");
        }
    }

    #[test]
    fn the_scheme_of_websockets_is_told_as_that_of_their_handshake() {
        for (told, proto) in [("wss", "https"), ("ws", "http")] {
            let fields = [
                ("x-forwarded-for", "2001:db8::7"),
                ("x-forwarded-proto", told),
            ];
            let headers = proxied(AddressHeader::XForwardedFor, &fields);
            let expected =
                format!("for=\"[2001:db8::7]\";proto={proto}, for=10.0.0.1;proto={proto}");
            assert_eq!(lines(&headers, header::FORWARDED), [expected]);
            assert_eq!(lines(&headers, PROTO), [told], "the proxy's word is kept");
        }
    }

    #[test]
    fn a_field_that_the_trusted_proxy_does_not_write_is_written_anew() {
        let invented = [("x-forwarded-for", "6.6.6.6"), ("forwarded", "for=6.6.6.6")];
        let anew = "for=\"[2001:db8::7]\";proto=http, for=10.0.0.1;proto=http";
        let headers = proxied(AddressHeader::XForwardedFor, &invented);
        assert_eq!(lines(&headers, header::FORWARDED), [anew]);
        let headers = proxied(AddressHeader::Forwarded, &invented);
        assert_eq!(lines(&headers, FOR), ["2001:db8::7, 10.0.0.1"]);
        let single = AddressHeader::Single(HeaderName::from_static("x-real-ip"));
        let headers = proxied(single, &invented);
        assert_eq!(lines(&headers, FOR), ["2001:db8::7, 10.0.0.1"]);
        assert_eq!(lines(&headers, header::FORWARDED), [anew]);
    }

    #[test]
    fn a_trusted_proxy_that_said_nothing_is_named() {
        let headers = rewritten("10.0.0.1", true, &[("host", "app")]);
        assert_eq!(lines(&headers, FOR), ["10.0.0.1"]);
        assert_eq!(lines(&headers, PROTO), ["http"]);
        assert_eq!(lines(&headers, HOST), ["app"]);
    }

    #[test]
    fn a_host_that_would_break_out_of_its_quotes_is_not_passed_on() {
        for host in ["a\";for=6.6.6.6", "a\\", "a b", "a\t"] {
            let mut value = HeaderText::default();
            let host = HeaderValue::from_static(host);
            let asked = AskedBy {
                proto: "http",
                host: Some(&host),
            };
            put_element(&mut value, "1.1.1.1".parse().unwrap(), asked);
            assert_eq!(value.into_value().unwrap(), "for=1.1.1.1;proto=http");
        }
    }
}
