//! A sliding window as a hash from the start of each sub-window, in milliseconds, to its units.
//!
//! A take reads the hash and adds to it at once, between `MULTI` and `EXEC`. What did not fit is
//! taken off again by a second pipeline, off the response's path: for that moment the bucket is
//! too strict, never too lax.

use redis::Value;
use weir_limit::time::Timestamp;
use weir_limit::{Quota, SubWindow, SubWindows, Transaction, sub_windows_lifetime};

use super::resp::Request;
use super::window::{Repair, WindowReply, at_once, expire_in};

/// Sub-windows that no longer count: so many are worth a command to delete them.
const WORTH_PRUNING: usize = 8;

/// Reads all sub-windows.
pub(super) fn read(request: &mut Request, key: &[u8]) {
    request.command(2, "HGETALL").word(key);
}

/// Reads all sub-windows, and adds the cost to the present one.
pub(super) fn take(request: &mut Request, key: &[u8], transaction: &Transaction, now: Timestamp) {
    let start = SubWindow::start_at(&transaction.quota, now);
    let units = i64::try_from(transaction.counted_units()).unwrap_or(i64::MAX);
    at_once(request, |request| {
        read(request, key);
        increase(request, key, start, units);
        expire(request, key, &transaction.quota);
    });
}

/// Adds to one sub-window.
pub(super) fn increase(request: &mut Request, key: &[u8], start: u64, by: i64) {
    let request = request.command(4, "HINCRBY").word(key);
    request.int(start).int(by);
}

/// Lets the bucket expire when nothing in it counts any more.
pub(super) fn expire(request: &mut Request, key: &[u8], quota: &Quota) {
    expire_in(request, key, sub_windows_lifetime(quota));
}

/// Deletes sub-windows.
pub(super) fn prune(request: &mut Request, key: &[u8], starts: &[u64]) {
    request.command(2 + starts.len(), "HDEL").word(key);
    for &start in starts {
        request.int(start);
    }
}

/// Reads the reply of `HGETALL`.
pub(super) fn parse(
    reply: &Value,
    written: bool,
    transaction: &Transaction,
    now: Timestamp,
) -> Option<WindowReply> {
    let Some(all) = sub_windows(reply)? else {
        return Some(WindowReply::foreign(written));
    };
    let dead = all
        .iter()
        .filter(|sub_window| sub_window.is_dead(&transaction.quota, now));
    let dead: Vec<u64> = dead.map(|sub_window| sub_window.start).collect();
    let repair = if dead.len() < WORTH_PRUNING {
        Repair::Nothing
    } else {
        Repair::Prune(dead)
    };
    let counted = written && transaction.is_counted_when_denied();
    let usage = all
        .iter()
        .copied()
        .collect::<SubWindows>()
        .usage(transaction, now);
    let usage_after = counted.then(|| {
        let taken = SubWindow {
            start: SubWindow::start_at(&transaction.quota, now),
            used: transaction.counted_units(),
        };
        let after: SubWindows = merged(all, taken).into_iter().collect();
        after.usage(transaction, now)
    });
    Some(WindowReply {
        usage,
        written,
        usage_after,
        repair,
        ..WindowReply::default()
    })
}

/// Reads a hash of sub-windows, in no order. One that was taken off from more often than added to,
/// because the bucket was reset meanwhile, has no units. `Some(None)` is a hash that is not Weir's.
pub(super) fn sub_windows(reply: &Value) -> Option<Option<Vec<SubWindow>>> {
    let pair = |(start, used): (&Value, &Value)| {
        Some(SubWindow {
            start: u64::try_from(number(start)?).ok()?,
            used: u64::try_from(number(used)?).unwrap_or(0),
        })
    };
    let Value::Array(flat) = reply else {
        return None;
    };
    if !flat.len().is_multiple_of(2) || !flat.iter().all(is_bulk) {
        return None;
    }
    let pairs = flat.chunks(2);
    let pairs = pairs.map(|both| pair((both.first()?, both.last()?)));
    Some(pairs.collect())
}

fn is_bulk(value: &Value) -> bool {
    matches!(value, Value::BulkString(_))
}

fn merged(mut all: Vec<SubWindow>, taken: SubWindow) -> Vec<SubWindow> {
    match all
        .iter_mut()
        .find(|sub_window| sub_window.start == taken.start)
    {
        Some(found) => found.used = found.used.saturating_add(taken.used),
        None => all.push(taken),
    }
    all
}

fn number(value: &Value) -> Option<i64> {
    let Value::BulkString(digits) = value else {
        return None;
    };
    std::str::from_utf8(digits).ok()?.parse().ok()
}
