//! `SCAN`: all keys in steps, in an order that has nothing to do with their names.

use bytes::Bytes;

use super::call::{Call, Done, NOT_INTEGER, SYNTAX};
use super::protocol::integer;

/// How many keys a step looks at unless it says otherwise.
const DEFAULT_COUNT: usize = 10;

/// `SCAN cursor [MATCH pattern] [COUNT count]`
pub(super) fn scan(call: &mut Call<'_>) -> Done {
    let cursor = std::str::from_utf8(call.word(1)).ok();
    let cursor: u64 = cursor
        .and_then(|cursor| cursor.parse().ok())
        .ok_or("invalid cursor")?;
    let (mut pattern, mut count): (&[u8], _) = (b"*", DEFAULT_COUNT);
    let mut words = call.words_from(2);
    while let [name, value, rest @ ..] = words {
        match name.to_ascii_lowercase().as_slice() {
            b"match" => pattern = value,
            b"count" => {
                let wanted = integer(value).ok_or(NOT_INTEGER)?;
                let wanted = usize::try_from(wanted).map_err(|_| SYNTAX)?;
                count = Some(wanted).filter(|wanted| *wanted > 0).ok_or(SYNTAX)?;
            }
            _ => return Err(SYNTAX.into()),
        }
        words = rest;
    }
    if !words.is_empty() {
        return Err(SYNTAX.into());
    }
    let places = call.keys.iter().map(|(key, _)| (place(key), key));
    let mut rest: Vec<(u64, &Bytes)> = places.filter(|(place, _)| *place >= cursor).collect();
    rest.sort_unstable();
    // Keys at the same place come in the same step.
    let last = rest.get(count - 1).map_or(u64::MAX, |(place, _)| *place);
    let step = rest.partition_point(|(place, _)| *place <= last);
    let next = if step < rest.len() { last + 1 } else { 0 };
    let found = rest.into_iter().take(step).map(|(_, key)| key);
    let found = found.filter(|key| !call.keys.is_due(key, call.now) && matches(pattern, key));
    let found: Vec<Bytes> = found.cloned().collect();
    call.reply.array(2);
    call.reply.bulk(next.to_string().as_bytes());
    call.reply.array(found.len());
    for key in found {
        call.reply.bulk(&key);
    }
    Ok(())
}

/// Where a key is in the order of steps (FNV-1a, in 63 bits).
fn place(key: &[u8]) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    key.iter().fold(0xcbf2_9ce4_8422_2325, mix) >> 1
}

/// Whether a text matches a glob pattern, as Redis has it.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([], text) => text.is_empty(),
        ([b'*', pattern @ ..], text) => (0..=text.len())
            .any(|skipped| matches(pattern, text.get(skipped..).unwrap_or_default())),
        (_, []) => false,
        ([b'?', pattern @ ..], [_, text @ ..]) => matches(pattern, text),
        ([b'[', set @ ..], [byte, text @ ..]) => {
            let (is_in, pattern) = in_set(set, *byte);
            is_in && matches(pattern, text)
        }
        ([b'\\', own, pattern @ ..] | [own, pattern @ ..], [byte, text @ ..]) => {
            own == byte && matches(pattern, text)
        }
    }
}

/// Whether a byte is in a set of bytes, and what follows the set.
fn in_set(set: &[u8], byte: u8) -> (bool, &[u8]) {
    let (is_negated, mut set) = match set {
        [b'^', set @ ..] => (true, set),
        set => (false, set),
    };
    let mut is_in = false;
    loop {
        set = match set {
            [] => return (is_in != is_negated, set),
            [b']', rest @ ..] => return (is_in != is_negated, rest),
            [b'\\', own, rest @ ..] => {
                is_in |= *own == byte;
                rest
            }
            [first, b'-', last, rest @ ..] => {
                is_in |= (*first.min(last)..=*first.max(last)).contains(&byte);
                rest
            }
            [own, rest @ ..] => {
                is_in |= *own == byte;
                rest
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_redis_matches_them() {
        for (pattern, text, is_match) in [
            ("weir:*", "weir:L:a", true),
            ("weir:*", "weir", false),
            ("w\\*\\[a\\]*", "w*[a]b", true),
            ("a?c", "abc", true),
            ("a[b-d]e", "ace", true),
            ("a[^b-d]e", "ace", false),
            ("a\\", "a\\", true),
            ("*a*b*", "xxayyb", true),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes()),
                is_match,
                "{pattern}"
            );
        }
    }
}
