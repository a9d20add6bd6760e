//! Sorted sets: sliding logs, leases and lists of bans.

use std::ops::Range;

use bytes::Bytes;

use super::call::{Call, Done, Failure, NOT_INTEGER, SYNTAX};
use super::protocol::{double, integer};
use super::sorted_set::SortedSet;

/// `ZADD key [NX] score member ...`
pub(super) fn zadd(call: &mut Call<'_>) -> Done {
    let (only_new, pairs) = match call.words_from(2) {
        [option, pairs @ ..] if option.eq_ignore_ascii_case(b"nx") => (true, pairs),
        pairs => (false, pairs),
    };
    if pairs.is_empty() || !pairs.len().is_multiple_of(2) {
        return Err(SYNTAX.into());
    }
    let mut scores = Vec::with_capacity(pairs.len() / 2);
    for score in pairs.iter().step_by(2) {
        scores.push(double(score).ok_or("value is not a valid float")?);
    }
    let (mut added, mut updated) = (0, 0);
    let members = call.sorted_set_mut()?;
    for (score, member) in scores.into_iter().zip(pairs.iter().skip(1).step_by(2)) {
        match members.score(member) {
            None => added += 1,
            Some(current) if !only_new && current != score => updated += 1,
            Some(_) => continue,
        }
        members.insert(score, member);
    }
    if added + updated > 0 {
        call.changed();
    }
    call.reply.int(added);
    Ok(())
}

pub(super) fn zrem(call: &mut Call<'_>) -> Done {
    let names = call.words_from(2);
    let mut removed = 0;
    if call.sorted_set()?.is_some() {
        let members = call.sorted_set_mut()?;
        removed = names.iter().filter(|name| members.remove(name)).count();
    }
    if removed > 0 {
        call.changed();
    }
    call.reply.count(removed);
    Ok(())
}

pub(super) fn zcard(call: &mut Call<'_>) -> Done {
    let length = call.sorted_set()?.map_or(0, SortedSet::len);
    call.reply.count(length);
    Ok(())
}

pub(super) fn zscore(call: &mut Call<'_>) -> Done {
    let member = call.word(2);
    let found = call.sorted_set()?.and_then(|members| members.score(member));
    match found {
        Some(score) => call.reply.double(score),
        None => call.reply.null(),
    }
    Ok(())
}

/// A bound of a range of scores.
struct Bound {
    score: f64,
    is_excluded: bool,
}

impl Bound {
    /// As C's `strtod` reads it, to which nothing is zero.
    fn parse(word: &[u8]) -> Option<Self> {
        let (digits, is_excluded) = match word.strip_prefix(b"(") {
            Some(digits) => (digits, true),
            None => (word, false),
        };
        let score = match std::str::from_utf8(digits).ok()?.trim_ascii_start() {
            "" if digits.is_empty() => 0.0,
            digits => digits.parse().ok().filter(|score: &f64| !score.is_nan())?,
        };
        Some(Self { score, is_excluded })
    }

    fn excludes(&self, score: f64) -> bool {
        self.is_excluded && score == self.score
    }
}

fn ranks_by_score(
    call: &Call<'_>,
    (min, max): (usize, usize),
) -> Result<impl Fn(&SortedSet) -> Range<usize> + use<>, Failure> {
    let bounds = [min, max].map(|at| Bound::parse(call.word(at)));
    let [Some(min), Some(max)] = bounds else {
        return Err("min or max is not a float".into());
    };
    Ok(move |members: &SortedSet| {
        members.ranks(
            |(score, _)| *score < min.score || min.excludes(*score),
            |(score, _)| *score > max.score || max.excludes(*score),
        )
    })
}

/// A bound of a range of members with equal scores.
enum LexBound {
    Least,
    Greatest,
    Included(Bytes),
    Excluded(Bytes),
}

impl LexBound {
    fn parse(word: &[u8]) -> Option<Self> {
        let (kind, member) = word.split_first()?;
        let member = || Bytes::copy_from_slice(member);
        match kind {
            b'-' if word.len() == 1 => Some(Self::Least),
            b'+' if word.len() == 1 => Some(Self::Greatest),
            b'[' => Some(Self::Included(member())),
            b'(' => Some(Self::Excluded(member())),
            _ => None,
        }
    }

    /// Whether a member is before a range that begins here.
    fn is_after(&self, member: &Bytes) -> bool {
        match self {
            Self::Least => false,
            Self::Greatest => true,
            Self::Included(own) => member < own,
            Self::Excluded(own) => member <= own,
        }
    }

    /// Whether a member is behind a range that ends here.
    fn is_before(&self, member: &Bytes) -> bool {
        match self {
            Self::Least => true,
            Self::Greatest => false,
            Self::Included(own) => member > own,
            Self::Excluded(own) => member >= own,
        }
    }
}

fn ranks_by_lex(call: &Call<'_>) -> Result<impl Fn(&SortedSet) -> Range<usize> + use<>, Failure> {
    let [Some(min), Some(max)] = [2, 3].map(|at| LexBound::parse(call.word(at))) else {
        return Err("min or max not valid string range item".into());
    };
    Ok(move |members: &SortedSet| {
        let is_before = |(_, member): &(f64, Bytes)| min.is_after(member);
        let is_behind = |(_, member): &(f64, Bytes)| max.is_before(member);
        // Redis looks at both ends first, which matters where scores differ.
        let all = members.range(0..members.len());
        match (all.first(), all.last()) {
            (Some(first), Some(last)) if !is_behind(first) && !is_before(last) => {
                members.ranks(is_before, is_behind)
            }
            _ => 0..0,
        }
    })
}

/// Ranks from a first to a last, which count from the end when they are negative.
fn ranks_by_rank(call: &Call<'_>) -> Result<impl Fn(&SortedSet) -> Range<usize> + use<>, Failure> {
    let (first, last) = (call.integer(2)?, call.integer(3)?);
    Ok(move |members: &SortedSet| {
        let length = i64::try_from(members.len()).unwrap_or(i64::MAX);
        let from_end = |rank: i64| {
            if rank < 0 {
                rank.saturating_add(length)
            } else {
                rank
            }
        };
        let (first, last) = (from_end(first).max(0), from_end(last).min(length - 1));
        let rank = |rank| usize::try_from(rank).unwrap_or_default();
        match first > last {
            true => 0..0,
            false => rank(first)..rank(last + 1),
        }
    })
}

pub(super) fn zcount(call: &mut Call<'_>) -> Done {
    let ranks = ranks_by_score(call, (2, 3))?;
    count(call, ranks)
}

pub(super) fn zlexcount(call: &mut Call<'_>) -> Done {
    let ranks = ranks_by_lex(call)?;
    count(call, ranks)
}

fn count(call: &mut Call<'_>, ranks: impl Fn(&SortedSet) -> Range<usize>) -> Done {
    let count = call.sorted_set()?.map_or(0, |members| ranks(members).len());
    call.reply.count(count);
    Ok(())
}

pub(super) fn zremrangebyscore(call: &mut Call<'_>) -> Done {
    let ranks = ranks_by_score(call, (2, 3))?;
    remove(call, ranks)
}

pub(super) fn zremrangebylex(call: &mut Call<'_>) -> Done {
    let ranks = ranks_by_lex(call)?;
    remove(call, ranks)
}

pub(super) fn zremrangebyrank(call: &mut Call<'_>) -> Done {
    let ranks = ranks_by_rank(call)?;
    remove(call, ranks)
}

fn remove(call: &mut Call<'_>, ranks: impl Fn(&SortedSet) -> Range<usize>) -> Done {
    let ranks = call.sorted_set()?.map_or(0..0, ranks);
    let removed = ranks.len();
    if removed > 0 {
        call.sorted_set_mut()?.remove_range(ranks);
        call.changed();
    }
    call.reply.count(removed);
    Ok(())
}

pub(super) fn zrange(call: &mut Call<'_>) -> Done {
    range_by_rank(call, false)
}

pub(super) fn zrevrange(call: &mut Call<'_>) -> Done {
    range_by_rank(call, true)
}

fn range_by_rank(call: &mut Call<'_>, is_reversed: bool) -> Done {
    let options = RangeOptions::parse(call.words_from(4))?;
    if options.is_limited {
        let why = "syntax error, LIMIT is only supported in combination with either BYSCORE or \
                   BYLEX";
        return Err(why.into());
    }
    let ranks = ranks_by_rank(call)?;
    let found = call.sorted_set()?.map(|members| {
        let ranks = ranks(members);
        if !is_reversed {
            return members.range(ranks).to_vec();
        }
        let length = members.len();
        let ranks = length - ranks.end..length - ranks.start;
        members.range(ranks).iter().rev().cloned().collect()
    });
    answer(call, &found.unwrap_or_default(), &options);
    Ok(())
}

/// `ZRANGEBYSCORE key min max [WITHSCORES] [LIMIT offset count]`
pub(super) fn zrangebyscore(call: &mut Call<'_>) -> Done {
    let options = RangeOptions::parse(call.words_from(4))?;
    let ranks = ranks_by_score(call, (2, 3))?;
    let found = call.sorted_set()?.map(|members| {
        let found = members.range(ranks(members)).iter();
        let found = found.skip(options.skip).take(options.count);
        found.cloned().collect::<Vec<_>>()
    });
    answer(call, &found.unwrap_or_default(), &options);
    Ok(())
}

struct RangeOptions {
    with_scores: bool,
    is_limited: bool,
    skip: usize,
    count: usize,
}

impl RangeOptions {
    fn parse(mut words: &[Bytes]) -> Result<Self, Failure> {
        let mut options = Self {
            with_scores: false,
            is_limited: false,
            skip: 0,
            count: usize::MAX,
        };
        while let [name, rest @ ..] = words {
            let name = name.to_ascii_lowercase();
            words = match (name.as_slice(), rest) {
                (b"withscores", rest) => {
                    options.with_scores = true;
                    rest
                }
                (b"limit", [skip, count, rest @ ..]) => {
                    let skip = integer(skip).ok_or(NOT_INTEGER)?;
                    let count = integer(count).ok_or(NOT_INTEGER)?;
                    // A negative count is none; before a negative offset is nothing.
                    options.is_limited = count != -1;
                    options.skip = usize::try_from(skip).unwrap_or(usize::MAX);
                    options.count = usize::try_from(count).unwrap_or(usize::MAX);
                    rest
                }
                _ => return Err(SYNTAX.into()),
            };
        }
        Ok(options)
    }
}

fn answer(call: &mut Call<'_>, found: &[(f64, Bytes)], options: &RangeOptions) {
    let nested = options.with_scores && call.reply.is_resp3();
    let flat = options.with_scores && !nested;
    call.reply
        .array(if flat { 2 * found.len() } else { found.len() });
    for (score, member) in found {
        if nested {
            call.reply.array(2);
        }
        call.reply.bulk(member);
        if options.with_scores {
            call.reply.double(*score);
        }
    }
}

/// `ZPOPMAX key [count]`
pub(super) fn zpopmax(call: &mut Call<'_>) -> Done {
    let count = match call.words_from(2) {
        [] => None,
        [_] => {
            let invalid = || Failure::from("value is out of range, must be positive");
            let count = integer(call.word(2)).ok_or_else(invalid)?;
            Some(usize::try_from(count).map_err(|_| invalid())?)
        }
        _ => return Err(SYNTAX.into()),
    };
    let length = call.sorted_set()?.map_or(0, SortedSet::len);
    let first = length.saturating_sub(count.unwrap_or(1));
    let members = call
        .sorted_set()?
        .map(|members| members.range(first..length).to_vec());
    let popped = members.unwrap_or_default();
    if !popped.is_empty() {
        call.sorted_set_mut()?.remove_range(first..length);
        call.changed();
    }
    let nested = call.reply.is_resp3() && count.is_some();
    call.reply.array(if nested {
        popped.len()
    } else {
        2 * popped.len()
    });
    for (score, member) in popped.iter().rev() {
        if nested {
            call.reply.array(2);
        }
        call.reply.bulk(member);
        call.reply.double(*score);
    }
    Ok(())
}
