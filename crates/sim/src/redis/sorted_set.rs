//! A sorted set: members in the order of their scores, and of their bytes where scores are equal.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SortedSet {
    scores: BTreeMap<Bytes, f64>,
    order: Vec<(f64, Bytes)>,
    bytes: usize,
}

fn compare(one: (f64, &[u8]), other: (f64, &[u8])) -> Ordering {
    let by_score = one.0.partial_cmp(&other.0).unwrap_or(Ordering::Equal);
    by_score.then_with(|| one.1.cmp(other.1))
}

impl SortedSet {
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// How long all members are together.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn score(&self, member: &[u8]) -> Option<f64> {
        self.scores.get(member).copied()
    }

    /// The members of these ranks.
    pub(super) fn range(&self, ranks: Range<usize>) -> &[(f64, Bytes)] {
        self.order.get(ranks).unwrap_or_default()
    }

    pub(super) fn insert(&mut self, score: f64, member: &Bytes) {
        self.remove(member);
        // Small sets of Redis know no negative zero.
        let score = score + 0.0;
        let rank = self.rank(score, member).unwrap_or_else(|rank| rank);
        self.order.insert(rank, (score, member.clone()));
        self.scores.insert(member.clone(), score);
        self.bytes += member.len();
    }

    pub(super) fn remove(&mut self, member: &[u8]) -> bool {
        let Some(score) = self.scores.remove(member) else {
            return false;
        };
        if let Ok(rank) = self.rank(score, member) {
            self.order.remove(rank);
        }
        self.bytes -= member.len();
        true
    }

    /// Removes the members of these ranks.
    pub(super) fn remove_range(&mut self, ranks: Range<usize>) {
        for (_, member) in self.order.drain(ranks) {
            self.scores.remove(&member);
            self.bytes -= member.len();
        }
    }

    fn rank(&self, score: f64, member: &[u8]) -> Result<usize, usize> {
        let place = |(at, own): &(f64, Bytes)| compare((*at, own), (score, member));
        self.order.binary_search_by(place)
    }

    /// The ranks of the members from the first one that is not before the range to the last one in
    /// a row that is not behind it.
    pub(super) fn ranks(
        &self,
        is_before: impl Fn(&(f64, Bytes)) -> bool,
        is_behind: impl Fn(&(f64, Bytes)) -> bool,
    ) -> Range<usize> {
        let all = self.order.len();
        let first = self.order.iter().position(|member| !is_before(member));
        let first = first.unwrap_or(all);
        let rest = self.range(first..all).iter();
        let count = rest.take_while(|member| !is_behind(member)).count();
        first..first + count
    }
}
