//! The end of a request: one line in the access log, and its counters.

use std::fmt::{self, Write};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Response, StatusCode, Uri, Version};
use tokio::time::Instant;
use weir_limit::time::Timestamp;

use super::log_field::{Field, LogValue, Notes};
use super::{Disposition, RouteMetrics, Shed, Strictest, Verdict};
use super::{Traffic, UpstreamFailed, UpstreamOutcome};

/// The target of access log lines, to be named in a log filter.
pub const ACCESS_TARGET: &str = "weir::access";

/// The most that is logged of each text that a client chose, in bytes before what is not text or is
/// deceptive is escaped: filling a log shall take many requests.
const MAX_TEXT_BYTES: usize = 512;

/// Where a proxy in front, or the app, numbers requests that have no id of the gateway.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Writes the line of a request.
type Sink = dyn Fn(&RequestFinished<'_>) + Send + Sync;

/// The access log of this process. It is none of tracing's subscribers: those take several times as
/// long to collect the fields of an event, and nearly all lines are the access log's.
static SINK: OnceLock<Box<Sink>> = OnceLock::new();

/// Whether the access log is on; what only it shows need not be found out otherwise.
pub fn is_logged() -> bool {
    SINK.get().is_some()
}

/// Has `sink` write the lines of this process from now on, unless another does.
pub fn log_requests_to(sink: impl Fn(&RequestFinished<'_>) + Send + Sync + 'static) {
    // Whoever sets up logs twice gets an error before this.
    let _ = SINK.set(Box::new(sink));
}

/// What is known of every request, for its counters. It travels with the response, which is moved
/// many times, so what only a line shows is apart ([`LoggedRequest`]).
#[derive(Debug)]
pub struct CountedRequest {
    /// When it came.
    pub since: Instant,
    /// The route that it took.
    pub route: Arc<RouteMetrics>,
    /// Whether its response has no body, as it asked for the head alone.
    pub is_head: bool,
    /// The status that the client got.
    pub status: StatusCode,
    /// What was decided, also where no verdict came.
    pub decision: Disposition,
    /// Bytes of the body that were sent.
    pub bytes: u64,
    /// Whether the body was sent to its end.
    pub complete: bool,
}

/// What is kept of a request for its line in the log and its trace alone. All that its head says is
/// the client's word.
#[derive(Debug)]
pub struct LoggedRequest {
    /// Its method.
    pub method: Method,
    /// Its target.
    pub uri: Uri,
    /// Its version of HTTP.
    pub version: Version,
    /// Whether queries are logged, which may hold secrets.
    pub queries: bool,
    /// The client's address.
    pub client: Option<IpAddr>,
    /// By which scheme the client sent it.
    pub scheme: Option<&'static str>,
    /// Its `Host`.
    pub host: Option<HeaderValue>,
    /// Its `User-Agent`.
    pub user_agent: Option<HeaderValue>,
    /// Its `Referer`.
    pub referer: Option<HeaderValue>,
    /// Its id; or the `X-Request-Id` of the request, or else of the response.
    pub request_id: Option<HeaderValue>,
    /// Why it was decided so, and what it cost, where that is known.
    pub verdict: Option<Verdict>,
    /// The upstream's response, if there was one.
    pub upstream: Option<UpstreamOutcome>,
    /// Why no upstream answered, if it was asked and did not.
    pub upstream_error: Option<&'static str>,
    /// The traffic of the tunnel that it has become.
    pub traffic: Option<Arc<Traffic>>,
    /// What the steps on its response add, if they do.
    pub notes: Option<Box<Notes>>,
}

/// A request that was answered, to the last byte or as far as its client stayed.
pub struct RequestFinished<'a> {
    /// What is known of every request.
    pub counted: &'a CountedRequest,
    /// What was kept of it beside.
    pub logged: &'a LoggedRequest,
    /// The account, if it named one: its hash, unless the operator wants its name.
    pub account: Option<&'a (dyn fmt::Display + 'a)>,
    /// From its head to the end of its response.
    pub took: Duration,
}

impl LoggedRequest {
    /// A request with this head, whose headers are to be [kept](Self::keep_headers).
    #[inline]
    pub fn new(method: Method, uri: Uri, version: Version) -> Self {
        Self {
            method,
            uri,
            version,
            queries: false,
            client: None,
            scheme: None,
            host: None,
            user_agent: None,
            referer: None,
            request_id: None,
            verdict: None,
            upstream: None,
            upstream_error: None,
            traffic: None,
            notes: None,
        }
    }

    /// Keeps the headers that lines show, but for an id where it has one.
    #[inline]
    pub fn keep_headers(&mut self, headers: &HeaderMap) {
        // To look up each of them takes longer.
        for (name, value) in headers {
            let kept = match *name {
                header::HOST => &mut self.host,
                header::USER_AGENT => &mut self.user_agent,
                header::REFERER => &mut self.referer,
                _ if name == REQUEST_ID => &mut self.request_id,
                _ => continue,
            };
            kept.get_or_insert_with(|| value.clone());
        }
    }

    /// Keeps what its response tells of it.
    #[inline]
    pub fn answered<B>(&mut self, response: &mut Response<B>) {
        if self.request_id.is_none() {
            self.request_id = response.headers().get(REQUEST_ID).cloned();
        }
        let extensions = response.extensions_mut();
        self.verdict = extensions.remove();
        // In a flood most lines are of denials, and a search in vain costs as much as another.
        if matches!(&self.verdict, Some(verdict) if verdict.disposition == Disposition::Denied) {
            return;
        }
        self.upstream = extensions.remove();
        let failed = extensions.remove::<UpstreamFailed>();
        self.upstream_error = failed.map(|failed| failed.reason);
    }

    /// Its query, where queries are logged.
    #[inline]
    pub(super) fn query(&self) -> Option<&str> {
        self.uri.query().filter(|_| self.queries)
    }

    /// The host that it asks for.
    #[inline]
    pub(super) fn asked_host(&self) -> Option<&[u8]> {
        let authority = self.uri.authority();
        let authority = authority.map(|authority| authority.as_str().as_bytes());
        authority.or_else(|| self.host.as_ref().map(HeaderValue::as_bytes))
    }

    /// Its `Referer`; without the query, which may hold secrets of the page that it is of, where
    /// queries are not logged.
    #[inline]
    fn shown_referer(&self) -> Option<&[u8]> {
        let referer = self.referer.as_ref()?.as_bytes();
        match self.queries {
            true => Some(referer),
            false => referer.split(|byte| matches!(byte, b'?' | b'#')).next(),
        }
    }
}

/// Takes the fields of a line, each with a value of one of these kinds.
pub trait FieldVisitor {
    /// A text.
    fn text(&mut self, field: &'static Field, value: &str);

    /// A text that needs no escape.
    fn word(&mut self, field: &'static Field, value: &str) {
        self.text(field, value);
    }

    /// Bytes that a client sent, which are text for the most part.
    fn bytes(&mut self, field: &'static Field, value: &[u8]) {
        self.text(field, &String::from_utf8_lossy(value));
    }

    /// A text that is made while it is written.
    fn computed_text(&mut self, field: &'static Field, value: &dyn fmt::Display) {
        self.shown(field, value);
    }

    /// A text that is never in quotes in the form for people.
    fn shown(&mut self, field: &'static Field, value: &dyn fmt::Display);

    /// A number.
    fn integer(&mut self, field: &'static Field, value: u64) {
        self.shown(field, &value);
    }

    /// A duration.
    fn milliseconds(&mut self, field: &'static Field, value: Milliseconds) {
        self.shown(field, &value);
    }

    /// Whether something is so.
    fn boolean(&mut self, field: &'static Field, value: bool) {
        self.shown(field, &value);
    }
}

/// A value of a field. One that is `None` leaves the field out.
trait Value {
    fn visit(self, field: &'static Field, to: &mut impl FieldVisitor);
}

/// Passes fields with their values to a visitor, in this order.
macro_rules! visit {
    ($to:expr, $($name:ident = $value:expr,)*) => {$(
        Value::visit($value, field::$name, $to);
    )*};
}

/// The table of fields: its line has those with a value, in this order, and behind them those of
/// steps on its response ([`Notes`]). Behind a name stands where else the field is shown, by the
/// methods of [`Field`]. Whoever else shows requests, or reads lines, learns here which fields
/// there are.
macro_rules! fields {
    ($request:ident: $($name:ident $(.$shown:ident($($how:literal),*))* = $value:expr,)*) => {
        /// The fields of a line of the access log.
        #[expect(missing_docs, reason = "docs/LOGS.md has what each of them says")]
        #[expect(non_upper_case_globals, reason = "they are called as in lines")]
        pub mod field {
            use crate::log_field::Field;

            $(pub const $name: &Field = &Field::new(
                stringify!($name),
                concat!(",\"", stringify!($name), "\":\"                    "),
            )$(.$shown($($how),*))*;)*
        }

        /// All of them, in the order of a line.
        pub const FIELDS: [&Field; [$(stringify!($name)),*].len()] = [$(field::$name),*];

        impl RequestFinished<'_> {
            /// Passes on the fields of its line.
            pub fn visit(&self, to: &mut impl FieldVisitor) {
                let $request = self;
                visit!(to, $($name = $value,)*);
                if let Some(notes) = &self.logged.notes {
                    visit_notes(notes, to);
                }
            }
        }
    };
}

fields! { request:
    client.watched(0) = request.logged.client.map(Address),
    method.watched(2) = clipped(request.logged.method.as_str()),
    path.watched(3) = clipped(request.logged.uri.path()),
    query = request.logged.query().map(clipped),
    status.watched(7) = u64::from(request.counted.status.as_u16()),
    route.watched(8) = request.counted.route.name(),
    listener.attribute("weir.listener") = request.counted.route.listener().shown().map(Word),
    decision.watched(9).attribute("weir.decision") = Word(request.counted.decision.as_str()),
    limit.watched(10).attribute("weir.limit") = request.denied_by(),
    ban.watched(11).attribute("weir.ban") = request.banned_by(),
    list.watched(12).attribute("weir.list") = request.listed().map(Word),
    decided_by.attribute("weir.decided_by") =
        request.verdict(|verdict| verdict.decided_by).map(Word),
    account.watched(1).attribute("weir.account") = request.account.map(Clipped),
    bytes = request.sent(),
    received = request.received(),
    // Only logged when it is true.
    aborted = (!request.is_complete()).then_some(true),
    cost.attribute("weir.cost") = request.strictest().map(|strictest| u64::from(strictest.cost)),
    remaining.attribute("weir.remaining") =
        request.strictest().map(|strictest| strictest.remaining),
    scheme = request.logged.scheme.map(Word),
    host.watched(4) = request.logged.asked_host().map(ClientBytes),
    version = Word(http_version(request.logged.version)),
    duration_ms.watched_as(13, "ms") = Milliseconds::new(request.took),
    store_ms = request.verdict(|verdict| verdict.store).map(Milliseconds::new),
    delay_ms = request.verdict(|verdict| verdict.delay).map(Milliseconds::new),
    shed = request.shed().map(|shed| shed.by),
    priority = request.shed().map(|shed| shed.priority.as_str()),
    in_flight = request.verdict(|verdict| verdict.in_flight),
    decided_ns = request.verdict(|verdict| verdict.decided_at).map(Timestamp::as_nanos),
    upstream.watched(14) = request.upstream().map(|upstream| &*upstream.server),
    upstream_status = request.upstream().map(|upstream| u64::from(upstream.status.as_u16())),
    upstream_error.watched(16) = request.logged.upstream_error,
    upstream_ms.watched(15) = request.upstream().map(|upstream| Milliseconds::new(upstream.head)),
    request_id.watched(6).header("x-request-id") =
        request.logged.request_id.as_ref().map(ClientBytes::of),
    user_agent.watched(5).header("user-agent") =
        request.logged.user_agent.as_ref().map(ClientBytes::of),
    referer.header("referer") = request.logged.shown_referer().map(ClientBytes),
}

impl RequestFinished<'_> {
    /// Writes its line, if there is an access log.
    pub fn emit(&self) {
        if let Some(sink) = SINK.get() {
            sink(self);
        }
    }

    /// The limit that denied it.
    #[inline]
    pub(super) fn denied_by(&self) -> Option<&str> {
        self.logged.verdict.as_ref()?.denied_by.as_deref()
    }

    /// The ban that held, or would have held.
    #[inline]
    pub(super) fn banned_by(&self) -> Option<&str> {
        self.logged.verdict.as_ref()?.banned_by.as_deref()
    }

    /// The list that its client is on.
    #[inline]
    pub(super) fn listed(&self) -> Option<&'static str> {
        self.verdict(|verdict| verdict.listed)
    }

    #[inline]
    fn strictest(&self) -> Option<Strictest> {
        self.verdict(|verdict| verdict.strictest)
    }

    #[inline]
    fn shed(&self) -> Option<Shed> {
        self.verdict(|verdict| verdict.shed)
    }

    #[inline]
    pub(super) fn verdict<T>(&self, get: impl Fn(&Verdict) -> Option<T>) -> Option<T> {
        self.logged.verdict.as_ref().and_then(get)
    }

    #[inline]
    pub(super) fn upstream(&self) -> Option<&UpstreamOutcome> {
        self.logged.upstream.as_ref()
    }

    /// Bytes that the client got, also by the tunnel that the request has become.
    #[inline]
    pub(super) fn sent(&self) -> u64 {
        let traffic = self.logged.traffic.as_ref();
        traffic.map_or(self.counted.bytes, |traffic| traffic.bytes().0)
    }

    /// Bytes that came by its tunnel.
    #[inline]
    fn received(&self) -> Option<u64> {
        let traffic = self.logged.traffic.as_ref()?;
        Some(traffic.bytes().1)
    }

    /// Whether its response, or its tunnel, was sent to the end.
    #[inline]
    fn is_complete(&self) -> bool {
        let traffic = self.logged.traffic.as_ref();
        traffic.map_or(self.counted.complete, |traffic| traffic.is_complete())
    }
}

/// Out of line: few requests have any.
#[cold]
fn visit_notes(notes: &Notes, to: &mut impl FieldVisitor) {
    for (field, value) in notes.iter() {
        match value {
            LogValue::Word(word) => to.word(field, word),
            LogValue::Text(text) => to.text(field, clipped(text)),
            LogValue::Number(number) => to.integer(field, *number),
            LogValue::Duration(duration) => to.milliseconds(field, Milliseconds::new(*duration)),
        }
    }
}

impl<V: Value> Value for Option<V> {
    #[inline(always)]
    fn visit(self, field: &'static Field, to: &mut impl FieldVisitor) {
        if let Some(value) = self {
            value.visit(field, to);
        }
    }
}

impl Value for &str {
    #[inline(always)]
    fn visit(self, field: &'static Field, to: &mut impl FieldVisitor) {
        to.text(field, self);
    }
}

/// A text that needs no escape.
struct Word<'a>(&'a str);

impl Value for Word<'_> {
    #[inline(always)]
    fn visit(self, field: &'static Field, to: &mut impl FieldVisitor) {
        to.word(field, self.0);
    }
}

/// Bytes that a client sent.
struct ClientBytes<'a>(&'a [u8]);

impl<'a> ClientBytes<'a> {
    #[inline(always)]
    fn of(header: &'a HeaderValue) -> Self {
        Self(header.as_bytes())
    }
}

impl Value for ClientBytes<'_> {
    #[inline(always)]
    fn visit(self, field: &'static Field, to: &mut impl FieldVisitor) {
        to.bytes(field, clipped_bytes(self.0));
    }
}

impl Value for u64 {
    #[inline(always)]
    fn visit(self, field: &'static Field, to: &mut impl FieldVisitor) {
        to.integer(field, self);
    }
}

impl Value for bool {
    #[inline(always)]
    fn visit(self, field: &'static Field, to: &mut impl FieldVisitor) {
        to.boolean(field, self);
    }
}

impl Value for Milliseconds {
    #[inline(always)]
    fn visit(self, field: &'static Field, to: &mut impl FieldVisitor) {
        to.milliseconds(field, self);
    }
}

impl Value for Clipped<'_> {
    #[inline(always)]
    fn visit(self, field: &'static Field, to: &mut impl FieldVisitor) {
        to.computed_text(field, &self);
    }
}

/// As much of a client's text as is logged.
#[inline]
pub(super) fn clipped(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_TEXT_BYTES))
        .unwrap_or_default()
}

#[inline]
fn clipped_bytes(bytes: &[u8]) -> &[u8] {
    bytes.get(..MAX_TEXT_BYTES).unwrap_or(bytes)
}

/// An address. Those of IPv4, which write seven pieces by themselves, are written in one.
struct Address(IpAddr);

impl Value for Address {
    #[inline(always)]
    fn visit(self, field: &'static Field, to: &mut impl FieldVisitor) {
        let IpAddr::V4(address) = self.0 else {
            return to.shown(field, &self.0);
        };
        let mut text = [b'.'; "255.255.255.255.".len()];
        let mut used = 0;
        for octet in address.octets() {
            let mut digits = itoa::Buffer::new();
            let digits = digits.format(octet).as_bytes();
            if let Some(room) = text.get_mut(used..used + digits.len()) {
                room.copy_from_slice(digits);
            }
            // The full stop behind it is there.
            used += digits.len() + 1;
        }
        to.bytes(field, text.get(..used - 1).unwrap_or_default());
    }
}

/// As much of what an account shows as is logged: the operator may want names, which clients
/// choose.
struct Clipped<'a>(&'a (dyn fmt::Display + 'a));

impl fmt::Display for Clipped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut clip = Clip(f, MAX_TEXT_BYTES);
        write!(clip, "{}", self.0)
    }
}

/// Passes on as many bytes as are left.
struct Clip<'a, 'f>(&'a mut fmt::Formatter<'f>, usize);

impl Write for Clip<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let text = text
            .get(..text.floor_char_boundary(self.1))
            .unwrap_or_default();
        self.1 -= text.len();
        self.0.write_str(text)
    }
}

/// Milliseconds, to the microsecond, as a number for JSON.
pub(super) fn milliseconds(duration: Duration) -> f64 {
    Milliseconds::new(duration).as_f64()
}

/// Milliseconds, to the microsecond. They are shown as numbers are: without zeros at their end but
/// for one behind the point.
#[derive(Clone, Copy, Debug)]
pub struct Milliseconds {
    micros: u64,
}

impl Milliseconds {
    #[inline]
    fn new(duration: Duration) -> Self {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Self { micros }
    }

    /// Its value, as near as a `f64` comes.
    pub fn as_f64(self) -> f64 {
        self.micros as f64 / 1000.0
    }

    /// The digits before the point.
    #[inline]
    pub fn whole(self) -> u64 {
        self.micros / 1000
    }

    /// The point and the digits behind it, which are written into `digits`.
    #[inline]
    pub fn fraction(self, digits: &mut [u8; 4]) -> &[u8] {
        let digit = |number: u64| b'0' + u8::try_from(number % 10).unwrap_or_default();
        let thousandths = self.micros % 1000;
        let (tenths, hundredths) = (digit(thousandths / 100), digit(thousandths / 10));
        *digits = [b'.', tenths, hundredths, digit(thousandths)];
        let shown = match digits {
            [.., b'0', b'0'] => 2,
            [.., b'0'] => 3,
            _ => 4,
        };
        digits.get(..shown).unwrap_or_default()
    }
}

impl fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digits = [0; 4];
        let fraction = str::from_utf8(self.fraction(&mut digits)).unwrap_or_default();
        write!(f, "{}{fraction}", self.whole())
    }
}

#[inline]
fn http_version(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_11 => "1.1",
        Version::HTTP_2 => "2",
        Version::HTTP_3 => "3",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Shown(String);

    impl FieldVisitor for Shown {
        fn text(&mut self, _: &'static Field, value: &str) {
            self.0 = value.to_owned();
        }

        fn shown(&mut self, _: &'static Field, value: &dyn fmt::Display) {
            self.0 = value.to_string();
        }
    }

    #[test]
    fn an_address_is_written_as_by_its_own_formatter() {
        let octets = [0, 9, 10, 99, 100, 199, 255];
        let v4 = octets
            .iter()
            .flat_map(|&a| octets.map(|b| IpAddr::from([a, b, 1, b])));
        let v6 = ["::1", "2001:db8::7"].map(|text| text.parse().unwrap());
        for address in v4.chain(v6) {
            let mut shown = Shown(String::new());
            visit!(&mut shown, client = Address(address),);
            assert_eq!(shown.0, address.to_string());
        }
    }

    #[test]
    fn a_number_of_milliseconds_is_the_text_of_any_other_number() {
        let few = [0, 1, 9, 10, 99, 100, 999, 1000, 1001, 1010, 1100, 9990];
        let great = [u64::from(u32::MAX), 999_999_999_999_999];
        let many = (0..100_000_u32).map(|number| u64::from(number.wrapping_mul(2_654_435_761)));
        for micros in few.into_iter().chain(great).chain(many) {
            let duration = Duration::from_micros(micros);
            let shown = serde_json::to_string(&milliseconds(duration)).unwrap();
            assert_eq!(Milliseconds::new(duration).to_string(), shown, "{micros}");
        }
    }
}
