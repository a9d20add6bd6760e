use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use weir_limit::{Algorithm, Alignment, Mode, Quota};

use super::*;
use crate::tests::contract::{NOW, batch, minutes, of_mode, owed, spend};
use crate::{Memory, MemorySettings};

/// A memory store that counts how often it is asked to decide, and may stand in for another.
struct Counting {
    memory: Memory,
    asked: AtomicUsize,
    source: DecisionSource,
}

impl Store for Counting {
    fn decide(&self, batch: &Batch, now: Timestamp) -> StoreFuture<Outcome> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let outcome = Outcome {
            source: self.source,
            ..self.memory.decide_now(batch, now)
        };
        StoreFuture::ready(outcome)
    }

    fn refund(&self, owed: OwedBatch, now: Timestamp) -> StoreFuture<()> {
        self.memory.refund(owed, now)
    }

    fn reset(&self, keys: BucketKeys) -> StoreFuture<()> {
        self.memory.reset(keys)
    }
}

type Subject = DenialCached<Counting>;

fn subject() -> Subject {
    on_basis(DecisionSource::Store)
}

fn on_basis(source: DecisionSource) -> Subject {
    let max_buckets = NonZeroUsize::MIN.saturating_add(99);
    let store = Counting {
        memory: Memory::new(MemorySettings { max_buckets }),
        asked: AtomicUsize::new(0),
        source,
    };
    DenialCached::new(store, Arc::default())
}

fn decide(subject: &Subject, transaction: Transaction, now: Timestamp) -> Outcome {
    decide_all(subject, batch([transaction]), now)
}

fn decide_all(subject: &Subject, batch: Batch, now: Timestamp) -> Outcome {
    subject.decide(&batch, now).now_or_never().unwrap().unwrap()
}

fn asked(subject: &Subject) -> usize {
    subject.store.asked.load(Ordering::Relaxed)
}

/// Empties a bucket and has one more request denied.
fn deny(subject: &Subject) {
    decide(subject, spend("L:a", 10), NOW);
    assert!(!decide(subject, spend("L:a", 1), NOW).is_allowed());
    assert_eq!(asked(subject), 2);
}

#[test]
fn a_remembered_denial_asks_the_store_nothing_and_is_as_true_as_the_first() {
    let subject = subject();
    deny(&subject);
    let later = NOW + Nanos::new(999_999_999);
    let outcome = decide(&subject, spend("L:a", 1), later);
    assert_eq!(outcome.source, DecisionSource::Remembered);
    let denied = outcome.decisions[0].unwrap();
    assert_eq!(
        denied.retry_in,
        minutes(1).saturating_sub(Nanos::new(999_999_999))
    );
    assert_eq!(asked(&subject), 2);
}

#[test]
fn a_denial_is_remembered_for_a_second_and_not_on_a_clock_that_stepped_back() {
    let subject = subject();
    deny(&subject);
    let before = Timestamp::from_nanos(NOW.as_nanos() - 1);
    for now in [before, NOW + MAX_REMEMBERED] {
        assert_eq!(
            decide(&subject, spend("L:a", 1), now).source,
            DecisionSource::Store
        );
    }
}

#[test]
fn a_denial_is_over_when_its_retry_time_has_come() {
    let subject = subject();
    let fast = |cost| Transaction {
        quota: Quota::new(10, 10, Duration::from_secs(1)).unwrap(),
        ..spend("L:a", cost)
    };
    decide(&subject, fast(10), NOW);
    assert!(!decide(&subject, fast(2), NOW).is_allowed());
    let retry = NOW + Nanos::new(200_000_000);
    assert!(decide(&subject, fast(2), retry).is_allowed());
}

#[test]
fn a_smaller_cost_is_not_denied_by_what_a_greater_one_was() {
    let subject = subject();
    decide(&subject, spend("L:a", 5), NOW);
    assert!(!decide(&subject, spend("L:a", 6), NOW).is_allowed());
    assert!(decide(&subject, spend("L:a", 5), NOW).is_allowed());
}

#[test]
fn what_never_denies_is_not_answered_from_memory() {
    let subject = subject();
    deny(&subject);
    for mode in [Mode::SpendOnly, Mode::Peek, Mode::AllowOnly] {
        let outcome = decide(&subject, of_mode(mode, "L:a", 1), NOW);
        assert_eq!(
            (outcome.source, outcome.is_allowed()),
            (DecisionSource::Store, true)
        );
    }
}

#[test]
fn the_other_limits_of_a_denied_request_are_asked_once() {
    let subject = subject();
    deny(&subject);
    let all = || batch(["L:b", "L:a", "L:c"].map(|key| spend(key, 1)));
    let known = |outcome: Outcome| {
        let known: Vec<_> = outcome.decisions.iter().map(Option::is_some).collect();
        (outcome.source, known)
    };
    let first = decide_all(&subject, all(), NOW);
    assert_eq!(known(first), (DecisionSource::Store, vec![true; 3]));
    for _ in 0..3 {
        let again = decide_all(&subject, all(), NOW);
        let denier_alone = vec![false, true, false];
        assert_eq!(known(again), (DecisionSource::Remembered, denier_alone));
    }
    assert_eq!(asked(&subject), 3);
}

fn every(key: &str, period: Duration) -> Transaction {
    Transaction {
        quota: Quota::new(1, 1, period).unwrap(),
        ..spend(key, 1)
    }
}

fn hour() -> Nanos {
    minutes(60)
}

/// The keys of the limits that denied, and the longest time to wait.
fn told(batch: &Batch, outcome: &Outcome) -> (Vec<String>, Nanos) {
    let both = batch.iter().zip(&outcome.decisions);
    let denials = both.filter_map(|(transaction, decision)| {
        let denied = decision.filter(|decision| !decision.allowed)?;
        Some((transaction.key.as_str().to_owned(), denied.retry_in))
    });
    let (mut keys, waits): (Vec<_>, Vec<_>) = denials.unzip();
    keys.sort();
    (keys, waits.into_iter().max().unwrap_or_default())
}

/// With one unit in three seconds and one in an hour, both taken, 37 of 40 answers told of the
/// three seconds alone.
#[test]
fn a_remembered_denial_hides_no_longer_one() {
    let subject = subject();
    let [short, long] = [("L:x", 3), ("L:y", 3600)]
        .map(|(key, secs)| move || every(key, Duration::from_secs(secs)));
    let both = || batch([short(), long()]);
    assert!(decide_all(&subject, both(), NOW).is_allowed());
    for step in 0..40_u64 {
        let now = NOW + Nanos::new(step * 10_000_000);
        // The shorter one is remembered by requests of another route as well.
        decide(&subject, short(), now);
        let (keys, wait) = told(&both(), &decide_all(&subject, both(), now));
        assert_eq!(keys, ["L:x", "L:y"], "step {step}");
        assert_eq!(wait, (NOW + hour()).since(now), "step {step}");
    }
    assert_eq!(asked(&subject), 3);
}

/// The longer denial began after the shorter one was remembered.
#[test]
fn a_remembered_denial_hides_none_that_a_request_has_caused_since() {
    for algorithm in [None, Some(Algorithm::FixedWindow(Alignment::Period))] {
        let subject = subject();
        let short = || every("L:x", Duration::from_secs(3));
        let long = || match algorithm {
            None => every("L:y", Duration::from_secs(3600)),
            Some(algorithm) => Transaction {
                quota: Quota::windowed(algorithm, 1, Duration::from_secs(3600)).unwrap(),
                ..spend("L:y", 1)
            },
        };
        let both = || batch([short(), long()]);
        decide(&subject, short(), NOW);
        assert_eq!(told(&both(), &decide_all(&subject, both(), NOW)).0, ["L:x"]);
        assert!(decide(&subject, long(), NOW).is_allowed());
        let (keys, wait) = told(&both(), &decide_all(&subject, both(), NOW));
        assert_eq!(keys, ["L:x", "L:y"]);
        assert!(wait > Nanos::from_secs(3));
    }
}

/// A client that names the other bucket itself would pass the memory of its ban.
#[test]
fn a_ban_answers_whatever_limits_stand_behind_it() {
    let subject = subject();
    let ban = |mode| of_mode(mode, ":b:B:203.0.113.9", 10);
    decide(&subject, ban(Mode::CheckAndSpend), NOW);
    let request = |number: u32| {
        let limit = spend(&format!("L:{number}"), 1);
        batch([ban(Mode::CheckOnly), limit])
    };
    for number in 0..10 {
        assert!(!decide_all(&subject, request(number), NOW).is_allowed());
    }
    assert_eq!(asked(&subject), 2);
}

/// One random sequence with the cache and without it: the same requests are denied, by the same
/// limits, for the same time.
#[test]
fn with_the_cache_clients_are_told_what_they_are_told_without_it() {
    let mut random = StdRng::seed_from_u64(7);
    let kinds = [
        Quota::new(2, 1, Duration::from_secs(3)).unwrap(),
        Quota::new(3, 1, Duration::from_secs(60)).unwrap(),
        Quota::new(1, 1, Duration::from_secs(3600)).unwrap(),
        windowed(Algorithm::FixedWindow(Alignment::Period), 1).quota,
        windowed(
            Algorithm::SlidingLog {
                count_denied: false,
            },
            1,
        )
        .quota,
    ];
    let subject = subject();
    let plain = Memory::new(MemorySettings::default());
    let (mut now, mut remembered) = (NOW, 0);
    for step in 0..20_000 {
        now = now + Nanos::new(random.random_range(0..200_000_000));
        let mut limits: Vec<usize> = (0..kinds.len()).collect();
        limits.shuffle(&mut random);
        limits.truncate(random.random_range(1..4));
        let batch: Batch = limits
            .into_iter()
            .map(|limit| {
                let subject = random.random_range(0..2);
                let mode = match random.random_range(0..8) {
                    0 => Mode::SpendOnly,
                    1 => Mode::CheckOnly,
                    _ => Mode::CheckAndSpend,
                };
                Transaction {
                    quota: kinds[limit],
                    ..of_mode(
                        mode,
                        &format!("{limit}:{subject}"),
                        random.random_range(1..4),
                    )
                }
            })
            .collect();
        let outcome = decide_all(&subject, batch.clone(), now);
        let expected = plain.decide_now(&batch, now);
        assert_eq!(told(&batch, &outcome), told(&batch, &expected), "{step}");
        remembered += u32::from(outcome.source == DecisionSource::Remembered);
    }
    assert!(remembered > 1000, "{remembered}");
}

#[test]
fn a_refund_and_a_reset_are_seen_at_once() {
    for reset in [true, false] {
        let subject = subject();
        deny(&subject);
        let done = if reset {
            subject.reset(["L:a".into()].into())
        } else {
            subject.refund(owed([spend("L:a", 1)]), NOW)
        };
        done.now_or_never().unwrap().unwrap();
        assert!(decide(&subject, spend("L:a", 1), NOW).is_allowed());
    }
}

/// For up to a second the bucket seemed to owe what the batch would have taken first.
#[test]
fn a_bucket_that_a_denied_batch_has_twice_is_not_remembered_as_emptier_than_it_is() {
    let window = Algorithm::FixedWindow(Alignment::FirstRequest);
    for half in [spend("L:a", 6), windowed(window, 6)] {
        let subject = subject();
        let twice = batch([half.clone(), half.clone()]);
        assert!(!decide_all(&subject, twice, NOW).is_allowed());
        assert!(decide(&subject, half, NOW).is_allowed());
    }
}

/// A debt that a lowered limit cannot have caused is another's: this one counts by a level of its
/// own, in which units come back from then on. A memory of the greater debt would deny for as long
/// as it lasts.
#[test]
fn a_denial_of_a_limit_that_was_lowered_since_is_not_answered_from_memory() {
    let subject = subject();
    deny(&subject);
    let faster = || Transaction {
        quota: Quota::new(10, 10, Duration::from_secs(1)).unwrap(),
        ..spend("L:a", 1)
    };
    let denied = decide(&subject, faster(), NOW);
    assert_eq!(
        (denied.source, denied.is_allowed()),
        (DecisionSource::Store, false)
    );
    let next = NOW + faster().quota.emission_interval();
    assert!(decide(&subject, faster(), next).is_allowed());
}

fn windowed(algorithm: Algorithm, cost: u64) -> Transaction {
    Transaction {
        quota: Quota::windowed(algorithm, 10, Duration::from_secs(3600)).unwrap(),
        ..spend("L:a", cost)
    }
}

#[test]
fn a_windows_denial_is_remembered_for_the_same_cost_and_count_only() {
    let subject = subject();
    let window = Algorithm::FixedWindow(Alignment::FirstRequest);
    decide(&subject, windowed(window, 8), NOW);
    let denied = decide(&subject, windowed(window, 5), NOW);
    let later = NOW + Nanos::new(900_000_000);
    let again = decide(&subject, windowed(window, 5), later);
    assert_eq!(
        (again.source, asked(&subject)),
        (DecisionSource::Remembered, 2)
    );
    let [first, second] = [denied, again].map(|outcome| outcome.decisions[0].unwrap());
    assert_eq!(NOW + first.retry_in, later + second.retry_in);
    assert_eq!(second.remaining, 2);
    assert!(decide(&subject, windowed(window, 1), later).is_allowed());
    let raised = Transaction {
        quota: Quota::windowed(window, 20, Duration::from_secs(3600)).unwrap(),
        ..windowed(window, 5)
    };
    assert!(decide(&subject, raised, later).is_allowed());
}

/// A cost above the count is denied for ever. The end of a window that was used up was told as
/// nothing left, and no time to wait.
#[test]
fn a_windows_denial_of_what_never_fits_is_not_remembered_beyond_its_window() {
    let subject = subject();
    let window = Algorithm::FixedWindow(Alignment::FirstRequest);
    decide(&subject, windowed(window, 10), NOW);
    let end = NOW + minutes(60);
    let before = Timestamp::from_nanos(end.as_nanos() - 500_000_000);
    for now in [before, end] {
        let denied = decide(&subject, windowed(window, 11), now).decisions[0].unwrap();
        assert_eq!((denied.allowed, denied.retry_in), (false, Nanos::NEVER));
        let left = if now == end { 10 } else { 0 };
        assert_eq!((denied.remaining, denied.reset_in), (left, end.since(now)));
    }
}

#[test]
fn a_windows_denial_is_forgotten_with_a_refund_or_reset_and_after_a_second() {
    let window = Algorithm::SlidingLog {
        count_denied: false,
    };
    let (single, all) = (|| windowed(window, 1), || windowed(window, 10));
    for step in 0..3 {
        let subject = subject();
        decide(&subject, all(), NOW);
        assert!(!decide(&subject, single(), NOW).is_allowed());
        let now = match step {
            0 => NOW + Nanos::from_secs(1),
            _ => NOW,
        };
        match step {
            1 => drop(subject.refund(owed([single()]), NOW).now_or_never()),
            2 => drop(subject.reset(["L:a".into()].into()).now_or_never()),
            _ => {}
        }
        assert_eq!(decide(&subject, single(), now).is_allowed(), step > 0);
        assert_eq!(asked(&subject), 3);
    }
}

#[test]
fn where_denials_are_counted_each_one_reaches_the_store() {
    let subject = subject();
    let window = Algorithm::SlidingWindow { count_denied: true };
    for _ in 0..5 {
        decide(&subject, windowed(window, 10), NOW);
    }
    assert_eq!(asked(&subject), 5);
}

/// One limit of a request counts denials, and another denied it a moment ago.
#[test]
fn a_batch_reaches_the_store_when_only_one_of_its_limits_counts_denials() {
    let counting = || Transaction {
        key: "L:counts".into(),
        ..windowed(Algorithm::SlidingWindow { count_denied: true }, 1)
    };
    for plain_first in [true, false] {
        let subject = subject();
        deny(&subject);
        let both = || match plain_first {
            true => batch([spend("L:a", 1), counting()]),
            false => batch([counting(), spend("L:a", 1)]),
        };
        for _ in 0..3 {
            let outcome = decide_all(&subject, both(), NOW);
            assert_eq!(
                (outcome.source, outcome.is_allowed()),
                (DecisionSource::Store, false)
            );
        }
        assert_eq!(asked(&subject), 5);
    }
}

/// When the store is back, its bucket may be full: a stand-in's denial says nothing of it.
#[test]
fn what_stood_in_for_the_store_is_asked_each_time() {
    for source in [DecisionSource::Local, DecisionSource::FailedOpen] {
        let subject = on_basis(source);
        deny(&subject);
        assert_eq!(decide(&subject, spend("L:a", 1), NOW).source, source);
        assert_eq!(asked(&subject), 3);
    }
}

#[test]
fn a_denial_is_remembered_for_those_who_wait_to_be_let_through_too() {
    let subject = subject();
    deny(&subject);
    let outcome = subject.admit(&batch([spend("L:a", 1)]), NOW);
    let outcome = outcome.now_or_never().unwrap().unwrap();
    assert_eq!(
        (outcome.source, asked(&subject)),
        (DecisionSource::Remembered, 2)
    );
}

#[test]
fn what_the_batch_would_have_allowed_is_not_remembered_as_denied() {
    let subject = subject();
    decide(&subject, spend("L:a", 10), NOW);
    let both = batch([spend("L:b", 1), spend("L:a", 1)]);
    assert!(!decide_all(&subject, both, NOW).is_allowed());
    let outcome = decide(&subject, spend("L:b", 10), NOW);
    assert_eq!(
        (outcome.source, outcome.is_allowed()),
        (DecisionSource::Store, true)
    );
}

/// A key that a table keeps in the same place as `L:a`.
fn neighbour(subject: &Subject, places: u64) -> BucketKey {
    let place = |key: &BucketKey| subject.hash(key).shard % places;
    let own = place(&"L:a".into());
    let keys = (0_u32..).map(|number| BucketKey::from(format!("L:{number}").as_str()));
    keys.into_iter().find(|key| place(key) == own).unwrap()
}

#[test]
fn who_shares_a_place_with_the_denied_is_not_denied() {
    let all = |key: &BucketKey| Transaction {
        key: key.clone(),
        ..spend("L:a", 10)
    };
    let subject = subject();
    deny(&subject);
    let other = neighbour(&subject, PLACES as u64);
    assert!(decide(&subject, all(&other), NOW).is_allowed());

    let subject = on_basis(DecisionSource::Store);
    let log = Algorithm::SlidingLog {
        count_denied: false,
    };
    decide(&subject, windowed(log, 10), NOW);
    assert!(!decide(&subject, windowed(log, 10), NOW).is_allowed());
    let other = Transaction {
        key: neighbour(&subject, PLACES as u64),
        ..windowed(log, 10)
    };
    assert!(decide(&subject, other, NOW).is_allowed());
}

/// The place of a denial that was removed may be another's by then.
#[test]
fn a_reset_forgets_nobody_elses_denial() {
    let subject = subject();
    deny(&subject);
    let other = neighbour(&subject, PLACES as u64);
    let reset = subject.reset([other].into());
    reset.now_or_never().unwrap().unwrap();
    let outcome = decide(&subject, spend("L:a", 1), NOW);
    assert_eq!(outcome.source, DecisionSource::Remembered);
}
