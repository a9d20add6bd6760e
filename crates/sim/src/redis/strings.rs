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

/// `SET key value [NX | XX] [GET] [EX | PX | EXAT | PXAT time | KEEPTTL]`
pub(super) fn set(call: &mut Call<'_>) -> Done {
    let options = SetOptions::parse(call)?;
    let expires = options.expiry.map(|expiry| expiry.resolve(call.now, "set"));
    let expires = expires.transpose()?;
    if options.get {
        get(call)?;
    }
    let key = call.key();
    let found = call.entry(&key).map(|entry| entry.expires);
    if options
        .only_if
        .is_some_and(|exists| exists != found.is_some())
    {
        if !options.get {
            call.reply.null();
        }
        return Ok(());
    }
    let kept = found.flatten().filter(|_| options.keeps_expiry);
    let value = call.word(2).to_vec();
    call.keys
        .insert(&key, Value::String(value), expires.or(kept));
    call.changed();
    if let Some(expires) = expires {
        let at = Bytes::from(expires.to_string());
        let words = [Bytes::from_static(b"SET"), key];
        let words = words.into_iter().chain(call.words.get(2).cloned());
        let words = words.chain([Bytes::from_static(b"PXAT"), at]);
        call.propagation = Propagation::Instead(words.collect());
    }
    if !options.get {
        call.reply.simple("OK");
    }
    Ok(())
}

#[derive(Default)]
struct SetOptions {
    get: bool,
    /// Whether the key has to exist.
    only_if: Option<bool>,
    keeps_expiry: bool,
    expiry: Option<Expiry>,
}

impl SetOptions {
    fn parse(call: &Call<'_>) -> Result<Self, Failure> {
        let mut options = Self::default();
        let mut words = call.words_from(3);
        while let [name, rest @ ..] = words {
            let name = name.to_ascii_lowercase();
            words = match (name.as_slice(), rest) {
                (b"get", rest) => {
                    options.get = true;
                    rest
                }
                (b"nx", rest) if options.only_if != Some(true) => {
                    options.only_if = Some(false);
                    rest
                }
                (b"xx", rest) if options.only_if != Some(false) => {
                    options.only_if = Some(true);
                    rest
                }
                (b"keepttl", rest) if options.expiry.is_none() => {
                    options.keeps_expiry = true;
                    rest
                }
                (unit, [time, rest @ ..]) if !options.keeps_expiry => {
                    let unit = Unit::parse(unit).ok_or(SYNTAX)?;
                    if options
                        .expiry
                        .as_ref()
                        .is_some_and(|other| other.unit != unit)
                    {
                        return Err(SYNTAX.into());
                    }
                    let time = time.clone();
                    options.expiry = Some(Expiry { unit, time });
                    rest
                }
                _ => return Err(SYNTAX.into()),
            };
        }
        Ok(options)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Unit {
    is_seconds: bool,
    is_absolute: bool,
}

impl Unit {
    fn parse(name: &[u8]) -> Option<Self> {
        let (is_seconds, is_absolute) = match name {
            b"ex" => (true, false),
            b"px" => (false, false),
            b"exat" => (true, true),
            b"pxat" => (false, true),
            _ => return None,
        };
        Some(Self {
            is_seconds,
            is_absolute,
        })
    }
}

struct Expiry {
    unit: Unit,
    time: Bytes,
}

impl Expiry {
    /// The moment in milliseconds.
    fn resolve(&self, now: i64, command: &str) -> Result<i64, Failure> {
        let time = integer(&self.time).ok_or(NOT_INTEGER)?;
        let invalid = || invalid_time(command);
        if time <= 0 {
            return Err(invalid());
        }
        let scale = if self.unit.is_seconds { 1000 } else { 1 };
        let base = if self.unit.is_absolute { 0 } else { now };
        let millis = time.checked_mul(scale).ok_or_else(invalid)?;
        millis.checked_add(base).ok_or_else(invalid)
    }
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

#[derive(Default)]
struct Conditions {
    nx: bool,
    xx: bool,
    gt: bool,
    lt: bool,
}

impl Conditions {
    fn parse(words: &[Bytes]) -> Result<Self, Failure> {
        let mut conditions = Self::default();
        for word in words {
            let condition = match word.to_ascii_lowercase().as_slice() {
                b"nx" => &mut conditions.nx,
                b"xx" => &mut conditions.xx,
                b"gt" => &mut conditions.gt,
                b"lt" => &mut conditions.lt,
                _ => return Err(Failure([b"Unsupported option ", word.as_ref()].concat())),
            };
            *condition = true;
        }
        let Self { nx, xx, gt, lt } = conditions;
        if nx && (xx || gt || lt) {
            let why = "NX and XX, GT or LT options at the same time are not compatible";
            return Err(why.into());
        }
        if gt && lt {
            return Err("GT and LT options at the same time are not compatible".into());
        }
        Ok(conditions)
    }

    fn hold(&self, current: Option<i64>, wanted: i64) -> bool {
        let is_later = current.is_some_and(|current| wanted > current);
        let is_sooner = current.is_none_or(|current| wanted < current);
        !(self.nx && current.is_some()
            || self.xx && current.is_none()
            || self.gt && !is_later
            || self.lt && !is_sooner)
    }
}

fn expire_by(call: &mut Call<'_>, command: &str, scale: i64, base: i64) -> Done {
    let conditions = Conditions::parse(call.words_from(3))?;
    let time = call.integer(2)?.checked_mul(scale);
    let when = time.and_then(|time| time.checked_add(base));
    let when = when.ok_or_else(|| invalid_time(command))?;
    let key = call.key();
    let current = call.entry(&key).map(|entry| entry.expires);
    if !current.is_some_and(|current| conditions.hold(current, when)) {
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
