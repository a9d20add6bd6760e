//! Other parameters of a limit for some subjects, and which of them a subject gets.

mod networks;
#[cfg(test)]
mod tests;
mod tree;
mod wildcards;

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use self::tree::Tree;
pub(super) use self::tree::{PartPattern, Parted, Text};
pub(super) use self::wildcards::{Wildcard, Wildcards};
use crate::limit::Quota;
use crate::time::Timestamp;

/// Other parameters of a limit for some subjects: for the one that the id names, or, where a part
/// of the id is a network or a wildcard, or is left out, for all that it stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The quota in place of the limit's.
    pub quota: Quota,
    /// Why it is there, in the operator's words.
    pub comment: Option<String>,
    /// The id as it is written.
    pub id: String,
    /// When it ends. From then on it is as though it were not there.
    pub until: Option<Timestamp>,
}

impl Override {
    /// Whether it has not ended.
    pub fn holds(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

/// The overrides of a limit.
#[derive(Clone, Debug, Default)]
pub(super) struct Overrides {
    /// Those of one subject, by the subject as bucket keys have it.
    exact: HashMap<Box<str>, Override>,
    /// All others, if there are any.
    tree: Option<Box<Tree>>,
}

impl Overrides {
    pub(super) fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.tree.is_none()
    }

    /// Adds one for a single subject.
    ///
    /// # Errors
    /// When there is one already; it is returned.
    pub(super) fn add_exact(&mut self, subject: &str, added: Override) -> Result<(), &Override> {
        match self.exact.entry(subject.into()) {
            Entry::Occupied(earlier) => Err(earlier.into_mut()),
            Entry::Vacant(vacant) => {
                vacant.insert(added);
                Ok(())
            }
        }
    }

    /// Adds one for all subjects of a pattern.
    ///
    /// # Errors
    /// When there is one already; it is returned.
    pub(super) fn add_pattern(
        &mut self,
        pattern: Vec<PartPattern>,
        added: Override,
    ) -> Result<(), &Override> {
        match self.tree.get_or_insert_default().place(pattern) {
            Some(earlier) => Err(earlier),
            place => {
                *place = Some(added);
                Ok(())
            }
        }
    }

    /// The override of a subject: its own, or else the most exact that has not ended. `parted` is
    /// asked for only where it takes more than the subject to tell.
    pub(super) fn find<P: Parted>(
        &self,
        subject: &str,
        now: Timestamp,
        parted: impl FnOnce() -> P,
    ) -> Option<&Override> {
        let own = self.exact.get(subject).filter(|it| it.holds(now));
        own.or_else(|| self.tree.as_deref()?.find(&parted(), 0, now))
    }

    /// The wildcards of one part.
    pub(super) fn wildcards_of(&self, part: usize) -> Vec<&Wildcard> {
        let tree = self.tree.as_deref();
        tree.map(|it| it.wildcards_at(part)).unwrap_or_default()
    }

    /// All of them, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Override> {
        let others = self.tree.as_deref().map(Tree::all).unwrap_or_default();
        self.exact.values().chain(others)
    }
}
