//! The keys of `cors`.

use std::sync::Arc;

use http::{HeaderValue, Uri};
use serde::Deserialize;
use weir_yaml::{
    FieldName, HumanDuration, Lowered, Lowering, MethodName, OneOrMany, SpanOf, Spanned, WordOr,
    all,
};

use super::{Cors, MirroredOrigins, OriginPattern, Origins, PreflightResponse};
use crate::HeaderForms;

const ORIGIN_EXAMPLE: &str = "write it as browsers do, such as https://app.example.com";

/// Stands for everything.
const ANY: &str = "*";

/// Stands for the origins that the app's own responses allow, as a value of `cors` and of `origins`.
const MIRROR: &str = "mirror";

/// The keys of `cors` as they are written.
type Written<'w> = Spanned<&'w CorsKeys>;

/// What pages of other origins may do.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Cors"))]
#[serde(deny_unknown_fields)]
pub struct CorsKeys {
    /// The allowed origins: `https://app.example.com`, as browsers write it;
    /// `https://*.example.com` for all hosts below a domain; `http://localhost:*` for any port; or
    /// `"*"` for all. `mirror` is for those that the app's own responses allow, and `[]` for none,
    /// whatever the defaults are. Type: origin or list of them, or `mirror`.
    origins: Spanned<OneOrMany<Spanned<String>>>,
    /// The methods that pages may use, or `"*"` for all: Weir answers preflights. Type: method or
    /// list of them.
    methods: Option<Spanned<OneOrMany<Spanned<String>>>>,
    /// The headers that pages may send beside those that are always allowed, or `"*"` for all but
    /// `authorization`. Type: name or list of them.
    headers: Option<Spanned<OneOrMany<Spanned<String>>>>,
    /// Headers of responses that pages may read beside the RateLimit headers, or `"*"` for all.
    /// Type: name or list of them.
    expose: Option<Spanned<OneOrMany<Spanned<String>>>>,
    /// For how long a browser may remember the answer to a preflight. Default: the browser's.
    max_age: Option<Spanned<HumanDuration>>,
    /// Whether pages may read responses to requests with cookies or other credentials; not with
    /// `"*"` anywhere. Default: `false`.
    credentials: Option<Spanned<bool>>,
    /// Whether the route's limits count preflights. Default: `false`.
    count_preflights: Option<bool>,
}

impl CorsKeys {
    /// The settings of a route that sends these headers about its limits.
    ///
    /// # Errors
    /// When the keys are in error, which is reported.
    pub fn lower(
        written: &Spanned<WordOr<Self>>,
        cx: &mut Lowering<'_>,
        forms: &Lowered<HeaderForms>,
    ) -> Lowered<Cors> {
        match &written.value {
            WordOr::More(keys) => {
                let span = written.span;
                Self::lower_keys(&Spanned { value: keys, span }, cx, forms)
            }
            WordOr::Word(word) if word == MIRROR => Ok(mirroring(exposed((*forms)?, None), false)),
            WordOr::Word(word) => {
                let message = format!("`{word}` is neither `mirror` nor keys and values");
                let help = "say `cors: mirror`, or which `origins` are allowed; `{origins: []}` is for none";
                Err(cx.error(written.span, message).help(help))
            }
        }
    }

    fn lower_keys(
        written: &Written<'_>,
        cx: &mut Lowering<'_>,
        forms: &Lowered<HeaderForms>,
    ) -> Lowered<Cors> {
        if is_mirror(&written.origins.value.0) {
            only_the_app_says(cx, written)?;
            let counts = written.count_preflights.unwrap_or_default();
            return Ok(mirroring(exposed((*forms)?, None), counts));
        }
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
        Ok(Cors {
            origins,
            credentials,
            counts_preflights: written.count_preflights.unwrap_or_default(),
            exposed: exposed((*forms)?, expose),
            preflights,
        })
    }

    /// Whether the list of origins is empty as it was written.
    pub fn allow_none(written: &WordOr<Self>, cx: &Lowering<'_>) -> bool {
        matches!(written, WordOr::More(keys) if cx.is_empty(&keys.origins))
    }
}

fn is_mirror(origins: &[Spanned<String>]) -> bool {
    matches!(origins, [only] if only.value == MIRROR)
}

fn mirroring(exposed: HeaderValue, counts_preflights: bool) -> Cors {
    Cors {
        origins: Origins::Mirrored(Arc::new(MirroredOrigins::default())),
        credentials: false,
        counts_preflights,
        exposed,
        preflights: None,
    }
}

/// Reports what has no effect where the app says what pages may do.
fn only_the_app_says(cx: &mut Lowering<'_>, written: &Written<'_>) -> Lowered<()> {
    let keys = [
        ("methods", written.methods.span()),
        ("headers", written.headers.span()),
        ("expose", written.expose.span()),
        ("max_age", written.max_age.span()),
        ("credentials", written.credentials.span()),
    ];
    all(keys.into_iter().map(|(key, span)| {
        let Some(span) = span else { return Ok(()) };
        let message =
            format!("with `origins: mirror`, the app says this, and `{key}` has no effect");
        let help = format!("name the origins, or leave `{key}` out");
        Err(cx.error(span, message).help(help))
    }))
}

/// What preflights are answered with, if it is not the app that answers them.
fn preflight_response(
    cx: &mut Lowering<'_>,
    written: &Written<'_>,
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
fn only_with_methods(cx: &mut Lowering<'_>, written: &Written<'_>) -> Lowered<()> {
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

fn origins(cx: &mut Lowering<'_>, written: &CorsKeys) -> Lowered<Origins> {
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

#[cfg(test)]
mod tests {
    use weir_yaml::testing::lower;

    use super::*;

    fn read(keys: &str) -> Result<Cors, String> {
        let forms = Ok(HeaderForms::NONE.with(crate::HeaderForm::Draft));
        lower(keys, |cx, written| CorsKeys::lower(written, cx, &forms))
    }

    #[test]
    fn what_browsers_would_not_understand_is_refused() {
        let origin = "origins: [\"https://a.example\"]";
        for (cors, told) in [
            (
                "origins: mirror, methods: GET".to_owned(),
                [
                    "the app says this, and `methods` has no effect",
                    "name the origins",
                ],
            ),
            (
                "origins: mirror, credentials: true".to_owned(),
                ["`credentials` has no effect", "leave `credentials` out"],
            ),
            (
                "origins: [mirror, \"https://a.example\"]".to_owned(),
                ["`mirror` is not an origin", "as browsers do"],
            ),
            (
                format!("{origin}, headers: x-a"),
                ["the app answers preflights", "say which `methods`"],
            ),
            (
                format!("{origin}, max_age: 1h"),
                ["`max_age` is its own", "say which `methods`"],
            ),
            (
                format!("{origin}, methods: []"),
                ["pages may use no method", "name some"],
            ),
            (
                format!("{origin}, methods: get"),
                ["case-sensitive", "\"GET\""],
            ),
            (
                format!("{origin}, methods: \"*\", credentials: true"),
                ["browsers read `*` as a name", "one by one"],
            ),
            (
                format!("{origin}, methods: GET, headers: [\"*\", x-a]"),
                ["stands for all names", "one by one"],
            ),
            (
                format!("{origin}, methods: GET, expose: [\"x a\"]"),
                ["not the name of a header", "expose"],
            ),
            (
                "origins: \"*\", methods: GET, credentials: true".to_owned(),
                ["no credentials for all origins", "name the origins"],
            ),
            (
                "origins: \"https://*.com\"".to_owned(),
                ["not a pattern of origins", "https://*.example.com"],
            ),
            (
                "origins: \"https://a*.example.com\"".to_owned(),
                ["not a pattern of origins", "any port"],
            ),
            (
                "origins: \"*.example.com\"".to_owned(),
                ["not a pattern of origins", "any port"],
            ),
            (
                "origins: \"https://a.*.com\"".to_owned(),
                ["not a pattern of origins", "any port"],
            ),
        ] {
            let found = read(&format!("{{{cors}}}")).unwrap_err();
            for told in told {
                assert!(found.contains(told), "{cors}\n{found}");
            }
            assert!(found.contains("\n1 error, "), "{cors}\n{found}");
        }
    }

    #[test]
    fn mirror_is_a_word_or_the_value_of_origins() {
        for (keys, counts) in [
            ("mirror", false),
            ("{origins: mirror}", false),
            ("{origins: mirror, count_preflights: true}", true),
        ] {
            let cors = read(keys).unwrap();
            assert!(matches!(cors.origins, Origins::Mirrored(_)), "{keys}");
            assert_eq!(cors.counts_preflights, counts, "{keys}");
            assert_eq!(cors.exposed, "Retry-After, RateLimit-Policy, RateLimit");
            assert!(!cors.answers_preflights());
        }
        let found = read("off").unwrap_err();
        assert!(found.contains("neither `mirror` nor keys"), "{found}");
        assert!(found.contains("`{origins: []}` is for none"), "{found}");
    }

    #[test]
    fn cors_with_methods_is_as_written() {
        let cors = read(
            "{origins: [\"https://*.example.com\", \"http://localhost:*\", \
             \"https://a.example:8443\"], methods: [GET, PUT], headers: [X-A, x-b], \
             expose: x-total, max_age: 1h30m}",
        )
        .unwrap();
        assert!(matches!(&cors.origins, Origins::Listed(listed) if listed.len() == 3));
        let answer = cors.preflights.as_ref().unwrap();
        assert_eq!(
            (&answer.methods, &answer.max_age),
            (&"GET, PUT".parse().unwrap(), &Some("5400".parse().unwrap()))
        );
        assert_eq!(answer.headers.as_ref().unwrap(), "x-a, x-b");
        assert_eq!(
            cors.exposed,
            "Retry-After, RateLimit-Policy, RateLimit, x-total"
        );
    }
}
