//! What clients get in place of a response of the app, and what they are told of limits.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use weir_limit::{Algorithm, MAX_DELAY, Mode};
use weir_middleware::decoy::{Decoy, Shadow, is_counter};
use weir_middleware::{Delay, FixedResponse, HeaderForm, HeaderForms, OnDenied, Rejection};
use weir_rules::LimitUse;
use weir_yaml::{
    Entries, FieldName, HumanDuration, Lowered, Lowering, PositiveDuration, PositiveDurationError,
    ResponseStatus, Span, Spanned, WordOr, all, is_of_connection,
};

use super::schema::{self, HeaderFormsList, RouteDefaults};
use crate::foreign::Word;

/// As many requests of a route as wait for their turn unless told otherwise.
const DEFAULT_DELAYED: NonZeroU32 = NonZeroU32::new(1000).unwrap();

/// All decoys, by their names; none in the place of one in error.
#[derive(Default)]
pub(crate) struct Decoys<'w> {
    span: Option<Span>,
    by_name: HashMap<&'w str, Lowered<Arc<Decoy>>>,
}

/// What a denied request gets, and how it waits before: as the route says, or the defaults.
pub(super) fn on_denied(
    cx: &mut Lowering<'_>,
    route: &schema::Route,
    defaults: Option<&RouteDefaults>,
    decoys: &Decoys<'_>,
) -> (Lowered<OnDenied>, Lowered<Option<Arc<Delay>>>) {
    let inherited = || defaults.and_then(|defaults| defaults.on_denied.as_ref());
    let Some(written) = route.on_denied.as_ref().or_else(inherited) else {
        return (Ok(OnDenied::Reject(Rejection::default())), Ok(None));
    };
    let schema::OnDenied::Delay(delay) = &written.value else {
        return (denial(cx, written, decoys), Ok(None));
    };
    let (otherwise, delay) = match &delay.value {
        WordOr::Word(text) => (None, delay_of(cx, delay.span, text)),
        WordOr::More(more) => (more.otherwise.as_deref(), described_delay(cx, more)),
    };
    let otherwise = match otherwise {
        Some(otherwise) => denial(cx, otherwise, decoys),
        None => Ok(OnDenied::Reject(Rejection::default())),
    };
    (otherwise, delay.map(|delay| Some(Arc::new(delay))))
}

fn delay_of(cx: &mut Lowering<'_>, span: Span, text: &str) -> Lowered<Delay> {
    let longest = longest_delay(cx, span, text.parse())?;
    Ok(Delay::new(longest, DEFAULT_DELAYED, false))
}

fn described_delay(cx: &mut Lowering<'_>, written: &schema::Delay) -> Lowered<Delay> {
    let longest = longest_delay(cx, written.up_to.span, written.up_to.value.try_into())?;
    let max_requests = written.max_requests.unwrap_or(DEFAULT_DELAYED);
    Ok(Delay::new(
        longest,
        max_requests,
        written.server_timing.unwrap_or(false),
    ))
}

fn longest_delay(
    cx: &mut Lowering<'_>,
    span: Span,
    written: Result<PositiveDuration, PositiveDurationError>,
) -> Lowered<Duration> {
    let PositiveDuration(longest) = cx.ok(span, written)?;
    let bound = Duration::from(MAX_DELAY);
    if longest > bound {
        let message = format!("a delay is at most {}", HumanDuration(bound));
        let help = "clients give up sooner or later; let them try again after a 429 instead";
        return Err(cx.error(span, message).help(help));
    }
    Ok(longest)
}

/// What a request gets that is denied at last.
fn denial(
    cx: &mut Lowering<'_>,
    written: &Spanned<schema::OnDenied>,
    decoys: &Decoys<'_>,
) -> Lowered<OnDenied> {
    match &written.value {
        schema::OnDenied::Reject(None) => Ok(OnDenied::Reject(Rejection::default())),
        schema::OnDenied::Reject(Some(written)) => {
            rejection(cx, written, StatusCode::TOO_MANY_REQUESTS).map(OnDenied::Reject)
        }
        schema::OnDenied::Shadow(name) => {
            let decoy = find_decoy(cx, name, decoys)?;
            Ok(OnDenied::Shadow(Arc::new(Shadow::new(decoy))))
        }
        schema::OnDenied::Delay(delay) => Err(cx
            .error(delay.span, "a request does not wait twice")
            .help("say `reject` or `shadow` here")),
    }
}

/// Makes sure that a route that delays has a limit that can: units come back one by one.
pub(super) fn require_delayable(
    cx: &mut Lowering<'_>,
    span: Span,
    delay: &Lowered<Option<Arc<Delay>>>,
    limits: &[Lowered<LimitUse>],
) {
    let can_delay = |used: &Lowered<LimitUse>| {
        let Ok(used) = used else { return true };
        let quota = used.limit.quota();
        let overrides = used.limit.overrides().map(|overridden| overridden.quota);
        let mut quotas = quota.into_iter().chain(overrides);
        used.mode == Mode::CheckAndSpend && quotas.any(|quota| quota.algorithm() == Algorithm::Gcra)
    };
    if matches!(delay, Ok(Some(_))) && !limits.iter().any(can_delay) {
        cx.error(span, "no limit of this route can delay a request")
            .help(
                "only limits of the algorithm gcra that check and spend do; list one, or leave \
             `delay` out",
            );
    }
}

pub(crate) fn rejection(
    cx: &mut Lowering<'_>,
    written: &schema::Rejection,
    default: StatusCode,
) -> Lowered<Rejection> {
    let status = status(written.status, default);
    let headers = response_headers(cx, written.headers.as_ref());
    if written.body.as_ref().is_none_or(|body| !body.is_empty()) {
        refuse_body(cx, written.status, "say `body: \"\"`");
    }
    Ok(Rejection {
        status,
        headers: headers?,
        body: written.body.clone().map(Into::into),
    })
}

/// A response that is the same to all requests. A text is plain text unless the headers say
/// otherwise: a browser that guesses might take it for a page.
pub(super) fn fixed_response(
    cx: &mut Lowering<'_>,
    written: &schema::Rejection,
) -> Lowered<FixedResponse> {
    let status = status(written.status, StatusCode::OK);
    let headers = response_headers(cx, written.headers.as_ref());
    let body: Bytes = written.body.clone().unwrap_or_default().into();
    if !body.is_empty() {
        refuse_body(cx, written.status, "leave `body` out");
    }
    let mut headers = headers?;
    if !body.is_empty() {
        let plain = HeaderValue::from_static("text/plain; charset=utf-8");
        headers.entry(CONTENT_TYPE).or_insert(plain);
    }
    Ok(FixedResponse {
        status,
        headers,
        body,
    })
}

/// Which headers a route sends. One that shadow-bans sends none unless it asks for them itself:
/// on the answers of other routes they would tell a ban from a real answer.
pub(super) fn header_forms(
    cx: &mut Lowering<'_>,
    route: &schema::Route,
    defaults: Option<&RouteDefaults>,
    shadows: bool,
) -> Lowered<HeaderForms> {
    let inherited = default_header_forms(cx, defaults);
    let own = by_either_name(cx, route.ratelimit_headers.as_ref(), route.headers.as_ref());
    match (own?, inherited?) {
        (Some(own), _) => forms(cx, own),
        (None, _) if shadows => Ok(HeaderForms::NONE),
        (None, inherited) => Ok(inherited),
    }
}

/// Which headers are sent where no route says otherwise.
pub(crate) fn default_header_forms(
    cx: &mut Lowering<'_>,
    defaults: Option<&RouteDefaults>,
) -> Lowered<HeaderForms> {
    let Some(defaults) = defaults else {
        return Ok(HeaderForms::default());
    };
    let (current, former) = (&defaults.ratelimit_headers, &defaults.headers);
    match by_either_name(cx, current.as_ref(), former.as_ref())? {
        Some(written) => forms(cx, written),
        None => Ok(HeaderForms::default()),
    }
}

/// What `ratelimit_headers` says, or `headers`, as it was called before.
fn by_either_name<'w>(
    cx: &mut Lowering<'_>,
    current: Option<&'w HeaderFormsList>,
    former: Option<&'w HeaderFormsList>,
) -> Lowered<Option<&'w HeaderFormsList>> {
    let Some(former) = former else {
        return Ok(current);
    };
    if current.is_some() {
        let message = "`headers` is the former name of `ratelimit_headers`, which is there too";
        return Err(cx.error(former.span, message).help("leave `headers` out"));
    }
    cx.warn(former.span, "`headers` is called `ratelimit_headers` now")
        .help("rename it");
    Ok(Some(former))
}

fn forms(cx: &mut Lowering<'_>, written: &HeaderFormsList) -> Lowered<HeaderForms> {
    let is_none = |form: &Spanned<Word<HeaderForms>>| form.value.0 == HeaderForms::NONE;
    if written.0.len() > 1 && written.0.iter().any(is_none) {
        let error = cx.error(written.span, "\"none\" stands alone");
        return Err(error.help("leave it out, or leave the others out"));
    }
    let mut all = HeaderForms::NONE;
    for word in written.0.iter() {
        for form in word.value.0.iter() {
            let clash = all
                .iter()
                .find_map(|other| Some((other, shared_field(other, form)?)));
            if let Some((other, field)) = clash {
                let [other, form] = [other, form].map(HeaderForm::name);
                let message = format!("\"{other}\" and \"{form}\" both write {field}");
                return Err(cx.error(word.span, message).help("leave one of them out"));
            }
            all = all.with(form);
        }
    }
    Ok(all)
}

/// A field that two forms write with different meanings.
fn shared_field(one: HeaderForm, other: HeaderForm) -> Option<&'static str> {
    let mut fields = one.fields().iter().copied();
    fields.find(|field| one != other && other.fields().contains(field))
}

pub(crate) fn decoys<'w>(
    cx: &mut Lowering<'_>,
    written: Option<&'w Spanned<Entries<Spanned<schema::Decoy>>>>,
) -> Decoys<'w> {
    let decoys = written.into_iter().flat_map(|decoys| &decoys.value.0);
    let by_name = decoys
        .map(|(name, written)| (name.as_str(), decoy(cx, name, written).map(Arc::new)))
        .collect();
    Decoys {
        span: written.map(|written| written.span),
        by_name,
    }
}

fn decoy(
    cx: &mut Lowering<'_>,
    name: &Spanned<String>,
    decoy: &Spanned<schema::Decoy>,
) -> Lowered<Decoy> {
    let status = status(decoy.status, StatusCode::OK);
    let headers = response_headers(cx, decoy.headers.as_ref());
    let body = decoy.body.as_ref();
    let span = body.map_or(decoy.span, |body| body.span);
    let text = body.map_or("", |body| body.value.as_str());
    if !text.is_empty() {
        refuse_body(cx, decoy.status, "leave `body` out");
    }
    let headers = headers?;
    warn_of_counters(cx, decoy, &headers);
    let decoy = Decoy::new(name, status, headers, text);
    let decoy = cx.ok(span, decoy)?;
    if !decoy.is_well_formed() {
        cx.warn(
            span,
            "this body is not JSON when the request lacks the values",
        )
        .help(
            "write \"{{ body.name }}\" for a text, and {{ body.count | default(0) }} for a number",
        );
    }
    Ok(decoy)
}

/// A counter that stands still tells the client that nobody counts its requests.
fn warn_of_counters(cx: &mut Lowering<'_>, decoy: &Spanned<schema::Decoy>, headers: &HeaderMap) {
    if let Some(name) = headers.keys().find(|name| is_counter(name.as_str())) {
        let message = format!(
            "{name} is the same in each decoy, and tells a client that nobody counts its requests"
        );
        cx.warn(decoy.span, message).help(
            "leave it out: clients do not get such headers of the app on a route with a decoy, and \
             `ratelimit_headers` of the route sends Weir's own",
        );
    }
}

pub(crate) fn find_decoy(
    cx: &mut Lowering<'_>,
    name: &Spanned<String>,
    decoys: &Decoys<'_>,
) -> Lowered<Arc<Decoy>> {
    if let Some(decoy) = decoys.by_name.get(name.as_str()) {
        return decoy.clone();
    }
    Err(cx.unknown(
        "decoy",
        name,
        decoys.span,
        "decoys are defined under `decoys`",
    ))
}

fn status(written: Option<Spanned<ResponseStatus>>, default: StatusCode) -> StatusCode {
    written.map_or(default, |written| written.value.0)
}

/// Refuses a body with a status whose answers have none (RFC 9110, section 6.4.1): a client would
/// take it for the beginning of the next answer, or hang waiting for it.
fn refuse_body(cx: &mut Lowering<'_>, status: Option<Spanned<ResponseStatus>>, help: &str) {
    let has_none = |status: &Spanned<ResponseStatus>| matches!(status.0.as_u16(), 204 | 205 | 304);
    if let Some(status) = status.filter(has_none) {
        let number = status.0.as_u16();
        let message = format!("a response of status {number} has no body");
        cx.error(status.span, message).help(help);
    }
}

/// The headers of a response that Weir makes.
fn response_headers(
    cx: &mut Lowering<'_>,
    written: Option<&Entries<Spanned<String>, FieldName>>,
) -> Lowered<HeaderMap> {
    let fields = written.into_iter().flat_map(|fields| &fields.0);
    all(fields.map(|(name, value)| {
        if is_of_connection(name.0.as_str()) {
            let message = format!("`{}` is set by the server itself", name.0);
            cx.error(name.span, message).help("leave it out");
        }
        Ok((name.0.clone(), cx.header_value(value)?))
    }))
}
