//! The stacks that a worker serves with, which the first request after a reload replaces.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use weir_middleware::{BackgroundTasks, UpstreamRouter};
use weir_runtime::sync::Mutex;

use super::reloads::Snapshot;
use super::stacks::Stacks;
use super::stores::{Stores, WorkerStores};

/// Upper bound on the wait of a worker for the store after its last request. Calls have their own
/// deadline, so only a failing store takes that long.
const SETTLE_WITHIN: Duration = Duration::from_secs(1);

/// The stacks of a worker over services of its own.
pub(super) struct WorkerStack<S> {
    stacks: Reloadable<Arc<Snapshot>, Stacks<S>>,
    stores: WorkerStores,
    /// Work that outlives responses.
    tasks: BackgroundTasks,
}

impl<S: Clone + 'static> WorkerStack<S> {
    /// A stack of the configuration in force. Must be called on the worker's runtime.
    pub(super) async fn start(
        stores: &Stores,
        snapshots: watch::Receiver<Arc<Snapshot>>,
        mut services: impl FnMut(&Snapshot) -> UpstreamRouter<S> + Send + 'static,
    ) -> io::Result<Self> {
        let (clock, stores) = (stores.clock(), stores.for_worker().await?);
        let tasks = BackgroundTasks::default();
        let (worker_stores, worker_tasks) = (stores.clone(), tasks.clone());
        let stacks = Reloadable::new(snapshots, move |snapshot: &Arc<Snapshot>| {
            let services = services(snapshot);
            let backend = || worker_stores.backend(&snapshot.settings, &clock, &worker_tasks);
            snapshot.layers.stacks(backend, services)
        });
        Ok(Self {
            stacks,
            stores,
            tasks,
        })
    }

    /// Uses the stacks of the configuration in force.
    pub(super) fn with<R>(&self, using: impl FnOnce(&mut Stacks<S>) -> R) -> R {
        self.stacks.with(using)
    }

    /// Drops the stacks of earlier configurations even without requests.
    pub(super) async fn follow(&self) -> Infallible {
        self.stacks.follow().await
    }

    /// Waits until deferred charges and refunds of the last requests are done, and gives back all
    /// that is held; that is done by then, or never.
    pub(super) async fn end(&self) {
        let _ = timeout(SETTLE_WITHIN, self.tasks.settled()).await;
        let _ = timeout(SETTLE_WITHIN, self.stores.end()).await;
    }
}

/// A value made from the configuration `C` in force, and remade when another is published. All
/// users see the last one at once: workers that changed over each in its own time would for a while
/// decide by different limits, where one cuts what a bucket owes to what the new limit can, and
/// another fills it again by the old one.
struct Reloadable<C, T>(Mutex<Current<C, T>>);

struct Current<C, T> {
    made: T,
    /// Has seen the configuration of `made`, and no later one.
    seen: watch::Receiver<C>,
    make: Box<dyn FnMut(&C) -> T + Send>,
}

impl<C: Clone, T> Reloadable<C, T> {
    /// Makes the first.
    fn new(
        mut configurations: watch::Receiver<C>,
        mut make: impl FnMut(&C) -> T + Send + 'static,
    ) -> Self {
        let first = configurations.borrow_and_update().clone();
        Self(Mutex::new(Current {
            made: make(&first),
            seen: configurations,
            make: Box::new(make),
        }))
    }

    /// Uses the value for the configuration in force, one caller at a time.
    fn with<R>(&self, using: impl FnOnce(&mut T) -> R) -> R {
        let mut current = self.0.lock();
        current.renew();
        using(&mut current.made)
    }

    /// Drops the values of earlier configurations even without calls of `with`.
    async fn follow(&self) -> Infallible {
        let mut configurations = self.0.lock().seen.clone();
        while configurations.changed().await.is_ok() {
            self.0.lock().renew();
        }
        pending().await
    }
}

impl<C: Clone, T> Current<C, T> {
    fn renew(&mut self) {
        // If the publisher is gone, the last configuration stays.
        if self.seen.has_changed().unwrap_or(false) {
            let configuration = self.seen.borrow_and_update().clone();
            self.made = (self.make)(&configuration);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn texts(configurations: &watch::Receiver<u32>) -> Reloadable<u32, String> {
        Reloadable::new(configurations.clone(), u32::to_string)
    }

    #[test]
    fn each_use_gets_the_value_of_the_last_configuration_even_if_none_is_followed() {
        let (publish, configurations) = watch::channel(1);
        let (one, other) = (texts(&configurations), texts(&configurations));
        let get = || [&one, &other].map(|texts| texts.with(|text| text.clone()));
        assert_eq!(get(), ["1", "1"]);
        publish.send_replace(2);
        publish.send_replace(3);
        assert_eq!(get(), ["3", "3"]);
        drop(publish);
        assert_eq!(get(), ["3", "3"]);
    }

    #[test]
    fn a_value_is_made_once_for_each_configuration() {
        let (publish, configurations) = watch::channel(1);
        let mut made = 0;
        let counting = Reloadable::new(configurations, move |_| {
            made += 1;
            made
        });
        let twice = || [(); 2].map(|()| counting.with(|number| *number));
        assert_eq!(twice(), [1, 1]);
        publish.send_replace(1);
        assert_eq!(twice(), [2, 2]);
    }

    #[tokio::test]
    async fn values_of_earlier_configurations_are_dropped_without_a_request() {
        let (publish, configurations) = watch::channel(Arc::new(()));
        let followed = Reloadable::new(configurations, Arc::clone);
        let first = followed.with(|first| Arc::downgrade(first));
        let following = async {
            publish.send_replace(Arc::new(()));
            while first.upgrade().is_some() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            never = followed.follow() => match never {},
            () = following => {}
        }
    }
}

#[cfg(all(test, feature = "interleavings"))]
mod interleavings {
    use std::sync::Arc;

    use shuttle::sync::atomic::{AtomicU32, Ordering};
    use shuttle::thread;
    use weir_runtime::sync::in_random_orders;

    use super::*;

    #[test]
    fn whoever_comes_after_a_publication_never_gets_an_earlier_configuration() {
        let law = || {
            let (publish, configurations) = watch::channel(0);
            let published = Arc::new(AtomicU32::new(0));
            let made = Reloadable::new(configurations, |configuration: &u32| *configuration);
            let made = Arc::new(made);
            let users: Vec<_> = (0..3)
                .map(|_| {
                    let (made, published) = (Arc::clone(&made), Arc::clone(&published));
                    thread::spawn(move || {
                        for _ in 0..4 {
                            let before = published.load(Ordering::SeqCst);
                            let got = made.with(|configuration| *configuration);
                            assert!(got >= before, "{got} after {before} was published");
                        }
                    })
                })
                .collect();
            for configuration in 1..4 {
                publish.send_replace(configuration);
                published.store(configuration, Ordering::SeqCst);
            }
            users.into_iter().for_each(|user| user.join().unwrap());
        };
        in_random_orders(law, 5_000);
    }
}
