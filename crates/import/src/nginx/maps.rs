//! What a zone counts by: a text with variables, or one that a `map` or a `geo` chooses.

use super::networks::{Counted, Network};
use super::parse::Directive;
use super::scopes::named;

/// What requests are counted by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counting {
    /// The sources of Weir.
    pub(super) sources: Vec<String>,
    /// Whether each server counts apart.
    pub(super) is_by_server: bool,
    /// How it counts otherwise than nginx, if it does.
    pub(super) note: Option<&'static str>,
    /// Clients that are not counted.
    pub(super) clients: Counted,
}

/// What a zone counts by, for each request. Nothing is counted where it is none.
pub(super) enum Keyed {
    Always(Counting),
    ByMethod {
        methods: Vec<(String, Option<Counting>)>,
        others: Option<Counting>,
    },
    /// By whether a header or parameter has a value.
    ByValue {
        condition: Condition,
        with: Option<Counting>,
        without: Option<Counting>,
    },
}

/// A header or a parameter of the query that has a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    /// `headers` or `query`.
    pub(super) key: &'static str,
    pub(super) name: String,
}

/// Requests by their method, and by whether a header or parameter has a value.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Case<'c> {
    /// None stands for all methods that nobody names.
    pub(super) method: Option<&'c str>,
    /// The headers and parameters that have a value, of those that limits look at.
    pub(super) values: &'c [&'c Condition],
}

/// Reads the key of a zone.
///
/// # Errors
/// The error says what Weir has no equal for.
pub(super) fn keyed(http: &[Directive], key: &str) -> Result<Keyed, String> {
    let Some(map) = defining(http, "map", key) else {
        if defining(http, "geo", key).is_some() {
            return Err(format!(
                "nginx expands no variable in `geo`, so all clients with one value of `{key}` \
                 have one bucket"
            ));
        }
        return Counting::of(key).map(Keyed::Always);
    };
    let source = map.argument(0);
    if let Some(geo) = defining(http, "geo", source) {
        return by_network(geo, map).map(Keyed::Always);
    }
    let entries = Entries::of(map)?;
    match source.trim_start_matches('$').trim_matches(['{', '}']) {
        "remote_addr" => by_address(&entries).map(Keyed::Always),
        "request_method" => by_method(http, &entries),
        variable => by_value(http, &entries, variable),
    }
}

/// The directive that defines a variable.
fn defining<'d>(http: &'d [Directive], kind: &str, variable: &str) -> Option<&'d Directive> {
    let variable = bare(variable);
    let defines = |it: &&Directive| it.arguments.last().is_some_and(|it| bare(it) == variable);
    named(http, kind).find(|it| variable.is_some() && defines(it))
}

/// The name of a variable, if a text is one and nothing more.
fn bare(text: &str) -> Option<&str> {
    let (name, rest) = variable(text.strip_prefix('$')?);
    rest.is_empty().then_some(name)
}

/// What a `map` has for each value.
struct Entries<'d> {
    map: &'d Directive,
    values: Vec<(&'d str, &'d str)>,
    default: &'d str,
}

impl<'d> Entries<'d> {
    fn of(map: &'d Directive) -> Result<Self, String> {
        if map.block.iter().any(|it| it.name == "hostnames") {
            return Err(format!("`{}` compares host names", map.written()));
        }
        let own = |it: &&Directive| !matches!(it.name.as_str(), "volatile" | "default");
        let values = map.block.iter().filter(own);
        let default = named(&map.block, "default").last();
        Ok(Self {
            map,
            values: values
                .map(|it| (it.name.as_str(), it.argument(0)))
                .collect(),
            default: default.map_or("", |it| it.argument(0)),
        })
    }

    fn complex(&self) -> String {
        let known = "networks, methods, or one header that may be empty";
        format!("`{}` chooses by more than {known}", self.map.written())
    }
}

/// What one value of a `map` counts by, which may be of another `map`.
fn counting(http: &[Directive], value: &str) -> Result<Option<Counting>, String> {
    if value.is_empty() {
        return Ok(None);
    }
    match defining(http, "map", value) {
        Some(map) => {
            let geo = defining(http, "geo", map.argument(0));
            let geo = geo.ok_or_else(|| format!("`{}` is a map of a map", map.written()))?;
            by_network(geo, map).map(Some)
        }
        None => Counting::of(value).map(Some),
    }
}

/// A `map` of the value that a `geo` has for the client.
fn by_network(geo: &Directive, map: &Directive) -> Result<Counting, String> {
    // A `geo` may look at an address that clients choose.
    if geo.arguments.len() > 1 && bare(geo.argument(0)) != Some("remote_addr") {
        return Err(format!(
            "`{}` is not about the client's address",
            geo.written()
        ));
    }
    let entries = Entries::of(map)?;
    if entries.values.iter().any(|(name, _)| name.starts_with('~')) {
        return Err(entries.complex());
    }
    let of_value = |value: &str| {
        let mut values = entries.values.iter();
        let exact = values.find(|(name, _)| name.eq_ignore_ascii_case(value));
        exact.map_or(entries.default, |(_, key)| *key)
    };
    let mut default = "";
    let mut networks = Vec::new();
    for entry in &geo.block {
        match entry.name.as_str() {
            "default" => default = entry.argument(0),
            word @ ("ranges" | "delete" | "proxy" | "proxy_recursive") => {
                return Err(format!("`{}` has `{word}`", geo.written()));
            }
            name => match Network::parse(name) {
                Some(network) => networks.push((network, of_value(entry.argument(0)))),
                None => return Err(format!("`{}` has `{name}`", geo.written())),
            },
        }
    }
    of_clients(of_value(default), networks, || entries.complex())
}

/// A `map` of the client's address as a text.
fn by_address(entries: &Entries<'_>) -> Result<Counting, String> {
    let networks = entries.values.iter().map(|(name, key)| {
        // Where a slash is, no address is equal to it.
        let address = Network::parse(name).filter(|_| !name.contains('/'));
        Ok((address.ok_or_else(|| entries.complex())?, *key))
    });
    let networks: Result<Vec<_>, String> = networks.collect();
    of_clients(entries.default, networks?, || entries.complex())
}

/// Counts by the one key that some clients have, and the others do not.
fn of_clients(
    default: &str,
    networks: Vec<(Network, &str)>,
    complex: impl Fn() -> String,
) -> Result<Counting, String> {
    let keys = [default]
        .into_iter()
        .chain(networks.iter().map(|(_, key)| *key));
    let mut keys: Vec<_> = keys.filter(|key| !key.is_empty()).collect();
    keys.sort_unstable();
    keys.dedup();
    let &[key] = &keys[..] else {
        return Err(complex());
    };
    let mut counting = Counting::of(key)?;
    counting.clients.is_exempt_by_default = default.is_empty();
    for (network, key) in networks {
        counting.clients.insert(network, !key.is_empty());
    }
    match counting.sources[..] == ["address"] && !counting.is_by_server {
        true => Ok(counting),
        false => Err("networks are exempt from limits `per: address` alone".to_owned()),
    }
}

fn by_method(http: &[Directive], entries: &Entries<'_>) -> Result<Keyed, String> {
    let mut methods = Vec::new();
    // nginx takes an equal text before all expressions.
    let is_text = |(name, _): &&(&str, &str)| !name.starts_with('~');
    let (texts, expressions): (Vec<_>, Vec<_>) = entries.values.iter().partition(is_text);
    for (name, key) in texts.into_iter().chain(expressions) {
        let names = methods_of(name).ok_or_else(|| entries.complex())?;
        let counting = counting(http, key)?;
        methods.extend(names.into_iter().map(|name| (name, counting.clone())));
    }
    Ok(Keyed::ByMethod {
        methods,
        others: counting(http, entries.default)?,
    })
}

/// The methods that a text or a simple expression names; none for one that is not simple.
pub(super) fn methods_of(text: &str) -> Option<Vec<String>> {
    let names = match text.strip_prefix('~') {
        Some(regex) => {
            let regex = regex
                .trim_start_matches('*')
                .strip_prefix('^')?
                .strip_suffix('$')?;
            let group = regex.strip_prefix('(').and_then(|it| it.strip_suffix(')'));
            group.map_or(regex, |it| it.trim_start_matches("?:"))
        }
        None => text,
    };
    let is_method =
        |name: &str| !name.is_empty() && name.bytes().all(|it| it.is_ascii_alphabetic());
    let names: Vec<_> = names.split('|').map(str::to_ascii_uppercase).collect();
    let is_one = text.starts_with('~') || names.len() == 1;
    (is_one && names.iter().all(|name| is_method(name))).then_some(names)
}

/// A `map` of whether a header or a parameter has a value, as one of a CDN.
fn by_value(http: &[Directive], entries: &Entries<'_>, variable: &str) -> Result<Keyed, String> {
    let header = variable
        .strip_prefix("http_")
        .map(|it| ("headers", it.replace('_', "-")));
    let query = variable
        .strip_prefix("arg_")
        .map(|it| ("query", it.to_owned()));
    let without = match entries.values[..] {
        [("", key)] => key,
        [] => entries.default,
        _ => return Err(entries.complex()),
    };
    let (key, name) = header.or(query).ok_or_else(|| entries.complex())?;
    Ok(Keyed::ByValue {
        condition: Condition { key, name },
        with: counting(http, entries.default)?,
        without: counting(http, without)?,
    })
}

impl Counting {
    /// Reads a text with variables.
    fn of(key: &str) -> Result<Self, String> {
        let mut parts = key.split('$');
        let begins_plain = parts.next() != Some("");
        let (mut sources, mut dropped, mut is_by_server) = (Vec::new(), None, false);
        let mut is_joined = begins_plain;
        for part in parts {
            let (variable, rest) = variable(part);
            is_joined |= !rest.is_empty();
            match variable {
                "server_name" => is_by_server = true,
                "uri" | "request_uri" | "document_uri" | "args" | "query_string" | "is_args" => {
                    dropped = Some(variable);
                }
                "scheme" | "server_port" | "server_addr" => is_joined = true,
                _ => sources.push(source(variable)?),
            }
        }
        sources.dedup();
        let mut counting = Self {
            sources,
            is_by_server,
            note: None,
            clients: Counted::default(),
        };
        if let Some(variable) = dropped {
            counting.note = Some("counts by the rest of the key, whatever the path or query is");
            if counting.sources.is_empty() {
                return Err(format!("Weir does not count by `${variable}`"));
            }
        } else if ["$scheme", "$server_port", "$server_addr"]
            .iter()
            .any(|it| key.contains(it))
        {
            counting.note = Some("counts the requests to all listeners together");
        }
        counting.leave_out_optional(is_joined)?;
        Ok(counting)
    }

    /// Weir counts no request that lacks one of the values, where nginx counts by the others.
    fn leave_out_optional(&mut self, is_joined: bool) -> Result<(), String> {
        let is_optional = |source: &String| source.contains(':');
        let is_more = is_joined || self.is_by_server || self.note.is_some();
        if self.sources.iter().any(is_optional) && (is_more || self.sources.len() > 1) {
            if !self.sources.iter().any(|source| source == "address") {
                return Err("Weir does not count requests that have a part of the key".to_owned());
            }
            self.sources.retain(|source| !is_optional(source));
            self.note = Some("counts by the address, whatever the rest of the key is");
        }
        Ok(())
    }
}

/// The name of the variable that begins a text, and the text behind it.
pub(super) fn variable(text: &str) -> (&str, &str) {
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
