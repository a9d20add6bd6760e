//! The primary that Sentinels name, followed once for all connections of a process.
//!
//! Each Sentinel is listened to by a task of its own, so that one that is frozen or gone holds up
//! nothing. A message of a Sentinel only says that it is time to ask it; what counts is its answer,
//! with the epoch of its configuration: a Sentinel that was cut off from the others names the
//! primary of an earlier epoch, which is not followed.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::{PubSub, PubSubStream};
use redis::{RedisConnectionInfo, RedisError, Value, from_redis_value};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{self, Instant};
use weir_store::Backoff;
use weir_store::Observer;

use super::access::{Access, RedisLogin};
use super::check;
use super::connection::{Connection, MemoryShare};
use super::dialer::{Dialer, Network};
use super::endpoint::{Address, HostPort};
use super::resp::Request;
use super::server_error::verbatim;

/// How often each Sentinel is asked when no message comes, as messages can be lost.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// How long a connection attempt or an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the latest epoch outweighs earlier ones although no Sentinel confirms it. Sentinels
/// that are set up anew begin with the first epoch again.
const CONFIRMED_FOR: Duration = ASK_EVERY.saturating_mul(3);

const MIN_WAIT: Duration = Duration::from_millis(100);
const MAX_WAIT: Duration = Duration::from_secs(1);

/// A Sentinel that fails again and again is reported this often.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// The events that Sentinels publish when the primary moves. The one that leads the failover moves
/// on in its answers at the second of these; it publishes the third once the replicas follow,
/// seconds later.
const CHANNELS: [&str; 3] = [CHOSEN, "+promoted-slave", "+switch-master"];

/// The leading Sentinel has told a replica to be the primary, and looks once a second whether it
/// is. Until it has seen that, it names the old primary, which nothing replicates any more.
const CHOSEN: &str = "+failover-state-wait-promotion";

/// How often the chosen replica is asked whether it is the primary by now, and for how long.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const LOOK_FOR: Duration = Duration::from_secs(2);

/// The Sentinels, and the name that they know the primary by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SentinelSettings {
    pub(super) nodes: Vec<HostPort>,
    pub(super) primary: String,
    /// For the Sentinels alone.
    pub(super) login: RedisLogin,
}

/// Follows the primary until it is dropped.
pub(super) struct PrimaryWatch {
    state: watch::Receiver<PrimaryState>,
    _tasks: JoinSet<Infallible>,
}

/// Where the primary is.
#[derive(Clone)]
pub(super) struct PrimaryAddress(watch::Receiver<PrimaryState>);

impl PrimaryWatch {
    /// Follows it in tasks, which need a tokio runtime. `access` is that of the primary, whose TLS
    /// is that of the Sentinels as well.
    pub(super) fn spawn(
        settings: &SentinelSettings,
        access: &Access,
        network: &Network,
        observer: &Arc<dyn Observer>,
    ) -> Self {
        let of_sentinels = Access {
            login: settings.login.clone(),
            database: 0,
            tls: access.tls.clone(),
        };
        let dialer = |access: &Access| Dialer::new(access.clone(), network.clone());
        let (sender, state) = watch::channel(PrimaryState::default());
        let sender = Arc::new(sender);
        let mut tasks = JoinSet::new();
        for node in &settings.nodes {
            let sentinel = Sentinel {
                address: Address::Tcp(node.clone()),
                dialer: dialer(&of_sentinels),
                servers: dialer(access),
                primary: settings.primary.clone(),
                state: Arc::clone(&sender),
                observer: Arc::clone(observer),
                answers: false,
                reports: Reports::default(),
            };
            tasks.spawn(sentinel.follow());
        }
        Self {
            state,
            _tasks: tasks,
        }
    }

    pub(super) fn address(&self) -> PrimaryAddress {
        PrimaryAddress(self.state.clone())
    }
}

impl PrimaryAddress {
    /// The present address, or why it is not known.
    pub(super) fn get(&self) -> Result<HostPort, Arc<RedisError>> {
        let state = self.0.borrow();
        match (&state.known, &state.last_error) {
            (Some(known), _) => Ok(known.primary.clone()),
            (None, Some(last_error)) => Err(Arc::clone(last_error)),
            (None, None) => {
                let why = "no Sentinel has named the primary yet";
                Err(Arc::new(io::Error::other(why).into()))
            }
        }
    }

    /// Waits until the primary has moved, and returns its address.
    pub(super) async fn moved_from(&self, there: Option<&HostPort>) -> HostPort {
        let mut states = self.0.clone();
        let moved = |state: &PrimaryState| state.primary().is_some_and(|now| Some(now) != there);
        if let Ok(state) = states.wait_for(moved).await
            && let Some(primary) = state.primary()
        {
            return primary.clone();
        }
        // No task follows it any more: the runtime is ending.
        pending().await
    }
}

/// The primary, as far as it is known.
#[derive(Clone, Default)]
struct PrimaryState {
    known: Option<NamedPrimary>,
    /// Why the primary is not known.
    last_error: Option<Arc<RedisError>>,
}

#[derive(Clone)]
struct NamedPrimary {
    primary: HostPort,
    epoch: u64,
    /// When a Sentinel said so last.
    confirmed_at: Instant,
}

/// A Sentinel's answer about the primary.
struct PrimaryReport {
    primary: HostPort,
    /// Counts the failovers: a later configuration has a greater one.
    epoch: u64,
}

impl PrimaryState {
    fn primary(&self) -> Option<&HostPort> {
        self.known.as_ref().map(|known| &known.primary)
    }

    /// Applies a Sentinel's report. Returns whether the primary has moved.
    fn hear(&mut self, answer: PrimaryReport, now: Instant) -> bool {
        let is_same = self.primary() == Some(&answer.primary);
        if let Some(known) = &self.known {
            let is_later = answer.epoch > known.epoch || (answer.epoch == known.epoch && is_same);
            if !is_later && now - known.confirmed_at <= CONFIRMED_FOR {
                return false;
            }
        }
        self.known = Some(NamedPrimary {
            primary: answer.primary,
            epoch: answer.epoch,
            confirmed_at: now,
        });
        !is_same
    }

    /// Applies that the server which Sentinels have chosen says that it is the primary. Returns
    /// whether the primary has moved. Without a later epoch of a Sentinel that does not last.
    fn promoted(&mut self, server: HostPort, now: Instant) -> bool {
        match &mut self.known {
            Some(known) if known.primary != server => {
                known.primary = server;
                known.confirmed_at = now;
                true
            }
            _ => false,
        }
    }
}

/// The task of one Sentinel.
struct Sentinel {
    address: Address,
    dialer: Dialer,
    /// Leads to the servers that it watches.
    servers: Dialer,
    primary: String,
    state: Arc<watch::Sender<PrimaryState>>,
    observer: Arc<dyn Observer>,
    answers: bool,
    reports: Reports,
}

/// The reports about a Sentinel, so that each is made once.
#[derive(Default)]
struct Reports {
    /// When it was reported last that it fails.
    last: Option<Instant>,
    /// Whether that is the last word.
    fails: bool,
}

impl Reports {
    /// Records a failure. Returns whether to report it.
    fn failed(&mut self, now: Instant) -> bool {
        let is_due = self.last.is_none_or(|last| now - last >= REPORT_EVERY);
        if is_due {
            self.last = Some(now);
            self.fails = true;
        }
        is_due
    }

    /// Records a reply. Returns whether to report it.
    fn answered(&mut self) -> bool {
        std::mem::take(&mut self.fails)
    }
}

impl Sentinel {
    async fn follow(mut self) -> Infallible {
        let first_backoff = || Backoff::new(MIN_WAIT, MAX_WAIT);
        let mut backoff = first_backoff();
        loop {
            let Err(error) = self.listen().await;
            if std::mem::take(&mut self.answers) {
                backoff = first_backoff();
            }
            self.failed(error);
            time::sleep(backoff.wait()).await;
        }
    }

    /// Asks at each message, and else every few seconds, until something fails.
    async fn listen(&mut self) -> Result<Infallible, Arc<RedisError>> {
        // Subscribed before it asks: a move between two answers is published.
        let mut messages = in_time(self.subscribe()).await?;
        let connection = in_time(connect(&mut self.dialer, &self.address)).await?;
        self.dialer.succeeded();
        let mut chosen = None;
        loop {
            let answer = in_time(self.read_report(&connection)).await?;
            self.heard(answer);
            let next = time::sleep(ASK_EVERY);
            let published = published(&mut messages, &self.primary);
            let promoted = is_promoted(&mut self.servers, chosen.take());
            tokio::select! {
                published = published => chosen = published.map_err(|error| Arc::new(error.into()))?,
                server = promoted => self.moved(|state| state.promoted(server, Instant::now())),
                () = next => {}
            }
        }
    }

    async fn subscribe(&mut self) -> Result<PubSubStream, Arc<RedisError>> {
        let socket = self.dialer.open(&self.address).await?;
        let is_logged_in = RedisConnectionInfo::default().set_skip_set_lib_name();
        let mut channels = PubSub::new(&is_logged_in, socket).await?;
        channels.subscribe(&CHANNELS).await?;
        Ok(channels.into_on_message())
    }

    async fn read_report(&self, connection: &Connection) -> Result<PrimaryReport, Arc<RedisError>> {
        // In this order: if a failover came between the two, the epoch would be that of before,
        // and the new address would not be followed before it is named with its own.
        let mut request = Request::default();
        for question in ["MASTER", "GET-MASTER-ADDR-BY-NAME"] {
            let command = request.command(3, "SENTINEL");
            command
                .word(question.as_bytes())
                .word(self.primary.as_bytes());
        }
        let replies = connection.call(request).await?.values().map_err(verbatim)?;
        parse(replies).ok_or_else(|| {
            let why = "the Sentinel does not say where the primary is";
            Arc::new(io::Error::other(why).into())
        })
    }

    fn heard(&mut self, answer: PrimaryReport) {
        self.moved(|state| state.hear(answer, Instant::now()));
        self.answers = true;
        if self.reports.answered() {
            self.observer
                .sentinel_changed(&self.address.to_string(), None);
        }
    }

    /// Changes the state, and reports a primary that has moved.
    fn moved(&self, change: impl FnOnce(&mut PrimaryState) -> bool) {
        let mut primary = None;
        self.state.send_if_modified(|state| {
            let is_elsewhere = change(state);
            primary = state.primary().filter(|_| is_elsewhere).cloned();
            is_elsewhere
        });
        if let Some(primary) = primary {
            self.observer.primary_named(&primary.to_string());
        }
    }

    fn failed(&mut self, error: Arc<RedisError>) {
        if self.reports.failed(Instant::now()) {
            self.observer
                .sentinel_changed(&self.address.to_string(), Some(&*error));
        }
        self.state.send_if_modified(|state| {
            let is_unknown = state.known.is_none();
            if is_unknown {
                let why = format!("the Sentinel at {} fails: {error}", self.address);
                state.last_error = Some(Arc::new(io::Error::other(why).into()));
            }
            is_unknown
        });
    }
}

/// Waits for a message about the primary. Returns the replica that is chosen to be the next one, if
/// the message is about that.
async fn published(messages: &mut PubSubStream, primary: &str) -> io::Result<Option<HostPort>> {
    while let Some(message) = messages.next().await {
        let text = message.get_payload::<String>().unwrap_or_default();
        let words: Vec<_> = text.split(' ').collect();
        if words.contains(&primary) {
            let is_choice = message.get_channel_name() == CHOSEN;
            return Ok(chosen_server(&words).filter(|_| is_choice));
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

/// The server of `slave NAME HOST PORT @ PRIMARY HOST PORT`.
fn chosen_server(words: &[&str]) -> Option<HostPort> {
    let [_, _, host, port, "@", ..] = words else {
        return None;
    };
    Some(HostPort {
        host: (*host).to_owned(),
        port: port.parse().ok()?,
    })
}

/// Waits until the chosen server says that it is the primary, which takes a moment. If it does not
/// soon, or cannot tell, what its Sentinel sees counts alone.
async fn is_promoted(servers: &mut Dialer, chosen: Option<HostPort>) -> HostPort {
    if let Some(server) = chosen
        && let Ok(Ok(())) = time::timeout(LOOK_FOR, promotion(servers, &server)).await
    {
        return server;
    }
    pending().await
}

async fn promotion(servers: &mut Dialer, server: &HostPort) -> Result<(), Arc<RedisError>> {
    let address = Address::Tcp(server.clone());
    let mut backoff = Backoff::new(LOOK_EVERY, LOOK_EVERY);
    // Sentinels cut the connections to a server that becomes the primary.
    loop {
        if let Ok(connection) = connect(servers, &address).await
            && check::is_primary(&connection).await?
        {
            return Ok(());
        }
        time::sleep(backoff.wait()).await;
    }
}

async fn connect(dialer: &mut Dialer, address: &Address) -> Result<Connection, Arc<RedisError>> {
    let socket = dialer.open(address).await?;
    Ok(Connection::new(socket, MemoryShare::default()))
}

async fn in_time<T>(
    work: impl Future<Output = Result<T, Arc<RedisError>>>,
) -> Result<T, Arc<RedisError>> {
    let done = time::timeout(ANSWER_TIMEOUT, work).await;
    done.unwrap_or_else(|elapsed| Err(Arc::new(io::Error::from(elapsed).into())))
}

/// Reads the replies to `SENTINEL MASTER` and `SENTINEL GET-MASTER-ADDR-BY-NAME`.
fn parse(replies: Vec<Value>) -> Option<PrimaryReport> {
    let [fields, address] = <[Value; 2]>::try_from(replies).ok()?;
    let fields: HashMap<String, String> = from_redis_value(fields).ok()?;
    let (host, port) = from_redis_value::<Option<(String, u16)>>(address).ok()??;
    Some(PrimaryReport {
        primary: HostPort { host, port },
        epoch: fields.get("config-epoch")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Story {
        state: PrimaryState,
        begin: Instant,
    }

    impl Story {
        fn new() -> Self {
            Self {
                state: PrimaryState::default(),
                begin: Instant::now(),
            }
        }

        /// Where the primary is, once a Sentinel has said this.
        fn hear(&mut self, seconds: u64, host: &str, epoch: u64) -> String {
            let host = host.to_owned();
            let answer = PrimaryReport {
                primary: HostPort { host, port: 1 },
                epoch,
            };
            let before = self.state.primary().cloned();
            let now = self.begin + Duration::from_secs(seconds);
            let moved = self.state.hear(answer, now);
            assert_eq!(moved, before.as_ref() != self.state.primary());
            self.state.primary().unwrap().host.clone()
        }
    }

    #[test]
    fn a_sentinel_of_an_earlier_epoch_does_not_lead_back_while_one_of_the_latest_is_heard() {
        let mut story = Story::new();
        assert_eq!(story.hear(0, "a", 0), "a");
        assert_eq!(story.hear(0, "b", 1), "b");
        for second in (1..100).step_by(5) {
            assert_eq!(story.hear(second, "a", 0), "b");
            assert_eq!(story.hear(second, "b", 1), "b");
        }
        assert_eq!(story.hear(100, "c", 2), "c");
    }

    #[test]
    fn two_primaries_of_one_epoch_do_not_take_turns() {
        let mut story = Story::new();
        for second in (0..100).step_by(5) {
            assert_eq!(story.hear(second, "a", 3), "a");
            assert_eq!(story.hear(second, "b", 3), "a");
        }
    }

    #[test]
    fn sentinels_that_are_set_up_anew_are_believed_after_a_while() {
        let mut story = Story::new();
        story.hear(0, "a", 7);
        assert_eq!(story.hear(15, "b", 0), "a");
        assert_eq!(story.hear(16, "b", 0), "b");
        assert_eq!(story.hear(17, "c", 1), "c");
    }

    #[test]
    fn a_replica_that_says_that_it_was_promoted_counts_until_sentinels_have_had_time_to_see_it() {
        let mut story = Story::new();
        story.hear(0, "a", 7);
        let b = |story: &mut Story, seconds| {
            let now = story.begin + Duration::from_secs(seconds);
            let host = "b".to_owned();
            story.state.promoted(HostPort { host, port: 1 }, now)
        };
        assert!(b(&mut story, 10));
        assert!(!b(&mut story, 11));
        assert_eq!(story.hear(12, "a", 7), "b");
        assert_eq!(story.hear(25, "a", 7), "b");
        assert_eq!(story.hear(26, "a", 7), "a");
        assert!(b(&mut story, 30));
        assert_eq!(story.hear(31, "b", 8), "b");
        assert_eq!(story.hear(100, "a", 7), "a");
        let chosen = |text: &str| {
            let words: Vec<_> = text.split(' ').collect();
            chosen_server(&words).map(|server| server.to_string())
        };
        let told = chosen("slave 10.0.0.2:6379 10.0.0.2 6379 @ main 10.0.0.1 6379");
        assert_eq!(told.as_deref(), Some("10.0.0.2:6379"));
        for other in [
            "main 10.0.0.1 6379 10.0.0.2 6379",
            "slave a a b @ main a 1",
            "",
        ] {
            assert_eq!(chosen(other), None, "{other}");
        }
    }

    /// An answer in between had the next failure reported at once.
    #[test]
    fn a_sentinel_that_fails_and_answers_in_turn_is_reported_once_a_minute_at_most() {
        let (begin, mut reports) = (Instant::now(), Reports::default());
        let mut fails = |seconds| {
            let failed = reports.failed(begin + Duration::from_secs(seconds));
            (failed, reports.answered())
        };
        assert_eq!(fails(0), (true, true));
        assert_eq!(fails(59), (false, false));
        assert_eq!(fails(60), (true, true));
    }

    #[test]
    fn what_a_sentinel_says_of_an_earlier_epoch_confirms_nothing() {
        let mut story = Story::new();
        story.hear(0, "a", 7);
        story.hear(14, "a", 6);
        assert_eq!(story.hear(16, "b", 6), "b");
    }
}
