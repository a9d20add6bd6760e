//! A user that lacks a right, on a real server: only the limits that need it go without.

use weir_limit::{Claim, Claims};
use weir_store::{GuardSettings, Guarded, Leases, Memory, MemorySettings, OnFailure, Reachability};

use super::*;

const PAGE: &str = include_str!("../../../../docs/REDIS.md");

/// The line of docs/REDIS.md that makes a user with this right among others.
pub(super) fn documented(right: &str) -> &'static str {
    let mut lines = PAGE.lines();
    let line = lines.find(|line| line.starts_with("ACL SETUSER weir") && line.contains(right));
    line.unwrap()
}

/// What it lists beside, for limits by other algorithms.
pub(super) fn documented_by_algorithm() -> impl Iterator<Item = &'static str> {
    let rows = PAGE.lines().filter(|line| line.starts_with("| `"));
    let rights = rows.filter(|line| line.contains("`+multi +exec"));
    rights.flat_map(|line| line.split(['`', ' ']).filter(|word| word.starts_with('+')))
}

/// As that user, with the password that the page has in its place.
pub(super) fn login() -> RedisLogin {
    RedisLogin {
        username: Some(LoginPart::Text("weir".to_owned())),
        password: Some(LoginPart::Text("PASSWORD".to_owned())),
    }
}

struct Guard {
    guarded: Guarded<Redis>,
    recorder: Arc<Recorder>,
    server: RedisServer,
    algorithms: UsedAlgorithms,
    reachability: Arc<Reachability>,
}

impl Guard {
    /// The user lacks these rights.
    async fn without(rights: &[&str], on_failure: OnFailure) -> Self {
        let server = RedisServer::start();
        let lacks: Vec<_> = rights.iter().map(|right| format!("-{right}")).collect();
        let words = ["ACL", "SETUSER", "default"].map(str::to_owned);
        let words: Vec<_> = words.into_iter().chain(lacks).collect();
        server.command(&words.iter().map(String::as_str).collect::<Vec<_>>());
        let settings = RedisSettings::parse(&server.url(), None, None).unwrap();
        let algorithms = settings.algorithms.clone();
        let redis = connect(settings).await;
        let recorder = Arc::<Recorder>::default();
        let reachability = Reachability::new(Arc::<Recorder>::clone(&recorder) as _);
        let reachability = Arc::new(reachability);
        let max_buckets = std::num::NonZeroUsize::MIN.saturating_add(99);
        let guarded = Guarded::spawn(
            redis,
            GuardSettings {
                timeout: Duration::from_secs(10),
                on_failure,
                ..GuardSettings::default()
            },
            Arc::clone(&reachability),
            Arc::new(Memory::new(MemorySettings { max_buckets })),
        );
        Self {
            guarded,
            recorder,
            server,
            algorithms,
            reachability,
        }
    }

    async fn decide(&self, batch: Batch) -> Result<Outcome, StoreError> {
        let answer = self.guarded.decide(&batch, NOW).await;
        let background_calls = || self.guarded.get_ref().background_calls();
        eventually("background calls end", || background_calls() == 0).await;
        answer
    }

    /// What the plain limit has left in Redis.
    async fn left(&self) -> u64 {
        let look = batch([of_mode(Mode::Peek, "L:plain", 1)]);
        let outcome = self.decide(look).await.unwrap();
        assert_eq!(outcome.source, DecisionSource::Store);
        outcome.decisions[0].unwrap().remaining
    }
}

/// A limit of three units by a sliding window or a log.
fn sliding(round: usize, cost: u64) -> Transaction {
    let quota = Quota::windowed(hundred(round).algorithm(), 3, Duration::from_secs(3600));
    Transaction {
        quota: quota.unwrap(),
        ..spend("L:sliding", cost)
    }
}

const WINDOW: usize = 2;
const LOG: usize = 3;

#[tokio::test]
async fn a_right_that_one_limit_lacks_opens_the_breaker_for_none_and_is_named() {
    for (round, right) in [
        (WINDOW, "multi"),
        (WINDOW, "exec"),
        (WINDOW, "hgetall"),
        (WINDOW, "hincrby"),
        (LOG, "zlexcount"),
        (LOG, "zrevrange"),
        (LOG, "zadd"),
        (LOG, "zremrangebylex"),
    ] {
        let guard = Guard::without(&[right], OnFailure::Deny).await;
        for _ in 0..10 {
            let both = batch([spend("L:plain", 1), sliding(round, 1)]);
            let error = guard.decide(both).await.unwrap_err();
            assert!(error.is_forbidden(), "{right} {error:?}");
            let why = std::error::Error::source(&error).unwrap().to_string();
            assert!(why.contains(&format!("'{right}'")), "{right} {why}");
        }
        for _ in 0..10 {
            let alone = guard.decide(batch([sliding(round, 1)])).await;
            assert!(alone.unwrap_err().is_forbidden(), "{right}");
        }
        assert_eq!(guard.left().await, 10, "{right}");
        assert!(guard.recorder.changes().is_empty(), "{right}");
        guard
            .server
            .command(&["ACL", "SETUSER", "default", &format!("+{right}")]);
        let both = batch([spend("L:plain", 1), sliding(round, 1)]);
        let granted = guard.decide(both).await;
        // What was added one by one, for want of a transaction, counts until it is old.
        assert!(right == "multi" || granted.unwrap().is_allowed(), "{right}");
    }
}

#[tokio::test]
async fn a_limit_without_its_right_is_decided_by_memory_and_the_others_by_the_store() {
    let guard = Guard::without(&["hincrby"], OnFailure::Local).await;
    let both = || {
        batch([
            spend("L:plain", 1),
            of_mode(Mode::SpendOnly, "L:some", 11),
            sliding(WINDOW, 1),
        ])
    };
    for left in [2, 1, 0] {
        let outcome = guard.decide(both()).await.unwrap();
        assert!(outcome.is_allowed());
        assert_eq!(outcome.source, DecisionSource::Local);
        let shown = |at: usize| outcome.decisions[at].unwrap().remaining;
        assert_eq!([shown(0), shown(1), shown(2)], [7 + left, 10, left]);
    }
    // Memory denies, so the store takes nothing either.
    let outcome = guard.decide(both()).await.unwrap();
    let shown: Vec<_> = outcome
        .decisions
        .iter()
        .map(|decision| decision.unwrap())
        .collect();
    assert!(shown[0].allowed && !shown[2].allowed, "{shown:?}");
    assert_eq!((shown[0].remaining, shown[1].remaining), (7, 10));
    assert_eq!(guard.left().await, 7);
    assert!(guard.recorder.changes().is_empty());
}

#[tokio::test]
async fn a_limit_without_its_right_lets_pass_where_so_configured_and_the_others_still_deny() {
    let guard = Guard::without(&["zadd"], OnFailure::Allow).await;
    let both = || batch([sliding(LOG, 1), spend("L:plain", 4)]);
    for left in [6, 2] {
        let outcome = guard.decide(both()).await.unwrap();
        assert_eq!(outcome.decisions[0], None);
        assert_eq!(outcome.decisions[1].unwrap().remaining, left);
    }
    let denied = guard.decide(both()).await.unwrap();
    assert_eq!(denied.source, DecisionSource::Store);
    assert!(!denied.is_allowed());
    assert_eq!(guard.left().await, 2);
}

#[tokio::test]
async fn what_lacks_a_right_beside_decisions_opens_no_breaker() {
    let guard = Guard::without(&["zpopmax", "del", "zcard"], OnFailure::Local).await;
    for _ in 0..6 {
        let refund = guard.guarded.refund(owed([sliding(LOG, 1)]), NOW).await;
        assert!(refund.is_ok(), "memory gives back in its place");
        let reset = guard.guarded.reset(["L:a".into()].into()).await;
        assert!(reset.unwrap_err().is_forbidden());
        let claim = Claims::from([Claim::new("L:in".into(), NonZeroU64::MIN)]);
        let leased = guard.guarded.acquire(claim, NOW).await.unwrap();
        assert_eq!(leased.outcome.source, DecisionSource::Local);
        assert!(leased.outcome.is_allowed());
    }
    assert_eq!(guard.left().await, 10);
    assert!(guard.recorder.changes().is_empty());
}

#[tokio::test]
async fn without_a_right_that_all_limits_need_the_store_is_out_of_reach() {
    let guard = Guard::without(&["pexpire"], OnFailure::Deny).await;
    eventually_some("the breaker is open", async || {
        guard.decide(batch([spend("L:a", 1)])).await.unwrap_err();
        (!guard.guarded.is_reachable()).then_some(())
    })
    .await;
    assert_eq!(guard.recorder.changes(), [false]);
}

/// Where Redis keeps the bucket of a limit by each algorithm, by its place in [`hundred`].
pub(super) const MARKS: [&str; 6] = ["%f", "%f", "%w", "%l", "%l", ""];

/// One `LPUSH` on a bucket used to open the breaker for all limits and all clients.
#[tokio::test]
async fn a_key_of_another_type_fails_its_own_limit_and_opens_the_breaker_for_none() {
    for (round, mark) in MARKS.into_iter().enumerate() {
        let guard = Guard::without(&[], OnFailure::Deny).await;
        let key = format!("weir:L:bad{mark}");
        guard.server.command(&["LPUSH", &key, "x"]);
        let bad = || Transaction {
            quota: hundred(round),
            ..spend("L:bad", 1)
        };
        for _ in 0..10 {
            for all in [batch([spend("L:plain", 1), bad()]), batch([bad()])] {
                let error = guard.decide(all).await.unwrap_err();
                assert!(error.is_wrong_type(), "{key} {error:?}");
                let why = std::error::Error::source(&error).unwrap().to_string();
                assert!(why.contains("L:bad"), "{key} {why}");
            }
            let refund = guard.guarded.refund(owed([bad()]), NOW).await;
            assert!(refund.unwrap_err().is_wrong_type(), "{key}");
        }
        assert_eq!(guard.left().await, 10, "{key}");
        assert!(guard.recorder.changes().is_empty(), "{key}");
        guard.server.command(&["DEL", &key]);
        assert!(guard.decide(batch([bad()])).await.unwrap().is_allowed());
    }
}

/// Such keys ended the connection, so that nearly all requests of all others failed.
#[tokio::test]
async fn a_bucket_with_strange_contents_fails_no_more_than_its_own_limit_and_keeps_the_connection()
{
    let moment = "\\x18\\x2a\\x00\\x00\\x00\\x00\\x00\\x00";
    let contents: [(usize, &[&str], bool); 12] = [
        (WINDOW, &["HSET", "foreign", "1"], true),
        (WINDOW, &["HSET", "1000", "many"], true),
        (WINDOW, &["HSET", "-7", "1"], true),
        // In the sub-window of this moment, where it is to be added to.
        (WINDOW, &["HSET", "57600000000000", "many"], true),
        (LOG, &["ZADD", "0", "foreign"], true),
        (LOG, &["ZADD", "0", "zzzzzzzzzzzzzzzzzzzzzzzz"], true),
        (
            LOG,
            &[
                "ZADD",
                "0",
                "\"\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff12345678\"",
            ],
            false,
        ),
        (LOG + 1, &["ZADD", "0", "foreign"], true),
        (
            5,
            &["SET", "hello, this is no bucket at all, and a long one"],
            false,
        ),
        (
            5,
            &["SET", "\"\\x7f\\xff\\xff\\xff\\xff\\xff\\xff\\xff\""],
            false,
        ),
        (0, &["SET", "zzzzzzzzzzzzzzzzzzzzzzzzz"], false),
        (1, &["SET", moment], false),
    ];
    for (round, words, is_refused) in contents {
        let guard = Guard::without(&[], OnFailure::Deny).await;
        let session = guard.guarded.get_ref().session();
        let key = format!("weir:L:bad{}", MARKS[round]);
        let (name, rest) = words.split_first().unwrap();
        let words: Vec<_> = [*name, &key]
            .into_iter()
            .chain(rest.iter().copied())
            .collect();
        guard.server.command(&words);
        let bad = |mode, cost| Transaction {
            quota: hundred(round),
            mode,
            ..spend("L:bad", cost)
        };
        // A refund takes off what is newest, whatever it is.
        let alone = guard.decide(batch([bad(Mode::CheckAndSpend, 1)])).await;
        let is_wrong = alone.is_err_and(|error| error.is_wrong_type());
        assert!(is_wrong || !is_refused, "{words:?}");
        for cost in [1, 200].repeat(5) {
            for mode in [Mode::CheckAndSpend, Mode::CheckOnly, Mode::Peek] {
                let all = batch([spend("L:plain", 1), bad(mode, cost)]);
                let answer = guard.decide(all).await;
                let Err(error) = answer else { continue };
                assert!(error.is_wrong_type(), "{words:?} {error:?}");
                let why = std::error::Error::source(&error).unwrap().to_string();
                assert!(why.contains("L:bad"), "{words:?} {why}");
            }
            let refund = guard
                .guarded
                .refund(owed([bad(Mode::SpendOnly, 1)]), NOW)
                .await;
            assert!(
                refund.is_ok() || refund.unwrap_err().is_wrong_type(),
                "{words:?}"
            );
        }
        assert!(guard.decide(batch([spend("L:other", 1)])).await.is_ok());
        assert!(guard.recorder.changes().is_empty(), "{words:?}");
        assert!(Arc::ptr_eq(&session, &guard.guarded.get_ref().session()));
    }
}

/// What a request adds to a log that is not Weir's is taken off again.
#[tokio::test]
async fn a_log_with_strange_contents_does_not_grow() {
    let guard = Guard::without(&[], OnFailure::Deny).await;
    let key = "weir:L:bad%l";
    guard.server.command(&["ZADD", key, "0", "zzz"]);
    for _ in 0..20 {
        let bad = Transaction {
            quota: hundred(LOG),
            ..spend("L:bad", 3)
        };
        guard.decide(batch([bad])).await.unwrap_err();
    }
    let left = guard.server.command(&["ZCARD", key]);
    assert_eq!(left.lines().next(), Some(":1"));
}

/// It was found by the first requests: they got 503, or each gateway counted for itself.
#[tokio::test]
async fn a_command_that_all_limits_need_is_missed_before_a_request_comes() {
    for right in ["bitfield", "pexpire"] {
        let guard = Guard::without(&[right], OnFailure::Local).await;
        eventually("the breaker is open", || !guard.guarded.is_reachable()).await;
        assert_eq!(guard.recorder.changes(), [false], "{right}");
        assert_eq!(guard.recorder.calls(), [], "{right}");
        let grant = ["ACL", "SETUSER", "default", &format!("+{right}")];
        guard.server.command(&grant);
        eventually("the breaker closes", || guard.guarded.is_reachable()).await;
    }
}

#[tokio::test]
async fn a_command_that_some_limits_need_is_missed_while_the_configuration_has_such_limits() {
    let guard = Guard::without(&["hincrby", "zcard"], OnFailure::Deny).await;
    let used = &guard.algorithms;
    let refusals = |count: usize| {
        let recorder = &guard.recorder;
        async move {
            eventually("a report", || recorder.refusals().len() == count).await;
            recorder.refusals().last().cloned().unwrap()
        }
    };
    let sliding = Algorithm::SlidingWindow {
        count_denied: false,
    };
    used.replace([Algorithm::Gcra, sliding]);
    let first = refusals(1).await;
    assert!(first.contains("no right to HINCRBY:"), "{first}");
    assert!(first.contains("`+hincrby`"), "{first}");
    assert_eq!(guard.reachability.refusals(), [first]);
    used.replace([Algorithm::InFlight, sliding]);
    let both = refusals(2).await;
    assert!(both.contains("no right to HINCRBY, ZCARD:"), "{both}");
    let grant = ["ACL", "SETUSER", "default", "+hincrby", "+zcard"];
    guard.server.command(&grant);
    assert_eq!(refusals(3).await, "");
    assert!(guard.reachability.refusals().is_empty());
    // A right that is taken away is missed with the next request.
    guard
        .server
        .command(&["ACL", "SETUSER", "default", "-hincrby"]);
    guard
        .decide(batch([self::sliding(WINDOW, 1)]))
        .await
        .unwrap_err();
    let again = refusals(4).await;
    assert!(again.contains("no right to HINCRBY:"), "{again}");
    assert!(guard.recorder.changes().is_empty());
    drop(guard.guarded);
    eventually("nobody is told of what nobody asks", || {
        guard.reachability.refusals().is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_user_without_a_right_to_the_keys_is_told_which() {
    let guard = Guard::without(&[], OnFailure::Deny).await;
    let keys = ["ACL", "SETUSER", "default", "resetkeys", "~other:*"];
    guard.server.command(&keys);
    let error = guard.decide(batch([spend("L:a", 1)])).await.unwrap_err();
    let why = std::error::Error::source(&error).unwrap().to_string();
    assert!(why.contains("~weir:*"), "{why}");
}

#[tokio::test]
async fn trying_commands_leaves_nothing_in_the_store_nor_in_its_log_of_refusals() {
    let guard = Guard::without(&[], OnFailure::Deny).await;
    let log = Algorithm::SlidingLog {
        count_denied: false,
    };
    let sliding = Algorithm::SlidingWindow {
        count_denied: false,
    };
    let used = &guard.algorithms;
    used.replace([Algorithm::Gcra, log, sliding, Algorithm::InFlight]);
    eventually("all are tried", || guard.server.calls("zlexcount") == 1).await;
    let left = guard.server.command(&["DBSIZE"]);
    assert_eq!(left.lines().next(), Some(":0"));
    let refused = guard.server.command(&["ACL", "LOG"]);
    assert_eq!(refused.lines().next(), Some("*0"));
}

#[tokio::test]
async fn a_key_of_another_type_leaves_the_other_limits_of_a_request_to_the_store() {
    let guard = Guard::without(&[], OnFailure::Allow).await;
    guard.server.command(&["LPUSH", "weir:L:bad", "x"]);
    let both = || batch([spend("L:bad", 1), spend("L:plain", 4)]);
    for left in [6, 2] {
        let outcome = guard.decide(both()).await.unwrap();
        assert_eq!(outcome.decisions[0], None);
        assert_eq!(outcome.decisions[1].unwrap().remaining, left);
    }
    assert!(!guard.decide(both()).await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_key_of_another_type_where_leases_should_be_holds_up_no_other_lease() {
    let guard = Guard::without(&[], OnFailure::Deny).await;
    let lease = async |name: &str| {
        let claim = Claims::from([Claim::new(name.into(), NonZeroU64::MIN)]);
        guard.guarded.acquire(claim, NOW).await
    };
    guard.server.command(&["LPUSH", "weir:L:bad%i", "x"]);
    for _ in 0..10 {
        assert!(lease("L:bad").await.unwrap_err().is_wrong_type());
        assert!(lease("L:good").await.unwrap().outcome.is_allowed());
        eventually("all is released", || {
            guard.guarded.get_ref().background_calls() == 0
        })
        .await;
    }
    assert!(guard.recorder.changes().is_empty());
}
