//! Overrides by the admin API: read and checked as those of `overrides.yaml` are, and added to
//! settings that are in force.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use weir_limit::Algorithm;
use weir_limit::time::Timestamp;
use weir_rules::{AccountWildcards, Cost, Limit, Override, OverrideOrigin};
use weir_yaml::{
    Diagnostic, Diagnostics, Document, Inputs, Lowered, Lowering, Severity, Sources, Spanned,
    Suggestions,
};

use super::log_entries::too_many_log_entries;
use super::overrides::parameters;
use super::schema::{OverrideEntry, Overrides};
use super::table::{OverrideDef, warn_of_parameters};
use crate::settings::{ApiOverride, CheckedOverride, FitOverride, Parameters, Settings};

/// The name of the document that an override is read from. No message shows it.
const FILE: &str = "override";

/// What is doubtful about an override, or why it cannot be in force; each of it one sentence.
pub type OverrideCheck = Result<Vec<String>, Vec<String>>;

impl ApiOverride {
    /// What `overrides.yaml` would say, as JSON, which YAML contains.
    fn document(&self) -> String {
        let mut entry = self.parameters.clone();
        let mut id = json!({ "id": self.id });
        if let (Some(comment), Some(id)) = (entry.remove("comment"), id.as_object_mut()) {
            id.insert("comment".to_owned(), comment);
        }
        entry.insert("ids".to_owned(), json!([id]));
        json!([{ &self.limit: entry }]).to_string()
    }

    fn check(&self, settings: &Settings, now: Timestamp) -> CheckedOverride {
        let Some(rules) = settings.override_rules.get(&self.limit) else {
            let name = &self.limit;
            return Err(vec![format!("there is no limit \"{name}\" any more")]);
        };
        let mut diagnostics = Diagnostics::default();
        let mut document = Document::parse(0, FILE, &self.document(), &mut diagnostics);
        let read: Lowered<Option<Overrides>> = document.read(&mut diagnostics);
        let mut sources = Sources::default();
        sources.add(document);
        let mut cx = Lowering {
            sources: &sources,
            folder: Path::new(""),
            inputs: &mut Inputs::default(),
            diagnostics,
            suggestions: Suggestions::default(),
            retained: None,
            now: Duration::from_nanos(now.as_nanos()),
        };
        let overrides = read.ok().flatten();
        let items = overrides.iter().flat_map(|overrides| &overrides.value);
        let mut entries = items.flat_map(|item| &item.value.0);
        let lowered = entries.next().map(|(name, entry)| {
            let rules = rules.or_by(entry);
            let cost = settings.greatest_cost(&self.limit);
            let quota = rules.quota(&mut cx, name.span, entry, cost);
            let (burst, count, period) = (entry.burst, entry.count, entry.period);
            warn_of_parameters(
                &mut cx,
                burst,
                count,
                period,
                rules.algorithm == Algorithm::Gcra,
            );
            self.fit(entry, quota)
        });
        let told = |severity| {
            let of = cx.diagnostics.iter();
            let of = of.filter(move |diagnostic| diagnostic.severity == severity);
            of.map(|diagnostic| self.told(diagnostic)).collect()
        };
        let lowered = lowered.flatten();
        if let Some((_, added)) = &lowered {
            let overriding = Some((&*self.limit, &added.quota));
            let mut routes = settings.all_routes();
            if let Some(message) = routes
                .find_map(|route| too_many_log_entries(route.policy.limits.iter(), overriding))
            {
                return Err(vec![format!("count: {message}")]);
            }
        }
        match lowered {
            Some((parameters, added)) if !cx.diagnostics.has_errors() => Ok(FitOverride {
                parameters,
                added,
                warnings: told(Severity::Warning),
            }),
            _ => Err(told(Severity::Error)),
        }
    }

    fn fit(
        &self,
        entry: &Spanned<OverrideEntry>,
        quota: Lowered<weir_limit::Quota>,
    ) -> Option<(Parameters, Arc<Override>)> {
        let entry = OverrideDef {
            entry: entry.clone(),
            quota,
        };
        let (_, added) = parameters(&entry).next()?;
        let written = Parameters {
            limit: self.limit.as_str().into(),
            quota: added.quota,
            count: entry.entry.count.map(|count| count.value),
            period: entry.entry.period.map(|period| period.value),
        };
        let added = Override {
            origin: OverrideOrigin::AdminApi,
            ..added
        };
        Some((written, Arc::new(added)))
    }

    /// One sentence, with the key that it is about.
    fn told(&self, diagnostic: &Diagnostic) -> String {
        let path = &diagnostic.location.path;
        let start = format!("[0].{}", self.limit);
        let key = path.strip_prefix(&*start).unwrap_or_default();
        let key = key.trim_start_matches('.');
        let key = match key.strip_prefix("ids[0]") {
            Some("") => "id",
            Some(below) => below.trim_start_matches('.'),
            None => key,
        };
        let mut text = match key {
            "" => diagnostic.message.clone(),
            key => format!("{key}: {}", diagnostic.message),
        };
        if let Some(help) = &diagnostic.help {
            text.push_str("; ");
            text.push_str(&help.replace('\n', "; "));
        }
        text
    }
}

impl Settings {
    /// The same settings with these overrides as well, and what there is to say of each. One that
    /// does not fit the limits is left out.
    pub fn with_overrides(
        &self,
        overrides: &[Arc<ApiOverride>],
        now: Timestamp,
    ) -> (Self, Vec<OverrideCheck>) {
        let mut settings = self.clone();
        let mut added: HashMap<&str, Vec<(usize, Arc<Override>)>> = HashMap::new();
        let mut checks = Vec::with_capacity(overrides.len());
        let mut known = self.known_overrides.lock();
        let mut earlier = std::mem::take(&mut *known);
        for (place, written) in overrides.iter().enumerate() {
            let address = Arc::as_ptr(written).addr();
            let check = earlier.remove(&address).map(|(_, check)| check);
            let check = check.unwrap_or_else(|| written.check(self, now));
            known.insert(address, (Arc::clone(written), check.clone()));
            checks.push(check.map(|fit| {
                settings.parameters.push(fit.parameters);
                let of_limit = added.entry(&written.limit).or_default();
                of_limit.push((place, fit.added));
                fit.warnings
            }));
        }
        drop(known);
        let mut limits: HashMap<*const Limit, Arc<Limit>> = HashMap::new();
        let envoy = settings.envoy.iter_mut().map(|envoy| &mut envoy.route);
        let routes = settings.routes.iter_mut().chain(envoy);
        for usage in routes.flat_map(|route| &mut route.policy.limits) {
            let Some(added) = added.get(usage.limit.name()) else {
                continue;
            };
            let limit = limits
                .entry(Arc::as_ptr(&usage.limit))
                .or_insert_with(|| Arc::new(with_overrides(&usage.limit, added, &mut checks)));
            usage.limit = Arc::clone(limit);
        }
        for route in &mut settings.routes {
            let uses = route.policy.limits.iter_mut();
            for to in uses.filter_map(|usage| usage.yields_to.as_mut()) {
                if let Some(limit) = limits.get(&Arc::as_ptr(&to.limit)) {
                    to.limit = Arc::clone(limit);
                }
            }
        }
        let limits = settings.limit_uses().map(|usage| &*usage.limit);
        settings.account.wildcards = AccountWildcards::from_limits(limits);
        (settings, checks)
    }

    /// An id of an override as the log shows it: what may be a secret is hashed.
    pub fn logged_id(&self, limit: &str, id: &str) -> String {
        if self.account.keeps_names {
            return id.to_owned();
        }
        match self.limit(limit) {
            // What stands for many subjects is not a secret of one.
            Some(limit) => match limit.bucket_of(id) {
                Ok(key) => limit.id_of(key.as_str()),
                Err(_) => id.to_owned(),
            },
            None => format!("hash:{}", self.account.key.hash(id.as_bytes())),
        }
    }

    /// The most that a request costs for a limit, as far as that is written.
    fn greatest_cost(&self, limit: &str) -> Option<u64> {
        let uses = self
            .limit_uses()
            .filter(|usage| usage.limit.name() == limit);
        let costs = uses.map(|usage| match &usage.cost {
            Cost::Fixed(cost) => cost.get(),
            Cost::Measured(measured) => measured.default,
        });
        costs.max()
    }
}

fn with_overrides(
    limit: &Limit,
    added: &[(usize, Arc<Override>)],
    checks: &mut [OverrideCheck],
) -> Limit {
    let mut limit = limit.clone();
    for (place, added) in added {
        let doubt = limit.looks_hashed(&added.id);
        let outcome = limit.add_override(Arc::clone(added));
        let Some(check) = checks.get_mut(*place) else {
            continue;
        };
        match (outcome, check) {
            (Err(error), check) => *check = Err(vec![format!("id: {error}")]),
            (Ok(()), Ok(warnings)) => {
                let doubt = doubt.map(|doubt| format!("id: {doubt}"));
                if doubt
                    .as_ref()
                    .is_some_and(|doubt| !warnings.contains(doubt))
                {
                    warnings.extend(doubt);
                }
            }
            (Ok(()), Err(_)) => {}
        }
    }
    limit
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::testing::Folder;

    const GATEWAY: &str = "
upstreams: {app: {servers: [\"http://127.0.0.1:3000\"]}}
account: [header: x-api-key]
routes:
  - {match: {path: /a}, upstream: app, limits: [Calls, Leased]}
  - {match: {path: /b}, upstream: app, limits: [{limit: Calls, cost: 4, missing: deny}, {limit: Free, per: account}]}
";

    fn settings() -> Settings {
        let folder = Folder::with(&[
            ("gateway.yaml", GATEWAY),
            (
                "limits/defaults.yaml",
                "Calls: {per: account, burst: 9, count: 1, period: 1h}\n\
                 Leased: {per: account, burst: 9000, count: 1, period: 1s, prefetch: 10%}\n",
            ),
        ]);
        folder.settings()
    }

    fn by_api(limit: &str, id: &str, parameters: &Value) -> Arc<ApiOverride> {
        Arc::new(ApiOverride {
            limit: limit.to_owned(),
            id: id.to_owned(),
            parameters: parameters.as_object().unwrap().clone(),
        })
    }

    fn checked(limit: &str, id: &str, parameters: &Value) -> OverrideCheck {
        let overrides = [by_api(limit, id, parameters)];
        let (_, mut checks) = settings().with_overrides(&overrides, Timestamp::default());
        checks.remove(0)
    }

    #[test]
    fn an_override_is_in_force_on_every_route_of_its_limit_and_nowhere_else() {
        let rate = json!({ "burst": 5, "count": 1, "period": "1m", "comment": "c" });
        let before = settings();
        let overrides = [by_api("Calls", "acme-*", &rate)];
        let (after, checks) = before.with_overrides(&overrides, Timestamp::default());
        assert_eq!(checks, [Ok(Vec::new())]);
        let uses = after.routes.iter().flat_map(|route| &route.policy.limits);
        let of_acme = uses.map(|usage| {
            let found = usage.limit.override_of("acme-7", Timestamp::default());
            let burst = found.unwrap().map(|found| found.quota.burst().get());
            (usage.limit.name(), burst)
        });
        let expected = [
            ("Calls", Some(5)),
            ("Leased", None),
            ("Calls", Some(5)),
            ("Free", None),
        ];
        assert_eq!(of_acme.collect::<Vec<_>>(), expected);
        let limits = before.limits().into_iter();
        assert_eq!(limits.flat_map(|limit| limit.overrides()).count(), 0);
        let found = after
            .limit("Calls")
            .unwrap()
            .override_of("acme-7", Timestamp::default());
        let quota = found.unwrap().unwrap().quota;
        assert_eq!(after.parameters_of("Calls", &quota).unwrap().count, Some(1));
    }

    #[test]
    fn an_override_goes_by_what_its_limit_says() {
        let rate = json!({ "burst": 5_000, "count": 1, "period": "1s" });
        let overrides = [
            by_api("Leased", "acme", &rate),
            by_api("Free", "acme", &json!({ "in_flight": 3 })),
        ];
        let (settings, checks) = settings().with_overrides(&overrides, Timestamp::default());
        assert_eq!(checks, [Ok(Vec::new()), Ok(Vec::new())]);
        let quota = |limit: &str| {
            let limit = settings.limit(limit).unwrap();
            let found = limit.override_of("acme", Timestamp::default());
            found.unwrap().unwrap().quota
        };
        assert_eq!(quota("Leased").prefetch().unwrap().units(), 500);
        assert!(quota("Free").is_in_flight());
    }

    #[test]
    fn an_override_by_which_one_request_may_fill_a_long_log_is_refused() {
        let gateway = GATEWAY.replace(
            "limits: [Calls, Leased]",
            "limits: [{limit: Codes, cost: {request_header: x-codes}}]",
        );
        let gateway = gateway.split("  - {match: {path: /b}").next().unwrap();
        let folder = Folder::with(&[
            ("gateway.yaml", gateway),
            (
                "limits/defaults.yaml",
                "Codes: {per: account, algorithm: sliding_log, count: 9, period: 1h}",
            ),
        ]);
        let checked = |count: u64| {
            let rate = json!({ "count": count, "period": "1h" });
            let overrides = [by_api("Codes", "acme", &rate)];
            let settings = folder.settings();
            let (_, mut checks) = settings.with_overrides(&overrides, Timestamp::default());
            checks.remove(0)
        };
        assert_eq!(checked(1000), Ok(Vec::new()));
        let refused = "count: one request may add 1001 entries to sliding logs, more than 1000";
        assert_eq!(checked(1001), Err(vec![refused.to_owned()]));
    }

    #[test]
    fn one_that_does_not_fit_is_left_out_and_the_others_are_not() {
        let small = json!({ "burst": 3, "count": 1, "period": "1m" });
        let fit = json!({ "burst": 4, "count": 1, "period": "1m" });
        let overrides = [
            by_api("Calls", "small", &small),
            by_api("Gone", "acme", &fit),
            by_api("Calls", "acme", &fit),
            by_api("Calls", "acme", &fit),
        ];
        let (settings, checks) = settings().with_overrides(&overrides, Timestamp::default());
        insta::assert_debug_snapshot!(checks, @r#"
        [
            Err(
                [
                    "burst: a cost of 4 never passes a burst of 3",
                ],
            ),
            Err(
                [
                    "there is no limit \"Gone\" any more",
                ],
            ),
            Ok(
                [],
            ),
            Err(
                [
                    "id: \"acme\" is overridden already, by \"acme\"; remove one of them",
                ],
            ),
        ]
        "#);
        let of_calls = settings.limit("Calls").unwrap();
        assert_eq!(of_calls.overrides().count(), 1);
    }

    #[test]
    fn what_is_doubtful_is_told_with_its_key() {
        let vast = json!({ "burst": 2_000_000, "count": 1_000_000, "period": "1h" });
        let hash = "0123456789abcdef0123456789abcdef";
        let warnings = checked("Calls", hash, &vast).unwrap();
        insta::assert_snapshot!(warnings.join("\n"), @r#"
        burst: a burst of 2000000 limits nothing; that much passes at once; choose at most 1000000
        id: "0123456789abcdef0123456789abcdef" is taken for a name, but looks like a hash; for the hash, write "hash:0123456789abcdef0123456789abcdef"
        "#);
    }

    /// What stands in a text could end it, or begin something else.
    #[test]
    fn no_text_of_an_operator_changes_what_the_override_says() {
        for text in [
            "\"", "\\", "'", "}", "]", "#", ": ", "*a", "&a", "!a", "\n- b", "\u{feff}", "\u{0}",
        ] {
            let rate = json!({ "burst": 5, "count": 1, "period": "1m", "comment": text });
            let overrides = [by_api("Calls", &format!("i{text}d"), &rate)];
            let settings = settings();
            let (settings, checks) = settings.with_overrides(&overrides, Timestamp::default());
            // An id with a `*` stands for many, and is one all the same.
            assert!(checks[0].is_ok(), "{text:?}: {checks:?}");
            let calls = settings.limit("Calls").unwrap();
            let added: Vec<_> = calls.overrides().collect();
            assert_eq!(added.len(), 1);
            assert_eq!(added[0].id, overrides[0].id);
            // What a note has around it is not kept, as in a file.
            let comment = added[0].comment.as_deref().unwrap_or_default();
            assert_eq!(comment.trim(), text.trim());
        }
    }

    /// Each change read all overrides again, twice.
    #[test]
    fn an_override_that_stays_is_not_read_again_and_one_that_is_gone_is_forgotten() {
        let settings = settings();
        let fit = json!({ "burst": 4, "count": 1, "period": "1m" });
        let both = ["one", "other"].map(|id| by_api("Calls", id, &fit));
        settings.with_overrides(&both, Timestamp::default());
        let marked = Err(vec!["known".to_owned()]);
        let first = Arc::as_ptr(&both[0]).addr();
        let known = (Arc::clone(&both[0]), marked.clone());
        settings.known_overrides.lock().insert(first, known);
        let (_, checks) = settings.with_overrides(&both[..1], Timestamp::default());
        assert_eq!(checks, [marked.map(|_: FitOverride| Vec::new())]);
        let known = settings.known_overrides.lock();
        assert_eq!(known.keys().collect::<Vec<_>>(), [&first]);
    }
}
