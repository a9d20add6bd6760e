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

use redis::{Cmd, Pipeline, Value};

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
            (Kind::CheckOnly | Kind::LookOnly, _) => Self::Read(family),
            // What not even a full bucket holds is never taken, unless denials are counted.
            _ if !one.fits_beside(0) && !one.is_counted_when_denied() => Self::Read(family),
            (_, Family::Fixed) => Self::TakeFixed,
            (_, Family::Sliding) => Self::TakeSliding,
            (_, Family::Log) => Self::TakeLog(Members::new(one, now)),
        }
    }

    /// Adds the commands.
    pub(super) fn add(
        self,
        commands: &mut Pipeline,
        key: &[u8],
        one: &Transaction,
        now: Timestamp,
    ) {
        match self {
            Self::Nothing => {}
            Self::Read(Family::Fixed) => add(commands, fixed::read(key)),
            Self::Read(Family::Sliding) => add(commands, sliding::read(key)),
            Self::Read(Family::Log) => log::add_read(commands, key, one, now),
            Self::TakeFixed => {
                add(commands, fixed::take(key, one, now));
                add(commands, fixed::expire(key, &one.quota, now));
            }
            Self::TakeSliding => sliding::add_take(commands, key, one, now),
            Self::TakeLog(members) => log::add_take(commands, key, one, members, now),
        }
    }

    /// How many replies there are to it.
    pub(super) fn replies(self, one: &Transaction) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Read(Family::Fixed | Family::Sliding) => 1,
            Self::Read(Family::Log) => log::READ_REPLIES,
            Self::TakeFixed => 2,
            Self::TakeSliding => sliding::TAKE_REPLIES,
            Self::TakeLog(_) => log::take_replies(one),
        }
    }

    /// Reads the replies; none when they are not replies to this question.
    pub(super) fn parse(
        self,
        replies: &[Value],
        one: &Transaction,
        now: Timestamp,
    ) -> Option<(WindowFound, Repair)> {
        let (first, last) = (replies.first(), replies.last());
        match self {
            Self::Nothing => Some((WindowFound::default(), Repair::Nothing)),
            Self::Read(Family::Fixed) => fixed::parse_read(first?, one, now),
            Self::Read(Family::Sliding) => sliding::parse(first?, false, one, now),
            Self::Read(Family::Log) => log::parse_read(transacted(last?)?, one, now),
            Self::TakeFixed => fixed::parse_take(first?, one, now),
            Self::TakeSliding => sliding::parse(transacted(last?)?.first()?, true, one, now),
            Self::TakeLog(_) => log::parse_take(transacted(last?)?, one, now),
        }
    }
}

/// The replies that `EXEC` brings.
fn transacted(reply: &Value) -> Option<&[Value]> {
    match reply {
        Value::Array(replies) => Some(replies),
        _ => None,
    }
}

fn add(commands: &mut Pipeline, command: Cmd) {
    commands.add_command(command);
}

/// Runs what `fill` adds at once: nobody's commands come between.
fn add_at_once(commands: &mut Pipeline, fill: impl FnOnce(&mut Pipeline)) {
    add(commands, redis::cmd("MULTI"));
    fill(commands);
    add(commands, redis::cmd("EXEC"));
}

/// Lets Redis forget a bucket after this span, and some slack.
fn expire_in(key: &[u8], span: Nanos) -> Cmd {
    let mut command = Cmd::with_capacity(3, 64 + key.len());
    let lifetime = (span + SLACK).ceil_millis();
    command.arg("PEXPIRE").arg(key).arg(lifetime);
    command
}
