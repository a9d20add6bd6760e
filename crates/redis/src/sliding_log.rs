//! A sliding log as a sorted set with a member for each unit.
//!
//! All scores are zero, and members are in the order of their bytes: a double could not hold a
//! moment in nanoseconds. A member is the moment at which the unit was taken, as eight bytes with
//! the most significant first, and eight bytes that tell it from others of the same nanosecond:
//! those of one request count up from a random number.

use redis::Value;
use weir_limit::time::Timestamp;
use weir_limit::{LogView, Transaction, farthest_horizon, horizon};

use super::resp::Request;
use super::window::{WindowReply, at_once, expire_in};

const MEMBER_BYTES: usize = 16;

/// The members that one transaction adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Members {
    taken: Timestamp,
    first: u64,
    units: u32,
}

impl Members {
    /// Members for a transaction's cost, unlike all others. No more than the log remembers.
    pub(super) fn new(transaction: &Transaction, now: Timestamp) -> Self {
        let units = transaction.counted_units();
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        Self {
            taken: now,
            first: rand::random(),
            units,
        }
    }

    fn each(self) -> impl Iterator<Item = [u8; MEMBER_BYTES]> {
        (0..self.units).map(move |number| {
            let own = self.first.wrapping_add(number.into());
            let [time, tail] = [self.taken.as_nanos(), own].map(u64::to_be_bytes);
            let mut member = [0; MEMBER_BYTES];
            for (to, from) in member.iter_mut().zip(time.into_iter().chain(tail)) {
                *to = from;
            }
            member
        })
    }

    fn add(self, request: &mut Request, key: &[u8]) {
        let words = 2 + 2 * self.units as usize;
        request.command(words, "ZADD").word(key);
        for member in self.each() {
            request.int(0).word(&member);
        }
    }

    /// Takes just these members away.
    pub(super) fn remove(self, request: &mut Request, key: &[u8]) {
        let words = 2 + self.units as usize;
        request.command(words, "ZREM").word(key);
        for member in self.each() {
            request.word(&member);
        }
    }
}

/// Reads what matters of the log.
pub(super) fn read(request: &mut Request, key: &[u8], transaction: &Transaction, now: Timestamp) {
    at_once(request, |request| view(request, key, transaction, now));
}

/// Reads what matters of the log, and adds members to it.
pub(super) fn take(
    request: &mut Request,
    key: &[u8],
    transaction: &Transaction,
    members: Members,
    now: Timestamp,
) {
    let quota = &transaction.quota;
    at_once(request, |request| {
        view(request, key, transaction, now);
        members.add(request, key);
        if transaction.is_counted_when_denied() {
            // Older units decide nothing, and denied ones come without end. As many go as were
            // added: a definition with a greater count may need the others.
            let surplus = -1 - i64::try_from(quota.burst().get()).unwrap_or(i64::MAX / 2);
            let first = surplus + 1 - i64::from(members.units);
            let trim = request.command(4, "ZREMRANGEBYRANK").word(key);
            trim.int(first).int(surplus);
            nth_newest(request, key, LogView::deciding_rank(transaction));
        }
        let dead = bound(b'(', farthest_horizon(quota, now));
        let delete = request.command(4, "ZREMRANGEBYLEX").word(key);
        delete.word(b"-").word(&dead);
        expire_in(request, key, quota.tolerance());
    });
}

fn view(request: &mut Request, key: &[u8], transaction: &Transaction, now: Timestamp) {
    let live = bound(b'[', horizon(&transaction.quota, now));
    let count = request.command(4, "ZLEXCOUNT").word(key);
    count.word(&live).word(b"+");
    nth_newest(request, key, 0);
    nth_newest(request, key, LogView::deciding_rank(transaction));
}

fn nth_newest(request: &mut Request, key: &[u8], rank: u64) {
    let request = request.command(4, "ZREVRANGE").word(key);
    request.int(rank).int(rank);
}

/// Where members of this moment begin, with what says whether one there is meant as well.
fn bound(included: u8, moment: Timestamp) -> [u8; 9] {
    let mut bound = [included; 9];
    for (to, from) in bound
        .iter_mut()
        .skip(1)
        .zip(moment.as_nanos().to_be_bytes())
    {
        *to = from;
    }
    bound
}

/// Gives back the newest units, at most what is there.
pub(super) fn refund(request: &mut Request, key: &[u8], transaction: &Transaction) {
    let request = request.command(3, "ZPOPMAX").word(key);
    request.int(transaction.cost.get());
}

/// Reads the replies to a read.
pub(super) fn parse_read(
    replies: &[Value],
    transaction: &Transaction,
    now: Timestamp,
) -> Option<WindowReply> {
    let [Value::Int(live), newest, deciding] = replies else {
        return None;
    };
    let (Ok(newest), Ok(deciding)) = (moment(newest)?, moment(deciding)?) else {
        return Some(WindowReply::foreign(false));
    };
    let view = LogView {
        live: u64::try_from(*live).ok()?,
        newest,
        deciding,
    };
    Some(WindowReply {
        usage: view.usage(transaction, now),
        ..WindowReply::default()
    })
}

/// Reads the replies to a take.
pub(super) fn parse_take(
    replies: &[Value],
    transaction: &Transaction,
    now: Timestamp,
) -> Option<WindowReply> {
    let (view, rest) = replies.split_at_checked(3)?;
    let mut found = parse_read(view, transaction, now)?;
    found.written = true;
    if transaction.is_counted_when_denied() && !found.is_foreign {
        let [_, _, deciding, ..] = rest else {
            return None;
        };
        let [_, newest, _] = view else { return None };
        let (Ok(newest), Ok(deciding)) = (moment(newest)?, moment(deciding)?) else {
            return Some(WindowReply::foreign(true));
        };
        let view = LogView {
            live: found.usage.used.saturating_add(transaction.counted_units()),
            newest: newest.max(Some(now)),
            deciding,
        };
        found.usage_after = Some(view.usage(transaction, now));
    }
    Some(found)
}

/// A member that Weir does not write.
struct ForeignMember;

/// The time of the only member of a list; none for another reply.
fn moment(reply: &Value) -> Option<Result<Option<Timestamp>, ForeignMember>> {
    let Value::Array(members) = reply else {
        return None;
    };
    let Some(member) = members.first() else {
        return Some(Ok(None));
    };
    let Value::BulkString(bytes) = member else {
        return None;
    };
    let moment = match <&[u8; MEMBER_BYTES]>::try_from(&**bytes) {
        Ok([nanos @ .., _, _, _, _, _, _, _, _]) => Ok(Some(u64::from_be_bytes(*nanos))),
        Err(_) => Err(ForeignMember),
    };
    Some(moment.map(|nanos| nanos.map(Timestamp::from_nanos)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::num::NonZeroU64;
    use std::time::Duration;

    use weir_limit::{Algorithm, Quota};

    use super::*;

    #[test]
    fn members_are_in_the_order_of_their_moments_and_all_unlike() {
        let log = Algorithm::SlidingLog {
            count_denied: false,
        };
        let quota = Quota::windowed(log, 10, Duration::from_secs(60)).unwrap();
        let transaction = Transaction::new("L:a".into(), quota, NonZeroU64::new(3).unwrap());
        let members = |nanos| Members::new(&transaction, Timestamp::from_nanos(nanos));
        let all: Vec<_> = [255, 256, 256]
            .map(members)
            .iter()
            .flat_map(|members| members.each())
            .collect();
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), 9);
        assert!(all[..3].iter().max() < all[3..].iter().min());
    }
}
