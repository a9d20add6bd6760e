//! Other parameters of a limit for some subjects, and which of them a subject gets.
//!
//! Overrides of more than one subject stand in a tree, of which each level is one part of their
//! ids. Looking up goes into the most exact branch first, and comes back when nothing is found
//! there; so the first part decides, and of overrides that are alike in it, the next.

mod lookup;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use weir_limit::Quota;
use weir_limit::time::Timestamp;

use self::lookup::NetworkMap;
pub(super) use self::lookup::{Wildcard, WildcardMap};
use crate::hash::hash_at_start;
use crate::key_parts::{request_host, written_network};
use crate::{KeySource, RequestAttributes, host, request_values};

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
    /// The place where it was set.
    pub origin: OverrideOrigin,
}

/// The place where an override was set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverrideOrigin {
    /// In the configuration, or by the program that made the limit.
    #[default]
    Configuration,
    /// By the admin API. It takes the place of the configuration's for the same id until it ends.
    AdminApi,
}

impl Override {
    /// Whether it has not ended.
    pub fn holds(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

/// The overrides of one id. That by the admin API takes the place of the other until it ends.
#[derive(Clone, Debug, Default)]
struct Slot {
    by_api: Option<Arc<Override>>,
    configured: Option<Arc<Override>>,
}

impl Slot {
    /// # Errors
    /// When there is one of the same origin already; it is returned.
    fn add(&mut self, added: Arc<Override>) -> Result<(), &Override> {
        let slot = match added.origin {
            OverrideOrigin::AdminApi => &mut self.by_api,
            OverrideOrigin::Configuration => &mut self.configured,
        };
        match slot {
            Some(earlier) => Err(earlier),
            slot => {
                *slot = Some(added);
                Ok(())
            }
        }
    }

    fn in_force(&self, now: Timestamp) -> Option<&Override> {
        self.all(now).find_map(|(set, holds)| holds.then_some(set))
    }

    /// Both, the one that takes precedence first, and whether they are in force.
    fn all(&self, now: Timestamp) -> impl Iterator<Item = (&Override, bool)> {
        let mut is_taken = false;
        let all = self.by_api.iter().chain(&self.configured);
        all.map(move |set| {
            let holds = !is_taken && set.holds(now);
            is_taken |= holds;
            (&**set, holds)
        })
    }
}

/// The subjects that the id of an override stands for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum IdPattern {
    /// One subject, as bucket keys have it.
    Subject(String),
    /// All subjects whose first parts match these.
    Parts(Vec<PartPattern>),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Overrides {
    /// By subject, as bucket keys have it.
    exact: HashMap<Box<str>, Slot>,
    /// Those of several subjects, if there are any.
    tree: Option<Box<Tree>>,
}

impl Overrides {
    /// # Errors
    /// When there is one of the same id and origin already; it is returned.
    pub(super) fn add(
        &mut self,
        pattern: IdPattern,
        added: Arc<Override>,
    ) -> Result<(), &Override> {
        let slot = match pattern {
            IdPattern::Subject(subject) => self.exact.entry(subject.into()).or_default(),
            IdPattern::Parts(parts) => self.tree.get_or_insert_default().slot(parts),
        };
        slot.add(added)
    }

    /// The override of a subject: its own, or else the most exact that has not ended. `parts` is
    /// called only if there are overrides of several subjects.
    pub(super) fn find<P: SubjectParts>(
        &self,
        subject: &str,
        now: Timestamp,
        parts: impl FnOnce() -> P,
    ) -> Option<&Override> {
        let own = self.exact.get(subject).and_then(|slot| slot.in_force(now));
        own.or_else(|| self.tree.as_deref()?.find(&parts(), 0, now))
    }

    pub(super) fn wildcards_of(&self, part: usize) -> Vec<&Wildcard> {
        let tree = self.tree.as_deref();
        tree.map(|tree| tree.wildcards_at(part)).unwrap_or_default()
    }

    /// All of them, in no order, and whether they are in force.
    pub(super) fn iter(&self, now: Timestamp) -> impl Iterator<Item = (&Override, bool)> {
        let others = self.tree.as_deref().map(Tree::all).unwrap_or_default();
        let slots = self.exact.values().chain(others);
        slots.flat_map(move |slot| slot.all(now))
    }
}

/// The values that one part of an id stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PartPattern {
    /// This part, as bucket keys have it.
    Exact(Box<str>),
    /// All addresses of a network that is wider than what the limit counts.
    Network(IpNet),
    /// All texts that match.
    Wildcard(Wildcard),
    Any,
}

pub(super) trait SubjectParts {
    /// A part as bucket keys have it, if there are so many.
    fn written(&self, part: usize) -> Option<&str>;

    /// The address of a part, if it is one.
    fn address(&self, part: usize) -> Option<IpAddr>;

    /// The text of a part, if wildcards may match it.
    fn text(&self, part: usize) -> Option<Text<'_>>;
}

/// The text that wildcards are compared with.
pub(super) enum Text<'t> {
    Plain(Cow<'t, [u8]>),
    /// The wildcards that a secret matched when it was read, the best first.
    Matches(&'t [Wildcard]),
}

/// The overrides whose first parts are the same.
#[derive(Clone, Debug, Default)]
struct Tree {
    exact: HashMap<Box<str>, Tree>,
    networks: NetworkMap<Tree>,
    wildcards: WildcardMap<Tree>,
    any: Option<Box<Tree>>,
    /// For ids that end here.
    here: Slot,
}

impl Tree {
    fn slot(&mut self, pattern: Vec<PartPattern>) -> &mut Slot {
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
    fn find<'t>(
        &'t self,
        subject: &dyn SubjectParts,
        part: usize,
        now: Timestamp,
    ) -> Option<&'t Override> {
        let below = |tree: &'t Self| tree.find(subject, part + 1, now);
        let ours = || self.here.in_force(now);
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
        subject: &dyn SubjectParts,
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
        subject: &dyn SubjectParts,
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
                let mut trees = wildcards
                    .iter()
                    .filter_map(|wildcard| self.wildcards.get(wildcard));
                trees.find_map(below)
            }
        }
    }

    fn wildcards_at(&self, depth: usize) -> Vec<&Wildcard> {
        match depth.checked_sub(1) {
            None => self
                .wildcards
                .iter()
                .map(|(wildcard, _)| wildcard)
                .collect(),
            Some(depth) => self
                .below()
                .flat_map(|tree| tree.wildcards_at(depth))
                .collect(),
        }
    }

    /// All slots, in no order.
    fn all(&self) -> Vec<&Slot> {
        let below = self.below().flat_map(Self::all);
        [&self.here].into_iter().chain(below).collect()
    }

    fn below(&self) -> impl Iterator<Item = &Self> {
        let wildcards = self.wildcards.iter().map(|(_, tree)| tree);
        let exact = self.exact.values().chain(self.networks.values());
        exact.chain(wildcards).chain(self.any.as_deref())
    }
}

pub(super) struct RequestSubject<'a> {
    pub(super) per: &'a [KeySource],
    /// The canonical address.
    pub(super) client: IpAddr,
    pub(super) attributes: &'a RequestAttributes<'a>,
    /// As bucket keys have it.
    pub(super) subject: &'a str,
}

pub(super) struct IdSubject<'a> {
    pub(super) per: &'a [KeySource],
    /// The parts as they are written, decoded.
    pub(super) texts: Vec<Cow<'a, str>>,
    /// As bucket keys have it.
    pub(super) subject: &'a str,
}

impl SubjectParts for RequestSubject<'_> {
    fn written(&self, part: usize) -> Option<&str> {
        written(self.subject, self.per.len(), part)
    }

    fn address(&self, part: usize) -> Option<IpAddr> {
        let is_address = matches!(self.per.get(part)?, KeySource::Address { .. });
        is_address.then_some(self.client)
    }

    fn text(&self, part: usize) -> Option<Text<'_>> {
        let attributes = self.attributes;
        Some(Text::Plain(match self.per.get(part)? {
            KeySource::Account => return Some(Text::Matches(attributes.account?.wildcards())),
            KeySource::Host => bytes(request_host(attributes)),
            KeySource::Domain => bytes(request_domain(attributes)),
            KeySource::Route => attributes.route.as_bytes().into(),
            KeySource::Header(name) => request_values::header(attributes.headers, name)?.into(),
            KeySource::Cookie(name) => request_values::cookie(attributes.headers, name)?,
            KeySource::Query(name) => bytes(request_values::query(attributes.uri.query()?, name)?),
            KeySource::Path(name) => attributes.captures.get(name)?.as_bytes().into(),
            KeySource::Address { .. } | KeySource::Method | KeySource::Global => return None,
        }))
    }
}

impl SubjectParts for IdSubject<'_> {
    fn written(&self, part: usize) -> Option<&str> {
        written(self.subject, self.per.len(), part)
    }

    fn address(&self, part: usize) -> Option<IpAddr> {
        let is_address = matches!(self.per.get(part)?, KeySource::Address { .. });
        let (address, _) = written_network(self.texts.get(part).filter(|_| is_address)?)?;
        Some(address)
    }

    fn text(&self, part: usize) -> Option<Text<'_>> {
        let (source, text) = (self.per.get(part)?, self.texts.get(part)?);
        // A hash does not tell which wildcards the name behind it matches.
        let is_hash = source.is_hashed() && hash_at_start(text).is_some();
        let has_text = source.has_text() && !is_hash;
        has_text.then(|| Text::Plain(text.as_bytes().into()))
    }
}

/// A part of a subject as bucket keys have it. If a subject has several parts, a part with a colon
/// is in brackets.
fn written(subject: &str, parts: usize, part: usize) -> Option<&str> {
    if parts == 1 {
        return (part == 0).then_some(subject);
    }
    let mut in_brackets = false;
    let mut all = subject.split(|char| {
        in_brackets = (in_brackets || char == '[') && char != ']';
        char == ':' && !in_brackets
    });
    all.nth(part)
}

fn bytes(text: Cow<'_, str>) -> Cow<'_, [u8]> {
    match text {
        Cow::Borrowed(text) => text.as_bytes().into(),
        Cow::Owned(text) => text.into_bytes().into(),
    }
}

fn request_domain<'a>(attributes: &RequestAttributes<'a>) -> Cow<'a, str> {
    match request_host(attributes) {
        Cow::Borrowed(host) => host::domain(host),
        Cow::Owned(host) => host::domain(&host).into_owned().into(),
    }
}
