//! Which requests take a route.

use http::HeaderName;
use weir_regex::anchored;
use weir_rules::{HostPattern, PathPattern, PathRegex, PatternError, RouteMatcher, ValuePattern};
use weir_yaml::{Lowered, Lowering, Spanned, WordOr, all};

use super::schema::{HeaderMatches, Match, PathCase, ValueMatch};

/// What a request must be like. With `preflights`, those of CORS take the route of the request that
/// they are about.
pub(super) fn matcher(
    cx: &mut Lowering<'_>,
    written: &Spanned<Match>,
    preflights: bool,
) -> Lowered<RouteMatcher> {
    let host = written
        .host
        .as_ref()
        .map(|host| cx.ok(host.span, HostPattern::parse(host)));
    let path = path(cx, written);
    let methods = written.methods.as_ref();
    let methods = methods.map_or(Ok(&[][..]), |methods| cx.items(methods));
    let headers = headers(cx, written.headers.as_ref());
    let query = written.query.iter().flat_map(|query| &query.0);
    let query = all(query.map(|(name, value)| {
        let pattern = value_pattern(cx, value)?;
        Ok((name.value.as_str().into(), pattern))
    }));
    let (path, path_regex) = path?;
    Ok(RouteMatcher {
        host: host.transpose()?,
        path,
        path_regex,
        methods: methods?.iter().map(|method| method.0.clone()).collect(),
        headers: headers?,
        query: query?,
        preflights,
    })
}

fn path(cx: &mut Lowering<'_>, written: &Match) -> Lowered<(PathPattern, Option<PathRegex>)> {
    let ignores_case = !matches!(written.case, Some(PathCase::Sensitive));
    let pattern = match &written.path {
        Some(text) => PathPattern::parse(text).map_err(|error| match error {
            PatternError::RegularExpression(..) => {
                let message = format!("{error}, or say it by `path_regex`");
                cx.refuse(text.span, &message)
            }
            PatternError::Url(_, _, ref host) if !host.is_empty() => {
                let message = format!("{error}, and `host: {host:?}` beside it");
                cx.refuse(text.span, &message)
            }
            _ => cx.refuse(text.span, &error),
        }),
        None => Ok(PathPattern::everything()),
    };
    let regex = written.path_regex.as_ref();
    let regex = regex.map(|text| cx.ok(text.span, anchored(text, ignores_case)));
    let pattern = match (pattern?, ignores_case) {
        (pattern, true) => pattern,
        (pattern, false) => pattern.case_sensitive(),
    };
    let Some(regex) = regex.transpose()? else {
        return Ok((pattern, None));
    };
    let regex = PathRegex::new(regex, &pattern);
    let mut names: Vec<&str> = regex.capture_names().collect();
    names.sort_unstable();
    let twice = names.windows(2).find_map(|pair| match pair {
        [one, other] if one == other => Some((*one).to_owned()),
        _ => None,
    });
    if let (Some(name), Some(text)) = (twice, &written.path_regex) {
        let message = format!("`{name}` is captured by `path` as well");
        return Err(cx
            .error(text.span, message)
            .help("give the group another name"));
    }
    Ok((pattern, Some(regex)))
}

fn headers(
    cx: &mut Lowering<'_>,
    written: Option<&Spanned<HeaderMatches>>,
) -> Lowered<Vec<(HeaderName, ValuePattern)>> {
    let Some(written) = written else {
        return Ok(Vec::new());
    };
    let headers = all(written.0.iter().map(|(name, value)| {
        let pattern = value_pattern(cx, value);
        if let WordOr::Word(text) = &value.value {
            // What no header can be is a mistake, and would never match.
            let text = Spanned {
                span: value.span,
                value: text.clone(),
            };
            cx.header_value(&text)?;
        }
        Ok((name.0.clone(), pattern?))
    }));
    cx.items(written)?;
    headers
}

fn value_pattern(
    cx: &mut Lowering<'_>,
    written: &Spanned<WordOr<ValueMatch>>,
) -> Lowered<ValuePattern> {
    let written_match = match &written.value {
        WordOr::Word(text) => return Ok(ValuePattern::Exact(text.as_bytes().into())),
        WordOr::More(written) => written,
    };
    match (&written_match.regex, written_match.present) {
        (Some(text), None) => {
            let regex = cx.ok(text.span, anchored(text, false));
            regex.map(ValuePattern::Regex)
        }
        (None, Some(true)) => Ok(ValuePattern::Present),
        (None, Some(false)) => Ok(ValuePattern::Absent),
        (Some(_), Some(_)) => Err(cx
            .error(
                written.span,
                "a value is matched by `regex` or by `present`",
            )
            .help("leave one of them out: what matches is there")),
        (None, None) => Err(cx.lacking(
            written.span,
            &["regex", "present"],
            "nothing says what the value must be like",
            "write the value itself, `{regex: ...}`, or `{present: true}`",
        )),
    }
}
