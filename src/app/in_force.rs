//! What is made of the configuration in force, and made anew when there is another.
//!
//! Whoever asks gets what belongs to the configuration that was published last. Workers that
//! followed a publication each in its own time would for that while decide by different limits:
//! one cuts what a bucket owes to what the new limit can, another fills it again by the old one.

use std::convert::Infallible;

use parking_lot::Mutex;
use tokio::sync::watch;

/// Something made of the configuration `C` in force.
pub(super) struct Reloadable<C, T>(Mutex<Current<C, T>>);

struct Current<C, T> {
    made: T,
    /// Has seen the configuration that it was made of, and no later one.
    seen: watch::Receiver<C>,
    make: Box<dyn FnMut(&C) -> T + Send>,
}

impl<C: Clone, T> Reloadable<C, T> {
    /// Makes the first.
    pub(super) fn new(
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

    /// Uses what belongs to the configuration in force, one caller at a time.
    pub(super) fn with<R>(&self, using: impl FnOnce(&mut T) -> R) -> R {
        let mut current = self.0.lock();
        current.renew();
        using(&mut current.made)
    }

    /// Lets go of what belongs to earlier configurations even if nobody asks.
    pub(super) async fn follow(&self) -> Infallible {
        let mut configurations = self.0.lock().seen.clone();
        while configurations.changed().await.is_ok() {
            self.0.lock().renew();
        }
        std::future::pending().await
    }
}

impl<C: Clone, T> Current<C, T> {
    fn renew(&mut self) {
        // The last configuration stays when nobody is left to publish another.
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
    fn whoever_asks_gets_what_belongs_to_the_last_configuration_though_nobody_follows() {
        let (publish, configurations) = watch::channel(1);
        let (one, other) = (texts(&configurations), texts(&configurations));
        let get = || [&one, &other].map(|it| it.with(|text| text.clone()));
        assert_eq!(get(), ["1", "1"]);
        publish.send_replace(2);
        publish.send_replace(3);
        assert_eq!(get(), ["3", "3"]);
        drop(publish);
        assert_eq!(get(), ["3", "3"]);
    }

    #[test]
    fn it_is_made_once_for_each_configuration() {
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
    async fn what_is_out_of_force_is_let_go_of_without_a_request() {
        let (publish, configurations) = watch::channel(Arc::new(()));
        let followed = Reloadable::new(configurations, Arc::clone);
        let first = followed.with(|it| Arc::downgrade(it));
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
