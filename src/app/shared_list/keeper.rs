//! The task that owns the copy of a list: makes the changes of this process, follows those of other
//! gateways, and removes what has ended.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use weir_limit::time::Clock;
use weir_store::{SharedLists, StoreError};

use super::{ListChange, ListEntry, ListError, SharedList};

/// The average interval of looks at a list. A change is in force everywhere within two seconds.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The factor of the longest pause, as not all gateways should look at the same time.
const MAX_JITTER: f64 = 1.25;

/// The interval while Redis's user has no right to look.
const POLL_FORBIDDEN: Duration = Duration::from_secs(60);

/// The maximum number of entries, as each gateway reads all of them at once.
pub(in crate::app) const MAX_ENTRIES: usize = 1_000;

const MAX_QUEUED_CHANGES: usize = 32;

const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);

/// What the entries of a list are for.
pub(in crate::app) trait ListTarget<E> {
    /// Puts these entries in force, in place of those that were.
    fn put_in_force(&self, entries: &[Arc<E>]);

    /// Returns warnings about an entry that is to be set beside others.
    ///
    /// # Errors
    /// The reasons why it cannot be set.
    fn check(&self, _wanted: &Arc<E>, _others: &[Arc<E>]) -> Result<Vec<String>, Vec<String>> {
        Ok(Vec::new())
    }

    /// Logs that an entry has ended. One gateway of all does.
    fn log_ended(&self, _entry: &E) {}
}

type Reply<T> = oneshot::Sender<Result<T, ListError>>;

enum Change<E: ListEntry> {
    Look(Reply<()>),
    Set(Arc<E>, Reply<Vec<String>>),
    Delete(E::Key, Reply<Option<Arc<E>>>),
}

/// Hands changes to the task that makes them.
#[derive(Clone)]
pub(in crate::app) struct ListChanges<E: ListEntry>(mpsc::Sender<Change<E>>);

impl<E: ListEntry> ListChanges<E> {
    /// Puts in force what other gateways have changed.
    pub(in crate::app) async fn look(&self) -> Result<(), ListError> {
        self.request(Change::Look).await
    }

    /// Sets an entry, which is in force then. Returns warnings about it.
    pub(in crate::app) async fn set(&self, wanted: E) -> Result<Vec<String>, ListError> {
        let wanted = Arc::new(wanted);
        self.request(|reply| Change::Set(wanted, reply)).await
    }

    /// Deletes an entry, which is not in force then; none if there was none.
    pub(in crate::app) async fn delete(&self, key: E::Key) -> Result<Option<Arc<E>>, ListError> {
        self.request(|reply| Change::Delete(key, reply)).await
    }

    async fn request<T>(&self, change: impl FnOnce(Reply<T>) -> Change<E>) -> Result<T, ListError> {
        let (reply, replied) = oneshot::channel();
        let late = || ListError::Late(E::NOUN);
        let made = async {
            let sent = self.0.send(change(reply)).await;
            sent.map_err(|_| late())?;
            replied.await.map_err(|_| late())?
        };
        let made = timeout(CHANGE_TIMEOUT, made).await;
        made.unwrap_or_else(|_| Err(late()))
    }
}

/// Keeps the copy of a list.
pub(in crate::app) struct ListKeeper<E: ListEntry> {
    list: SharedList<E>,
    clock: Arc<dyn Clock>,
    changes: mpsc::Receiver<Change<E>>,
    /// Why the list cannot be read, as it was logged.
    logged_error: Option<String>,
    pause: Duration,
}

impl<E: ListEntry> ListKeeper<E> {
    /// A keeper of a copy that is empty yet. Without `lists` the process alone has the list.
    pub(in crate::app) fn new(
        lists: Option<Arc<dyn SharedLists>>,
        clock: Arc<dyn Clock>,
    ) -> (Self, ListChanges<E>) {
        let (sender, changes) = mpsc::channel(MAX_QUEUED_CHANGES);
        let keeper = Self {
            list: SharedList::new(lists),
            clock,
            changes,
            logged_error: None,
            pause: POLL_INTERVAL,
        };
        (keeper, ListChanges(sender))
    }

    /// The entries when the gateway starts, which it does without them as well.
    pub(in crate::app) async fn first(&mut self) -> Vec<Arc<E>> {
        if let Err(error) = self.list.look(self.clock.now()).await {
            self.cannot_read(&ListError::from(error));
        }
        self.list.latest().to_vec()
    }

    /// Makes changes, and follows those of others.
    pub(in crate::app) async fn follow(&mut self, target: &impl ListTarget<E>) -> Infallible {
        loop {
            let pause = self.pause.mul_f64(rand::random_range(0.75..MAX_JITTER));
            tokio::select! {
                Some(change) = self.changes.recv() => self.make(change, target).await,
                () = sleep(pause) => self.poll(target).await,
            }
        }
    }

    async fn poll(&mut self, target: &impl ListTarget<E>) {
        match self.look(target).await {
            Ok(()) => self.can_read(),
            Err(error) => self.cannot_read(&error),
        }
    }

    /// Reads what others have changed, and removes what has ended.
    async fn look(&mut self, target: &impl ListTarget<E>) -> Result<(), ListError> {
        let now = self.clock.now();
        // What has ended is not read again when the list has changed.
        let ended = self.list.ended(now);
        let change = self.list.look(now).await?;
        if change == ListChange::Restored {
            E::log_restored(self.list.entries.len());
        }
        let any_ended = !ended.is_empty();
        // A user who may read may have no right to change anything.
        if any_ended && let Err(error) = self.remove(ended, target).await {
            tracing::debug!(%error, "{} that have ended are left for others to remove", E::PLURAL);
        }
        if any_ended || change != ListChange::Nothing {
            target.put_in_force(self.list.latest());
        }
        Ok(())
    }

    async fn remove(
        &mut self,
        ended: Vec<(String, Arc<E>)>,
        target: &impl ListTarget<E>,
    ) -> Result<(), StoreError> {
        let (texts, ended): (Vec<_>, Vec<_>) = ended.into_iter().unzip();
        let removed = self.list.change(Vec::new(), texts, self.clock.now());
        // If none was there any more, another gateway was faster, and has logged it.
        if removed.await? > 0 {
            ended.iter().for_each(|entry| target.log_ended(entry));
        }
        Ok(())
    }

    async fn make(&mut self, change: Change<E>, target: &impl ListTarget<E>) {
        // The client may not wait any more.
        match change {
            Change::Look(reply) => {
                let _ = reply.send(self.look(target).await);
            }
            Change::Set(wanted, reply) => {
                let _ = reply.send(self.set(wanted, target).await);
            }
            Change::Delete(key, reply) => {
                let _ = reply.send(self.delete(&key, target).await);
            }
        }
    }

    async fn set(
        &mut self,
        wanted: Arc<E>,
        target: &impl ListTarget<E>,
    ) -> Result<Vec<String>, ListError> {
        self.look(target).await?;
        let key = wanted.key();
        let others = self.list.latest().iter().filter(|entry| entry.key() != key);
        let others: Vec<_> = others.cloned().collect();
        let warnings = target.check(&wanted, &others).map_err(ListError::Refused)?;
        if wanted.has_ended(self.clock.now()) {
            let why = "until: this is in the past; write a later moment, or `for`".to_owned();
            return Err(ListError::Refused(vec![why]));
        }
        let entry = wanted.to_shared();
        if entry.text.len() > E::MAX_BYTES {
            let why = format!(
                "the {} takes {} bytes with its id and comment; shorten them to {}",
                E::NOUN,
                entry.text.len(),
                E::MAX_BYTES
            );
            return Err(ListError::Refused(vec![why]));
        }
        let mut earlier = self.list.texts_of(&key);
        if earlier.is_empty() && others.len() >= MAX_ENTRIES {
            return Err(ListError::Full(E::full()));
        }
        earlier.retain(|text| *text != entry.text);
        let change = self.list.change(vec![entry], earlier, self.clock.now());
        change.await?;
        target.put_in_force(self.list.latest());
        Ok(warnings)
    }

    async fn delete(
        &mut self,
        key: &E::Key,
        target: &impl ListTarget<E>,
    ) -> Result<Option<Arc<E>>, ListError> {
        self.look(target).await?;
        let deleted = self.list.latest().iter().find(|entry| entry.key() == *key);
        let Some(deleted) = deleted.cloned() else {
            return Ok(None);
        };
        let texts = self.list.texts_of(key);
        let change = self.list.change(Vec::new(), texts, self.clock.now());
        change.await?;
        target.put_in_force(self.list.latest());
        Ok(Some(deleted))
    }

    fn can_read(&mut self) {
        self.pause = POLL_INTERVAL;
        if self.logged_error.take().is_some() {
            tracing::info!("{} can be read again", E::PLURAL);
        }
    }

    /// Known entries stay in force.
    fn cannot_read(&mut self, error: &ListError) {
        let is =
            |kind: fn(&StoreError) -> bool| matches!(error, ListError::Store(error) if kind(error));
        self.pause = match is(StoreError::is_forbidden) {
            true => POLL_FORBIDDEN,
            false => POLL_INTERVAL,
        };
        let cause = error.to_string();
        // Once the circuit breaker is open, failures no longer have the cause that opened it.
        let is_logged = |logged: &String| *logged == cause || is(StoreError::is_out_of_reach);
        if !self.logged_error.as_ref().is_some_and(is_logged) {
            tracing::warn!(
                cause,
                "{} cannot be read; those that are known stay in force",
                E::PLURAL
            );
            self.logged_error = Some(cause);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;
    use parking_lot::Mutex;
    use weir_limit::time::{ManualClock, Timestamp};

    use super::super::moment;
    use super::super::tests::{Lists, Note, is_forbidden, note};
    use super::*;

    const NOW: u64 = 1_000_000_000_000;

    /// What entries were put in force, and which were logged as ended.
    #[derive(Default)]
    struct Target {
        in_force: Mutex<Vec<Arc<Note>>>,
        ended: Mutex<Vec<String>>,
    }

    impl ListTarget<Note> for Target {
        fn put_in_force(&self, entries: &[Arc<Note>]) {
            *self.in_force.lock() = entries.to_vec();
        }

        fn log_ended(&self, note: &Note) {
            self.ended.lock().push(note.id.clone());
        }
    }

    impl Target {
        fn ids(&self) -> Vec<String> {
            let in_force = self.in_force.lock();
            in_force.iter().map(|note| note.id.clone()).collect()
        }
    }

    fn now() -> Timestamp {
        moment(NOW)
    }

    fn keeper_of(lists: &Arc<Lists>, clock: &ManualClock) -> (ListKeeper<Note>, ListChanges<Note>) {
        let lists = Some(Arc::<Lists>::clone(lists) as Arc<dyn SharedLists>);
        ListKeeper::new(lists, Arc::new(clock.clone()))
    }

    fn keeper(lists: &Arc<Lists>, clock: &ManualClock) -> ListKeeper<Note> {
        keeper_of(lists, clock).0
    }

    /// A note that ends so many seconds after `NOW`, if it ends.
    fn lasting(id: &str, seconds: Option<u64>) -> Arc<Note> {
        Arc::new(note(id, seconds.map(|seconds| NOW + 1000 * seconds)))
    }

    fn other_list(lists: &Arc<Lists>) -> SharedList<Note> {
        SharedList::new(Some(Arc::<Lists>::clone(lists)))
    }

    #[tokio::test]
    async fn a_gateway_that_may_not_remove_what_ended_is_not_late_to_learn_what_others_set() {
        let (lists, clock) = (Arc::new(Lists::default()), ManualClock::new(now()));
        let target = Target::default();
        let mut other = other_list(&lists);
        let short = vec![lasting("short", Some(1)).to_shared()];
        other.change(short, Vec::new(), now()).await.unwrap();
        let mut keeper = keeper(&lists, &clock);
        assert_eq!(keeper.first().await.len(), 1);

        *lists.change_fails.lock() = Some(is_forbidden);
        clock.advance(Duration::from_secs(2));
        keeper.poll(&target).await;
        assert_eq!(
            (keeper.pause, keeper.logged_error.as_deref()),
            (POLL_INTERVAL, None)
        );
        *lists.change_fails.lock() = None;
        let long = vec![lasting("long", None).to_shared()];
        other.change(long, Vec::new(), clock.now()).await.unwrap();
        *lists.change_fails.lock() = Some(is_forbidden);
        keeper.poll(&target).await;
        assert_eq!(target.ids(), ["long"]);
    }

    /// A Cluster was asked each second for what its user may not read.
    #[test]
    fn a_list_that_may_not_be_read_is_not_asked_for_each_second_of_a_cluster_either() {
        let in_cluster = || StoreError::Node {
            node: "10.0.0.1:7000".into(),
            allowed: None,
            source: Box::new(is_forbidden()),
        };
        let lists = Arc::new(Lists::default());
        for refused in [is_forbidden(), in_cluster()] {
            let mut keeper = keeper(&lists, &ManualClock::new(now()));
            keeper.cannot_read(&ListError::Store(refused));
            assert_eq!(keeper.pause, POLL_FORBIDDEN);
        }
    }

    #[tokio::test]
    async fn no_entry_ends_unsaid_because_another_is_set_at_the_same_time() {
        let (lists, clock) = (Arc::new(Lists::default()), ManualClock::new(now()));
        let target = Target::default();
        let mut keeper = keeper(&lists, &clock);
        for wanted in [lasting("first", Some(1)), lasting("second", Some(3))] {
            keeper.set(wanted, &target).await.unwrap();
        }
        // Here there is no poll in between, and the list is read again.
        clock.advance(Duration::from_secs(2));
        keeper.set(lasting("third", None), &target).await.unwrap();
        assert_eq!(*target.ended.lock(), ["first"]);
        // Here the list has been changed by another, too.
        clock.advance(Duration::from_secs(2));
        let mut other = other_list(&lists);
        let fourth = vec![lasting("fourth", None).to_shared()];
        other.change(fourth, Vec::new(), now()).await.unwrap();
        keeper.poll(&target).await;
        keeper.poll(&target).await;
        assert_eq!(*target.ended.lock(), ["first", "second"]);
        assert_eq!(target.ids(), ["fourth", "third"]);
    }

    /// Each change read all that were there already, which took most of its time.
    #[tokio::test]
    async fn an_entry_that_stays_is_not_read_again_when_another_is_set() {
        let (lists, clock) = (Arc::new(Lists::default()), ManualClock::new(now()));
        let target = Target::default();
        let mut keeper = keeper(&lists, &clock);
        keeper.set(lasting("first", None), &target).await.unwrap();
        let before = keeper.list.latest().to_vec();
        keeper.set(lasting("second", None), &target).await.unwrap();
        assert_eq!(target.ids(), ["first", "second"]);
        let first = Arc::clone(&target.in_force.lock()[0]);
        assert!(Arc::ptr_eq(&first, &before[0]));
    }

    #[tokio::test]
    async fn an_entry_that_is_set_while_ended_ones_are_dropped_is_not_lost() {
        let (lists, clock) = (Arc::new(Lists::default()), ManualClock::new(now()));
        let target = Target::default();
        let (mut keeper, changes) = keeper_of(&lists, &clock);
        keeper
            .set(lasting("short", Some(1)), &target)
            .await
            .unwrap();
        *lists.change_waits.lock() = true;
        clock.advance(Duration::from_secs(2));
        let mut set = pin!(changes.set(note("long", None)));
        {
            let mut poll = pin!(keeper.poll(&target));
            assert!(poll.as_mut().now_or_never().is_none(), "it does not wait");
            assert!(set.as_mut().now_or_never().is_none());
            lists.go_on.notify_one();
            poll.await;
        }
        *lists.change_waits.lock() = false;
        tokio::select! {
            never = keeper.follow(&target) => match never {},
            set = set => {
                set.unwrap();
            }
        }
        assert_eq!(target.ids(), ["long"]);
    }

    /// What another gateway has changed is seen after one pause at most.
    #[test]
    fn changes_are_looked_for_often_enough_to_hold_within_two_seconds() {
        let longest = POLL_INTERVAL.mul_f64(MAX_JITTER);
        assert!(longest + Duration::from_millis(500) < Duration::from_secs(2));
    }
}
