//! HTTPRoutes of the Kubernetes Gateway API: rules as routes, Services as upstreams.
//!
//! Weir's precedence of routes is that of the Gateway API; of equal routes the first wins, so they
//! stand in the order that the API has for them.

mod fields;

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use self::fields::Fields;
use crate::configuration::{Configuration, Keys, below, exactly, is_plain_path, rewrite};
use crate::difference::Effect;
use crate::source::{ImportError, Place};

/// The greatest weight of a server in Weir. That of a backend goes up to 1,000,000.
const MAX_WEIGHT: u64 = 1000;

/// Where Weir listens: HTTPRoutes do not say where.
const LISTEN: &str = "0.0.0.0:8080";

/// Translates the HTTPRoutes of a file.
///
/// # Errors
/// When a document of the file is not YAML.
pub(crate) fn import(path: &Path, text: &str) -> Result<Configuration, ImportError> {
    let mut configuration = Configuration::default();
    let mut routes = Vec::new();
    for (line, document) in documents(text) {
        let value: Value = serde_yaml::from_str(&document).map_err(|error| {
            let within = error.location().map_or(0, |location| location.line() - 1);
            ImportError::Malformed(Place::new(path, line + within), error.to_string())
        })?;
        let mut document = Fields::new(value.clone(), String::new());
        let items = match document.list("items") {
            items if items.is_empty() => vec![value],
            items => items,
        };
        for item in items.into_iter().filter(|item| !item.is_null()) {
            routes.extend(HttpRoute::new(
                item,
                Place::new(path, line),
                &mut configuration,
            ));
        }
    }
    leave_out_other_gateways(&mut routes, &mut configuration);
    // The oldest first, then by `NAMESPACE/NAME`. Times in RFC 3339 and UTC compare as texts.
    routes.sort_by_key(|route| {
        let created = route.created.clone();
        (created.is_none(), created, route.name.clone())
    });
    let first = routes
        .first()
        .map(|first| (first.place.clone(), first.name.clone()));
    let is_redirect_alone = routes.iter().all(HttpRoute::is_redirect);
    for mut route in routes {
        let rules = std::mem::take(&mut route.rules);
        for (index, rule) in rules.into_iter().enumerate() {
            let title = format!("{}, rules[{index}]", route.name);
            RuleImport {
                route: &route,
                title,
                is_redirect_alone,
                configuration: &mut configuration,
            }
            .add(rule)?;
        }
    }
    let mut listener = json!({"address": LISTEN});
    if let Some((place, name)) = first.filter(|_| is_redirect_alone) {
        listener = json!({"address": LISTEN, "redirect_to_https": true});
        configuration.serve_nothing(&place, &name)?;
    }
    configuration.listen.push(listener);
    Ok(configuration)
}

/// The documents of a file, each with the number of its first line.
fn documents(text: &str) -> Vec<(usize, String)> {
    let mut documents = vec![(1, String::new())];
    for (index, line) in text.lines().enumerate() {
        match (line.trim_end() == "---", documents.last_mut()) {
            (false, Some((_, document))) => *document += &format!("{line}\n"),
            _ => documents.push((index + 2, String::new())),
        }
    }
    documents
}

struct HttpRoute {
    place: Place,
    created: Option<String>,
    namespace: String,
    /// With its namespace, as it is shown.
    name: String,
    /// The Gateways whose listeners it is for.
    parents: BTreeSet<String>,
    hosts: Vec<Value>,
    rules: Vec<Fields>,
}

impl HttpRoute {
    fn new(item: Value, place: Place, configuration: &mut Configuration) -> Option<Self> {
        let mut item = Fields::new(item, String::new());
        let kind = item.text("kind").unwrap_or_default();
        let mut metadata = item.object("metadata").unwrap_or_default();
        let namespace = metadata.text("namespace").unwrap_or("default".to_owned());
        let name = format!(
            "{kind} {namespace}/{}",
            metadata.text("name").unwrap_or_default()
        );
        if kind != "HTTPRoute" {
            // Others may lead requests to an app as well, or keep them out.
            let is_route = kind.ends_with("Route") || kind.ends_with("Policy");
            let effect = if is_route {
                Effect::LeavesOut
            } else {
                Effect::Differs
            };
            let remedy = "only HTTPRoutes are translated";
            configuration.differ(effect, &place, (&name, "is left out"), remedy);
            return None;
        }
        let mut spec = item.object("spec").unwrap_or_default();
        let parents = spec.objects("parentRefs").into_iter();
        let parents = parents
            .map(|parent| named_parent(parent, &namespace))
            .collect();
        let route = Self {
            created: metadata.text("creationTimestamp"),
            parents,
            hosts: spec.list("hostnames"),
            rules: spec.objects("rules"),
            place,
            namespace,
            name,
        };
        report(&spec, &route, configuration);
        Some(route)
    }

    /// Whether each of its rules redirects to HTTPS on the same host, and does nothing else.
    fn is_redirect(&self) -> bool {
        let is_redirect = |rule: &Fields| {
            let mut filters = rule.clone().objects("filters");
            let mut redirects = filters
                .iter_mut()
                .filter_map(|it| it.object("requestRedirect"));
            redirects.any(|mut it| {
                it.text("scheme").as_deref() == Some("https")
                    && it.text("hostname").is_none()
                    && it.object("path").is_none()
            })
        };
        !self.rules.is_empty() && self.rules.iter().all(is_redirect)
    }
}

/// A Gateway, or one of its listeners, as a text.
fn named_parent(mut parent: Fields, namespace: &str) -> String {
    let namespace = parent.text("namespace").unwrap_or(namespace.to_owned());
    let mut text = format!("{namespace}/{}", parent.text("name").unwrap_or_default());
    for part in [
        parent.text("sectionName"),
        parent.number("port").map(|port| port.to_string()),
    ] {
        text.extend(part.map(|part| format!(":{part}")));
    }
    text
}

/// Leaves out the HTTPRoutes of other Gateways than those of the first: requests reach them by
/// other listeners, and Weir's routes do not differ by listener.
fn leave_out_other_gateways(routes: &mut Vec<HttpRoute>, configuration: &mut Configuration) {
    let serving = routes.iter().find(|route| !route.is_redirect());
    let first = serving.or_else(|| routes.first());
    let Some(parents) = first.map(|first| first.parents.clone()) else {
        return;
    };
    let shown = |parents: &BTreeSet<String>| {
        let list: Vec<&str> = parents.iter().map(String::as_str).collect();
        if list.is_empty() {
            "none".to_owned()
        } else {
            list.join(", ")
        }
    };
    let has_serving = routes.iter().any(|route| !route.is_redirect());
    routes.retain(|route| {
        // A listener without TLS has those that redirect, and one with TLS the others.
        let is_same = route.parents == parents || has_serving && route.is_redirect();
        if !is_same {
            let (theirs, first) = (shown(&route.parents), shown(&parents));
            let what = format!("is left out: its Gateway is {theirs}, not {first}");
            let remedy = "import the HTTPRoutes of each Gateway into a gateway of its own";
            let part = (&*route.name, &*what);
            configuration.differ(Effect::LeavesOut, &route.place, part, remedy);
        }
        is_same
    });
}

/// Lists the keys of an object that were not taken.
fn report(fields: &Fields, route: &HttpRoute, configuration: &mut Configuration) {
    for path in fields.left() {
        let remedy = match path.rsplit('.').next().unwrap_or_default() {
            "requestMirror" => "Weir copies no requests: let the app or a service mesh do it",
            "cors" => "write `cors` on the route",
            "retry" => "write `retries` on the upstream",
            "sessionPersistence" => "write `balance: {hash: ...}` on the upstream",
            "extensionRef" | "externalAuth" => {
                "the route responds with 500, as the Gateway API has it: write what it does by hand"
            }
            _ => "docs/CONFIG.md lists the keys of routes and upstreams",
        };
        let what = format!("`{path}` is not translated");
        let part = format!("{}:", route.name);
        configuration.differ(Effect::Differs, &route.place, (&part, &what), remedy);
    }
}

/// A rule while it is translated.
struct RuleImport<'r> {
    route: &'r HttpRoute,
    title: String,
    /// Whether the file has nothing but redirects to HTTPS.
    is_redirect_alone: bool,
    configuration: &'r mut Configuration,
}

/// What a rule does with requests.
#[derive(Default)]
struct Action {
    keys: Keys,
    /// What takes the place of the path of a match, or of the whole path.
    prefix: Option<String>,
    full_path: Option<String>,
    /// The `Host` of requests to the upstream.
    host: Option<String>,
    /// What stands in front of the path in a redirect, and its status.
    redirect: Option<(String, u64)>,
    /// A filter that must not be left out has no equal.
    is_refused: bool,
}

impl RuleImport<'_> {
    fn differ(&mut self, effect: Effect, what: &str, remedy: &str) {
        let part = format!("{}:", self.title);
        self.configuration
            .differ(effect, &self.route.place, (&part, what), remedy);
    }

    fn report(&mut self, fields: &Fields) {
        report(fields, self.route, self.configuration);
    }

    fn add(&mut self, mut rule: Fields) -> Result<(), ImportError> {
        let mut matches = rule.objects("matches");
        if matches.is_empty() {
            matches.push(Fields::default());
        }
        let mut action = self.action(&mut rule);
        rule.ignore(&["name"]);
        self.report(&rule);
        if let Some((before, _)) = &action.redirect
            && before.contains("{{ host }}")
            && action.prefix.is_none()
            && action.full_path.is_none()
        {
            let remedy = "say `redirect_to_https: true` on a listener, beside one with `tls`";
            let what = "the redirect to another scheme of the same host is left out, and its \
                        requests take another route";
            if !self.is_redirect_alone {
                self.differ(Effect::Opens, what, remedy);
            }
            return Ok(());
        }
        if action.is_refused {
            action = Action::default();
        }
        let is_target = |key: &str| action.keys.contains_key(key);
        if !is_target("upstream") && action.redirect.is_none() {
            action
                .keys
                .insert("response".to_owned(), json!({"status": 500}));
        }
        for one in matches {
            self.add_match(one, &action)?;
        }
        Ok(())
    }

    fn action(&mut self, rule: &mut Fields) -> Action {
        let mut action = Action::default();
        for mut filter in rule.objects("filters") {
            action.is_refused |= self.is_refused(&mut filter);
            for (key, ours) in [
                ("requestHeaderModifier", "request_headers"),
                ("responseHeaderModifier", "response_headers"),
            ] {
                let edits = filter.object(key).map(edits);
                action
                    .keys
                    .extend(edits.map(|edits| (ours.to_owned(), edits)));
            }
            for key in ["requestRedirect", "urlRewrite"] {
                let Some(mut fields) = filter.object(key) else {
                    continue;
                };
                let mut path = fields.object("path").unwrap_or_default();
                action.prefix = path.text("replacePrefixMatch");
                action.full_path = path.text("replaceFullPath");
                match key {
                    "urlRewrite" => action.host = fields.text("hostname"),
                    _ => action.redirect = Some(redirect(&mut fields)),
                }
                self.report(&fields);
            }
            self.report(&filter);
        }
        let servers = self.servers(rule, &mut action);
        let mut timeouts = rule.object("timeouts").unwrap_or_default();
        if let Some((name, servers)) = servers.filter(|_| action.redirect.is_none()) {
            let upstream = match &action.host {
                Some(host) => json!({"servers": servers, "host": host}),
                None => json!({"servers": servers}),
            };
            let name = self.configuration.upstream(&name, upstream);
            action.keys.insert("upstream".to_owned(), json!(name));
            for (key, ours) in [
                ("request", "total_timeout"),
                ("backendRequest", "response_timeout"),
            ] {
                // Zero means none, which is the default.
                let timeout = timeouts
                    .text(key)
                    .filter(|text| text.contains(|it| ('1'..='9').contains(&it)));
                action
                    .keys
                    .extend(timeout.map(|timeout| (ours.to_owned(), json!(timeout))));
            }
        }
        action
    }

    /// Whether a filter must not be left out, as it may keep requests out.
    fn is_refused(&mut self, filter: &mut Fields) -> bool {
        let kind = filter.text("type").unwrap_or_default();
        let is_harmless = matches!(
            kind.as_str(),
            "RequestHeaderModifier"
                | "ResponseHeaderModifier"
                | "RequestMirror"
                | "RequestRedirect"
                | "URLRewrite"
                | "CORS"
        );
        if !is_harmless {
            let what =
                format!("the filter `{kind}` is not translated: the route responds with 500");
            self.differ(Effect::Differs, &what, "write by hand what it does");
        }
        !is_harmless
    }

    /// The name of an upstream, and its servers; none without a backend that gets requests.
    fn servers(&mut self, rule: &mut Fields, action: &mut Action) -> Option<(String, Vec<Value>)> {
        let mut servers = Vec::new();
        for mut backend in rule.objects("backendRefs") {
            let kind = backend.text("kind").unwrap_or("Service".to_owned());
            let name = backend.text("name").unwrap_or_default();
            let namespace = backend
                .text("namespace")
                .unwrap_or(self.route.namespace.clone());
            let weight = backend.number("weight").unwrap_or(1);
            let port = backend.number("port");
            backend.ignore(&["group"]);
            for mut filter in backend.objects("filters") {
                action.is_refused |= self.is_refused(&mut filter);
                self.report(&filter);
            }
            self.report(&backend);
            match port.filter(|_| kind == "Service") {
                Some(_) if weight == 0 => {}
                Some(port) => servers.push((format!("{name}.{namespace}.svc:{port}"), weight)),
                None => {
                    let what = format!("the backend {kind} {name} is left out");
                    let remedy = "write its address as a server of the upstream";
                    self.differ(Effect::LeavesOut, &what, remedy);
                }
            }
        }
        let heaviest = servers
            .iter()
            .map(|(_, weight)| *weight)
            .max()?
            .max(MAX_WEIGHT);
        let server = |(host, weight): &(String, u64)| match servers.len() {
            1 => json!(format!("http://{host}")),
            _ => {
                let weight = weight.saturating_mul(MAX_WEIGHT).div_ceil(heaviest);
                json!({"url": format!("http://{host}"), "weight": weight})
            }
        };
        let name = servers.first()?.0.replace(".svc", "");
        Some((name, servers.iter().map(server).collect()))
    }

    fn add_match(&mut self, mut one: Fields, action: &Action) -> Result<(), ImportError> {
        let mut path = one.object("path").unwrap_or_default();
        let kind = path.text("type").unwrap_or("PathPrefix".to_owned());
        let value = path.text("value").unwrap_or("/".to_owned());
        let mut matches = Keys::new();
        let pattern = match kind.as_str() {
            "RegularExpression" if regex::Regex::new(&value).is_ok() => {
                matches.insert("path_regex".to_owned(), json!(value));
                "/*".to_owned()
            }
            "Exact" if is_plain_path(&value) => exactly(&value),
            "PathPrefix" if is_plain_path(&value) => below(&value),
            _ => {
                let what =
                    format!("the path `{value}` is left out, and its requests take another route");
                self.differ(Effect::LeavesOut, &what, "write a route for it by hand");
                return Ok(());
            }
        };
        matches.insert("path".to_owned(), json!(pattern));
        // Of equal routes, one for a case goes first: all say it, so that their order counts.
        if pattern != "/*" || kind == "RegularExpression" {
            matches.insert("case".to_owned(), json!("sensitive"));
        }
        if kind == "Exact" && pattern != "/" {
            let what = "an exact path has requests with a slash at its end as well";
            let remedy = "the API tells the two apart, and Weir does not";
            self.differ(Effect::Differs, what, remedy);
        }
        let method = one.text("method");
        if method.as_deref() == Some("GET") {
            let what = "the method GET has requests by HEAD as well";
            let remedy = "HEAD reads the same: write a route with `methods: HEAD` if it must not";
            self.differ(Effect::Differs, what, remedy);
        }
        matches.extend(method.map(|method| ("methods".to_owned(), json!([method]))));
        for (key, ours) in [("headers", "headers"), ("queryParams", "query")] {
            let conditions = conditions(one.objects(key));
            matches.extend((!conditions.is_empty()).then(|| (ours.to_owned(), json!(conditions))));
        }
        self.report(&one);
        let mut keys = action.keys.clone();
        let replaced = match kind.as_str() {
            "PathPrefix" => action.prefix.as_ref(),
            "Exact" => action.full_path.as_ref(),
            _ => None,
        };
        let is_fixed = action.redirect.is_some() && action.full_path.is_some();
        if replaced.is_none()
            && !is_fixed
            && (action.prefix.is_some() || action.full_path.is_some())
        {
            let what = "the path is not rewritten: Weir replaces a prefix, or all of an exact path";
            self.differ(Effect::Differs, what, "let the app take the path as it is");
        }
        let replaced = replaced
            .filter(|_| !is_fixed)
            .and_then(|to| rewrite(&value, to));
        keys.extend(replaced.map(|rewrite| ("rewrite".to_owned(), rewrite)));
        if let Some((before, status)) = &action.redirect {
            let path = action.full_path.as_deref().unwrap_or("{{ uri }}");
            keys.insert(
                "redirect".to_owned(),
                json!({"to": format!("{before}{path}"), "status": status}),
            );
            keys.remove("request_headers");
        }
        let hosts = self.route.hosts.iter().map(Some);
        let any = self.route.hosts.is_empty().then_some(None);
        for host in hosts.chain(any) {
            let host = host.map(|host| ("host".to_owned(), host.clone()));
            let matches: Keys = host.into_iter().chain(matches.clone()).collect();
            let shown = crate::flow::flow(&Value::Object(matches.clone()));
            let place = &self.route.place;
            if !self
                .configuration
                .add_route(place, &self.title, matches, &keys)?
            {
                let what = format!("a route is left out: an earlier one matches {shown}");
                let remedy = "of equal matches, the oldest HTTPRoute has the requests";
                self.differ(Effect::Differs, &what, remedy);
            }
        }
        Ok(())
    }
}

/// What stands in front of the path in a redirect, and its status.
fn redirect(fields: &mut Fields) -> (String, u64) {
    let scheme = fields.text("scheme").unwrap_or("{{ scheme }}".to_owned());
    let host = fields.text("hostname").unwrap_or("{{ host }}".to_owned());
    let port = match (scheme.as_str(), fields.number("port")) {
        (_, None) | ("http", Some(80)) | ("https", Some(443)) => String::new(),
        (_, Some(port)) => format!(":{port}"),
    };
    let status = fields.number("statusCode").unwrap_or(302);
    (format!("{scheme}://{host}{port}"), status)
}

fn edits(mut edits: Fields) -> Value {
    let mut keys = Keys::new();
    let removed = edits.list("remove");
    keys.extend((!removed.is_empty()).then(|| ("remove".to_owned(), json!(removed))));
    for key in ["set", "add"] {
        let headers = conditions(edits.objects(key));
        keys.extend((!headers.is_empty()).then(|| (key.to_owned(), json!(headers))));
    }
    Value::Object(keys)
}

/// Values by name; of several for one name, the first counts.
fn conditions(list: Vec<Fields>) -> Keys {
    let mut conditions = Keys::new();
    for mut condition in list {
        let name = condition.text("name").unwrap_or_default();
        let value = condition.text("value").unwrap_or_default();
        let value = match condition.text("type").as_deref() {
            Some("RegularExpression") => json!({"regex": value}),
            _ => json!(value),
        };
        conditions.entry(name).or_insert(value);
    }
    conditions
}
