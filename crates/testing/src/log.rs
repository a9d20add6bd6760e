//! Events that a test looks at.

use std::sync::LazyLock;

use tracing::subscriber::{NoSubscriber, with_default};
use tracing::{Dispatch, Subscriber};

/// There always is another subscriber. If there were only that of a test, a thread without one which
/// meets an event first would decide that nobody wants it, and the test would miss it.
static ANOTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::default()));

/// Has a subscriber get what happens meanwhile on this thread.
pub fn subscribed(subscriber: impl Subscriber + Send + Sync + 'static, events: impl FnOnce()) {
    LazyLock::force(&ANOTHER);
    with_default(subscriber, events);
}
