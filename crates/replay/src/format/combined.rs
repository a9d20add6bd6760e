//! The combined log format of Apache, nginx and others, and the common one, which ends before the
//! referrer.
//!
//! Apache's `vhost_combined` has the virtual host before the client, lighttpd the host behind it,
//! and APISIX the host behind the time. The client may be the list of `X-Forwarded-For`.

use std::net::IpAddr;

use memchr::memchr2;

use super::client::address;
use super::fields::request_line;
use super::pattern::unescaped;
use super::{LineMaker, Parsed, RawLine, is_given, split_query, split_target};
use weir_limit::time::Timestamp;

/// What stands before the time.
struct Sender<'l> {
    client: IpAddr,
    host: Option<&'l str>,
    user: Option<&'l str>,
}

pub(super) fn combined(
    line: &str,
    make: &mut LineMaker<'_>,
    time: impl FnOnce(&[u8]) -> Option<Timestamp>,
) -> Result<Parsed, &'static str> {
    let quote = memchr::memchr(b'"', line.as_bytes()).ok_or("it has no request in quotes")?;
    let (before, rest) = line
        .split_at_checked(quote)
        .ok_or("it has no request in quotes")?;
    // An address before the time may be in brackets as well.
    let (names, before) = before
        .rsplit_once('[')
        .ok_or("it has no time in brackets")?;
    let (at, between) = before.split_once(']').ok_or("its time has no end")?;
    let at = time(at.as_bytes()).ok_or("its time is not one")?;
    let (request, rest) = quoted(rest).ok_or("it has no request in quotes")?;
    let mut rest_of = rest.trim_ascii_start().splitn(3, ' ');
    let status = status(rest_of.next().unwrap_or_default())?;
    let rest = rest_of.nth(1).unwrap_or_default();
    let wants_more = make.options.detail_set.headers || make.options.clients.is_some();
    let rest = if wants_more { rest } else { "" };
    let (referer, rest) = quoted(rest).unwrap_or(("-", ""));
    let (user_agent, rest) = quoted(rest).unwrap_or(("-", ""));
    // Without trusted proxies nobody asks who was behind one.
    let proxied = if make.options.clients.is_some() {
        rest
    } else {
        ""
    };
    let forwarded = quoted(proxied).map(|(text, _)| text);
    let Some((method, target)) = request_line(request) else {
        return Ok(Parsed::Other);
    };
    let sender = sender(names, forwarded.filter(|text| is_list(text)), make)?;
    let (referer, user_agent) = (unescaped(referer), unescaped(user_agent));
    let (host, target) = split_target(target);
    let (path, query) = split_query(target);
    let headers = [("referer", &*referer), ("user-agent", &*user_agent)];
    let headers = headers.into_iter().filter(|(_, value)| is_given(value));
    let between = between.trim_ascii();
    make.line(&RawLine {
        began: Some(at),
        ended: Some(at),
        client: Some(sender.client),
        method: Some(method),
        path: Some(path),
        query,
        status,
        host: host
            .or(sender.host)
            .or(is_given(between).then_some(between)),
        headers: headers.collect(),
        account: sender.user,
        ..RawLine::default()
    })
}

/// A status; none if there was no response, for which some servers write a dash.
fn status(text: &str) -> Result<Option<u16>, &'static str> {
    match text {
        "-" => Ok(None),
        text => text.parse().map(Some).map_err(|_| "it has no status"),
    }
}

/// Reads `CLIENT IDENT USER`, `VHOST CLIENT IDENT USER` or `CLIENT HOST USER`, where the client may
/// be a list.
fn sender<'l>(
    names: &'l str,
    forwarded: Option<&str>,
    make: &mut LineMaker<'_>,
) -> Result<Sender<'l>, &'static str> {
    let (first, rest) = names.split_once(' ').ok_or("it has one word")?;
    let given = |text: &'l str| is_given(text).then_some(text);
    if let Ok(client) = first.parse::<IpAddr>() {
        let mut words = rest.split_ascii_whitespace();
        let (second, user, more) = (words.next(), words.next(), words.next());
        return Ok(Sender {
            client: make.behind(client, forwarded),
            host: second.filter(|_| more.is_none()).and_then(given),
            user: user.and_then(given),
        });
    }
    let (host, client, user) = match names.contains(',') {
        true => with_list(names).ok_or("it has two words")?,
        false => {
            let (host, client) = match rest.split_once(' ') {
                Some((client, _)) if is_host(first) && address(client).is_some() => {
                    (Some(first), client)
                }
                _ => (None, first),
            };
            let places = 2 + usize::from(host.is_some());
            (host, client, names.split_ascii_whitespace().nth(places))
        }
    };
    let client = make.client_of(client, forwarded);
    Ok(Sender {
        client: client.map_err(|_| "it does not begin with an address")?,
        host: host.and_then(given),
        user: user.and_then(given),
    })
}

/// `LIST IDENT USER`, perhaps with a virtual host before it, as the host, the list and the user.
fn with_list(names: &str) -> Option<(Option<&str>, &str, Option<&str>)> {
    let (before, user) = names.trim_ascii_end().rsplit_once(' ')?;
    let (list, _) = before.trim_ascii_end().rsplit_once(' ')?;
    match list.split_once(' ') {
        Some((host, list)) if is_host(host) => Some((Some(host), list, Some(user))),
        _ => Some((None, list, Some(user))),
    }
}

/// Whether the first word is a virtual host: an entry of a list has a comma, and an address alone
/// is the client.
fn is_host(word: &str) -> bool {
    let is_address = address(word).is_some() && !word.contains(':');
    !word.contains(',') && !is_address
}

/// Whether a text is a list of `X-Forwarded-For`, and not something else that stands in quotes.
fn is_list(text: &str) -> bool {
    let mut entries = text.split(',').map(str::trim);
    entries.any(|entry| address(entry).is_some())
}

/// The text in the next quotes, and what follows them. A backslash escapes a quote.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let (_, inside) = text.split_once('"')?;
    let mut end = 0;
    loop {
        let rest = inside.as_bytes().get(end..)?;
        end += memchr2(b'"', b'\\', rest)?;
        match inside.as_bytes().get(end)? {
            b'"' => return Some((inside.get(..end)?, inside.get(end + 1..)?)),
            _ => end += 2,
        }
    }
}
