//! The commands to Redis about leases, and the meaning of its replies.
//!
//! The leases of a subject are a sorted set: a member for each, and for its score the moment at
//! which it expires unless it is renewed, in milliseconds since the Unix epoch. A lease is taken by
//!
//! ```text
//! MULTI
//! ZREMRANGEBYSCORE key -inf (now        those that have expired are no more
//! ZADD key +inf lease                   behind all others: its rank is how many there are, e
//! ZREMRANGEBYRANK key -1 most-1         from the last rank, e, to most-1: removes it if e < most
//! ZADD key NX expiry lease              adds it if it was removed; else it is there, and stays as it is
//! ZREMRANGEBYSCORE key +inf +inf        removes it if it was not
//! ZCARD key
//! PEXPIRE key lifetime
//! EXEC
//! ```
//!
//! A range that ends before it begins is empty: that is the `if` that Redis otherwise has only in
//! Lua. The third reply tells whether the lease is taken. It is exact under any concurrency, no
//! lease of another is ever touched, whatever `most` was when that was taken, and a refused
//! request leaves nothing behind that could refuse others.

use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{CLOCK_TOLERANCE, Claim, Mode};

use super::resp::{Cursor, Request};
use super::window::{at_once, expire_in};

/// The end of the keys of leases. No subject ends so, because a `%` in it is followed by two
/// hexadecimal digits; and buckets have other marks, or none.
pub(super) const MARK: &str = "%i";

/// Names one lease among those of all gateways.
pub(super) type LeaseId = [u8; 16];

/// When a lease is taken or renewed, and how long it then lasts.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseTimes {
    pub(super) now: Timestamp,
    pub(super) lasts: Nanos,
}

impl LeaseTimes {
    fn expiry(self) -> u64 {
        millis(self.now + self.lasts)
    }

    /// A lease that expires before has expired on every clock within the clock tolerance.
    fn dead(self) -> u64 {
        let tolerated = self.now.as_nanos().saturating_sub(CLOCK_TOLERANCE.get());
        millis(Timestamp::from_nanos(tolerated))
    }
}

fn millis(at: Timestamp) -> u64 {
    at.since(Timestamp::default()).ceil_millis()
}

/// The question about a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseCommand {
    Nothing,
    Count,
    Take,
}

/// The answer of Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeaseReply {
    /// How many leases there were.
    pub(super) others: u64,
    pub(super) taken: bool,
}

impl LeaseCommand {
    pub(super) const fn new(claim: &Claim) -> Self {
        match claim.mode {
            Mode::AllowOnly => Self::Nothing,
            Mode::CheckOnly | Mode::Peek => Self::Count,
            Mode::CheckAndSpend | Mode::SpendOnly => Self::Take,
        }
    }

    /// Adds the commands.
    pub(super) fn add(
        self,
        request: &mut Request,
        key: &[u8],
        lease: LeaseId,
        claim: &Claim,
        times: LeaseTimes,
    ) {
        match self {
            Self::Nothing => {}
            Self::Count => {
                let count = request.command(4, "ZCOUNT").word(key);
                count.int(times.dead()).word(b"+inf");
            }
            Self::Take => at_once(request, |request| {
                take(request, key, lease, claim.most.get(), times);
            }),
        }
    }

    /// Reads its replies; none when they are not replies to it.
    pub(super) fn parse(self, replies: &mut Cursor<'_>) -> Option<LeaseReply> {
        match self {
            Self::Nothing => Some(LeaseReply::default()),
            Self::Count => Some(LeaseReply {
                others: u64::try_from(replies.int()?).ok()?,
                taken: false,
            }),
            Self::Take => {
                for _ in 0..=TAKE_COMMANDS {
                    // `OK`, and `QUEUED` for each command.
                    replies.value()?;
                }
                let done: [Option<i64>; TAKE_COMMANDS] = replies.ints()?;
                let [_, _, taken, _, _, all, _] = done;
                Some(LeaseReply {
                    others: u64::try_from(all? - taken?).ok()?,
                    taken: taken? == 1,
                })
            }
        }
    }
}

/// How many commands stand between `MULTI` and `EXEC`.
const TAKE_COMMANDS: usize = 7;

fn take(request: &mut Request, key: &[u8], lease: LeaseId, most: u64, times: LeaseTimes) {
    let last = i64::try_from(most - 1).unwrap_or(i64::MAX);
    let dead = format!("({}", times.dead());
    let expire = request.command(4, "ZREMRANGEBYSCORE").word(key);
    expire.word(b"-inf").word(dead.as_bytes());
    let wait = request.command(4, "ZADD").word(key);
    wait.word(b"+inf").word(&lease);
    let room = request.command(4, "ZREMRANGEBYRANK").word(key);
    room.int(-1).int(last);
    let enter = request.command(5, "ZADD").word(key);
    enter.word(b"NX").int(times.expiry()).word(&lease);
    let refuse = request.command(4, "ZREMRANGEBYSCORE").word(key);
    refuse.word(b"+inf").word(b"+inf");
    request.command(2, "ZCARD").word(key);
    expire_in(request, key, times.lasts);
}

/// Lets a lease last anew; one that Redis has lost is there again.
pub(super) fn renew(request: &mut Request, key: &[u8], lease: LeaseId, times: LeaseTimes) {
    let again = request.command(4, "ZADD").word(key);
    again.int(times.expiry()).word(&lease);
    expire_in(request, key, times.lasts);
}

/// Ends a lease.
pub(super) fn release(request: &mut Request, key: &[u8], lease: LeaseId) {
    request.command(3, "ZREM").word(key).word(&lease);
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::super::resp::{Replies, text};
    use super::*;

    const TERM: LeaseTimes = LeaseTimes {
        now: Timestamp::from_nanos(5_000_000_000),
        lasts: Nanos::from_secs(30),
    };

    fn claim(most: u64) -> Claim {
        Claim::new("L:a".into(), NonZeroU64::new(most).unwrap())
    }

    #[test]
    fn a_lease_is_taken_by_one_transaction() {
        let take = |most| {
            let lease = *b"0123456789abcdef";
            text(|request| {
                LeaseCommand::Take.add(request, b"k", lease, &claim(most), TERM);
            })
        };
        let taken = take(3);
        insta::assert_snapshot!(taken, @r#"
        MULTI
        ZREMRANGEBYSCORE k -inf (4000
        ZADD k +inf 0123456789abcdef
        ZREMRANGEBYRANK k -1 2
        ZADD k NX 35000 0123456789abcdef
        ZREMRANGEBYSCORE k +inf +inf
        ZCARD k
        PEXPIRE k 32000
        EXEC
        "#);
        assert!(take(u64::MAX).contains("ZREMRANGEBYRANK k -1 9223372036854775807"));
    }

    #[test]
    fn the_others_are_as_simple_as_they_can_be() {
        let lease = *b"0123456789abcdef";
        let others = text(|request| {
            LeaseCommand::Count.add(request, b"k", lease, &claim(3), TERM);
            LeaseCommand::Nothing.add(request, b"k", lease, &claim(3), TERM);
            renew(request, b"k", lease, TERM);
            release(request, b"k", lease);
        });
        insta::assert_snapshot!(others, @r#"
        ZCOUNT k 4000 +inf
        ZADD k 35000 0123456789abcdef
        PEXPIRE k 32000
        ZREM k 0123456789abcdef
        "#);
    }

    #[test]
    fn replies_are_read_to_their_end_and_others_are_none() {
        let queued = "+QUEUED\r\n".repeat(TAKE_COMMANDS);
        let replies =
            |done: &str| Replies::new(format!("+OK\r\n{queued}{done}:9\r\n").into_bytes());
        let granted = replies("*7\r\n:0\r\n:1\r\n:1\r\n:1\r\n:0\r\n:3\r\n:1\r\n");
        let mut cursor = granted.iter();
        let found = LeaseReply {
            others: 2,
            taken: true,
        };
        assert_eq!(LeaseCommand::Take.parse(&mut cursor), Some(found));
        assert_eq!(cursor.int(), Some(9));
        for strange in ["*-1\r\n", "*1\r\n:1\r\n", "-EXECABORT no\r\n", ":1\r\n"] {
            let replies = replies(strange);
            assert_eq!(
                LeaseCommand::Take.parse(&mut replies.iter()),
                None,
                "{strange}"
            );
        }
    }
}
