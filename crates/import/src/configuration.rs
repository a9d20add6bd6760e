//! A configuration of Weir in the making, its YAML, and where it differs from its source.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::path::Path;

use serde_json::{Map, Value, json};

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
    /// Where the configuration does not do the same as the source, in the order of the source.
    pub differences: Vec<Difference>,
}

/// A part of the source that Weir does not do, or does otherwise.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// Where the part stands.
    pub place: Place,
    /// The part, and what Weir does in place of it.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\n  {}", self.place, self.what, self.remedy)
    }
}

/// Keys and values of a route, an upstream or the like, in their order.
pub(crate) type Keys = Map<String, Value>;

/// The parts of a configuration, each as it stands in the file.
#[derive(Debug, Default)]
pub(crate) struct Configuration {
    pub(crate) listen: Vec<String>,
    upstreams: Vec<(String, Value)>,
    routes: Vec<String>,
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
    differences: BTreeSet<Difference>,
}

impl Configuration {
    pub(crate) fn differ(&mut self, place: &Place, what: impl Into<String>, remedy: &str) {
        self.differences.insert(Difference {
            place: place.clone(),
            what: what.into(),
            remedy: remedy.to_owned(),
        });
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
        let limits = keys
            .get("limits")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        let names = limits.map(|limit| limit.get("limit").unwrap_or(limit));
        let names = names.chain(keys.get("upstream")).filter_map(Value::as_str);
        self.used.extend(names.map(str::to_owned));
        let mut text = String::new();
        if self.above != above {
            text = format!("  # {}\n", comment(above));
            above.clone_into(&mut self.above);
        }
        text += &format!("  - match: {}\n", flow(&matches));
        // Without a name, a route is called by these alone.
        let called = ["methods", "host", "path"].map(|key| matches.get(key).map(flow));
        let called = called
            .into_iter()
            .flatten()
            .collect::<String>()
            .replace('"', "");
        if self.names.contains(&called) {
            let name = format!("{called} {}", self.routes.len() + 1);
            text += &format!("    name: {}\n", scalar(&name));
        }
        self.names.insert(called);
        for (key, value) in keys {
            text += &format!("    {key}: {}\n", flow(value));
        }
        self.routes.push(text);
        Ok(true)
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
        let origin = path.file_name().unwrap_or_default().to_string_lossy();
        if self.listen.is_empty() {
            self.listen.push("0.0.0.0:8080".to_owned());
        }
        let listen = self
            .listen
            .iter()
            .map(|address| json!({"address": address}))
            .collect();
        let gateway = format!(
            "# Imported from {}. `weir check` reads this file and those of limits/ and reports every\n\
             # error; `weir` serves them.\n\nlisten: {}\n\n\
             # Health, metrics, and what `weir top` and other commands ask.\n\
             admin: {{address: \"127.0.0.1:9901\"}}\n\nupstreams:{}\n\n\
             defaults: {{limits: []}}\n\n\
             # The most specific route wins, and the first of equal ones.\nroutes:\n{}",
            comment(&origin),
            flow(&Value::Array(listen)),
            lines(&self.upstreams, "\n  ").unwrap_or(" {}".to_owned()),
            self.routes.concat(),
        );
        let no_limits = "\n# `weir suggest` finds limits by an access log.\n{}";
        Imported {
            gateway,
            defaults: lines(&self.limits, "\n").unwrap_or(no_limits.to_owned()) + "\n",
            overrides: lines(&self.overrides, "\n- ").map(|text| text + "\n"),
            differences: self.differences.into_iter().collect(),
        }
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
