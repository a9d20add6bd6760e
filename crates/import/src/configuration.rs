//! A configuration of Weir in the making, its YAML, and where it differs from its source.

use std::collections::HashSet;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::difference::{Difference, Differences, Effect};
use crate::flow::{comment, flow, scalar};
use crate::source::{ImportError, MAX_ROUTES, Place};

/// A translated configuration.
#[derive(Debug)]
pub struct Imported {
    /// The text of `gateway.yaml`.
    pub gateway: String,
    /// The text of `limits/defaults.yaml`.
    pub defaults: String,
    /// The text of `limits/overrides.yaml`, if there are overrides.
    pub overrides: Option<String>,
    /// Where the configuration does not do the same as the source, ordered by
    /// [`Effect`] and then by place.
    pub differences: Vec<Difference>,
}

/// Keys and values of a route, an upstream or the like, in their order.
pub(crate) type Keys = Map<String, Value>;

/// A route as it will stand in the file.
#[derive(Debug)]
struct Route {
    /// The part of the source that it is from, unless the route before it is from the same.
    above: Option<String>,
    matches: Value,
    /// Only where another route would be called the same.
    name: Option<String>,
    keys: Keys,
}

/// The parts of a configuration, each as it stands in the file.
#[derive(Debug, Default)]
pub(crate) struct Configuration {
    /// The listeners, each with an `address`.
    pub(crate) listen: Vec<Value>,
    /// Other keys of the file, such as `client_address`.
    pub(crate) keys: Keys,
    upstreams: Vec<(String, Value)>,
    routes: Vec<Route>,
    /// The part of the source that the last route is from.
    above: String,
    pub(crate) limits: Vec<(String, Value)>,
    pub(crate) overrides: Vec<(String, Value)>,
    /// What routes match so far.
    matches: HashSet<String>,
    /// How many routes were added or left out.
    tried: usize,
    names: HashSet<String>,
    /// The names of upstreams and limits that routes use.
    used: HashSet<String>,
    differences: Differences,
}

impl Configuration {
    /// Adds a difference of a part of the source.
    pub(crate) fn differ(
        &mut self,
        effect: Effect,
        place: &Place,
        (part, what): (&str, &str),
        remedy: &str,
    ) {
        self.differences.add(effect, place, part, what, remedy);
    }

    /// Adds a route, unless an earlier one matches the same requests.
    ///
    /// # Errors
    /// [`ImportError::TooManyRoutes`].
    pub(crate) fn add_route(
        &mut self,
        place: &Place,
        above: &str,
        matches: Keys,
        keys: &Keys,
    ) -> Result<bool, ImportError> {
        self.tried += 1;
        if self.tried > MAX_ROUTES {
            return Err(ImportError::TooManyRoutes(place.clone()));
        }
        let mut keys_of_case = ["case", "path_regex"].iter();
        let is_for_one_case = keys_of_case.any(|key| matches.contains_key(*key));
        let matches = Value::Object(matches);
        let shown = flow(&matches);
        let is_new = self.matches.insert(match is_for_one_case {
            true => shown,
            false => shown.to_lowercase(),
        });
        if !is_new {
            return Ok(false);
        }
        self.mark_used(keys);
        let is_from_another = self.above != above;
        above.clone_into(&mut self.above);
        let name = self.name(&matches);
        self.routes.push(Route {
            above: is_from_another.then(|| above.to_owned()),
            matches,
            name,
            keys: keys.clone(),
        });
        Ok(true)
    }

    /// Remembers which limits and upstream a route has, as others are not written.
    fn mark_used(&mut self, keys: &Keys) {
        let limits = keys.get("limits").and_then(Value::as_array);
        let limits = limits.into_iter().flatten();
        let names = limits.map(|limit| limit.get("limit").unwrap_or(limit));
        let names = names.chain(keys.get("upstream")).filter_map(Value::as_str);
        self.used.extend(names.map(str::to_owned));
    }

    /// The name of the next route, if it needs one.
    fn name(&mut self, matches: &Value) -> Option<String> {
        // Without a name, a route is called by these alone.
        let called = ["methods", "host", "path"].map(|key| matches.get(key).map(flow));
        let called = called.into_iter().flatten().collect::<String>();
        let called = called.replace('"', "");
        let is_known = self.names.contains(&called);
        let name = is_known.then(|| format!("{called} {}", self.routes.len() + 1));
        self.names.insert(called);
        name
    }

    /// The route of a gateway that only redirects to HTTPS.
    ///
    /// # Errors
    /// [`ImportError::TooManyRoutes`].
    pub(crate) fn serve_nothing(&mut self, place: &Place, part: &str) -> Result<(), ImportError> {
        let what = "redirects to HTTPS, and nothing else is served";
        let remedy = "import what is served by HTTPS as well; behind a proxy with TLS, name the proxy \
                      in `client_address.trusted_proxies`";
        self.differ(Effect::Differs, place, (part, what), remedy);
        let matches = Keys::from_iter([("path".to_owned(), json!("/*"))]);
        let keys = Keys::from_iter([("response".to_owned(), json!({"status": 404}))]);
        let above = format!("{place}: {}", part.trim_matches('`'));
        self.add_route(place, &above, matches, &keys).map(drop)
    }

    pub(crate) fn has_routes(&self) -> bool {
        !self.routes.is_empty()
    }

    /// The name of an upstream with these keys, which is added if there is none.
    pub(crate) fn upstream(&mut self, wanted: &str, keys: Value) -> String {
        if let Some((name, _)) = self.upstreams.iter().find(|(_, known)| *known == keys) {
            return name.clone();
        }
        let name = unused_name(wanted, &self.upstreams);
        self.upstreams.push((name.clone(), keys));
        name
    }

    /// The texts of the files, for a source at `path`.
    pub(crate) fn imported(mut self, path: &Path) -> Imported {
        for list in [&mut self.upstreams, &mut self.limits, &mut self.overrides] {
            list.retain(|(name, _)| self.used.contains(name));
        }
        self.hoist_to_upstreams("max_body_bytes");
        let defaults = self.hoisted_to_defaults("request_headers");
        let origin = path.file_name().unwrap_or_default().to_string_lossy();
        let keys = self.keys.iter();
        let keys = keys.map(|(key, value)| format!("{key}: {}\n\n", flow(value)));
        let gateway = format!(
            "# Imported from {}. `weir check` reads this file and those of limits/ and reports every\n\
             # error; `weir` serves them.\n\nlisten:{}\n\n{}\
             # Health, metrics, and what `weir top` and other commands ask.\n\
             admin: {{address: \"127.0.0.1:9901\"}}\n\nupstreams:{}\n\n\
             defaults: {}\n\n\
             # The most specific route wins, and the first of equal ones.\nroutes:\n{}",
            comment(&origin),
            listeners(&self.listen),
            keys.collect::<String>(),
            lines(&self.upstreams, "\n  ").unwrap_or(" {}".to_owned()),
            flow(&Value::Object(defaults)),
            self.routes.iter().map(Route::text).collect::<String>(),
        );
        let no_limits = "\n# `weir suggest` finds limits by an access log.\n{}";
        Imported {
            gateway,
            defaults: lines(&self.limits, "\n").unwrap_or(no_limits.to_owned()) + "\n",
            overrides: lines(&self.overrides, "\n- ").map(|text| text + "\n"),
            differences: self.differences.merged(),
        }
    }

    /// Writes a key of routes on the upstreams whose routes all say the same.
    fn hoist_to_upstreams(&mut self, key: &str) {
        for (name, upstream) in &mut self.upstreams {
            let is_own = |route: &&mut Route| route.keys.get("upstream") == Some(&json!(name));
            let mut routes: Vec<_> = self.routes.iter_mut().filter(is_own).collect();
            let value = routes
                .first()
                .and_then(|route| route.keys.get(key))
                .cloned();
            let is_same = routes
                .iter()
                .all(|route| route.keys.get(key) == value.as_ref());
            let keys = upstream.as_object_mut().filter(|_| is_same);
            if let (Some(keys), Some(value)) = (keys, value) {
                keys.insert(key.to_owned(), value);
                for route in &mut routes {
                    route.keys.shift_remove(key);
                }
            }
        }
    }

    /// The defaults of routes, with a key if all routes with an upstream say the same.
    fn hoisted_to_defaults(&mut self, key: &str) -> Keys {
        let mut defaults = Keys::from_iter([("limits".to_owned(), json!([]))]);
        let is_forwarding = |route: &&mut Route| route.keys.contains_key("upstream");
        let mut routes: Vec<_> = self.routes.iter_mut().filter(is_forwarding).collect();
        let value = routes
            .first()
            .and_then(|route| route.keys.get(key))
            .cloned();
        let is_same = routes
            .iter()
            .all(|route| route.keys.get(key) == value.as_ref());
        if let Some(value) = value.filter(|_| is_same && routes.len() > 1) {
            defaults.insert(key.to_owned(), value);
            for route in &mut routes {
                route.keys.shift_remove(key);
            }
        }
        defaults
    }
}

impl Route {
    fn text(&self) -> String {
        let above = self.above.as_ref();
        let mut text = above.map_or(String::new(), |it| format!("  # {}\n", comment(it)));
        text += &format!("  - match: {}\n", flow(&self.matches));
        if let Some(name) = &self.name {
            text += &format!("    name: {}\n", scalar(name));
        }
        for (key, value) in &self.keys {
            text += &format!("    {key}: {}\n", flow(value));
        }
        text
    }
}

/// The listeners, in one line or a line each.
fn listeners(listen: &[Value]) -> String {
    let lines = listen.iter().map(flow);
    match listen {
        [one] => format!(" [{}]", flow(one)),
        _ => lines.map(|line| format!("\n  - {line}")).collect(),
    }
}

/// The name, or another that begins with it if the list has it.
pub(crate) fn unused_name(wanted: &str, list: &[(String, Value)]) -> String {
    let is_taken = |name: &str| list.iter().any(|(known, _)| known == name);
    let (mut name, mut number) = (wanted.to_owned(), 1_usize);
    while is_taken(&name) {
        number += 1;
        name = format!("{wanted}-{number}");
    }
    name
}

/// A line for each value, each behind a text; none without values.
fn lines(list: &[(String, Value)], before: &str) -> Option<String> {
    let lines = list.iter();
    let lines = lines.map(|(name, keys)| format!("{before}{}: {}", scalar(name), flow(keys)));
    (!list.is_empty()).then(|| lines.collect())
}

/// Whether Weir takes a path for itself: one without captures, wildcards and all that it
/// normalizes.
pub(crate) fn is_plain_path(path: &str) -> bool {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/_.~-@$+,=!".contains(letter);
    let is_normal = |segment: &str| !segment.is_empty() && !segment.ends_with('.');
    let inner = path
        .strip_prefix('/')
        .map(|path| path.strip_suffix('/').unwrap_or(path));
    path.chars().all(is_plain)
        && inner.is_some_and(|inner| inner.is_empty() || inner.split('/').all(is_normal))
}

/// The pattern for all paths below a prefix.
pub(crate) fn below(prefix: &str) -> String {
    format!("{}/*", prefix.trim_end_matches('/'))
}

/// The pattern for one path.
pub(crate) fn exactly(path: &str) -> String {
    let path = path.trim_end_matches('/');
    if path.is_empty() { "/" } else { path }.to_owned()
}

/// The key of a route that replaces the prefix `from` of its paths by `to`; none where they are
/// equal.
pub(crate) fn rewrite(from: &str, to: &str) -> Option<Value> {
    let (from, to) = (from.trim_end_matches('/'), to.trim_end_matches('/'));
    let keys = [("strip_prefix", from), ("add_prefix", to)].into_iter();
    let keys = keys.filter(|(_, path)| !path.is_empty());
    (from != to).then(|| {
        keys.map(|(key, path)| (key.to_owned(), json!(path)))
            .collect()
    })
}
