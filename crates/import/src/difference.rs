//! Where a translated configuration does not do the same as its source.

use std::collections::BTreeMap;
use std::fmt;

use crate::source::Place;

/// Upper bound on the places that one line names.
const MAX_PLACES: usize = 6;

/// What becomes of the service by a difference, the gravest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// A server or a limit is missing.
    LeavesOut,
    /// Requests pass that the source denies, or more of them.
    Opens,
    /// Something else is otherwise, or is stricter.
    Differs,
}

/// A part of the source that Weir does not do, or does otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What becomes of the service.
    pub effect: Effect,
    /// Where the part stands.
    pub place: Place,
    /// The part, and what Weir does in place of it.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
    /// Other parts with the same difference; without a text, the part is the same.
    pub also: Vec<(Place, Option<String>)>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)?;
        for (index, (place, part)) in self.also.iter().take(MAX_PLACES).enumerate() {
            f.write_str(if index == 0 { "\n  also " } else { ", " })?;
            write!(f, "{place}")?;
            if let Some(part) = part {
                write!(f, " {part}")?;
            }
        }
        match self.also.len().checked_sub(MAX_PLACES) {
            Some(more) if more > 0 => write!(f, ", and {more} more")?,
            _ => {}
        }
        write!(f, "\n  {}", self.remedy)
    }
}

/// The differences found so far: parts by what is different about them.
#[derive(Debug, Default)]
pub(crate) struct Differences(BTreeMap<(Effect, String, String), Vec<(Place, String)>>);

impl Differences {
    /// Adds a difference of a part, unless it is known.
    pub(crate) fn add(
        &mut self,
        effect: Effect,
        place: &Place,
        part: &str,
        what: &str,
        to_do: &str,
    ) {
        let key = (effect, what.to_owned(), to_do.to_owned());
        let parts = self.0.entry(key).or_default();
        let found = (place.clone(), part.to_owned());
        if !parts.contains(&found) {
            parts.push(found);
        }
    }

    /// One for each difference, ordered by its effect and then by its first place.
    pub(crate) fn merged(self) -> Vec<Difference> {
        let merged = self
            .0
            .into_iter()
            .filter_map(|((effect, what, remedy), mut parts)| {
                parts.sort();
                let mut parts = parts.into_iter();
                let (place, part) = parts.next()?;
                let also = parts.map(|(place, other)| (place, (other != part).then_some(other)));
                Some(Difference {
                    effect,
                    also: also.collect(),
                    what: format!("{part} {what}").trim_start().to_owned(),
                    place,
                    remedy,
                })
            });
        let mut merged: Vec<_> = merged.collect();
        merged.sort_by(|one, other| {
            let order = |it: &Difference| (it.effect, it.place.clone(), it.what.clone());
            order(one).cmp(&order(other))
        });
        merged
    }
}
