//! `weir suggest`: limits for routes that have none, by what their clients have done.
//!
//! Each such route gets a limit per address that denies nothing, and what its subjects need is
//! measured by a replay. Without a configuration, routes are made of the paths that the log has
//! most of.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use serde::Serialize;
use weir_config::{Parameters, Settings};
use weir_limit::Quota;
use weir_rules::{HashKey, KeySource, Limit, LimitUse, Missing};
use weir_yaml::HumanDuration;

use super::format::{LogLine, Names, ParseOptions, Parsed, split_query};
use super::input::Input;
use super::need::{MIN_SUBJECTS, NeedReport, Promise, Suggestion};
use super::report::{LimitReport, client_caveats};
use super::ruleset::{LogFields, Ruleset, needs};
use super::{Job, Options, ReplayError, progress};

/// The rate that suggestions begin at a twentieth of, which is one a minute.
const RATE: (u64, Duration) = (20, Duration::from_secs(60));

/// A burst that denies nothing.
const BOUNDLESS: u64 = 1 << 40;

/// Chunks that are looked at to find out which paths there are.
const SAMPLED_CHUNKS: usize = 64;

/// The most routes that are made of paths.
const MAX_ROUTES: usize = 30;

/// Paths with fewer than this part of all requests are not worth a route.
const MIN_SHARE: u64 = 500;

/// The route of all paths that have none of their own.
const CATCH_ALL: &str = "everything";

/// Files that apps serve as they are. Each would get a route of its own.
const STATIC_FILES: [&str; 24] = [
    "avif", "css", "eot", "gif", "gz", "ico", "jpeg", "jpg", "js", "map", "mjs", "mp3", "mp4",
    "otf", "pdf", "png", "svg", "ttf", "txt", "wasm", "webm", "webp", "woff", "woff2",
];

/// Segments of a path that are told apart.
const SEGMENTS: usize = 2;

/// A text this long names one thing, and not a kind of things.
const MAX_WORD_LENGTH: usize = 24;

const WRITES: [Method; 4] = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

/// Limits for routes that have none.
#[derive(Debug, Serialize)]
pub struct Suggestions {
    /// Whether routes are those of a configuration.
    pub config: Option<String>,
    /// How many requests the log has.
    pub requests: u64,
    /// What was not looked at, and what to keep in mind of who the clients are.
    pub notes: Vec<String>,
    /// The routes without limits that requests took, those with the most requests first.
    pub routes: Vec<SuggestedRoute>,
}

/// A limit for a route.
#[derive(Debug, Serialize)]
pub struct SuggestedRoute {
    pub route: String,
    pub matches: String,
    /// Its line in `gateway.yaml`, if it is made of paths.
    pub yaml: Option<String>,
    pub requests: u64,
    pub limit: String,
    pub need: NeedReport,
}

/// Suggests limits for the routes of the configuration that have none, or, where there is no such
/// file, for routes made of the log's paths.
///
/// # Errors
/// When the configuration is in error, or a file cannot be read.
pub fn suggest(options: &Options) -> Result<Suggestions, ReplayError> {
    options.check()?;
    let progress = progress();
    let mut input = Input::open(&options.logs, options.format.clone(), &progress)?;
    let key = HashKey::random();
    let has_config = options.config.exists() || options.config.as_os_str() == "-";
    let mut made = BTreeMap::new();
    let mut settings = match has_config {
        true => weir_config::load(&options.config, &key).map_err(ReplayError::Configuration)?,
        false => {
            made = sampled(&mut input)?;
            let text = gateway_yaml(&made);
            let files: HashMap<PathBuf, Vec<u8>> = [
                (PathBuf::from("gateway.yaml"), text.into_bytes()),
                (PathBuf::from("limits/defaults.yaml"), b"{}\n".to_vec()),
            ]
            .into();
            let read = weir_config::read_in_memory(files, Path::new("gateway.yaml"), &key);
            read.outcome.map_err(ReplayError::Configuration)?
        }
    };
    let added = add_limits(&mut settings, &key);
    let matches: HashMap<String, String> = settings
        .routes
        .iter()
        .map(|route| (route.policy.name.to_string(), route.description.clone()))
        .collect();
    let mut names = Names::default();
    let log = LogFields {
        format: input.format(),
        seen: input.look(&needs(&settings))?,
        is_host_given: options.host.is_some(),
    };
    let rules = Ruleset::new(settings, &log, &mut names, |_, _| None);
    let job = Job {
        options,
        names: &names,
        rules: &rules,
        baseline: None,
        variants: &[],
    };
    let report = job.run(input, &progress)?;
    let gaps = report.not_replayed.iter();
    let gaps = gaps.map(|gap| format!("{}: {}", gap.what, gap.why));
    let notes = gaps.chain(client_caveats(&report.log.counts)).collect();
    let of_limit = |limit: LimitReport| {
        let route = limit.routes.first()?.clone();
        let is_added = added.contains(&limit.name);
        let need = limit.need.filter(|_| is_added)?;
        let limits = match need.suggested {
            Some(_) => &*limit.name,
            None => "",
        };
        Some(SuggestedRoute {
            matches: matches.get(&route).cloned().unwrap_or_default(),
            yaml: made.get(&route).map(|made| made.yaml(&route, limits)),
            requests: limit.requests,
            need: NeedReport { own: None, ..need },
            limit: limit.name,
            route,
        })
    };
    let mut routes: Vec<SuggestedRoute> = report.limits.into_iter().filter_map(of_limit).collect();
    if !has_config && !routes.iter().any(|route| route.route == CATCH_ALL) {
        routes.push(catch_all(options.target));
    }
    routes.sort_by(|one, other| (other.requests, &one.route).cmp(&(one.requests, &other.route)));
    Ok(Suggestions {
        config: has_config.then(|| options.config.display().to_string()),
        requests: report.log.counts.requests,
        notes,
        routes,
    })
}

/// The route of all other paths, where the log has no request of it: scanners ask for such paths.
fn catch_all(target_percent: f64) -> SuggestedRoute {
    let limit = limit_name(CATCH_ALL);
    let (burst, period) = (RATE.0, HumanDuration(RATE.1));
    let nobody = Promise {
        value: burst,
        denied_subjects: 0,
        denied_left_out: 0,
        denied_at_most: 0,
        denied_at_most_percent: 0.0,
    };
    let rest = MadeRoute {
        path: "/*".to_owned(),
        writes: false,
    };
    SuggestedRoute {
        route: CATCH_ALL.to_owned(),
        matches: "path /*".to_owned(),
        yaml: Some(rest.yaml(CATCH_ALL, &limit)),
        requests: 0,
        need: NeedReport {
            of: "burst",
            own: None,
            subjects: 0,
            p50: 0,
            p99: 0,
            max: 0,
            curve: Vec::new(),
            smallest: nobody,
            target_percent,
            suggested: Some(Suggestion {
                yaml: format!(
                    "{limit}: {{per: address, burst: {burst}, count: {burst}, period: {period}}}"
                ),
                promise: nobody,
            }),
            left_out_subjects: 0,
            left_out: Vec::new(),
        },
        limit,
    }
}

/// Gives each route without limits one that denies nothing, and returns the names of these.
fn add_limits(settings: &mut Settings, key: &HashKey) -> Vec<String> {
    let mut added = Vec::new();
    let (count, period) = RATE;
    for route in &mut settings.routes {
        let quota =
            Quota::new(BOUNDLESS, count, period).or_else(|_| Quota::new(count, count, period));
        let mut name = limit_name(&route.policy.name);
        if added.contains(&name) {
            let _ = write!(name, "{}", added.len());
        }
        let per = vec![KeySource::Address {
            v4_prefix: 32,
            v6_prefix: 64,
        }];
        let limit = quota
            .ok()
            .and_then(|quota| Limit::new(&name, per, quota, Missing::Skip, key.clone()).ok());
        if let (true, Some(limit)) = (route.policy.limits.is_empty(), limit) {
            settings
                .parameters
                .extend(limit.quota().map(|quota| Parameters {
                    limit: name.as_str().into(),
                    quota,
                    count: Some(count),
                    period: Some(HumanDuration(period)),
                }));
            route.policy.limits.push(LimitUse::new(Arc::new(limit)));
            added.push(name);
        }
    }
    added
}

/// `RequestsOfOrdersPerAddress`, for a route called `orders`.
fn limit_name(route: &str) -> String {
    let words = route.split(|character: char| !character.is_ascii_alphanumeric());
    let mut name = String::from("RequestsOf");
    for word in words.filter(|word| !word.is_empty()) {
        let (first, rest) = word.split_at(1);
        name.push_str(&first.to_ascii_uppercase());
        name.push_str(rest);
    }
    name.truncate(40);
    name + "PerAddress"
}

#[derive(Debug, PartialEq, Eq)]
struct MadeRoute {
    path: String,
    writes: bool,
}

impl MadeRoute {
    fn yaml(&self, name: &str, limits: &str) -> String {
        let methods = match self.writes {
            true => "POST, PUT, PATCH, DELETE",
            false => "GET",
        };
        let methods = match self.path == "/*" {
            true => String::new(),
            false => format!(", methods: [{methods}]"),
        };
        let path = &self.path;
        format!(
            "{{name: {name}, match: {{path: \"{path}\"{methods}}}, upstream: app, limits: [{limits}]}}"
        )
    }
}

/// The routes that the most requests of the first part of the log would take, by their names.
fn sampled(input: &mut Input) -> Result<BTreeMap<String, MadeRoute>, ReplayError> {
    let format = input.format();
    let mut parser = format.parser(ParseOptions::default());
    let mut counts: HashMap<(String, bool), u64> = HashMap::new();
    let mut all = 0;
    for chunk in input.sample(SAMPLED_CHUNKS)? {
        parser.header(chunk.header.as_deref().unwrap_or_default());
        for line in chunk.bytes.split(|byte| *byte == b'\n') {
            if let Parsed::Request(line) = parser.parse(line) {
                all += 1;
                *counts.entry(kind_of(&line)).or_default() += 1;
            }
        }
    }
    let mut kinds: Vec<_> = counts
        .into_iter()
        .filter(|((path, _), count)| path != "/*" && count * MIN_SHARE >= all)
        .collect();
    kinds.sort_by(|one, other| (other.1, &one.0).cmp(&(one.1, &other.0)));
    let made = kinds
        .into_iter()
        .take(MAX_ROUTES)
        .map(|((path, writes), _)| {
            let name = route_name(&path, writes);
            (name, MadeRoute { path, writes })
        });
    let mut made: BTreeMap<String, MadeRoute> = made.collect();
    let rest = MadeRoute {
        path: "/*".to_owned(),
        writes: false,
    };
    made.insert(CATCH_ALL.to_owned(), rest);
    Ok(made)
}

/// The pattern of a request's path, and whether it writes.
fn kind_of(line: &LogLine) -> (String, bool) {
    let mut path = String::new();
    let target = str::from_utf8(&line.target).unwrap_or_default();
    let target = split_query(target).0;
    let writes = WRITES.contains(&line.method);
    let mut segments = target.split('/').filter(|segment| !segment.is_empty());
    if !writes && is_static(target) {
        return match (segments.next(), segments.next()) {
            (Some(folder), Some(_)) if is_word(folder) => (format!("/{folder}/*"), false),
            _ => ("/*".to_owned(), false),
        };
    }
    for (index, segment) in segments.by_ref().take(SEGMENTS).enumerate() {
        path.push('/');
        match is_word(segment) {
            true => path.push_str(segment),
            false => {
                let _ = write!(path, "{{id{}}}", index + 1);
            }
        }
    }
    if path.is_empty() {
        path.push('/');
    } else if segments.next().is_some() {
        path.push_str("/*");
    }
    (path, writes)
}

/// Whether the path is that of a file that is served as it is.
fn is_static(path: &str) -> bool {
    let extension = path.rsplit_once('.').map(|(_, extension)| extension);
    extension.is_some_and(|extension| {
        let known = |known: &str| known.eq_ignore_ascii_case(extension);
        STATIC_FILES.iter().any(|file| known(file))
    })
}

/// Whether a segment names a kind of things, and not one of them.
fn is_word(segment: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let digits = segment.bytes().filter(u8::is_ascii_digit).count();
    // A version, such as v1, is one of a few.
    let is_version =
        segment.starts_with(['v', 'V']) && segment.len() <= 3 && digits + 1 == segment.len();
    segment.len() <= MAX_WORD_LENGTH
        && segment.bytes().all(is_plain)
        && (is_version || digits * 3 <= segment.len())
        && segment.bytes().any(|byte| byte.is_ascii_alphabetic())
}

fn route_name(path: &str, writes: bool) -> String {
    let words = path.split(|character: char| !character.is_ascii_alphanumeric());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let name = if words.is_empty() {
        "root".to_owned()
    } else {
        words.join("-")
    };
    match (writes, path.ends_with("/*")) {
        (true, true) => format!("write-{name}-below"),
        (true, false) => format!("write-{name}"),
        (false, true) => format!("{name}-below"),
        (false, false) => name,
    }
}

/// A configuration of these routes.
fn gateway_yaml(made: &BTreeMap<String, MadeRoute>) -> String {
    let mut text = "upstreams: {app: {servers: [\"http://127.0.0.1:1\"]}}\nroutes:\n".to_owned();
    for (name, route) in made {
        let _ = writeln!(text, "  - {}", route.yaml(name, ""));
    }
    text
}

/// Writes the suggestions as YAML, with what they are founded on.
///
/// # Errors
/// When `out` fails, as a `String` never does.
pub fn write_suggestions(out: &mut String, suggestions: &Suggestions) -> fmt::Result {
    suggestions.write_basis(out)?;
    writeln!(out, "\n# limits/defaults.yaml")?;
    suggestions.write_limits(out)?;
    writeln!(out, "\n# gateway.yaml, routes")?;
    suggestions.write_routes(out)
}

/// Names the clients whose requests are no measure.
fn write_left_out(out: &mut String, need: &NeedReport) -> fmt::Result {
    if need.left_out_subjects > 0 {
        writeln!(
            out,
            "# {} of them are left out, as most of their requests were refused (401, 403, 429) or denied:",
            need.left_out_subjects
        )?;
    }
    for client in &need.left_out {
        let (refused, requests) = (client.refused, client.requests);
        writeln!(
            out,
            "#   {}: {refused} of {requests} requests",
            client.subject
        )?;
    }
    Ok(())
}

impl Suggestions {
    /// Writes comments that say what the suggestions are founded on.
    ///
    /// # Errors
    /// When `out` fails, as a `String` never does.
    pub fn write_basis(&self, out: &mut String) -> fmt::Result {
        writeln!(
            out,
            "# by {} requests; leave room above past traffic, and try it with",
            self.requests
        )?;
        writeln!(out, "# `enforce: false` first")?;
        writeln!(
            out,
            "# \"at most\" is an upper bound: as if denied requests took units as well"
        )?;
        for note in &self.notes {
            writeln!(out, "# note: {note}")?;
        }
        Ok(())
    }

    /// Writes the limits, as limits/defaults.yaml has them.
    ///
    /// # Errors
    /// When `out` fails, as a `String` never does.
    pub fn write_limits(&self, out: &mut String) -> fmt::Result {
        for route in &self.routes {
            let need = &route.need;
            let clients = need.subjects + need.left_out_subjects;
            writeln!(
                out,
                "# {}: {} requests of {clients} clients",
                route.matches, route.requests
            )?;
            write_left_out(out, need)?;
            let Some(suggested) = &need.suggested else {
                writeln!(
                    out,
                    "# no limit: {} clients are too few to say what is normal ({MIN_SUBJECTS} at least)",
                    need.subjects
                )?;
                continue;
            };
            let promise = &suggested.promise;
            match need.subjects {
                0 => writeln!(out, "# a guess, for paths that the log does not have")?,
                _ => writeln!(
                    out,
                    "# denies {} of the {}, at most {} requests ({}%)",
                    promise.denied_subjects,
                    match need.left_out_subjects {
                        0 => "clients",
                        _ => "other clients",
                    },
                    promise.denied_at_most,
                    promise.denied_at_most_percent
                )?,
            }
            writeln!(out, "{}", suggested.yaml)?;
        }
        Ok(())
    }

    /// Writes the routes as items of a list, or, of a configuration's own routes, what each lacks.
    ///
    /// # Errors
    /// When `out` fails, as a `String` never does.
    pub fn write_routes(&self, out: &mut String) -> fmt::Result {
        for route in &self.routes {
            match &route.yaml {
                Some(yaml) => writeln!(out, "- {yaml}")?,
                None if route.need.suggested.is_none() => {}
                None => writeln!(out, "# route {}: limits: [{}]", route.route, route.limit)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(method: Method, target: &'static str) -> (String, bool) {
        kind_of(&LogLine {
            at: weir_limit::time::Timestamp::default(),
            answered: weir_limit::time::Timestamp::default(),
            ended: weir_limit::time::Timestamp::default(),
            client: std::net::Ipv4Addr::LOCALHOST.into(),
            method,
            target: target.as_bytes().into(),
            status: None,
            details: None,
            recorded: None,
        })
    }

    #[test]
    fn paths_that_differ_by_what_they_name_are_of_one_kind() {
        for (target, pattern) in [
            ("/", "/"),
            ("/login?next=/", "/login"),
            ("/users/4711", "/users/{id2}"),
            (
                "/users/3f2a9c70-1b2e-4a4e-9d10-0a1b2c3d4e5f",
                "/users/{id2}",
            ),
            ("/api/v1/orders/7", "/api/v1/*"),
            ("/a%20b/c", "/{id1}/c"),
            // Not one for each file.
            ("/static/css/app.4f2a.css?v=3", "/static/*"),
            ("/static/logo.PNG", "/static/*"),
            ("/favicon.ico", "/*"),
            ("/4711.css/favicon.ico", "/*"),
            ("/js", "/js"),
        ] {
            assert_eq!(kind(Method::GET, target), (pattern.to_owned(), false));
        }
        assert_eq!(kind(Method::POST, "/login"), ("/login".to_owned(), true));
        assert_eq!(kind(Method::POST, "/a.js"), ("/a.js".to_owned(), true));
    }
}
