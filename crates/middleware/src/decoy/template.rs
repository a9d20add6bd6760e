//! The body of a decoy: a minijinja template over what a request says.

use std::io;
use std::time::SystemTime;

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use jiff::Timestamp;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior, context, escape_formatter};
use thiserror::Error;
use uuid::Uuid;
use weir_rules::Captures;

const NAME: &str = "decoy";

/// Upper bound on the steps of a template: enough for any response, too few to keep a worker busy.
const FUEL: u64 = 50_000;

/// Upper bound on expressions and statements of a template. `elif` nests in the parser, which
/// recurses: with these two bounds a template takes a small part of a thread's stack.
const MAX_TAGS: usize = 200;

/// Upper bound on the length of each of them: `{{ not not not ... }}` nests as well.
const MAX_TAG_BYTES: usize = 500;

/// Upper bound on output beyond the template's own length, and on joined texts. minijinja bounds
/// steps, and no memory.
const MAX_WRITTEN: usize = 1024 * 1024;

/// Filters without a bound on their output: a few bytes of template would fill the memory.
const UNBOUNDED_FILTERS: [&str; 4] = ["format", "indent", "pprint", "replace"];

#[derive(Debug)]
pub(super) struct Template {
    environment: Environment<'static>,
    /// The text, if it is the same for all requests.
    fixed: Option<Bytes>,
    /// The longest text that it may make.
    longest: usize,
    uses_body: bool,
    is_json: bool,
}

/// Why a text is not a template.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}{}", line.map(|line| format!(" (line {line} of the body)")).unwrap_or_default())]
pub struct TemplateError {
    message: String,
    /// The line within the template, from 1.
    pub line: Option<usize>,
}

/// The parts of a request that a template can use.
pub(super) struct TemplateContext<'a> {
    /// The captured path segments: `path.NAME`.
    pub(super) captures: Option<&'a Captures>,
    /// The headers; they say what form the body has.
    pub(super) headers: &'a HeaderMap,
    /// The start of the body: `body.NAME`, when it is JSON or a form.
    pub(super) body: &'a [u8],
}

impl Template {
    /// Parses a template whose values are escaped for `content_type`.
    pub(super) fn parse(source: &str, content_type: &str) -> Result<Self, TemplateError> {
        check_bounds(source)?;
        let escape = escape_for(content_type);
        let is_json = escape == AutoEscape::Json;
        let mut environment = Environment::new();
        environment.set_auto_escape_callback(move |_| escape.clone());
        environment.set_formatter(write_value);
        environment.set_undefined_behavior(UndefinedBehavior::Chainable);
        environment.set_syntax(
            SyntaxConfig::builder()
                .keep_trailing_newline(true)
                .build()?,
        );
        environment.set_fuel(Some(FUEL));
        environment.add_function("uuid", || Uuid::new_v4().to_string());
        environment.add_function("now", now);
        environment.add_function("random", random);
        environment.add_filter("tojson", to_json);
        environment.add_filter("join", join);
        environment.remove_global("namespace");
        for name in UNBOUNDED_FILTERS {
            environment.remove_filter(name);
        }
        environment.add_template_owned(NAME, source.to_owned())?;
        let uses_body = environment
            .get_template(NAME)?
            .undeclared_variables(false)
            .contains("body");
        let mut template = Self {
            environment,
            fixed: None,
            longest: source.len() + MAX_WRITTEN,
            uses_body,
            is_json,
        };
        // A call of what does not exist shows only when it is made.
        let text = template.render(&TemplateContext {
            captures: None,
            headers: &HeaderMap::new(),
            body: b"",
        })?;
        template.fixed = is_plain(source).then_some(text);
        Ok(template)
    }

    /// Whether the request's body has to be kept for this template.
    pub(super) fn uses_body(&self) -> bool {
        self.uses_body
    }

    /// Whether a JSON template makes JSON of a request that says nothing.
    pub(super) fn is_well_formed(&self) -> bool {
        if !self.is_json {
            return true;
        }
        let nothing = TemplateContext {
            captures: None,
            headers: &HeaderMap::new(),
            body: b"",
        };
        let text = self.render(&nothing).unwrap_or_default();
        text.is_empty() || serde_json::from_slice::<serde::de::IgnoredAny>(&text).is_ok()
    }

    /// The captured path segments that the template names.
    pub(super) fn captures_used(&self) -> Vec<String> {
        let variables = self
            .environment
            .get_template(NAME)
            .map(|template| template.undeclared_variables(true));
        let of_path = |name: &String| name.strip_prefix("path.").map(str::to_owned);
        variables
            .unwrap_or_default()
            .iter()
            .filter_map(of_path)
            .collect()
    }

    /// The text for one request.
    pub(super) fn render(&self, context: &TemplateContext<'_>) -> Result<Bytes, TemplateError> {
        if let Some(text) = &self.fixed {
            return Ok(text.clone());
        }
        let path = Value::from_pairs(context.captures.into_iter().flat_map(Captures::iter));
        let body = if self.uses_body {
            body_fields(context)
        } else {
            Value::UNDEFINED
        };
        let template = self.environment.get_template(NAME)?;
        let mut text = Bounded {
            text: Vec::new(),
            longest: self.longest,
        };
        template.render_captured_to(context! { path, body }, &mut text)?;
        Ok(text.text.into())
    }
}

/// Takes no more than so much.
struct Bounded {
    text: Vec<u8>,
    longest: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.longest - self.text.len() {
            return Err(io::Error::other("the template writes too much"));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether a template is its own text.
fn is_plain(source: &str) -> bool {
    next_mark(source).is_none()
}

/// The index of the next expression, statement or comment.
fn next_mark(source: &str) -> Option<usize> {
    let marks = ["{{", "{%", "{#"].iter();
    marks.filter_map(|mark| source.find(mark)).min()
}

/// Refuses a template that nests so deep that parsing it could exhaust the stack. minijinja bounds
/// parentheses and blocks, but neither unary operators nor chains of operators, filters and `elif`.
fn check_bounds(source: &str) -> Result<(), TemplateError> {
    let mut tags = Tags { source, at: 0 };
    let mut count = 0;
    while let Some((at, length)) = tags.next_tag() {
        count += 1;
        let tag = source.get(at..at + length).unwrap_or_default();
        let message = if length > MAX_TAG_BYTES {
            format!("an expression has over {MAX_TAG_BYTES} bytes")
        } else if count > MAX_TAGS {
            format!("there are over {MAX_TAGS} expressions")
        } else if builds_up(tag) {
            "`set` names a value and builds none: leave out ~, + and `endset`".to_owned()
        } else if tag.contains('*') {
            "`*` repeats a text without end: leave it out".to_owned()
        } else {
            continue;
        };
        let before = source.get(..at).unwrap_or_default();
        let line = Some(before.matches('\n').count() + 1);
        return Err(TemplateError { message, line });
    }
    Ok(())
}

/// Whether a statement sets a variable to a text that it puts together. One such after the other
/// doubles a text until the memory is full.
fn builds_up(tag: &str) -> bool {
    let inner = tag
        .trim_start_matches(['{', '%', '-', '+'])
        .trim_ascii_start();
    let Some(rest) = inner.strip_prefix("set") else {
        return false;
    };
    let is_set = rest.starts_with(|char: char| char.is_ascii_whitespace() || char == '(');
    is_set && (!rest.contains('=') || rest.contains(['~', '+']))
}

/// The expressions and statements of a template, as minijinja's lexer delimits them.
struct Tags<'s> {
    source: &'s str,
    at: usize,
}

impl Tags<'_> {
    /// The index and length of the next expression or statement, after comments and raw blocks.
    fn next_tag(&mut self) -> Option<(usize, usize)> {
        loop {
            self.at += next_mark(self.rest())?;
            let tag = self.rest();
            if tag.starts_with("{#") {
                self.at += 2;
                self.at += self.rest().find("#}")? + 2;
            } else if let Some(length) = word_tag(tag, "raw") {
                self.at += length;
                self.skip_raw()?;
            } else {
                let found = (self.at, tag_length(tag));
                self.at += found.1;
                return Some(found);
            }
        }
    }

    fn skip_raw(&mut self) -> Option<()> {
        loop {
            self.at += self.rest().find("{%")?;
            if let Some(length) = word_tag(self.rest(), "endraw") {
                self.at += length;
                return Some(());
            }
            self.at += 2;
        }
    }

    fn rest(&self) -> &str {
        self.source.get(self.at..).unwrap_or_default()
    }
}

/// The length of a statement that is one `word`, where `tag` begins with it.
fn word_tag(tag: &str, word: &str) -> Option<usize> {
    let trim = |text| str::trim_start_matches(text, |c: char| c.is_ascii_whitespace());
    let inner = tag.strip_prefix("{%")?;
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    let rest = trim(trim(inner).strip_prefix(word)?);
    let rest = rest.strip_prefix(['-', '+']).unwrap_or(rest);
    Some(tag.len() - rest.strip_prefix("%}")?.len())
}

/// The length of an expression or statement with its marks. It ends where no quotes and no
/// brackets are open, so it is never taken for shorter than the parser takes it.
fn tag_length(tag: &str) -> usize {
    let mut quote = None;
    let mut open = 0_usize;
    let mut bytes = tag.bytes().enumerate().skip(2);
    while let Some((at, byte)) = bytes.next() {
        match (quote, byte) {
            (Some(_), b'\\') => _ = bytes.next(),
            (Some(begun), _) if begun == byte => quote = None,
            (Some(_), _) => {}
            (None, b'"' | b'\'') => quote = Some(byte),
            (None, b'(' | b'[' | b'{') => open += 1,
            (None, b'}' | b'%') if open == 0 && tag.as_bytes().get(at + 1) == Some(&b'}') => {
                return at + 2;
            }
            (None, b')' | b']' | b'}') => open = open.saturating_sub(1),
            _ => {}
        }
    }
    tag.len()
}

impl From<minijinja::Error> for TemplateError {
    fn from(error: minijinja::Error) -> Self {
        let detail = error
            .detail()
            .map(|detail| format!(": {detail}"))
            .unwrap_or_default();
        Self {
            message: format!("{}{detail}", error.kind()),
            line: error.line(),
        }
    }
}

fn escape_for(content_type: &str) -> AutoEscape {
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    match media_type.to_ascii_lowercase() {
        json if json.ends_with("/json") || json.ends_with("+json") => AutoEscape::Json,
        html if html.contains("html") || html.contains("xml") => AutoEscape::Html,
        _ => AutoEscape::None,
    }
}

/// Writes a value as the body's form demands.
///
/// In JSON a text is escaped for the quotes that the template writes around it, and what is not
/// there leaves nothing behind; `tojson` writes a value with its quotes.
fn write_value(
    out: &mut minijinja::Output<'_>,
    state: &mut minijinja::State<'_, '_>,
    value: &Value,
) -> Result<(), minijinja::Error> {
    let is_json = *state.auto_escape() == AutoEscape::Json && !value.is_safe();
    match value.as_str() {
        Some(text) if is_json => Ok(out.write_str(&within_quotes(text))?),
        None if is_json && (value.is_undefined() || value.is_none()) => Ok(()),
        _ => escape_formatter(out, state, value),
    }
}

/// A value as JSON, quotes included. minijinja's own filter escapes more than web frameworks do,
/// which would tell a decoy from a real response.
fn to_json(value: &Value) -> Result<Value, minijinja::Error> {
    let json = serde_json::to_string(value).map_err(|error| {
        minijinja::Error::new(ErrorKind::BadSerialization, "not JSON").with_source(error)
    })?;
    Ok(Value::from_safe_string(json))
}

/// The items of a list as one text, with `between` between them.
fn join(items: &Value, between: Option<&str>) -> Result<String, minijinja::Error> {
    let mut text = String::new();
    for (at, item) in items.try_iter()?.enumerate() {
        if at > 0 {
            text.push_str(between.unwrap_or_default());
        }
        text.push_str(&item.to_string());
        if text.len() > MAX_WRITTEN {
            let detail = "the text that is joined is too long";
            return Err(minijinja::Error::new(ErrorKind::InvalidOperation, detail));
        }
    }
    Ok(text)
}

/// A text as it stands between the quotes of a JSON string.
fn within_quotes(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted
        .get(1..quoted.len() - 1)
        .map(str::to_owned)
        .unwrap_or_default()
}

/// `now()` is the moment as RFC 3339 in UTC, `now("http")` as in a `date` header, `now("unix")` as
/// seconds since 1970, `now("unix_ms")` as milliseconds.
fn now(form: Option<&str>) -> Result<Value, minijinja::Error> {
    let now = SystemTime::now();
    let since_epoch = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    match form {
        None => Ok(rfc_3339(now).into()),
        Some("http") => Ok(httpdate::fmt_http_date(now).into()),
        Some("unix") => Ok(since_epoch.as_secs().into()),
        Some("unix_ms") => Ok(since_epoch.as_millis().into()),
        Some(other) => Err(minijinja::Error::new(
            ErrorKind::InvalidOperation,
            format!("now({other:?}): the forms are \"http\", \"unix\", \"unix_ms\", or none"),
        )),
    }
}

/// `random(low, high)` is an integer between the two, both included.
fn random(low: i64, high: i64) -> Result<i64, minijinja::Error> {
    if low > high {
        let detail = format!("random({low}, {high}): the first must not be the greater");
        return Err(minijinja::Error::new(ErrorKind::InvalidOperation, detail));
    }
    Ok(rand::random_range(low..=high))
}

fn rfc_3339(moment: SystemTime) -> String {
    let moment = Timestamp::try_from(moment).unwrap_or_default();
    format!("{moment:.3}")
}

/// The headers of a request's body, when it is JSON or a form; else nothing.
fn body_fields(context: &TemplateContext<'_>) -> Value {
    let content_type = context
        .headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let content_type = content_type.unwrap_or_default();
    if content_type.starts_with("application/x-www-form-urlencoded") {
        Value::from_pairs(form_urlencoded::parse(context.body))
    } else if escape_for(content_type) == AutoEscape::Json {
        let json = serde_json::from_slice::<serde_json::Value>(context.body);
        json.map_or(Value::UNDEFINED, |json| Value::from(Serde(&json)))
    } else {
        Value::UNDEFINED
    }
}

/// Survives a template, and after a line of `---` the body of a request that it is rendered for.
#[cfg(any(test, fuzzing, feature = "fuzzing"))]
pub fn fuzz(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else {
        return;
    };
    let (source, body) = text.split_once("\n---\n").unwrap_or((text, ""));
    for content_type in ["application/json", "text/html", "text/plain"] {
        let Ok(template) = Template::parse(source, content_type) else {
            continue;
        };
        template.is_well_formed();
        template.captures_used();
        for form in ["application/json", "application/x-www-form-urlencoded"] {
            fuzz_body(&template, form, body);
        }
    }
}

/// Renders for a body of this form. It may fail; it must not take long, or the process down.
#[cfg(any(test, fuzzing, feature = "fuzzing"))]
fn fuzz_body(template: &Template, form: &'static str, body: &str) {
    let content_type = http::HeaderValue::from_static(form);
    let headers = [(CONTENT_TYPE, content_type)].into_iter().collect();
    let captures: Captures = [("team", "red\"<")].into_iter().collect();
    let _ = template.render(&TemplateContext {
        captures: Some(&captures),
        headers: &headers,
        body: body.as_bytes(),
    });
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn render(source: &str, answer_type: &str, request_type: &'static str, body: &str) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(request_type));
        let template = Template::parse(source, answer_type).unwrap();
        let context = TemplateContext {
            captures: None,
            headers: &headers,
            body: body.as_bytes(),
        };
        String::from_utf8(template.render(&context).unwrap().into()).unwrap()
    }

    #[test]
    fn only_a_text_without_marks_is_the_same_for_all() {
        let text = "{\"a\": {\"b\": \"%}\"}}\r\n";
        assert_eq!(render(text, "application/json", "text/plain", ""), text);
        let is_fixed = |source| {
            Template::parse(source, "text/plain")
                .unwrap()
                .fixed
                .is_some()
        };
        assert!(is_fixed(text));
        for source in ["{{ 1 }}", "{% if true %}a{% endif %}", "{# unseen #}"] {
            assert!(!is_fixed(source), "{source}");
        }
    }

    #[test]
    fn a_field_of_a_json_body_is_written_as_json() {
        let source =
            r#"{"to":"{{ body.user.email }}","n":{{ body.n }},"all":{{ body.user|tojson }}}"#;
        let body = r#"{"user":{"email":"o'brien\"<a@b.c>/"},"n":3}"#;
        let json = render(
            source,
            "application/json; charset=utf-8",
            "application/json",
            body,
        );
        let all = r#"{"email":"o'brien\"<a@b.c>/"}"#;
        assert_eq!(
            json,
            format!(r#"{{"to":"o'brien\"<a@b.c>/","n":3,"all":{all}}}"#)
        );
    }

    #[test]
    fn a_field_of_a_form_is_escaped_for_html() {
        let form = "name=%3Cb%3E";
        let html = render(
            "Hi {{ body.name }}",
            "text/html",
            "application/x-www-form-urlencoded",
            form,
        );
        assert_eq!(html, "Hi &lt;b&gt;");
    }

    #[test]
    fn a_body_without_the_field_or_of_no_known_form_leaves_the_place_empty() {
        assert_eq!(
            render("<{{ body.a.b }}>", "text/plain", "application/json", "{}"),
            "<>"
        );
        assert_eq!(
            render("<{{ body.a.b }}>", "text/plain", "application/json", "{"),
            "<>"
        );
        assert_eq!(
            render("<{{ body.a.b }}>", "text/plain", "image/png", "x"),
            "<>"
        );
        assert_eq!(
            render("<{{ body.a }}>", "application/json", "image/png", "x"),
            "<>"
        );
    }

    #[test]
    fn captured_segments_can_be_used() {
        let captures: Captures = [("team", "red\"")].into_iter().collect();
        let template = Template::parse("\"{{ path.team }}\"", "application/json").unwrap();
        let headers = HeaderMap::new();
        let context = TemplateContext {
            captures: Some(&captures),
            headers: &headers,
            body: b"",
        };
        assert_eq!(template.render(&context).unwrap(), r#""red\"""#);
    }

    #[test]
    fn ids_numbers_and_moments_are_made_anew() {
        let render = |source| render(source, "text/plain", "text/plain", "");
        assert!(Uuid::try_parse(&render("{{ uuid() }}")).is_ok());
        assert_ne!(render("{{ uuid() }}"), render("{{ uuid() }}"));
        let number: i64 = render("{{ random(10, 12) }}").parse().unwrap();
        assert!((10..=12).contains(&number));
        assert_eq!(render("{{ random(5, 5) }}"), "5");
        let moment = render("{{ now() }}");
        assert_eq!(
            (moment.len(), moment.ends_with('Z')),
            (24, true),
            "{moment}"
        );
        assert!(render("{{ now('unix') }}").parse::<u64>().unwrap() > 1_700_000_000);
        assert!(render("{{ now('unix_ms') }}").parse::<u64>().unwrap() > 1_700_000_000_000);
        assert!(httpdate::parse_http_date(&render("{{ now('http') }}")).is_ok());
    }

    #[test]
    fn what_a_value_is_escaped_for_is_told_by_the_content_type() {
        let form = "application/x-www-form-urlencoded";
        for (content_type, shown) in [
            ("application/problem+json", "<\\\"'"),
            ("Application/JSON; charset=utf-8", "<\\\"'"),
            ("application/xhtml+xml", "&lt;&quot;&#x27;"),
            ("text/xml", "&lt;&quot;&#x27;"),
            ("text/plain", "<\"'"),
            ("", "<\"'"),
        ] {
            let text = render("{{ body.a }}", content_type, form, "a=%3C%22'");
            assert_eq!(text, shown, "{content_type}");
        }
    }

    #[test]
    fn the_captured_segments_that_a_template_uses_are_known() {
        let template = Template::parse("{{ path.team }} {{ body.x }}", "").unwrap();
        assert_eq!(template.captures_used(), ["team"]);
        assert!(template.uses_body());
        assert!(!Template::parse("{{ path.team }}", "").unwrap().uses_body());
    }

    #[test]
    fn a_json_template_that_makes_no_json_is_noticed() {
        let is_well_formed = |source, content_type| {
            Template::parse(source, content_type)
                .unwrap()
                .is_well_formed()
        };
        let json = "application/json";
        assert!(is_well_formed(
            r#"{"id":"{{ uuid() }}","n":{{ body.n|default(0) }}}"#,
            json
        ));
        assert!(!is_well_formed(r#"{"id":{{ uuid() }}}"#, json));
        assert!(!is_well_formed(r#"{"n":{{ body.n }}}"#, json));
        assert!(is_well_formed("", json));
        assert!(is_well_formed("{", "text/plain"));
    }

    #[test]
    fn what_is_no_template_is_refused_with_its_line() {
        let error = Template::parse("a\n{{ uuid( }}", "").unwrap_err();
        assert_eq!(error.line, Some(2));
        assert!(Template::parse("{{ nothing_of_the_sort() }}", "").is_err());
        assert!(Template::parse("{{ random(2, 1) }}", "").is_err());
        assert!(Template::parse("{{ now('tomorrow') }}", "").is_err());
    }

    /// Each of these took the process down, by the stack of a thread that it exhausted.
    #[test]
    fn no_template_exhausts_the_stack_however_it_nests() {
        let chains = [
            ("not ", "1", ""),
            ("-", "1", ""),
            ("", "a", ".a"),
            ("", "a", "()"),
            ("", "a", "|e"),
            ("", "1", " if 1 else 1"),
            ("(not ", "1", ")"),
            ("", "'}}'", " is odd"),
            ("", "{'a': {}}", " ~1"),
        ];
        for (before, middle, after) in chains {
            let nested = |times: usize| {
                let (before, after) = (before.repeat(times), after.repeat(times));
                Template::parse(&format!("{{{{ {before}{middle}{after} }}}}"), "")
            };
            let error = nested(30_000).unwrap_err();
            assert!(error.message.contains("500 bytes"), "{before}{after}");
            // As deep as fits: parsed or refused, it does not matter which.
            let fits = (MAX_TAG_BYTES - 20) / (before.len() + after.len());
            let _ = nested(fits);
        }
        let elifs = |times| {
            let chain = "{% elif 1 %}".repeat(times);
            Template::parse(&format!("{{% if 1 %}}{chain}{{% endif %}}"), "")
        };
        assert!(elifs(MAX_TAGS - 2).is_ok());
        assert!(elifs(30_000).is_err());
    }

    #[test]
    fn text_and_comments_around_few_expressions_may_be_long() {
        let text = "<p>1 {a} %} don't</p>\n".repeat(10_000);
        let comment = format!("{{# {text} {{{{ not #}}");
        let raw = format!("{{% raw -%}}{text}{{{{ ' {{#{{%- endraw%}}");
        let source = format!("{text}{comment}{raw}{{{{ '}}}}\\' ' ~ 1 }}}}{text}");
        assert!(Template::parse(&source, "text/html").is_ok());
        let deep = format!("{{{{ '}}}}' ~ {}1 }}}}", "-".repeat(30_000));
        assert!(Template::parse(&format!("{comment}{raw}{deep}"), "").is_err());
        let line = Template::parse(&format!("a\nb{{{{ {} }}}}", "1+".repeat(999)), "");
        assert_eq!(line.unwrap_err().line, Some(2));
    }

    /// A hundred bytes took gigabytes: fuel counts steps, however large what they make.
    #[test]
    fn no_template_fills_the_memory() {
        let sixteen = "a".repeat(16);
        let doubled = "{% set b = a ~ a %}{% set a = b ~ b %}".repeat(30);
        let long = "x".repeat(100_000);
        for source in [
            format!("{{% set n = namespace(x='{sixteen}') %}}{{{{ n.x }}}}"),
            format!("{{% set a = '{sixteen}' %}}{doubled}{{{{ a }}}}"),
            "{% set a %}{{ body }}{{ body }}{% endset %}{{ a }}".to_owned(),
            format!("{{{{ 'a' * 99999999{} }}}}", " ~ 'a' * 99999999".repeat(20)),
            format!("{{{{ 'a'{} }}}}", "|replace('', 'aaaaaaaa')".repeat(15)),
            format!("{{% for a in range(9999) %}}{long}{{% endfor %}}"),
            format!("{{{{ range(99999)|join('{}') }}}}", "x".repeat(400)),
        ] {
            assert!(Template::parse(&source, "").is_err(), "{source:.60}");
        }
        let rendered = render(
            "{% set id = 7 %}{{ id }}{{ id }} {{ [1, 'b']|join('-') }}",
            "text/plain",
            "text/plain",
            "",
        );
        assert_eq!(rendered, "77 1-b");
    }

    #[test]
    fn a_template_cannot_keep_a_worker_busy() {
        let endless =
            "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}";
        assert!(Template::parse(endless, "").is_err());
    }
}
