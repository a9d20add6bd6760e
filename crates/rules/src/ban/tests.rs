use std::num::NonZeroU32;

use weir_limit::BucketClass;
use weir_limit::time::Nanos;

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

pub(super) fn banning(per: &str, factor: u32) -> Ban {
    let source = KeySource::parse(per, 64).unwrap();
    let key = HashKey::from_bytes(&[7; 16]).unwrap();
    let strikes = Quota::new(3, 3, MINUTE).unwrap();
    let factor = NonZeroU32::new(factor).unwrap();
    let schedule = BanSchedule::new(MINUTE, factor, 16 * MINUTE, 60 * MINUTE).unwrap();
    Ban::new("scanners", vec![source], key, strikes, schedule).unwrap()
}

fn subject(ban: &Ban) -> BucketKey {
    ban.subject_of("203.0.113.9").unwrap()
}

/// What a transaction decides about a bucket with this debt, in seconds.
fn decide(transaction: &Transaction, debt: u64) -> Decision {
    transaction.decide(Nanos::from_secs(debt))
}

#[test]
fn no_bucket_of_a_ban_has_the_key_of_another() {
    let ban = banning("address", 4);
    let keys = ban.keys(&subject(&ban));
    let texts: Vec<&str> = keys.iter().map(BucketKey::as_str).collect();
    assert_eq!(
        texts,
        [
            ":ban:scanners:203.0.113.9",
            ":strikes:scanners:203.0.113.9",
            ":offences:scanners:203.0.113.9",
            ":turn:scanners:203.0.113.9"
        ]
    );
    let classes: Vec<BucketClass> = keys.iter().map(BucketKey::class).collect();
    use BucketClass::{Ban, Limit, Offences, Strikes};
    assert_eq!(classes, [Ban, Strikes, Offences, Strikes]);
    assert_eq!(BucketKey::from("ban:203.0.113.9").class(), Limit);
}

#[test]
fn a_subject_with_any_debt_to_a_ban_is_banned_until_it_is_over() {
    let ban = banning("address", 4);
    let check = ban.check(&subject(&ban));
    assert!(decide(&check, 0).allowed);
    let denied = decide(&check, 7);
    assert_eq!(
        (denied.allowed, denied.retry_in),
        (false, Nanos::from_secs(7))
    );
    let begun = decide(&ban.begin(&subject(&ban), 4 * MINUTE), 0);
    assert_eq!(begun.reset_in, Nanos::from_secs(240));
}

/// Its `Retry-After` was a constant, for as long as the ban was meant to be before.
#[test]
fn what_a_ban_was_before_it_was_shortened_counts_as_the_longest_ban_and_no_longer() {
    let ban = banning("address", 4);
    let schedule = ban.schedule().clone().outliving(60 * MINUTE);
    let ban = Ban { schedule, ..ban };
    let denied = decide(&ban.check(&subject(&ban)), 7 * 86_400);
    assert_eq!(denied.retry_in, Nanos::from(16 * MINUTE));
}

#[test]
fn the_last_of_the_strikes_is_the_one_that_bans() {
    let ban = banning("address", 4);
    let [check, strike] =
        <[Transaction; 2]>::try_from(ban.strike(&subject(&ban)).to_vec()).unwrap();
    let free = Some(decide(&check, 0));
    assert!(!ban.is_due(&[free, Some(decide(&strike, 19))]));
    assert!(ban.is_due(&[free, Some(decide(&strike, 40))]), "the third");
    assert!(
        ban.is_due(&[free, Some(decide(&strike, 60))]),
        "one too many"
    );
    assert!(ban.is_due(&[None, Some(decide(&strike, 60))]), "remembered");
}

/// Two denials at one moment, on gateways whose clocks differed by a millisecond, began a ban of
/// three strikes.
#[test]
fn strikes_that_clocks_count_apart_ban_nobody_a_strike_early() {
    let ban = banning("address", 4);
    let [check, strike] =
        <[Transaction; 2]>::try_from(ban.strike(&subject(&ban)).to_vec()).unwrap();
    let free = Some(decide(&check, 0));
    assert!(!ban.is_due(&[free, Some(decide(&strike, 21))]));
    assert!(ban.is_due(&[free, Some(decide(&strike, 22))]));
}

#[test]
fn a_banned_subject_earns_no_further_ban() {
    let ban = banning("address", 4);
    let [check, strike] =
        <[Transaction; 2]>::try_from(ban.strike(&subject(&ban)).to_vec()).unwrap();
    let banned = Some(decide(&check, 1));
    assert!(!ban.is_due(&[banned, Some(decide(&strike, 60))]));
    assert!(!ban.is_due(&[banned, None]));
    assert!(!ban.is_due(&[None, None]), "the store is out of reach");
}

#[test]
fn each_offence_that_is_not_forgotten_makes_the_next_ban_longer() {
    let ban = banning("address", 4);
    let turn = ban.take_turn(&subject(&ban));
    let length = |offences| {
        let free = [0, 1].map(|index| Some(decide(&turn[index], 0)));
        let so_far = Some(turn[2].decide(Nanos::from(offences)));
        let decisions = [free[0], free[1], so_far];
        let offence = ban.offence(&decisions).unwrap();
        ban.schedule().length(offence).as_secs() / 60
    };
    let forgotten_after = 60 * MINUTE;
    assert_eq!(length(Duration::ZERO), 1);
    assert_eq!(length(forgotten_after - Duration::from_secs(1)), 4);
    assert_eq!(length(2 * forgotten_after - Duration::from_secs(1)), 16);
    assert_eq!(
        length(3 * forgotten_after),
        16,
        "no longer than the longest"
    );
    assert!(
        banning("address", 1)
            .count_offence(&subject(&ban))
            .is_none()
    );
    let taken = decide(&turn[1], 5);
    let free = decide(&turn[0], 0);
    assert_eq!(ban.offence(&[Some(free), Some(taken), None]), None);
}

#[test]
fn what_may_be_a_secret_is_hashed_in_a_subject() {
    let ban = banning("account", 4);
    let subject = ban.subject_of("acme").unwrap();
    assert_eq!(subject.as_str().len(), 32);
    assert!(!subject.as_str().contains("acme"));
}

fn schedule(first: u64, factor: u32, longest: u64) -> Result<BanSchedule, BanScheduleError> {
    let secs = Duration::from_secs;
    let factor = NonZeroU32::new(factor).unwrap();
    BanSchedule::new(secs(first), factor, secs(longest), secs(86_400))
}

#[test]
fn each_ban_is_a_factor_longer_than_the_one_before_up_to_the_longest() {
    let minutes: Vec<u64> = schedule(600, 4, 86_400)
        .unwrap()
        .lengths()
        .iter()
        .map(|length| length.as_secs() / 60)
        .collect();
    assert_eq!(minutes, [10, 40, 160, 640, 1440]);
}

#[test]
fn bans_without_a_factor_are_all_alike_and_count_no_offences() {
    let schedule = schedule(600, 1, 86_400).unwrap();
    assert_eq!(schedule.lengths(), [Duration::from_secs(600)]);
    assert_eq!((schedule.offences(), schedule.offence(None)), (None, 1));
}

#[test]
fn after_the_last_growth_bans_stay_the_longest() {
    let schedule = schedule(10, 10, 1000).unwrap();
    assert_eq!(schedule.length(3), Duration::from_secs(1000));
    assert_eq!(schedule.length(99), Duration::from_secs(1000));
}

#[test]
fn the_bucket_of_a_ban_has_room_for_the_longest_limit_as_well_and_no_ban_is_longer() {
    let day = Duration::from_secs(86_400);
    let plain = schedule(600, 1, 86_400).unwrap();
    let outliving = plain.clone().outliving(day);
    let room = Duration::from(outliving.kept.tolerance());
    assert!(room > plain.longest() + day + day / 60 + Duration::from_secs(63));
    assert_eq!(outliving.lengths(), plain.lengths());
    assert_eq!(outliving.quota, plain.quota);
    assert_eq!(outliving.cost(day), plain.cost(day));
    assert_eq!(outliving.cost(day), units(plain.longest()));
    let hundred_years = Duration::from_secs(100 * 365 * 86_400);
    let centuries = BanSchedule::new(hundred_years, NonZeroU32::MIN, hundred_years, day).unwrap();
    assert_eq!(centuries.clone().outliving(hundred_years), centuries);
}

#[test]
fn terms_that_make_no_sense_are_refused() {
    assert_eq!(schedule(0, 4, 10), Err(BanScheduleError::TooShort));
    assert_eq!(schedule(10, 4, 9), Err(BanScheduleError::LongestTooShort));
    assert_eq!(schedule(10, 4, u64::MAX), Err(BanScheduleError::TooLong));
    let forgotten_after = |secs: u64| {
        let (first, factor) = (Duration::from_secs(60), NonZeroU32::new(2).unwrap());
        BanSchedule::new(first, factor, 2 * first, Duration::from_secs(secs)).err()
    };
    assert_eq!(
        forgotten_after(60),
        Some(BanScheduleError::ForgottenTooSoon)
    );
    assert_eq!(forgotten_after(61), None);
    let never = forgotten_after(u64::MAX);
    assert_eq!(
        never,
        Some(BanScheduleError::Forgetting(QuotaError::PeriodTooLong))
    );
}
