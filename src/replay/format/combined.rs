//! The combined log format of Apache, nginx and others, and the common one, which ends before the
//! referrer. What stands after the user agent is skipped.

use super::super::line::{RawLine, Wants};
use super::Parsed;
use super::time::common_log;
use crate::time::Timestamp;

/// Parses lines of the combined log format.
#[derive(Debug)]
pub struct Combined {
    wants: Wants,
    /// The last time that was read. Most lines have that of the line before.
    last: (Vec<u8>, Option<Timestamp>),
}

impl Combined {
    pub(super) const fn new(wants: Wants) -> Self {
        Self {
            wants,
            last: (Vec::new(), None),
        }
    }

    pub(super) fn parse(&mut self, line: &[u8]) -> Parsed {
        if line.trim_ascii().is_empty() {
            return Parsed::Other;
        }
        let Ok(line) = str::from_utf8(line) else {
            return Parsed::Malformed("it is not UTF-8");
        };
        match self.request(line) {
            Ok(parsed) => parsed,
            Err(why) => Parsed::Malformed(why),
        }
    }

    fn request(&mut self, line: &str) -> Result<Parsed, &'static str> {
        let (client, rest) = line.split_once(' ').ok_or("it has one word")?;
        let client = client
            .parse()
            .map_err(|_| "it does not begin with an address")?;
        let (names, rest) = rest.split_once('[').ok_or("it has no time in brackets")?;
        let (time, rest) = rest.split_once(']').ok_or("its time has no end")?;
        let at = self.time(time.as_bytes()).ok_or("its time is not one")?;
        let (request, rest) = quoted(rest).ok_or("it has no request in quotes")?;
        let mut rest_of = rest.trim_ascii_start().splitn(3, ' ');
        let status = rest_of.next().unwrap_or_default();
        let status = status.parse().map_err(|_| "it has no status")?;
        let rest = rest_of.nth(1).unwrap_or_default();
        let (referer, rest) = quoted(rest).unwrap_or(("-", ""));
        let (user_agent, _) = quoted(rest).unwrap_or(("-", ""));
        // What was no request of HTTP got an error, and met no limit.
        let mut words = request.split(' ');
        let (Some(method), Some(target)) = (words.next(), words.next()) else {
            return Ok(Parsed::Other);
        };
        let (host, target) = split_target(target);
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        };
        let headers = [("referer", referer), ("user-agent", user_agent)];
        let given = headers.iter().filter(|(_, value)| is_given(value));
        let headers: Vec<(&str, &str)> = match self.wants.headers {
            true => given.copied().collect(),
            false => Vec::new(),
        };
        let user = names.split_ascii_whitespace().nth(1);
        let raw = RawLine {
            at,
            answered: at,
            ended: at,
            client,
            method: method.as_bytes(),
            path,
            query,
            status: Some(status),
            host,
            headers: &headers,
            account: user.filter(|user| is_given(user)),
            route: None,
            recorded: None,
        };
        Ok(raw.line(self.wants).map_or(Parsed::Other, Parsed::Request))
    }

    fn time(&mut self, text: &[u8]) -> Option<Timestamp> {
        if self.last.0 != text {
            self.last = (text.to_vec(), common_log(text));
        }
        self.last.1
    }
}

/// The host and the path of a request's target, which proxies write in absolute form.
fn split_target(target: &str) -> (Option<&str>, &str) {
    let Some((_, rest)) = target
        .split_once("://")
        .filter(|_| !target.starts_with('/'))
    else {
        return (None, target);
    };
    match rest.find('/') {
        Some(slash) => (rest.get(..slash), rest.get(slash..).unwrap_or("/")),
        None => (Some(rest), "/"),
    }
}

fn is_given(text: &str) -> bool {
    !matches!(text, "" | "-")
}

/// The text in the next quotes, and what follows them. A backslash escapes a quote.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let (_, inside) = text.split_once('"')?;
    let mut escaped = false;
    let end = inside.bytes().position(|byte| {
        let is_end = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        is_end
    })?;
    Some((inside.get(..end)?, inside.get(end + 1..)?))
}
