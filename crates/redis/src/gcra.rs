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
//! The levels of a bucket below the first (see `weir_limit::levels`) follow in the same value,
//! 128 bits each: the TAT that the level above had, and its own. They are written only where
//! definitions of a limit differ, so a bucket is as long as it was for all others.
//!
//! Before those steps the note of when the bucket expires in Redis (see [`super::expiry`]) is read,
//! or made anew when the expiry is: it is in the 33 bits that follow the TAT.

use std::ops::Range;

use redis::Value;
use smallvec::SmallVec;
use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{CLOCK_TOLERANCE, LEVELS, Level, LevelChoice, Mode, Transaction};

use super::expiry::{Expiry, Note, lifetime};
use super::resp::{Cursor, Request};

/// M: the greatest integer of 63 bits.
pub(super) const MAX_TAT: i64 = i64::MAX;

/// The greatest tolerance that the algorithm tells apart from a debt.
///
/// A debt of M - tau or more would survive the third step, and a debt may be as great as the
/// tolerance and another gateway's clock tolerance together. So the two must not exceed M: a
/// bucket that takes 146 years to fill counts as one that takes a second less.
const MAX_TOLERANCE: u64 = (1 << 62) - CLOCK_TOLERANCE.get();

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
    let bias = MAX_TAT - bounded(tolerance);
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
    // The same digits begin and end it.
    let mut digits = itoa::Buffer::new();
    let minus_now = digits.format(-at).as_bytes();
    let now_again = minus_now.strip_prefix(b"-").unwrap_or(minus_now);
    request.words(SATURATE).words(INCREASE_TAT).word(minus_now);
    request.words(FAIL);
    increase(request, [bias + bounded(increment), -bias]);
    request.words(INCREASE_TAT).word(now_again);
    if expiry == Expiry::Set {
        expire(request, key, tolerance);
    }
}

/// The command that reads integers and creates no key. `BITFIELD` is refused when memory is full,
/// though it only reads; `BITFIELD_RO` is not, but Redis before 6.0 does not know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ReadBy {
    #[default]
    Bitfield,
    BitfieldRo,
}

impl ReadBy {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Bitfield => "BITFIELD",
            Self::BitfieldRo => "BITFIELD_RO",
        }
    }
}

/// Reads the TAT.
pub(super) fn read(request: &mut Request, key: &[u8], by: ReadBy) {
    let request = match by {
        ReadBy::Bitfield => request.begin(b"*5\r\n$8\r\nBITFIELD\r\n"),
        ReadBy::BitfieldRo => request.begin(b"*5\r\n$11\r\nBITFIELD_RO\r\n"),
    };
    request.word(key).words(GET_TAT);
}

/// Refunds the increment, at most what is owed. It may create the key, so it sets the expiry.
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

/// Gives the increment back unless the TAT is later than `latest`: then the first step overflows,
/// and the others would fall below zero. The last undoes the first for a bucket that is gone. The
/// expiry stays: another definition's debt may need a longer one than this one's.
pub(super) fn refund_last(request: &mut Request, key: &[u8], increment: Nanos, latest: Timestamp) {
    let above = MAX_TAT - signed(latest.as_nanos());
    let both = above.saturating_add(signed(increment.get()));
    request.begin(b"*19\r\n$8\r\nBITFIELD\r\n").word(key);
    request.words(GET_NOTE).words(FAIL);
    increase(request, [above, -both, -above]);
}

/// Whether the reply to [`refund_last`] is of a bucket that was gone, and is there again.
pub(super) fn never_expires(reply: &Value) -> bool {
    matches!(reply, Value::Array(numbers) if numbers.first() == Some(&Value::Int(0)))
}

/// Brings the TAT down to what this tolerance can have caused, if it is beyond: adding what
/// saturates there and subtracting it again is the minimum of the two, atomically. It may create
/// the key, so it sets the expiry.
pub(super) fn clamp(request: &mut Request, key: &[u8], tolerance: Nanos, now: Timestamp) {
    let above = MAX_TAT - signed((now + tolerance).as_nanos());
    request.begin(b"*16\r\n$8\r\nBITFIELD\r\n").word(key);
    set_note(request, tolerance, now);
    request.words(SATURATE);
    increase(request, [above, -above]);
    expire(request, key, tolerance);
}

/// The debt before a refund, by the reply to [`refund`].
pub(super) fn parse_refund(reply: &Value) -> Option<Nanos> {
    match reply {
        Value::Array(numbers) => match numbers.as_slice() {
            [_, Value::Int(debt), ..] => Some(Nanos::new(u64::try_from(*debt).ok()?)),
            _ => None,
        },
        _ => None,
    }
}

pub(super) fn read_levels(request: &mut Request, key: &[u8]) {
    let both = |index| [Step::Get(Field::above(index)), Step::Get(Field::tat(index))];
    let steps: SmallVec<[Step; 16]> = (1..LEVELS).flat_map(both).collect();
    bitfield(request, key, &steps);
}

pub(super) fn parse_levels(reply: &Value) -> Option<[Level; LEVELS - 1]> {
    let Value::Array(numbers) = reply else {
        return None;
    };
    let mut numbers = numbers.iter().map(|number| match number {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    });
    let mut levels = [Level::default(); LEVELS - 1];
    for level in &mut levels {
        level.above = Timestamp::from_nanos(numbers.next()??);
        level.tat = Timestamp::from_nanos(numbers.next()??);
    }
    Some(levels)
}

/// Checks a level below the first and takes the increment from it, atomically, and from those above
/// whether it fits or not.
pub(super) fn take_level(
    request: &mut Request,
    key: &[u8],
    (increment, tolerance): (Nanos, Nanos),
    level: &LevelChoice,
    now: Timestamp,
) {
    let own = Field::tat(level.index);
    let mut steps: SmallVec<[Step; 16]> = SmallVec::from_slice(&[Step::Saturate]);
    let above = (0..level.index).map(|above| Step::Add(Field::tat(above), signed(increment.get())));
    steps.extend(above);
    steps.extend(begin_steps(level, increment, now));
    let (bias, at) = (MAX_TAT - bounded(tolerance), signed(now.as_nanos()));
    steps.extend([Step::Add(own, -at), Step::Fail]);
    steps.extend([bias + bounded(increment), -bias, at].map(|by| Step::Add(own, by)));
    bitfield(request, key, &steps);
}

/// The debt in the reply to [`take_level`], and whether the increment was taken.
pub(super) fn parse_take_level(reply: &Value) -> Option<(Nanos, bool)> {
    let Value::Array(numbers) = reply else {
        return None;
    };
    // The last step takes a bias off, and the last two are changes that depend on the one before.
    let [.., Value::Int(debt), taken, _, _] = numbers.as_slice() else {
        return None;
    };
    let debt = Nanos::new(u64::try_from(*debt).ok()?);
    Some((debt, matches!(taken, Value::Int(_))))
}

pub(super) fn begin_level(request: &mut Request, key: &[u8], level: &LevelChoice, now: Timestamp) {
    let mut steps: SmallVec<[Step; 16]> = SmallVec::from_slice(&[Step::Saturate]);
    steps.extend(begin_steps(level, Nanos::ZERO, now));
    bitfield(request, key, &steps);
}

/// Gives the increment back to the first level and as many below it, each at most what it is owed.
pub(super) fn refund_levels(
    request: &mut Request,
    key: &[u8],
    increment: Nanos,
    indices: Range<usize>,
    now: Timestamp,
) {
    let at = signed(now.as_nanos());
    let of = |index| [-at, -signed(increment.get()), at].map(|by| Step::Add(Field::tat(index), by));
    let mut steps: SmallVec<[Step; 16]> = SmallVec::from_slice(&[Step::Saturate]);
    steps.extend(indices.flat_map(of));
    bitfield(request, key, &steps);
}

/// Notes what the level above is, and makes one that begins empty. It gets the greater of two
/// moments, by additions that saturate.
fn begin_steps(
    level: &LevelChoice,
    taken: Nanos,
    now: Timestamp,
) -> impl Iterator<Item = Step> + use<> {
    let above = level.level_after(taken, now).above.as_nanos();
    let empty = signed(level.level_after(Nanos::ZERO, now).tat.as_nanos());
    let own = Field::tat(level.index);
    let empties = [-empty, empty].map(|by| Step::Add(own, by));
    let set = Step::Set(Field::above(level.index), above);
    [set].into_iter().chain(empties.into_iter().filter({
        let begins = level.begins;
        move |_| begins
    }))
}

/// Where a number of 63 bits is in a bucket.
#[derive(Clone, Copy, Debug)]
struct Field(usize);

impl Field {
    fn above(index: usize) -> Self {
        Self(96 + 128 * (index - 1))
    }

    fn tat(index: usize) -> Self {
        match index {
            0 => Self(0),
            _ => Self(Self::above(index).0 + 64),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Get(Field),
    Set(Field, u64),
    Add(Field, i64),
    Saturate,
    Fail,
}

fn bitfield(request: &mut Request, key: &[u8], steps: &[Step]) {
    let words = |step: &Step| match step {
        Step::Get(_) => 3,
        Step::Set(..) | Step::Add(..) => 4,
        Step::Saturate | Step::Fail => 2,
    };
    let words: usize = steps.iter().map(words).sum();
    request.command(2 + words, "BITFIELD").word(key);
    for step in steps {
        match *step {
            Step::Get(Field(at)) => request.word(b"GET").word(b"u63").int(at),
            Step::Set(Field(at), to) => request.word(b"SET").word(b"u63").int(at).int(to),
            Step::Add(Field(at), by) => request.word(b"INCRBY").word(b"u63").int(at).int(by),
            Step::Saturate => request.words(SATURATE),
            Step::Fail => request.words(FAIL),
        };
    }
}

/// Sets the expiry and notes it. It may create the key, as a full bucket that expires.
pub(super) fn renew(request: &mut Request, key: &[u8], tolerance: Nanos, now: Timestamp) {
    request.begin(b"*6\r\n$8\r\nBITFIELD\r\n").word(key);
    set_note(request, tolerance, now);
    expire(request, key, tolerance);
}

pub(super) fn delete(request: &mut Request, key: &[u8]) {
    request.begin(b"*2\r\n$3\r\nDEL\r\n").word(key);
}

/// Asks the server what it is, and keeps to RESP2.
pub(super) fn hello(request: &mut Request) {
    request.begin(b"*2\r\n$5\r\nHELLO\r\n$1\r\n2\r\n");
}

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
    signed(span.get().min(MAX_TOLERANCE))
}

pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(MAX_TAT)
}

/// The command of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GcraCommand {
    /// The bucket stays unread.
    Nothing,
    /// Reads the TAT.
    Read(ReadBy),
    /// Takes this increment if it fits.
    Take(Nanos, Expiry),
}

impl GcraCommand {
    pub(super) fn new(transaction: &Transaction, expiry: Expiry, by: ReadBy) -> Self {
        match (
            transaction.mode,
            transaction.quota.increment(transaction.cost),
        ) {
            (Mode::AllowOnly, _) => Self::Nothing,
            (Mode::CheckAndSpend | Mode::SpendOnly, Some(increment)) => {
                Self::Take(increment, expiry)
            }
            // A cost above a full bucket is never taken.
            _ => Self::Read(by),
        }
    }

    pub(super) fn add(
        self,
        request: &mut Request,
        key: &[u8],
        transaction: &Transaction,
        now: Timestamp,
    ) {
        match self {
            Self::Nothing => {}
            Self::Read(by) => read(request, key, by),
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

/// The reply about a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GcraReply {
    /// The debt of the level that counts.
    pub(super) debt: Nanos,
    /// Whether the cost fitted and is taken.
    pub(super) taken: bool,
    /// When the bucket expires in Redis, as it was noted before.
    pub(super) note: Note,
    /// The debt of the first level: `debt`, unless a deeper level counts.
    pub(super) first: Nanos,
    /// Which level counts.
    pub(super) level: usize,
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
            GcraCommand::Read(_) => {
                let [tat] = replies.ints()?;
                let debt = Timestamp::from_nanos(u64::try_from(tat?).ok()?).since(now);
                Some(Self {
                    debt,
                    first: debt,
                    ..Self::default()
                })
            }
            GcraCommand::Take(_, expiry) => {
                replies.array(5)?;
                let (note, debt, taken) = (replies.int()?, replies.int()?, replies.has_int()?);
                // What the bias is taken off by, and the new TAT, say nothing more.
                let _ = (replies.has_int()?, replies.has_int()?);
                if expiry == Expiry::Set {
                    replies.int()?;
                }
                let debt = Nanos::new(u64::try_from(debt).ok()?);
                Some(Self {
                    debt,
                    taken,
                    note: Note::new(u64::try_from(note).ok()?),
                    first: debt,
                    level: 0,
                })
            }
        }
    }

    /// The debt by which to decide.
    ///
    /// Arithmetic and Redis differ only about a tolerance beyond [`MAX_TOLERANCE`]; then
    /// Redis, which did not take the cost, is right.
    pub(super) fn deciding_debt(self, command: GcraCommand, transaction: &Transaction) -> Nanos {
        // A level below the first is not taken from at all where another limit denies.
        let refused = matches!(command, GcraCommand::Take(..)) && !self.taken && self.level == 0;
        if refused && transaction.fitting_increment(self.debt).is_some() {
            transaction.quota.tolerance()
        } else {
            transaction.cut(self.debt).unwrap_or(self.debt)
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
            text(|request| refund_last(request, b"k", COSTS.0, latest)),
            "BITFIELD k GET u33 63 OVERFLOW FAIL INCRBY u63 0 9223372034854775747 \
             INCRBY u63 0 -9223372034854775754 INCRBY u63 0 -9223372034854775747"
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
    fn a_level_below_the_first_is_begun_checked_and_charged_to_those_above_at_once() {
        let level = LevelChoice {
            index: 2,
            debt: COSTS.1,
            above: Nanos::from_secs(9),
            begins: true,
            ..LevelChoice::first(Nanos::ZERO)
        };
        let begun = "SET u63 224 11000000000 INCRBY u63 288 -2000000150 INCRBY u63 288 2000000150";
        assert_eq!(
            text(|request| take_level(request, b"k", COSTS, &level, NOW)),
            format!(
                "BITFIELD k OVERFLOW SAT INCRBY u63 0 7 INCRBY u63 160 7 {begun} \
                 INCRBY u63 288 -2000000050 OVERFLOW FAIL INCRBY u63 288 9223372036854775714 \
                 INCRBY u63 288 -9223372036854775707 INCRBY u63 288 2000000050"
            )
        );
        assert_eq!(
            text(|request| begin_level(request, b"k", &level, NOW)),
            format!("BITFIELD k OVERFLOW SAT {begun}")
        );
        assert_eq!(
            text(|request| read_levels(request, b"k")),
            "BITFIELD k GET u63 96 GET u63 160 GET u63 224 GET u63 288 GET u63 352 GET u63 416"
        );
        assert_eq!(
            text(|request| refund_levels(request, b"k", COSTS.0, 1..2, NOW)),
            "BITFIELD k OVERFLOW SAT INCRBY u63 160 -2000000050 INCRBY u63 160 -7 \
             INCRBY u63 160 2000000050"
        );
    }

    #[test]
    fn the_others_are_as_simple_as_they_can_be() {
        for by in [ReadBy::Bitfield, ReadBy::BitfieldRo] {
            assert_eq!(
                text(|request| read(request, b"k", by)),
                format!("{} k GET u63 0", by.name())
            );
        }
        assert_eq!(text(|request| delete(request, b"k")), "DEL k");
        assert_eq!(text(hello), "HELLO 2");
        assert_eq!(text(time), "TIME");
    }

    #[test]
    fn no_step_overflows_for_the_greatest_tolerance_and_cost() {
        let greatest = Nanos::new(1 << 62);
        let costs = (greatest, greatest);
        let commands = text(|request| take(request, b"k", costs, Expiry::Set, Timestamp::MAX));
        let lifetime = (1_u64 << 62).div_ceil(1_000_000) + 603_000;
        assert!(
            commands.ends_with(&format!("PEXPIRE k {lifetime}")),
            "{commands}"
        );
        text(|request| refund(request, b"k", costs, Timestamp::MAX));
        text(|request| clamp(request, b"k", greatest, Timestamp::MAX));
        let level = LevelChoice {
            index: LEVELS - 1,
            debt: greatest,
            above: greatest,
            begins: true,
            ..LevelChoice::first(greatest)
        };
        text(|request| take_level(request, b"k", costs, &level, Timestamp::MAX));
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
            first: Nanos::new(5),
            ..GcraReply::default()
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
