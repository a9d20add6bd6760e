//! Overrides by the admin API: kept where all gateways see them, looked for once a second, and
//! added to the configuration in force.
//!
//! One task of the process does all of that, so that workers have nothing to do with it: what
//! changes is published as a reload is. See `docs/decisions/0059-overrides-by-the-admin-api.md`.

mod storage;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

pub(crate) use self::storage::StorageError;
use self::storage::{Storage, read_file};
use super::stores::Stores;
use crate::config::{ApiOverride, OverrideCheck, ProcessSettings, Until};
use crate::store::{Table, TableChange};
use crate::time::{Clock, Timestamp};

/// How often the storage is asked whether something has changed, on average. With what else it
/// takes, a change is in force everywhere within two seconds.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// By which factor a pause is longer than that at most: not all gateways ask at the same time.
const LONGEST_PAUSE: f64 = 1.25;

/// How often it is asked while Redis's user may not.
const POLL_FORBIDDEN: Duration = Duration::from_secs(60);

/// How long the start waits for Redis before the gateway serves without the overrides in it.
const FIRST_READ: Duration = Duration::from_secs(1);

/// How many overrides there may be: all of them are read at once.
pub(crate) const MOST: usize = 1_000;

/// How many bytes one of them may take, with its id.
pub(crate) const MOST_BYTES: usize = 1_000;

/// How often a change is tried that others get in the way of.
const ATTEMPTS: usize = 10;

/// Changes that wait for their turn.
const WAITING: usize = 32;

/// How long a change may take.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);

/// An override as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptOverride {
    pub(crate) written: ApiOverride,
    /// Who set it, and when.
    pub(crate) set_by: String,
    pub(crate) set_at: String,
}

/// An override by the admin API, and whether it fits the limits in force.
#[derive(Clone, Debug)]
pub(super) struct CheckedOverride {
    pub(super) kept: KeptOverride,
    pub(super) check: OverrideCheck,
}

/// Why an override is not changed.
#[derive(Debug, Error)]
pub(crate) enum OverrideError {
    /// It does not fit its limit, for these reasons.
    #[error("{}", .0.join("; "))]
    Refused(Vec<String>),
    /// There is none of this limit and id.
    #[error(
        "the admin API has set no override of \"{0}\" for {1:?}; `weir override list` shows those \
             that there are, and those of files are changed in their files"
    )]
    Unknown(String, String),
    /// There are too many.
    #[error(
        "there are {MOST} overrides by the admin API already; delete some, or write those that \
             stay into overrides.yaml"
    )]
    Full,
    /// It takes too much room.
    #[error("the override takes {0} bytes with its id and comment; shorten them to {MOST_BYTES}")]
    TooLong(usize),
    /// Others change overrides all the time.
    #[error("others changed overrides at the same time; try again")]
    Contended,
    /// It cannot be kept.
    #[error("{0}")]
    Storage(#[from] StorageError),
    /// The gateway does not get to it in time, or ends.
    #[error("the gateway was too busy, or ends; look whether the override is there")]
    Late,
}

type Answer<T> = oneshot::Sender<Result<T, OverrideError>>;

/// What the admin API asks for.
enum Change {
    Set(KeptOverride, Answer<Vec<String>>),
    Delete(String, String, Answer<KeptOverride>),
}

/// The configuration that overrides are added to.
pub(super) trait OverrideTarget {
    /// Puts these overrides in force, in place of those that were.
    fn set_overrides(&self, overrides: Vec<KeptOverride>);

    /// What there is to say of overrides that may be set.
    fn check_overrides(&self, overrides: &[ApiOverride]) -> Vec<OverrideCheck>;

    /// An id of a limit as the log shows it.
    fn logged_id(&self, limit: &str, id: &str) -> String;
}

/// Hands changes to the task that makes them.
#[derive(Clone)]
pub(super) struct OverrideChanges(mpsc::Sender<Change>);

impl OverrideChanges {
    /// Sets an override; it is in force then. What is doubtful about it is returned.
    pub(super) async fn set(&self, wanted: KeptOverride) -> Result<Vec<String>, OverrideError> {
        self.ask(|answer| Change::Set(wanted, answer)).await
    }

    /// Deletes an override; it is not in force then.
    pub(super) async fn delete(
        &self,
        limit: String,
        id: String,
    ) -> Result<KeptOverride, OverrideError> {
        self.ask(|answer| Change::Delete(limit, id, answer)).await
    }

    async fn ask<T>(&self, change: impl FnOnce(Answer<T>) -> Change) -> Result<T, OverrideError> {
        let (answer, answered) = oneshot::channel();
        let made = async {
            let sent = self.0.send(change(answer)).await;
            sent.map_err(|_| OverrideError::Late)?;
            answered.await.map_err(|_| OverrideError::Late)?
        };
        let made = timeout(CHANGE_TIMEOUT, made).await;
        made.unwrap_or(Err(OverrideError::Late))
    }
}

impl KeptOverride {
    /// The field of the table that it is in. Names of limits have no colon.
    fn field(limit: &str, id: &str) -> String {
        format!("{limit}:{id}")
    }

    fn text(&self) -> String {
        let mut members = self.written.parameters.clone();
        members.insert("set_by".to_owned(), json!(self.set_by));
        members.insert("set_at".to_owned(), json!(self.set_at));
        Value::Object(members).to_string()
    }

    /// None when no gateway has written that.
    fn parse(field: &str, text: &str) -> Option<Self> {
        let (limit, id) = field.split_once(':')?;
        let mut parameters: Map<String, Value> = serde_json::from_str(text).ok()?;
        let mut own = |name| match parameters.remove(name) {
            Some(Value::String(text)) => text,
            _ => "-".to_owned(),
        };
        let (set_by, set_at) = (own("set_by"), own("set_at"));
        Some(Self {
            written: ApiOverride {
                limit: limit.to_owned(),
                id: id.to_owned(),
                parameters,
            },
            set_by,
            set_at,
        })
    }

    /// When it ends.
    pub(super) fn until(&self) -> Option<Timestamp> {
        let until = self.written.parameters.get("until")?.as_str()?;
        let Until(until) = until.parse().ok()?;
        Some(until)
    }

    fn has_ended(&self, now: Timestamp) -> bool {
        self.until().is_some_and(|until| until <= now)
    }
}

/// The overrides in texts, and the fields whose texts are none.
fn parsed(texts: &BTreeMap<String, String>) -> (Vec<KeptOverride>, Vec<&str>) {
    let mut strange = Vec::new();
    let overrides = texts.iter().filter_map(|(field, text)| {
        let kept = KeptOverride::parse(field, text);
        if kept.is_none() {
            strange.push(field.as_str());
        }
        kept
    });
    (overrides.collect(), strange)
}

/// The overrides in the file of a configuration whose buckets are in memory.
///
/// # Errors
/// When it cannot be read.
pub(super) fn kept_in(path: &Path) -> Result<Vec<KeptOverride>, StorageError> {
    Ok(parsed(&read_file(path)?.texts).0)
}

/// Keeps the overrides, and follows what other gateways change.
pub(super) struct OverrideKeeper {
    storage: Storage,
    clock: Arc<dyn Clock>,
    known: Table,
    changes: mpsc::Receiver<Change>,
    /// Why the storage cannot be read, as it was logged.
    trouble: Option<String>,
    pause: Duration,
}

impl OverrideKeeper {
    /// Knows nothing yet. Must be called on a runtime that lasts as long as the process.
    pub(super) async fn new(
        settings: &ProcessSettings,
        stores: &Stores,
    ) -> io::Result<(Self, OverrideChanges)> {
        let storage = match (stores.for_overrides()?, &settings.overrides_file) {
            (Some(redis), _) => {
                // If it cannot be reached, the first read finds that out, and says why.
                let _ = redis.connected(FIRST_READ).await;
                Storage::Redis(redis)
            }
            (None, Some(path)) => Storage::File(path.clone()),
            (None, None) => Storage::Nowhere,
        };
        let (sender, changes) = mpsc::channel(WAITING);
        let keeper = Self {
            storage,
            clock: stores.clock(),
            known: Table::default(),
            changes,
            trouble: None,
            pause: POLL_INTERVAL,
        };
        Ok((keeper, OverrideChanges(sender)))
    }

    /// The overrides that there are when the gateway starts; without them, it serves all the same.
    pub(super) async fn first(&mut self) -> Vec<KeptOverride> {
        match self.storage.table().await {
            Ok(table) => self.learn(table),
            Err(error) => {
                self.cannot_read(&error);
                Vec::new()
            }
        }
    }

    /// Makes changes, and follows those of others.
    pub(super) async fn follow(&mut self, target: &impl OverrideTarget) -> Infallible {
        loop {
            let pause = self.pause.mul_f64(rand::random_range(0.75..LONGEST_PAUSE));
            tokio::select! {
                Some(change) = self.changes.recv() => self.make(change, target).await,
                () = sleep(pause) => self.poll(target).await,
            }
        }
    }

    async fn poll(&mut self, target: &impl OverrideTarget) {
        if matches!(self.storage, Storage::Nowhere) {
            return;
        }
        match self.look(target).await {
            Ok(()) => self.can_read(),
            Err(error) => self.cannot_read(&error),
        }
    }

    /// Learns what others have changed, and removes what has ended.
    async fn look(&mut self, target: &impl OverrideTarget) -> Result<(), StorageError> {
        let version = self.storage.version().await?;
        if version != self.known.version {
            if version.is_none() && !self.known.texts.is_empty() {
                return self.restore().await;
            }
            let table = self.storage.table().await?;
            target.set_overrides(self.learn(table));
        }
        self.remove_ended(target).await
    }

    /// Storage that was emptied gets back what is known: no gateway deletes all of it.
    async fn restore(&mut self) -> Result<(), StorageError> {
        let change = TableChange {
            set: self.known.texts.clone(),
            deleted: Vec::new(),
        };
        if let Some(version) = self.storage.change(None, change).await? {
            let overrides = self.known.texts.len();
            tracing::warn!(
                overrides,
                "the overrides by the admin API were lost where they are kept, and were written again"
            );
            self.known.version = Some(version);
        }
        Ok(())
    }

    async fn remove_ended(&mut self, target: &impl OverrideTarget) -> Result<(), StorageError> {
        let now = self.clock.now();
        let (overrides, _) = parsed(&self.known.texts);
        let ended = overrides.iter().filter(|kept| kept.has_ended(now));
        let ended: Vec<&ApiOverride> = ended.map(|kept| &kept.written).collect();
        if ended.is_empty() {
            return Ok(());
        }
        let fields = ended
            .iter()
            .map(|ended| KeptOverride::field(&ended.limit, &ended.id));
        let change = TableChange {
            deleted: fields.collect(),
            ..TableChange::default()
        };
        // If another gateway was faster, there is another version to be read.
        if self.change(change, target).await? {
            for ApiOverride { limit, id, .. } in ended {
                let id = target.logged_id(limit, id);
                tracing::info!(limit, id, "override ended");
            }
        }
        Ok(())
    }

    async fn make(&mut self, change: Change, target: &impl OverrideTarget) {
        // The client may not wait any more.
        match change {
            Change::Set(wanted, answer) => {
                let _ = answer.send(self.set(&wanted, target).await);
            }
            Change::Delete(limit, id, answer) => {
                let _ = answer.send(self.delete(&limit, &id, target).await);
            }
        }
    }

    async fn set(
        &mut self,
        wanted: &KeptOverride,
        target: &impl OverrideTarget,
    ) -> Result<Vec<String>, OverrideError> {
        let field = KeptOverride::field(&wanted.written.limit, &wanted.written.id);
        let text = wanted.text();
        let bytes = field.len() + text.len();
        for _ in 0..ATTEMPTS {
            self.read_again(target).await?;
            let warnings = self.check(&field, wanted, target)?;
            if bytes > MOST_BYTES {
                return Err(OverrideError::TooLong(bytes));
            }
            let is_new = !self.known.texts.contains_key(&field);
            if is_new && self.known.texts.len() >= MOST {
                return Err(OverrideError::Full);
            }
            let change = TableChange {
                set: BTreeMap::from([(field.clone(), text.clone())]),
                deleted: Vec::new(),
            };
            if self.change(change, target).await? {
                return Ok(warnings);
            }
        }
        Err(OverrideError::Contended)
    }

    /// Whether an override fits its limit, and does not contradict another.
    fn check(
        &self,
        field: &str,
        wanted: &KeptOverride,
        target: &impl OverrideTarget,
    ) -> Result<Vec<String>, OverrideError> {
        let mut texts = self.known.texts.clone();
        texts.remove(field);
        let (others, _) = parsed(&texts);
        let mut all: Vec<ApiOverride> = others.into_iter().map(|kept| kept.written).collect();
        all.push(wanted.written.clone());
        let last = target.check_overrides(&all).pop();
        let warnings = last.unwrap_or(Ok(Vec::new()));
        let warnings = warnings.map_err(OverrideError::Refused)?;
        if wanted.has_ended(self.clock.now()) {
            let why = "until: this is in the past; write a later moment, or `for`".to_owned();
            return Err(OverrideError::Refused(vec![why]));
        }
        Ok(warnings)
    }

    async fn delete(
        &mut self,
        limit: &str,
        id: &str,
        target: &impl OverrideTarget,
    ) -> Result<KeptOverride, OverrideError> {
        let field = KeptOverride::field(limit, id);
        for _ in 0..ATTEMPTS {
            self.read_again(target).await?;
            let text = self.known.texts.get(&field);
            let kept = text.and_then(|text| KeptOverride::parse(&field, text));
            let Some(kept) = kept else {
                return Err(OverrideError::Unknown(limit.to_owned(), id.to_owned()));
            };
            let change = TableChange {
                deleted: vec![field.clone()],
                ..TableChange::default()
            };
            if self.change(change, target).await? {
                return Ok(kept);
            }
        }
        Err(OverrideError::Contended)
    }

    /// Learns what there is now: a change goes by that.
    async fn read_again(&mut self, target: &impl OverrideTarget) -> Result<(), StorageError> {
        let table = self.storage.table().await?;
        if table.version.is_none() && !self.known.texts.is_empty() {
            return self.restore().await;
        }
        if table != self.known {
            target.set_overrides(self.learn(table));
        }
        Ok(())
    }

    /// Changes what is known, here and where it is kept. False if another gateway was faster.
    async fn change(
        &mut self,
        change: TableChange,
        target: &impl OverrideTarget,
    ) -> Result<bool, StorageError> {
        let version = self.known.version.clone();
        let changed = self.storage.change(version.as_deref(), change.clone());
        let Some(version) = changed.await? else {
            return Ok(false);
        };
        let mut texts = std::mem::take(&mut self.known.texts);
        texts.extend(change.set);
        for field in change.deleted {
            texts.remove(&field);
        }
        let table = Table {
            version: Some(version),
            texts,
        };
        target.set_overrides(self.learn(table));
        Ok(true)
    }

    fn learn(&mut self, table: Table) -> Vec<KeptOverride> {
        self.known = table;
        let (overrides, strange) = parsed(&self.known.texts);
        for field in strange {
            tracing::warn!(
                field,
                "this is not an override by the admin API; it is left out"
            );
        }
        overrides
    }

    fn can_read(&mut self) {
        self.pause = POLL_INTERVAL;
        if self.trouble.take().is_some() {
            tracing::info!("overrides by the admin API can be read again");
        }
    }

    /// What is known stays in force.
    fn cannot_read(&mut self, error: &StorageError) {
        self.pause = match error.is_forbidden() {
            true => POLL_FORBIDDEN,
            false => POLL_INTERVAL,
        };
        let cause = error.to_string();
        if self.trouble.as_ref() != Some(&cause) {
            tracing::warn!(
                cause,
                "overrides by the admin API cannot be read; those that are known stay in force"
            );
            self.trouble = Some(cause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_override_is_read_as_it_was_written() {
        let parameters = json!({ "burst": 5, "comment": "a \"b\"\n", "until": "2200-12-31" });
        let kept = KeptOverride {
            written: ApiOverride {
                limit: "L".to_owned(),
                id: "2001:db8::/32".to_owned(),
                parameters: parameters.as_object().unwrap().clone(),
            },
            set_by: "alice".to_owned(),
            set_at: "2026-11-22T14:00:00Z".to_owned(),
        };
        let field = KeptOverride::field("L", "2001:db8::/32");
        assert_eq!(
            KeptOverride::parse(&field, &kept.text()),
            Some(kept.clone())
        );
        let until = kept.until().unwrap();
        assert!(kept.has_ended(until) && !kept.has_ended(Timestamp::default()));
    }

    /// What another gateway has changed is seen after one pause at most.
    #[test]
    fn changes_are_looked_for_often_enough_to_hold_within_two_seconds() {
        let longest = POLL_INTERVAL.mul_f64(LONGEST_PAUSE);
        assert!(longest + Duration::from_millis(500) < Duration::from_secs(2));
    }

    #[test]
    fn what_no_gateway_wrote_is_told_apart() {
        let texts = [
            ("L:a", "{}"),
            ("L:b", "[]"),
            ("nothing", "{}"),
            ("L:c", "{"),
        ];
        let texts = texts.map(|(field, text)| (field.to_owned(), text.to_owned()));
        let texts = BTreeMap::from(texts);
        let (overrides, strange) = parsed(&texts);
        assert_eq!(overrides.len(), 1);
        assert_eq!(strange, ["L:b", "L:c", "nothing"]);
    }
}
