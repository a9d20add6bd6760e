//! What pages of other origins may do.

use http::{HeaderValue, Uri};
use weir_middleware::{Cors, HeaderForms, OriginPattern, Origins, PreflightResponse};
use weir_yaml::{FieldName, Lowered, Lowering, MethodName, OneOrMany, SpanOf, Spanned, all};

use super::schema;

const ORIGIN_EXAMPLE: &str = "write it as browsers do, such as https://app.example.com";

/// Stands for everything.
const ANY: &str = "*";

pub(super) fn cors(
    cx: &mut Lowering<'_>,
    written: Option<&Spanned<schema::Cors>>,
    forms: &Lowered<HeaderForms>,
) -> Lowered<Option<Cors>> {
    let Some(written) = written else {
        return Ok(None);
    };
    let credentials = written
        .credentials
        .is_some_and(|credentials| credentials.value);
    let origins = origins(cx, written);
    let preflights = preflight_response(cx, written, credentials);
    let expose = names(cx, written.expose.as_ref(), credentials, header_name);
    let origins = origins?;
    if let (Some(span), Origins::Any) = (
        written.credentials.filter(|credentials| credentials.value),
        &origins,
    ) {
        let message = "browsers take no credentials for all origins";
        return Err(cx
            .error(span.span, message)
            .help("name the origins, or leave out `credentials`"));
    }
    let (preflights, expose) = (preflights?, expose?);
    Ok(Some(Cors {
        origins,
        credentials,
        counts_preflights: written.count_preflights.unwrap_or_default(),
        exposed: exposed((*forms)?, expose),
        preflights,
    }))
}

/// Whether the list of origins is empty as it was written.
pub(super) fn allows_none(cx: &Lowering<'_>, written: &schema::Cors) -> bool {
    cx.is_empty(&written.origins)
}

/// What preflights are answered with, if it is not the app that answers them.
fn preflight_response(
    cx: &mut Lowering<'_>,
    written: &Spanned<schema::Cors>,
    credentials: bool,
) -> Lowered<Option<PreflightResponse>> {
    let headers = names(cx, written.headers.as_ref(), credentials, header_name);
    let Some(methods) = &written.methods else {
        return only_with_methods(cx, written).map(|()| None);
    };
    let _ = cx.filled(
        methods,
        "pages may use no method",
        "name some, such as `[GET, POST]`, or leave `methods` out if the app answers preflights",
    )?;
    let methods = names(cx, Some(methods), credentials, |cx, text| {
        let method = cx.ok(text.span, text.parse::<MethodName>());
        method.map(|method| method.0.to_string())
    });
    let max_age = written
        .max_age
        .map(|age| HeaderValue::from(age.value.0.as_secs()));
    Ok(methods?.map(|methods| PreflightResponse {
        methods,
        headers: headers.ok().flatten(),
        max_age,
    }))
}

/// Reports what has no effect where the app answers preflights.
fn only_with_methods(cx: &mut Lowering<'_>, written: &Spanned<schema::Cors>) -> Lowered<()> {
    if let Some(reported) = cx.sources.key_in_error(written.span, &["methods"]) {
        return Err(reported);
    }
    let keys = [
        ("headers", written.headers.span()),
        ("max_age", written.max_age.span()),
        ("expose", written.expose.span()),
    ];
    all(keys.into_iter().map(|(key, span)| {
        let Some(span) = span else { return Ok(()) };
        let message =
            format!("without `methods`, the app answers preflights, and `{key}` is its own");
        let help = format!("say which `methods` pages may use, or leave `{key}` out");
        Err(cx.error(span, message).help(help))
    }))
}

/// A list of names as one header has it; none where nothing is listed.
fn names(
    cx: &mut Lowering<'_>,
    written: Option<&Spanned<OneOrMany<Spanned<String>>>>,
    credentials: bool,
    name: fn(&mut Lowering<'_>, &Spanned<String>) -> Lowered<String>,
) -> Lowered<Option<HeaderValue>> {
    let Some(written) = written else {
        return Ok(None);
    };
    let listed = written.value.0.iter();
    let any = listed.clone().find(|name| name.value == ANY);
    if let Some(any) = any.filter(|_| credentials || listed.len() > 1) {
        let message = match credentials {
            true => "with `credentials`, browsers read `*` as a name",
            false => "`*` stands for all names, and so alone",
        };
        return Err(cx.error(any.span, message).help("name them one by one"));
    }
    let names: Vec<String> = all(listed.map(|text| match any {
        Some(_) => Ok(ANY.to_owned()),
        None => name(cx, text),
    }))?;
    let value = HeaderValue::from_str(&names.join(", ")).ok();
    Ok(value.filter(|_| !names.is_empty()))
}

fn header_name(cx: &mut Lowering<'_>, text: &Spanned<String>) -> Lowered<String> {
    let name = cx.ok(text.span, text.parse::<FieldName>());
    name.map(|name| name.0.to_string())
}

/// The headers that pages may read: those that Weir adds, and these.
fn exposed(forms: HeaderForms, more: Option<HeaderValue>) -> HeaderValue {
    let own = Cors::exposed(forms);
    let more = more.as_ref().and_then(|more| more.to_str().ok());
    let all = match more {
        Some(ANY) => ANY.to_owned(),
        Some(more) => format!("{own}, {more}"),
        None => own,
    };
    HeaderValue::from_str(&all).unwrap_or(HeaderValue::from_static(ANY))
}

fn origins(cx: &mut Lowering<'_>, written: &schema::Cors) -> Lowered<Origins> {
    let texts = &written.origins.value.0;
    if let [any] = texts.as_slice()
        && any.value == ANY
    {
        return Ok(Origins::Any);
    }
    all(texts.iter().map(|text| origin(cx, text))).map(Origins::Listed)
}

/// An origin in the one form that browsers write (RFC 6454, section 6.2), or with wildcards.
fn origin(cx: &mut Lowering<'_>, text: &Spanned<String>) -> Lowered<OriginPattern> {
    if text.value != ANY && text.value.contains('*') {
        return wildcard(&text.value).ok_or_else(|| {
            let message = format!("`{}` is not a pattern of origins", text.value);
            let help = "write `https://*.example.com` for all hosts below a domain, or \
                        `http://localhost:*` for any port";
            cx.error(text.span, message).help(help)
        });
    }
    let canonical = canonical(text);
    match canonical.as_deref() {
        Some(origin) if *origin == *text.value => cx.header_value(text).map(OriginPattern::Exact),
        Some(origin) => {
            let message = format!("no browser calls an origin `{}`", text.value);
            Err(cx
                .error(text.span, message)
                .help(format!("write `{origin}`")))
        }
        None => {
            let message = format!("`{}` is not an origin", text.value);
            Err(cx.error(text.span, message).help(ORIGIN_EXAMPLE))
        }
    }
}

/// Origins of all hosts below a domain, or of any port.
fn wildcard(text: &str) -> Option<OriginPattern> {
    let (scheme, rest) = text.split_once("://")?;
    let scheme = format!("{scheme}://");
    let (host, port) = match rest.strip_suffix(":*") {
        Some(host) => (host, None),
        None => {
            let colon = rest.rfind(':').unwrap_or(rest.len());
            let (host, port) = rest.split_at(colon);
            (host, Some(port))
        }
    };
    let host = host.strip_prefix('*').unwrap_or(host);
    // With a label in the place of the wildcard, it must be an origin. A domain has two labels, or
    // `https://*.com` would be half of the world.
    let is_below = host.starts_with('.');
    let label = if is_below { "a" } else { "" };
    let example = format!("{scheme}{label}{host}{}", port.unwrap_or_default());
    let is_domain = !is_below || host.matches('.').count() > 1 || host == ".localhost";
    let is_origin = canonical(&example).is_some_and(|canonical| canonical == example);
    (is_origin && is_domain && !example.contains('*')).then(|| OriginPattern::Wildcard {
        scheme: scheme.into(),
        host: host.into(),
        port: port.map(Into::into),
    })
}

/// The origin of a URL; none where it is none.
fn canonical(text: &str) -> Option<String> {
    let uri: Uri = text.parse().ok()?;
    let (scheme, host) = (uri.scheme_str()?, uri.host()?);
    let usual = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    let port = uri.port_u16().filter(|port| *port != usual);
    let port = port.map_or_else(String::new, |port| format!(":{port}"));
    Some(format!("{scheme}://{}{port}", host.to_ascii_lowercase()))
}
