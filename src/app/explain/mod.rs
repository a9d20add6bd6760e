//! `weir explain`: what would become of a request, and why.
//!
//! It uses the same rules as the gateway's layers, and takes requests through the same stages of a
//! decision, but without the store: it says which buckets a request takes from, not what is in them.

mod action;
mod decision;
mod descriptor;
pub(super) mod limits;

use std::fmt::{self, Write};
use std::net::IpAddr;
use std::path::Path;

use bytes::Bytes;
use http::header::{HOST, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Response, Uri, Version};
use http_body_util::Full;
use serde_json::Value;
use weir_config::{Route, Settings};
use weir_limit::time::{Clock, SystemClock};
use weir_middleware::{ClientIdentity, HeaderForm, HeaderForms};
use weir_rules::{
    AddressHeader, Captures, Client, ClientRules, HashKey, RequestAttributes, RouteMatch,
    RouteTable,
};
use weir_yaml::Diagnostics;

use self::decision::FirstDecision;
pub use self::descriptor::{Descriptor, explain_descriptor, parse_entry};
use super::features::{ArrivedRequest, Load, ROOMS, overrides};
use super::stack::refusal;

/// Added when no `hash_key` is configured.
const PASSING_KEY: &str =
    "note: no hash_key is configured, so each process has hashes of its own\n";

/// The request to explain, as a server would pass it on. Without a `Host`, it is HTTP/1.0, which
/// allows that, so that it is not refused for it.
pub fn request_head(method: Method, uri: Uri, headers: HeaderMap) -> Parts {
    let mut whole = http::Request::new(());
    *whole.method_mut() = method;
    *whole.uri_mut() = uri;
    if !headers.contains_key(HOST) {
        *whole.version_mut() = Version::HTTP_10;
    }
    *whole.headers_mut() = headers;
    whole.into_parts().0
}

/// A request, and the address that its connection comes from.
pub type Arriving<'r> = (&'r Parts, IpAddr);

/// Explains the treatment of `request` by the configuration at `path`.
///
/// # Errors
/// When the configuration is in error.
pub fn explain(path: &Path, request: Arriving<'_>) -> Result<String, Diagnostics> {
    explained(path, |out, settings| write(out, settings, request, None))
}

/// What is written of the configuration at `path`, with the overrides in force.
fn explained(
    path: &Path,
    write: impl FnOnce(&mut String, &Settings) -> fmt::Result,
) -> Result<String, Diagnostics> {
    let key = HashKey::random();
    let settings = weir_config::load(path, &key)?;
    let (settings, note) = overrides::with_kept(settings);
    let mut text = String::new();
    // Writing to a `String` never fails.
    let _ = write(&mut text, &settings);
    text.push_str(&note);
    if settings.account.key == key {
        text.push_str(PASSING_KEY);
    }
    Ok(text)
}

/// Explains the treatment of `request` by loaded settings, and by the `load` of now.
pub(super) fn explain_in_force(settings: &Settings, request: Arriving<'_>, load: &Load) -> String {
    let mut text = String::new();
    // Writing to a `String` never fails.
    let _ = write(&mut text, settings, request, Some(load));
    text
}

/// Parses a path; anything else would be taken for a host.
///
/// # Errors
/// When it is not a path, with what to write instead.
pub fn parse_path(text: &str) -> Result<Uri, String> {
    if !text.starts_with('/') && text != "*" {
        return Err(match text.contains("://") {
            true => "write the path alone, and the host with --host, or as a header".to_owned(),
            false => format!("a path begins with a slash: /{text}"),
        });
    }
    let path: PathAndQuery = text.parse().map_err(|error| {
        format!("{error}; encode what a URI cannot have, such as a blank as %20")
    })?;
    Ok(path.into())
}

/// Parses a header line.
///
/// # Errors
/// When it is not one, with what to write instead.
pub fn parse_header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("write it as NAME:VALUE")?;
    let name = name
        .trim()
        .parse()
        .map_err(|_| format!("`{name}` is not a header name"))?;
    let value = value
        .trim()
        .parse()
        .map_err(|_| "the value has control characters".to_owned())?;
    Ok((name, value))
}

fn write(
    out: &mut String,
    settings: &Settings,
    (request, peer): Arriving<'_>,
    load: Option<&Load>,
) -> fmt::Result {
    let (method, uri) = (&request.method, &request.uri);
    writeln!(out, "{method} {uri} from {peer}")?;
    if let Some(answer) = refusal(request) {
        return write_refusal(out, answer);
    }
    let table = settings.route_table();
    let found = table.find(method, uri, &request.headers);
    let route = found
        .as_ref()
        .and_then(|found| settings.routes.get(found.id.0));
    let identity = identity(settings, (request, peer));
    let facts = facts(request, found.as_ref(), route, &identity);
    match (found.as_ref(), route) {
        (Some(found), Some(route)) => {
            write_match(out, settings, (found, route), &facts)?;
            write_treatment(out, settings, route, &facts, &identity, load)?;
        }
        _ => writeln!(out, "\nroute: none matches, so the answer is 404")?,
    }
    let mut rooms = ROOMS.iter();
    if route.is_none() && !rooms.any(|room| room.acts_without_route(settings)) {
        return Ok(());
    }
    write_client(out, settings, &identity.client, (request, peer))?;
    write_account(out, settings, &identity, &request.headers)?;
    let body_bytes = || limits::body_bytes(&request.headers);
    let decision = FirstDecision::new(settings, route, &facts, body_bytes);
    if decision.verdict.listed.is_some() {
        let mut rooms = ROOMS.iter();
        return rooms.try_for_each(|room| room.explain_listed(out, settings, &facts));
    }
    if let Some(route) = route {
        limits::write_limits(out, settings, route, &facts, &decision)?;
    }
    for room in ROOMS {
        room.explain(out, settings, &facts)?;
    }
    let Some(route) = route else { return Ok(()) };
    writeln!(out, "\non denial: {}", route.policy.denial_in_full())?;
    write_forms(out, route.policy.header_forms)
}

/// Writes the response to a request that is refused before limits and upstreams.
fn write_refusal(out: &mut String, answer: Response<Full<Bytes>>) -> fmt::Result {
    writeln!(out, "\nrefused: {} for every client", answer.status())?;
    let body = answer.into_body().into_inner().unwrap_or_default();
    let problem: Value = serde_json::from_slice(&body).unwrap_or_default();
    if let Some(detail) = problem.get("detail").and_then(Value::as_str) {
        writeln!(out, "  {detail}")?;
    }
    writeln!(
        out,
        "  no limit counts it, no ban holds it, and no upstream gets it"
    )
}

/// What limits, bans and templates go by.
fn facts<'a>(
    request: &'a Parts,
    found: Option<&'a RouteMatch>,
    route: Option<&'a Route>,
    identity: &'a ClientIdentity,
) -> RequestAttributes<'a> {
    RequestAttributes {
        method: &request.method,
        uri: &request.uri,
        headers: &request.headers,
        client: identity.client.address,
        secure: identity.secure,
        account: identity.account.as_ref(),
        route: route.map_or("-", |route| &route.policy.name),
        captures: found.map_or(Captures::NONE, |found| &found.captures),
        now: SystemClock.now(),
    }
}

/// The client, as the layers identify it.
fn identity(settings: &Settings, (request, peer): Arriving<'_>) -> ClientIdentity {
    let headers = &request.headers;
    let client = settings.client.client(peer, headers);
    let nat64 = settings.client.nat64_prefixes();
    ClientIdentity {
        account: settings.account.account(headers),
        ..ClientIdentity::new(client, false, headers, nat64)
    }
}

fn write_match(
    out: &mut String,
    settings: &Settings,
    (found, route): (&RouteMatch, &Route),
    facts: &RequestAttributes<'_>,
) -> fmt::Result {
    writeln!(out, "\nroute: {}", route.policy.name)?;
    writeln!(out, "  matches {}", route.description)?;
    for (name, value) in found.captures.iter() {
        writeln!(out, "  captures {name} = {value}")?;
    }
    if let Some(other) = runner_up(settings, facts, found) {
        let name = &other.policy.name;
        writeln!(
            out,
            "  is more specific than {name}, which matches {}",
            other.description
        )?;
    }
    Ok(())
}

/// Writes what the route does with the request if its limits let it through.
fn write_treatment(
    out: &mut String,
    settings: &Settings,
    route: &Route,
    facts: &RequestAttributes<'_>,
    identity: &ClientIdentity,
    load: Option<&Load>,
) -> fmt::Result {
    let body_bytes = || limits::body_bytes(facts.headers);
    let is_exempt = (route.policy).exempts(facts.method, facts.headers, body_bytes);
    if is_exempt && route.action.preflights.is_some() {
        return writeln!(out, "  is answered as a preflight of an allowed page");
    }
    action::write_action(out, route, facts)?;
    let arrived = ArrivedRequest {
        route,
        identity,
        is_exempt,
        load,
    };
    let mut rooms = ROOMS.iter();
    rooms.try_for_each(|room| room.explain_arrival(out, settings, &arrived))
}

/// The route that the request would take if its route did not exist.
fn runner_up<'s>(
    settings: &'s Settings,
    facts: &RequestAttributes<'_>,
    found: &RouteMatch,
) -> Option<&'s Route> {
    let others = || {
        settings
            .routes
            .iter()
            .enumerate()
            .filter(|(index, _)| *index != found.id.0)
    };
    let table = RouteTable::new(others().map(|(_, route)| route.matcher.clone()).collect());
    let next = table.find(facts.method, facts.uri, facts.headers)?;
    others().nth(next.id.0).map(|(_, route)| route)
}

fn write_forms(out: &mut String, forms: HeaderForms) -> fmt::Result {
    let forms_sent: Vec<&str> = forms.iter().map(HeaderForm::name).collect();
    let forms_sent = if forms_sent.is_empty() {
        "none".to_owned()
    } else {
        forms_sent.join(", ")
    };
    writeln!(out, "ratelimit_headers: {forms_sent}")
}

fn write_client(
    out: &mut String,
    settings: &Settings,
    client: &Client,
    (request, peer): Arriving<'_>,
) -> fmt::Result {
    let header = header_name(&settings.client);
    let given = request.headers.contains_key(header);
    let why = match (client.peer_is_trusted, given) {
        (true, true) if client.address == client.peer => {
            format!("the peer is a trusted proxy, but its {header} names no client")
        }
        (true, true) => format!(
            "named by {header}, which trusted proxy {} wrote",
            client.peer
        ),
        (true, false) => format!("the peer is a trusted proxy, but it sent no {header}"),
        (false, true) => {
            format!("the peer is not a trusted proxy, so its {header} is not believed")
        }
        (false, false) if client.peer != peer => format!("the peer, whose {peer} stands for it"),
        (false, false) => "the peer itself".to_owned(),
    };
    writeln!(out, "\nclient: {}\n  {why}", client.address)
}

fn header_name(rules: &ClientRules) -> &str {
    match rules.header() {
        AddressHeader::XForwardedFor => "x-forwarded-for",
        AddressHeader::Forwarded => "forwarded",
        AddressHeader::Single(name) => name.as_str(),
    }
}

fn write_account(
    out: &mut String,
    settings: &Settings,
    identity: &ClientIdentity,
    headers: &HeaderMap,
) -> fmt::Result {
    let rules = &settings.account;
    let account = identity.account.as_ref();
    if let Some((account, source)) = account.zip(rules.source(headers)) {
        return writeln!(out, "account: {}\n  named by the {}", account.id, source);
    }
    let asked: Vec<String> = rules.sources.iter().map(ToString::to_string).collect();
    if asked.is_empty() {
        writeln!(out, "account: none, as none is configured")
    } else {
        writeln!(out, "account: none\n  asked for: {}", asked.join(", "))
    }
}
