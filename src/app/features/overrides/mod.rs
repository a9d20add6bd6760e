//! Overrides by the admin API: a list that gateways share, whose entries are added to the
//! configuration in force.
//!
//! What changes is published as a reload is, so that workers have nothing to do with it. See
//! `docs/decisions/0059-overrides.md`.

mod admin;
mod responses;
mod room;
#[cfg(test)]
mod schemas;

use std::cmp::Ordering;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use weir_config::{ApiOverride, OverrideCheck, ProcessSettings, Settings, Until};
use weir_limit::time::{Clock, SystemClock, Timestamp};
use weir_store::SharedLists;

pub(super) use self::room::OverridesRoom;
#[cfg(test)]
pub(in crate::app) use self::{
    responses::{ListedOverride, OverridePage},
    schemas::OverrideBody,
};
use crate::app::shared_list::{
    FileEntry, FileError, ListChanges, ListEntry, ListFile, ListKeeper, MAX_ENTRIES, SharedList,
    read_file,
};

// The targets of log lines, by the modules that these were in first: filters of users name them.
/// Of those about the lists.
const TARGET: &str = "weir::app::overrides";
/// Of those about overrides that have ended.
const END_TARGET: &str = "weir::app::reloads";
/// Of those about overrides that are in force.
const IN_FORCE_TARGET: &str = "weir::app::startup_log";

/// An override as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::app) struct KeptOverride {
    written: Arc<ApiOverride>,
    /// Who set it, and when.
    set_by: String,
    set_at: String,
}

/// An override by the admin API, and whether it fits the limits in force.
#[derive(Clone, Debug)]
struct CheckedOverride {
    kept: Arc<KeptOverride>,
    check: OverrideCheck,
}

/// The overrides by the admin API that a configuration is with.
pub(in crate::app) struct CheckedOverrides(Vec<CheckedOverride>);

impl CheckedOverrides {
    /// The `loaded` settings with these overrides, but for those that do not fit them.
    pub(in crate::app) fn add_to(
        loaded: &Settings,
        overrides: &[Arc<KeptOverride>],
        now: Timestamp,
    ) -> (Settings, Self) {
        let written: Vec<_> = overrides.iter().map(|kept| kept.written()).collect();
        let (settings, checks) = loaded.with_overrides(&written, now);
        let checked = overrides.iter().cloned().zip(checks);
        let checked = checked.map(|(kept, check)| CheckedOverride { kept, check });
        (settings, Self(checked.collect()))
    }

    /// All of them, also those that do not fit.
    pub(in crate::app) fn kept(&self) -> Vec<Arc<KeptOverride>> {
        let all = self.0.iter();
        all.map(|checked| Arc::clone(&checked.kept)).collect()
    }

    /// Says that they are in force in the place of others.
    pub(in crate::app) fn log_change(&self, settings: &Settings) {
        let in_force = self.0.iter().filter(|checked| checked.check.is_ok());
        let in_force = in_force.count();
        tracing::info!(target: IN_FORCE_TARGET, in_force, "overrides by the admin API changed");
        self.warn(settings);
    }

    /// Warns of those that the settings do not fit.
    pub(in crate::app) fn warn(&self, settings: &Settings) {
        for CheckedOverride { kept, check } in &self.0 {
            if let Err(reasons) = check {
                let (limit, id) = (&kept.written.limit, kept.logged_id(settings));
                let cause = reasons.join("; ");
                tracing::warn!(
                    target: IN_FORCE_TARGET,
                    limit,
                    id,
                    cause,
                    "this override by the admin API is not in force"
                );
            }
        }
    }
}

impl KeptOverride {
    fn written(&self) -> Arc<ApiOverride> {
        Arc::clone(&self.written)
    }

    fn logged_id(&self, settings: &Settings) -> String {
        settings.logged_id(&self.written.limit, &self.written.id)
    }

    /// Whether it fits its limit in these settings, and does not contradict one of the others.
    pub(in crate::app) fn check(
        &self,
        loaded: &Settings,
        others: &[Arc<Self>],
        now: Timestamp,
    ) -> OverrideCheck {
        let others = others.iter().map(|other| other.written());
        let all: Vec<_> = others.chain([self.written()]).collect();
        let (_, mut checks) = loaded.with_overrides(&all, now);
        checks.pop().unwrap_or(Ok(Vec::new()))
    }

    /// Says that it has ended.
    pub(in crate::app) fn log_end(&self, settings: &Settings) {
        let (limit, id) = (&self.written.limit, self.logged_id(settings));
        tracing::info!(target: END_TARGET, limit, id, "override ended");
    }
}

impl ListEntry for KeptOverride {
    const LIST: &'static str = "overrides";
    const NOUN: &'static str = "override";
    const SINGULAR: &'static str = "an override by the admin API";
    const PLURAL: &'static str = "overrides by the admin API";
    const MAX_BYTES: usize = 1_000;

    /// The limit and the id.
    type Key = (String, String);

    fn parse(text: &str) -> Option<Self> {
        let mut parameters: Map<String, Value> = serde_json::from_str(text).ok()?;
        let mut own = |name| match parameters.remove(name) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        };
        let (limit, id) = (own("limit")?, own("id")?);
        let mut told = |name| own(name).unwrap_or_else(|| "-".to_owned());
        let (set_by, set_at) = (told("set_by"), told("set_at"));
        Some(Self {
            written: Arc::new(ApiOverride {
                limit,
                id,
                parameters,
            }),
            set_by,
            set_at,
        })
    }

    fn text(&self) -> String {
        let mut members = self.written.parameters.clone();
        for (name, text) in [
            ("limit", &self.written.limit),
            ("id", &self.written.id),
            ("set_by", &self.set_by),
            ("set_at", &self.set_at),
        ] {
            members.insert(name.to_owned(), json!(text));
        }
        Value::Object(members).to_string()
    }

    fn key(&self) -> Self::Key {
        (self.written.limit.clone(), self.written.id.clone())
    }

    fn until(&self) -> Option<Timestamp> {
        let until = self.written.parameters.get("until")?.as_str()?;
        let Until(until) = until.parse().ok()?;
        Some(until)
    }

    fn cmp_set_at(&self, other: &Self) -> Ordering {
        let moment = |set_at: &str| set_at.parse().map_or(Timestamp::default(), |Until(at)| at);
        moment(&self.set_at).cmp(&moment(&other.set_at))
    }

    fn full() -> String {
        format!(
            "there are {MAX_ENTRIES} overrides by the admin API already; delete some, or write \
             those that stay into overrides.yaml"
        )
    }

    fn log_restored(overrides: usize) {
        tracing::warn!(
            target: TARGET,
            overrides,
            "some or all overrides by the admin API were lost where they are kept, and were \
             written again"
        );
    }
}

impl FileEntry for KeptOverride {
    const ABOUT: &'static str = "Written by weir for PUT /v1/overrides. Change it by `weir \
                                 override`, as the gateway replaces it as a whole.";
    const SETTING: &'static str = "admin: {overrides_file: PATH}";
}

/// The settings of a configuration with its overrides by the admin API, or where to look for those.
pub(in crate::app) fn with_kept(settings: Settings) -> (Settings, String) {
    let process = &settings.process;
    if process.store.is_shared() {
        let note = match process.admin {
            Some(_) => {
                "note: overrides by the admin API are in Redis and left out here; `weir override \
                        list` shows them, and `weir bucket get` which one a subject has\n"
            }
            None => "",
        };
        return (settings, note.to_owned());
    }
    let Some(path) = &process.overrides_file else {
        return (settings, String::new());
    };
    match in_file(path) {
        Ok(kept) => {
            let (settings, _) = CheckedOverrides::add_to(&settings, &kept, SystemClock.now());
            (settings, String::new())
        }
        Err(error) => (
            settings,
            format!("note: overrides by the admin API are left out here: {error}\n"),
        ),
    }
}

/// The overrides in the file of a configuration whose buckets are in memory.
fn in_file(path: &Path) -> Result<Vec<Arc<KeptOverride>>, FileError> {
    let list = SharedList::from_entries(read_file::<KeptOverride>(path)?);
    Ok(list.latest().to_vec())
}

/// The keeper of the overrides. Without `shared` lists they are kept in a file, or by this process
/// alone if it has no admin listener.
pub(in crate::app::features) fn keeper(
    settings: &ProcessSettings,
    shared: Option<Arc<dyn SharedLists>>,
    clock: Arc<dyn Clock>,
) -> (ListKeeper<KeptOverride>, ListChanges<KeptOverride>) {
    let in_file = || {
        let path = settings.overrides_file.clone()?;
        Some(Arc::new(ListFile::<KeptOverride>::new(path)) as Arc<dyn SharedLists>)
    };
    ListKeeper::new(shared.or_else(in_file), clock)
}

#[cfg(test)]
mod tests {
    use weir_store::SharedEntry;

    use super::*;
    use crate::app::shared_list::FOR_GOOD;

    fn kept(parameters: &Value, set_at: &str) -> KeptOverride {
        KeptOverride {
            written: Arc::new(ApiOverride {
                limit: "L".to_owned(),
                id: "2001:db8::/32".to_owned(),
                parameters: parameters.as_object().unwrap().clone(),
            }),
            set_by: "alice".to_owned(),
            set_at: set_at.to_owned(),
        }
    }

    #[test]
    fn an_override_is_read_as_it_was_written() {
        let parameters = json!({ "burst": 5, "comment": "a \"b\"\n", "until": "2200-12-31" });
        let kept = kept(&parameters, "2026-11-22T14:00:00Z");
        let entry = kept.to_shared();
        assert_eq!(KeptOverride::parse(&entry.text), Some(kept.clone()));
        assert!(entry.until < FOR_GOOD);
        let until = kept.until().unwrap();
        assert!(kept.has_ended(until) && !kept.has_ended(Timestamp::default()));
    }

    #[test]
    fn what_no_gateway_wrote_is_told_apart() {
        let parsed = |text: &str| KeptOverride::parse(text).is_some();
        assert!(parsed("{\"limit\":\"L\",\"id\":\"a\"}"));
        assert_eq!(["[]", "{}", "{"].map(parsed), [false; 3]);
    }

    /// Two gateways may set the same one before either has seen the other's.
    #[test]
    fn of_two_overrides_of_the_same_subject_all_gateways_take_the_later_one() {
        let set_at =
            |set_at: &str, burst: u32| kept(&json!({ "burst": burst }), set_at).to_shared();
        let mut entries: Vec<SharedEntry> = vec![
            set_at("2026-11-22T14:00:00Z", 9),
            set_at("2026-11-22T14:00:01.5Z", 8),
            set_at("2026-11-22T14:00:01.542Z", 5),
            set_at("2026-11-22T14:00:00Z", 7),
        ];
        for _ in 0..2 {
            let list = SharedList::<KeptOverride>::from_entries(entries.clone());
            let bursts = list.latest().iter();
            let bursts = bursts.map(|kept| &kept.written.parameters["burst"]);
            assert_eq!(bursts.collect::<Vec<_>>(), [&json!(5)]);
            entries.reverse();
        }
    }
}
