//! Ids of subjects and overrides: read in the form that a limit's sources ask for, and written as
//! requests write their subjects.
//!
//! An id that no request could ever have would silently override nothing, so each must be in the
//! one form that its source gives: addresses as RFC 5952 writes them and networks without host
//! bits, hosts in lower case, domains registrable. An id of several parts joins them by `:`, with
//! IPv6 in brackets and, within text, `:` as `%3A` and `%` as `%25`.
//!
//! The id of an override may also stand for many subjects: by a network, by a wildcard, or by its
//! first parts alone.

use std::borrow::Cow;
use std::net::Ipv6Addr;

use ipnet::IpNet;
use percent_encoding::percent_decode_str;
use thiserror::Error;
use weir_limit::BucketKey;

use crate::hash::{self, hash_at_start};
use crate::key_parts::{
    GLOBAL, KeySchema, KeyWriter, METHODS, OTHER_METHOD, network, written_network,
};
use crate::normal_path::normal_path;
use crate::overrides::{IdPattern, PartPattern, Wildcard};
use crate::{HashKey, HostPattern, KeySource, SecretHash, host};

/// Why an id may not stand for the subject that is meant.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum IdWarning {
    /// A name looks as if a hash were meant.
    #[error("{0:?} is taken for a name, but looks like a hash; for the hash, write \"hash:{0}\"")]
    LooksHashed(String),
    /// There are overrides by wildcard, and a hash does not tell the name that they are for.
    #[error("overrides by wildcard are not applied here; a hash does not tell which it matches")]
    Wildcards,
}

/// Why an id cannot be overridden, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum IdError {
    /// The id, or a part of it, is empty.
    #[error("the id is empty; write it as {0}")]
    Empty(String),
    /// The id has too many or too few parts.
    #[error("{id:?} does not have the form of the limit's ids; write it as {form}")]
    WrongForm {
        /// The id as it is written.
        id: String,
        /// The form that the limit's sources ask for.
        form: String,
    },
    /// There is one way to write this, and this is another.
    #[error("{id:?} is not in canonical form; write {canonical:?}")]
    NotCanonical {
        /// The part as it is written.
        id: String,
        /// Its canonical form.
        canonical: String,
    },
    /// The part is not an address.
    #[error("{0:?} is not an address; write one such as {1}")]
    NotAnAddress(String, String),
    /// A network of another size than the limit counts, or, for an override, a smaller one.
    #[error(
        "{id:?} has a prefix of {prefix} bits, but the limit counts {per}; write {canonical:?}"
    )]
    WrongPrefix {
        /// The part as it is written.
        id: String,
        /// Its prefix length.
        prefix: u8,
        /// The source.
        per: String,
        /// The network of the right size.
        canonical: String,
    },
    /// The part is a network in which a translator has all of IPv4, as no client is.
    #[error(
        "{0:?} stands for all IPv4 addresses, which are counted as such; write one such as {1}"
    )]
    AllOfIpv4(String, String),
    /// The part is not a host.
    #[error("{0:?} is not a host; write it as app.example.com, without scheme, port and final dot")]
    NotAHost(String),
    /// The host is below a registrable domain.
    #[error("{0:?} is below the registrable domain that is counted; write {1:?}")]
    NotADomain(String, String),
    /// The part is not a method that is told apart.
    #[error("{0:?} is not a method that is counted by itself; write one such as GET, or other")]
    NotAMethod(String),
    /// The part says that it is a hash, and is not one.
    #[error("{0:?} is not a hash; write hash: and the 32 hex digits that the log shows")]
    NotAHash(String),
    /// There is more than one `*` in a part.
    #[error(
        "{0:?} has more than one `*`; write one, and `\\*` where the character itself is meant"
    )]
    SeveralStars(String),
    /// The limit has only one subject.
    #[error("all requests are one subject, which {0:?} is not; change the limit itself")]
    OnlySubject(String),
    /// Another override has the same subject.
    #[error("{id:?} is overridden already, by {earlier:?}; remove one of them")]
    Duplicate {
        /// The id as it is written.
        id: String,
        /// The earlier id.
        earlier: String,
    },
}

/// How an override covers more than one subject.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverrideScope {
    /// A network that is wider than what the limit counts.
    pub network: bool,
    /// A wildcard.
    pub wildcard: bool,
    /// Parts of the subject that are left out.
    pub left_out: usize,
}

impl HashKey {
    /// The hash that an id stands for, which is `hash:` and a hash as it is shown, or else a name
    /// to be hashed.
    ///
    /// # Errors
    /// When what follows `hash:` is not a hash.
    pub fn hash_of(&self, id: &str) -> Result<SecretHash, IdError> {
        match id.strip_prefix(hash::PREFIX) {
            None => Ok(self.hash(id.as_bytes())),
            Some(hash) => SecretHash::parse(hash).ok_or_else(|| IdError::NotAHash(id.to_owned())),
        }
    }
}

impl KeySchema {
    /// Writes the subject that an id names to the end of `key`, and returns the text of each part.
    pub(super) fn write_id<'i>(
        &self,
        id: &'i str,
        key: &mut BucketKey,
    ) -> Result<Vec<Cow<'i, str>>, IdError> {
        let parts = self.split(id)?;
        if parts.len() < self.per.len() {
            return Err(self.wrong_form(id));
        }
        let mut texts = Vec::with_capacity(parts.len());
        for (index, (source, part)) in parts.into_iter().enumerate() {
            if index > 0 {
                key.push_str(":");
            }
            let text = self.decoded(source, part)?;
            self.write_part(source, &text, key)?;
            texts.push(text);
        }
        Ok(texts)
    }

    pub(super) fn pattern(&self, id: &str) -> Result<IdPattern, IdError> {
        let parts = self.split(id)?.into_iter();
        let parts = parts.map(|(source, part)| self.part_pattern(source, part));
        let parts: Vec<PartPattern> = parts.collect::<Result<_, _>>()?;
        let exact = parts.iter().map(|part| match part {
            PartPattern::Exact(written) => Some(&**written),
            _ => None,
        });
        match exact.collect::<Option<Vec<&str>>>() {
            Some(exact) if exact.len() == self.per.len() => Ok(IdPattern::Subject(exact.join(":"))),
            _ => Ok(IdPattern::Parts(parts)),
        }
    }

    pub(super) fn scope(&self, id: &str) -> OverrideScope {
        let Ok(IdPattern::Parts(parts)) = self.pattern(id) else {
            return OverrideScope::default();
        };
        let has = |fits: fn(&PartPattern) -> bool| parts.iter().any(fits);
        OverrideScope {
            network: has(|part| matches!(part, PartPattern::Network(_))),
            wildcard: has(|part| matches!(part, PartPattern::Wildcard(_) | PartPattern::Any)),
            left_out: self.per.len() - parts.len(),
        }
    }

    /// Whether a part of an id is taken for a name, and looks as if a hash were meant.
    pub(super) fn looks_hashed(&self, id: &str) -> Option<IdWarning> {
        let mut names = self.hashed_parts(id).into_iter();
        let name = names.find(|name| hash::looks_hashed(name))?;
        Some(IdWarning::LooksHashed(name.to_ascii_lowercase()))
    }

    pub(super) fn has_hash(&self, id: &str) -> bool {
        let parts = self.hashed_parts(id);
        parts.iter().any(|part| hash_at_start(part).is_some())
    }

    /// The id of a subject that is written as bucket keys have it. A text that was too long for a
    /// key has none, and stays as it is.
    pub(super) fn id_of(&self, subject: &str) -> String {
        let Ok(parts) = self.split(subject) else {
            return subject.to_owned();
        };
        let id = |(source, part): (&KeySource, &str)| match (source.is_hashed(), source) {
            (true, _) if self.is_composite() => format!("hash%3A{part}"),
            (true, _) => format!("{}{part}", hash::PREFIX),
            (false, KeySource::Path(_) | KeySource::Route) if !self.is_composite() => {
                percent_decode_str(part).decode_utf8_lossy().into_owned()
            }
            (false, _) => part.to_owned(),
        };
        let ids: Vec<String> = parts.into_iter().map(id).collect();
        ids.join(":")
    }

    /// The form of ids, by example.
    fn form(&self) -> String {
        let forms: Vec<_> = self
            .per
            .iter()
            .map(|source| self.part_form(source))
            .collect();
        forms.join(":")
    }

    /// The form of a part, by example. Among several parts, IPv6 has brackets.
    fn part_form(&self, source: &KeySource) -> String {
        match source {
            KeySource::Address { .. } if self.is_composite() => {
                let form = source_form(source);
                form.replace(" or ", " or [") + "]"
            }
            _ => source_form(source),
        }
    }

    /// The parts of an id that are, or are kept as, hashes.
    fn hashed_parts<'i>(&self, id: &'i str) -> Vec<Cow<'i, str>> {
        let parts = self.split(id).unwrap_or_default().into_iter();
        let hashed = parts.filter(|(source, _)| source.is_hashed());
        hashed
            .filter_map(|(source, part)| self.decoded(source, part).ok())
            .collect()
    }

    /// The parts of an id, each with its source. A single part may have colons of its own; of
    /// several, the last may be left out.
    fn split<'s, 'i>(&'s self, id: &'i str) -> Result<Vec<(&'s KeySource, &'i str)>, IdError> {
        let parts = match self.per.as_slice() {
            [source] => vec![(source, id)],
            per => split_composite(per, id).ok_or_else(|| self.wrong_form(id))?,
        };
        if parts.iter().any(|(_, part)| part.trim().is_empty()) {
            return Err(IdError::Empty(self.form()));
        }
        Ok(parts)
    }

    fn wrong_form(&self, id: &str) -> IdError {
        IdError::WrongForm {
            id: id.to_owned(),
            form: self.form(),
        }
    }

    /// A part without its brackets and percent-encoding, which only ids of several parts have.
    fn decoded<'i>(&self, source: &KeySource, part: &'i str) -> Result<Cow<'i, str>, IdError> {
        match source {
            _ if !self.is_composite() => Ok(part.into()),
            KeySource::Address { .. } => {
                let inside = part
                    .strip_prefix('[')
                    .and_then(|part| part.strip_suffix(']'));
                Ok(inside.unwrap_or(part).into())
            }
            KeySource::Host | KeySource::Domain => Ok(part.into()),
            _ => percent_decode_str(part)
                .decode_utf8()
                .map_err(|_| not_canonical(part, part.replace('%', "%25"))),
        }
    }

    /// An error about a decoded part, with the part as it is written in the id.
    fn encoded(&self, source: &KeySource, error: IdError) -> IdError {
        match error {
            IdError::NotCanonical { id, canonical }
                if self.is_composite() && !source.may_have_brackets() =>
            {
                let encoded = |text: String| text.replace('%', "%25").replace(':', "%3A");
                not_canonical(&encoded(id), encoded(canonical))
            }
            error => error,
        }
    }

    /// Writes a decoded part that is one value.
    fn write_part(
        &self,
        source: &KeySource,
        text: &str,
        key: &mut BucketKey,
    ) -> Result<(), IdError> {
        self.write_value(source, text, &mut self.writer(key))
            .map_err(|error| self.encoded(source, error))
    }

    fn write_value(
        &self,
        source: &KeySource,
        text: &str,
        writer: &mut KeyWriter<'_>,
    ) -> Result<(), IdError> {
        refuse_space_around(text)?;
        match source {
            KeySource::Address {
                v4_prefix,
                v6_prefix,
            } => self.write_address(source, (*v4_prefix, *v6_prefix), text, writer)?,
            KeySource::Host => writer.host(host(text)?),
            KeySource::Domain => writer.host(&registrable(text)?),
            KeySource::Method => writer.key.push_str(method(text)?),
            KeySource::Route => writer.text(text),
            KeySource::Path(_) => writer.text(segment(text)?),
            KeySource::Account
            | KeySource::Header(_)
            | KeySource::Cookie(_)
            | KeySource::Query(_) => writer.show(self.hash_key.hash_of(text)?),
            KeySource::Global if text == GLOBAL => writer.key.push_str(GLOBAL),
            KeySource::Global => return Err(IdError::OnlySubject(text.to_owned())),
        }
        Ok(())
    }

    fn write_address(
        &self,
        source: &KeySource,
        (v4_prefix, v6_prefix): (u8, u8),
        text: &str,
        writer: &mut KeyWriter<'_>,
    ) -> Result<(), IdError> {
        let (address, prefix) = network(text, &self.nat64)
            .ok_or_else(|| IdError::NotAnAddress(text.to_owned(), self.part_form(source)))?;
        self.refuse_all_of_ipv4(source, text)?;
        let counted = if address.is_ipv4() {
            v4_prefix
        } else {
            v6_prefix
        };
        let mut canonical = BucketKey::default();
        let mut alone = KeyWriter {
            key: &mut canonical,
            hash_key: &self.hash_key,
            nat64: &self.nat64,
            composite: false,
        };
        alone.address(address, v4_prefix, v6_prefix);
        let canonical = canonical.to_string();
        match prefix {
            Some(prefix) if prefix != counted => Err(IdError::WrongPrefix {
                id: text.to_owned(),
                prefix,
                per: source.to_string(),
                canonical,
            }),
            _ if canonical != text => Err(not_canonical(text, canonical)),
            _ => {
                writer.address(address, v4_prefix, v6_prefix);
                Ok(())
            }
        }
    }

    fn part_pattern(&self, source: &KeySource, part: &str) -> Result<PartPattern, IdError> {
        if part == "*" && *source != KeySource::Global {
            return Ok(PartPattern::Any);
        }
        let decoded = |text: &str| {
            let text = text.replace("\\*", "*");
            Ok(self.decoded(source, &text)?.into_owned())
        };
        let star = source.has_text().then(|| around_star(part)).transpose()?;
        if let Some((before, after)) = star.flatten() {
            return wildcard(source, &decoded(before)?, &decoded(after)?)
                .map(PartPattern::Wildcard)
                .map_err(|error| self.encoded(source, error));
        }
        let text = decoded(part)?;
        if let KeySource::Address { .. } = source {
            self.refuse_all_of_ipv4(source, &text)?;
        }
        if let Some(network) = self.wide_network(source, &text)? {
            return Ok(PartPattern::Network(network));
        }
        let mut key = BucketKey::default();
        self.write_part(source, &text, &mut key)?;
        Ok(PartPattern::Exact(key.as_str().into()))
    }

    /// The network that a text names, if it is wider than those that are counted.
    fn wide_network(&self, source: &KeySource, text: &str) -> Result<Option<IpNet>, IdError> {
        let KeySource::Address {
            v4_prefix,
            v6_prefix,
        } = source
        else {
            return Ok(None);
        };
        let Some((address, Some(prefix))) = network(text, &self.nat64) else {
            return Ok(None);
        };
        let counted = if address.is_ipv4() {
            v4_prefix
        } else {
            v6_prefix
        };
        let network = IpNet::new(address, prefix).ok();
        let network = network.filter(|_| prefix < *counted);
        match network.map(|network| network.trunc()) {
            Some(wide) if wide.to_string() != text => Err(not_canonical(text, wide.to_string())),
            wide => Ok(wide),
        }
    }

    /// Refuses a network that a translator's prefix is all of.
    fn refuse_all_of_ipv4(&self, source: &KeySource, text: &str) -> Result<(), IdError> {
        let Some((first, Some(prefix))) = written_network(text) else {
            return Ok(());
        };
        match self.nat64.is_all_of_ipv4(first, prefix) {
            true => Err(IdError::AllOfIpv4(text.to_owned(), self.part_form(source))),
            false => Ok(()),
        }
    }
}

/// A part for each source, as far as there are any; none when there are too many.
fn split_composite<'s, 'i>(
    per: &'s [KeySource],
    id: &'i str,
) -> Option<Vec<(&'s KeySource, &'i str)>> {
    let mut rest = Some(id);
    let mut parts = Vec::new();
    for source in per {
        let Some(text) = rest else { break };
        let (part, after) = split_part(source, text);
        parts.push((source, part));
        rest = after;
    }
    rest.is_none().then_some(parts)
}

/// Splits off one part, up to the next colon that is not in brackets.
fn split_part<'i>(source: &KeySource, text: &'i str) -> (&'i str, Option<&'i str>) {
    let inside = match text.find(']') {
        Some(end) if source.may_have_brackets() && text.starts_with('[') => end,
        _ if source.is_hashed() => hash_at_start(text).unwrap_or_default(),
        _ => 0,
    };
    let colon = text
        .char_indices()
        .skip_while(|(index, _)| *index < inside)
        .find(|(_, char)| *char == ':');
    match colon.and_then(|(index, _)| text.split_at_checked(index)) {
        Some((part, after)) => (part, after.strip_prefix(':')),
        None => (text, None),
    }
}

fn refuse_space_around(text: &str) -> Result<(), IdError> {
    match text.trim() {
        trimmed if trimmed == text => Ok(()),
        trimmed => Err(not_canonical(text, trimmed.to_owned())),
    }
}

fn host(text: &str) -> Result<&str, IdError> {
    match HostPattern::parse(text) {
        Ok(HostPattern::Exact(host)) if *host == *text => Ok(text),
        Ok(HostPattern::Exact(host)) => Err(not_canonical(text, host.into())),
        _ => Err(IdError::NotAHost(text.to_owned())),
    }
}

/// A domain, or the lowest address of a /64 with or without its brackets.
fn registrable(text: &str) -> Result<Cow<'_, str>, IdError> {
    if let Ok(address) = text.parse::<Ipv6Addr>() {
        let lowest = host::lowest_of_subscriber(address).to_string();
        return match lowest == text {
            true => Ok(format!("[{lowest}]").into()),
            false => Err(not_canonical(text, lowest)),
        };
    }
    let host = host(text)?;
    match host::domain(host) {
        domain if domain == host => Ok(host.into()),
        domain if host.starts_with('[') => Err(not_canonical(text, domain.into_owned())),
        domain => Err(IdError::NotADomain(text.to_owned(), domain.into_owned())),
    }
}

fn method(text: &str) -> Result<&str, IdError> {
    let mut known = METHODS
        .iter()
        .map(http::Method::as_str)
        .chain([OTHER_METHOD]);
    match known.find(|known| known.eq_ignore_ascii_case(text)) {
        Some(known) if known == text => Ok(text),
        Some(known) => Err(not_canonical(text, known.to_owned())),
        None => Err(IdError::NotAMethod(text.to_owned())),
    }
}

fn segment(text: &str) -> Result<&str, IdError> {
    let whole = text.replace('/', "%2F");
    let path = format!("/{whole}");
    match normal_path(&path).strip_prefix('/') {
        Some(normal) if normal != text => Err(not_canonical(text, normal.to_owned())),
        _ => Ok(text),
    }
}

fn not_canonical(id: &str, canonical: String) -> IdError {
    IdError::NotCanonical {
        id: id.to_owned(),
        canonical,
    }
}

/// The texts before and after the one `*`, if there is one that is not written `\*`.
fn around_star(text: &str) -> Result<Option<(&str, &str)>, IdError> {
    let mut stars = text
        .match_indices('*')
        .map(|(at, _)| text.split_at(at))
        .filter(|(before, _)| !before.ends_with('\\'));
    let first = stars.next();
    if stars.next().is_some() {
        return Err(IdError::SeveralStars(text.to_owned()));
    }
    Ok(first.map(|(before, after)| (before, after.strip_prefix('*').unwrap_or(after))))
}

fn wildcard(source: &KeySource, before: &str, after: &str) -> Result<Wildcard, IdError> {
    let text = format!("{before}*{after}");
    refuse_space_around(&text)?;
    match source {
        KeySource::Host => host_wildcard(&text)?,
        KeySource::Domain => {
            host_wildcard(&text)?;
            domain_wildcard(&text, after)?;
        }
        KeySource::Path(_) => drop(segment(&text)?),
        _ => {}
    }
    Ok(Wildcard::new(before, after))
}

/// Checks that a host can match.
fn host_wildcard(text: &str) -> Result<(), IdError> {
    let lower = text.to_ascii_lowercase();
    if lower != text {
        return Err(not_canonical(text, lower));
    }
    host(&text.replace('*', "x"))
        .map(drop)
        .map_err(|_| IdError::NotAHost(text.to_owned()))
}

/// Checks that the wildcard is not below a registrable domain, where nothing is counted.
fn domain_wildcard(text: &str, after: &str) -> Result<(), IdError> {
    let below = after.split_once('.').map(|(_, below)| below);
    match below.filter(|below| psl::domain_str(below).is_some()) {
        Some(below) => {
            let counted = host::domain(below).into_owned();
            Err(IdError::NotADomain(text.to_owned(), counted))
        }
        None => Ok(()),
    }
}

fn source_form(source: &KeySource) -> String {
    match source {
        KeySource::Address {
            v4_prefix,
            v6_prefix,
        } => {
            let v4 = if *v4_prefix == 32 {
                "203.0.113.9".to_owned()
            } else {
                format!("203.0.0.0/{v4_prefix}")
            };
            let v6 = if *v6_prefix == 128 {
                "2001:db8::1".to_owned()
            } else {
                format!("2001:db8::/{v6_prefix}")
            };
            format!("{v4} or {v6}")
        }
        KeySource::Account => "ACCOUNT".to_owned(),
        KeySource::Host => "app.example.com".to_owned(),
        KeySource::Domain => "example.com".to_owned(),
        KeySource::Method => "POST".to_owned(),
        KeySource::Route => "ROUTE".to_owned(),
        KeySource::Header(_) | KeySource::Cookie(_) | KeySource::Query(_) => "VALUE".to_owned(),
        KeySource::Path(_) => "SEGMENT".to_owned(),
        KeySource::Global => GLOBAL.to_owned(),
    }
}
