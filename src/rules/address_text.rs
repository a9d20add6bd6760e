//! Addresses as text, written often enough to be worth a shorter way than `Display`'s.

use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr};

use smallvec::SmallVec;

/// Hands the text of an address to `push`, in pieces where it is one of IPv6.
pub(crate) fn push_address(address: IpAddr, push: impl FnMut(&str)) {
    match address {
        IpAddr::V4(address) => push_v4(address, push),
        // A sink takes whatever is written to it.
        IpAddr::V6(address) => drop(write!(Sink(push), "{address}")),
    }
}

/// `Display` would pad and measure each number.
pub(crate) fn push_v4(address: Ipv4Addr, push: impl FnOnce(&str)) {
    let mut text = SmallVec::<[u8; 16]>::new();
    let [first, rest @ ..] = address.octets();
    push_octet(first, &mut text);
    for octet in rest {
        text.push(b'.');
        push_octet(octet, &mut text);
    }
    push(str::from_utf8(&text).unwrap_or_default());
}

fn push_octet(octet: u8, text: &mut SmallVec<[u8; 16]>) {
    if octet >= 100 {
        text.push(b'0' + octet / 100);
    }
    if octet >= 10 {
        text.push(b'0' + octet / 10 % 10);
    }
    text.push(b'0' + octet % 10);
}

struct Sink<F>(F);

impl<F: FnMut(&str)> Write for Sink<F> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        (self.0)(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_address_is_written_as_it_is_displayed(address: IpAddr) {
            let mut text = String::new();
            push_address(address, |piece| text.push_str(piece));
            prop_assert_eq!(text, address.to_string());
        }
    }
}
