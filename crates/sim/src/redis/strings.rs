//! Strings, and what all keys have: existence, a type, an expiry.

use bytes::Bytes;

use super::call::{Call, Done, Failure, NOT_INTEGER, Propagation, SYNTAX};
use super::keyspace::Value;
use super::protocol::integer;

pub(super) fn get(call: &mut Call<'_>) -> Done {
    match call.string()?.cloned() {
        Some(string) => call.reply.bulk(&string),
        None => call.reply.null(),
    }
    Ok(())
}

pub(super) fn getrange(call: &mut Call<'_>) -> Done {
    let [start, end] = [2, 3].map(|at| integer(call.word(at)));
    let (start, end) = (start.ok_or(NOT_INTEGER)?, end.ok_or(NOT_INTEGER)?);
    let string = call.string()?.cloned().unwrap_or_default();
    let length = i64::try_from(string.len()).unwrap_or(i64::MAX);
    let from_end = |at: i64| match at {
        ..0 => length.saturating_add(at).max(0),
        at => at,
    };
    let is_backward = start < 0 && end < 0 && start > end;
    let (start, end) = (from_end(start), from_end(end).min(length - 1));
    let range = match (usize::try_from(start), usize::try_from(end)) {
        (Ok(start), Ok(end)) if !is_backward => string.get(start..=end),
        _ => None,
    };
    call.reply.bulk(range.unwrap_or_default());
    Ok(())
}

/// `SET key value [PX milliseconds | PXAT moment]`
pub(super) fn set(call: &mut Call<'_>) -> Done {
    let expires = match call.words_from(3) {
        [] => None,
        [unit, time] => {
            let base = match unit.to_ascii_lowercase().as_slice() {
                b"px" => call.now,
                b"pxat" => 0,
                _ => return Err(SYNTAX.into()),
            };
            let time = integer(time).ok_or(NOT_INTEGER)?;
            let at = time.checked_add(base).filter(|_| time > 0);
            Some(at.ok_or_else(|| invalid_time("set"))?)
        }
        _ => return Err(SYNTAX.into()),
    };
    let key = call.key();
    let value = call.word(2).to_vec();
    call.keys.insert(&key, Value::String(value), expires);
    call.changed();
    if let Some(expires) = expires {
        let at = Bytes::from(expires.to_string());
        let words = [Bytes::from_static(b"SET"), key];
        let words = words.into_iter().chain(call.words.get(2).cloned());
        let words = words.chain([Bytes::from_static(b"PXAT"), at]);
        call.propagation = Propagation::Instead(words.collect());
    }
    call.reply.simple("OK");
    Ok(())
}

fn invalid_time(command: &str) -> Failure {
    format!("invalid expire time in '{command}' command").into()
}

pub(super) fn del(call: &mut Call<'_>) -> Done {
    let keys = call.words_from(1);
    let mut deleted = 0;
    for key in keys {
        if call.entry(key).is_some() {
            call.keys.remove(key);
            deleted += 1;
        }
    }
    if deleted > 0 {
        call.changed();
    }
    call.reply.int(deleted);
    Ok(())
}

pub(super) fn exists(call: &mut Call<'_>) -> Done {
    let keys = call.words_from(1).iter();
    let count = keys.filter(|key| call.entry(key).is_some()).count();
    call.reply.count(count);
    Ok(())
}

pub(super) fn type_of(call: &mut Call<'_>) -> Done {
    let entry = call.entry(call.word(1));
    let name = entry.map_or("none", |entry| entry.value.type_name());
    call.reply.simple(name);
    Ok(())
}

pub(super) fn ttl(call: &mut Call<'_>) -> Done {
    remaining(call, |millis| (millis + 500) / 1000);
    Ok(())
}

pub(super) fn pttl(call: &mut Call<'_>) -> Done {
    remaining(call, |millis| millis);
    Ok(())
}

fn remaining(call: &mut Call<'_>, unit: impl FnOnce(i64) -> i64) {
    let now = call.now;
    let left = match call.entry(call.word(1)).map(|entry| entry.expires) {
        None => -2,
        Some(None) => -1,
        Some(Some(expires)) => unit((expires - now).max(0)),
    };
    call.reply.int(left);
}

pub(super) fn persist(call: &mut Call<'_>) -> Done {
    let key = call.key();
    let had = match call.keys.get_mut(&key) {
        Some(entry) => entry.expires.take().is_some(),
        None => false,
    };
    if had {
        call.changed();
    }
    call.reply.int(had.into());
    Ok(())
}

pub(super) fn expire(call: &mut Call<'_>) -> Done {
    let now = call.now;
    expire_by(call, "expire", 1000, now)
}

pub(super) fn pexpire(call: &mut Call<'_>) -> Done {
    let now = call.now;
    expire_by(call, "pexpire", 1, now)
}

pub(super) fn expireat(call: &mut Call<'_>) -> Done {
    expire_by(call, "expireat", 1000, 0)
}

pub(super) fn pexpireat(call: &mut Call<'_>) -> Done {
    expire_by(call, "pexpireat", 1, 0)
}

fn expire_by(call: &mut Call<'_>, command: &str, scale: i64, base: i64) -> Done {
    if let Some(option) = call.words_from(3).first() {
        return Err(Failure([b"Unsupported option ", option.as_ref()].concat()));
    }
    let time = call.integer(2)?.checked_mul(scale);
    let when = time.and_then(|time| time.checked_add(base));
    let when = when.ok_or_else(|| invalid_time(command))?;
    let key = call.key();
    if call.entry(&key).is_none() {
        call.reply.int(0);
        return Ok(());
    }
    // A replica waits for its primary to delete the key.
    let words = if when <= call.now && !call.is_applied {
        call.keys.remove(&key);
        vec![Bytes::from_static(b"DEL"), key]
    } else {
        if let Some(entry) = call.keys.get_mut(&key) {
            entry.expires = Some(when);
        }
        let name = Bytes::from_static(b"PEXPIREAT");
        vec![name, key, when.to_string().into()]
    };
    call.propagation = Propagation::Instead(words);
    call.reply.int(1);
    Ok(())
}
