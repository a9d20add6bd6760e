//! Limits on requests in flight, which have one number and no rate.

use super::quota::WrittenQuota;
use super::{Lowered, Lowering};
use crate::config::schema;
use crate::config::yaml::{Span, Spanned};
use crate::limit::Quota;

impl Lowering<'_> {
    /// Refuses what says how a limit on requests in flight counts: it counts in its own way.
    pub(super) fn in_flight_alone(&mut self, limit: &schema::DefaultLimit) {
        self.of_no_use_in_flight([
            ("algorithm", limit.algorithm.map(|it| it.place)),
            ("align", limit.align.map(|it| it.place)),
            ("calendar", limit.calendar.map(|it| it.place)),
            ("time_zone", limit.time_zone.as_ref().map(|it| it.place)),
            ("count_denied", limit.count_denied.map(|it| it.place)),
        ]);
    }

    /// The quota of a limit on requests in flight, or of an override of one.
    pub(super) fn in_flight_quota(&mut self, written: &WrittenQuota) -> Lowered<Quota> {
        self.of_no_use_in_flight([
            ("burst", written.burst.map(|it| it.place)),
            ("count", written.count.map(|it| it.place)),
            ("period", written.period.map(|it| it.place)),
        ]);
        let most = self.required("in_flight", written.in_flight, written)?;
        self.ok(most.place, Quota::in_flight(most.value))
    }

    /// Refuses the number of requests in flight in the override of a limit of another kind.
    pub(super) fn no_in_flight(&mut self, most: Option<Spanned<u64>>) {
        if let Some(most) = most {
            self.error(
                most.place,
                "this limit has a rate, and is not one on requests in flight",
            )
            .remedy("leave `in_flight` out, or define another limit with it");
        }
    }

    pub(super) fn of_no_use_in_flight(
        &mut self,
        keys: impl IntoIterator<Item = (&'static str, Option<Span>)>,
    ) {
        for (key, place) in keys {
            if let Some(place) = place {
                self.error(place, format!("`{key}` is of no use beside `in_flight`"))
                    .remedy("leave it out, or use a limit of its own for the rate");
            }
        }
    }
}
