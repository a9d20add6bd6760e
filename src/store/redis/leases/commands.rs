//! What is written to Redis about leases, and what its replies mean.
//!
//! The leases of a subject are a sorted set: a member for each, and for its score the moment at
//! which it expires unless it is renewed, in milliseconds since the Unix epoch. A lease is taken by
//!
//! ```text
//! MULTI
//! ZREMRANGEBYSCORE key -inf (now        those that have expired are no more
//! ZADD key +inf lease                   behind all others: its rank is how many there are, e
//! ZREMRANGEBYRANK key -1 most-1         from the last rank, e, to most-1: removes it if e < most, or nothing
//! ZADD key NX expiry lease              adds it if it was removed; else it is there, and stays as it is
//! ZREMRANGEBYSCORE key +inf +inf        removes it if it was not
//! ZCARD key
//! PEXPIRE key lifetime
//! EXEC
//! ```
//!
//! A range that ends before it begins is empty: that is the `if` that Redis otherwise has only in
//! Lua. The third reply tells whether the lease is taken. It is exact under any concurrency, no
//! lease of another is ever touched, whatever `most` was when that was taken, and who is refused
//! leaves nothing behind that could refuse others.

use redis::{Cmd, Pipeline, Value};

use crate::limit::{CLOCK_TOLERANCE, Claim, Kind};
use crate::time::{Nanos, Timestamp};

/// What ends the keys of leases. No subject ends so, because a `%` in it is followed by two
/// hexadecimal digits; and buckets have other marks, or none.
pub(super) const MARK: &str = "%i";

/// How much longer Redis keeps leases than they last: covers the clock tolerance between gateways
/// and as much again for Redis's own clock.
const SLACK: Nanos = Nanos::from_secs(2 * CLOCK_TOLERANCE.ceil_secs());

/// Names one lease among those of all gateways.
pub(super) type LeaseId = [u8; 16];

/// When a lease is taken or renewed, and how long it then lasts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Term {
    pub(super) now: Timestamp,
    pub(super) lasts: Nanos,
}

impl Term {
    fn expiry(self) -> u64 {
        millis(self.now + self.lasts)
    }

    /// What expires before has expired on every clock within the clock tolerance.
    fn dead(self) -> u64 {
        let tolerated = self.now.as_nanos().saturating_sub(CLOCK_TOLERANCE.get());
        millis(Timestamp::from_nanos(tolerated))
    }
}

fn millis(at: Timestamp) -> u64 {
    at.since(Timestamp::default()).ceil_millis()
}

/// What is asked about a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    Nothing,
    Count,
    Take,
}

/// What Redis found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// How many leases there were.
    pub(super) others: u64,
    pub(super) taken: bool,
}

impl Question {
    pub(super) const fn of(claim: &Claim) -> Self {
        match claim.kind {
            Kind::AllowOnly => Self::Nothing,
            Kind::CheckOnly | Kind::LookOnly => Self::Count,
            Kind::CheckAndSpend | Kind::SpendOnly => Self::Take,
        }
    }

    /// Adds the commands.
    pub(super) fn add(
        self,
        commands: &mut Pipeline,
        key: &[u8],
        lease: LeaseId,
        claim: &Claim,
        term: Term,
    ) {
        match self {
            Self::Nothing => {}
            Self::Count => {
                add(commands, "ZCOUNT", key).arg(term.dead()).arg("+inf");
            }
            Self::Take => add_take(commands, key, lease, claim.most.get(), term),
        }
    }

    /// How many replies there are to it.
    const fn replies(self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Count => 1,
            Self::Take => 9,
        }
    }

    /// Reads its replies, and leaves those that follow; none when they are not replies to it.
    pub(super) fn read(self, replies: &mut &[Value]) -> Option<Found> {
        let (own, rest) = replies.split_at_checked(self.replies())?;
        *replies = rest;
        match (self, own) {
            (Self::Nothing, _) => Some(Found::default()),
            (Self::Count, [Value::Int(others)]) => Some(Found {
                others: u64::try_from(*others).ok()?,
                taken: false,
            }),
            (Self::Take, [.., Value::Array(done)]) => match done.as_slice() {
                [_, _, Value::Int(taken), _, _, Value::Int(all), _] => Some(Found {
                    others: u64::try_from(all - taken).ok()?,
                    taken: *taken == 1,
                }),
                _ => None,
            },
            _ => None,
        }
    }
}

fn add_take(commands: &mut Pipeline, key: &[u8], lease: LeaseId, most: u64, term: Term) {
    let last = i64::try_from(most - 1).unwrap_or(i64::MAX);
    let lease = lease.as_slice();
    commands.cmd("MULTI");
    add(commands, "ZREMRANGEBYSCORE", key).arg("-inf");
    commands.arg(format!("({}", term.dead()));
    add(commands, "ZADD", key).arg("+inf").arg(lease);
    add(commands, "ZREMRANGEBYRANK", key).arg(-1).arg(last);
    add(commands, "ZADD", key).arg("NX").arg(term.expiry());
    commands.arg(lease);
    add(commands, "ZREMRANGEBYSCORE", key)
        .arg("+inf")
        .arg("+inf");
    add(commands, "ZCARD", key);
    add_lifetime(commands, key, term);
    commands.cmd("EXEC");
}

/// Lets a lease last anew; one that Redis has lost is there again.
pub(super) fn add_renewal(commands: &mut Pipeline, key: &[u8], lease: LeaseId, term: Term) {
    add(commands, "ZADD", key)
        .arg(term.expiry())
        .arg(lease.as_slice());
    add_lifetime(commands, key, term);
}

/// Ends a lease.
pub(super) fn add_release(commands: &mut Pipeline, key: &[u8], lease: LeaseId) {
    add(commands, "ZREM", key).arg(lease.as_slice());
}

/// Ends all leases of a subject.
pub(super) fn add_forget(commands: &mut Pipeline, key: &[u8]) {
    add(commands, "DEL", key);
}

fn add_lifetime(commands: &mut Pipeline, key: &[u8], term: Term) {
    let lifetime = (term.lasts + SLACK).ceil_millis();
    add(commands, "PEXPIRE", key).arg(lifetime);
}

fn add<'c>(commands: &'c mut Pipeline, name: &str, key: &[u8]) -> &'c mut Pipeline {
    let mut command = Cmd::new();
    command.arg(name).arg(key);
    commands.add_command(command)
}
