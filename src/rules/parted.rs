//! Subjects part by part, as overrides of many subjects are held against them: those of requests,
//! and those that operators name.

use std::borrow::Cow;
use std::net::IpAddr;

use crate::rules::hash::hash_at_start;
use crate::rules::override_id;
use crate::rules::overrides::{Parted, Text};
use crate::rules::part::asked_host;
use crate::rules::{KeySource, RequestAttributes, domain, field};

/// The subject of a request.
pub(super) struct OfRequest<'a> {
    pub(super) per: &'a [KeySource],
    pub(super) facts: &'a RequestAttributes<'a>,
    /// As bucket keys have it.
    pub(super) subject: &'a str,
}

/// The subject of an id.
pub(super) struct OfId<'a> {
    /// The parts as they are written.
    pub(super) values: Vec<(&'a KeySource, Cow<'a, str>)>,
    /// As bucket keys have it.
    pub(super) subject: &'a str,
}

impl Parted for OfRequest<'_> {
    fn written(&self, part: usize) -> Option<&str> {
        written(self.subject, self.per.len(), part)
    }

    fn address(&self, part: usize) -> Option<IpAddr> {
        let is_address = matches!(self.per.get(part)?, KeySource::Address { .. });
        is_address.then(|| self.facts.client.to_canonical())
    }

    fn text(&self, part: usize) -> Option<Text<'_>> {
        let facts = self.facts;
        Some(Text::Plain(match self.per.get(part)? {
            KeySource::Account => return Some(Text::Matches(facts.account?.wildcards())),
            KeySource::Host => bytes(asked_host(facts)),
            KeySource::Domain => bytes(asked_domain(facts)),
            KeySource::Route => facts.route.as_bytes().into(),
            KeySource::Header(name) => field::header(facts.headers, name)?.into(),
            KeySource::Cookie(name) => field::cookie(facts.headers, name)?,
            KeySource::Query(name) => bytes(field::query(facts.uri.query()?, name)?),
            KeySource::Path(name) => facts.captures.get(name)?.as_bytes().into(),
            KeySource::Address { .. } | KeySource::Method | KeySource::Global => return None,
        }))
    }
}

impl Parted for OfId<'_> {
    fn written(&self, part: usize) -> Option<&str> {
        written(self.subject, self.values.len(), part)
    }

    fn address(&self, part: usize) -> Option<IpAddr> {
        let (source, text) = self.values.get(part)?;
        let network =
            matches!(source, KeySource::Address { .. }).then(|| override_id::network(text));
        network.flatten().map(|(address, _)| address)
    }

    fn text(&self, part: usize) -> Option<Text<'_>> {
        let (source, text) = self.values.get(part)?;
        // A hash does not tell which wildcards the name behind it matches.
        let is_hash = override_id::is_hashed(source) && hash_at_start(text).is_some();
        let has_text = !is_hash
            && !matches!(
                source,
                KeySource::Address { .. } | KeySource::Method | KeySource::Global
            );
        has_text.then(|| Text::Plain(text.as_bytes().into()))
    }
}

/// A part of a subject as bucket keys have it. Of a subject of several, none has a colon but in
/// brackets.
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

fn asked_domain<'a>(facts: &RequestAttributes<'a>) -> Cow<'a, str> {
    match asked_host(facts) {
        Cow::Borrowed(host) => domain::domain(host).into(),
        Cow::Owned(host) => domain::domain(&host).to_owned().into(),
    }
}
