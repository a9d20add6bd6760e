//! A fixed window as one `BITFIELD`, checked and taken from at once, like GCRA's TAT.
//!
//! A bucket is two numbers: the window's end in microseconds since the Unix epoch, times four
//! (`u63` at bit 0), and the units that are used (`u63` at bit 62). The two fields overlap in bit
//! 62: it is the lowest bit of the one and the highest of the other, and is zero at rest. Through
//! it the end tells the units whether they still count. With M the greatest integer of 63 bits, P
//! the microseconds until the window that would begin now ends, c the cost and n the count:
//!
//! ```text
//! SAT  INCRBY u63 0  -4 now        -> 4 d, with d the time left; 0 when the window has ended
//! FAIL INCRBY u63 0  -1            -> odd when d > 0: bit 62 is set; nil and unset otherwise
//! SAT  INCRBY u63 62 -2^62         -> the units used when d > 0, else 0; bit 62 is unset
//! FAIL INCRBY u63 0  2             -> 4 d, or 2 for a window that has ended
//! FAIL INCRBY u63 0  M - 3         -> M - 1 for one that has ended; too much for any other: nil
//! FAIL INCRBY u63 0  4 P - (M - 1) -> 4 P for one that has ended; below zero for any other: nil
//! FAIL INCRBY u63 0  4 now         -> 4 times the end of the window in force
//! FAIL INCRBY u63 62 M - n + c     -> overflows, so nil, when used + c > n
//! FAIL INCRBY u63 62 -(M - n)      -> takes the bias off again; nil when denied
//! ```
//!
//! `OVERFLOW FAIL` changes nothing where it says nil, so the third and fourth pairs of steps are
//! each an `if`. A window of another definition, which another quota has left, counts until its own
//! end.

use weir_limit::time::{Nanos, Timestamp};
use weir_limit::{CLOCK_BOUND, FixedWindow, Quota, Transaction, window_end};

use super::gcra::{FAIL, MAX_TAT, ReadBy, SATURATE, signed};
use super::resp::{Cursor, Request};
use super::window::{Repair, WindowReply, expire_in};

/// Bit 62 as the highest of the units' field.
const FLAG: i64 = 1 << 62;

const NANOS_PER_MICRO: u64 = 1_000;

/// The greatest difference between the clocks of two gateways: one ahead, the other behind.
const CLOCK_SPREAD: Nanos = Nanos::new(2 * CLOCK_BOUND.get());

const END: i64 = 0;
const USED: i64 = 62;

pub(super) fn take(request: &mut Request, key: &[u8], transaction: &Transaction, now: Timestamp) {
    let quota = &transaction.quota;
    let period = micros(window_end(quota, now)) - micros(now);
    let bias = MAX_TAT - signed(quota.burst().get());
    request.command(46, "BITFIELD").word(key);
    enter(request, period, now);
    increase(request, USED, bias + signed(transaction.cost.get()));
    increase(request, USED, -bias);
}

/// Gives units back, at most what is used in the window in force. One that has ended stays so. A
/// window that is known to end then is deleted with its last unit, so that the next unit begins
/// another:
///
/// ```text
/// FAIL INCRBY u63 62 2^62 - 1     -> bit 62 is set, so the end is odd, when units are left
/// FAIL INCRBY u63 0  M - 4 end    -> M when none is left; nil for this window with units and all
///                                    that end later; less than M for those that end sooner
/// FAIL INCRBY u63 0  -M           -> 0 when none is left; nil for all others
/// FAIL INCRBY u63 0  4 end - M    -> those that end sooner are as before; nil for all others
/// FAIL INCRBY u63 62 -(2^62 - 1)  -> the units; bit 62 is unset
/// ```
///
/// A window that has ended for this gateway may be in force for another that is behind, and must
/// not be emptied for it. So it is asked on a clock that is behind all others; a unit more in a
/// window that has ended for all does no harm.
pub(super) fn refund(
    request: &mut Request,
    key: &[u8],
    (transaction, end): (&Transaction, Timestamp),
    now: Timestamp,
) {
    request.command(66, "BITFIELD").word(key);
    let behind = now.as_nanos().saturating_sub(CLOCK_SPREAD.get());
    enter(request, 0, Timestamp::from_nanos(behind));
    request.words(SATURATE);
    increase(request, USED, -signed(transaction.cost.get()));
    let beyond = MAX_TAT - 4 * micros(end);
    increase(request.words(FAIL), USED, FLAG - 1);
    for by in [beyond, -MAX_TAT, -beyond] {
        increase(request, END, by);
    }
    increase(request, USED, 1 - FLAG);
}

/// The steps that bring the window in force about. A new one ends `period` microseconds from now.
fn enter(request: &mut Request, period: i64, now: Timestamp) {
    let now = 4 * micros(now);
    increase(request.words(SATURATE), END, -now);
    increase(request.words(FAIL), END, -1);
    increase(request.words(SATURATE), USED, -FLAG);
    request.words(FAIL);
    for by in [2, MAX_TAT - 3, 4 * period - (MAX_TAT - 1), now] {
        increase(request, END, by);
    }
}

/// Reads both numbers. It creates no key.
pub(super) fn read(request: &mut Request, key: &[u8], by: ReadBy) {
    request.command(8, by.name()).word(key);
    for field in [END, USED] {
        request.word(b"GET").word(b"u63").int(field);
    }
}

/// Lets the window end no later than this: adding what saturates and subtracting it again is the
/// lesser of the two ends.
pub(super) fn cut(request: &mut Request, key: &[u8], end: Timestamp) {
    let above = MAX_TAT - 4 * micros(end);
    request.command(12, "BITFIELD").word(key);
    increase(request.words(SATURATE), END, above);
    increase(request, END, -above);
}

/// Lets the bucket expire when its window has ended on any clock within the bound: a gateway that
/// is ahead may have begun the next window already.
pub(super) fn expire(request: &mut Request, key: &[u8], quota: &Quota, now: Timestamp) {
    let end = window_end(quota, now + CLOCK_SPREAD);
    expire_in(request, key, end.since(now));
}

pub(super) fn parse_take(
    replies: &mut Cursor<'_>,
    transaction: &Transaction,
    now: Timestamp,
) -> Option<WindowReply> {
    let [left, _, used, _, _, _, _, taken, _] = replies.ints()?;
    replies.int()?;
    let before = micros(now).checked_add(left? / 4)?;
    let found = found(before, used?, transaction, now)?;
    Some(WindowReply {
        written: taken.is_some(),
        end: match left? {
            0 => window_end(&transaction.quota, now),
            _ => found.end,
        },
        ..found
    })
}

pub(super) fn parse_read(
    replies: &mut Cursor<'_>,
    transaction: &Transaction,
    now: Timestamp,
) -> Option<WindowReply> {
    let [end, used] = replies.ints()?;
    found(end? / 4, used?, transaction, now)
}

fn found(end: i64, used: i64, transaction: &Transaction, now: Timestamp) -> Option<WindowReply> {
    let micros = u64::try_from(end).ok()?;
    let window = FixedWindow {
        end: Timestamp::from_nanos(micros.saturating_mul(NANOS_PER_MICRO)),
        used: u64::try_from(used).ok()?,
    };
    let repair = if window.is_foreign(&transaction.quota, now) {
        Repair::Cut(window_end(&transaction.quota, now))
    } else {
        Repair::Nothing
    };
    Some(WindowReply {
        usage: window.usage(transaction, now),
        repair,
        end: window.end,
        ..WindowReply::default()
    })
}

/// The end of the window that was read.
pub(super) fn parse_end(replies: &mut Cursor<'_>) -> Option<Timestamp> {
    let [end, _] = replies.ints()?;
    let micros = u64::try_from(end? / 4).ok()?;
    Some(Timestamp::from_nanos(
        micros.saturating_mul(NANOS_PER_MICRO),
    ))
}

fn micros(time: Timestamp) -> i64 {
    signed(time.as_nanos() / NANOS_PER_MICRO)
}

fn increase(request: &mut Request, field: i64, by: i64) {
    request.word(b"INCRBY").word(b"u63").int(field).int(by);
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::time::Duration;

    use weir_limit::{Algorithm, Alignment};

    use super::super::resp::text;
    use super::*;

    const NOW: Timestamp = Timestamp::from_nanos(1_000_000_000_000_000);
    const TEST: &str = "OVERFLOW FAIL INCRBY u63 0 -1 \
        OVERFLOW SAT INCRBY u63 62 -4611686018427387904 \
        OVERFLOW FAIL INCRBY u63 0 2 INCRBY u63 0 9223372036854775804";

    fn three_of_ten() -> Transaction {
        let windows = Algorithm::FixedWindow(Alignment::Period);
        let quota = Quota::windowed(windows, 10, Duration::from_secs(60)).unwrap();
        Transaction::new("L:a".into(), quota, NonZeroU64::new(3).unwrap())
    }

    #[test]
    fn a_take_is_one_bitfield_of_nine_steps() {
        // The window that begins at 999960 s ends in 20 s.
        assert_eq!(
            text(|request| take(request, b"k", &three_of_ten(), NOW)),
            format!(
                "BITFIELD k OVERFLOW SAT INCRBY u63 0 -4000000000000 {TEST} \
                 INCRBY u63 0 -9223372036774775806 INCRBY u63 0 4000000000000 INCRBY u63 62 9223372036854775800 INCRBY u63 62 -9223372036854775797"
            )
        );
    }

    #[test]
    fn a_refund_opens_no_window_and_takes_off_no_more_than_there_is() {
        // It is made by a clock that is four seconds behind.
        assert_eq!(
            text(|request| refund(request, b"k", (&three_of_ten(), NOW), NOW)),
            format!(
                "BITFIELD k OVERFLOW SAT INCRBY u63 0 -3999984000000 {TEST} \
                 INCRBY u63 0 -9223372036854775806 INCRBY u63 0 3999984000000 OVERFLOW SAT INCRBY u63 62 -3 \
                 OVERFLOW FAIL INCRBY u63 62 4611686018427387903 INCRBY u63 0 9223368036854775807 \
                 INCRBY u63 0 -9223372036854775807 INCRBY u63 0 -9223368036854775807 \
                 INCRBY u63 62 -4611686018427387903"
            )
        );
    }

    #[test]
    fn the_others_are_as_simple_as_they_can_be() {
        assert_eq!(
            text(|request| read(request, b"k", ReadBy::Bitfield)),
            "BITFIELD k GET u63 0 GET u63 62"
        );
        assert_eq!(
            text(|request| cut(request, b"k", NOW)),
            "BITFIELD k OVERFLOW SAT INCRBY u63 0 9223368036854775807 \
             INCRBY u63 0 -9223368036854775807"
        );
        assert_eq!(
            text(|request| expire(request, b"k", &three_of_ten().quota, NOW)),
            "PEXPIRE k 22000"
        );
    }

    #[test]
    fn replies_to_a_take_that_was_refused_are_read_to_their_end() {
        let reply = b"*9\r\n:80000000\r\n:79999999\r\n:9\r\n:80000000\r\n$-1\r\n$-1\r\n\
            :4000080000000\r\n$-1\r\n$-1\r\n:1\r\n:77\r\n";
        let replies = super::super::resp::Replies::new(reply.to_vec());
        let mut cursor = replies.iter();
        let found = parse_take(&mut cursor, &three_of_ten(), NOW).unwrap();
        assert_eq!((found.usage.used, found.written), (9, false));
        assert_eq!(found.repair, Repair::Nothing);
        assert_eq!(cursor.int(), Some(77));
    }
}
