//! The end of a request: one line in the access log, and its counters.

use std::fmt::{self, Write};
use std::net::IpAddr;
use std::sync::OnceLock;
use std::time::Duration;

use http::{Method, StatusCode, Version};
use weir_limit::time::Timestamp;

use super::log_field::{Field, LogValue, Notes};
use super::{Disposition, RouteMetrics, Shed, Strictest, Verdict};

/// The target of access log lines, to be named in a log filter.
pub const ACCESS_TARGET: &str = "weir::access";

/// The most that is logged of each text that a client chose, in bytes before what is not text or is
/// deceptive is escaped: filling a log shall take many requests.
const MAX_TEXT_BYTES: usize = 512;

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

/// A request was answered, to the last byte or as far as its client stayed.
pub struct RequestFinished<'a> {
    /// The route that it took.
    pub route: &'a RouteMetrics,
    /// Its method.
    pub method: &'a Method,
    /// Its path, without the query, which may hold secrets.
    pub path: &'a str,
    /// Its query, where that is to be logged.
    pub query: Option<&'a str>,
    /// Its headers that are logged, where they were kept.
    pub headers: LoggedHeaders<'a>,
    /// Its version of HTTP.
    pub version: Version,
    /// The client's address.
    pub client: Option<IpAddr>,
    /// The account, if it named one: its hash, unless the operator wants its name.
    pub account: Option<&'a (dyn fmt::Display + 'a)>,
    /// What was decided, also where no verdict came.
    pub decision: Disposition,
    /// Why, and what it cost, where that is known.
    pub verdict: Option<&'a Verdict>,
    /// The upstream's response, if there was one.
    pub upstream: Option<UpstreamResponse<'a>>,
    /// Why no upstream answered, if it was asked and did not.
    pub upstream_error: Option<&'static str>,
    /// The response that the client got.
    pub response: SentResponse,
    /// Bytes that came from the client, where it changed the protocol.
    pub received: Option<u64>,
    /// What the steps on its response add, if they do.
    pub notes: Option<&'a Notes>,
}

/// The headers of a request that are logged, and its scheme. All but the scheme is the client's
/// word.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoggedHeaders<'a> {
    /// The host that it asks for.
    pub host: Option<&'a [u8]>,
    /// By which scheme the client sent it.
    pub scheme: Option<&'static str>,
    /// Its `User-Agent`.
    pub user_agent: Option<&'a [u8]>,
    /// Its `Referer`.
    pub referer: Option<&'a [u8]>,
    /// Its id; or the `X-Request-Id` of the request, or else of the response.
    pub request_id: Option<&'a [u8]>,
}

/// What an upstream responded.
#[derive(Clone, Copy, Debug)]
pub struct UpstreamResponse<'a> {
    /// The server, as the configuration names it.
    pub server: &'a str,
    /// The status; none when it failed before it sent one.
    pub status: Option<StatusCode>,
    /// How long the head of its response took.
    pub head: Option<Duration>,
    /// How long after the request it was asked.
    pub begun: Option<Duration>,
}

/// The response that a client got.
#[derive(Clone, Copy, Debug)]
pub struct SentResponse {
    /// The status.
    pub status: StatusCode,
    /// Bytes of the body that were sent.
    pub bytes: u64,
    /// Whether the body was sent to its end.
    pub complete: bool,
    /// From the request's head to the end of the body.
    pub took: Duration,
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
                if let Some(notes) = self.notes {
                    visit_notes(notes, to);
                }
            }
        }
    };
}

fields! { request:
    client.watched(0) = request.client.map(Address),
    method.watched(2) = clipped(request.method.as_str()),
    path.watched(3) = clipped(request.path),
    query = request.query.map(clipped),
    status.watched(7) = u64::from(request.response.status.as_u16()),
    route.watched(8) = request.route.name(),
    listener.attribute("weir.listener") = request.route.listener().shown().map(Word),
    decision.watched(9).attribute("weir.decision") = Word(request.decision.as_str()),
    limit.watched(10).attribute("weir.limit") = request.denied_by(),
    ban.watched(11).attribute("weir.ban") = request.banned_by(),
    list.watched(12).attribute("weir.list") = request.listed().map(Word),
    decided_by.attribute("weir.decided_by") =
        request.verdict(|verdict| verdict.decided_by).map(Word),
    account.watched(1).attribute("weir.account") = request.account.map(Clipped),
    bytes = request.response.bytes,
    received = request.received,
    // Only logged when it is true.
    aborted = (!request.response.complete).then_some(true),
    cost.attribute("weir.cost") = request.strictest().map(|strictest| u64::from(strictest.cost)),
    remaining.attribute("weir.remaining") =
        request.strictest().map(|strictest| strictest.remaining),
    scheme = request.headers.scheme.map(Word),
    host.watched(4) = request.headers.host.map(ClientBytes),
    version = Word(http_version(request.version)),
    duration_ms.watched_as(13, "ms") = Milliseconds::new(request.response.took),
    store_ms = request.verdict(|verdict| verdict.store).map(Milliseconds::new),
    delay_ms = request.verdict(|verdict| verdict.delay).map(Milliseconds::new),
    shed = request.shed().map(|shed| shed.by),
    priority = request.shed().map(|shed| shed.priority.as_str()),
    in_flight = request.verdict(|verdict| verdict.in_flight),
    decided_ns = request.verdict(|verdict| verdict.decided_at).map(Timestamp::as_nanos),
    upstream.watched(14) = request.upstream.map(|upstream| upstream.server),
    upstream_status = request.upstream_status().map(u64::from),
    upstream_error.watched(16) = request.upstream_error,
    upstream_ms.watched(15) = request.upstream_head().map(Milliseconds::new),
    request_id.watched(6).header("x-request-id") = request.headers.request_id.map(ClientBytes),
    user_agent.watched(5).header("user-agent") = request.headers.user_agent.map(ClientBytes),
    referer.header("referer") = request.headers.referer.map(ClientBytes),
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
        self.verdict?.denied_by.as_deref()
    }

    /// The ban that held, or would have held.
    #[inline]
    pub(super) fn banned_by(&self) -> Option<&str> {
        self.verdict?.banned_by.as_deref()
    }

    /// The list that its client is on.
    #[inline]
    pub(super) fn listed(&self) -> Option<&'static str> {
        self.verdict?.listed
    }

    #[inline]
    fn strictest(&self) -> Option<Strictest> {
        self.verdict?.strictest
    }

    #[inline]
    fn shed(&self) -> Option<Shed> {
        self.verdict?.shed
    }

    fn verdict<T>(&self, get: impl Fn(&Verdict) -> Option<T>) -> Option<T> {
        self.verdict.and_then(get)
    }

    #[inline]
    fn upstream_status(&self) -> Option<u16> {
        let status = self.upstream.and_then(|upstream| upstream.status);
        status.map(|status| status.as_u16())
    }

    #[inline]
    fn upstream_head(&self) -> Option<Duration> {
        self.upstream.and_then(|upstream| upstream.head)
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
