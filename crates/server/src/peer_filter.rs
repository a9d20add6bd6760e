//! Refuses connections of some peers before they exist: the kernel drops their handshakes by a
//! filter on each listening socket. Where it may not be asked, such connections are closed when they
//! are accepted, before anything is allocated for them.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use socket2::SockRef;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::task::AbortOnDropHandle;
use weir_socket_filter::{PeerSet, Program, attach, detach};
use weir_telemetry::{Counter, RefusalMetrics};

/// The target of log lines, which filters name.
const TARGET: &str = "weir::server::peer_filter";

/// How often a filter is attached again. During a takeover two processes have the same sockets, and
/// the predecessor may be the last to attach its own.
const ATTACH_AGAIN: Duration = Duration::from_secs(10);

/// How often the kernel is asked how much it has dropped.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// The peers whose connections are refused.
#[derive(Debug)]
pub struct FilteredPeers {
    /// What the kernel drops: as many of the peers as it takes.
    pub program: Program,
    /// All of them.
    pub peers: PeerSet,
    /// How many networks and single addresses the kernel drops.
    pub count: usize,
    /// How many more there are.
    pub left_out: usize,
}

/// Refuses the connections of the same peers on all listeners that have it. Clones share it.
#[derive(Clone, Debug)]
pub struct PeerFilter(Arc<FilterState>);

#[derive(Debug)]
struct FilterState {
    /// None if all peers are welcome. For those who accept connections.
    refused: ArcSwapOption<FilteredPeers>,
    /// Tells listeners of a change.
    changes: watch::Sender<()>,
    /// Whether the log says already that the kernel takes filters, and that it refuses them.
    is_granted: AtomicBool,
    is_denied: AtomicBool,
    /// How many connections came of peers that the kernel's filter has no room for.
    beyond: AtomicU32,
    /// What sockets had dropped when they were last asked. Several workers may share one.
    drops: Mutex<HashMap<u64, u32>>,
    metrics: RefusalMetrics,
}

impl PeerFilter {
    /// Nobody is refused at first.
    pub fn new(metrics: RefusalMetrics) -> Self {
        Self(Arc::new(FilterState {
            refused: ArcSwapOption::empty(),
            changes: watch::Sender::new(()),
            is_granted: AtomicBool::new(false),
            is_denied: AtomicBool::new(false),
            beyond: AtomicU32::new(0),
            drops: Mutex::default(),
            metrics,
        }))
    }

    /// Refuses these peers from now on, and nobody else. `None` lets all in.
    pub fn refuse(&self, refused: Option<FilteredPeers>) {
        let (count, left_out) = refused
            .as_ref()
            .map_or((0, 0), |it| (it.count, it.left_out));
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.0.metrics.peers.set(number(count));
        self.0.metrics.left_out.set(number(left_out));
        self.0.refused.store(refused.map(Arc::new));
        self.0.changes.send_replace(());
    }

    /// Has all listeners attach the filter again, or take it away again, as another process may have
    /// attached its own.
    pub fn attach_again(&self) {
        self.0.changes.send_replace(());
    }

    /// Filters on this listener until [`ListenerFilter::end`]. Must be called on the runtime that
    /// accepts.
    pub(super) fn on(&self, listener: &Arc<TcpListener>) -> ListenerFilter {
        let state = Arc::new(ListenerState {
            filter: self.clone(),
            mode: AtomicU8::new(OFF),
            at_accept: self.0.metrics.at_accept(),
        });
        // At once, so that a successor is never without.
        state.apply(listener);
        let following = Arc::clone(&state).follow(Arc::clone(listener), self.0.changes.subscribe());
        ListenerFilter {
            state,
            task: AbortOnDropHandle::new(tokio::spawn(following)),
        }
    }

    /// Whether to begin a connection of UDP with a peer. The kernel may have dropped its packets,
    /// or not yet; or not at all.
    pub(super) fn admits(&self, peer: IpAddr) -> bool {
        let is_refused = self.0.refuses(peer, |refused| refused.left_out == 0);
        if is_refused {
            self.0.metrics.at_accept().inc();
        }
        !is_refused
    }

    /// Filters on a socket of UDP, on which packets with a long header begin connections. Never
    /// ends; the socket keeps the filter that it has when this is dropped. Sockets of UDP take
    /// filters without a right, so nothing is said of it.
    pub(super) async fn follow_long_headers(&self, socket: UdpSocket) -> Infallible {
        let mut changes = self.0.changes.subscribe();
        let mut is_filtered = false;
        loop {
            let refused = self.0.refused.load_full();
            if !is_filtered {
                // What its buffer had no room for meanwhile is no peer's.
                self.forget_drops(&socket);
            }
            let applied = match &refused {
                // The one before would go on to drop those who were let in since.
                Some(refused) => attach((&socket).into(), &refused.program.of_long_headers())
                    .or_else(|error| detach((&socket).into()).and(Err(error))),
                None => detach((&socket).into()),
            };
            if let (Err(error), None) = (&applied, &refused) {
                not_detached(error);
            }
            if is_filtered {
                self.count_drops(&socket);
            }
            is_filtered = refused.is_some() && applied.is_ok();
            loop {
                tokio::select! {
                    changed = changes.changed() => match changed {
                        Ok(()) => break,
                        Err(_) => return std::future::pending().await,
                    },
                    () = sleep(COUNT_INTERVAL), if is_filtered => self.count_drops(&socket),
                }
            }
        }
    }

    /// Counts what a socket has dropped since the last time.
    fn count_drops(&self, listener: &impl AsFd) {
        let Some((socket, now)) = dropped(listener) else {
            return;
        };
        if let Some(before) = self.0.drops.lock().insert(socket, now) {
            let drops = u64::from(now.wrapping_sub(before));
            self.0.metrics.by_kernel().inc_by(drops);
        }
    }

    /// Counts nothing that a socket has dropped until now.
    fn forget_drops(&self, socket: &impl AsFd) {
        if let Some((socket, now)) = dropped(socket) {
            self.0.drops.lock().insert(socket, now);
        }
    }

    /// Logs once that the kernel takes filters.
    fn granted(&self) {
        if !self.0.is_granted.swap(true, Ordering::Relaxed) {
            tracing::info!(target: TARGET, "the kernel drops connections of banned peers");
        }
    }

    /// Logs once why the kernel takes no filter.
    fn denied(&self, error: &io::Error) {
        if self.0.is_denied.swap(true, Ordering::Relaxed) {
            return;
        }
        let remedy = match error.kind() {
            ErrorKind::PermissionDenied => {
                "grant the capability CAP_NET_ADMIN (systemd: AmbientCapabilities), or write \
                 `in_kernel: off`"
            }
            ErrorKind::OutOfMemory => "raise net.core.optmem_max, or write `in_kernel: off`",
            _ => "write `in_kernel: off` to leave the kernel alone",
        };
        tracing::warn!(
            target: TARGET,
            %error,
            remedy,
            "the kernel drops no connections for this process; those of banned peers are closed \
             when they are accepted"
        );
    }
}

impl FilterState {
    /// Whether to refuse a connection of this peer. Where the filter has no room for all, one in
    /// [`COUNTED_PART`] is not, unless `all` are refused.
    fn refuses(&self, peer: IpAddr, all: impl Fn(&FilteredPeers) -> bool) -> bool {
        let refused = self.refused.load();
        let refused = refused.as_ref().filter(|it| it.peers.contains(peer));
        refused.is_some_and(|it| all(it) || !self.is_counted())
    }

    /// The same, where the kernel has dropped the connections of all that its filter has room for.
    fn refuses_beyond_the_kernel(&self, peer: IpAddr) -> bool {
        let refused = self.refused.load();
        // Where all have room nobody else is looked up.
        let has_others = refused.as_ref().is_some_and(|it| it.left_out > 0);
        has_others && self.refuses(peer, |_| false)
    }

    /// Whether a connection that the filter has no room for is served, to be counted.
    fn is_counted(&self) -> bool {
        let number = self.beyond.fetch_add(1, Ordering::Relaxed);
        number.is_multiple_of(COUNTED_PART)
    }
}

/// Of the connections of peers that the kernel's filter has no room for, one in so many is served, so
/// that its request is counted: those who come most often belong into the filter.
const COUNTED_PART: u32 = 8;

/// Nobody is refused.
const OFF: u8 = 0;
/// The kernel refuses, and accepted connections may have inherited the filter.
const BY_KERNEL: u8 = 1;
/// Connections are closed when they are accepted.
const AT_ACCEPT: u8 = 2;

#[derive(Debug)]
struct ListenerState {
    filter: PeerFilter,
    mode: AtomicU8,
    at_accept: Counter,
}

/// The filter on one listening socket.
#[derive(Debug)]
pub(super) struct ListenerFilter {
    state: Arc<ListenerState>,
    task: AbortOnDropHandle<()>,
}

impl ListenerFilter {
    /// Whether to serve an accepted connection. The filter that it has inherited is taken off it, or
    /// each of its packets would be looked at.
    pub(super) fn admits(&self, stream: &TcpStream, peer: IpAddr) -> bool {
        let mode = self.state.mode.load(Ordering::Relaxed);
        if mode != OFF && self.state.refuses(mode, peer) {
            self.state.at_accept.inc();
            // By a reset: after a FIN the kernel keeps each of them for a minute, for a client that
            // need not answer.
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
            return false;
        }
        if mode == BY_KERNEL {
            let _ = detach(SockRef::from(stream));
        }
        true
    }

    /// Attaches and detaches no more. The socket keeps the filter that it has.
    pub(super) async fn end(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

impl ListenerState {
    /// Whether to close an accepted connection of this peer.
    fn refuses(&self, mode: u8, peer: IpAddr) -> bool {
        match mode {
            AT_ACCEPT => self.filter.0.refuses(peer, |_| true),
            _ => self.filter.0.refuses_beyond_the_kernel(peer),
        }
    }

    /// Keeps the filter of the socket up to date.
    async fn follow(self: Arc<Self>, listener: Arc<TcpListener>, mut changes: watch::Receiver<()>) {
        self.filter.count_drops(&listener);
        let mut again = Instant::now() + ATTACH_AGAIN;
        // Even without a filter a look after a while: the predecessor may have attached one.
        let mut is_idle = false;
        loop {
            let count = sleep_until((Instant::now() + COUNT_INTERVAL).min(again));
            tokio::select! {
                changed = changes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.apply(&listener);
                    again = Instant::now() + ATTACH_AGAIN;
                    is_idle = false;
                }
                () = count, if !is_idle => {
                    self.filter.count_drops(&listener);
                    if Instant::now() >= again {
                        is_idle = !self.apply(&listener);
                        if is_idle {
                            // What was accepted since has no filter.
                            self.mode.store(OFF, Ordering::Relaxed);
                        }
                        again = Instant::now() + ATTACH_AGAIN;
                    }
                }
            }
        }
    }

    /// Brings the socket to what is refused now. Returns whether anybody is.
    fn apply(&self, listener: &TcpListener) -> bool {
        let refused = self.filter.0.refused.load();
        let Some(refused) = refused.as_ref() else {
            let detached = detach(SockRef::from(listener));
            if let Err(error) = detached {
                not_detached(&error);
            }
            match self.mode.load(Ordering::Relaxed) {
                OFF => {}
                AT_ACCEPT => self.mode.store(OFF, Ordering::Relaxed),
                _ => {
                    self.filter.0.metrics.in_kernel.set(0);
                }
            }
            return false;
        };
        let mode = match attach(SockRef::from(listener), &refused.program) {
            Ok(()) => {
                self.filter.granted();
                BY_KERNEL
            }
            Err(error) => {
                self.filter.denied(&error);
                // One of a predecessor that had the right.
                let _ = detach(SockRef::from(listener));
                AT_ACCEPT
            }
        };
        self.mode.store(mode, Ordering::Relaxed);
        let in_kernel = i64::from(mode == BY_KERNEL);
        self.filter.0.metrics.in_kernel.set(in_kernel);
        true
    }
}

fn not_detached(error: &io::Error) {
    tracing::error!(
        target: TARGET,
        %error,
        "the filter of a listening socket stays, and may drop connections"
    );
}

/// A number of the socket, and how many packets it has dropped; `None` where the system does not
/// say it.
#[cfg(target_os = "linux")]
fn dropped(listener: &impl AsFd) -> Option<(u64, u32)> {
    let cookie = SockRef::from(listener).cookie().ok()?;
    Some((cookie, weir_socket_filter::dropped(listener.into()).ok()?))
}

#[cfg(not(target_os = "linux"))]
fn dropped(_: &impl AsFd) -> Option<(u64, u32)> {
    None
}

#[cfg(test)]
mod tests {
    use weir_telemetry::Metrics;

    use super::*;

    fn state(left_out: usize) -> ListenerState {
        let filter = PeerFilter::new(Metrics::new().refusals().clone());
        filter.refuse(Some(FilteredPeers {
            program: Program::dropping_nobody(),
            peers: PeerSet::new(["192.0.2.0/24".parse().unwrap()], []),
            count: 0,
            left_out,
        }));
        let at_accept = filter.0.metrics.at_accept();
        ListenerState {
            filter,
            mode: AtomicU8::new(BY_KERNEL),
            at_accept,
        }
    }

    fn served(state: &ListenerState, mode: u8, peer: &str) -> usize {
        let peer = peer.parse().unwrap();
        (0..80).filter(|_| !state.refuses(mode, peer)).count()
    }

    #[test]
    fn of_peers_that_the_filter_has_no_room_for_only_so_many_are_served_as_are_counted() {
        assert_eq!(served(&state(1), BY_KERNEL, "192.0.2.1"), 10);
        assert_eq!(served(&state(1), BY_KERNEL, "198.51.100.1"), 80);
        assert_eq!(served(&state(1), AT_ACCEPT, "192.0.2.1"), 0);
    }

    /// Those who come most often by UDP belong into the filter as well.
    #[test]
    fn of_connections_of_udp_as_many_are_counted_where_the_filter_has_no_room_and_none_where_it_has()
     {
        for (left_out, expected) in [(1, 10), (0, 0)] {
            let state = state(left_out);
            let peer = "192.0.2.1".parse().unwrap();
            let served = (0..80).filter(|_| state.filter.admits(peer)).count();
            assert_eq!(served, expected);
            assert!(state.filter.admits("198.51.100.1".parse().unwrap()));
        }
    }

    #[test]
    fn no_connection_is_closed_at_accept_where_the_kernels_filter_has_room_for_all() {
        assert_eq!(served(&state(0), BY_KERNEL, "192.0.2.1"), 80);
    }
}
