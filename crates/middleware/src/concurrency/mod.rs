//! Limits how many requests an upstream has in flight, and sheds those that are too many: the least
//! important first, and fairly among clients. The arithmetic is `weir_limit`'s; here are the locks,
//! the waits and the clock.
//!
//! A slot is held from the request's admission to the head of its response. A body that streams, or
//! a client that reads slowly, keeps no slot: the latency that the limit goes by ends there too.
//! The slot of a client that leaves is held for as long as a response usually takes.

#[cfg(feature = "config")]
mod config;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::{Extensions, Response, StatusCode};
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{
    AdaptiveLimit, Arrival, ConcurrencyBounds, Priority, ServerReply, SlotRequest, Slots, WaiterId,
    places,
};
use weir_rules::{AccessList, Enforcement};
use weir_runtime::loop_time;
use weir_telemetry::{ConcurrencySample, Counter, ShedSample, UpstreamFailed, UpstreamOutcome};

use crate::ClientIdentity;
#[cfg(feature = "config")]
pub use config::ConcurrencyKeys;

/// How long a request may wait while the upstream's latency is unknown.
const DEFAULT_WAIT: Duration = Duration::from_millis(10);

/// Upper bound on the wait that Weir chooses for requests of low or normal priority.
const MAX_WAIT: Duration = Duration::from_millis(500);

/// How long the upstream is taken to work on a request whose client has left, while its latency is
/// unknown.
const DEFAULT_LATENCY: Nanos = Nanos::new(100_000_000);

/// How often it is logged that an upstream is at its limit.
const LOG_INTERVAL: Nanos = Nanos::from_secs(60);

/// How requests in flight to an upstream are limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConcurrencySettings {
    /// Between which numbers the limit adapts; it is fixed where they are the same.
    pub bounds: ConcurrencyBounds,
    /// How long a request waits for a slot; by default, half of the upstream's latency, or
    /// as [`Slots::longest_wait`] says.
    pub max_wait: Option<Duration>,
    /// Whether requests are shed, or only logged and counted.
    pub enforcement: Enforcement,
}

impl ConcurrencySettings {
    /// Whether any request is shed, and not only logged and counted.
    pub fn sheds(&self) -> bool {
        self.enforcement > Enforcement::NONE
    }
}

/// The limit on an upstream's requests in flight. Clones are the same limit, for all workers.
#[derive(Clone)]
pub struct ConcurrencyLimiter {
    settings: ConcurrencySettings,
    shared: Arc<Shared>,
}

/// What outlives a reload.
struct Shared {
    upstream: Arc<str>,
    epoch: Instant,
    state: Mutex<State>,
    /// By priority.
    shed: [AtomicU64; Priority::ALL.len()],
    would_shed: [AtomicU64; Priority::ALL.len()],
}

struct State {
    limit: AdaptiveLimit,
    slots: Slots<oneshot::Sender<Slot>>,
    logged: Option<Timestamp>,
}

/// What becomes of a request that its limits allow.
pub(super) enum Admission {
    Admitted(Slot),
    Waits(SlotWait),
    Shed,
}

impl ConcurrencyLimiter {
    /// A limit for this upstream.
    pub fn new(upstream: &str, settings: ConcurrencySettings) -> Self {
        let shared = Arc::new(Shared {
            upstream: upstream.into(),
            epoch: Instant::now(),
            state: Mutex::new(State {
                limit: AdaptiveLimit::new(settings.bounds, Timestamp::from_nanos(0)),
                slots: Slots::default(),
                logged: None,
            }),
            shed: Default::default(),
            would_shed: Default::default(),
        });
        Self { settings, shared }
    }

    /// The same limit with the settings of another configuration. The requests of both share the
    /// slots: those that the earlier one has admitted are in flight still.
    #[must_use]
    pub fn with_settings(&self, settings: ConcurrencySettings) -> Self {
        let shared = Arc::clone(&self.shared);
        let limiter = Self { settings, shared };
        // A limit that is higher now has slots for those who wait.
        limiter.pass_on(|state, now| state.limit.set_bounds(settings.bounds, now));
        limiter
    }

    /// The name of its upstream.
    pub fn upstream(&self) -> &str {
        &self.shared.upstream
    }

    /// The values for metrics and findings.
    pub fn sample(&self) -> ConcurrencySample {
        let state = self.shared.state.lock();
        let counts = self.shared.shed.iter().zip(&self.shared.would_shed);
        let counts = Priority::ALL.iter().zip(counts);
        let shed = counts.map(|(priority, (shed, would_deny))| ShedSample {
            priority: priority.as_str(),
            shed: shed.load(Relaxed),
            would_deny: would_deny.load(Relaxed),
        });
        ConcurrencySample {
            limit: state.limit.get(),
            taken: state.slots.taken(),
            waiting: state.slots.waiting(),
            shed: shed.collect(),
        }
    }

    /// The latency that is taken for the usual one.
    #[cfg(test)]
    pub(super) fn baseline(&self) -> Option<Duration> {
        self.shared.state.lock().limit.baseline().map(Into::into)
    }

    fn now(&self) -> Timestamp {
        let since = loop_time::now().saturating_duration_since(self.shared.epoch);
        Timestamp::from_nanos(Nanos::from(since).get())
    }

    fn admit(&self, priority: Priority, client: u64, always: bool) -> Admission {
        let now = self.now();
        let settings = &self.settings;
        let mut state = self.shared.state.lock();
        let State { limit, slots, .. } = &mut *state;
        let most = limit.get();
        if always || !settings.enforcement.acts_on_client(client) {
            let is_full = slots.taken() >= most;
            if is_full {
                limit.saturated();
            }
            slots.take(client);
            drop(state);
            let mut slot = self.slot(client, now);
            if is_full && !always {
                count(&self.shared.would_shed, priority);
                slot.would_shed = Some(priority);
            }
            return Admission::Admitted(slot);
        }
        let longest = settings.max_wait.unwrap_or_else(|| {
            let latency = limit.baseline().map(Duration::from);
            let usual = latency.map_or(DEFAULT_WAIT, |latency| (latency / 2).min(MAX_WAIT));
            slots.longest_wait(priority, usual.into(), now).into()
        });
        let queue = match longest.is_zero() {
            true => 0,
            false => places(most),
        };
        let mut receiver = None;
        let sender = || {
            let (sender, waits) = oneshot::channel();
            receiver = Some(waits);
            sender
        };
        let request = SlotRequest {
            priority,
            client,
            now,
        };
        let arrival = slots.arrive(most, queue, request, sender);
        if !matches!(arrival, Arrival::Admitted) || slots.is_short(most) {
            limit.saturated();
        }
        drop(state);
        match (arrival, receiver) {
            (Arrival::Admitted, _) => Admission::Admitted(self.slot(client, now)),
            (Arrival::Waits { id, .. }, Some(receiver)) => Admission::Waits(SlotWait {
                limiter: self.clone(),
                priority,
                id,
                receiver,
                longest,
            }),
            _ => {
                self.count_shed(priority, most, now);
                Admission::Shed
            }
        }
    }

    fn slot(&self, client: u64, admitted: Timestamp) -> Slot {
        Slot {
            limiter: self.clone(),
            client,
            admitted,
            reply: None,
            would_shed: None,
            is_lent: false,
        }
    }

    fn count_shed(&self, priority: Priority, limit: u32, now: Timestamp) {
        count(&self.shared.shed, priority);
        let mut state = self.shared.state.lock();
        let logged = state.logged;
        if logged.is_some_and(|logged| now.since(logged) < LOG_INTERVAL) {
            return;
        }
        state.logged = Some(now);
        drop(state);
        let (upstream, priority) = (&*self.shared.upstream, priority.as_str());
        tracing::warn!(
            target: "weir::middleware::concurrency",
            upstream,
            limit,
            priority,
            "an upstream has as many requests in flight as it can handle; requests are shed"
        );
    }

    /// Gives back a slot.
    fn release(&self, slot: &Slot) {
        self.pass_on(|state, now| {
            state.slots.release(slot.client);
            if let Some(reply) = slot.reply {
                state.limit.replied(slot.admitted, reply, now);
            }
        });
    }

    /// Passes on the slots that are free after a change.
    fn pass_on(&self, change: impl FnOnce(&mut State, Timestamp)) {
        let now = self.now();
        let mut granted = SmallVec::<[_; 1]>::new();
        {
            let mut state = self.shared.state.lock();
            change(&mut state, now);
            let State { limit, slots, .. } = &mut *state;
            while let Some(next) = slots.grant(limit.get(), now) {
                granted.push(next);
            }
            if slots.is_short(limit.get()) {
                limit.saturated();
            }
        }
        // Outside of the lock: a slot that nobody waits for any more is given back when it is
        // dropped.
        for (client, sender) in granted {
            let _ = sender.send(self.slot(client, now));
        }
    }
}

fn count(counts: &[AtomicU64; Priority::ALL.len()], priority: Priority) {
    if let Some(count) = counts.get(priority as usize) {
        count.fetch_add(1, Relaxed);
    }
}

impl fmt::Debug for ConcurrencyLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let upstream = &self.shared.upstream;
        f.debug_struct("ConcurrencyLimiter")
            .field("upstream", upstream)
            .finish_non_exhaustive()
    }
}

/// A request's slot among those in flight, until it is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    limiter: ConcurrencyLimiter,
    client: u64,
    admitted: Timestamp,
    reply: Option<ServerReply>,
    /// The request's priority, if it has a slot because it is in a dry run.
    pub(super) would_shed: Option<Priority>,
    /// Whether it was given back while the request's body is on its way.
    is_lent: bool,
}

impl Slot {
    /// Gives the slot back while the client, not the upstream, is waited for.
    pub(super) fn lend(&mut self) {
        self.limiter.release(self);
        self.is_lent = true;
    }

    /// Takes a slot again, whether one is free or not. Latency counts from now.
    pub(super) fn take_back(&mut self) {
        self.limiter.shared.state.lock().slots.take(self.client);
        self.admitted = self.limiter.now();
        self.is_lent = false;
    }

    pub(super) const fn is_lent(&self) -> bool {
        self.is_lent
    }

    /// Gives the slot back, with the upstream's response, for whose request body the time `upload`
    /// went by; none if the body is still on its way.
    pub(super) fn replied<B>(mut self, response: &Response<B>, upload: Option<Duration>) {
        let latency = self.limiter.now().since(self.admitted);
        let upload = upload.map(Nanos::from);
        self.reply = reply(
            response,
            upload.map(|upload| latency.saturating_sub(upload)),
        );
    }

    /// Gives the slot back, as the client has left before there was a response: when one usually
    /// comes, for the upstream works on. Clients that send requests and leave at once would else
    /// have as many in flight as they like. A request beyond the limit, which only one has that is
    /// never shed, gives its slot back at once: there may be any number of those.
    pub(super) fn abandoned(mut self, upload: Option<Duration>) {
        if self.is_lent {
            return;
        }
        let elapsed = self.limiter.now().since(self.admitted);
        let waited = elapsed.saturating_sub(upload.unwrap_or_default().into());
        // While the body is on its way, a wait says nothing of the upstream.
        self.reply = upload.map(|_| ServerReply::Abandoned(waited));
        let state = self.limiter.shared.state.lock();
        let is_within = state.slots.taken() <= state.limit.get();
        let latency = state.limit.baseline().unwrap_or(DEFAULT_LATENCY);
        drop(state);
        let rest = latency.saturating_sub(waited);
        if is_within
            && rest > Nanos::ZERO
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(async move {
                sleep(rest.into()).await;
                drop(self);
            });
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.is_lent {
            self.limiter.release(self);
        }
    }
}

/// What a response says about the load of its server; none if it says nothing, as a failure that
/// may be quick.
fn reply<B>(response: &Response<B>, latency: Option<Nanos>) -> Option<ServerReply> {
    let extensions = response.extensions();
    if let Some(UpstreamFailed { reason }) = extensions.get() {
        let is_load = matches!(
            *reason,
            "response_timeout" | "total_timeout" | "server_busy" | "refused"
        );
        return is_load.then_some(ServerReply::Overloaded);
    }
    let outcome = extensions.get::<UpstreamOutcome>()?;
    match outcome.status {
        StatusCode::SERVICE_UNAVAILABLE => Some(ServerReply::Overloaded),
        status if status.is_server_error() => None,
        _ => latency.map(ServerReply::Response),
    }
}

/// A request that waits for a slot. It waits no longer when this is dropped.
#[derive(Debug)]
pub(super) struct SlotWait {
    limiter: ConcurrencyLimiter,
    priority: Priority,
    id: WaiterId,
    receiver: oneshot::Receiver<Slot>,
    longest: Duration,
}

impl SlotWait {
    /// Waits for a slot. `None` if the request is shed.
    pub(super) async fn wait(mut self) -> Option<Slot> {
        let slot = match timeout(self.longest, &mut self.receiver).await {
            Ok(slot) => slot.ok(),
            // It may have been granted at the last moment.
            Err(_) => self.receiver.try_recv().ok(),
        };
        if slot.is_none() {
            let (limit, now) = (
                self.limiter.shared.state.lock().limit.get(),
                self.limiter.now(),
            );
            self.limiter.count_shed(self.priority, limit, now);
        }
        slot
    }
}

impl Drop for SlotWait {
    fn drop(&mut self) {
        let given_up = self.limiter.shared.state.lock().slots.give_up(self.id);
        drop(given_up);
    }
}

/// The priorities of clients that are not by their routes alone.
#[derive(Clone, Debug, Default)]
pub struct ClientPriorities(Vec<(Priority, AccessList)>);

impl ClientPriorities {
    /// The first of these lists that a client is on says its priority.
    pub fn new(lists: impl IntoIterator<Item = (Priority, AccessList)>) -> Self {
        let lists = lists.into_iter();
        Self(lists.filter(|(_, list)| !list.is_empty()).collect())
    }

    /// Whether priorities go by accounts.
    pub(super) fn concern_accounts(&self) -> bool {
        self.0.iter().any(|(_, list)| list.has_accounts())
    }

    /// The priority of a client's requests, if it is on a list.
    pub fn of(&self, identity: Option<&ClientIdentity>) -> Option<Priority> {
        let identity = identity?;
        let account = identity.account.as_ref().map(|account| account.id);
        let mut lists = self.0.iter();
        let found = lists.find(|(_, list)| list.find(identity.client.address, account).is_some());
        found.map(|(priority, _)| *priority)
    }
}

/// How requests of a route share their upstream's slots.
#[derive(Clone, Debug)]
pub(crate) struct RouteConcurrency {
    /// The limit of the route's upstream.
    pub(crate) limiter: ConcurrencyLimiter,
    /// The route's priority.
    pub(crate) priority: Priority,
    /// The priorities of clients.
    pub(crate) clients: Arc<ClientPriorities>,
    /// Whether the proxy reads bodies before it sends requests, so that a request with a body asks
    /// for its slot at the [`SendGate`](weir_runtime::send_gate::SendGate).
    pub(crate) reads_bodies_first: bool,
    /// Counts the requests that are shed.
    pub(crate) shed: Counter,
}

impl RouteConcurrency {
    /// What a request asks for a slot by; one that is `always` granted is counted all the same.
    pub(super) fn claim(&self, extensions: &Extensions, always: bool) -> SlotClaim {
        let identity = ClientIdentity::from_extensions(extensions);
        SlotClaim {
            priority: self.priority.of_client(self.clients.of(identity)),
            client: identity.map_or(0, ClientIdentity::fingerprint),
            always,
        }
    }

    /// Asks for a slot.
    pub(super) fn admit(&self, claim: SlotClaim) -> Admission {
        let SlotClaim {
            priority,
            client,
            always,
        } = claim;
        self.limiter.admit(priority, client, always)
    }
}

/// Who asks for a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotClaim {
    pub(super) priority: Priority,
    client: u64,
    always: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(status: StatusCode) -> Option<ServerReply> {
        let mut response = Response::new(());
        response.extensions_mut().insert(UpstreamOutcome {
            server: "app:80".into(),
            status,
            connect: None,
            arrived: Instant::now(),
            head: Duration::from_millis(1),
        });
        reply(&response, Some(Nanos::new(7)))
    }

    fn settings(min: u32, max: u32) -> ConcurrencySettings {
        let of = |bound| std::num::NonZeroU32::new(bound).unwrap();
        ConcurrencySettings {
            bounds: ConcurrencyBounds {
                min: of(min),
                max: of(max),
            },
            max_wait: None,
            enforcement: Enforcement::default(),
        }
    }

    fn limiter(min: u32, max: u32) -> ConcurrencyLimiter {
        ConcurrencyLimiter::new("app", settings(min, max))
    }

    fn admitted(limiter: &ConcurrencyLimiter) -> Slot {
        match limiter.admit(Priority::Normal, 1, false) {
            Admission::Admitted(slot) => slot,
            Admission::Waits(_) | Admission::Shed => panic!("no slot is free"),
        }
    }

    /// Has the limit learn so many times that the upstream is overloaded, 20 ms apart.
    async fn overload(limiter: &ConcurrencyLimiter, times: usize) {
        for _ in 0..times {
            let mut slot = admitted(limiter);
            tokio::time::advance(Duration::from_millis(20)).await;
            slot.reply = Some(ServerReply::Overloaded);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_reload_does_not_forget_the_limit_that_was_found() {
        let first = limiter(1, 1000);
        overload(&first, 1000).await;
        let found = first.sample().limit;
        assert!(found < ConcurrencyBounds::INITIAL, "{found}");
        for (bounds, limit) in [
            ((1, 1000), found),
            ((1, 999), found),
            ((15, 999), 15),
            ((7, 7), 7),
            ((1, 1000), ConcurrencyBounds::INITIAL),
        ] {
            let next = first.with_settings(settings(bounds.0, bounds.1));
            assert_eq!(next.sample().limit, limit, "{bounds:?}");
        }
    }

    /// The app got up to as many requests more as were in flight when the limit was changed.
    #[tokio::test(start_paused = true)]
    async fn a_reload_that_changes_the_limit_does_not_forget_requests_in_flight() {
        let first = limiter(2, 2);
        let slots = [admitted(&first), admitted(&first)];
        let Admission::Waits(wait) = first.admit(Priority::Normal, 2, false) else {
            panic!("both slots are taken");
        };
        let next = first.with_settings(settings(1, 1));
        let late = next.admit(Priority::Normal, 3, false);
        assert!(matches!(late, Admission::Waits(_)));
        drop(late);
        drop(slots);
        let slot = wait.wait().await.expect("a slot");
        assert_eq!((first.sample().taken, next.sample().taken), (1, 1));
        drop(slot);
        drop(admitted(&next));
    }

    /// Each of them had left the upstream a request to work on, and no trace here.
    #[tokio::test(start_paused = true)]
    async fn a_flood_of_clients_that_leave_at_once_does_not_get_past_the_limit() {
        let limiter = limiter(3, 3);
        let flood = async |millis: u64| {
            let mut sent = 0;
            for _ in 0..millis {
                if let Admission::Admitted(slot) = limiter.admit(Priority::Normal, 1, false) {
                    sent += 1;
                    slot.abandoned(Some(Duration::ZERO));
                }
                sleep(Duration::from_millis(1)).await;
            }
            sent
        };
        let sent = flood(1000).await;
        assert!(sent <= 30, "{sent}");
        sleep(Duration::from_secs(1)).await;
        for _ in 0..60 {
            let mut slot = admitted(&limiter);
            sleep(Duration::from_millis(500)).await;
            slot.reply = Some(ServerReply::Response(Nanos::new(500_000_000)));
        }
        let sent = flood(3000).await;
        assert!((15..=18).contains(&sent), "{sent}");
        sleep(Duration::from_secs(1)).await;
        assert_eq!(limiter.sample().taken, 0);
    }

    /// Apps begin to work before the body is there.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_leaves_in_the_middle_of_its_body_does_not_free_its_slot_at_once() {
        let limiter = limiter(1, 1);
        admitted(&limiter).abandoned(None);
        assert_eq!(limiter.sample().taken, 1);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(limiter.sample().taken, 0);
    }

    /// Each was a task that slept.
    #[tokio::test(start_paused = true)]
    async fn requests_beyond_the_limit_whose_clients_leave_are_not_kept_in_any_number() {
        let limiter = limiter(3, 3);
        for _ in 0..100 {
            let Admission::Admitted(slot) = limiter.admit(Priority::Normal, 1, true) else {
                panic!("it is never shed");
            };
            slot.abandoned(Some(Duration::ZERO));
        }
        assert_eq!(limiter.sample().taken, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reload_that_raises_the_limit_leaves_nobody_waiting_for_a_slot_that_is_free() {
        let first = limiter(1, 1);
        let slot = admitted(&first);
        let Admission::Waits(wait) = first.admit(Priority::Normal, 2, false) else {
            panic!("the slot is taken");
        };
        let next = first.with_settings(settings(4, 4));
        drop(wait.wait().await.expect("a slot"));
        drop(admitted(&next));
        drop(slot);
    }

    #[tokio::test(start_paused = true)]
    async fn the_slowest_requests_do_not_go_unseen_because_their_clients_leave() {
        let limiter = limiter(1, 1000);
        let mut least = ConcurrencyBounds::INITIAL;
        for reply in [Some(20), None] {
            for _ in 0..200 {
                let mut slot = admitted(&limiter);
                tokio::time::advance(Duration::from_millis(reply.unwrap_or(200))).await;
                match reply {
                    Some(latency) => {
                        slot.reply = Some(ServerReply::Response(Nanos::new(latency * 1_000_000)));
                    }
                    None => slot.abandoned(Some(Duration::ZERO)),
                }
                least = least.min(limiter.sample().limit);
            }
        }
        // Half is where the usual latency is measured.
        assert!(least < ConcurrencyBounds::INITIAL / 2, "{least}");
    }

    #[test]
    fn a_failure_that_is_quick_does_not_count_as_good_latency() {
        assert_eq!(learned(StatusCode::INTERNAL_SERVER_ERROR), None);
        assert_eq!(learned(StatusCode::BAD_GATEWAY), None);
        let overloaded = Some(ServerReply::Overloaded);
        assert_eq!(learned(StatusCode::SERVICE_UNAVAILABLE), overloaded);
        let response = Some(ServerReply::Response(Nanos::new(7)));
        assert_eq!(learned(StatusCode::OK), response);
        assert_eq!(learned(StatusCode::NOT_FOUND), response);
    }
}
