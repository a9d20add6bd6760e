//! Overrides of more than one subject, by the parts of their ids.
//!
//! Each level of the tree is one part. Looking up goes into the most exact branch first, and comes
//! back when nothing is found there; so the first part decides, and of overrides that are alike in
//! it, the next.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::Override;
use super::networks::Networks;
use super::wildcards::{Wildcard, Wildcards};
use crate::time::Timestamp;

/// What one part of an id stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::rules) enum PartPattern {
    /// This part, as bucket keys have it.
    Exact(Box<str>),
    /// All addresses of a network that is wider than what the limit counts.
    Network(IpNet),
    /// All texts that match.
    Wildcard(Wildcard),
    /// Everything.
    Any,
}

/// A subject, part by part.
pub(in crate::rules) trait Parted {
    /// A part as bucket keys have it; none when there are no more.
    fn written(&self, part: usize) -> Option<&str>;

    /// The address that a part stands for, if it stands for one.
    fn address(&self, part: usize) -> Option<IpAddr>;

    /// The text that a part stands for, if it stands for one.
    fn text(&self, part: usize) -> Option<Text<'_>>;
}

/// What wildcards are held against.
pub(in crate::rules) enum Text<'t> {
    /// The text.
    Plain(Cow<'t, [u8]>),
    /// The wildcards that a secret was found to match when it was read, the best first.
    Matches(&'t [Wildcard]),
}

/// Overrides below one part, and the override of all that begin so.
#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    exact: HashMap<Box<str>, Tree>,
    networks: Networks<Tree>,
    wildcards: Wildcards<Tree>,
    any: Option<Box<Tree>>,
    here: Option<Override>,
}

impl Tree {
    /// The place of the override with this pattern.
    pub(super) fn place(&mut self, pattern: Vec<PartPattern>) -> &mut Option<Override> {
        let mut tree = self;
        for part in pattern {
            tree = match part {
                PartPattern::Exact(written) => tree.exact.entry(written).or_default(),
                PartPattern::Network(network) => tree.networks.entry(network),
                PartPattern::Wildcard(wildcard) => tree.wildcards.entry(wildcard),
                PartPattern::Any => tree.any.get_or_insert_default(),
            };
        }
        &mut tree.here
    }

    /// The most exact override of a subject among those that have not ended.
    pub(super) fn find<'t>(
        &'t self,
        subject: &dyn Parted,
        part: usize,
        now: Timestamp,
    ) -> Option<&'t Override> {
        let below = |tree: &'t Self| tree.find(subject, part + 1, now);
        let ours = || self.here.as_ref().filter(|it| it.holds(now));
        let Some(written) = subject.written(part) else {
            return ours();
        };
        let exact = self.exact.get(written).and_then(below);
        exact
            .or_else(|| self.in_network(subject, part, now))
            .or_else(|| self.by_wildcard(subject, part, now))
            .or_else(|| self.any.as_deref()?.find(subject, part + 1, now))
            .or_else(ours)
    }

    fn in_network<'t>(
        &'t self,
        subject: &dyn Parted,
        part: usize,
        now: Timestamp,
    ) -> Option<&'t Override> {
        if self.networks.is_empty() {
            return None;
        }
        let mut networks = self.networks.around(subject.address(part)?);
        networks.find_map(|tree| tree.find(subject, part + 1, now))
    }

    fn by_wildcard<'t>(
        &'t self,
        subject: &dyn Parted,
        part: usize,
        now: Timestamp,
    ) -> Option<&'t Override> {
        if self.wildcards.is_empty() {
            return None;
        }
        let below = |tree: &'t Self| tree.find(subject, part + 1, now);
        match subject.text(part)? {
            Text::Plain(text) => {
                let mut trees = self.wildcards.matching(&text);
                trees.find_map(|(_, tree)| below(tree))
            }
            Text::Matches(wildcards) => {
                let mut trees = wildcards.iter().filter_map(|it| self.wildcards.get(it));
                trees.find_map(below)
            }
        }
    }

    /// The wildcards of the part at this depth.
    pub(super) fn wildcards_at(&self, depth: usize) -> Vec<&Wildcard> {
        match depth.checked_sub(1) {
            None => self
                .wildcards
                .iter()
                .map(|(wildcard, _)| wildcard)
                .collect(),
            Some(depth) => self.below().flat_map(|it| it.wildcards_at(depth)).collect(),
        }
    }

    /// All overrides, in no order.
    pub(super) fn all(&self) -> Vec<&Override> {
        let below = self.below().flat_map(Self::all);
        self.here.iter().chain(below).collect()
    }

    fn below(&self) -> impl Iterator<Item = &Self> {
        let wildcards = self.wildcards.iter().map(|(_, tree)| tree);
        let exact = self.exact.values().chain(self.networks.values());
        exact.chain(wildcards).chain(self.any.as_deref())
    }
}
