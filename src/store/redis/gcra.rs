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
//!
//! Before those steps the note of when the bucket expires in Redis (see [`super::expiry`]) is read, or
//! made anew when the expiry is: it is in the 33 bits that follow the TAT.

use super::expiry::{Expiry, Note, lifetime};
use super::resp::{Cursor, Request};
use crate::limit::{CLOCK_TOLERANCE, Mode, Transaction};
use crate::time::{Nanos, Timestamp};

/// M: the greatest integer of 63 bits.
pub(super) const GREATEST: i64 = i64::MAX;

/// The greatest tolerance that the algorithm tells apart from a debt.
///
/// A debt of M - tau or more would survive the third step, and a debt may be as great as the
/// tolerance and another gateway's clock tolerance together. So the two must not exceed M: a
/// bucket that takes 146 years to fill counts as one that takes a second less.
const GREATEST_TOLERANCE: u64 = (1 << 62) - CLOCK_TOLERANCE.get();

/// Words as Redis reads them: each with its length before it.
const GET_NOTE: &[u8] = b"$3\r\nGET\r\n$3\r\nu33\r\n$2\r\n63\r\n";
const SET_NOTE: &[u8] = b"$3\r\nSET\r\n$3\r\nu33\r\n$2\r\n63\r\n";
const GET_TAT: &[u8] = b"$3\r\nGET\r\n$3\r\nu63\r\n$1\r\n0\r\n";
pub(super) const SATURATE: &[u8] = b"$8\r\nOVERFLOW\r\n$3\r\nSAT\r\n";
pub(super) const FAIL: &[u8] = b"$8\r\nOVERFLOW\r\n$4\r\nFAIL\r\n";
const INCREASE_TAT: &[u8] = b"$6\r\nINCRBY\r\n$3\r\nu63\r\n$1\r\n0\r\n";

/// Checks the bucket and takes the cost from it, atomically.
pub(super) fn take(
    request: &mut Request,
    key: &[u8],
    (increment, tolerance): (Nanos, Nanos),
    expiry: Expiry,
    now: Timestamp,
) {
    let bias = GREATEST - bounded(tolerance);
    let at = signed(now.as_nanos());
    match expiry {
        Expiry::Expected => {
            request.begin(b"*25\r\n$8\r\nBITFIELD\r\n").word(key);
            request.words(GET_NOTE);
        }
        Expiry::Set => {
            request.begin(b"*26\r\n$8\r\nBITFIELD\r\n").word(key);
            set_note(request, tolerance, now);
        }
    }
    request.words(SATURATE);
    increase(request, [-at]);
    request.words(FAIL);
    increase(request, [bias + bounded(increment), -bias, at]);
    if expiry == Expiry::Set {
        expire(request, key, tolerance);
    }
}

/// Reads the TAT. A read by `BITFIELD` creates no key, and unlike `BITFIELD_RO` is as old as the
/// command itself.
pub(super) fn read(request: &mut Request, key: &[u8]) {
    let request = request.begin(b"*5\r\n$8\r\nBITFIELD\r\n");
    request.word(key).words(GET_TAT);
}

/// Gives the increment back, at most what is owed. It may create the key, so it sets the expiry.
pub(super) fn refund(
    request: &mut Request,
    key: &[u8],
    (increment, tolerance): (Nanos, Nanos),
    now: Timestamp,
) {
    let at = signed(now.as_nanos());
    request.begin(b"*20\r\n$8\r\nBITFIELD\r\n").word(key);
    set_note(request, tolerance, now);
    request.words(SATURATE);
    increase(request, [-at, -signed(increment.get()), at]);
    expire(request, key, tolerance);
}

/// Gives the increment back unless the TAT is later than `latest`: then the first step overflows, and
/// the others would fall below zero. The last undoes the first for a bucket that is gone.
pub(super) fn refund_last(
    request: &mut Request,
    key: &[u8],
    (increment, tolerance): (Nanos, Nanos),
    (latest, now): (Timestamp, Timestamp),
) {
    let above = GREATEST - signed(latest.as_nanos());
    let both = above.saturating_add(signed(increment.get()));
    request.begin(b"*20\r\n$8\r\nBITFIELD\r\n").word(key);
    set_note(request, tolerance, now);
    request.words(FAIL);
    increase(request, [above, -both, -above]);
    expire(request, key, tolerance);
}

/// Brings the TAT down to what this tolerance can have caused, if it is beyond: adding what
/// saturates there and subtracting it again is the minimum of the two, atomically. It may create
/// the key, so it sets the expiry.
pub(super) fn clamp(request: &mut Request, key: &[u8], tolerance: Nanos, now: Timestamp) {
    let above = GREATEST - signed((now + tolerance).as_nanos());
    request.begin(b"*16\r\n$8\r\nBITFIELD\r\n").word(key);
    set_note(request, tolerance, now);
    request.words(SATURATE);
    increase(request, [above, -above]);
    expire(request, key, tolerance);
}

/// Sets the expiry and notes it. It may create the key, as a full bucket that expires.
pub(super) fn renew(request: &mut Request, key: &[u8], tolerance: Nanos, now: Timestamp) {
    request.begin(b"*6\r\n$8\r\nBITFIELD\r\n").word(key);
    set_note(request, tolerance, now);
    expire(request, key, tolerance);
}

/// Makes the bucket full.
pub(super) fn delete(request: &mut Request, key: &[u8]) {
    request.begin(b"*2\r\n$3\r\nDEL\r\n").word(key);
}

/// Asks the server what it is, and keeps to RESP2.
pub(super) fn hello(request: &mut Request) {
    request.begin(b"*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n");
}

/// Asks what time the server has.
pub(super) fn time(request: &mut Request) {
    request.begin(b"*1\r\n$4\r\nTIME\r\n");
}

/// Lets the bucket expire some time after it is full, and no sooner.
fn expire(request: &mut Request, key: &[u8], tolerance: Nanos) {
    let lifetime = signed(lifetime(tolerance).ceil_millis());
    let request = request.begin(b"*3\r\n$7\r\nPEXPIRE\r\n");
    request.word(key).int(lifetime);
}

fn set_note(request: &mut Request, tolerance: Nanos, now: Timestamp) {
    let note = Note::of_expiry_at(now, tolerance);
    request.words(SET_NOTE).int(signed(note.second()));
}

fn increase<const N: usize>(request: &mut Request, steps: [i64; N]) {
    for by in steps {
        request.words(INCREASE_TAT).int(by);
    }
}

fn bounded(span: Nanos) -> i64 {
    signed(span.get().min(GREATEST_TOLERANCE))
}

pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(GREATEST)
}

/// What is asked of Redis about a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GcraCommand {
    /// Nothing: the bucket stays unread.
    Nothing,
    /// What its TAT is.
    Read,
    /// To take this increment if it fits.
    Take(Nanos, Expiry),
}

impl GcraCommand {
    pub(super) fn of(transaction: &Transaction, expiry: Expiry) -> Self {
        match (
            transaction.mode,
            transaction.quota.increment(transaction.cost),
        ) {
            (Mode::AllowOnly, _) => Self::Nothing,
            (Mode::CheckAndSpend | Mode::SpendOnly, Some(increment)) => {
                Self::Take(increment, expiry)
            }
            // What not even a full bucket holds is never taken.
            _ => Self::Read,
        }
    }

    /// Adds its commands.
    pub(super) fn add(
        self,
        request: &mut Request,
        key: &[u8],
        transaction: &Transaction,
        now: Timestamp,
    ) {
        match self {
            Self::Nothing => {}
            Self::Read => read(request, key),
            Self::Take(increment, expiry) => {
                take(
                    request,
                    key,
                    (increment, transaction.quota.tolerance()),
                    expiry,
                    now,
                );
            }
        }
    }
}

/// What Redis answers about a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GcraReply {
    pub(super) debt: Nanos,
    /// Whether the cost fitted and is taken.
    pub(super) taken: bool,
    /// When the bucket expires in Redis, as it was noted before.
    pub(super) note: Note,
}

impl GcraReply {
    /// Reads the reply of `BITFIELD` to a command; none when it is not such a reply.
    pub(super) fn read(
        command: GcraCommand,
        replies: &mut Cursor<'_>,
        now: Timestamp,
    ) -> Option<Self> {
        match command {
            GcraCommand::Nothing => Some(Self::default()),
            GcraCommand::Read => {
                let [tat] = replies.ints()?;
                Some(Self {
                    debt: Timestamp::from_nanos(u64::try_from(tat?).ok()?).since(now),
                    ..Self::default()
                })
            }
            GcraCommand::Take(_, expiry) => {
                let [note, debt, taken, _, _] = replies.ints()?;
                if expiry == Expiry::Set {
                    replies.int()?;
                }
                Some(Self {
                    debt: Nanos::new(u64::try_from(debt?).ok()?),
                    taken: taken.is_some(),
                    note: Note::new(u64::try_from(note?).ok()?),
                })
            }
        }
    }

    /// The debt by which to decide.
    ///
    /// Arithmetic and Redis differ only about a tolerance beyond [`GREATEST_TOLERANCE`]; then
    /// Redis, which did not take the cost, is right.
    pub(super) fn deciding_debt(self, command: GcraCommand, transaction: &Transaction) -> Nanos {
        let refused = matches!(command, GcraCommand::Take(..)) && !self.taken;
        if refused && transaction.fitting_increment(self.debt).is_some() {
            transaction.quota.tolerance()
        } else {
            self.debt
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::resp::{Replies, text};
    use super::*;

    const COSTS: (Nanos, Nanos) = (Nanos::new(7), Nanos::new(100));
    const NOW: Timestamp = Timestamp::from_nanos(2_000_000_050);

    #[test]
    fn a_take_is_one_bitfield_that_reads_the_note_and_does_four_steps() {
        assert_eq!(
            text(|request| take(request, b"k", COSTS, Expiry::Expected, NOW)),
            "BITFIELD k GET u33 63 OVERFLOW SAT INCRBY u63 0 -2000000050 \
             OVERFLOW FAIL INCRBY u63 0 9223372036854775714 \
             INCRBY u63 0 -9223372036854775707 INCRBY u63 0 2000000050"
        );
    }

    #[test]
    fn a_take_that_sets_the_expiry_notes_it() {
        assert_eq!(
            text(|request| take(request, b"k", COSTS, Expiry::Set, NOW)),
            "BITFIELD k SET u33 63 10 OVERFLOW SAT INCRBY u63 0 -2000000050 \
             OVERFLOW FAIL INCRBY u63 0 9223372036854775714 \
             INCRBY u63 0 -9223372036854775707 INCRBY u63 0 2000000050\n\
             PEXPIRE k 8001"
        );
    }

    #[test]
    fn refund_clamp_and_renewal_read_as_designed() {
        assert_eq!(
            text(|request| refund(request, b"k", COSTS, NOW)),
            "BITFIELD k SET u33 63 10 OVERFLOW SAT INCRBY u63 0 -2000000050 \
             INCRBY u63 0 -7 INCRBY u63 0 2000000050\nPEXPIRE k 8001"
        );
        let latest = Timestamp::from_nanos(2_000_000_060);
        assert_eq!(
            text(|request| refund_last(request, b"k", COSTS, (latest, NOW))),
            "BITFIELD k SET u33 63 10 OVERFLOW FAIL INCRBY u63 0 9223372034854775747 \
             INCRBY u63 0 -9223372034854775754 INCRBY u63 0 -9223372034854775747\n\
             PEXPIRE k 8001"
        );
        assert_eq!(
            text(|request| clamp(request, b"k", COSTS.1, NOW)),
            "BITFIELD k SET u33 63 10 OVERFLOW SAT INCRBY u63 0 9223372034854775657 \
             INCRBY u63 0 -9223372034854775657\nPEXPIRE k 8001"
        );
        assert_eq!(
            text(|request| renew(request, b"k", COSTS.1, NOW)),
            "BITFIELD k SET u33 63 10\nPEXPIRE k 8001"
        );
    }

    #[test]
    fn the_others_are_as_simple_as_they_can_be() {
        assert_eq!(text(|request| read(request, b"k")), "BITFIELD k GET u63 0");
        assert_eq!(text(|request| delete(request, b"k")), "DEL k");
        assert_eq!(text(hello), "HELLO 2");
        assert_eq!(text(time), "TIME");
    }

    #[test]
    fn no_step_overflows_for_the_greatest_tolerance_and_cost() {
        let greatest = Nanos::new(1 << 62);
        let costs = (greatest, greatest);
        let commands = text(|request| take(request, b"k", costs, Expiry::Set, Timestamp::MAX));
        let lifetime = (1_u64 << 62).div_ceil(1_000_000) + 63_000;
        assert!(
            commands.ends_with(&format!("PEXPIRE k {lifetime}")),
            "{commands}"
        );
        text(|request| refund(request, b"k", costs, Timestamp::MAX));
        text(|request| clamp(request, b"k", greatest, Timestamp::MAX));
    }

    #[test]
    fn a_reply_is_read_to_its_end() {
        let command = GcraCommand::Take(Nanos::new(1), Expiry::Set);
        let reply = b"*5\r\n:0\r\n:5\r\n$-1\r\n$-1\r\n:55\r\n:1\r\n:9\r\n".to_vec();
        let replies = Replies::new(reply);
        let mut cursor = replies.iter();
        let found = GcraReply::read(command, &mut cursor, NOW);
        let expected = GcraReply {
            debt: Nanos::new(5),
            taken: false,
            note: Note::default(),
        };
        assert_eq!(found, Some(expected));
        assert_eq!(cursor.int(), Some(9));
    }

    #[test]
    fn an_unexpected_reply_is_no_finding() {
        let command = GcraCommand::Take(Nanos::new(1), Expiry::Expected);
        for reply in [
            b"$-1\r\n".as_slice(),
            b"*1\r\n:1\r\n",
            b"*5\r\n:1\r\n:-1\r\n$-1\r\n$-1\r\n:1\r\n",
            b"-OOM command not allowed\r\n",
        ] {
            let replies = Replies::new(reply.to_vec());
            assert_eq!(GcraReply::read(command, &mut replies.iter(), NOW), None);
        }
    }
}
