//! Ids of overrides that stand for many subjects: by a network, by a wildcard, or by their first
//! parts alone.

use ipnet::IpNet;

use crate::limit::BucketKey;
use crate::rules::key_parts::{KeyWriter, network};
use crate::rules::overrides::{PartPattern, Wildcard};
use crate::rules::subject_id::{
    decoded, host, not_canonical, refuse_space_around, segment, split, told, write_part,
};
use crate::rules::{HashKey, IdError, KeySource, host};

/// What the id of an override stands for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// One subject, as bucket keys have it.
    Subject(String),
    /// All subjects whose parts match these; what is left out at the end matches all.
    Parts(Vec<PartPattern>),
}

/// What an override reaches further with than by naming one subject.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverrideScope {
    /// A network that is wider than what the limit counts.
    pub network: bool,
    /// A wildcard.
    pub wildcard: bool,
    /// Parts of the subject that are left out.
    pub left_out: usize,
}

/// Reads the id of an override.
pub(super) fn pattern(per: &[KeySource], id: &str, hash_key: &HashKey) -> Result<Pattern, IdError> {
    let parts = split(per, id)?.into_iter();
    let parts = parts.map(|(source, text)| part(per, source, text, hash_key));
    let parts: Vec<PartPattern> = parts.collect::<Result<_, _>>()?;
    let exact = parts.iter().map(|part| match part {
        PartPattern::Exact(written) => Some(&**written),
        _ => None,
    });
    match exact.collect::<Option<Vec<&str>>>() {
        Some(exact) if exact.len() == per.len() => Ok(Pattern::Subject(exact.join(":"))),
        _ => Ok(Pattern::Parts(parts)),
    }
}

/// How far the id of an override reaches.
pub(super) fn scope(per: &[KeySource], id: &str, hash_key: &HashKey) -> OverrideScope {
    let Ok(Pattern::Parts(parts)) = pattern(per, id, hash_key) else {
        return OverrideScope::default();
    };
    let has = |fits: fn(&PartPattern) -> bool| parts.iter().any(fits);
    OverrideScope {
        network: has(|part| matches!(part, PartPattern::Network(_))),
        wildcard: has(|part| matches!(part, PartPattern::Wildcard(_) | PartPattern::Any)),
        left_out: per.len() - parts.len(),
    }
}

fn part(
    per: &[KeySource],
    source: &KeySource,
    text: &str,
    hash_key: &HashKey,
) -> Result<PartPattern, IdError> {
    if text == "*" && *source != KeySource::Global {
        return Ok(PartPattern::Any);
    }
    let star = match may_have_star(source) {
        true => around_star(text)?,
        false => None,
    };
    if let Some((before, after)) = star {
        let end = |text| Ok(decoded(per, source, &unescaped(text))?.into_owned());
        return wildcard(source, &end(before)?, &end(after)?)
            .map(PartPattern::Wildcard)
            .map_err(|error| told(per, source, error));
    }
    let text = unescaped(text);
    let text = decoded(per, source, &text)?;
    match wide_network(source, &text)? {
        Some(network) => Ok(PartPattern::Network(network)),
        None => exact(per, source, &text, hash_key).map_err(|error| told(per, source, error)),
    }
}

/// Whether there is text to hold a wildcard against. Networks have another form.
fn may_have_star(source: &KeySource) -> bool {
    !matches!(
        source,
        KeySource::Address { .. } | KeySource::Method | KeySource::Global
    )
}

/// A part that is one value.
fn exact(
    per: &[KeySource],
    source: &KeySource,
    text: &str,
    hash_key: &HashKey,
) -> Result<PartPattern, IdError> {
    let mut key = BucketKey::default();
    let mut parts = KeyWriter {
        key: &mut key,
        hash_key,
        composite: per.len() > 1,
    };
    write_part(&mut parts, source, text)?;
    Ok(PartPattern::Exact(key.as_str().into()))
}

/// What is before and after the one `*` of a text, if there is one that is not written `\*`.
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

fn unescaped(text: &str) -> String {
    text.replace("\\*", "*")
}

/// The network that a text names, when it is wider than what is counted.
fn wide_network(source: &KeySource, text: &str) -> Result<Option<IpNet>, IdError> {
    let KeySource::Address {
        v4_prefix,
        v6_prefix,
    } = *source
    else {
        return Ok(None);
    };
    let Some((address, Some(prefix))) = network(text) else {
        return Ok(None);
    };
    let counted = match address.is_ipv4() {
        true => v4_prefix,
        false => v6_prefix,
    };
    let Some(network) = IpNet::new(address, prefix)
        .ok()
        .filter(|_| prefix < counted)
    else {
        return Ok(None);
    };
    let network = network.trunc();
    match network.to_string() {
        canonical if canonical == text => Ok(Some(network)),
        canonical => Err(not_canonical(text, canonical)),
    }
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

/// A wildcard of which at least one host is an example.
fn host_wildcard(text: &str) -> Result<(), IdError> {
    let lower = text.to_ascii_lowercase();
    if lower != text {
        return Err(not_canonical(text, lower));
    }
    host(&text.replace('*', "x"))
        .map(drop)
        .map_err(|_| IdError::NotAHost(text.to_owned()))
}

/// Nothing below a registrable domain is counted.
fn domain_wildcard(text: &str, after: &str) -> Result<(), IdError> {
    let below = after.split_once('.').map(|(_, below)| below);
    match below.filter(|below| psl::domain_str(below).is_some()) {
        Some(below) => {
            let counted = host::domain(below).to_owned();
            Err(IdError::NotADomain(text.to_owned(), counted))
        }
        None => Ok(()),
    }
}
