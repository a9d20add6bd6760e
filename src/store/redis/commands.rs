//! GCRA as one `BITFIELD`, and the other commands that a bucket needs.
//!
//! A bucket is an unsigned 63-bit integer: its TAT in nanoseconds since the Unix epoch. With M the
//! greatest such integer, c the increment and tau the tolerance, a bucket is checked and taken
//! from by
//!
//! ```text
//! BITFIELD key OVERFLOW SAT  INCRBY u63 0 -now          -> debt = max(TAT - now, 0)
//!              OVERFLOW FAIL INCRBY u63 0 (M - tau + c) -> overflows, so nil, when debt + c > tau
//!                            INCRBY u63 0 -(M - tau)    -> takes the bias off again
//!                            INCRBY u63 0 now           -> the new TAT
//! ```
//!
//! `OVERFLOW FAIL` is the `if` that Redis otherwise has only in Lua: the second step changes
//! nothing when the bucket has no room, and then the third would fall below zero and changes
//! nothing either. The command is atomic, so it is exact under any concurrency.

use redis::{Cmd, Value};

use crate::limit::{CLOCK_TOLERANCE, Kind, Transaction};
use crate::time::{Nanos, Timestamp};

/// M: the greatest integer of 63 bits.
const GREATEST: i64 = i64::MAX;

/// The greatest tolerance that the algorithm tells apart from a debt.
///
/// A debt of M - tau or more would survive the third step, and a debt may be as great as the
/// tolerance and another gateway's clock tolerance together. So the two must not exceed M: a
/// bucket that takes 146 years to fill counts as one that takes a second less.
const GREATEST_TOLERANCE: u64 = (1 << 62) - CLOCK_TOLERANCE.get();

/// How much longer Redis keeps a bucket than it takes to fill: covers the clock tolerance between
/// gateways and as much again for Redis's own clock.
const SLACK: Nanos = Nanos::from_secs(2 * CLOCK_TOLERANCE.ceil_secs());

const BITFIELD_BYTES: usize = 256;

/// Checks the bucket and takes the cost from it, atomically.
pub(super) fn take(key: &[u8], increment: Nanos, tolerance: Nanos, now: Timestamp) -> Cmd {
    let bias = GREATEST - bounded(tolerance);
    let now = signed(now.as_nanos());
    let mut command = bitfield(key, 17);
    increase(overflow(&mut command, "SAT"), -now);
    overflow(&mut command, "FAIL");
    for by in [bias + bounded(increment), -bias, now] {
        increase(&mut command, by);
    }
    command
}

/// Reads the TAT. A read by `BITFIELD` creates no key, and unlike `BITFIELD_RO` is as old as the
/// command itself.
pub(super) fn read(key: &[u8]) -> Cmd {
    let mut command = bitfield(key, 4);
    command.arg("GET").arg("u63").arg("0");
    command
}

/// Gives the increment back, at most what is owed.
pub(super) fn give_back(key: &[u8], increment: Nanos, now: Timestamp) -> Cmd {
    let now = signed(now.as_nanos());
    let mut command = bitfield(key, 12);
    overflow(&mut command, "SAT");
    for by in [-now, -signed(increment.get()), now] {
        increase(&mut command, by);
    }
    command
}

/// Brings the TAT down to `greatest` if it is beyond: adding what saturates at `greatest` and
/// subtracting it again is the minimum of the two, atomically.
pub(super) fn clamp(key: &[u8], greatest: Timestamp) -> Cmd {
    let above = GREATEST - signed(greatest.as_nanos());
    let mut command = bitfield(key, 9);
    overflow(&mut command, "SAT");
    increase(&mut command, above);
    increase(&mut command, -above);
    command
}

/// Lets Redis forget the bucket when it is full, and no sooner.
pub(super) fn expire(key: &[u8], tolerance: Nanos) -> Cmd {
    let mut command = Cmd::with_capacity(3, 64 + key.len());
    let lifetime = (tolerance + SLACK).ceil_millis();
    command.arg("PEXPIRE").arg(key).arg(lifetime);
    command
}

/// Makes the bucket full.
pub(super) fn forget(key: &[u8]) -> Cmd {
    let mut command = Cmd::with_capacity(2, 32 + key.len());
    command.arg("DEL").arg(key);
    command
}

fn bitfield(key: &[u8], args: usize) -> Cmd {
    let mut command = Cmd::with_capacity(args, BITFIELD_BYTES + key.len());
    command.arg("BITFIELD").arg(key);
    command
}

fn overflow<'c>(command: &'c mut Cmd, how: &str) -> &'c mut Cmd {
    command.arg("OVERFLOW").arg(how)
}

fn increase(command: &mut Cmd, by: i64) {
    command.arg("INCRBY").arg("u63").arg("0").arg(by);
}

fn bounded(span: Nanos) -> i64 {
    signed(span.get().min(GREATEST_TOLERANCE))
}

fn signed(nanos: u64) -> i64 {
    i64::try_from(nanos).unwrap_or(GREATEST)
}

/// What is asked of Redis about a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// Nothing: the bucket stays unread.
    Nothing,
    /// What its TAT is.
    Read,
    /// To take this increment if it fits.
    Take(Nanos),
}

impl Question {
    pub(super) fn of(one: &Transaction) -> Self {
        match (one.kind, one.quota.increment(one.cost)) {
            (Kind::AllowOnly, _) => Self::Nothing,
            (Kind::CheckAndSpend | Kind::SpendOnly, Some(increment)) => Self::Take(increment),
            // What not even a full bucket holds is never taken.
            _ => Self::Read,
        }
    }

    /// How many replies there are to it.
    pub(super) fn replies(self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Read => 1,
            Self::Take(_) => 2,
        }
    }
}

/// What Redis found in a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) debt: Nanos,
    /// Whether the cost fitted and is taken.
    pub(super) taken: bool,
}

impl Found {
    /// Reads the reply of `BITFIELD` to a question; none when it is not such a reply.
    pub(super) fn parse(question: Question, reply: &Value, now: Timestamp) -> Option<Self> {
        let Value::Array(steps) = reply else {
            return None;
        };
        match (question, steps.as_slice()) {
            (Question::Read, [Value::Int(tat)]) => Some(Self {
                debt: Timestamp::from_nanos(u64::try_from(*tat).ok()?).since(now),
                taken: false,
            }),
            (Question::Take(_), [Value::Int(debt), taken, _, _]) => Some(Self {
                debt: Nanos::new(u64::try_from(*debt).ok()?),
                taken: matches!(taken, Value::Int(_)),
            }),
            _ => None,
        }
    }

    /// The debt by which to decide.
    ///
    /// Arithmetic and Redis differ only about a tolerance beyond [`GREATEST_TOLERANCE`]; then
    /// Redis, which did not take the cost, is right.
    pub(super) fn deciding_debt(self, question: Question, one: &Transaction) -> Nanos {
        let refused = matches!(question, Question::Take(_)) && !self.taken;
        if refused && one.fitting_increment(self.debt).is_some() {
            one.quota.tolerance()
        } else {
            self.debt
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(command: &Cmd) -> String {
        let args = command.args_iter().map(|arg| match arg {
            redis::Arg::Simple(arg) => String::from_utf8_lossy(arg).into_owned(),
            _ => "?".to_owned(),
        });
        args.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_take_is_one_bitfield_of_four_steps() {
        let command = take(
            b"k",
            Nanos::new(7),
            Nanos::new(100),
            Timestamp::from_nanos(50),
        );
        assert_eq!(
            text(&command),
            "BITFIELD k OVERFLOW SAT INCRBY u63 0 -50 \
             OVERFLOW FAIL INCRBY u63 0 9223372036854775714 \
             INCRBY u63 0 -9223372036854775707 INCRBY u63 0 50"
        );
    }

    #[test]
    fn refund_clamp_and_expiry_read_as_designed() {
        let now = Timestamp::from_nanos(50);
        assert_eq!(
            text(&give_back(b"k", Nanos::new(7), now)),
            "BITFIELD k OVERFLOW SAT INCRBY u63 0 -50 INCRBY u63 0 -7 INCRBY u63 0 50"
        );
        assert_eq!(
            text(&clamp(b"k", now)),
            "BITFIELD k OVERFLOW SAT INCRBY u63 0 9223372036854775757 \
             INCRBY u63 0 -9223372036854775757"
        );
        assert_eq!(text(&expire(b"k", Nanos::new(1))), "PEXPIRE k 2001");
    }

    #[test]
    fn no_step_overflows_for_the_greatest_tolerance_and_cost() {
        let greatest = Nanos::new(1 << 62);
        take(b"k", greatest, greatest, Timestamp::MAX);
        give_back(b"k", greatest, Timestamp::MAX);
        assert_eq!(
            text(&expire(b"k", greatest)),
            format!("PEXPIRE k {}", (1_u64 << 62).div_ceil(1_000_000) + 2000)
        );
    }

    #[test]
    fn an_unexpected_reply_is_no_finding() {
        let question = Question::Take(Nanos::new(1));
        for reply in [
            Value::Nil,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![Value::Int(-1), Value::Nil, Value::Nil, Value::Int(1)]),
        ] {
            assert_eq!(Found::parse(question, &reply, Timestamp::default()), None);
        }
    }
}
