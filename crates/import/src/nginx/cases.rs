//! Requests of one location that limits or methods tell apart.

use std::collections::BTreeSet;

use serde_json::json;

use super::limits::Limits;
use super::maps::{Case, Condition, methods_of};
use super::parse::Directive;
use super::scopes::{Scopes, named};
use crate::configuration::Keys;

/// What becomes of requests by a method alone.
pub(super) struct MethodRules<'d>(Vec<MethodRule<'d>>);

struct MethodRule<'d> {
    methods: BTreeSet<String>,
    /// Whether the rule is for the methods that it names, or for all others.
    is_for_named: bool,
    status: u16,
    directive: &'d Directive,
}

impl<'d> MethodRules<'d> {
    /// The rules of a location and of its server: `limit_except GET { deny all; }`, and
    /// `if ($request_method = POST) { return 405; }`.
    pub(super) fn new(scopes: &Scopes<'d>) -> Self {
        let own = scopes.0.last().into_iter();
        let excepts = own.flat_map(|block| named(block, "limit_except"));
        let ifs = scopes.0.iter().skip(1).flat_map(|block| named(block, "if"));
        let rules = excepts.filter_map(of_except).chain(ifs.filter_map(of_if));
        let rules: Vec<_> = rules.collect();
        for rule in &rules {
            rule.directive.is_reached.set(true);
        }
        Self(rules)
    }

    fn methods(&self) -> impl Iterator<Item = &str> {
        self.0
            .iter()
            .flat_map(|rule| rule.methods.iter().map(String::as_str))
    }

    /// The status for requests of a method, and whether limits count them before.
    pub(super) fn response(&self, method: Option<&str>) -> Option<(u16, bool)> {
        let is_meant = |rule: &&MethodRule<'_>| {
            method.is_some_and(|method| rule.methods.contains(method)) == rule.is_for_named
        };
        // `if` comes before limits, and they before `limit_except`.
        let rank = |rule: &&MethodRule<'_>| rule.directive.name == "limit_except";
        let rule = self.0.iter().filter(is_meant).min_by_key(rank)?;
        Some((rule.status, rank(&rule)))
    }
}

fn of_except(directive: &Directive) -> Option<MethodRule<'_>> {
    // GET stands for HEAD, too.
    let has_get = directive.has("GET").then_some("HEAD".to_owned());
    let methods = directive.arguments.iter().cloned().chain(has_get);
    let is_closed = directive.block.iter().any(Directive::denies_all);
    is_closed.then(|| MethodRule {
        methods: methods.collect(),
        is_for_named: false,
        status: 403,
        directive,
    })
}

fn of_if(directive: &Directive) -> Option<MethodRule<'_>> {
    let condition = directive.arguments.join(" ");
    let condition = condition
        .trim()
        .trim_start_matches('(')
        .trim_end_matches(')')
        .trim();
    let rest = condition.strip_prefix("$request_method")?.trim_start();
    let operators = ["!=", "!~*", "!~", "=", "~*", "~"];
    let (operator, value) = operators
        .iter()
        .find_map(|it| Some((*it, rest.strip_prefix(it)?.trim())))?;
    let value = value.trim_matches('"');
    let methods = match operator.contains('~') {
        // The end of the condition took the end of the group with it.
        true => methods_of(&format!("~{}", closed_group(value)))?,
        false => methods_of(value)?,
    };
    let [only] = &directive.block[..] else {
        return None;
    };
    let status = only.argument(0).parse().ok()?;
    let is_denial = only.name == "return" && only.arguments.len() == 1;
    (is_denial && (400..600).contains(&status)).then(|| MethodRule {
        methods: methods.into_iter().collect(),
        is_for_named: !operator.starts_with('!'),
        status,
        directive,
    })
}

fn closed_group(regex: &str) -> String {
    let missing = regex
        .matches('(')
        .count()
        .saturating_sub(regex.matches(')').count());
    format!("{regex}{}", ")".repeat(missing))
}

/// How many headers and parameters of a location limits may look at: each doubles its routes.
pub(super) const MAX_CONDITIONS: usize = 4;

/// The keys of requests, by which of the headers and parameters have a value that limits look at:
/// first those of requests that have none.
type KeysByValues = Vec<Keys>;

/// What tells the requests of a location apart.
pub(super) struct Watched {
    methods: BTreeSet<String>,
    conditions: Vec<Condition>,
    /// Whether limits look at more than [`MAX_CONDITIONS`].
    pub(super) has_more: bool,
}

impl Watched {
    pub(super) fn new(rules: &MethodRules<'_>, limits: &Limits, scopes: &Scopes<'_>) -> Self {
        let zones = limits.zones(scopes);
        let looked_at = zones.iter().flat_map(|zone| zone.methods());
        let methods = rules.methods().chain(looked_at);
        let mut methods: BTreeSet<String> = methods.map(str::to_owned).collect();
        // A route for GET would take requests by HEAD.
        if methods.contains("GET") {
            methods.insert("HEAD".to_owned());
        }
        let mut conditions: Vec<Condition> = Vec::new();
        for condition in zones.iter().filter_map(|zone| zone.condition()) {
            if !conditions.contains(condition) {
                conditions.push(condition.clone());
            }
        }
        let has_more = conditions.len() > MAX_CONDITIONS;
        conditions.truncate(MAX_CONDITIONS);
        Self {
            methods,
            conditions,
            has_more,
        }
    }

    /// All choices of conditions that a request may meet, that of none first.
    fn choices(&self) -> Vec<Vec<&Condition>> {
        let mut choices = vec![Vec::new()];
        for condition in &self.conditions {
            let with = choices.clone().into_iter().map(|mut choice| {
                choice.push(condition);
                choice
            });
            choices.extend(with.collect::<Vec<_>>());
        }
        choices
    }

    /// The cases that become routes beside the one for all other requests: what each matches
    /// beside the path, and its keys.
    pub(super) fn variants(&self, mut keys_of: impl FnMut(&Case<'_>) -> Keys) -> Vec<(Keys, Keys)> {
        let choices = self.choices();
        let mut all = |method: Option<&str>| -> KeysByValues {
            let cases = choices.iter().map(|values| Case { method, values });
            cases.map(|case| keys_of(&case)).collect()
        };
        let others = all(None);
        let mut found: Vec<(Vec<String>, KeysByValues)> = Vec::new();
        // HEAD goes before GET.
        for method in self.methods.iter().rev() {
            let own = all(Some(method));
            let is_get = method == "GET" || method == "HEAD";
            let is_other_get = is_get && all(Some("GET")) != all(Some("HEAD"));
            if own == others && !is_other_get {
                continue;
            }
            match found.iter_mut().find(|(_, keys)| *keys == own) {
                Some((methods, _)) if !is_other_get => methods.push(method.clone()),
                _ => found.push((vec![method.clone()], own)),
            }
        }
        let mut variants = Vec::new();
        for (methods, keys) in [(Vec::new(), others)].into_iter().chain(found) {
            let mut matches = Keys::new();
            if !methods.is_empty() {
                matches.insert("methods".to_owned(), json!(methods));
            }
            // One that is left out would leave its requests to a route for fewer conditions.
            let is_told_apart = keys.windows(2).any(|pair| matches!(pair, [a, b] if a != b));
            for (values, keys) in choices.iter().zip(keys) {
                let is_none = values.is_empty();
                if is_none && !methods.is_empty() || !is_none && is_told_apart {
                    variants.push((with_values(matches.clone(), values), keys));
                }
            }
        }
        variants
    }
}

/// What requests match that have a value for each of these.
fn with_values(mut matches: Keys, values: &[&Condition]) -> Keys {
    for key in ["headers", "query"] {
        let own = values.iter().filter(|it| it.key == key);
        // A value that is empty is none for nginx.
        let own = own.map(|it| (it.name.clone(), json!({"regex": ".+"})));
        let own: Keys = own.collect();
        if !own.is_empty() {
            matches.insert(key.to_owned(), json!(own));
        }
    }
    matches
}
