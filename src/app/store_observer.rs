//! Logs and counts what happens to the store: its calls, its clock, and its outages, which are
//! summarised if there are many.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use weir_redis::ErrorReply;
use weir_store::{Call, ClockOffset, DecisionClock, NodeChange, Observer, OnFailure, StoreError};
use weir_telemetry::events::{self, Chain, LastWarnings};
use weir_telemetry::{Metrics, StoreCallMetrics};

/// The most causes that are logged of one outage. Those that most outages pass through, the errors
/// of a socket and of looking up a name, are fewer than half as many, and so hide none that tells
/// more.
const MAX_CAUSES: usize = 32;

/// The minimum interval of logged outages.
const LOG_OUTAGES_EVERY: Duration = Duration::from_secs(60);

pub(super) struct StoreMetricsObserver {
    on_failure: &'static str,
    decision_clock: DecisionClock,
    metrics: Arc<Metrics>,
    decide: StoreCallMetrics,
    prefetch: StoreCallMetrics,
    refund: StoreCallMetrics,
    reset: StoreCallMetrics,
    clamp: StoreCallMetrics,
    expire: StoreCallMetrics,
    acquire: StoreCallMetrics,
    renew: StoreCallMetrics,
    release: StoreCallMetrics,
    list: StoreCallMetrics,
    share: StoreCallMetrics,
    failures: LastWarnings,
    refusals: LastWarnings,
    wrong_types: LastWarnings,
    peculiarities: LastWarnings,
    /// The last state of the clock.
    clock: Mutex<ClockState>,
    outages: Mutex<Outages>,
    /// By node.
    node_outages: Mutex<HashMap<Box<str>, Outages>>,
}

/// How the gateway's clock compares to the store's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ClockState {
    #[default]
    Right,
    Suspicious,
    Unknown,
}

impl StoreMetricsObserver {
    pub(super) fn new(
        on_failure: OnFailure,
        decision_clock: DecisionClock,
        metrics: &Arc<Metrics>,
    ) -> Self {
        let call = |call| metrics.store_call(call, &StoreError::KINDS);
        Self {
            on_failure: match on_failure {
                OnFailure::Allow => "allow",
                OnFailure::Deny => "deny",
                OnFailure::Local => "local",
            },
            decision_clock,
            metrics: Arc::clone(metrics),
            decide: call("decide"),
            prefetch: call("prefetch"),
            refund: call("refund"),
            reset: call("reset"),
            clamp: call("clamp"),
            expire: call("expire"),
            acquire: call("acquire"),
            renew: call("renew"),
            release: call("release"),
            list: call("list"),
            share: call("share"),
            failures: LastWarnings::default(),
            refusals: LastWarnings::default(),
            wrong_types: LastWarnings::default(),
            peculiarities: LastWarnings::default(),
            clock: Mutex::default(),
            outages: Mutex::default(),
            node_outages: Mutex::default(),
        }
    }

    /// Why the store, or this node of it, cannot be reached, as far as that is known.
    pub(super) fn cause(&self, node: Option<&str>) -> Option<String> {
        match node {
            None => self.outages.lock().cause.clone(),
            Some(node) => self.node_outages.lock().get(node)?.cause.clone(),
        }
    }

    pub(super) fn log_outages(&self) {
        let due = self.outages.lock().due(Instant::now());
        self.log(None, due, None);
        let mut nodes = self.node_outages.lock();
        for (node, outages) in &mut *nodes {
            self.log(Some(node), outages.due(Instant::now()), None);
        }
        nodes.retain(|_, outages| !outages.is_past(Instant::now()));
    }

    fn log(&self, node: Option<&str>, message: Option<OutageMessage>, cause: Option<&StoreError>) {
        match message {
            Some(OutageMessage::Unreachable(times)) => {
                let cause = cause.map(|cause| cause as &dyn Error);
                events::store_unreachable(node, cause, self.on_failure, times);
            }
            Some(OutageMessage::Reachable) => events::store_reachable(node),
            Some(OutageMessage::Flapped(times)) => events::store_flapped(node, times),
            None => {}
        }
    }

    /// Warns of a store that fails now and then. If it cannot be reached at all, the breaker says
    /// so.
    fn warn(&self, failure: &StoreError) {
        let (node, failure) = match failure {
            StoreError::Node { node, source, .. } => (Some(&**node), &**source),
            failure => (None, failure),
        };
        match failure {
            StoreError::Failed(cause) if self.failures.is_due(&kind(&**cause)) => {
                tracing::warn!(
                    node,
                    %cause,
                    "the store failed a call; told once a minute at most, for each kind of error"
                );
            }
            StoreError::Undecided { source, .. } => self.warn(source),
            StoreError::WrongType(cause) if self.wrong_types.is_due(&cause.to_string()) => {
                tracing::warn!(
                    node,
                    %cause,
                    on_failure = self.on_failure,
                    "a key in the store holds something else than a bucket: find out who wrote it, and \
                     delete it; told once a minute at most, for each key"
                );
            }
            StoreError::Forbidden(cause) if self.refusals.is_due(&kind(&**cause)) => {
                tracing::warn!(
                    node,
                    %cause,
                    on_failure = self.on_failure,
                    "the store refuses a command that a limit needs; told once a minute at most, for \
                     each command"
                );
            }
            _ => {}
        }
    }
}

/// What tells errors of the store apart, whichever bucket they are about.
fn kind(cause: &(dyn Error + 'static)) -> String {
    match cause.downcast_ref::<ErrorReply>() {
        Some(reply) => reply.kind(),
        None => without_digits(&cause.to_string()),
    }
}

impl ClockState {
    /// Records a measurement, and returns whether to warn of it. A clock that wavers around the
    /// threshold is warned of once, until it has been well within.
    fn becomes_suspicious(&mut self, offset: ClockOffset) -> bool {
        let was_suspicious = *self == Self::Suspicious;
        let is_suspicious = match was_suspicious {
            true => !offset.is_within_half_the_tolerance(),
            false => offset.is_suspicious(),
        };
        match is_suspicious {
            true => self.becomes(Self::Suspicious),
            false => {
                *self = Self::Right;
                false
            }
        }
    }

    /// Returns whether this is a change.
    fn becomes(&mut self, state: Self) -> bool {
        std::mem::replace(self, state) != state
    }
}

impl Observer for StoreMetricsObserver {
    fn called(&self, call: Call, took: Duration, failure: Option<&StoreError>) {
        if let Some(failure) = failure {
            self.warn(failure);
        }
        let metrics = match call {
            Call::Decide => &self.decide,
            Call::Prefetch => &self.prefetch,
            Call::Refund => &self.refund,
            Call::Reset => &self.reset,
            Call::Clamp => &self.clamp,
            Call::Expire => &self.expire,
            Call::Acquire => &self.acquire,
            Call::Renew => &self.renew,
            Call::Release => &self.release,
            Call::List => &self.list,
            Call::Share => &self.share,
        };
        metrics.called(took, failure.map(StoreError::kind));
    }

    fn state_changed(&self, reachable: bool, cause: Option<&StoreError>) {
        self.metrics.store_reachable(reachable);
        let now = Instant::now();
        let message = self.outages.lock().changed(reachable, cause, now);
        self.log(None, message, cause);
    }

    fn node_changed(&self, node: &str, change: NodeChange<'_>) {
        let (reachable, cause) = match change {
            NodeChange::Joined => return self.metrics.node_reachable(node, true),
            NodeChange::Left => {
                let mut outages = self.node_outages.lock();
                if outages.get_mut(node).is_some_and(Outages::left) {
                    events::store_node_left(node);
                }
                return self.metrics.node_left(node);
            }
            NodeChange::Unreachable(cause) => (false, Some(cause)),
            NodeChange::Reachable => (true, None),
        };
        self.metrics.node_reachable(node, reachable);
        let mut outages = self.node_outages.lock();
        let outages = outages.entry(node.into()).or_default();
        let message = outages.changed(reachable, cause, Instant::now());
        self.log(Some(node), message, cause);
    }

    fn still_unreachable(&self, node: Option<&str>, cause: &StoreError) {
        // That is known, and no cause.
        if matches!(cause, StoreError::OutOfReach) {
            return;
        }
        let remains = |outages: &mut Outages, text: &str| {
            outages.cause = in_short(cause);
            outages.is_news(text)
        };
        let cause = Chain(cause).to_string();
        let is_news = match node {
            None => remains(&mut self.outages.lock(), &cause),
            Some(node) => {
                let mut outages = self.node_outages.lock();
                let outages = outages.get_mut(node);
                outages.is_some_and(|outages| remains(outages, &cause))
            }
        };
        if is_news {
            events::store_still_unreachable(node, &cause);
        }
    }

    fn refuses_commands(&self, node: Option<&str>, cause: &StoreError) {
        let cause = cause.source().unwrap_or(cause);
        events::store_refuses_commands(node, cause, self.on_failure);
    }

    fn refuses_no_command(&self, node: Option<&str>) {
        events::store_refuses_no_command(node);
    }

    fn server_is_peculiar(&self, why: &str) {
        if self.peculiarities.is_due(why) {
            events::store_is_peculiar(why);
        }
    }

    fn clock_measured(&self, node: Option<&str>, offset: Result<ClockOffset, &dyn Error>) {
        if let Some(node) = node {
            // What the store as a whole has is told beside it.
            if let Ok(offset) = offset {
                self.metrics.node_clock_offset(node, offset.seconds());
            }
            return;
        }
        match offset {
            Ok(offset) => {
                let seconds = offset.seconds();
                self.metrics.store_clock_offset(seconds);
                self.metrics.store_clock_slew(self.decision_clock.slew());
                if self.clock.lock().becomes_suspicious(offset) {
                    events::store_clock_differs(seconds, self.decision_clock.follows_store());
                }
            }
            Err(cause) if self.clock.lock().becomes(ClockState::Unknown) => {
                events::store_clock_unknown(cause);
            }
            Err(_) => {}
        }
    }

    fn clock_stepped(&self, seconds: f64) {
        events::store_clock_stepped(seconds);
    }

    fn primary_named(&self, primary: &str) {
        tracing::info!(primary, "the Sentinels name the store's primary");
    }

    fn sentinel_changed(&self, sentinel: &str, failure: Option<&dyn Error>) {
        match failure {
            Some(cause) => tracing::warn!(
                sentinel,
                %cause,
                "a Sentinel fails; told once a minute at most"
            ),
            None => tracing::info!(sentinel, "a Sentinel answers again"),
        }
    }
}

/// The outages of a store, and which of them were logged.
#[derive(Debug, Default)]
struct Outages {
    /// When an outage was logged last.
    logged: Option<Instant>,
    /// Whether the log's last word is that the store cannot be reached.
    open: bool,
    /// The number of outages that were not logged.
    unlogged: u64,
    unreachable: bool,
    /// Why, as it was found last.
    cause: Option<String>,
    /// The causes of the present outage that were logged, without digits.
    causes: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutageMessage {
    /// The store cannot be reached, for the nth time since the last message.
    Unreachable(u64),
    Reachable,
    /// It could not be reached n times since the last message, and now can.
    Flapped(u64),
}

impl Outages {
    fn changed(
        &mut self,
        reachable: bool,
        cause: Option<&StoreError>,
        now: Instant,
    ) -> Option<OutageMessage> {
        self.unreachable = !reachable;
        self.cause = cause.and_then(in_short);
        if reachable {
            let closes = std::mem::take(&mut self.open) && self.unlogged == 0;
            return closes.then_some(OutageMessage::Reachable);
        }
        self.unlogged += 1;
        let message = self.due(now);
        self.causes
            .extend(cause.map(|cause| without_digits(&Chain(cause).to_string())));
        message
    }

    /// Ends the outage of a node that is no longer asked, and returns whether the log's last word
    /// was that it cannot be reached. What was logged stays known, as the node may come back.
    fn left(&mut self) -> bool {
        self.unreachable = false;
        self.unlogged = 0;
        std::mem::take(&mut self.open)
    }

    /// Whether nothing follows from these outages any more.
    fn is_past(&self, now: Instant) -> bool {
        let is_old = |logged| now - logged >= LOG_OUTAGES_EVERY;
        !self.unreachable && !self.open && self.unlogged == 0 && self.logged.is_none_or(is_old)
    }

    /// Returns whether to log this cause of an outage that was logged before: each once, and not
    /// more than [`MAX_CAUSES`].
    fn is_news(&mut self, cause: &str) -> bool {
        let cause = without_digits(cause);
        let is_news = self.open && self.causes.len() < MAX_CAUSES && !self.causes.contains(&cause);
        if is_news {
            self.causes.push(cause);
        }
        is_news
    }

    /// Returns the message that was held back, once it is due.
    fn due(&mut self, now: Instant) -> Option<OutageMessage> {
        let may = self
            .logged
            .is_none_or(|logged| now - logged >= LOG_OUTAGES_EVERY);
        if !may || self.unlogged == 0 {
            return None;
        }
        self.logged = Some(now);
        self.open = self.unreachable;
        self.causes.clear();
        let times = std::mem::take(&mut self.unlogged);
        Some(match self.unreachable {
            true => OutageMessage::Unreachable(times),
            false => OutageMessage::Flapped(times),
        })
    }
}

/// What lies behind an outage.
fn in_short(cause: &StoreError) -> Option<String> {
    match cause {
        StoreError::OutOfReach => None,
        cause => Some(Chain(cause.source().unwrap_or(cause)).to_string()),
    }
}

/// What tells causes apart: by how many seconds a clock is off does not.
fn without_digits(cause: &str) -> String {
    cause.replace(|character: char| character.is_ascii_digit(), "")
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Story {
        outages: Outages,
        begin: Instant,
    }

    impl Story {
        fn new() -> Self {
            Self {
                outages: Outages::default(),
                begin: Instant::now(),
            }
        }

        fn changed(&mut self, reachable: bool, seconds: u64) -> Option<OutageMessage> {
            let now = self.begin + Duration::from_secs(seconds);
            self.outages.changed(reachable, None, now)
        }

        fn due(&mut self, seconds: u64) -> Option<OutageMessage> {
            self.outages.due(self.begin + Duration::from_secs(seconds))
        }
    }

    #[test]
    fn an_outage_and_its_end_are_logged_at_once() {
        let mut story = Story::new();
        assert_eq!(story.changed(false, 0), Some(OutageMessage::Unreachable(1)));
        assert_eq!(story.due(59), None);
        assert_eq!(story.changed(true, 300), Some(OutageMessage::Reachable));
        assert_eq!(
            story.changed(false, 301),
            Some(OutageMessage::Unreachable(1))
        );
        assert_eq!(story.changed(true, 302), Some(OutageMessage::Reachable));
        assert_eq!(story.due(1000), None);
    }

    /// A flapping Redis wrote a dozen pairs of lines in six seconds.
    #[test]
    fn of_many_outages_no_more_than_one_is_logged_in_a_minute_and_none_is_forgotten() {
        let mut story = Story::new();
        let mut said = Vec::new();
        for second in 0..150 {
            // Out of reach in each even second, and back in each odd one.
            said.extend(story.changed(second % 2 == 1, second));
            said.extend(story.due(second));
        }
        let one_and_its_end = [OutageMessage::Unreachable(1), OutageMessage::Reachable];
        let many = [OutageMessage::Unreachable(30), OutageMessage::Reachable];
        assert_eq!(said, [one_and_its_end, many, many].concat());
        assert_eq!(story.due(179), None);
        assert_eq!(story.due(180), Some(OutageMessage::Flapped(14)));
        assert_eq!(story.due(1000), None);
    }

    #[test]
    fn an_outage_that_was_held_back_is_logged_if_it_lasts_and_so_is_its_end() {
        let mut story = Story::new();
        story.changed(false, 0);
        story.changed(true, 1);
        assert_eq!(story.changed(false, 2), None);
        assert_eq!(story.due(60), Some(OutageMessage::Unreachable(1)));
        assert_eq!(story.changed(true, 61), Some(OutageMessage::Reachable));
    }

    /// A failover that was soon followed by another one told of a node twice within seconds.
    #[test]
    fn a_node_that_leaves_and_comes_back_is_not_told_of_again_within_a_minute() {
        let mut story = Story::new();
        assert_eq!(story.changed(false, 0), Some(OutageMessage::Unreachable(1)));
        assert!(story.outages.left());
        assert!(!story.outages.left(), "its end is told once");
        let at = |seconds| story.begin + Duration::from_secs(seconds);
        assert!(!story.outages.is_past(at(20)) && story.outages.is_past(at(60)));
        assert_eq!(story.changed(false, 20), None);
        assert_eq!(story.due(60), Some(OutageMessage::Unreachable(1)));
        assert_eq!(story.changed(true, 61), Some(OutageMessage::Reachable));
    }

    /// A store by a TLS URL at a port without TLS was out of reach, and nothing told why.
    #[test]
    fn each_cause_of_an_outage_is_logged_once_and_no_more_than_a_few_are() {
        let mut story = Story::new();
        assert!(!story.outages.is_news("no outage"));
        let begin = story.begin;
        let first = StoreError::Lost("refused".into());
        story.outages.changed(false, Some(&first), begin);
        let told = |story: &mut Story, cause: &str| {
            story
                .outages
                .is_news(&format!("the store is out of reach: {cause}"))
        };
        assert!(!told(&mut story, "refused"));
        // Five causes that pass hid the one that stayed.
        for passing in [
            "reset",
            "broken pipe",
            "unexpected end",
            "aborted",
            "not connected",
            "timed out",
            "no route to the host",
            "no network",
            "no such name",
            "no answer within the deadline",
            "LOADING",
        ] {
            assert!(told(&mut story, passing) && !told(&mut story, passing));
        }
        assert!(told(&mut story, "no TLS"));
        for _ in 0..100 {
            assert!(!told(&mut story, "no TLS") && !told(&mut story, "refused"));
        }
        let offsets = (0..100).filter(|number| told(&mut story, &format!("off by {number} s")));
        assert_eq!(offsets.count(), 1);
        let others = (0..100).filter(|length| told(&mut story, &"x".repeat(*length)));
        assert_eq!(others.count(), MAX_CAUSES - 14);
        // An outage that is held back has no cause before it is logged.
        story.changed(true, 1);
        story.changed(false, 2);
        assert!(!told(&mut story, "no TLS"));
        assert_eq!(story.due(60), Some(OutageMessage::Unreachable(1)));
        assert!(told(&mut story, "no TLS") && !told(&mut story, "no TLS"));
    }

    use weir_limit::time::Timestamp;

    #[test]
    fn a_wrong_clock_is_warned_of_once_until_it_was_well_again() {
        let at = |millis: u64| Timestamp::from_nanos(millis * 1_000_000);
        let mut state = ClockState::default();
        for (millis, warns) in [
            (900, false),
            (1100, true),
            (1100, false),
            (900, false),
            (1100, false),
            (400, false),
            (1100, true),
        ] {
            let offset = ClockOffset::measured(at(5000 + millis), at(5000 + millis), at(5000));
            assert_eq!(state.becomes_suspicious(offset), warns, "{millis}");
        }
        assert!(state.becomes(ClockState::Unknown));
        assert!(!state.becomes(ClockState::Unknown));
    }
}
