//! `Keep-Alive`: for how long a server keeps a connection open that has no request (RFC 2068
//! section 19.7.1.1). No later RFC has it, and most servers send it.

use std::time::Duration;

use http::{HeaderMap, HeaderName};
use weir_http::list::members;

use super::number;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");

/// How much earlier than its server a connection is given up, so that no request is on its way
/// while the server closes it; half of the server's time if that is less.
const MARGIN: Duration = Duration::from_secs(1);

/// How long the connection may be idle and then serve another request, if the server says so. Not
/// at all where `max` says that no further request is taken.
pub(super) fn idle_timeout(headers: &HeaderMap) -> Option<Duration> {
    let parameter = |name: &str| {
        let mut members = headers.get_all(KEEP_ALIVE).iter().flat_map(members);
        members.find_map(|member| value_of(member, name))
    };
    if parameter("max") == Some(0) {
        return Some(Duration::ZERO);
    }
    let kept = Duration::from_secs(parameter("timeout")?);
    Some(kept - MARGIN.min(kept / 2))
}

/// The number in a parameter of this name.
fn value_of(member: &[u8], wanted: &str) -> Option<u64> {
    let mut parts = member.splitn(2, |&byte| byte == b'=');
    let (name, value) = (parts.next()?, parts.next()?);
    let is_wanted = name.trim_ascii().eq_ignore_ascii_case(wanted.as_bytes());
    is_wanted.then(|| number(value.trim_ascii())).flatten()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_connection_is_given_up_before_its_server_closes_it() {
        for (value, millis) in [
            ("timeout=5", Some(4000)),
            ("timeout=5, max=100", Some(4000)),
            ("max=1, Timeout = 2", Some(1000)),
            ("timeout=1", Some(500)),
            ("timeout=0", Some(0)),
            ("timeout=5, max=0", Some(0)),
            ("max=0", Some(0)),
            ("max=3", None),
            ("timeout=", None),
            ("timeout=-5", None),
            ("timeout=soon", None),
            ("timeout", None),
            ("5", None),
            ("", None),
        ] {
            let value = [(KEEP_ALIVE, HeaderValue::from_static(value))];
            let timeout = idle_timeout(&value.clone().into_iter().collect());
            assert_eq!(timeout, millis.map(Duration::from_millis), "{value:?}");
        }
        assert_eq!(idle_timeout(&HeaderMap::new()), None);
        let longest = HeaderValue::from_static("timeout=18446744073709551615");
        let longest = idle_timeout(&[(KEEP_ALIVE, longest)].into_iter().collect());
        assert_eq!(longest, Some(Duration::from_secs(u64::MAX - 1)));
    }
}
