//! The locations of a server: the paths that they match, and where their requests go.

use std::cmp::Reverse;
use std::collections::HashSet;

use regex::Regex;
use regex_syntax::ast::{Ast, parse::Parser};
use serde_json::{Value, json};

use super::headers::request_headers;
use super::parse::Directive;
use super::returns::Return;
use super::scopes::{Scopes, named};
use crate::configuration::{Configuration, Keys, below, exactly, is_plain_path, rewrite};
use crate::difference::Effect;
use crate::source::{ImportError, MAX_ROUTES};

/// The upstream of what Weir does not serve itself.
const NGINX: &str = "http://127.0.0.1:8081";

/// How long a body may be in nginx, unless a file says otherwise.
const DEFAULT_MAX_BODY: u64 = 1 << 20;

/// Upper bound on an expression as it is translated, which may repeat parts of itself.
const MAX_REGEX_BYTES: usize = 16 * 1024;

/// A location.
#[derive(Clone)]
pub(super) struct Location<'d> {
    pub(super) directive: &'d Directive,
    pub(super) scopes: Scopes<'d>,
    modifier: &'d str,
    pattern: &'d str,
    pub(super) path: String,
    /// An expression, and whether it looks at the case of letters.
    pub(super) path_regex: Option<(String, bool)>,
    /// From this depth on, expressions go before it.
    yields_at: usize,
    /// Whether its requests are not told surely. It responds with 403.
    is_refused: bool,
    /// What some of its requests match beside the path, and the keys of the route for those.
    pub(super) variants: Vec<(Keys, Keys)>,
}

/// All locations of a server, those within others included, and one for all other paths. An earlier
/// expression goes before a later one.
pub(super) fn locations<'d>(
    server: &'d Directive,
    scopes: &Scopes<'d>,
    configuration: &mut Configuration,
) -> Vec<Location<'d>> {
    let mut all = Vec::new();
    add_locations(&server.block, scopes, 0, configuration, &mut all);
    if !all
        .iter()
        .any(|it| it.path == "/*" && it.path_regex.is_none())
    {
        let (rest, _) = Location::new(server, ("", "/"), scopes.clone(), 0);
        all.push(rest);
    }
    let depth = |it: &Location<'_>| it.path_regex.as_ref().map_or(3, |_| it.scopes.0.len());
    all.sort_by_key(|it| (!it.is_refused, Reverse(depth(it))));
    all
}

fn add_locations<'d>(
    block: &'d [Directive],
    scopes: &Scopes<'d>,
    yields_at: usize,
    configuration: &mut Configuration,
    all: &mut Vec<Location<'d>>,
) {
    for directive in named(block, "location").filter(|it| !it.argument(0).starts_with('@')) {
        let (scopes, split) = (scopes.within(&directive.block), split(directive));
        let (location, what) = Location::new(directive, split, scopes.clone(), yields_at);
        if let Some(what) = what {
            let path = location.path_regex.as_ref().map_or("", |(regex, _)| regex);
            let what = format!("{what}: all of `{path}` responds with 403");
            let remedy = "write its route by hand, in place of that one";
            directive.report(Effect::Differs, &what, remedy, configuration);
        }
        let yields_at = location.yields_at;
        let is_refused = location.is_refused;
        all.push(location);
        if !is_refused {
            add_locations(&directive.block, &scopes, yields_at, configuration, all);
        }
    }
}

/// Whether a route keeps all clients out.
pub(super) fn is_closed(keys: &Keys) -> bool {
    keys.contains_key("response")
}

/// Whether a route has a limit that is enforced.
pub(super) fn is_limited(keys: &Keys) -> bool {
    let limits = keys.get("limits").and_then(|limits| limits.as_array());
    let is_enforced = |limit: &Value| limit.get("enforce").is_none();
    limits.is_some_and(|limits| limits.iter().any(is_enforced))
}

/// Whether a route lets requests through that another would deny, at once or by its limits.
pub(super) fn is_laxer(keys: &Keys, than: &Keys) -> bool {
    !is_closed(keys) && (is_closed(than) || is_limited(than) && !is_limited(keys))
}

/// The prefixes for which the routes of expressions are repeated: those that an expression with
/// another policy goes before. One that is left out for a prefix would change the order of the
/// others.
///
/// # Errors
/// [`ImportError::TooManyRoutes`].
pub(super) fn contested<'l, 'd>(
    all: &'l [(Location<'d>, Keys)],
    server: &Directive,
) -> Result<Vec<&'l Location<'d>>, ImportError> {
    let expressions = all.iter().filter(|(it, _)| it.path_regex.is_some());
    let expressions: Vec<_> = expressions.collect();
    let prefixes = all.iter().filter(|(it, _)| it.is_prefix());
    if expressions.len().saturating_mul(prefixes.clone().count()) > 100 * MAX_ROUTES {
        return Err(ImportError::TooManyRoutes(server.place.clone()));
    }
    let contested = prefixes.filter(|(prefix, theirs)| {
        let mut expressions = expressions.iter();
        expressions.any(|(it, keys)| {
            let is_other = keys != theirs || it.variants != prefix.variants;
            is_other && it.goes_before(prefix)
        })
    });
    Ok(contested.map(|(it, _)| it).collect())
}

impl<'d> Location<'d> {
    /// For a path that Weir does not match: a location for at least the same paths, and why.
    fn new(
        directive: &'d Directive,
        (modifier, pattern): (&'d str, &'d str),
        scopes: Scopes<'d>,
        yields_at: usize,
    ) -> (Self, Option<&'static str>) {
        let yields_at = if modifier == "^~" {
            scopes.0.len()
        } else {
            yields_at
        };
        let mut location = Self {
            directive,
            scopes,
            modifier,
            pattern,
            path: "/*".to_owned(),
            path_regex: None,
            yields_at,
            is_refused: false,
            variants: Vec::new(),
        };
        let what = if modifier.starts_with('~') {
            let has_locations = named(&directive.block, "location").next().is_some();
            match whole(pattern) {
                Some(regex) => {
                    location.path_regex = Some((regex, modifier == "~"));
                    if !has_locations {
                        return (location, None);
                    }
                    "has locations within an expression"
                }
                None => {
                    // What looks around makes an expression match less than it does without.
                    let more = without_lookaround(pattern).and_then(|rest| whole(&rest));
                    let around = more.unwrap_or_else(|| around_expression(pattern));
                    location.path_regex = Some((around, false));
                    "has an expression that Weir does not know"
                }
            }
        } else if is_plain_path(pattern) {
            location.path = match modifier {
                "=" => exactly(pattern),
                _ => below(pattern),
            };
            return (location, None);
        } else {
            location.path_regex = Some((around_path(pattern), false));
            "has a path that Weir would normalize"
        };
        location.is_refused = true;
        (location, Some(what))
    }

    pub(super) fn is_prefix(&self) -> bool {
        self.path_regex.is_none() && self.modifier != "="
    }

    /// Whether it has requests for paths that begin with its own, and whose next segment goes on.
    fn ends_within_segment(&self) -> bool {
        self.is_prefix() && !self.pattern.ends_with('/')
    }

    /// A location for the paths that begin with its own in nginx, but are not below it.
    pub(super) fn beside(&self, is_for_one_case: bool) -> Option<Self> {
        let regex = format!("{}.*", regex::escape(self.pattern));
        let beside = || Self {
            path: "/*".to_owned(),
            path_regex: Some((regex, is_for_one_case)),
            is_refused: true,
            ..self.clone()
        };
        self.ends_within_segment().then(beside)
    }

    /// Whether it has requests that nginx would have for a prefix otherwise.
    fn goes_before(&self, prefix: &Self) -> bool {
        if !self.modifier.starts_with('~') {
            return self.pattern.starts_with(prefix.pattern) && self.pattern != prefix.pattern;
        }
        let around = self.around();
        let theirs = prefix.scopes.0.iter().map(|block| block.as_ptr());
        around.len() >= prefix.yields_at && theirs.take(around.len()).eq(around)
    }

    /// The blocks around it.
    fn around(&self) -> Vec<*const Directive> {
        let blocks = self
            .scopes
            .0
            .split_last()
            .map_or(&[][..], |(_, around)| around);
        blocks.iter().map(|block| block.as_ptr()).collect()
    }

    /// Of these prefixes, the keys of that which has the requests in nginx for its one path with a
    /// slash at the end, or without it.
    pub(super) fn with_slash<'k>(&self, prefixes: &'k [(Self, Keys)]) -> Option<&'k Keys> {
        let other = match self.pattern.strip_suffix('/') {
            Some(without) => without.to_owned(),
            None => format!("{}/", self.pattern),
        };
        let prefixes = prefixes.iter().filter(|_| self.modifier == "=");
        let theirs = prefixes.filter(|(it, _)| other.starts_with(it.pattern));
        let longest = theirs.max_by_key(|(it, _)| it.pattern.len());
        longest.map(|(_, keys)| keys)
    }

    /// Whether its route has to look at the case of letters. Weir ignores the case, so that another
    /// spelling evades no limit; but a location may not have requests that nginx denies or limits
    /// for their case.
    pub(super) fn is_for_one_case(&self, keys: &Keys, all: &[(Self, Keys)]) -> bool {
        let mut others = all.iter().filter(|(it, _)| it.path_regex.is_none());
        let own = self.variants.iter().map(|(_, keys)| keys).chain([keys]);
        let may_be_laxer = |theirs: &Keys| own.clone().any(|keys| is_laxer(keys, theirs));
        self.path_regex.is_none()
            && others.any(|(it, theirs)| {
                let is_around = it.pattern != self.pattern && self.pattern.starts_with(it.pattern);
                let is_other_case =
                    it.path != self.path && it.path.eq_ignore_ascii_case(&self.path);
                let variants = it.variants.iter().map(|(_, keys)| keys);
                let mut theirs = variants.chain([theirs]);
                is_other_case || is_around && theirs.any(may_be_laxer)
            })
    }

    /// The paths of the routes for it: Weir looks at an expression for each prefix apart.
    pub(super) fn paths(&self, all: &[(Self, Keys)], contested: &[&Self]) -> Vec<String> {
        if self.path_regex.is_none() {
            return vec![self.path.clone()];
        }
        let around = self.around();
        let parent = all.iter().find(|(it, _)| {
            let own = it.scopes.0.iter().map(|block| block.as_ptr());
            it.directive.name == "location" && own.eq(around.iter().copied())
        });
        let home = match parent {
            Some((parent, _)) if self.modifier.starts_with('~') => parent.path.clone(),
            _ => self.path.clone(),
        };
        let is_hidden = all
            .iter()
            .any(|(it, _)| it.is_prefix() && it.path == home && !self.goes_before(it));
        let open = contested.iter().filter(|it| self.goes_before(it));
        let open = open.map(|it| &*it.path).filter(|path| *path != home);
        let mut seen = HashSet::new();
        let open: Vec<&str> = open.filter(|path| seen.insert(*path)).collect();
        let home = (!is_hidden).then_some(home);
        home.into_iter()
            .chain(open.into_iter().map(str::to_owned))
            .collect()
    }

    /// Whether it ends within a segment and has limits that `keys` or its variants say.
    pub(super) fn limits_beside(&self, keys: &Keys) -> bool {
        let mut all = self.variants.iter().map(|(_, keys)| keys).chain([keys]);
        self.ends_within_segment()
            && !keys.contains_key("rewrite")
            && (is_closed(keys) || all.any(is_limited))
    }

    /// What nginx does by `return`, before it looks at limits and guards.
    pub(super) fn returned(&self) -> Option<Return> {
        let name = self.scopes.server_name();
        // A `return` of the server comes before all of its locations.
        let blocks = self.scopes.0.get(1).into_iter().chain(self.scopes.0.last());
        let mut found = blocks.filter_map(|block| Return::of_block(block, name));
        found.next().filter(|_| !self.is_refused)
    }

    /// Whether a redirect leads to the path that it is for, as Weir has it.
    pub(super) fn is_path_of(&self, to: &Return) -> bool {
        self.modifier == "=" && to.path() == Some(self.pattern.trim_end_matches('/'))
    }

    /// Says which of its requests Weir sends elsewhere than nginx. Some locations `end_here` alone.
    pub(super) fn report_paths(
        &self,
        keys: &Keys,
        end_here: &HashSet<&str>,
        configuration: &mut Configuration,
    ) {
        let pattern = self.pattern;
        if self.ends_within_segment() && !self.limits_beside(keys) {
            let what = format!("matches `{pattern}x` in nginx, and not in Weir");
            let remedy = "the route is for the path and all below it; `path_regex` can say more";
            self.directive
                .report(Effect::Differs, &what, remedy, configuration);
        }
        let path = pattern.trim_end_matches('/');
        let is_folder = self.is_prefix() && path != pattern && !path.is_empty();
        let is_passed = self.scopes.own("proxy_pass").is_some() && keys.contains_key("upstream");
        if is_folder && is_passed && !end_here.contains(path) {
            let what = "has the request for its path without the slash at its end, which nginx \
                        redirects by 301";
            let remedy = "nothing, unless the app takes another path by it: Weir takes the two for \
                          one path";
            self.directive
                .report(Effect::Differs, what, remedy, configuration);
        }
    }

    /// The path of its requests, if that is one.
    pub(super) fn one_path(&self) -> Option<&'d str> {
        (self.modifier == "=").then_some(self.pattern)
    }

    /// The path that it alone ends at, without a slash at its end.
    pub(super) fn end(&self) -> Option<&'d str> {
        let is_exact = self.modifier == "=" && !self.pattern.ends_with('/');
        is_exact.then_some(self.pattern)
    }

    /// The keys of a route for where its requests go.
    pub(super) fn target(&self, http: &[Directive], configuration: &mut Configuration) -> Keys {
        let guard = self.guard();
        if self.is_refused {
            return closed(403);
        }
        if self.scopes.own("internal").is_some() {
            return closed(404);
        }
        if let Some(guard) = guard {
            self.report_guard(guard, configuration);
            return closed(403);
        }
        let pass = self
            .scopes
            .own("proxy_pass")
            .map_or("", |pass| pass.argument(0));
        let is_returned = self.returned().is_some();
        let is_known = !is_returned && !pass.contains('$');
        let Some((scheme, rest)) = pass.split_once("://").filter(|_| is_known) else {
            return self.nginx(is_returned, configuration);
        };
        let (server, path) = match rest.strip_prefix("unix:") {
            Some(socket) => socket.split_once(':').unwrap_or((socket, "")),
            None => rest.split_at(rest.find('/').unwrap_or(rest.len())),
        };
        if !path.is_empty() && !is_plain_path(path) {
            let what = format!("responds with 403: Weir does not put `{path}` in front of a path");
            let remedy = "write its route by hand, with a `rewrite`";
            self.directive
                .report(Effect::Differs, &what, remedy, configuration);
            return closed(403);
        }
        let name = self.upstream(http, (scheme, server), rest, configuration);
        let mut keys = Keys::from_iter([("upstream".to_owned(), json!(name))]);
        keys.extend(self.rewrite(path, configuration));
        keys.extend(self.max_body_bytes(configuration));
        keys.extend(request_headers(&self.scopes, configuration));
        keys
    }

    fn report_guard(&self, guard: &Directive, configuration: &mut Configuration) {
        let what = format!("responds with 403 to everyone, for `{}`", guard.written());
        let remedy = "to let some in, have the app decide and give the route its `upstream`";
        let rules = self.scopes.all(&["allow", "deny"]);
        if !guard.has("all") || rules.iter().any(|rule| rule.name == "allow") {
            self.directive
                .report(Effect::Differs, &what, remedy, configuration);
        }
    }

    /// The route of what Weir does not serve itself.
    fn nginx(&self, is_returned: bool, configuration: &mut Configuration) -> Keys {
        let what = match is_returned {
            true => format!("has a `return` without an equal, and goes to {NGINX}"),
            false => format!("has no `proxy_pass` that Weir knows, and goes to {NGINX}"),
        };
        let remedy = "let nginx listen there without its limits, or give the route something else";
        self.directive
            .report(Effect::Differs, &what, remedy, configuration);
        let name = configuration.upstream("nginx", json!({"servers": [NGINX]}));
        Keys::from_iter([("upstream".to_owned(), json!(name))])
    }

    /// The name of the upstream that `proxy_pass` names.
    fn upstream(
        &self,
        http: &[Directive],
        (scheme, server): (&str, &str),
        rest: &str,
        configuration: &mut Configuration,
    ) -> String {
        let group = named(http, "upstream").find(|group| group.argument(0) == server);
        let servers = match group {
            Some(group) => servers(scheme, group, configuration),
            None if rest.starts_with("unix:") => vec![json!(format!("unix://{server}"))],
            None => vec![json!(format!("{scheme}://{server}"))],
        };
        let upstream = match self.host(scheme, server) {
            None => json!({"servers": servers}),
            Some(host) => json!({"servers": servers, "host": host}),
        };
        configuration.upstream(server, upstream)
    }

    /// The key `rewrite`, if `proxy_pass` has a path.
    fn rewrite(&self, path: &str, configuration: &mut Configuration) -> Option<(String, Value)> {
        let pattern = self.pattern;
        if self.path_regex.is_some() || path.is_empty() {
            return None;
        }
        if self.is_prefix() && pattern.ends_with('/') != path.ends_with('/') {
            let stem = |text: &str| text.trim_end_matches('/').to_owned();
            let (from, to) = (stem(pattern), stem(path));
            let theirs = format!("{path}{}", if pattern.ends_with('/') { "x" } else { "/x" });
            let what = format!("sends `{from}/x` on as `{to}/x`, and nginx as `{theirs}`");
            let remedy = "nginx joins the texts; end both with a slash, or neither";
            self.directive
                .report(Effect::Differs, &what, remedy, configuration);
        }
        rewrite(pattern, path).map(|rewrite| ("rewrite".to_owned(), rewrite))
    }

    /// How long a body may be; nginx has a bound unless a file says that there is none.
    fn max_body_bytes(&self, configuration: &mut Configuration) -> Option<(String, Value)> {
        let directive = self
            .scopes
            .all(&["client_max_body_size"])
            .into_iter()
            .last();
        let bytes = directive.map_or(Some(DEFAULT_MAX_BODY), |it| size(it.argument(0)));
        if let (None, Some(directive)) = (bytes, directive) {
            let what = "is not translated: bodies may be as long as clients want";
            let remedy = "say `max_body_bytes` on the route";
            directive.report(Effect::Opens, what, remedy, configuration);
        }
        let bytes = bytes.filter(|bytes| *bytes > 0)?;
        Some(("max_body_bytes".to_owned(), json!(shown_size(bytes))))
    }

    /// The `Host` that the app gets; none for that of the request. Unless it is told otherwise,
    /// nginx sends the name that `proxy_pass` has.
    fn host(&self, scheme: &str, server: &str) -> Option<String> {
        let headers = self.scopes.all(&["proxy_set_header"]).into_iter();
        let mut hosts = headers.filter(|it| it.argument(0).eq_ignore_ascii_case("host"));
        match hosts.next_back().map_or("$proxy_host", |it| it.argument(1)) {
            "$proxy_host" if server.starts_with('/') => Some("localhost".to_owned()),
            "$proxy_host" => {
                let port = if scheme == "https" { ":443" } else { ":80" };
                let host = server.strip_suffix(port).unwrap_or(server);
                // Words of their own in Weir.
                let is_word = ["preserve", "upstream"].contains(&host);
                Some(format!("{host}{}", if is_word { port } else { "" }))
            }
            host => Some(host.to_owned()).filter(|host| !host.is_empty() && !host.contains('$')),
        }
    }

    /// The directive by which a location is not for everyone.
    fn guard(&self) -> Option<&'d Directive> {
        let (guards, rules) = (self.scopes.guards(), self.scopes.all(&["allow", "deny"]));
        for directive in guards.iter().chain(&rules) {
            directive.is_reached.set(true);
        }
        let mut rules = rules.into_iter().filter(|rule| rule.denies_all());
        let mut guards = guards.into_iter().filter(|it| !it.has("off"));
        guards.next().or_else(|| rules.next())
    }
}

/// A response to all requests.
pub(super) fn closed(status: u16) -> Keys {
    Keys::from_iter([("response".to_owned(), json!({"status": status}))])
}

/// A size of nginx, in bytes.
fn size(text: &str) -> Option<u64> {
    let end = text
        .find(|it: char| !it.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = match unit {
        "" => 1,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

/// A size as Weir's files have it.
fn shown_size(bytes: u64) -> String {
    let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let whole = units.iter().find(|(_, unit)| bytes.is_multiple_of(*unit));
    whole.map_or(format!("{bytes}B"), |(name, unit)| {
        format!("{}{name}", bytes / unit)
    })
}

/// The servers of an `upstream`.
fn servers(scheme: &str, group: &Directive, configuration: &mut Configuration) -> Vec<Value> {
    let mut servers = Vec::new();
    let remedy = "docs/config/upstreams.md lists the keys of upstreams: `balance`, `health_check`, \
                  `ejection`";
    for directive in group.block.iter().filter(|it| it.name != "server") {
        directive.report(Effect::Differs, "is not translated", remedy, configuration);
    }
    for server in named(&group.block, "server") {
        if server.has("down") {
            let remedy = "list it as a server once it is up";
            server.report(Effect::Differs, "is left out", remedy, configuration);
            continue;
        }
        let is_other = |it: &&String| !it.starts_with("weight=") && *it != "backup";
        let others: Vec<_> = server.arguments.iter().skip(1).filter(is_other).collect();
        for other in others {
            let what = format!("does not do `{other}`");
            server.report(Effect::Differs, &what, remedy, configuration);
        }
        if server.has("backup") {
            let remedy = "list it as a server; one that fails gets no requests for a while";
            server.report(
                Effect::Differs,
                "is left out: Weir has no backup servers",
                remedy,
                configuration,
            );
            continue;
        }
        let url = match server.argument(0).strip_prefix("unix:") {
            Some(path) => format!("unix://{path}"),
            None => format!("{scheme}://{}", server.argument(0)),
        };
        let weight = server
            .parameter("weight")
            .and_then(|weight| weight.parse::<u64>().ok());
        servers.push(weight.map_or(json!(url), |weight| json!({"url": url, "weight": weight})));
    }
    servers
}

/// The modifier and the pattern of a location; nginx allows `location =/path` as well.
fn split(directive: &Directive) -> (&str, &str) {
    if let [modifier, pattern] = &directive.arguments[..] {
        return (modifier, pattern);
    }
    let pattern = directive.argument(0);
    let mut modifiers = ["=", "~*", "^~", "~"].iter();
    let found = modifiers.find_map(|it| Some((*it, pattern.strip_prefix(it)?)));
    found.unwrap_or(("", pattern))
}

/// An expression that matches the whole path where nginx's matches a part of it. Weir's paths have
/// no slash at their end.
fn whole(pattern: &str) -> Option<String> {
    // Weir leaves `%25` encoded, takes `\` for a slash and `;` for the end of a segment.
    if pattern.contains(['%', ';']) || pattern.contains(r"\\") {
        return None;
    }
    Regex::new(pattern).ok()?;
    let without_slash = before_slash(&Parser::new().parse(pattern).ok()?);
    let has_choices = pattern.contains('|');
    let rest = pattern.strip_prefix('^').filter(|_| !has_choices);
    let (start, rest) = rest.map_or((".*", pattern), |rest| ("", rest));
    let ended = rest.strip_suffix('$').filter(|rest| !rest.ends_with('\\'));
    let mut whole = match ended {
        _ if has_choices => format!(".*(?:{pattern}).*"),
        Some(rest) => format!("{start}{rest}"),
        None => format!("{start}{rest}.*"),
    };
    for without_slash in without_slash {
        match without_slash.strip_prefix('^').filter(|_| !has_choices) {
            Some("") => {}
            Some(path) => whole += &format!("|{path}"),
            None => whole += &format!("|.*(?:{without_slash})"),
        }
    }
    // A group that has a name must not be repeated.
    let is_valid = whole.len() <= MAX_REGEX_BYTES && Regex::new(&whole).is_ok();
    is_valid.then_some(whole)
}

/// Expressions for the texts that it matches with a slash at the end, without that slash.
fn before_slash(ast: &Ast) -> Vec<String> {
    let matches = |ast: &Ast, text: &str| {
        let regex = Regex::new(&format!("^(?:{ast})$"));
        regex.is_ok_and(|regex| regex.is_match(text))
    };
    match ast {
        Ast::Concat(concat) => {
            let mut found = Vec::new();
            for (index, last) in concat.asts.iter().enumerate().rev() {
                let before = concat.asts.iter().take(index);
                let before: String = before.map(ToString::to_string).collect();
                found.extend(
                    before_slash(last)
                        .iter()
                        .map(|rest| format!("{before}{rest}")),
                );
                if !matches(last, "") {
                    break;
                }
            }
            found
        }
        Ast::Alternation(choices) => choices.asts.iter().flat_map(before_slash).collect(),
        Ast::Group(group) => before_slash(&group.ast),
        Ast::Repetition(repeated) => {
            let before = before_slash(&repeated.ast);
            let before = before
                .iter()
                .map(|rest| format!("(?:{})*{rest}", repeated.ast));
            before.collect()
        }
        one => matches(one, "/").then(String::new).into_iter().collect(),
    }
}

/// An expression without its groups that look ahead or behind.
fn without_lookaround(pattern: &str) -> Option<String> {
    let starts = ["(?!", "(?=", "(?<!", "(?<="];
    let mut rest = pattern.to_owned();
    while let Some(start) = starts.iter().filter_map(|it| rest.find(it)).min() {
        let mut depth = 0_usize;
        let end = rest
            .get(start..)?
            .char_indices()
            .find_map(|(index, letter)| {
                depth = match letter {
                    '(' => depth + 1,
                    ')' => depth.saturating_sub(1),
                    _ => depth,
                };
                (depth == 0).then_some(start + index)
            })?;
        rest.replace_range(start..=end, "");
    }
    // A bracket that is no group would end it too early.
    let is_plain = !pattern.contains(r"\(") && !pattern.contains(r"\)") && !pattern.contains('[');
    (is_plain && rest != pattern).then_some(rest)
}

/// An expression for all paths that an expression of another syntax may match.
fn around_expression(pattern: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_-/".contains(letter);
    let rest = pattern.strip_prefix('^').filter(|rest| !rest.contains('|'));
    let rest = rest.unwrap_or_default();
    let (plain, rest) = rest.split_at(rest.find(|it| !is_plain(it)).unwrap_or(rest.len()));
    // What comes next may say that the last letter need not be there.
    let plain = match rest.starts_with(['?', '*', '{']) {
        true => plain
            .get(..plain.len().saturating_sub(1))
            .unwrap_or_default(),
        false => plain,
    };
    format!("{}.*", plain.trim_end_matches('/'))
}

/// An expression for all that Weir may make of a path, and for all below it.
fn around_path(path: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_-/".contains(letter);
    let shown = |letter: char| match is_plain(letter) {
        true => letter.to_string(),
        false => ".*".to_owned(),
    };
    let text: String = path.chars().map(shown).collect();
    format!("{}.*", text.replace("//", ".*").trim_end_matches('/'))
}
