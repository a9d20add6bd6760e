//! Addresses as text, written often enough to be worth a shorter way than `Display`'s.

use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr};

/// Hands the text of an address to `push`, piece by piece.
pub(crate) fn push_address(address: IpAddr, push: impl FnMut(&str)) {
    match address {
        IpAddr::V4(address) => push_v4(address, push),
        // A sink takes whatever is written to it.
        IpAddr::V6(address) => drop(write!(Sink(push), "{address}")),
    }
}

/// `Display` would pad and measure each number.
pub(crate) fn push_v4(address: Ipv4Addr, mut push: impl FnMut(&str)) {
    let mut number = itoa::Buffer::new();
    let [first, rest @ ..] = address.octets();
    push(number.format(first));
    for octet in rest {
        push(".");
        push(number.format(octet));
    }
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
