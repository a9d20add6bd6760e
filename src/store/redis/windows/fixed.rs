//! A fixed window as one `BITFIELD`, checked and taken from at once, like GCRA's TAT.
//!
//! A bucket is two numbers: the window's end in microseconds since the Unix epoch, times four
//! (`u63` at bit 0), and the units that are used (`u63` at bit 62). The two fields overlap in bit 62:
//! it is the lowest bit of the one and the highest of the other, and is zero at rest. Through it the
//! end tells the units whether they still count. With M the greatest integer of 63 bits, P the
//! microseconds until the window that would begin now ends, c the cost and n the count:
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
//! each an `if`. A window of another definition, which another quota has left, counts until its own end.

use redis::{Cmd, Value};

use super::{Repair, WindowFound, expire_in};
use crate::limit::{CLOCK_TOLERANCE, FixedWindow, Quota, Transaction, window_end};
use crate::time::Timestamp;

/// What ends the keys of these buckets.
pub(super) const MARK: &str = "%f";

/// M: the greatest integer of 63 bits.
const GREATEST: i64 = i64::MAX;

/// Bit 62 as the highest of the units' field.
const FLAG: i64 = 1 << 62;

const NANOS_PER_MICRO: u64 = 1_000;

const END: &str = "0";
const USED: &str = "62";

const BITFIELD_BYTES: usize = 512;

/// Takes the cost if it fits.
pub(super) fn take(key: &[u8], one: &Transaction, now: Timestamp) -> Cmd {
    let quota = &one.quota;
    let period = micros(window_end(quota, now)) - micros(now);
    let mut command = begin(key, period, now);
    let bias = GREATEST - signed(quota.burst().get());
    increase(&mut command, USED, bias + signed(one.cost.get()));
    increase(&mut command, USED, -bias);
    command
}

/// Gives units back, at most what is used in the window in force. One that has ended stays so.
pub(in crate::store::redis) fn give_back(key: &[u8], one: &Transaction, now: Timestamp) -> Cmd {
    let mut command = begin(key, 0, now);
    overflow(&mut command, "SAT");
    increase(&mut command, USED, -signed(one.cost.get()));
    command
}

/// The steps that bring the window in force about. A new one ends `period` microseconds from now.
fn begin(key: &[u8], period: i64, now: Timestamp) -> Cmd {
    let now = 4 * micros(now);
    let mut command = Cmd::with_capacity(48, BITFIELD_BYTES + key.len());
    command.arg("BITFIELD").arg(key);
    overflow(&mut command, "SAT");
    increase(&mut command, END, -now);
    overflow(&mut command, "FAIL");
    increase(&mut command, END, -1);
    overflow(&mut command, "SAT");
    increase(&mut command, USED, -FLAG);
    overflow(&mut command, "FAIL");
    for by in [2, GREATEST - 3, 4 * period - (GREATEST - 1), now] {
        increase(&mut command, END, by);
    }
    command
}

/// Reads both numbers. It creates no key.
pub(super) fn read(key: &[u8]) -> Cmd {
    let mut command = Cmd::with_capacity(8, 96 + key.len());
    command.arg("BITFIELD").arg(key);
    for field in [END, USED] {
        command.arg("GET").arg("u63").arg(field);
    }
    command
}

/// Lets the window end no later than this: adding what saturates and subtracting it again is the
/// lesser of the two ends.
pub(in crate::store::redis) fn cut(key: &[u8], end: Timestamp) -> Cmd {
    let above = GREATEST - 4 * micros(end);
    let mut command = Cmd::with_capacity(10, 160 + key.len());
    command.arg("BITFIELD").arg(key);
    overflow(&mut command, "SAT");
    increase(&mut command, END, above);
    increase(&mut command, END, -above);
    command
}

/// Lets Redis forget the bucket when its window has ended, on any clock within the clock tolerance:
/// one that is ahead may be in the next window already.
pub(in crate::store::redis) fn expire(key: &[u8], quota: &Quota, now: Timestamp) -> Cmd {
    expire_in(key, window_end(quota, now + CLOCK_TOLERANCE).since(now))
}

/// Reads the reply to a take.
pub(super) fn parse_take(
    reply: &Value,
    one: &Transaction,
    now: Timestamp,
) -> Option<(WindowFound, Repair)> {
    let Value::Array(steps) = reply else {
        return None;
    };
    let [Value::Int(left), _, Value::Int(used), _, _, _, _, taken, _] = steps.as_slice() else {
        return None;
    };
    let end = micros(now).checked_add(left / 4)?;
    let (mut found, repair) = found(end, *used, one, now)?;
    found.written = matches!(taken, Value::Int(_));
    Some((found, repair))
}

/// Reads the reply to a read.
pub(super) fn parse_read(
    reply: &Value,
    one: &Transaction,
    now: Timestamp,
) -> Option<(WindowFound, Repair)> {
    let Value::Array(fields) = reply else {
        return None;
    };
    let [Value::Int(end), Value::Int(used)] = fields.as_slice() else {
        return None;
    };
    found(end / 4, *used, one, now)
}

fn found(end: i64, used: i64, one: &Transaction, now: Timestamp) -> Option<(WindowFound, Repair)> {
    let micros = u64::try_from(end).ok()?;
    let window = FixedWindow {
        end: Timestamp::from_nanos(micros.saturating_mul(NANOS_PER_MICRO)),
        used: u64::try_from(used).ok()?,
    };
    let repair = if window.is_left_over(&one.quota, now) {
        Repair::Cut(window_end(&one.quota, now))
    } else {
        Repair::Nothing
    };
    let found = WindowFound {
        usage: window.usage(one, now),
        ..WindowFound::default()
    };
    Some((found, repair))
}

fn micros(time: Timestamp) -> i64 {
    signed(time.as_nanos() / NANOS_PER_MICRO)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(GREATEST)
}

fn overflow(command: &mut Cmd, how: &str) {
    command.arg("OVERFLOW").arg(how);
}

fn increase(command: &mut Cmd, field: &str, by: i64) {
    command.arg("INCRBY").arg("u63").arg(field).arg(by);
}
