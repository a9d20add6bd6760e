//! Patterns of hosts.

use std::fmt;

use super::PatternError;
use crate::rules::domain;

/// A host, or all hosts below a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    /// This host, in lower case.
    Exact(Box<str>),
    /// All hosts that end with this, which starts with a dot: one label more, or several, as in the
    /// Gateway API.
    Below(Box<str>),
}

impl HostPattern {
    /// Reads `app.example.com` or `*.example.com`.
    ///
    /// # Errors
    /// The error says what to write instead.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let host = bare_host(text);
        if host.is_empty() {
            return Err(PatternError::Empty);
        }
        if host != text {
            return Err(PatternError::MoreThanHost(text.to_owned(), host.to_owned()));
        }
        match host.strip_prefix('*') {
            Some(suffix) if is_host_name(suffix.strip_prefix('.').unwrap_or_default()) => {
                Ok(Self::Below(suffix.to_ascii_lowercase().into()))
            }
            _ if host.contains('*') => Err(PatternError::HostWildcard(text.to_owned())),
            _ if domain::ipv6_literal(host).is_some() || is_host_name(host) => {
                Ok(Self::Exact(domain::canonical(host).into()))
            }
            _ => Err(PatternError::NotAHost(text.to_owned())),
        }
    }
}

/// The host of what may be a URL or carry a port.
fn bare_host(text: &str) -> &str {
    let text = text.split_once("://").map_or(text, |(_, rest)| rest);
    let text = text.split_once('/').map_or(text, |(host, _)| host);
    match text.rsplit_once(':') {
        Some((host, _)) if !text.ends_with(']') => host,
        _ => text,
    }
}

fn is_host_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    text.split('.')
        .all(|label| !label.is_empty() && label.len() <= 63 && label.bytes().all(allowed))
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(host) => f.write_str(host),
            Self::Below(suffix) => write!(f, "*{suffix}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns_show_as_they_are_written() {
        for text in [
            "app.example.com",
            "*.example.com",
            "[2001:db8::1]",
            "192.0.2.1",
        ] {
            assert_eq!(HostPattern::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_bad_host_is_told_what_to_write_instead() {
        for (text, remedy) in [
            ("http://a.example/x", "write \"a.example\""),
            ("a.example:80", "write \"a.example\""),
            ("[2001:db8::1]:80", "write \"[2001:db8::1]\""),
            ("*", "leave the host out"),
            ("a.*.example", "\"*.example.com\""),
            ("*example.com", "\"*.example.com\""),
            ("b\u{fc}cher.example", "xn--"),
            ("a..example", "no host name"),
            ("a.example.", "no host name"),
            ("", "empty"),
        ] {
            let said = HostPattern::parse(text).unwrap_err().to_string();
            assert!(said.contains(remedy), "{text}: {said}");
        }
    }

    proptest! {
        #[test]
        fn a_pattern_is_read_again_as_it_is_shown(text in "([a-zA-Z*.:\\[\\]1-]|\\PC){0,20}") {
            if let Ok(pattern) = HostPattern::parse(&text) {
                prop_assert_eq!(HostPattern::parse(&pattern.to_string()), Ok(pattern));
            }
        }
    }
}
