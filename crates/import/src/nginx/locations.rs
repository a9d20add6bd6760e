//! The locations of a server: the paths that they match, and where their requests go.

use regex::Regex;
use serde_json::json;

use super::parse::Directive;
use super::scopes::{Scopes, named};
use crate::configuration::{Configuration, Keys, below, exactly, is_plain_path, rewrite};

/// The upstream of what Weir does not serve itself.
const NGINX: &str = "http://127.0.0.1:8081";

/// A location.
#[derive(Clone)]
pub(super) struct Location<'d> {
    pub(super) directive: &'d Directive,
    pub(super) scopes: Scopes<'d>,
    pub(super) path: String,
    /// An expression, and whether it looks at the case of letters.
    pub(super) path_regex: Option<(String, bool)>,
    /// Whether a location with an expression goes before it.
    pub(super) yields_to_regex: bool,
}

/// Adds all locations of a block, those within others included.
pub(super) fn add_locations<'d>(
    block: &'d [Directive],
    scopes: &Scopes<'d>,
    configuration: &mut Configuration,
    all: &mut Vec<Location<'d>>,
) {
    for directive in named(block, "location").filter(|it| !it.argument(0).starts_with('@')) {
        match Location::new(directive, scopes.within(&directive.block)) {
            Ok(location) => all.push(location),
            Err(what) => directive.report(what, "write a route for it by hand", configuration),
        }
        add_locations(
            &directive.block,
            &scopes.within(&directive.block),
            configuration,
            all,
        );
    }
}

impl<'d> Location<'d> {
    fn new(directive: &'d Directive, scopes: Scopes<'d>) -> Result<Self, &'static str> {
        let (modifier, pattern) = split(directive);
        let (mut path, mut path_regex) = ("/*".to_owned(), None);
        if modifier.starts_with('~') {
            let regex = whole(pattern).ok_or("has an expression that Weir does not know")?;
            path_regex = Some((regex, modifier == "~"));
        } else if is_plain_path(pattern) {
            path = if modifier == "=" {
                exactly(pattern)
            } else {
                below(pattern)
            };
        } else {
            return Err("has a path that Weir would normalize");
        }
        Ok(Self {
            directive,
            scopes,
            path,
            path_regex,
            yields_to_regex: modifier.is_empty() && pattern != "/",
        })
    }

    /// The keys of a route for where its requests go.
    pub(super) fn target(&self, http: &[Directive], configuration: &mut Configuration) -> Keys {
        let (modifier, pattern) = split(self.directive);
        if modifier.is_empty() && !pattern.ends_with('/') {
            let what = format!("matches `{pattern}x` in nginx, and not in Weir");
            let remedy = "the route is for the path and all below it; `path_regex` can say more";
            self.directive.report(&what, remedy, configuration);
        }
        let closed =
            |status: u16| Keys::from_iter([("response".to_owned(), json!({"status": status}))]);
        if self.scopes.own("internal").is_some() {
            return closed(404);
        }
        if let Some(guard) = self.guard() {
            let what = format!("responds with 403 to everyone, for `{}`", guard.written());
            let remedy = "to let some in, have the app decide and give the route its `upstream`";
            let rules = self.scopes.all(&["allow", "deny"]);
            if guard.name != "deny" || rules.iter().any(|rule| rule.name == "allow") {
                self.directive.report(&what, remedy, configuration);
            }
            return closed(403);
        }
        let pass = self
            .scopes
            .own("proxy_pass")
            .map_or("", |pass| pass.argument(0));
        let Some((scheme, rest)) = pass.split_once("://").filter(|_| !pass.contains('$')) else {
            let what = format!("has no `proxy_pass` that Weir knows, and goes to {NGINX}");
            let remedy =
                "let nginx listen there without its limits, or give the route something else";
            self.directive.report(&what, remedy, configuration);
            let name = configuration.upstream("nginx", json!({"servers": [NGINX]}));
            return Keys::from_iter([("upstream".to_owned(), json!(name))]);
        };
        let (server, path) = match rest.strip_prefix("unix:") {
            Some(socket) => socket.split_once(':').unwrap_or((socket, "")),
            None => rest.split_at(rest.find('/').unwrap_or(rest.len())),
        };
        let group = named(http, "upstream").find(|group| group.argument(0) == server);
        let servers = match group {
            Some(group) => servers(scheme, group, configuration),
            None if rest.starts_with("unix:") => vec![json!(format!("unix://{server}"))],
            None => vec![json!(format!("{scheme}://{server}"))],
        };
        let name = configuration.upstream(server, json!({"servers": servers}));
        let mut keys = Keys::from_iter([("upstream".to_owned(), json!(name))]);
        if self.path_regex.is_none() && !path.is_empty() {
            keys.extend(rewrite(pattern, path).map(|rewrite| ("rewrite".to_owned(), rewrite)));
        }
        keys
    }

    /// The directive by which a location is not for everyone.
    fn guard(&self) -> Option<&'d Directive> {
        let by_credentials = ["auth_basic", "auth_request", "auth_jwt"].iter();
        let mut on = by_credentials.flat_map(|name| self.scopes.all(&[name]));
        let rules = self.scopes.all(&["allow", "deny"]);
        let mut rules = rules
            .into_iter()
            .filter(|rule| rule.name == "deny" && rule.has("all"));
        on.find(|it| !it.has("off")).or_else(|| rules.next())
    }
}

/// The servers of an `upstream`.
fn servers(
    scheme: &str,
    group: &Directive,
    configuration: &mut Configuration,
) -> Vec<serde_json::Value> {
    let mut servers = Vec::new();
    for server in named(&group.block, "server").filter(|server| !server.has("down")) {
        if server.has("backup") {
            let remedy = "list it as a server; one that fails gets no requests for a while";
            server.report(
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

/// An expression that matches the whole path where nginx's matches a part of it.
fn whole(pattern: &str) -> Option<String> {
    Regex::new(pattern).ok()?;
    if pattern.contains('|') {
        return Some(format!(".*(?:{pattern}).*"));
    }
    let rest = pattern.strip_prefix('^');
    let (start, rest) = rest.map_or((".*", pattern), |rest| ("", rest));
    let ended = rest.strip_suffix('$').filter(|rest| !rest.ends_with('\\'));
    // Weir's paths have no slash at their end.
    Some(match ended {
        Some(rest) if rest.ends_with('/') => format!("{start}{rest}?"),
        Some(rest) => format!("{start}{rest}"),
        None => format!("{start}{rest}.*"),
    })
}
