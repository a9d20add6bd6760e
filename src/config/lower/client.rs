//! Whose word on the client's address is taken.

use std::net::IpAddr;

use http::HeaderName;
use ipnet::IpNet;

use super::{Lowered, Lowering};
use crate::config::schema::ClientAddress;
use crate::config::yaml::Spanned;
use crate::rules::{AddressHeader, ClientRules};

/// An IPv6 client is its /64 unless told otherwise: what one subscriber has at the least.
const DEFAULT_IPV6_PREFIX: u8 = 64;

impl Lowering<'_> {
    pub(super) fn client_rules(&mut self, written: Option<&ClientAddress>) -> Lowered<ClientRules> {
        let proxies = written.and_then(|it| it.trusted_proxies.as_ref());
        let networks: Vec<_> = proxies
            .into_iter()
            .flatten()
            .map(|text| self.network(text))
            .collect();
        let header = match written.and_then(|it| it.header.as_ref()) {
            Some(header) => self.address_header(header),
            None => Ok(AddressHeader::XForwardedFor),
        };
        Ok(ClientRules {
            trusted_proxies: networks.into_iter().collect::<Lowered<_>>()?,
            header: header?,
        })
    }

    /// A network, or one address.
    fn network(&mut self, text: &Spanned<String>) -> Lowered<IpNet> {
        if let Ok(address) = text.value.parse::<IpAddr>() {
            return Ok(address.into());
        }
        let network: IpNet = self.parse(text, "an address or a network, such as 10.0.0.0/8")?;
        if network.addr() != network.network() {
            let message = format!("`{}` is an address within its network", text.value);
            self.error(text.span, message)
                .help(format!("write `{}`", network.trunc()));
        }
        Ok(network)
    }

    fn address_header(&mut self, header: &Spanned<String>) -> Lowered<AddressHeader> {
        match header.value.to_ascii_lowercase().as_str() {
            "x-forwarded-for" => Ok(AddressHeader::XForwardedFor),
            "forwarded" => Ok(AddressHeader::Forwarded),
            _ => self
                .parse::<HeaderName>(header, "the name of a header")
                .map(AddressHeader::Single),
        }
    }

    /// The prefix to which IPv6 clients are cut where a limit does not say.
    pub(super) fn ipv6_prefix(&mut self, written: Option<&ClientAddress>) -> u8 {
        let Some(prefix) = written.and_then(|it| it.ipv6_prefix) else {
            return DEFAULT_IPV6_PREFIX;
        };
        if (32..=128).contains(&prefix.value) {
            return prefix.value;
        }
        self.error(
            prefix.span,
            format!("{} is no prefix of 32 to 128 bits", prefix.value),
        )
        .help("64 is one subscriber's network; 48 or 56 one site's");
        DEFAULT_IPV6_PREFIX
    }
}
