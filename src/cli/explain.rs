//! `weir explain`: what would become of a request, and why.

mod limits;
mod sender;

use std::fmt::{self, Write};
use std::path::Path;

use http::header::{HOST, HeaderMap};
use http::{Method, Uri};

use super::Request;
use crate::config::{self, Route, Settings};
use crate::middleware::{HeaderForms, OnDenied, Rejection};
use crate::rules::{Facts, HashKey, RouteMatch, RouteTable};

/// A request as the rules see it.
struct Asked<'r> {
    method: &'r Method,
    uri: &'r Uri,
    headers: HeaderMap,
}

/// What would become of `request` with the configuration at `path`.
pub(super) fn explain(path: &Path, request: &Request) -> Result<String, String> {
    let settings = config::load(path, &HashKey::random()).map_err(|found| found.to_string())?;
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut text, &settings, request);
    Ok(text)
}

fn write(out: &mut String, settings: &Settings, request: &Request) -> fmt::Result {
    let asked = Asked {
        method: &request.method,
        uri: &request.path,
        headers: headers(request),
    };
    writeln!(
        out,
        "{} {} from {}",
        request.method, request.path, request.ip
    )?;
    let found = settings
        .route_table()
        .find(asked.method, asked.uri, &asked.headers);
    let route = found
        .as_ref()
        .and_then(|found| settings.routes.get(found.id.0));
    let (Some(found), Some(route)) = (found.as_ref(), route) else {
        return writeln!(out, "\nroute: none matches, so the answer is 404");
    };
    write_route(out, settings, &asked, found, route)?;
    let client = sender::write_client(out, settings, request.ip, &asked.headers)?;
    let account = sender::write_account(out, settings, &asked.headers)?;
    let facts = Facts {
        method: asked.method,
        uri: asked.uri,
        headers: &asked.headers,
        client: client.address,
        account: account.as_ref(),
        route: &route.policy.name,
        captures: &found.captures,
    };
    limits::write_limits(out, settings, route, &facts)?;
    write_denial(out, &route.policy.on_denied)?;
    write_forms(out, route.policy.headers)
}

fn headers(request: &Request) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.extend(request.host.iter().map(|host| (HOST, host.clone())));
    for (name, value) in &request.headers {
        headers.append(name, value.clone());
    }
    headers
}

fn write_route(
    out: &mut String,
    settings: &Settings,
    asked: &Asked<'_>,
    found: &RouteMatch,
    route: &Route,
) -> fmt::Result {
    writeln!(out, "\nroute: {}", route.policy.name)?;
    writeln!(out, "  matches {}", route.description)?;
    for (name, value) in found.captures.iter() {
        writeln!(out, "  captures {name} = {value}")?;
    }
    if let Some(other) = runner_up(settings, asked, found) {
        let name = &other.policy.name;
        writeln!(
            out,
            "  is more specific than {name}, which matches {}",
            other.description
        )?;
    }
    if let Some(upstream) = settings.upstreams.get(route.upstream) {
        let kind = if upstream.echo { " (built in)" } else { "" };
        writeln!(out, "  goes to upstream {}{kind}", upstream.settings.name)?;
    }
    Ok(())
}

/// The route that the request would take without the one that it takes.
fn runner_up<'s>(
    settings: &'s Settings,
    asked: &Asked<'_>,
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
    let next = table.find(asked.method, asked.uri, &asked.headers)?;
    others().nth(next.id.0).map(|(_, route)| route)
}

fn write_denial(out: &mut String, on_denied: &OnDenied) -> fmt::Result {
    write!(out, "\non denial: ")?;
    match on_denied {
        OnDenied::Reject(rejection) => write_rejection(out, rejection),
        OnDenied::Shadow(shadow) => {
            let (decoy, status) = (shadow.decoy().name(), shadow.decoy().status());
            writeln!(
                out,
                "shadow ban: decoy {decoy} ({status}), nothing is forwarded"
            )
        }
    }
}

fn write_rejection(out: &mut String, rejection: &Rejection) -> fmt::Result {
    let body = match rejection.body {
        Some(_) => "the configured body",
        None => "a problem document",
    };
    writeln!(out, "{} with {body}", rejection.status)
}

fn write_forms(out: &mut String, forms: HeaderForms) -> fmt::Result {
    let told = [
        (forms.draft, "draft"),
        (forms.draft_03, "draft-03"),
        (forms.x_ratelimit, "x-ratelimit"),
    ];
    let told: Vec<&str> = told
        .iter()
        .filter(|(on, _)| *on)
        .map(|(_, name)| *name)
        .collect();
    let told = if told.is_empty() {
        "none".to_owned()
    } else {
        told.join(", ")
    };
    writeln!(out, "headers: {told}")
}
