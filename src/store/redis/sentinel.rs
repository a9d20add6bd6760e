//! The primary that Sentinels name, followed once for all connections of a process.
//!
//! Each Sentinel is listened to by a task of its own, so that one that is frozen or gone holds up
//! nothing. A message of a Sentinel only says that it is time to ask it; what counts is its answer,
//! with the epoch of its configuration: a Sentinel that was cut off from the others names the
//! primary of an earlier epoch, which is not followed.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::{MultiplexedConnection, PubSub, PubSubStream};
use redis::{AsyncConnectionConfig, RedisError, pipe};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{self, Instant};

use super::access::{Access, RedisLogin};
use super::dialer::{Dialer, Resolve};
use super::endpoint::{Address, HostPort};
use crate::store::Observer;
use crate::store::breaker::Backoff;

/// How often each Sentinel is asked when no message comes, as messages can be lost.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// How long a connection attempt or an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the latest epoch outweighs earlier ones although no Sentinel confirms it. Sentinels
/// that are set up anew begin with the first epoch again.
const CONFIRMED_FOR: Duration = ASK_EVERY.saturating_mul(3);

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// A Sentinel that fails again and again is reported this often.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// What Sentinels publish when the primary moves. The one that leads the failover moves on in its
/// answers at the first of these; it publishes the second once the replicas follow, seconds later.
const CHANNELS: [&str; 2] = ["+promoted-slave", "+switch-master"];

/// Where Sentinels are, and what they know the primary by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SentinelSettings {
    pub(super) nodes: Vec<HostPort>,
    pub(super) primary: String,
    /// For the Sentinels alone.
    pub(super) login: RedisLogin,
}

/// Follows the primary until it is dropped.
pub(super) struct PrimaryWatch {
    state: watch::Receiver<State>,
    _tasks: JoinSet<Infallible>,
}

/// Where the primary is.
#[derive(Clone)]
pub(super) struct PrimaryAddress(watch::Receiver<State>);

impl PrimaryWatch {
    /// Follows it in tasks, which need a tokio runtime. `access` is that of the primary, whose TLS
    /// is that of the Sentinels as well.
    pub(super) fn spawn(
        settings: &SentinelSettings,
        access: &Access,
        resolve: &Resolve,
        observer: &Arc<dyn Observer>,
    ) -> Self {
        let access = Access {
            login: settings.login.clone(),
            database: 0,
            tls: access.tls.clone(),
        };
        let (sender, state) = watch::channel(State::default());
        let sender = Arc::new(sender);
        let mut tasks = JoinSet::new();
        for node in &settings.nodes {
            let sentinel = Sentinel {
                address: Address::Tcp(node.clone()),
                dialer: Dialer::new(access.clone(), Arc::clone(resolve)),
                primary: settings.primary.clone(),
                state: Arc::clone(&sender),
                observer: Arc::clone(observer),
                answers: false,
                reported: None,
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
    /// Where it is by now, or why that is not known.
    pub(super) fn get(&self) -> Result<HostPort, Arc<RedisError>> {
        let state = self.0.borrow();
        match (&state.known, &state.trouble) {
            (Some(known), _) => Ok(known.primary.clone()),
            (None, Some(trouble)) => Err(Arc::clone(trouble)),
            (None, None) => {
                let why = "no Sentinel has named the primary yet";
                Err(Arc::new(io::Error::other(why).into()))
            }
        }
    }

    /// Waits until it is known to be elsewhere, and tells where.
    pub(super) async fn moved_from(&self, there: Option<&HostPort>) -> HostPort {
        let mut states = self.0.clone();
        let moved = |state: &State| state.primary().is_some_and(|now| Some(now) != there);
        if let Ok(state) = states.wait_for(moved).await
            && let Some(primary) = state.primary()
        {
            return primary.clone();
        }
        // No task follows it any more: the runtime is ending.
        std::future::pending().await
    }
}

/// What is known of the primary.
#[derive(Clone, Default)]
struct State {
    known: Option<Known>,
    /// Why the primary is not known.
    trouble: Option<Arc<RedisError>>,
}

#[derive(Clone)]
struct Known {
    primary: HostPort,
    epoch: u64,
    /// When a Sentinel said so last.
    confirmed_at: Instant,
}

/// What a Sentinel says.
struct Answer {
    primary: HostPort,
    /// Counts the failovers: a later configuration has a greater one.
    epoch: u64,
}

impl State {
    fn primary(&self) -> Option<&HostPort> {
        self.known.as_ref().map(|known| &known.primary)
    }

    /// Takes an answer into account, and tells whether the primary is elsewhere by it.
    fn hear(&mut self, answer: Answer, now: Instant) -> bool {
        let is_same = self.primary() == Some(&answer.primary);
        if let Some(known) = &self.known {
            let is_later = answer.epoch > known.epoch || (answer.epoch == known.epoch && is_same);
            if !is_later && now - known.confirmed_at <= CONFIRMED_FOR {
                return false;
            }
        }
        self.known = Some(Known {
            primary: answer.primary,
            epoch: answer.epoch,
            confirmed_at: now,
        });
        !is_same
    }
}

/// One Sentinel that is listened to.
struct Sentinel {
    address: Address,
    dialer: Dialer,
    primary: String,
    state: Arc<watch::Sender<State>>,
    observer: Arc<dyn Observer>,
    answers: bool,
    /// When it was reported last that it fails.
    reported: Option<Instant>,
}

impl Sentinel {
    async fn follow(mut self) -> Infallible {
        let first_backoff = || Backoff::new(FIRST_WAIT, LONGEST_WAIT);
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
    async fn listen(&mut self) -> Result<Infallible, RedisError> {
        // What happens between the first answer and the next is published.
        let mut messages = in_time(self.subscribe()).await?;
        let mut connection = in_time(self.connect()).await?;
        self.dialer.succeeded();
        loop {
            let answer = in_time(self.ask(&mut connection)).await?;
            self.heard(answer);
            let next = time::sleep(ASK_EVERY);
            tokio::select! {
                published = self.published(&mut messages) => published?,
                () = next => {}
            }
        }
    }

    async fn subscribe(&mut self) -> Result<PubSubStream, RedisError> {
        let socket = self.dialer.dial(&self.address).await?;
        let login = self.dialer.login().await?;
        let mut channels = PubSub::new(&login, socket).await?;
        channels.subscribe(&CHANNELS).await?;
        Ok(channels.into_on_message())
    }

    async fn connect(&mut self) -> Result<MultiplexedConnection, RedisError> {
        let socket = self.dialer.dial(&self.address).await?;
        let login = self.dialer.login().await?;
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let (connection, driver) =
            MultiplexedConnection::new_with_config(&login, socket, config).await?;
        // It ends with the connection.
        tokio::spawn(driver);
        Ok(connection)
    }

    async fn ask(&self, connection: &mut MultiplexedConnection) -> Result<Answer, RedisError> {
        // In this order: if a failover came between the two, the epoch would be that of before,
        // and the new address would not be followed before it is named with its own.
        let mut questions = pipe();
        questions.cmd("SENTINEL").arg("MASTER").arg(&self.primary);
        questions.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME");
        questions.arg(&self.primary);
        type Replies = (HashMap<String, String>, Option<(String, u16)>);
        let (fields, address): Replies = questions.query_async(connection).await?;
        let epoch = fields
            .get("config-epoch")
            .and_then(|epoch| epoch.parse().ok());
        match (address, epoch) {
            (Some((host, port)), Some(epoch)) => Ok(Answer {
                primary: HostPort { host, port },
                epoch,
            }),
            _ => Err(io::Error::other("the Sentinel does not say where the primary is").into()),
        }
    }

    /// Waits for a message about the primary.
    async fn published(&self, messages: &mut PubSubStream) -> io::Result<()> {
        while let Some(message) = messages.next().await {
            let text = message.get_payload::<String>().unwrap_or_default();
            if text.split(' ').any(|word| word == self.primary) {
                return Ok(());
            }
        }
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    fn heard(&mut self, answer: Answer) {
        let primary = answer.primary.to_string();
        let mut moved = false;
        self.state.send_if_modified(|state| {
            moved = state.hear(answer, Instant::now());
            moved
        });
        if moved {
            self.observer.primary_named(&primary);
        }
        let is_news = !std::mem::replace(&mut self.answers, true);
        if is_news && self.reported.take().is_some() {
            self.observer
                .sentinel_changed(&self.address.to_string(), None);
        }
    }

    fn failed(&mut self, error: RedisError) {
        if self
            .reported
            .is_none_or(|last| last.elapsed() >= REPORT_EVERY)
        {
            self.reported = Some(Instant::now());
            self.observer
                .sentinel_changed(&self.address.to_string(), Some(&error));
        }
        self.state.send_if_modified(|state| {
            let is_unknown = state.known.is_none();
            if is_unknown {
                let why = format!("the Sentinel at {} fails: {error}", self.address);
                state.trouble = Some(Arc::new(io::Error::other(why).into()));
            }
            is_unknown
        });
    }
}

async fn in_time<T>(work: impl Future<Output = Result<T, RedisError>>) -> Result<T, RedisError> {
    let done = time::timeout(ANSWER_TIMEOUT, work).await;
    done.unwrap_or_else(|elapsed| Err(io::Error::from(elapsed).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Story {
        state: State,
        begin: Instant,
    }

    impl Story {
        fn new() -> Self {
            Self {
                state: State::default(),
                begin: Instant::now(),
            }
        }

        /// Where the primary is, once a Sentinel has said this.
        fn hear(&mut self, seconds: u64, host: &str, epoch: u64) -> String {
            let host = host.to_owned();
            let answer = Answer {
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
    fn what_a_sentinel_says_of_an_earlier_epoch_confirms_nothing() {
        let mut story = Story::new();
        story.hear(0, "a", 7);
        story.hear(14, "a", 6);
        assert_eq!(story.hear(16, "b", 6), "b");
    }
}
