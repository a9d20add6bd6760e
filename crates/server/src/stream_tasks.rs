//! The tasks of HTTP/2: one for each stream, and one for what a tunnel sends on its stream.
//!
//! When the client's end of a tunnel is dropped, hyper ends the stream in order. A tunnel that broke
//! off has to end with a reset (RFC 8441, section 5). hyper has no call for that, but h2 resets a
//! stream (CANCEL, after what was sent before) when its last handle is dropped before its end, and
//! the task of a tunnel holds that handle: so the task is dropped.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::rt::Executor;
use pin_project_lite::pin_project;
use weir_telemetry::Traffic;

thread_local! {
    /// The traffic of the tunnel whose task hyper is about to spawn.
    static TUNNEL: RefCell<Option<Arc<Traffic>>> = const { RefCell::new(None) };
}

/// A stream becomes a tunnel. Call it right before hyper gets the response: it spawns the tunnel's
/// task in the same poll.
pub(super) fn begin_tunnel(traffic: Arc<Traffic>) {
    TUNNEL.set(Some(traffic));
}

/// Spawns the tasks.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamExecutor;

impl<F> Executor<F> for StreamExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, task: F) {
        let tunnel = TUNNEL.take();
        tokio::spawn(StreamTask { task, tunnel });
    }
}

pin_project! {
    struct StreamTask<F> {
        #[pin]
        task: F,
        // That of a tunnel, for the task of one.
        tunnel: Option<Arc<Traffic>>,
    }
}

impl<F: Future<Output = ()>> Future for StreamTask<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        if this
            .tunnel
            .as_ref()
            .is_some_and(|tunnel| tunnel.is_broken())
        {
            return Poll::Ready(());
        }
        let polled = this.task.poll(cx);
        // If hyper refuses the response, another task must not be taken for the tunnel's.
        TUNNEL.take();
        polled
    }
}
