//! Ids of subjects and overrides: read in the form that a limit's sources ask for, and written as
//! requests write their subjects.
//!
//! An id that no request could ever have would silently override nothing, so each must be in the
//! one form that its source gives: addresses as RFC 5952 writes them and networks without host
//! bits, hosts in lower case, domains registrable. An id of several parts joins them by `:`, with
//! IPv6 in brackets and, within text, `:` as `%3A` and `%` as `%25`.
//!
//! The id of an override may also stand for many subjects ([`Pattern`]).

mod error;
mod form;
mod pattern;

use std::borrow::Cow;
use std::net::IpAddr;

use percent_encoding::percent_decode_str;

use crate::limit::BucketKey;
use crate::rules::hash::{self, hash_at_start};
use crate::rules::normal_path::normal_path;
use crate::rules::part::{GLOBAL, METHODS, OTHER_METHOD, Parts};
use crate::rules::{HashKey, HostPattern, KeySource, domain};

pub use error::{IdDoubt, IdError};
pub(super) use form::form;
use form::part_form;
pub use pattern::OverrideScope;
pub(super) use pattern::{Pattern, pattern, reach};

/// The bits of `::ffff:0:0/96`, in which IPv6 has all of IPv4.
const MAPPED_PREFIX: u8 = 96;

/// Writes the subject that an id stands for to the end of `key`.
pub(super) fn write_subject(
    per: &[KeySource],
    id: &str,
    hash_key: &HashKey,
    key: &mut BucketKey,
) -> Result<(), IdError> {
    let mut parts = Parts {
        key,
        hash_key,
        composite: per.len() > 1,
    };
    for (index, (source, text)) in values(per, id)?.into_iter().enumerate() {
        if index > 0 {
            parts.key.push_str(":");
        }
        write_part(&mut parts, source, &text).map_err(|it| told(per, source, it))?;
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
fn split<'s, 'i>(
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
        _ if is_hashed(source) => hash_at_start(text).unwrap_or_default(),
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
fn decoded<'i>(
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
fn told(per: &[KeySource], source: &KeySource, error: IdError) -> IdError {
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

fn write_part(parts: &mut Parts<'_>, source: &KeySource, text: &str) -> Result<(), IdError> {
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

/// Whether values of a source are known by their hashes alone.
pub(super) fn is_hashed(source: &KeySource) -> bool {
    matches!(
        source,
        KeySource::Account | KeySource::Header(_) | KeySource::Cookie(_) | KeySource::Query(_)
    )
}

/// Whether a part of an id is taken for a name, and looks as if a hash were meant.
pub(super) fn looks_hashed(per: &[KeySource], id: &str) -> Option<IdDoubt> {
    let doubt = |name: &str| IdDoubt::LooksHashed(name.to_ascii_lowercase());
    hashed_parts(per, id)
        .iter()
        .find(|it| hash::looks_hashed(it))
        .map(|it| doubt(it))
}

/// Whether a part of an id is a hash.
pub(super) fn has_hash(per: &[KeySource], id: &str) -> bool {
    hashed_parts(per, id)
        .iter()
        .any(|it| hash_at_start(it).is_some())
}

/// The parts of an id that are, or are kept as, hashes.
fn hashed_parts<'i>(per: &[KeySource], id: &'i str) -> Vec<Cow<'i, str>> {
    let parts = split(per, id).unwrap_or_default().into_iter();
    let hashed = parts.filter(|(source, _)| is_hashed(source));
    hashed
        .filter_map(|(source, part)| decoded(per, source, part).ok())
        .collect()
}

fn refuse_space_around(text: &str) -> Result<(), IdError> {
    match text.trim() {
        trimmed if trimmed == text => Ok(()),
        trimmed => Err(not_canonical(text, trimmed.to_owned())),
    }
}

fn write_address(
    parts: &mut Parts<'_>,
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

/// An address, unmapped, and the length of its prefix if it has one.
pub(super) fn network(text: &str) -> Option<(IpAddr, Option<u8>)> {
    let (address, prefix) = match text.split_once('/') {
        None => (text, None),
        Some((address, prefix)) => (address, Some(prefix.parse().ok()?)),
    };
    let inside = address
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let address: IpAddr = inside.unwrap_or(address).parse().ok()?;
    let unmapped = address.to_canonical();
    // The first 96 bits of a mapped address say that it is one.
    let prefix = match unmapped == address {
        true => prefix,
        false => prefix.map(|prefix: u8| prefix.saturating_sub(MAPPED_PREFIX)),
    };
    Some((unmapped, prefix))
}

/// The network as a single id has it.
fn network_text(hash_key: &HashKey, address: IpAddr, v4_prefix: u8, v6_prefix: u8) -> String {
    let mut key = BucketKey::default();
    let mut alone = Parts {
        key: &mut key,
        hash_key,
        composite: false,
    };
    alone.address(address, v4_prefix, v6_prefix);
    key.to_string()
}

fn host(text: &str) -> Result<&str, IdError> {
    match HostPattern::parse(text) {
        Ok(HostPattern::Exact(host)) if *host == *text => Ok(text),
        Ok(HostPattern::Exact(host)) => Err(not_canonical(text, host.into())),
        _ => Err(IdError::NotAHost(text.to_owned())),
    }
}

fn registrable(text: &str) -> Result<&str, IdError> {
    let host = host(text)?;
    match domain::domain(host) {
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
