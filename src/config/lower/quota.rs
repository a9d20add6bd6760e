//! How much a limit allows, and how it counts.

use super::{Lowered, Lowering, Reported};
use crate::config::duration::HumanDuration;
use crate::config::schema::{self, AlgorithmName, AlignTo};
use crate::config::yaml::{Span, Spanned};
use crate::limit::{Algorithm, Alignment, Calendar, CalendarUnit, Quota, QuotaError};

/// The parameters of a limit or of an override, as they are written.
pub(super) struct WrittenQuota {
    /// The name of the limit that they are written under.
    pub(super) name: Span,
    /// The parameters themselves.
    pub(super) span: Span,
    pub(super) burst: Option<Spanned<u64>>,
    pub(super) count: Option<Spanned<u64>>,
    pub(super) period: Option<Spanned<HumanDuration>>,
    pub(super) in_flight: Option<Spanned<u64>>,
}

impl Lowering<'_> {
    /// How a limit counts. Keys that another algorithm has are in error.
    pub(super) fn algorithm(
        &mut self,
        limit: &Spanned<schema::DefaultLimit>,
    ) -> Lowered<Algorithm> {
        let keys = ["algorithm", "calendar", "in_flight"];
        if let Some(reported) = self.sources.key_in_error(limit.span, &keys) {
            return Err(reported);
        }
        if limit.in_flight.is_some() {
            self.in_flight_alone(limit);
            return Ok(Algorithm::InFlight);
        }
        let name = limit.algorithm.map_or(AlgorithmName::Gcra, |it| it.value);
        let count_denied = limit.count_denied.is_some_and(|it| it.value);
        let algorithm = match name {
            AlgorithmName::Gcra | AlgorithmName::TokenBucket => Algorithm::Gcra,
            AlgorithmName::FixedWindow => Algorithm::FixedWindow(self.alignment(limit)?),
            AlgorithmName::SlidingWindow => Algorithm::SlidingWindow { count_denied },
            AlgorithmName::SlidingLog => Algorithm::SlidingLog { count_denied },
        };
        let denied = limit.count_denied.map(|it| it.span);
        let slides = matches!(
            algorithm,
            Algorithm::SlidingWindow { .. } | Algorithm::SlidingLog { .. }
        );
        let is_fixed = matches!(algorithm, Algorithm::FixedWindow(_));
        let sliding = "`algorithm: sliding_window` or `sliding_log`";
        let fixed = "`algorithm: fixed_window`";
        let keys = [
            ("count_denied", denied, slides, sliding),
            ("align", limit.align.map(|it| it.span), is_fixed, fixed),
            (
                "calendar",
                limit.calendar.map(|it| it.span),
                is_fixed,
                fixed,
            ),
            (
                "time_zone",
                limit.time_zone.as_ref().map(|it| it.span),
                is_fixed,
                fixed,
            ),
        ];
        for (key, span, _, of) in keys.into_iter().filter(|(_, _, fits, _)| !fits) {
            if let Some(span) = span {
                let message = format!("`{key}` is of no use to {}", algorithm.name());
                self.error(span, message)
                    .help(format!("leave it out, or say {of}"));
            }
        }
        Ok(algorithm)
    }

    /// Where fixed windows begin.
    fn alignment(&mut self, limit: &schema::DefaultLimit) -> Lowered<Alignment> {
        let Some(calendar) = limit.calendar else {
            if let Some(zone) = &limit.time_zone {
                self.error(zone.span, "only a calendar window has a time zone")
                    .help("say `calendar: day`, `week` or `month`, or leave it out");
            }
            return Ok(match limit.align.map(|it| it.value) {
                Some(AlignTo::FirstRequest) => Alignment::FirstRequest,
                Some(AlignTo::Period) | None => Alignment::Period,
            });
        };
        if let Some(align) = limit.align {
            self.error(align.span, "a calendar window begins with its calendar")
                .help("leave `align` out, or `calendar`");
        }
        let unit = match calendar.value {
            schema::CalendarUnit::Day => CalendarUnit::Day,
            schema::CalendarUnit::Week => CalendarUnit::Week,
            schema::CalendarUnit::Month => CalendarUnit::Month,
        };
        let zone = limit.time_zone.as_ref();
        let span = zone.map_or(calendar.span, |it| it.span);
        let zone = zone.map_or("UTC", |it| it.value.as_str());
        let calendar = self.ok(span, Calendar::new(unit, zone))?;
        Ok(Alignment::Calendar(calendar))
    }

    /// The quota that parameters come to.
    pub(super) fn quota(&mut self, algorithm: Algorithm, written: &WrittenQuota) -> Lowered<Quota> {
        if algorithm == Algorithm::InFlight {
            return self.in_flight_quota(written);
        }
        self.no_in_flight(written.in_flight);
        let count = self.required("count", written.count, written);
        let above_zero = self.refuse_zeros(algorithm, written);
        let (count, quota) = match algorithm {
            Algorithm::Gcra => {
                let (burst, period) = (
                    self.required("burst", written.burst, written),
                    self.required("period", written.period, written),
                );
                let (burst, count, period) = (burst?, count?, period?);
                above_zero?;
                (count, Quota::new(burst.value, count.value, period.value.0))
            }
            _ => {
                let period = self.period(algorithm, written);
                let count = count?;
                self.burst_is_count(algorithm, written.burst, count)?;
                above_zero?;
                (count, Quota::windowed(algorithm, count.value, period?.0))
            }
        };
        quota.map_err(|error| self.refuse_quota(error, count, written))
    }

    /// Refuses every parameter that is zero, of those that the algorithm has.
    fn refuse_zeros(&mut self, algorithm: Algorithm, written: &WrittenQuota) -> Lowered<()> {
        let has_burst = !algorithm.is_windowed();
        let has_period = !matches!(algorithm, Algorithm::FixedWindow(Alignment::Calendar(_)));
        let is_zero = |it: &Spanned<u64>| it.value == 0;
        let burst = written.burst.filter(|it| has_burst && is_zero(it));
        let count = written.count.filter(is_zero);
        let period = written
            .period
            .filter(|it| has_period && it.value.0.is_zero());
        let zeros = [
            burst.map(|it| (it.span, QuotaError::ZeroBurst)),
            count.map(|it| (it.span, QuotaError::ZeroCount)),
            period.map(|it| (it.span, QuotaError::ZeroPeriod)),
        ];
        let mut none = Ok(());
        for (span, zero) in zeros.into_iter().flatten() {
            none = Err(self.error(span, zero.to_string()).into());
        }
        none
    }

    /// A key that is there. One that is there in error was told of already.
    pub(super) fn required<T>(
        &mut self,
        key: &str,
        value: Option<Spanned<T>>,
        written: &WrittenQuota,
    ) -> Lowered<Spanned<T>> {
        value.ok_or_else(|| {
            let in_error = self.sources.key_in_error(written.span, &[key]);
            in_error.unwrap_or_else(|| {
                let message = format!("the key \"{key}\" is missing");
                self.error(written.name, message).into()
            })
        })
    }

    fn period(&mut self, algorithm: Algorithm, written: &WrittenQuota) -> Lowered<HumanDuration> {
        let Algorithm::FixedWindow(Alignment::Calendar(calendar)) = algorithm else {
            return Ok(self.required("period", written.period, written)?.value);
        };
        if let Some(period) = written.period {
            let unit = calendar.unit().name();
            let message = format!("a window of this limit is as long as its {unit}");
            let complaint = self.error(period.span, message);
            return Err(complaint.help("leave `period` out, or `calendar`"));
        }
        Ok(HumanDuration(calendar.unit().longest().into()))
    }

    fn burst_is_count(
        &mut self,
        algorithm: Algorithm,
        burst: Option<Spanned<u64>>,
        count: Spanned<u64>,
    ) -> Lowered<()> {
        let count = count.value;
        let Some(burst) = burst.filter(|burst| burst.value != count) else {
            return Ok(());
        };
        let name = algorithm.name();
        let complaint = self.error(burst.span, format!("the burst of a {name} is its count"));
        Err(complaint.help(format!("leave `burst` out, or say {count}")))
    }

    fn refuse_quota(
        &mut self,
        error: QuotaError,
        count: Spanned<u64>,
        written: &WrittenQuota,
    ) -> Reported {
        let burst = written.burst.unwrap_or(count);
        let period = written.period.map_or(count.span, |it| it.span);
        let span = match error {
            QuotaError::PeriodTooLong | QuotaError::WindowTooShort => period,
            QuotaError::ToleranceTooLong if burst.value > count.value => burst.span,
            _ => count.span,
        };
        let help = (error == QuotaError::LogTooLong)
            .then(|| "choose sliding_window, which remembers some sixty numbers".to_owned());
        self.error(span, error.to_string()).maybe_help(help)
    }
}
