//! The JSON logs of nginx, Caddy and Traefik.
//!
//! nginx has a format of the operator's choice: its variables are found by their names, and by those
//! that are common for them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;

use super::super::line::{RawLine, Wants};
use super::Parsed;
use super::scalar::Scalar;
use super::time::{any_time, nanoseconds, seconds};
use crate::time::{Nanos, Timestamp};

const NOT_JSON: &str = "it is not a JSON object";
const NO_CLIENT: &str = "it has no client address";
const NO_TIME: &str = "it has no time";
const NO_REQUEST: &str = "its method or path is not one of HTTP";

/// What nginx calls its variables, and what operators do, the best first.
const TIMES: [&str; 7] = [
    "msec",
    "time_iso8601",
    "time_local",
    "time",
    "timestamp",
    "@timestamp",
    "ts",
];
const CLIENTS: [&str; 5] = [
    "remote_addr",
    "client_ip",
    "clientip",
    "remote_ip",
    "client",
];
const METHODS: [&str; 2] = ["request_method", "method"];
const TARGETS: [&str; 4] = ["request_uri", "uri", "path", "url"];
const TOOK: [&str; 2] = ["request_time", "duration"];
const ANSWERED: [&str; 2] = ["upstream_header_time", "upstream_response_time"];
const HOSTS: [&str; 3] = ["host", "http_host", "server_name"];
const AGENTS: [&str; 2] = ["http_user_agent", "user_agent"];
const REFERERS: [&str; 3] = ["http_referer", "http_referrer", "referer"];
const USERS: [&str; 2] = ["remote_user", "user"];

type Fields<'l> = BTreeMap<Cow<'l, str>, Scalar<'l>>;

/// A line of nginx.
pub(super) fn nginx(line: &str, wants: Wants) -> Result<Parsed, &'static str> {
    let fields: Fields<'_> = serde_json::from_str(line).map_err(|_| NOT_JSON)?;
    let first = |names: &[&str]| names.iter().find_map(|name| fields.get(*name)?.text());
    let client = first(&CLIENTS)
        .and_then(|text| text.parse().ok())
        .ok_or(NO_CLIENT)?;
    let ended = first(&TIMES).and_then(any_time).ok_or(NO_TIME)?;
    let span = |names: &[&str]| first(names).and_then(seconds);
    let took = span(&TOOK).unwrap_or(Nanos::ZERO);
    let at = ended.before(took);
    // `request` is the request line as a whole.
    let mut words = first(&["request"]).unwrap_or_default().split(' ');
    let (method, target) = (words.next(), words.next());
    let method = first(&METHODS).or(method).unwrap_or_default();
    let target = first(&TARGETS).or(target).unwrap_or_default();
    let headers = [
        ("user-agent", first(&AGENTS)),
        ("referer", first(&REFERERS)),
    ];
    request(
        &Request {
            at,
            answered: span(&ANSWERED).map_or(ended, |head| at + head),
            ended,
            client,
            method,
            target,
            status: fields.get("status").and_then(Scalar::number),
            host: first(&HOSTS),
            user: first(&USERS),
        },
        headers.into_iter(),
        wants,
    )
}

#[derive(Deserialize)]
struct CaddyLine<'l> {
    #[serde(borrow, default)]
    ts: Scalar<'l>,
    #[serde(borrow)]
    request: Option<CaddyRequest<'l>>,
    #[serde(borrow, default)]
    user_id: Scalar<'l>,
    #[serde(borrow, default)]
    duration: Scalar<'l>,
    status: Option<u16>,
}

#[derive(Deserialize)]
struct CaddyRequest<'l> {
    #[serde(borrow, default)]
    client_ip: Scalar<'l>,
    #[serde(borrow, default)]
    remote_ip: Scalar<'l>,
    #[serde(borrow, default)]
    remote_addr: Scalar<'l>,
    #[serde(borrow, default)]
    method: Scalar<'l>,
    #[serde(borrow, default)]
    host: Scalar<'l>,
    #[serde(borrow, default)]
    uri: Scalar<'l>,
    #[serde(borrow, default)]
    headers: Fields<'l>,
}

/// A line of Caddy.
pub(super) fn caddy(line: &str, wants: Wants) -> Result<Parsed, &'static str> {
    let fields: CaddyLine<'_> = serde_json::from_str(line).map_err(|_| NOT_JSON)?;
    let Some(asked) = &fields.request else {
        return Ok(Parsed::Other);
    };
    let client = asked.client_ip.text().or(asked.remote_ip.text());
    // Before 2.5 there was an address with its port alone.
    let client = client.or(asked.remote_addr.text()).and_then(address);
    let ended = fields.ts.text().and_then(any_time).ok_or(NO_TIME)?;
    let took = fields
        .duration
        .text()
        .and_then(seconds)
        .unwrap_or(Nanos::ZERO);
    let headers = asked.headers.iter();
    request(
        &Request {
            at: ended.before(took),
            answered: ended,
            ended,
            client: client.ok_or(NO_CLIENT)?,
            method: asked.method.text().unwrap_or_default(),
            target: asked.uri.text().unwrap_or_default(),
            // Zero stands for a connection that was closed without a response.
            status: fields.status.filter(|status| *status != 0),
            host: asked.host.text(),
            user: fields.user_id.text(),
        },
        headers.map(|(name, value)| (&**name, value.text())),
        wants,
    )
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct TraefikLine<'l> {
    #[serde(rename = "StartUTC", borrow, default)]
    start: Scalar<'l>,
    #[serde(borrow, default)]
    duration: Scalar<'l>,
    #[serde(borrow, default)]
    client_host: Scalar<'l>,
    #[serde(borrow, default)]
    client_username: Scalar<'l>,
    #[serde(borrow, default)]
    request_method: Scalar<'l>,
    #[serde(borrow, default)]
    request_host: Scalar<'l>,
    #[serde(borrow, default)]
    request_path: Scalar<'l>,
    #[serde(borrow, default)]
    downstream_status: Scalar<'l>,
    #[serde(rename = "request_User-Agent", borrow, default)]
    user_agent: Scalar<'l>,
    #[serde(rename = "request_Referer", borrow, default)]
    referer: Scalar<'l>,
}

/// A line of Traefik.
pub(super) fn traefik(line: &str, wants: Wants) -> Result<Parsed, &'static str> {
    let fields: TraefikLine<'_> = serde_json::from_str(line).map_err(|_| NOT_JSON)?;
    if fields.request_method.text().is_none() && fields.start.text().is_none() {
        return Ok(Parsed::Other);
    }
    let at = fields.start.text().and_then(any_time).ok_or(NO_TIME)?;
    let took = fields
        .duration
        .text()
        .and_then(nanoseconds)
        .unwrap_or(Nanos::ZERO);
    let headers = [
        ("user-agent", fields.user_agent.text()),
        ("referer", fields.referer.text()),
    ];
    request(
        &Request {
            at,
            answered: at + took,
            ended: at + took,
            client: fields
                .client_host
                .text()
                .and_then(address)
                .ok_or(NO_CLIENT)?,
            method: fields.request_method.text().unwrap_or_default(),
            target: fields.request_path.text().unwrap_or_default(),
            status: fields
                .downstream_status
                .number()
                .filter(|status| *status != 0),
            host: fields.request_host.text(),
            user: fields.client_username.text(),
        },
        headers.into_iter(),
        wants,
    )
}

/// What all of them tell of a request.
struct Request<'l> {
    at: Timestamp,
    answered: Timestamp,
    ended: Timestamp,
    client: std::net::IpAddr,
    method: &'l str,
    target: &'l str,
    status: Option<u16>,
    host: Option<&'l str>,
    user: Option<&'l str>,
}

fn request<'l>(
    request: &Request<'l>,
    headers: impl Iterator<Item = (&'l str, Option<&'l str>)>,
    wants: Wants,
) -> Result<Parsed, &'static str> {
    let (path, query) = match request.target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (request.target, None),
    };
    let headers: Vec<(&str, &str)> = match wants.headers {
        true => headers
            .filter_map(|(name, value)| Some((name, value?)))
            .collect(),
        false => Vec::new(),
    };
    let raw = RawLine {
        at: request.at,
        answered: request.answered.min(request.ended).max(request.at),
        ended: request.ended,
        client: request.client,
        method: request.method.as_bytes(),
        path,
        query,
        status: request.status,
        host: request.host,
        headers: &headers,
        account: request.user,
        route: None,
        recorded: None,
    };
    raw.line(wants).map(Parsed::Request).ok_or(NO_REQUEST)
}

/// An address, with its port or without.
fn address(text: &str) -> Option<std::net::IpAddr> {
    let with_port = || {
        text.parse()
            .ok()
            .map(|socket: std::net::SocketAddr| socket.ip())
    };
    text.parse().ok().or_else(with_port)
}
