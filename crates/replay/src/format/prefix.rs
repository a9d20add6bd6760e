//! What collectors of logs write before each line of a program.

use std::borrow::Cow;

use serde::Deserialize;
use weir_limit::time::Timestamp;

use super::time::rfc3339;

/// What stands before each line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefix {
    #[default]
    None,
    /// Kubernetes' container runtimes: `2026-11-21T10:00:00.1Z stdout F `.
    Cri,
    /// Docker's driver `json-file`, with the line as the field `log`.
    Docker,
    /// `docker compose logs`: `web-1  | `.
    Compose,
    /// RFC 3164 or 5424, as files and the journal have it.
    Syslog,
}

/// A line without its prefix, and the time of that.
pub type Stripped<'l> = (Cow<'l, str>, Option<Timestamp>);

#[derive(Deserialize)]
struct DockerLine<'l> {
    #[serde(borrow)]
    log: Cow<'l, str>,
    #[serde(borrow)]
    time: Cow<'l, str>,
}

impl Prefix {
    pub const ALL: [Self; 5] = [
        Self::None,
        Self::Cri,
        Self::Docker,
        Self::Compose,
        Self::Syslog,
    ];

    /// Whose prefix it is.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Cri => "CRI",
            Self::Docker => "Docker",
            Self::Compose => "compose",
            Self::Syslog => "syslog",
        }
    }

    /// The line behind the prefix; none if it has another.
    pub fn strip(self, line: &str) -> Option<Stripped<'_>> {
        match self {
            Self::None => Some((line.into(), None)),
            Self::Cri => cri(line),
            Self::Docker => docker(line),
            Self::Compose => compose(line),
            Self::Syslog => syslog(line),
        }
    }
}

fn word(text: &str) -> Option<(&str, &str)> {
    text.split_once(' ')
}

/// A long line is written in parts (`P`), which are not put together.
fn cri(line: &str) -> Option<Stripped<'_>> {
    let (time, rest) = word(line)?;
    let (stream, rest) = word(rest)?;
    let rest = rest.strip_prefix("F ")?;
    matches!(stream, "stdout" | "stderr").then_some((rest.into(), Some(rfc3339(time)?)))
}

fn docker(line: &str) -> Option<Stripped<'_>> {
    let DockerLine { log, time } = serde_json::from_str(line).ok()?;
    let time = rfc3339(&time)?;
    let log = match log {
        Cow::Borrowed(text) => text.trim_end().into(),
        Cow::Owned(text) => Cow::Owned(text.trim_end().to_owned()),
    };
    Some((log, Some(time)))
}

/// With `--timestamps`, a time follows.
fn compose(line: &str) -> Option<Stripped<'_>> {
    let (service, rest) = line.split_once("| ")?;
    let service = service.strip_suffix(' ')?.trim_end();
    if service.is_empty() || service.contains(' ') {
        return None;
    }
    let timed = word(rest).and_then(|(time, rest)| Some((rest, rfc3339(time)?)));
    Some(timed.map_or((rest.into(), None), |(rest, time)| {
        (rest.into(), Some(time))
    }))
}

fn syslog(line: &str) -> Option<Stripped<'_>> {
    let line = match line.strip_prefix('<') {
        Some(rest) => rest.split_once('>')?.1,
        None => line,
    };
    if let Some(rest) = line.strip_prefix("1 ") {
        return syslog_5424(rest);
    }
    let (first, rest) = word(line)?;
    let (time, rest) = match rfc3339(first) {
        Some(time) => (Some(time), rest),
        // `Nov 21 10:00:00` says no year.
        None => (None, behind_month_day_and_time(line)?),
    };
    // The name of the host may be left out.
    let (tag, message) = rest.split_once(": ")?;
    let is_tag = tag.split(' ').count() <= 2 && !tag.contains(['"', '[', '{']) || is_process(tag);
    is_tag.then_some((message.into(), time))
}

/// `host name[123]`.
fn is_process(tag: &str) -> bool {
    let name = tag.rsplit(' ').next().unwrap_or_default();
    let inside = name.strip_suffix(']').and_then(|name| name.split_once('['));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    tag.split(' ').count() <= 2 && inside.is_some_and(|(_, process)| is_number(process))
}

fn behind_month_day_and_time(line: &str) -> Option<&str> {
    let (stamp, rest) = line.split_at_checked("Nov 21 10:00:00 ".len())?;
    let shape: Vec<bool> = stamp.bytes().map(|byte| byte.is_ascii_digit()).collect();
    let is_clock = |from: usize| shape.get(from..from + 2) == Some(&[true, true]);
    let is_month = stamp.bytes().take(3).all(|byte| byte.is_ascii_alphabetic());
    let is_stamp = is_month && is_clock(7) && is_clock(10) && is_clock(13) && stamp.ends_with(' ');
    is_stamp.then_some(rest)
}

/// `TIME HOST APP PROCESS MESSAGE-ID DATA `, where the data may be in brackets.
fn syslog_5424(line: &str) -> Option<Stripped<'_>> {
    let (time, mut rest) = word(line)?;
    for _ in 0..4 {
        rest = word(rest)?.1;
    }
    let message = match rest.strip_prefix('[') {
        Some(data) => data.split_once("] ")?.1,
        None => rest.strip_prefix("- ")?,
    };
    let message = message.strip_prefix('\u{feff}').unwrap_or(message);
    Some((message.into(), Some(rfc3339(time)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"203.0.113.1 - - [21/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5"#;

    #[test]
    fn the_line_behind_every_prefix_is_the_same() {
        let docker = serde_json::json!({
            "log": format!("{LINE}\n"), "stream": "stdout", "time": "2026-11-21T10:00:00.5Z",
        });
        for (prefix, line) in [
            (
                Prefix::Cri,
                format!("2026-11-21T10:00:00.5+01:00 stdout F {LINE}"),
            ),
            (Prefix::Docker, docker.to_string()),
            (Prefix::Compose, format!("web-1  | {LINE}")),
            (
                Prefix::Compose,
                format!("web-1 | 2026-11-21T10:00:00.5Z {LINE}"),
            ),
            (
                Prefix::Syslog,
                format!("<190>Nov 21 10:00:00 vm nginx: {LINE}"),
            ),
            (
                Prefix::Syslog,
                format!("Nov  1 10:00:00 vm haproxy[123]: {LINE}"),
            ),
            (
                Prefix::Syslog,
                format!("2026-11-21T10:00:00.5+00:00 vm haproxy[1]: {LINE}"),
            ),
            (
                Prefix::Syslog,
                format!("<134>1 2026-11-21T10:00:00Z vm app 12 - - {LINE}"),
            ),
            (
                Prefix::Syslog,
                format!("<134>1 2026-11-21T10:00:00Z vm app 12 - [a b=\"c\"] {LINE}"),
            ),
        ] {
            let stripped = prefix.strip(&line).map(|(line, _)| line.into_owned());
            assert_eq!(stripped.as_deref(), Some(LINE), "{prefix:?}: {line}");
        }
    }

    #[test]
    fn a_line_without_a_prefix_has_none_and_a_part_of_a_line_is_not_taken_for_one() {
        for prefix in Prefix::ALL.into_iter().skip(1) {
            assert!(prefix.strip(LINE).is_none(), "{prefix:?}");
            assert!(prefix.strip("").is_none(), "{prefix:?}");
        }
        let part = format!("2026-11-21T10:00:00Z stdout P {LINE}");
        assert!(Prefix::Cri.strip(&part).is_none());
    }
}
