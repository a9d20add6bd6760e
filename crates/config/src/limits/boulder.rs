//! Ids that Boulder refuses for its own limits, and that Weir takes.

use std::net::IpAddr;

/// Why Boulder refuses an id of a limit that is called as one of its own.
pub(super) fn refused_id(limit: &str, id: &str) -> Option<&'static str> {
    match limit {
        "NewRegistrationsPerIPAddress" | "LimitOverrideRequestsPerIPAddress" => address(id),
        "NewRegistrationsPerIPv6Range" => match id.contains(':') {
            true => address(id.split('/').next().unwrap_or(id)),
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
    let is_reserved = match id.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => {
            address.is_private() || address.is_loopback() || address.is_link_local()
        }
        Ok(IpAddr::V6(address)) => {
            address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local()
        }
        Err(_) => return Some("it is no single address"),
    };
    is_reserved.then_some("the address is reserved")
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
