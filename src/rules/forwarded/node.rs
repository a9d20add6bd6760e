//! The far ends of hops: addresses, `unknown` and obfuscated ids.

use std::net::IpAddr;

use super::MalformedForwarded;

/// The far end of a hop, as a forwarding header names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// An address; its port is not kept. Never an IPv4-mapped IPv6 address.
    Address(IpAddr),
    /// `unknown`.
    Unknown,
    /// An obfuscated identifier, which starts with an underscore.
    Obfuscated,
}

impl Node {
    /// Reads `203.0.113.9`, `203.0.113.9:80`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:80`,
    /// `unknown` or `_hidden`. Zone ids mean nothing beyond the machine that wrote them, and are
    /// refused.
    ///
    /// # Errors
    /// When it is none of these.
    pub fn parse(text: &str) -> Result<Self, MalformedForwarded> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Address(address.to_canonical()));
        }
        if let Some(bracketed) = text.strip_prefix('[') {
            return Self::parse_bracketed(bracketed);
        }
        let (name, port) = split_port(text)?;
        match name {
            _ if name.eq_ignore_ascii_case("unknown") => Ok(Self::Unknown),
            _ if is_obfuscated(name) => Ok(Self::Obfuscated),
            // Only IPv4 goes without brackets before a port.
            _ if port.is_some() && !name.contains(':') => parse_address(name),
            _ => Err(MalformedForwarded),
        }
    }

    fn parse_bracketed(text: &str) -> Result<Self, MalformedForwarded> {
        let (address, rest) = text.split_once(']').ok_or(MalformedForwarded)?;
        match split_port(rest)? {
            ("", _) if address.contains(':') => parse_address(address),
            _ => Err(MalformedForwarded),
        }
    }

    /// The address, when it is one.
    pub fn address(self) -> Option<IpAddr> {
        match self {
            Self::Address(address) => Some(address),
            Self::Unknown | Self::Obfuscated => None,
        }
    }
}

fn parse_address(text: &str) -> Result<Node, MalformedForwarded> {
    let address: IpAddr = text.parse().map_err(|_| MalformedForwarded)?;
    Ok(Node::Address(address.to_canonical()))
}

/// Splits off a port, which is up to five digits or an obfuscated one (RFC 7239, section 6).
fn split_port(text: &str) -> Result<(&str, Option<&str>), MalformedForwarded> {
    match text.rsplit_once(':') {
        None => Ok((text, None)),
        Some((name, port)) if is_port(port) => Ok((name, Some(port))),
        Some(_) => Err(MalformedForwarded),
    }
}

fn is_port(text: &str) -> bool {
    let digits = text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits && text.parse::<u16>().is_ok()) || is_obfuscated(text)
}

fn is_obfuscated(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    text.len() > 1 && text.starts_with('_') && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn nodes_may_carry_ports_and_are_unmapped() {
        let parsed = |text| Node::parse(text).ok().and_then(Node::address);
        for text in [
            "192.0.2.1",
            "192.0.2.1:567",
            "::ffff:192.0.2.1",
            "[::ffff:192.0.2.1]:5",
        ] {
            assert_eq!(parsed(text), address("192.0.2.1"), "{text}");
        }
        for text in ["2001:db8::1", "[2001:db8::1]", "[2001:db8::1]:567"] {
            assert_eq!(parsed(text), address("2001:db8::1"), "{text}");
        }
    }

    #[test]
    fn what_is_no_node_is_refused() {
        for text in [
            "",
            " ",
            ":",
            "192.0.2.1:",
            "192.0.2.1:99999",
            "192.0.2.1:123456",
            "192.0.2.1:+5",
            "192.0.2.256",
            "192.0.2.01",
            "[192.0.2.1]",
            "[2001:db8::1",
            "[2001:db8::1]x",
            "fe80::1%eth0",
            "[fe80::1%1]:80",
            "localhost",
            "_",
            "_a b",
            "2001:db8::1:99999",
        ] {
            assert_eq!(Node::parse(text), Err(MalformedForwarded), "{text:?}");
        }
    }
}
