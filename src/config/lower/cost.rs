//! What a request costs, and which requests do, by their responses.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::book::LimitDef;
use super::{Lowered, Lowering, Reported};
use crate::config::byte_size::ByteSize;
use crate::config::schema;
use crate::config::yaml::{OneOrMany, Span, Spanned, WordOr};
use crate::rules::{Cost, MeasuredCost, SpendWhen, StatusSet, Statuses};

impl Lowering<'_> {
    /// The cost of a request, which every bucket of the limit must be able to hold.
    pub(super) fn cost(&mut self, entry: &LimitDef, usage: &schema::LimitUse) -> Lowered<Cost> {
        let Some(written) = &usage.cost else {
            return Ok(Cost::default());
        };
        if entry.is_in_flight() {
            let message = format!(
                "\"{}\" counts requests, whatever they cost",
                entry.name.value
            );
            return Err(self.error(written.span, message).help("leave `cost` out"));
        }
        match &written.value {
            WordOr::Word(number) => self.fixed_cost(entry, written.span, number),
            WordOr::More(measured) => self.measured_cost(entry, written.span, measured),
        }
    }

    fn fixed_cost(&mut self, entry: &LimitDef, span: Span, number: &str) -> Lowered<Cost> {
        let Ok(cost) = number.parse::<NonZeroU64>() else {
            let found = match number.parse::<u64>() {
                Ok(zero) => zero.to_string(),
                Err(_) => format!("`{number}`"),
            };
            let message = format!("expected a whole number that is at least 1, found {found}");
            return Err(self.error(span, message).into());
        };
        self.require_burst(entry, span, cost.get())?;
        Ok(Cost::Fixed(cost))
    }

    fn measured_cost(
        &mut self,
        entry: &LimitDef,
        span: Span,
        written: &schema::MeasuredCost,
    ) -> Lowered<Cost> {
        let request = written.request_header.as_ref();
        let response = written.response_header.as_ref();
        if request.is_none() && response.is_none() && written.request_bytes.is_none() {
            return Err(self.costs_nothing_known(span));
        }
        let request_header = request.map(|name| self.header_name(name));
        let response_header = response.map(|name| self.header_name(name));
        let request_bytes = written.request_bytes.as_ref().map(|it| self.unit(it));
        let default = written.default.map(|it| {
            let fits = self.require_burst(entry, it.span, it.value);
            fits.map(|()| it.value)
        });
        Ok(Cost::Measured(Arc::new(MeasuredCost {
            request_header: request_header.transpose()?,
            response_header: response_header.transpose()?,
            request_bytes: request_bytes.transpose()?,
            default: default.unwrap_or(Ok(1))?,
        })))
    }

    fn costs_nothing_known(&mut self, span: Span) -> Reported {
        let keys = ["request_header", "response_header", "request_bytes"];
        let in_error = self.sources.key_in_error(span, &keys);
        in_error.unwrap_or_else(|| {
            self.error(span, "nothing says what a request costs").help(
                "add `request_header`, `response_header` or `request_bytes`, \
                 or write the number alone",
            )
        })
    }

    /// Bytes that make a unit of cost.
    fn unit(&mut self, written: &Spanned<String>) -> Lowered<NonZeroU64> {
        let ByteSize(bytes) = self.ok(written.span, written.value.parse())?;
        NonZeroU64::new(bytes).ok_or_else(|| {
            self.error(written.span, "a unit has at least one byte")
                .help("say how many bytes cost 1, such as 1KiB")
        })
    }

    fn require_burst(&mut self, entry: &LimitDef, span: Span, cost: u64) -> Lowered<()> {
        let smallest = entry.smallest_burst();
        let Some((burst, defined)) = smallest.filter(|(burst, _)| burst.get() < cost) else {
            return Ok(());
        };
        let at = self.sources.location(defined);
        let message = format!("a cost of {cost} never passes \"{}\"", entry.name.value);
        let help = format!("its burst is only {burst} at {at} {}", at.path);
        Err(self.error(span, message).help(help))
    }

    /// Which requests take their cost.
    pub(super) fn spend_when(&mut self, usage: &schema::LimitUse) -> Lowered<SpendWhen> {
        match (&usage.spend_on, &usage.refund_on) {
            (None, None) => Ok(SpendWhen::Always),
            (Some(on), None) => self.status_set(&on.status).map(SpendWhen::On),
            (None, Some(except)) => self.status_set(&except.status).map(SpendWhen::ExceptOn),
            (Some(_), Some(refund_on)) => {
                let message = "`spend_on` and `refund_on` do not go together";
                let help = "what only some responses spend need not be given back; leave one out";
                Err(self.error(refund_on.span, message).help(help))
            }
        }
    }

    pub(super) fn status_set(
        &mut self,
        written: &Spanned<OneOrMany<Spanned<String>>>,
    ) -> Lowered<StatusSet> {
        let statuses: Vec<Lowered<Statuses>> = written
            .value
            .0
            .iter()
            .map(|text| self.ok(text.span, text.value.parse()))
            .collect();
        if statuses.is_empty() {
            let in_error = self.sources.child_in_error(written.span);
            return Err(in_error.unwrap_or_else(|| {
                self.error(written.span, "there are no statuses")
                    .help("name some, such as [401, 403] or 5xx")
            }));
        }
        statuses.into_iter().collect()
    }
}
