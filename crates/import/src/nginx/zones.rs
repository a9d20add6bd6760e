//! Zones: what they count by, how much, and whom they leave out.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::parse::Directive;
use super::scopes::named;

/// How much an exempt client may send.
const UNLIMITED: u64 = 1_000_000;

/// A zone of `limit_req_zone` or `limit_conn_zone`.
pub(super) struct Zone {
    /// The sources that it counts per.
    per: Value,
    /// Addresses and networks that are not counted.
    exempt: Vec<String>,
    /// How it counts otherwise than nginx, if it does.
    pub(super) note: Option<&'static str>,
    /// The count, and the seconds of its period; none for a zone of requests in flight.
    pub(super) rate: Option<(u64, u64)>,
}

impl Zone {
    /// Reads the zone that a directive defines.
    ///
    /// # Errors
    /// The error says what Weir has no equal for.
    pub(super) fn new(http: &[Directive], directive: &Directive) -> Result<Self, String> {
        let (key, exempt) = without_exemptions(http, directive.argument(0))?;
        let (sources, note) = sources(&key)?;
        if !exempt.is_empty() && sources != ["address"] {
            return Err("networks are exempt from limits `per: address` alone".to_owned());
        }
        let is_rate = directive.name == "limit_req_zone";
        let rate = is_rate.then(|| {
            let text = directive.parameter("rate").unwrap_or("1r/s");
            let malformed = || format!("`{text}` is not a rate");
            let (count, unit) = text.split_once("r/").ok_or_else(malformed)?;
            let count = count.parse().ok().filter(|count| *count > 0);
            let seconds = if unit == "m" { 60 } else { 1 };
            Ok::<_, String>((count.ok_or_else(malformed)?, seconds))
        });
        Ok(Self {
            per: match &sources[..] {
                [] => json!("global"),
                [one] => json!(one),
                several => json!(several),
            },
            exempt,
            note,
            rate: rate.transpose()?,
        })
    }

    /// The keys of a limit that allows so much at once.
    pub(super) fn limit(&self, at_once: u64) -> Value {
        match self.rate {
            Some((count, seconds)) => {
                let period = if seconds == 60 { "1m" } else { "1s" };
                json!({"per": self.per, "burst": at_once, "count": count, "period": period})
            }
            None => json!({"per": self.per, "in_flight": at_once}),
        }
    }

    /// The override that lets exempt clients through.
    pub(super) fn exemption(&self) -> Option<Value> {
        let exempt = match self.rate {
            Some(_) => {
                json!({"burst": UNLIMITED, "count": UNLIMITED, "period": "1s", "ids": self.exempt})
            }
            None => json!({"in_flight": UNLIMITED, "ids": self.exempt}),
        };
        (!self.exempt.is_empty()).then_some(exempt)
    }
}

/// The sources that a key stands for, and how they count otherwise than nginx.
fn sources(key: &str) -> Result<(Vec<String>, Option<&'static str>), String> {
    let mut parts = key.split('$');
    let begins_plain = parts.next() != Some("");
    let (mut sources, mut note) = (Vec::new(), None);
    let mut is_joined = begins_plain;
    for part in parts {
        let (variable, rest) = variable(part);
        is_joined |= !rest.is_empty();
        // A client without a known host has the default server, so that `per: host` is in its hands.
        if variable == "server_name" {
            note = Some("counts the requests to all servers together");
        } else {
            sources.push(source(variable)?);
        }
    }
    sources.dedup();
    // Weir counts no request that lacks one of the values, where nginx counts by the others.
    let is_optional = |source: &String| source.contains(':');
    if sources.iter().any(is_optional) && (is_joined || note.is_some() || sources.len() > 1) {
        if !sources.iter().any(|source| source == "address") {
            return Err("Weir does not count requests that have a part of the key".to_owned());
        }
        sources.retain(|source| !is_optional(source));
        note = Some("counts by the address, whatever the rest of the key is");
    }
    Ok((sources, note))
}

/// The name of the variable that begins a text, and the text behind it.
fn variable(text: &str) -> (&str, &str) {
    if let Some((variable, rest)) = text.strip_prefix('{').and_then(|text| text.split_once('}')) {
        return (variable, rest);
    }
    let is_end = |letter: char| !(letter.is_ascii_alphanumeric() || letter == '_');
    text.split_at(text.find(is_end).unwrap_or(text.len()))
}

/// The source that a variable stands for.
fn source(variable: &str) -> Result<String, String> {
    let prefixes = [
        ("http_", "header"),
        ("arg_", "query"),
        ("cookie_", "cookie"),
    ];
    let named = prefixes.iter().find_map(|(prefix, kind)| {
        let name = variable.strip_prefix(prefix)?;
        let name = if *kind == "header" {
            name.replace('_', "-")
        } else {
            name.to_owned()
        };
        Some(format!("{kind}:{name}"))
    });
    match variable {
        "binary_remote_addr" | "remote_addr" => Ok("address".to_owned()),
        "host" | "http_host" => Ok("host".to_owned()),
        "request_method" => Ok("method".to_owned()),
        _ => named.ok_or(format!("Weir does not count by `${variable}`")),
    }
}

/// The key of clients in general, and the networks of those whose key is empty: nginx does not count
/// them. Such a key is the variable of a `map` of a `geo`.
fn without_exemptions(http: &[Directive], key: &str) -> Result<(String, Vec<String>), String> {
    let defining = |kind, variable: &str| {
        let mut directives = named(http, kind);
        directives.find(|directive| {
            directive
                .arguments
                .last()
                .is_some_and(|last| last == variable)
        })
    };
    let Some(map) = defining("map", key) else {
        return Ok((key.to_owned(), Vec::new()));
    };
    let complex = || format!("`{}` is more than a list of networks", map.written());
    let geo = defining("geo", map.argument(0)).ok_or_else(complex)?;
    // A geo may look at an address that clients choose.
    if geo.arguments.len() > 1 && !geo.argument(0).ends_with("remote_addr") {
        return Err(complex());
    }
    let key_of = |entry: &Directive| {
        let exact = named(&map.block, entry.argument(0)).next();
        let found = exact.or_else(|| named(&map.block, "default").next());
        found.map_or("", |found| found.argument(0)).to_owned()
    };
    let (default, networks): (Vec<_>, Vec<_>) =
        geo.block.iter().partition(|entry| entry.name == "default");
    let default = default
        .last()
        .map(|entry| key_of(entry))
        .unwrap_or_default();
    let is_list = networks
        .iter()
        .all(|entry| key_of(entry).is_empty() && is_network(&entry.name));
    if !is_list || default.is_empty() {
        return Err(complex());
    }
    let network = |entry: &&Directive| {
        let single = ["/32", "/128"]
            .iter()
            .find_map(|size| entry.name.strip_suffix(size));
        single.unwrap_or(&entry.name).to_owned()
    };
    Ok((default, networks.iter().map(network).collect()))
}

/// Whether it is an address or a network, as Weir has them: without bits behind the prefix's.
fn is_network(text: &str) -> bool {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, bits.parse::<u8>().ok()),
        None => (text, Some(128)),
    };
    let keeps = |value: u128, width: u32| {
        bits.is_some_and(|bits| {
            value
                .checked_shl(128 - width + u32::from(bits))
                .unwrap_or(0)
                == 0
        })
    };
    match address.parse() {
        Ok(IpAddr::V4(address)) => keeps(u128::from(address.to_bits()), 32),
        Ok(IpAddr::V6(address)) => keeps(address.to_bits(), 128),
        Err(_) => false,
    }
}
