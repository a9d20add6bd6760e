//! Overrides by the admin API: kept where all gateways see them, looked for once a second, and
//! added to the configuration in force.
//!
//! One task of the process does all of that, so that workers have nothing to do with it: what
//! changes is published as a reload is. See `docs/decisions/0059-overrides.md`.

mod file;

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use weir_config::{ApiOverride, OverrideCheck, ProcessSettings, Until};
use weir_limit::time::{Clock, Timestamp};
use weir_store::{SharedEntry, SharedLists, StoreError};

use self::file::{FileError, OverridesFile};
use super::shared_list::{FOR_GOOD, ListChange, SharedList, millis};

/// The list of overrides.
const LIST: &str = "overrides";

/// How often the storage is asked whether something has changed, on average. With what else it
/// takes, a change is in force everywhere within two seconds.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// By which factor a pause is longer than that at most: not all gateways ask at the same time.
const LONGEST_PAUSE: f64 = 1.25;

/// How often it is asked while Redis's user may not.
const POLL_FORBIDDEN: Duration = Duration::from_secs(60);

/// How many overrides there may be: all of them are read at once.
pub(crate) const MOST: usize = 1_000;

/// How many bytes one of them may take, with its id.
pub(crate) const MOST_BYTES: usize = 1_000;

/// Changes that wait for their turn.
const WAITING: usize = 32;

/// How long a change may take.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);

/// An override as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptOverride {
    pub(crate) written: Arc<ApiOverride>,
    /// Who set it, and when.
    pub(crate) set_by: String,
    pub(crate) set_at: String,
}

/// An override by the admin API, and whether it fits the limits in force.
#[derive(Clone, Debug)]
pub(super) struct CheckedOverride {
    pub(super) kept: Arc<KeptOverride>,
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
    /// It cannot be kept.
    #[error("{0}")]
    Storage(#[from] StorageError),
    /// The gateway does not get to it in time, or ends.
    #[error("the gateway was too busy, or ends; look whether the override is there")]
    Late,
}

/// Why overrides cannot be read or kept: Redis does not answer, or refuses, or their file cannot be
/// read or written.
#[derive(Debug)]
pub(crate) struct StorageError(StoreError);

impl From<StoreError> for StorageError {
    fn from(error: StoreError) -> Self {
        Self(error)
    }
}

impl StorageError {
    fn of_file(&self) -> Option<&FileError> {
        match &self.0 {
            StoreError::Failed(cause) => cause.downcast_ref(),
            _ => None,
        }
    }

    /// Whether it is about a file.
    pub(crate) fn is_of_file(&self) -> bool {
        self.of_file().is_some()
    }
}

impl std::error::Error for StorageError {}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(error) = self.of_file() {
            return error.fmt(f);
        }
        write!(f, "{}", self.0)?;
        let mut told = self.0.to_string();
        let mut next = std::error::Error::source(&self.0);
        while let Some(error) = next {
            let text = error.to_string();
            // A shared error is its own source.
            if text != told {
                write!(f, ": {text}")?;
            }
            (told, next) = (text, error.source());
        }
        Ok(())
    }
}

type Answer<T> = oneshot::Sender<Result<T, OverrideError>>;

/// What the admin API asks for.
enum Change {
    Set(KeptOverride, Answer<Vec<String>>),
    Delete(String, String, Answer<Arc<KeptOverride>>),
}

/// The configuration that overrides are added to.
pub(super) trait OverrideTarget {
    /// Puts these overrides in force, in place of those that were.
    fn set_overrides(&self, overrides: Vec<Arc<KeptOverride>>);

    /// What there is to say of overrides that may be set.
    fn check_overrides(&self, overrides: &[Arc<ApiOverride>]) -> Vec<OverrideCheck>;

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
    ) -> Result<Arc<KeptOverride>, OverrideError> {
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
    fn entry(&self) -> SharedEntry {
        let mut members = self.written.parameters.clone();
        for (name, text) in [
            ("limit", &self.written.limit),
            ("id", &self.written.id),
            ("set_by", &self.set_by),
            ("set_at", &self.set_at),
        ] {
            members.insert(name.to_owned(), json!(text));
        }
        SharedEntry {
            until: self.end(),
            text: Value::Object(members).to_string(),
        }
    }

    /// None when no gateway has written that.
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

    fn is_of(&self, limit: &str, id: &str) -> bool {
        self.written.limit == limit && self.written.id == id
    }

    /// The same as the list has it.
    fn end(&self) -> u64 {
        self.until().map_or(FOR_GOOD, millis)
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

/// What each text of a list says; none if no gateway has written it.
type Texts = HashMap<String, Option<Arc<KeptOverride>>>;

/// Reads the texts of a list that were not there earlier, and tells which of those say nothing.
fn parsed<'e>(entries: &'e [SharedEntry], earlier: &mut Texts) -> (Texts, Vec<&'e str>) {
    let mut strange = Vec::new();
    let texts = entries.iter().map(|SharedEntry { text, .. }| {
        earlier.remove_entry(text).unwrap_or_else(|| {
            let kept = KeptOverride::parse(text).map(Arc::new);
            if kept.is_none() {
                strange.push(text.as_str());
            }
            (text.clone(), kept)
        })
    });
    (texts.collect(), strange)
}

/// The overrides among texts. Where two gateways have set the same one at once, there are two of it,
/// of which the later one holds, for all gateways alike.
fn latest(texts: &Texts) -> Vec<Arc<KeptOverride>> {
    let mut overrides = BTreeMap::new();
    for (text, kept) in texts {
        let Some(kept) = kept else { continue };
        let named = (&kept.written.limit, &kept.written.id);
        let latest = overrides.entry(named).or_insert((text, kept));
        if (&latest.1.set_at, latest.0) < (&kept.set_at, text) {
            *latest = (text, kept);
        }
    }
    let overrides = overrides.into_values();
    overrides.map(|(_, kept)| Arc::clone(kept)).collect()
}

/// The overrides of a list that have ended, and their texts.
fn ended(entries: &[SharedEntry], now: Timestamp) -> Vec<(String, Arc<ApiOverride>)> {
    let over = entries.iter().filter(|entry| entry.until <= millis(now));
    let ended = over.filter_map(|entry| {
        let kept = KeptOverride::parse(&entry.text)?;
        let has_ended = kept.has_ended(now);
        has_ended.then(|| (entry.text.clone(), kept.written))
    });
    ended.collect()
}

async fn remove_ended(
    list: &mut SharedList,
    ended: Vec<(String, Arc<ApiOverride>)>,
    now: Timestamp,
    target: &impl OverrideTarget,
) -> Result<(), StoreError> {
    let (texts, ended): (Vec<_>, Vec<_>) = ended.into_iter().unzip();
    // If none is there any more, another gateway was faster, and has said so.
    if list.change(Vec::new(), texts, now).await? > 0 {
        for written in ended {
            let limit = &written.limit;
            let id = target.logged_id(limit, &written.id);
            tracing::info!(limit, id, "override ended");
        }
    }
    Ok(())
}

/// The overrides in the file of a configuration whose buckets are in memory.
///
/// # Errors
/// When it cannot be read.
pub(super) fn kept_in(path: &Path) -> Result<Vec<Arc<KeptOverride>>, FileError> {
    let entries = file::read(path)?;
    Ok(latest(&parsed(&entries, &mut Texts::default()).0))
}

/// Keeps the overrides, and follows what other gateways change.
pub(super) struct OverrideKeeper {
    /// None if there is no admin listener that could set any.
    list: Option<SharedList>,
    clock: Arc<dyn Clock>,
    changes: mpsc::Receiver<Change>,
    /// Why the storage cannot be read, as it was logged.
    trouble: Option<String>,
    /// The overrides, as they were put in force.
    known: Vec<Arc<KeptOverride>>,
    /// What the list says.
    texts: Texts,
    pause: Duration,
}

impl OverrideKeeper {
    /// Knows nothing yet. Without `shared` lists, overrides are kept in a file.
    pub(super) fn new(
        settings: &ProcessSettings,
        shared: Option<Arc<dyn SharedLists>>,
        clock: Arc<dyn Clock>,
    ) -> (Self, OverrideChanges) {
        let in_file = || {
            let path = settings.overrides_file.clone()?;
            Some(Arc::new(OverridesFile::new(path)) as Arc<dyn SharedLists>)
        };
        let lists = shared.or_else(in_file);
        let (sender, changes) = mpsc::channel(WAITING);
        let keeper = Self {
            list: lists.map(|lists| SharedList::new(lists, LIST)),
            clock,
            changes,
            trouble: None,
            known: Vec::new(),
            texts: Texts::default(),
            pause: POLL_INTERVAL,
        };
        (keeper, OverrideChanges(sender))
    }

    /// The overrides that there are when the gateway starts; without them, it serves all the same.
    pub(super) async fn first(&mut self) -> Vec<Arc<KeptOverride>> {
        if let Some(list) = &mut self.list
            && let Err(error) = list.look(self.clock.now()).await
        {
            self.cannot_read(&error.into());
        }
        self.learn();
        self.known.clone()
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
        match self.look(target).await {
            Ok(()) => self.can_read(),
            Err(error) => self.cannot_read(&error),
        }
    }

    /// Learns what others have changed, and removes what has ended.
    async fn look(&mut self, target: &impl OverrideTarget) -> Result<(), StorageError> {
        let Some(list) = &mut self.list else {
            return Ok(());
        };
        let now = self.clock.now();
        // What has ended is not read again when the list has changed.
        let ended = ended(list.entries(), now);
        let change = list.look(now).await?;
        if change == ListChange::Restored {
            let overrides = list.entries().len();
            tracing::warn!(
                overrides,
                "the overrides by the admin API were lost where they are kept, and were written \
                 again"
            );
        }
        let any_ended = !ended.is_empty();
        // A user who may read may have no right to change anything.
        if any_ended && let Err(error) = remove_ended(list, ended, now, target).await {
            tracing::debug!(%error, "overrides that have ended are left for others to remove");
        }
        if any_ended || change == ListChange::Changed {
            self.put_in_force(target);
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
        self.look(target).await?;
        let warnings = self.check(wanted, target)?;
        let entry = wanted.entry();
        if entry.text.len() > MOST_BYTES {
            return Err(OverrideError::TooLong(entry.text.len()));
        }
        let ApiOverride { limit, id, .. } = &*wanted.written;
        let mut earlier = self.texts_of(limit, id);
        if earlier.is_empty() && self.known.len() >= MOST {
            return Err(OverrideError::Full);
        }
        earlier.retain(|text| *text != entry.text);
        self.change(vec![entry], earlier, target).await?;
        Ok(warnings)
    }

    /// Whether an override fits its limit, and does not contradict another.
    fn check(
        &self,
        wanted: &KeptOverride,
        target: &impl OverrideTarget,
    ) -> Result<Vec<String>, OverrideError> {
        let ApiOverride { limit, id, .. } = &*wanted.written;
        let others = self.known.iter().filter(|kept| !kept.is_of(limit, id));
        let others = others.map(|kept| Arc::clone(&kept.written));
        let all: Vec<_> = others.chain([Arc::clone(&wanted.written)]).collect();
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
    ) -> Result<Arc<KeptOverride>, OverrideError> {
        self.look(target).await?;
        let kept = self.known.iter().find(|kept| kept.is_of(limit, id));
        let kept = kept.cloned();
        let kept = kept.ok_or_else(|| OverrideError::Unknown(limit.to_owned(), id.to_owned()))?;
        let texts = self.texts_of(limit, id);
        self.change(Vec::new(), texts, target).await?;
        Ok(kept)
    }

    async fn change(
        &mut self,
        add: Vec<SharedEntry>,
        remove: Vec<String>,
        target: &impl OverrideTarget,
    ) -> Result<(), OverrideError> {
        let list = self.list.as_mut().ok_or(OverrideError::Late)?;
        let changed = list.change(add, remove, self.clock.now()).await;
        changed.map_err(StorageError)?;
        self.put_in_force(target);
        Ok(())
    }

    fn entries(&self) -> &[SharedEntry] {
        self.list.as_ref().map_or(&[], SharedList::entries)
    }

    fn texts_of(&self, limit: &str, id: &str) -> Vec<String> {
        let is_of = |kept: &Option<Arc<KeptOverride>>| {
            kept.as_ref().is_some_and(|kept| kept.is_of(limit, id))
        };
        let same = self.texts.iter().filter(|(_, kept)| is_of(kept));
        same.map(|(text, _)| text.clone()).collect()
    }

    fn put_in_force(&mut self, target: &impl OverrideTarget) {
        self.learn();
        target.set_overrides(self.known.clone());
    }

    /// Reads what is new in the list, and warns of texts there that are not overrides; how many is
    /// returned.
    fn learn(&mut self) -> usize {
        let mut earlier = std::mem::take(&mut self.texts);
        let (texts, strange) = parsed(self.entries(), &mut earlier);
        for text in &strange {
            tracing::warn!(
                text,
                "this is not an override by the admin API; it is left out"
            );
        }
        let warned = strange.len();
        self.known = latest(&texts);
        self.texts = texts;
        warned
    }

    fn can_read(&mut self) {
        self.pause = POLL_INTERVAL;
        if self.trouble.take().is_some() {
            tracing::info!("overrides by the admin API can be read again");
        }
    }

    /// What is known stays in force.
    fn cannot_read(&mut self, error: &StorageError) {
        self.pause = match error.0.is_forbidden() {
            true => POLL_FORBIDDEN,
            false => POLL_INTERVAL,
        };
        let cause = error.to_string();
        // The circuit breaker ends what a first failure has begun, and does not know why.
        let is_known = match &self.trouble {
            Some(known) => *known == cause || error.0.is_out_of_reach(),
            None => false,
        };
        if !is_known {
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
    use parking_lot::Mutex;

    use super::super::shared_list::tests::{Lists, is_forbidden};
    use super::*;
    use weir_limit::time::{ManualClock, Nanos};

    const NOW: Timestamp = Timestamp::from_nanos(1_000_000_000_000_000_000);

    /// A configuration that remembers what it was told.
    #[derive(Default)]
    struct Target {
        in_force: Mutex<Vec<Arc<KeptOverride>>>,
        ended: Mutex<Vec<String>>,
    }

    impl OverrideTarget for Target {
        fn set_overrides(&self, overrides: Vec<Arc<KeptOverride>>) {
            *self.in_force.lock() = overrides;
        }

        fn check_overrides(&self, overrides: &[Arc<ApiOverride>]) -> Vec<OverrideCheck> {
            overrides.iter().map(|_| Ok(Vec::new())).collect()
        }

        fn logged_id(&self, _: &str, id: &str) -> String {
            self.ended.lock().push(id.to_owned());
            id.to_owned()
        }
    }

    impl Target {
        fn ids(&self) -> Vec<String> {
            let in_force = self.in_force.lock();
            in_force
                .iter()
                .map(|kept| kept.written.id.clone())
                .collect()
        }
    }

    fn keeper(lists: &Arc<Lists>, clock: &ManualClock) -> OverrideKeeper {
        OverrideKeeper {
            list: Some(SharedList::new(Arc::<Lists>::clone(lists), LIST)),
            clock: Arc::new(clock.clone()),
            changes: mpsc::channel(1).1,
            trouble: None,
            known: Vec::new(),
            texts: Texts::default(),
            pause: POLL_INTERVAL,
        }
    }

    /// An override that ends so many seconds after `NOW`, if it ends.
    fn lasting(id: &str, seconds: Option<u64>) -> KeptOverride {
        let mut parameters = Map::new();
        if let Some(seconds) = seconds {
            let until = NOW + Nanos::from_secs(seconds);
            parameters.insert("until".to_owned(), json!(Until(until).to_string()));
        }
        KeptOverride {
            written: Arc::new(ApiOverride {
                limit: "L".to_owned(),
                id: id.to_owned(),
                parameters,
            }),
            set_by: "alice".to_owned(),
            set_at: "2001-09-09T01:46:40Z".to_owned(),
        }
    }

    #[tokio::test]
    async fn a_gateway_that_may_not_remove_what_ended_is_not_late_to_learn_what_others_set() {
        let (lists, clock) = (Arc::new(Lists::default()), ManualClock::new(NOW));
        let target = Target::default();
        let mut other = SharedList::new(Arc::<Lists>::clone(&lists), LIST);
        let short = vec![lasting("short", Some(1)).entry()];
        other.change(short, Vec::new(), NOW).await.unwrap();
        let mut keeper = keeper(&lists, &clock);
        assert_eq!(keeper.first().await.len(), 1);

        *lists.change_fails.lock() = Some(is_forbidden);
        clock.advance(Duration::from_secs(2));
        keeper.poll(&target).await;
        assert_eq!(
            (keeper.pause, keeper.trouble.as_deref()),
            (POLL_INTERVAL, None)
        );
        *lists.change_fails.lock() = None;
        let long = vec![lasting("long", None).entry()];
        other.change(long, Vec::new(), clock.now()).await.unwrap();
        *lists.change_fails.lock() = Some(is_forbidden);
        keeper.poll(&target).await;
        assert_eq!(target.ids(), ["long"]);
    }

    #[test]
    fn an_override_is_read_as_it_was_written() {
        let parameters = json!({ "burst": 5, "comment": "a \"b\"\n", "until": "2200-12-31" });
        let kept = KeptOverride {
            written: Arc::new(ApiOverride {
                limit: "L".to_owned(),
                id: "2001:db8::/32".to_owned(),
                parameters: parameters.as_object().unwrap().clone(),
            }),
            set_by: "alice".to_owned(),
            set_at: "2026-11-22T14:00:00Z".to_owned(),
        };
        let entry = kept.entry();
        assert_eq!(KeptOverride::parse(&entry.text), Some(kept.clone()));
        assert!(entry.until < FOR_GOOD);
        let until = kept.until().unwrap();
        assert!(kept.has_ended(until) && !kept.has_ended(Timestamp::default()));
    }

    #[tokio::test]
    async fn no_override_ends_unsaid_because_another_is_set_at_the_same_time() {
        let (lists, clock) = (Arc::new(Lists::default()), ManualClock::new(NOW));
        let target = Target::default();
        let mut keeper = keeper(&lists, &clock);
        for wanted in [lasting("first", Some(1)), lasting("second", Some(3))] {
            keeper.set(&wanted, &target).await.unwrap();
        }
        // Here there is no poll in between, and the list is read again.
        clock.advance(Duration::from_secs(2));
        keeper.set(&lasting("third", None), &target).await.unwrap();
        assert_eq!(*target.ended.lock(), ["first"]);
        // Here the list has been changed by another, too.
        clock.advance(Duration::from_secs(2));
        let mut other = SharedList::new(Arc::<Lists>::clone(&lists), LIST);
        let fourth = vec![lasting("fourth", None).entry()];
        other.change(fourth, Vec::new(), NOW).await.unwrap();
        keeper.poll(&target).await;
        keeper.poll(&target).await;
        assert_eq!(*target.ended.lock(), ["first", "second"]);
        assert_eq!(target.ids(), ["fourth", "third"]);
    }

    /// Each change read all that were there already, which took most of its time.
    #[tokio::test]
    async fn an_override_that_stays_is_not_read_again_when_another_is_set() {
        let (lists, clock) = (Arc::new(Lists::default()), ManualClock::new(NOW));
        let target = Target::default();
        let mut keeper = keeper(&lists, &clock);
        keeper.set(&lasting("first", None), &target).await.unwrap();
        let first = Arc::clone(&target.in_force.lock()[0]);
        keeper.set(&lasting("second", None), &target).await.unwrap();
        assert_eq!(target.ids(), ["first", "second"]);
        assert!(Arc::ptr_eq(&first, &target.in_force.lock()[0]));
    }

    #[tokio::test]
    async fn a_text_that_is_not_an_override_is_not_warned_of_at_each_change() {
        let (lists, clock) = (Arc::new(Lists::default()), ManualClock::new(NOW));
        let mut keeper = keeper(&lists, &clock);
        let mut other = SharedList::new(Arc::<Lists>::clone(&lists), LIST);
        for (text, warned) in [("[]", 1), ("{}", 1), ("{\"limit\":\"L\",\"id\":\"a\"}", 0)] {
            let entry = SharedEntry {
                until: FOR_GOOD,
                text: text.to_owned(),
            };
            other.change(vec![entry], Vec::new(), NOW).await.unwrap();
            let list = keeper.list.as_mut().unwrap();
            assert_eq!(list.look(NOW).await.unwrap(), ListChange::Changed);
            assert_eq!(keeper.learn(), warned, "{text}");
        }
    }

    /// What another gateway has changed is seen after one pause at most.
    #[test]
    fn changes_are_looked_for_often_enough_to_hold_within_two_seconds() {
        let longest = POLL_INTERVAL.mul_f64(LONGEST_PAUSE);
        assert!(longest + Duration::from_millis(500) < Duration::from_secs(2));
    }

    #[test]
    fn what_no_gateway_wrote_is_told_apart() {
        let texts = ["{\"limit\":\"L\",\"id\":\"a\"}", "[]", "{}", "{"];
        let entries = texts.map(|text| SharedEntry {
            until: FOR_GOOD,
            text: text.to_owned(),
        });
        let (texts, strange) = parsed(&entries, &mut Texts::default());
        assert_eq!(latest(&texts).len(), 1);
        assert_eq!(strange, ["[]", "{}", "{"]);
    }

    /// Two gateways may set the same one before either has seen the other's.
    #[test]
    fn of_two_overrides_of_the_same_subject_all_gateways_take_the_later_one() {
        let set_at = |set_at: &str, burst: u32| {
            let parameters = json!({ "burst": burst });
            let kept = KeptOverride {
                written: Arc::new(ApiOverride {
                    limit: "L".to_owned(),
                    id: "a".to_owned(),
                    parameters: parameters.as_object().unwrap().clone(),
                }),
                set_by: "alice".to_owned(),
                set_at: set_at.to_owned(),
            };
            kept.entry()
        };
        let mut entries = [
            set_at("2026-11-22T14:00:00Z", 9),
            set_at("2026-11-22T14:00:01Z", 5),
            set_at("2026-11-22T14:00:00Z", 7),
        ];
        for _ in 0..2 {
            let overrides = latest(&parsed(&entries, &mut Texts::default()).0);
            let bursts = overrides
                .iter()
                .map(|kept| &kept.written.parameters["burst"]);
            assert_eq!(bursts.collect::<Vec<_>>(), [&json!(5)]);
            entries.reverse();
        }
    }
}
