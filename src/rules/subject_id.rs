//! Ids of subjects and overrides: read in the form that a limit's sources ask for, and written as
//! requests write their subjects.
//!
//! An id that no request could ever have would silently override nothing, so each must be in the
//! one form that its source gives: addresses as RFC 5952 writes them and networks without host
//! bits, hosts in lower case, domains registrable. An id of several parts joins them by `:`, with
//! IPv6 in brackets and, within text, `:` as `%3A` and `%` as `%25`.
//!
//! The id of an override may also stand for many subjects (`override_pattern`).

use std::borrow::Cow;
use std::net::IpAddr;

use percent_encoding::percent_decode_str;
use thiserror::Error;

use crate::limit::BucketKey;
use crate::rules::hash::{self, hash_at_start};
use crate::rules::key_parts::{GLOBAL, KeyWriter, METHODS, OTHER_METHOD, network};
use crate::rules::normal_path::normal_path;
use crate::rules::{HashKey, HostPattern, KeySource, SecretHash, host};

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
        /// The same in canonical form.
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
    /// The same subject is overridden already.
    #[error("{id:?} is overridden already, by {earlier:?}; remove one of them")]
    Duplicate {
        /// The id as it is written.
        id: String,
        /// The earlier id.
        earlier: String,
    },
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

/// Writes the subject that an id stands for to the end of `key`.
pub(super) fn write_subject(
    per: &[KeySource],
    id: &str,
    hash_key: &HashKey,
    key: &mut BucketKey,
) -> Result<(), IdError> {
    let mut parts = KeyWriter {
        key,
        hash_key,
        composite: per.len() > 1,
    };
    for (index, (source, text)) in values(per, id)?.into_iter().enumerate() {
        if index > 0 {
            parts.key.push_str(":");
        }
        write_part(&mut parts, source, &text).map_err(|error| told(per, source, error))?;
    }
    Ok(())
}

/// What an id of one subject says for each source, decoded.
pub(super) fn values<'s, 'i>(
    per: &'s [KeySource],
    id: &'i str,
) -> Result<Vec<(&'s KeySource, Cow<'i, str>)>, IdError> {
    let parts = split(per, id)?;
    if parts.len() < per.len() {
        return Err(wrong_form(per, id));
    }
    let value = |(source, part)| Ok((source, decoded(per, source, part)?));
    parts.into_iter().map(value).collect()
}

/// The parts of an id, each with its source. A single part may have colons of its own; of several,
/// the last may be left out.
pub(super) fn split<'s, 'i>(
    per: &'s [KeySource],
    id: &'i str,
) -> Result<Vec<(&'s KeySource, &'i str)>, IdError> {
    let parts = match per {
        [source] => vec![(source, id)],
        _ => split_composite(per, id).ok_or_else(|| wrong_form(per, id))?,
    };
    if parts.iter().any(|(_, part)| part.trim().is_empty()) {
        return Err(IdError::Empty(form(per)));
    }
    Ok(parts)
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

fn wrong_form(per: &[KeySource], id: &str) -> IdError {
    IdError::WrongForm {
        id: id.to_owned(),
        form: form(per),
    }
}

/// Splits off one part, up to the next colon that is not in brackets.
fn split_part<'i>(source: &KeySource, text: &'i str) -> (&'i str, Option<&'i str>) {
    let may_have_brackets = matches!(
        source,
        KeySource::Address { .. } | KeySource::Host | KeySource::Domain
    );
    let inside = match text.find(']') {
        Some(end) if may_have_brackets && text.starts_with('[') => end,
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

/// A part without its brackets and percent-encoding, which it has in ids of several parts only.
pub(super) fn decoded<'i>(
    per: &[KeySource],
    source: &KeySource,
    part: &'i str,
) -> Result<Cow<'i, str>, IdError> {
    if per.len() == 1 {
        return Ok(part.into());
    }
    match source {
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

/// What is wrong with a decoded part, told as the part is written in the id.
pub(super) fn told(per: &[KeySource], source: &KeySource, error: IdError) -> IdError {
    let plain = matches!(
        source,
        KeySource::Address { .. } | KeySource::Host | KeySource::Domain
    );
    match error {
        IdError::NotCanonical { id, canonical } if per.len() > 1 && !plain => {
            let encoded = |text: String| text.replace('%', "%25").replace(':', "%3A");
            not_canonical(&encoded(id), encoded(canonical))
        }
        error => error,
    }
}

pub(super) fn write_part(
    parts: &mut KeyWriter<'_>,
    source: &KeySource,
    text: &str,
) -> Result<(), IdError> {
    refuse_space_around(text)?;
    match source {
        KeySource::Address {
            v4_prefix,
            v6_prefix,
        } => write_address(parts, source, (*v4_prefix, *v6_prefix), text)?,
        KeySource::Host => parts.host(host(text)?),
        KeySource::Domain => parts.host(registrable(text)?),
        KeySource::Method => parts.key.push_str(method(text)?),
        KeySource::Route => parts.text(text),
        KeySource::Path(_) => parts.text(segment(text)?),
        KeySource::Account | KeySource::Header(_) | KeySource::Cookie(_) | KeySource::Query(_) => {
            parts.show(parts.hash_key.hash_of(text)?);
        }
        KeySource::Global if text == GLOBAL => parts.key.push_str(GLOBAL),
        KeySource::Global => return Err(IdError::OnlySubject(text.to_owned())),
    }
    Ok(())
}

/// Whether a part of an id is taken for a name, and looks as if a hash were meant.
pub(super) fn looks_hashed(per: &[KeySource], id: &str) -> Option<IdWarning> {
    let doubt = |name: &str| IdWarning::LooksHashed(name.to_ascii_lowercase());
    hashed_parts(per, id)
        .iter()
        .find(|name| hash::looks_hashed(name))
        .map(|name| doubt(name))
}

/// Whether a part of an id is a hash.
pub(super) fn has_hash(per: &[KeySource], id: &str) -> bool {
    hashed_parts(per, id)
        .iter()
        .any(|part| hash_at_start(part).is_some())
}

/// The parts of an id that are, or are kept as, hashes.
fn hashed_parts<'i>(per: &[KeySource], id: &'i str) -> Vec<Cow<'i, str>> {
    let parts = split(per, id).unwrap_or_default().into_iter();
    let hashed = parts.filter(|(source, _)| source.is_hashed());
    hashed
        .filter_map(|(source, part)| decoded(per, source, part).ok())
        .collect()
}

pub(super) fn refuse_space_around(text: &str) -> Result<(), IdError> {
    match text.trim() {
        trimmed if trimmed == text => Ok(()),
        trimmed => Err(not_canonical(text, trimmed.to_owned())),
    }
}

fn write_address(
    parts: &mut KeyWriter<'_>,
    source: &KeySource,
    (v4_prefix, v6_prefix): (u8, u8),
    text: &str,
) -> Result<(), IdError> {
    let (address, prefix) = network(text).ok_or_else(|| {
        IdError::NotAnAddress(text.to_owned(), part_form(source, parts.composite))
    })?;
    let counted = if address.is_ipv4() {
        v4_prefix
    } else {
        v6_prefix
    };
    let canonical = network_text(parts.hash_key, address, v4_prefix, v6_prefix);
    match prefix {
        Some(prefix) if prefix != counted => Err(IdError::WrongPrefix {
            id: text.to_owned(),
            prefix,
            per: source.to_string(),
            canonical,
        }),
        _ if canonical != text => Err(not_canonical(text, canonical)),
        _ => {
            parts.address(address, v4_prefix, v6_prefix);
            Ok(())
        }
    }
}

/// The network as a single id has it.
fn network_text(hash_key: &HashKey, address: IpAddr, v4_prefix: u8, v6_prefix: u8) -> String {
    let mut key = BucketKey::default();
    let mut alone = KeyWriter {
        key: &mut key,
        hash_key,
        composite: false,
    };
    alone.address(address, v4_prefix, v6_prefix);
    key.to_string()
}

pub(super) fn host(text: &str) -> Result<&str, IdError> {
    match HostPattern::parse(text) {
        Ok(HostPattern::Exact(host)) if *host == *text => Ok(text),
        Ok(HostPattern::Exact(host)) => Err(not_canonical(text, host.into())),
        _ => Err(IdError::NotAHost(text.to_owned())),
    }
}

fn registrable(text: &str) -> Result<&str, IdError> {
    let host = host(text)?;
    match host::domain(host) {
        domain if domain == host => Ok(host),
        domain => Err(IdError::NotADomain(text.to_owned(), domain.to_owned())),
    }
}

fn method(text: &str) -> Result<&str, IdError> {
    let known = METHODS
        .iter()
        .map(http::Method::as_str)
        .chain([OTHER_METHOD]);
    match known
        .into_iter()
        .find(|known| known.eq_ignore_ascii_case(text))
    {
        Some(known) if known == text => Ok(text),
        Some(known) => Err(not_canonical(text, known.to_owned())),
        None => Err(IdError::NotAMethod(text.to_owned())),
    }
}

/// A segment as captures have it.
pub(super) fn segment(text: &str) -> Result<&str, IdError> {
    let whole = text.replace('/', "%2F");
    let path = format!("/{whole}");
    match normal_path(&path).strip_prefix('/') {
        Some(normal) if normal != text => Err(not_canonical(text, normal.to_owned())),
        _ => Ok(text),
    }
}

pub(super) fn not_canonical(id: &str, canonical: String) -> IdError {
    IdError::NotCanonical {
        id: id.to_owned(),
        canonical,
    }
}

/// How the ids of a limit are written, by example.
pub(super) fn form(per: &[KeySource]) -> String {
    let composite = per.len() > 1;
    let forms: Vec<_> = per
        .iter()
        .map(|source| part_form(source, composite))
        .collect();
    forms.join(":")
}

/// How a part is written, by example; of several, IPv6 has brackets.
pub(super) fn part_form(source: &KeySource, composite: bool) -> String {
    match source {
        KeySource::Address { .. } if composite => {
            let form = source_form(source);
            form.replace(" or ", " or [") + "]"
        }
        _ => source_form(source),
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
