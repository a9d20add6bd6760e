//! Deserialising a document with all of its errors.

use serde::de::DeserializeOwned;

use super::deserializer::Reader;
use super::document::{Content, CutOut, Document, NodeId, Span};
use super::error::Error;
use crate::config::diagnostics::{Diagnostics, Location, Lowered, Reported};
use crate::config::nearest::meant;

/// A file with more errors than this is of another form than it should be; going on would take
/// a time that grows with their square.
const MAX_ERRORS: usize = 99;

/// The keys that a rate has.
const RATE: [&str; 3] = ["burst", "count", "period"];

impl Document {
    /// Reads the document as a `T`; none when there is nothing in it. Every error is added to
    /// `found`, and what is in error is left out of the result; there is no result when too much is.
    pub(in crate::config) fn read<T: DeserializeOwned>(
        &mut self,
        found: &mut Diagnostics,
    ) -> Lowered<Option<T>> {
        let Some(root) = self.root.filter(|_| self.broken.is_none()) else {
            return self.broken.map_or(Ok(None), Err);
        };
        for _ in 0..MAX_ERRORS {
            let error = match Reader::of(self, root) {
                None => return Ok(None),
                Some(root) => match root?.read() {
                    Ok(value) => return Ok(Some(value)),
                    Err(error) => error,
                },
            };
            self.cut_out(root, error, found);
        }
        let location = Location {
            file: self.file.clone(),
            ..Location::default()
        };
        let more = found.error(location, "the file has more errors");
        Err(more.remedy("mend these first"))
    }

    /// Reports an error and cuts its node out of the tree, so that the next try gets further.
    fn cut_out(&mut self, root: NodeId, error: Error, found: &mut Diagnostics) {
        let place = error.place.unwrap_or(self.place(root));
        let rate = self.rate(place.node, &error);
        let mut stands_for: Vec<&str> = self.meant(place.node, &error).into_iter().collect();
        if rate.is_some() {
            stands_for = RATE.to_vec();
        }
        let reported = self.cause(place, &error).unwrap_or_else(|| {
            let location = self.location(place);
            found
                .error(location, error.message)
                .perhaps(rate.or(error.remedy))
        });
        if let Some(node) = self.node_mut(place.node) {
            node.pruned = Some(reported);
        }
        self.cut_out.push(CutOut {
            node: place.node,
            stands_for,
        });
    }

    /// The known key that an unknown one was most likely written for.
    fn meant(&self, node: NodeId, error: &Error) -> Option<&'static str> {
        meant(self.key(node)?, error.unknown_among)
    }

    /// How a rate is written here that stands under a key as other gateways have it.
    fn rate(&self, node: NodeId, error: &Error) -> Option<String> {
        let has_rates = RATE.iter().all(|key| error.unknown_among.contains(key));
        let key = self.key(node).filter(|_| has_rates)?;
        let text = match &self.node(node)?.content {
            Content::Scalar { text, .. } => text.as_str(),
            Content::Sequence(_) | Content::Mapping(_) => "",
        };
        let rate = match key {
            "rate" | "rate_limit" => Rate::parse(text),
            "rps" | "requests_per_second" | "per_second" => Rate::parse(&format!("{text}/s")),
            "rpm" | "requests_per_minute" | "per_minute" => Rate::parse(&format!("{text}/m")),
            "rph" | "requests_per_hour" | "per_hour" => Rate::parse(&format!("{text}/h")),
            _ => return None,
        };
        let Rate { count, period } = rate.unwrap_or(Rate {
            count: 10,
            period: "1s",
        });
        Some(format!(
            "a rate is written as `burst: {count}, count: {count}, period: {period}`"
        ))
    }

    /// The reported error that this one follows from: a key is missing only because it was cut out.
    fn cause(&self, place: Span, error: &Error) -> Option<Reported> {
        let missing = || self.key_in_error(place, &[error.missing?]);
        error.follows.or_else(missing)
    }
}

/// So many in such a time, as `10r/s` says it.
struct Rate {
    count: u64,
    period: &'static str,
}

impl Rate {
    fn parse(text: &str) -> Option<Self> {
        let (count, unit) = text.split_once("/").or_else(|| text.split_once(" per "))?;
        let count = count
            .trim()
            .trim_end_matches(|it: char| it.is_alphabetic() || it == ' ');
        Some(Self {
            count: count.parse().ok().filter(|it| *it > 0)?,
            period: match unit.trim() {
                "s" | "sec" | "second" => "1s",
                "m" | "min" | "minute" => "1m",
                "h" | "hour" => "1h",
                "d" | "day" => "1d",
                _ => return None,
            },
        })
    }
}
