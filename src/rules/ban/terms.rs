//! How long bans are, and how they grow.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use thiserror::Error;

use crate::limit::{Decision, Quota, QuotaError};

/// The unit in which bans are measured.
const UNIT: Duration = Duration::from_millis(1);

/// The shortest ban: two gateways' clocks may differ by as much.
const SHORTEST: Duration = Duration::from_secs(1);

/// How much longer than the longest limit a ban is kept: stores keep buckets for up to a minute, or a
/// sub-window, longer than they must.
const SPARE: Duration = Duration::from_secs(120);

/// How long bans are: the first, and each that follows before the last offence is forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// By offence, in ascending order; never empty.
    lengths: Box<[Duration]>,
    quota: Quota,
    /// None where every ban is as long as the first.
    offences: Option<Quota>,
}

/// Why there are no such terms, and what to write instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TermsError {
    /// The first ban is shorter than a second.
    #[error("a ban is for a second at least; write `1s`")]
    TooShort,
    /// The longest ban is shorter than the first.
    #[error("the longest ban is shorter than the first; leave `max` out, or raise it")]
    LongestTooShort,
    /// The longest ban is too long.
    #[error("a ban is for 146 years at most; say `max: 365d`")]
    TooLong,
    /// Offences are forgotten before the first ban is over.
    #[error(
        "offences are forgotten before the first ban is over, so bans never grow; raise `forget` above `for`"
    )]
    ForgottenTooSoon,
    /// Offences are never forgotten.
    #[error("offences cannot be forgotten after so long: {0}")]
    Forgetting(QuotaError),
}

impl Terms {
    /// A `first` ban, and then each `factor` times as long as the one before, up to `longest`. An
    /// offence is forgotten after `forget`, one at a time.
    ///
    /// # Errors
    /// See [`TermsError`].
    pub fn new(
        first: Duration,
        factor: NonZeroU32,
        longest: Duration,
        forget: Duration,
    ) -> Result<Self, TermsError> {
        if first < SHORTEST {
            return Err(TermsError::TooShort);
        }
        if longest < first {
            return Err(TermsError::LongestTooShort);
        }
        let lengths = lengths(first, factor, longest);
        let greatest = lengths.last().copied().unwrap_or(first);
        let quota = Quota::new(cost(greatest).get(), 1, UNIT).map_err(|_| TermsError::TooLong)?;
        let offences = match lengths.len() as u64 {
            1 => None,
            _ if forget <= first => return Err(TermsError::ForgottenTooSoon),
            several => Some(Quota::new(several, 1, forget).map_err(TermsError::Forgetting)?),
        };
        Ok(Self {
            lengths,
            quota,
            offences,
        })
    }

    /// The same terms, whose bans are kept longer than any bucket that is kept for this span after it
    /// was taken from.
    ///
    /// A store forgets a bucket some time after it could be full at the latest, and one that is short
    /// of memory forgets first what it would forget the soonest. So the bucket of a ban has room for
    /// more than the longest ban.
    #[must_use]
    pub fn outliving(self, span: Duration) -> Self {
        let longest = self.longest().saturating_add(span);
        let spare = (span / 16).saturating_add(SPARE);
        let quota = Quota::new(cost(longest.saturating_add(spare)).get(), 1, UNIT);
        Self {
            // There is no room for more than a store can count: bans of a hundred years need none.
            quota: quota.unwrap_or(self.quota),
            ..self
        }
    }

    /// The length of the first ban.
    pub fn first(&self) -> Duration {
        self.lengths.first().copied().unwrap_or(SHORTEST)
    }

    /// The length of the longest ban.
    pub fn longest(&self) -> Duration {
        self.lengths.last().copied().unwrap_or(SHORTEST)
    }

    /// All lengths, by offence.
    pub fn lengths(&self) -> &[Duration] {
        &self.lengths
    }

    /// How long until an offence is forgotten, where bans grow.
    pub fn forget(&self) -> Option<Duration> {
        self.offences.map(|quota| quota.emission_interval().into())
    }

    /// Which offence comes next, counted from 1, by a look at those so far.
    pub(super) fn offence(&self, so_far: Option<&Decision>) -> usize {
        let Some((quota, so_far)) = self.offences.zip(so_far) else {
            return 1;
        };
        let most = quota.burst().get();
        let next = most.saturating_sub(so_far.remaining).saturating_add(1);
        usize::try_from(next.min(most)).unwrap_or(usize::MAX)
    }

    /// How long the ban for this offence is.
    pub fn length(&self, offence: usize) -> Duration {
        let of_offence = self.lengths.get(offence.saturating_sub(1));
        of_offence.copied().unwrap_or_else(|| self.longest())
    }

    /// The quota of bans.
    pub(super) fn quota(&self) -> Quota {
        self.quota
    }

    /// The quota of offences.
    pub(super) fn offences(&self) -> Option<Quota> {
        self.offences
    }

    /// A ban of this length in units of its bucket; of the longest at most.
    pub(super) fn cost(&self, length: Duration) -> NonZeroU64 {
        cost(length.min(self.longest()))
    }
}

fn lengths(first: Duration, factor: NonZeroU32, longest: Duration) -> Box<[Duration]> {
    let longer = |last: &Duration| {
        let next = last.saturating_mul(factor.get()).min(longest);
        (next > *last).then_some(next)
    };
    std::iter::successors(Some(first), longer).collect()
}

fn cost(length: Duration) -> NonZeroU64 {
    let units = length.as_nanos() / UNIT.as_nanos();
    let units = u64::try_from(units).unwrap_or(u64::MAX);
    NonZeroU64::new(units).unwrap_or(NonZeroU64::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(first: u64, factor: u32, longest: u64) -> Result<Terms, TermsError> {
        let secs = Duration::from_secs;
        let factor = NonZeroU32::new(factor).unwrap();
        Terms::new(secs(first), factor, secs(longest), secs(86_400))
    }

    #[test]
    fn each_ban_is_a_factor_longer_than_the_one_before_up_to_the_longest() {
        let minutes: Vec<u64> = terms(600, 4, 86_400)
            .unwrap()
            .lengths()
            .iter()
            .map(|length| length.as_secs() / 60)
            .collect();
        assert_eq!(minutes, [10, 40, 160, 640, 1440]);
    }

    #[test]
    fn bans_without_a_factor_are_all_alike_and_count_no_offences() {
        let terms = terms(600, 1, 86_400).unwrap();
        assert_eq!(terms.lengths(), [Duration::from_secs(600)]);
        assert_eq!((terms.offences(), terms.offence(None)), (None, 1));
    }

    #[test]
    fn after_the_last_growth_bans_stay_the_longest() {
        let terms = terms(10, 10, 1000).unwrap();
        assert_eq!(terms.length(3), Duration::from_secs(1000));
        assert_eq!(terms.length(99), Duration::from_secs(1000));
    }

    #[test]
    fn the_bucket_of_a_ban_has_room_for_the_longest_limit_as_well_and_no_ban_is_longer() {
        let day = Duration::from_secs(86_400);
        let plain = terms(600, 1, 86_400).unwrap();
        let outliving = plain.clone().outliving(day);
        let room = Duration::from(outliving.quota().tolerance());
        assert!(room > plain.longest() + day + day / 60 + Duration::from_secs(63));
        assert_eq!(outliving.lengths(), plain.lengths());
        assert_eq!(outliving.cost(day), plain.cost(day));
        assert_eq!(outliving.cost(day), cost(plain.longest()));
        let hundred_years = Duration::from_secs(100 * 365 * 86_400);
        let centuries = Terms::new(hundred_years, NonZeroU32::MIN, hundred_years, day).unwrap();
        assert_eq!(centuries.clone().outliving(hundred_years), centuries);
    }

    #[test]
    fn terms_that_make_no_sense_are_refused() {
        assert_eq!(terms(0, 4, 10), Err(TermsError::TooShort));
        assert_eq!(terms(10, 4, 9), Err(TermsError::LongestTooShort));
        assert_eq!(terms(10, 4, u64::MAX), Err(TermsError::TooLong));
        let forgotten_after = |secs: u64| {
            let (first, factor) = (Duration::from_secs(60), NonZeroU32::new(2).unwrap());
            Terms::new(first, factor, 2 * first, Duration::from_secs(secs)).err()
        };
        assert_eq!(forgotten_after(60), Some(TermsError::ForgottenTooSoon));
        assert_eq!(forgotten_after(61), None);
        let never = forgotten_after(u64::MAX);
        assert_eq!(
            never,
            Some(TermsError::Forgetting(QuotaError::PeriodTooLong))
        );
    }
}
