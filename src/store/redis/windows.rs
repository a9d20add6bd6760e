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
use crate::limit::{Algorithm, CLOCK_TOLERANCE, Mode, Quota, Transaction, Usage};
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
    Read(WindowKind),
    /// To take the cost from a fixed window if it fits.
    TakeFixed,
    /// How the bucket stands, and to take the cost whether it fits or not.
    TakeSliding,
    /// The same, for a log to which these are added.
    TakeLog(Members),
}

/// Algorithms by what Redis holds for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowKind {
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

impl WindowKind {
    pub(super) fn of(quota: &Quota) -> Self {
        match quota.algorithm() {
            Algorithm::SlidingWindow { .. } => Self::Sliding,
            Algorithm::SlidingLog { .. } => Self::Log,
            Algorithm::FixedWindow(_) | Algorithm::Gcra | Algorithm::InFlight => Self::Fixed,
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
        let family = WindowKind::of(&one.quota);
        match (one.kind, family) {
            (Mode::AllowOnly, _) => Self::Nothing,
            (Mode::CheckOnly | Mode::Peek, _) => Self::Read(family),
            // What not even a full bucket holds is never taken, unless denials are counted.
            _ if !one.fits_beside(0) && !one.is_counted_when_denied() => Self::Read(family),
            (_, WindowKind::Fixed) => Self::TakeFixed,
            (_, WindowKind::Sliding) => Self::TakeSliding,
            (_, WindowKind::Log) => Self::TakeLog(Members::new(one, now)),
        }
    }

    /// Adds the commands.
    pub(super) fn add(self, request: &mut Request, key: &[u8], one: &Transaction, now: Timestamp) {
        match self {
            Self::Nothing => {}
            Self::Read(WindowKind::Fixed) => fixed::read(request, key),
            Self::Read(WindowKind::Sliding) => sliding::read(request, key),
            Self::Read(WindowKind::Log) => log::read(request, key, one, now),
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
            Self::Read(WindowKind::Fixed) => fixed::parse_read(replies, one, now),
            Self::Read(WindowKind::Sliding) => sliding::parse(&replies.value()?, false, one, now),
            Self::Read(WindowKind::Log) => log::parse_read(&transacted(replies)?, one, now),
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
pub(super) fn at_once(request: &mut Request, fill: impl FnOnce(&mut Request)) {
    request.command(1, "MULTI");
    fill(request);
    request.command(1, "EXEC");
}

/// Lets Redis forget a bucket after this span, and some slack.
pub(super) fn expire_in(request: &mut Request, key: &[u8], span: Nanos) {
    let lifetime = (span + SLACK).ceil_millis();
    request.command(3, "PEXPIRE").word(key).int(lifetime);
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::time::Duration;

    use super::super::replies::Replies;
    use super::super::request::text;
    use super::*;

    const NOW: Timestamp = Timestamp::from_nanos(1_000_000_000_000_000);

    fn two_of_ten(algorithm: Algorithm) -> Transaction {
        let quota = Quota::windowed(algorithm, 10, Duration::from_secs(60)).unwrap();
        Transaction::new("L:a".into(), quota, NonZeroU64::new(2).unwrap())
    }

    fn asked(one: &Transaction) -> String {
        text(|request| WindowQuestion::of(one, NOW).add(request, b"k", one, NOW))
    }

    #[test]
    fn a_sliding_window_is_read_and_added_to_at_once() {
        let one = two_of_ten(Algorithm::SlidingWindow {
            count_denied: false,
        });
        assert_eq!(
            asked(&one),
            "MULTI\nHGETALL k\nHINCRBY k 1000000000 2\nPEXPIRE k 63000\nEXEC"
        );
        assert_eq!(
            text(|request| sliding::prune(request, b"k", &[7, 8])),
            "HDEL k 7 8"
        );
    }

    #[test]
    fn a_log_is_read_and_added_to_at_once() {
        for (count_denied, commands) in [(false, 8), (true, 10)] {
            let one = two_of_ten(Algorithm::SlidingLog { count_denied });
            let text = asked(&one);
            let names: Vec<_> = text.lines().map(|line| line.split(' ').next()).collect();
            assert_eq!(names.len(), commands, "{text}");
            assert_eq!(
                (names[0], names[commands - 1]),
                (Some("MULTI"), Some("EXEC"))
            );
            assert_eq!(names[4], Some("ZADD"));
        }
    }

    #[test]
    fn what_is_queued_and_then_executed_is_read_to_its_end() {
        let question = WindowQuestion::TakeSliding;
        let one = two_of_ten(Algorithm::SlidingWindow {
            count_denied: false,
        });
        let replies = b"+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n\
            *3\r\n*2\r\n$10\r\n1000000000\r\n$1\r\n7\r\n:9\r\n:1\r\n:77\r\n";
        let replies = Replies::new(replies.to_vec());
        let mut cursor = replies.iter();
        let (found, _) = question.parse(&mut cursor, &one, NOW).unwrap();
        assert_eq!((found.usage.used, found.written), (7, true));
        assert_eq!(cursor.int(), Some(77));
    }

    #[test]
    fn an_error_in_a_transaction_or_an_aborted_one_is_no_finding() {
        let one = two_of_ten(Algorithm::SlidingWindow {
            count_denied: false,
        });
        for replies in [
            "+OK\r\n-OOM no memory\r\n+QUEUED\r\n+QUEUED\r\n-EXECABORT discarded\r\n",
            "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n-WRONGTYPE no hash\r\n:1\r\n:1\r\n",
            "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*-1\r\n",
        ] {
            let replies = Replies::new(replies.as_bytes().to_vec());
            let found = WindowQuestion::TakeSliding.parse(&mut replies.iter(), &one, NOW);
            assert_eq!(found, None);
        }
    }
}
