//! Ids that Boulder refuses for its own limits, and that Weir takes.

use std::net::IpAddr;
use std::sync::LazyLock;

use ipnet::IpNet;

/// The blocks of IANA's registries of special-purpose addresses (RFC 6890), those of documentation
/// included, and multicast. One within another is left out.
const RESERVED: [&str; 32] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.31.196.0/24",
    "192.52.193.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "192.175.48.0/24",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/3",
    "::/127",
    "::ffff:0:0/96",
    "64:ff9b::/96",
    "64:ff9b:1::/48",
    "100::/64",
    "100:0:0:1::/64",
    "2001::/23",
    "2001:db8::/32",
    "2002::/16",
    "2620:4f:8000::/48",
    "3fff::/20",
    "5f00::/16",
    "fc00::/7",
    "fe80::/10",
    "ff00::/8",
];

/// Why Boulder refuses an id of a limit that is called as one of its own.
pub(super) fn refused_id(limit: &str, id: &str) -> Option<&'static str> {
    match limit {
        "NewRegistrationsPerIPAddress" | "LimitOverrideRequestsPerIPAddress" => address(id),
        "NewRegistrationsPerIPv6Range" => match id.contains(':') {
            true => range(id),
            false => Some("it is no network of IPv6"),
        },
        "NewOrdersPerAccount" => account(id),
        "CertificatesPerDomainPerAccount"
        | "FailedAuthorizationsPerDomainPerAccount"
        | "FailedAuthorizationsForPausingPerDomainPerAccount" => match id.split_once(':') {
            Some((number, name)) => account(number).or_else(|| domain(name)),
            None => account(id),
        },
        "CertificatesPerDomain" => domain(id),
        "CertificatesPerFQDNSet" => id.split(',').find_map(domain),
        _ => None,
    }
}

fn address(id: &str) -> Option<&'static str> {
    match id.parse::<IpAddr>() {
        Ok(address) => is_reserved(address.into()).then_some("the address is reserved"),
        Err(_) => Some("it is no single address"),
    }
}

fn range(id: &str) -> Option<&'static str> {
    let network = id
        .parse()
        .ok()
        .or_else(|| id.parse::<IpAddr>().ok().map(IpNet::from));
    let is_reserved = network.is_some_and(is_reserved);
    is_reserved.then_some("the address is reserved")
}

fn is_reserved(network: IpNet) -> bool {
    static NETWORKS: LazyLock<Vec<IpNet>> = LazyLock::new(|| {
        let parsed = RESERVED.iter().filter_map(|it| it.parse().ok());
        parsed.collect()
    });
    let mut reserved = NETWORKS.iter();
    reserved.any(|it| it.contains(&network) || network.contains(it))
}

fn account(id: &str) -> Option<&'static str> {
    let is_number = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
    (!is_number).then_some("an account is a number")
}

fn domain(id: &str) -> Option<&'static str> {
    let is_address = id.parse::<IpAddr>().is_ok();
    let is_domain = id.contains('.') && !id.starts_with('.') && !id.contains('*');
    (!is_address && !is_domain).then_some("it is no domain")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_blocks_that_are_reserved_are_networks() {
        assert!(RESERVED.iter().all(|it| it.parse::<IpNet>().is_ok()));
    }
}
