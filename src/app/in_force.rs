//! What is made of the configuration in force, and made anew when there is another.
//!
//! Whoever asks gets what belongs to the configuration that was published last. Workers that
//! followed a publication each in its own time would for that while decide by different limits:
//! one cuts what a bucket owes to what the new limit can, another fills it again by the old one.

use std::convert::Infallible;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::watch;

/// Something made of the configuration `C` in force.
pub(super) struct InForce<C, T> {
    current: ArcSwap<Current<C, T>>,
    make: Mutex<Make<C, T>>,
}

type Make<C, T> = Box<dyn FnMut(&C) -> T + Send>;

struct Current<C, T> {
    made: T,
    /// Has seen the configuration that it was made of, and no later one.
    seen: watch::Receiver<C>,
}

impl<C: Clone, T: Clone> InForce<C, T> {
    /// Makes the first.
    pub(super) fn new(
        mut configurations: watch::Receiver<C>,
        mut make: impl FnMut(&C) -> T + Send + 'static,
    ) -> Self {
        let first = configurations.borrow_and_update().clone();
        let current = Current {
            made: make(&first),
            seen: configurations,
        };
        Self {
            current: ArcSwap::from_pointee(current),
            make: Mutex::new(Box::new(make)),
        }
    }

    /// What belongs to the configuration in force. As long as that stays it costs two loads.
    pub(super) fn get(&self) -> T {
        let current = self.current.load();
        if current.is_in_force() {
            return current.made.clone();
        }
        self.renew();
        self.current.load().made.clone()
    }

    /// Lets go of what belongs to earlier configurations even if nobody asks.
    pub(super) async fn follow(&self) -> Infallible {
        let mut configurations = self.current.load().seen.clone();
        while configurations.changed().await.is_ok() {
            self.renew();
        }
        std::future::pending().await
    }

    fn renew(&self) {
        let mut make = self.make.lock();
        let current = self.current.load();
        if current.is_in_force() {
            return;
        }
        let mut seen = current.seen.clone();
        let configuration = seen.borrow_and_update().clone();
        let made = make(&configuration);
        self.current.store(Arc::new(Current { made, seen }));
    }
}

impl<C, T> Current<C, T> {
    /// The last configuration stays when nobody is left to publish another.
    fn is_in_force(&self) -> bool {
        !self.seen.has_changed().unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(configurations: &watch::Receiver<u32>) -> InForce<u32, String> {
        InForce::new(configurations.clone(), u32::to_string)
    }

    #[test]
    fn whoever_asks_gets_what_belongs_to_the_last_configuration_though_nobody_follows() {
        let (publish, configurations) = watch::channel(1);
        let (one, other) = (texts(&configurations), texts(&configurations));
        assert_eq!((one.get(), other.get()), ("1".into(), "1".into()));
        publish.send_replace(2);
        publish.send_replace(3);
        assert_eq!((one.get(), other.get()), ("3".into(), "3".into()));
        drop(publish);
        assert_eq!(one.get(), "3");
    }

    #[test]
    fn it_is_made_once_for_each_configuration() {
        let (publish, configurations) = watch::channel(1);
        let mut made = 0;
        let counting = InForce::new(configurations, move |_| {
            made += 1;
            made
        });
        assert_eq!((counting.get(), counting.get()), (1, 1));
        publish.send_replace(1);
        assert_eq!((counting.get(), counting.get()), (2, 2));
    }

    #[tokio::test]
    async fn what_is_out_of_force_is_let_go_of_without_a_request() {
        let (publish, configurations) = watch::channel(Arc::new(()));
        let followed = InForce::new(configurations, Arc::clone);
        let first = Arc::downgrade(&followed.get());
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
