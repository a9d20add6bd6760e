//! The syntax of a host and port, as `Host` and `:authority` name them.

use std::net::Ipv6Addr;

/// Whether a value is `uri-host [ ":" port ]` (RFC 9110 section 7.2), which has no user information.
///
/// The host is an IPv6 address in brackets, an IPv4 address, or a name (RFC 3986 section 3.2.2),
/// which may be empty and have bytes that are percent-encoded. Not valid here, although the grammar
/// allows it, are a comma in a name, because no name has one, but two lines in one do; literals of
/// address families to come (`[v1.x]`); and a port beyond 65535.
pub fn is_host_and_port(value: &[u8]) -> bool {
    let behind_host = match value {
        [b'[', literal @ ..] => behind_ipv6(literal),
        name => behind_name(name),
    };
    match behind_host {
        Some([]) => true,
        Some([b':', port @ ..]) => is_port(port),
        _ => false,
    }
}

/// What follows an IPv6 address and its closing bracket.
fn behind_ipv6(literal: &[u8]) -> Option<&[u8]> {
    let end = literal.iter().position(|byte| *byte == b']')?;
    let (address, rest) = literal.split_at_checked(end)?;
    let address: Result<Ipv6Addr, _> = str::from_utf8(address).ok()?.parse();
    address.ok().and_then(|_| rest.strip_prefix(b"]"))
}

/// What follows a name; `None` if it has a percent sign that encodes nothing.
fn behind_name(mut value: &[u8]) -> Option<&[u8]> {
    loop {
        value = match value {
            [byte, rest @ ..] if is_name_byte(*byte) => rest,
            [b'%', high, low, rest @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                rest
            }
            [b'%', ..] => return None,
            rest => return Some(rest),
        };
    }
}

fn is_name_byte(byte: u8) -> bool {
    let found = NAME_BYTES.get(usize::from(byte));
    found.is_some_and(|is_in| *is_in)
}

/// Looked up for each byte of each host: `unreserved` and `sub-delims` of RFC 3986, without the comma.
static NAME_BYTES: [bool; 256] = name_bytes();

#[expect(
    clippy::indexing_slicing,
    reason = "an index of one byte, at compile time"
)]
const fn name_bytes() -> [bool; 256] {
    let mut are_in = [false; 256];
    let mut rest: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789\
        -._~!$&'()*+;=";
    while let [byte, others @ ..] = rest {
        are_in[*byte as usize] = true;
        rest = others;
    }
    are_in
}

/// A port may be empty (RFC 3986 section 3.2.3).
fn is_port(text: &[u8]) -> bool {
    let number = text.iter().try_fold(0_u16, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u16::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    });
    number.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_client_can_mean_is_a_host() {
        for valid in [
            "",
            "a",
            "App.Example.COM",
            "app.example.com.",
            "app.example.com.:8443",
            "my_app_.internal",
            "xn--bcher-kva.example:80",
            "a:",
            "a:0",
            "a:00080",
            "a:65535",
            ":80",
            "192.0.2.1",
            "192.0.2.1:80",
            "1.2.3.4.5",
            "[::1]",
            "[::1]:",
            "[2001:DB8::1]:8443",
            "[::ffff:192.0.2.1]",
            "a%2Db.example",
            "b%C3%BCcher.example:80",
            "a-b~c!$&'()*+;=",
        ] {
            assert!(is_host_and_port(valid.as_bytes()), "{valid}");
        }
    }

    #[test]
    fn nothing_else_is_a_host() {
        for invalid in [
            "::1",
            "2001:db8::1",
            "a:x",
            "a:80:90",
            "a:80x",
            "a:+80",
            "a:-1",
            "a: 80",
            "a:65536",
            "a:99999999999999999999",
            "[zz]",
            "[::1",
            "[]",
            "[",
            "]",
            "[::1]80",
            "[::1]x:80",
            "[::1]:x",
            "[[::1]]",
            "[::1%25eth0]",
            "[192.0.2.1]",
            "[v1.x]",
            "a[::1]",
            "::1]",
            "%zz",
            "%",
            "a%2",
            "a%2:80",
            "user@a",
            "user:password@a:80",
            "a,b",
            "a b",
            "a/b",
            "a?b",
            "a#b",
            "a\\b",
            "a\"b",
            "<a>",
            "a|b",
            "a\u{e9}",
        ] {
            assert!(!is_host_and_port(invalid.as_bytes()), "{invalid}");
        }
    }
}
