//! What a route does beside forwarding: rewriting paths, editing headers, and answering itself.

use weir_middleware::{
    HeaderEdits, HeaderEditsKeys, LocalResponse, PathRewrite, Redirect, RequestTemplate,
    RouteAction,
};
use weir_rules::{PathPrefix, RouteMatcher};
use weir_yaml::{Lowered, Lowering, SpanOf, Spanned, WordOr};

use super::schema::steps::written;
use super::schema::{self, Route, RouteDefaults};

/// The status of a redirect that does not say its own.
const FOUND: u16 = 302;

/// What a route does, with what it inherits. `answers_cors` says whether Weir speaks for the app to
/// pages of other origins.
pub(super) fn action(
    cx: &mut Lowering<'_>,
    route: &Spanned<Route>,
    defaults: Option<&RouteDefaults>,
    matcher: Option<&RouteMatcher>,
    answers_cors: bool,
) -> Lowered<RouteAction> {
    let answer = answer(cx, route, matcher);
    let rewrite = route.rewrite.as_ref();
    let rewrite = rewrite.map(|written| path_rewrite(cx, written, matcher));
    refuse_without_upstream(cx, route);
    let request_headers = written!(route, defaults, request_headers)
        .map(|keys| HeaderEditsKeys::of_requests(keys, cx, matcher))
        .transpose();
    let response_headers = written!(route, defaults, response_headers)
        .map(|keys| HeaderEditsKeys::of_responses(keys, cx, matcher))
        .transpose();
    let edits_of_responses = route.response_headers.span();
    if let Ok(Some(Some(edits))) = &response_headers
        && answers_cors
    {
        let span = edits_of_responses.unwrap_or(route.span);
        refuse_cors_headers(cx, edits, span);
    }
    Ok(RouteAction {
        preflights: None,
        rewrite: rewrite.transpose()?,
        request_headers: request_headers?.flatten(),
        response_headers: response_headers?.flatten(),
        response: answer?,
    })
}

/// What answers in place of an upstream. A route has one of the three at most.
fn answer(
    cx: &mut Lowering<'_>,
    route: &Spanned<Route>,
    matcher: Option<&RouteMatcher>,
) -> Lowered<Option<LocalResponse>> {
    let keys = [
        ("upstream", route.upstream.span()),
        ("redirect", route.redirect.span()),
        ("response", route.response.span()),
    ];
    let mut there = keys
        .iter()
        .filter_map(|(key, span)| span.map(|span| (*key, span)));
    let first = there.next();
    if let (Some((one, _)), Some((other, span))) = (first, there.next()) {
        let message = format!("a route has either `{one}` or `{other}`");
        return Err(cx.error(span, message).help("leave one of them out"));
    }
    if let Some(written) = &route.redirect {
        return redirect(cx, written, matcher)
            .map(|redirect| Some(LocalResponse::Redirect(redirect)));
    }
    let fixed = route.response.as_ref();
    let fixed = fixed.map(|written| written.fixed_response(cx));
    Ok(fixed.transpose()?.map(LocalResponse::Fixed))
}

/// What is said of requests to an upstream has no effect without one.
fn refuse_without_upstream(cx: &mut Lowering<'_>, route: &Route) {
    let answers = [
        ("redirect", route.redirect.span()),
        ("response", route.response.span()),
    ];
    let Some((answer, _)) = answers.iter().find(|(_, span)| span.is_some()) else {
        return;
    };
    let mut refuse = |key: &str, span| {
        if let Some(span) = span {
            cx.error(
                span,
                format!("a route with `{answer}` sends nothing to an upstream"),
            )
            .help(format!("leave `{key}` out"));
        }
    };
    refuse("request_headers", route.request_headers.span());
    refuse("connect_timeout", route.connect_timeout.span());
    refuse("response_timeout", route.response_timeout.span());
    refuse("body_timeout", route.body_timeout.span());
    refuse("total_timeout", route.total_timeout.span());
    refuse("request_buffering", route.request_buffering.span());
    if route.response.is_some() {
        refuse("rewrite", route.rewrite.span());
    }
}

fn redirect(
    cx: &mut Lowering<'_>,
    written: &Spanned<WordOr<schema::Redirect>>,
    matcher: Option<&RouteMatcher>,
) -> Lowered<Redirect> {
    let (text, span, status) = match &written.value {
        WordOr::Word(text) => (text, written.span, None),
        WordOr::More(more) => (&more.to.value, more.to.span, more.status),
    };
    let template = cx.ok(span, RequestTemplate::parse(text))?;
    template.require_captures(cx, matcher, span)?;
    let place = status.map_or(span, |status| status.span);
    let status = status.map_or(FOUND, |status| status.value);
    Redirect::new(status, template, text).map_err(|error| {
        let is_status = matches!(error, weir_middleware::RedirectError::Status(_));
        cx.refuse(if is_status { place } else { span }, &error)
    })
}

fn path_rewrite(
    cx: &mut Lowering<'_>,
    written: &Spanned<schema::Rewrite>,
    matcher: Option<&RouteMatcher>,
) -> Lowered<PathRewrite> {
    if written.strip_prefix.is_none() && written.add_prefix.is_none() {
        return Err(cx.lacking(
            written.span,
            &["strip_prefix", "add_prefix"],
            "nothing is rewritten",
            "say `strip_prefix`, `add_prefix` or both",
        ));
    }
    let mut prefix = |text: &Spanned<String>| cx.ok(text.span, PathPrefix::parse(text));
    let strip = written.strip_prefix.as_ref().map(&mut prefix).transpose();
    let add = written.add_prefix.as_ref().map(&mut prefix).transpose();
    let (strip, add) = (strip?, add?);
    if let (Some(prefix), Some(matcher)) = (&strip, matcher)
        && !prefix.begins(&matcher.path)
    {
        let span = written.strip_prefix.span().unwrap_or(written.span);
        let (prefix, path) = (prefix.as_str(), &matcher.path);
        let message =
            format!("not all paths of the route begin with `{prefix}`: it matches `{path}`");
        let help = format!("match `path: \"{prefix}/*\"`, or another prefix of it");
        return Err(cx.error(span, message).help(help));
    }
    let add = add.map(|prefix| encoded(prefix.as_str()));
    Ok(PathRewrite {
        strip_prefix: strip,
        add_prefix: add,
    })
}

fn encoded(path: &str) -> Box<str> {
    use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
    const PATH: &AsciiSet = &CONTROLS
        .add(b' ')
        .add(b'"')
        .add(b'#')
        .add(b'<')
        .add(b'>')
        .add(b'?')
        .add(b'`')
        .add(b'{')
        .add(b'}');
    utf8_percent_encode(path, PATH).to_string().into()
}

/// Two would tell browsers who may read a response.
fn refuse_cors_headers(cx: &mut Lowering<'_>, edits: &HeaderEdits, span: weir_yaml::Span) {
    let set = edits.set.iter().chain(&edits.add).map(|(name, _)| name);
    let mut names = set.chain(&edits.remove);
    if let Some(name) = names.find(|name| name.as_str().starts_with("access-control-")) {
        cx.error(span, format!("`{name}` is set by `cors`"))
            .help("leave it out here, or leave `methods` of `cors` out if the app sets it");
    }
}
