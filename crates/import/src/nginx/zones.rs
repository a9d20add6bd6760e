//! Zones: what they count by, how much, and whom they leave out.

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
        let mut sources = key
            .split('$')
            .skip(1)
            .map(source)
            .collect::<Result<Vec<_>, _>>()?;
        sources.dedup();
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

/// The source that a variable stands for, whose name begins a text.
fn source(text: &str) -> Result<String, String> {
    let is_end = |letter: char| !(letter.is_ascii_alphanumeric() || letter == '_');
    let variable = text
        .trim_start_matches('{')
        .split(is_end)
        .next()
        .unwrap_or_default();
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
        "server_name" | "host" | "http_host" => Ok("host".to_owned()),
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
        .all(|entry| key_of(entry).is_empty() && !entry.name.contains('-'));
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
