//! Who the client of a line is: its address, or the one that trusted proxies vouch for.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue};
use weir_rules::{AddressHeader, ClientRules, Node};

use super::LineMaker;
use super::fields::{Field, NO_CLIENT, Texts};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

const NO_ADDRESS: &str = "its client is not an address";

/// An address, with its port or without.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    Node::parse(text).ok()?.address()
}

/// The address before the last colon: IPv6 addresses stand there without brackets.
fn without_port(text: &str) -> Option<IpAddr> {
    let (host, port) = text.rsplit_once(':')?;
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    address(host).filter(|_| is_port)
}

impl LineMaker<'_> {
    pub(super) fn client(&mut self, texts: &Texts<'_>) -> Result<IpAddr, &'static str> {
        let forwarded = texts.get(Field::Forwarded);
        if let Some(peer) = texts.get(Field::ClientWithPort) {
            let peer = without_port(peer).ok_or(NO_ADDRESS)?;
            return Ok(self.behind(peer, forwarded));
        }
        match (texts.get(Field::Client), forwarded) {
            (Some(client), forwarded) => self.client_of(client, forwarded),
            // Some servers log what the proxy before them said, and not who that was.
            (None, Some(list)) => self.of_list(list),
            (None, None) => Err(NO_CLIENT),
        }
    }

    /// The client of a field that holds its address, or a list in its place.
    pub(super) fn client_of(
        &mut self,
        text: &str,
        forwarded: Option<&str>,
    ) -> Result<IpAddr, &'static str> {
        match text.contains(',') {
            true => self.of_list(text),
            false => {
                let peer = address(text).ok_or(NO_ADDRESS)?;
                Ok(self.behind(peer, forwarded))
            }
        }
    }

    /// The client behind a peer, if that is a trusted proxy and said who its client was.
    pub(super) fn behind(&self, peer: IpAddr, forwarded: Option<&str>) -> IpAddr {
        let Some((rules, list)) = self.options.clients.zip(forwarded) else {
            return peer;
        };
        match rules.trusts(peer) {
            true => walk(rules, peer, list),
            false => peer,
        }
    }

    /// The client of a list: the first address from the right that is not one of a trusted proxy.
    /// Without trusted proxies it is the leftmost, which a client can make up.
    fn of_list(&mut self, list: &str) -> Result<IpAddr, &'static str> {
        let mut entries = list.split(',').map(str::trim);
        let Some(rules) = self.options.clients else {
            let first = entries.next().and_then(address).ok_or(NO_ADDRESS)?;
            self.leftmost += u64::from(entries.next().is_some());
            return Ok(first);
        };
        let (before, last) = list.rsplit_once(',').unwrap_or(("", list));
        let last = address(last.trim()).ok_or(NO_ADDRESS)?;
        Ok(match rules.trusts(last) {
            true => walk(rules, last, before),
            false => last,
        })
    }
}

/// The walk of the gateway itself. Logs have `X-Forwarded-For`, whichever header the gateway reads.
fn walk(rules: &ClientRules, peer: IpAddr, list: &str) -> IpAddr {
    let mut headers = HeaderMap::new();
    if let Ok(list) = HeaderValue::from_str(list) {
        headers.insert(X_FORWARDED_FOR, list);
    }
    if *rules.header() == AddressHeader::XForwardedFor {
        return rules.client(peer, &headers).address;
    }
    let rules = rules.clone().with_header(AddressHeader::XForwardedFor);
    rules.client(peer, &headers).address
}

#[cfg(test)]
mod tests {
    use super::super::ParseOptions;
    use super::*;

    fn clients(texts: &[&str], trusted: &[&str]) -> Vec<Option<String>> {
        let trusted_proxies = trusted.iter().map(|net| net.parse().unwrap());
        let rules = ClientRules::new(trusted_proxies, AddressHeader::XForwardedFor);
        let options = ParseOptions {
            clients: (!trusted.is_empty()).then_some(&rules),
            ..ParseOptions::default()
        };
        let mut make = LineMaker::new(options);
        let client = |text: &&str| make.client_of(text, None).ok();
        let found = texts.iter().map(client);
        found.map(|found| found.map(|it| it.to_string())).collect()
    }

    #[test]
    fn the_client_of_a_list_is_the_one_that_the_gateway_would_find() {
        let lists = [
            "203.0.113.1, 10.0.0.1",
            "203.0.113.1,10.0.0.1",
            "203.0.113.9, 203.0.113.1, 10.0.0.1",
            "unknown, 203.0.113.1, 10.0.0.1",
            "[2001:db8::1]:4711, 10.0.0.2,10.0.0.1",
            "2001:db8::1, 10.0.0.1",
            "203.0.113.1:80, 10.0.0.1",
        ];
        let v4 = Some("203.0.113.1".to_owned());
        let v6 = Some("2001:db8::1".to_owned());
        let found = clients(&lists, &["10.0.0.0/8"]);
        let expected = [&v4, &v4, &v4, &v4, &v6, &v6, &v4].map(Clone::clone);
        assert_eq!(found, expected);
        // Nobody says which proxies are trusted: the leftmost, which is counted.
        let first = Some("203.0.113.9".to_owned());
        let found = clients(&lists, &[]);
        assert_eq!(
            found,
            [v4.clone(), v4.clone(), first, None, v6.clone(), v6, v4]
        );
    }

    #[test]
    fn what_is_no_address_is_no_client() {
        for text in ["unknown", "-", "", "example.com", "a, b", "203.0.113.1, x"] {
            assert_eq!(clients(&[text], &["10.0.0.0/8"]), [None], "{text}");
        }
        assert_eq!(without_port("2001:db8::1:8080"), address("2001:db8::1"));
        assert_eq!(without_port("203.0.113.1:8080"), address("203.0.113.1"));
        assert_eq!(without_port("203.0.113.1"), None);
    }
}
