//! Hashes, in which sliding windows are counted.

use super::call::{Call, Done};
use super::protocol::integer;

pub(super) fn hgetall(call: &mut Call<'_>) -> Done {
    let fields = call.hash()?.cloned().unwrap_or_default();
    call.reply.map(fields.len());
    for (field, value) in fields {
        call.reply.bulk(&field);
        call.reply.bulk(&value);
    }
    Ok(())
}

pub(super) fn hget(call: &mut Call<'_>) -> Done {
    let wanted = call.word(2);
    let found = call.hash()?.and_then(|fields| {
        let mut fields = fields.iter();
        fields.find(|(field, _)| field == wanted).cloned()
    });
    match found {
        Some((_, value)) => call.reply.bulk(&value),
        None => call.reply.null(),
    }
    Ok(())
}

pub(super) fn hset(call: &mut Call<'_>) -> Done {
    let pairs = call.words_from(2);
    if !pairs.len().is_multiple_of(2) {
        return Err("wrong number of arguments for 'hset' command".into());
    }
    let fields = call.hash_mut()?;
    let before = fields.len();
    for pair in pairs.chunks_exact(2) {
        if let [field, value] = pair {
            match fields.iter_mut().find(|(own, _)| own == field) {
                Some((_, own)) => *own = value.clone(),
                None => fields.push((field.clone(), value.clone())),
            }
        }
    }
    let added = fields.len() - before;
    call.changed();
    call.reply.count(added);
    Ok(())
}

pub(super) fn hincrby(call: &mut Call<'_>) -> Done {
    let by = call.integer(3)?;
    let Some(name) = call.words.get(2) else {
        return Ok(());
    };
    let fields = call.hash_mut()?;
    let at = fields.iter().position(|(field, _)| field == name);
    let old = match at.and_then(|at| fields.get(at)) {
        Some((_, value)) => integer(value).ok_or("hash value is not an integer")?,
        None => 0,
    };
    let new = old
        .checked_add(by)
        .ok_or("increment or decrement would overflow")?;
    let value = new.to_string().into();
    match at.and_then(|at| fields.get_mut(at)) {
        Some((_, own)) => *own = value,
        None => fields.push((name.clone(), value)),
    }
    call.changed();
    call.reply.int(new);
    Ok(())
}

pub(super) fn hdel(call: &mut Call<'_>) -> Done {
    let names = call.words_from(2);
    let mut deleted = 0;
    if call.hash()?.is_some() {
        let fields = call.hash_mut()?;
        let before = fields.len();
        fields.retain(|(field, _)| !names.contains(field));
        deleted = before - fields.len();
    }
    if deleted > 0 {
        call.changed();
    }
    call.reply.count(deleted);
    Ok(())
}

pub(super) fn hlen(call: &mut Call<'_>) -> Done {
    let length = call.hash()?.map_or(0, Vec::len);
    call.reply.count(length);
    Ok(())
}
