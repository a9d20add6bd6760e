//! Buckets that are counted in windows, in Redis.
//!
//! Each algorithm has a file with its commands and what their replies mean. All of a transaction's
//! commands run at once: either there is only one, or they stand between `MULTI` and `EXEC`.
//!
//! The key has a mark at its end, so that a limit whose algorithm was changed finds no value of
//! another type. No subject ends so, because a `%` in it is followed by two hexadecimal digits.

pub(super) mod fixed;
pub(super) mod log;
pub(super) mod sliding;

use redis::Value;

use super::replies::Cursor;
use super::request::Request;
use crate::limit::{Algorithm, CLOCK_TOLERANCE, Kind, Quota, Transaction, Usage};
use crate::time::{Nanos, Timestamp};
use log::Members;

/// How much longer Redis keeps a bucket than it may count: covers the clock tolerance between
/// gateways and as much again for Redis's own clock.
const SLACK: Nanos = Nanos::from_secs(2 * CLOCK_TOLERANCE.ceil_secs());

/// The marks of all algorithms.
pub(super) const MARKS: [&str; 3] = [fixed::MARK, sliding::MARK, log::MARK];

/// What is asked about a transaction that is counted in windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowQuestion {
    /// Nothing: the bucket stays unread.
    Nothing,
    /// How the bucket stands.
    Read(Family),
    /// To take the cost from a fixed window if it fits.
    TakeFixed,
    /// How the bucket stands, and to take the cost whether it fits or not.
    TakeSliding,
    /// The same, for a log to which these are added.
    TakeLog(Members),
}

/// Algorithms by what Redis holds for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Fixed,
    Sliding,
    Log,
}

/// What Redis found in a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WindowFound {
    /// How the transaction stands to the bucket as it was before.
    pub(super) usage: Usage,
    /// Whether the cost was written, which for sliding windows it is when it does not fit, too.
    pub(super) written: bool,
    /// How it stands once the cost is written although it did not fit.
    pub(super) usage_after: Option<Usage>,
}

/// What is to be put right about a bucket that no request waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Repair {
    Nothing,
    /// A fixed window that another quota has left behind is to end here.
    Cut(Timestamp),
    /// These sub-windows count no more.
    Prune(Vec<u64>),
}

impl Family {
    pub(super) fn of(quota: &Quota) -> Self {
        match quota.algorithm() {
            Algorithm::SlidingWindow { .. } => Self::Sliding,
            Algorithm::SlidingLog { .. } => Self::Log,
            Algorithm::FixedWindow(_) | Algorithm::Gcra => Self::Fixed,
        }
    }

    /// What ends the keys of these buckets.
    pub(super) fn mark(self) -> &'static str {
        match self {
            Self::Fixed => fixed::MARK,
            Self::Sliding => sliding::MARK,
            Self::Log => log::MARK,
        }
    }
}

impl WindowQuestion {
    pub(super) fn of(one: &Transaction, now: Timestamp) -> Self {
        let family = Family::of(&one.quota);
        match (one.kind, family) {
            (Kind::AllowOnly, _) => Self::Nothing,
            (Kind::CheckOnly, _) => Self::Read(family),
            // What not even a full bucket holds is never taken, unless denials are counted.
            _ if !one.fits_beside(0) && !one.is_counted_when_denied() => Self::Read(family),
            (_, Family::Fixed) => Self::TakeFixed,
            (_, Family::Sliding) => Self::TakeSliding,
            (_, Family::Log) => Self::TakeLog(Members::new(one, now)),
        }
    }

    /// Adds the commands.
    pub(super) fn add(self, request: &mut Request, key: &[u8], one: &Transaction, now: Timestamp) {
        match self {
            Self::Nothing => {}
            Self::Read(Family::Fixed) => fixed::read(request, key),
            Self::Read(Family::Sliding) => sliding::read(request, key),
            Self::Read(Family::Log) => log::read(request, key, one, now),
            Self::TakeFixed => {
                fixed::take(request, key, one, now);
                fixed::expire(request, key, &one.quota, now);
            }
            Self::TakeSliding => sliding::take(request, key, one, now),
            Self::TakeLog(members) => log::take(request, key, one, members, now),
        }
    }

    /// Reads the replies; none when they are not replies to this question.
    pub(super) fn parse(
        self,
        replies: &mut Cursor<'_>,
        one: &Transaction,
        now: Timestamp,
    ) -> Option<(WindowFound, Repair)> {
        match self {
            Self::Nothing => Some((WindowFound::default(), Repair::Nothing)),
            Self::Read(Family::Fixed) => fixed::parse_read(replies, one, now),
            Self::Read(Family::Sliding) => sliding::parse(&replies.value()?, false, one, now),
            Self::Read(Family::Log) => log::parse_read(&transacted(replies)?, one, now),
            Self::TakeFixed => fixed::parse_take(replies, one, now),
            Self::TakeSliding => sliding::parse(transacted(replies)?.first()?, true, one, now),
            Self::TakeLog(_) => log::parse_take(&transacted(replies)?, one, now),
        }
    }
}

/// What `EXEC` brings. Before it come the replies of `MULTI` and of what was queued.
fn transacted(replies: &mut Cursor<'_>) -> Option<Vec<Value>> {
    loop {
        match replies.value()? {
            Value::Okay | Value::SimpleString(_) => {}
            Value::Array(results) => return Some(results),
            _ => return None,
        }
    }
}

/// Runs what `fill` adds at once: nobody's commands come between.
fn at_once(request: &mut Request, fill: impl FnOnce(&mut Request)) {
    request.command(1, "MULTI");
    fill(request);
    request.command(1, "EXEC");
}

/// Lets Redis forget a bucket after this span, and some slack.
fn expire_in(request: &mut Request, key: &[u8], span: Nanos) {
    let lifetime = (span + SLACK).ceil_millis();
    request.command(3, "PEXPIRE").word(key).int(lifetime);
}
