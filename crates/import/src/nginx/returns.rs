//! `return` and the `rewrite` that stands for one, as redirects and fixed responses.

use serde_json::json;

use super::headers::template;
use super::parse::Directive;
use super::responses::headers_of_text;
use super::scopes::{Scopes, named, server_name};
use crate::configuration::{Configuration, Keys};

/// The status by which nginx closes a connection without a response.
pub(super) const CLOSE: u16 = 444;

/// What a `return` does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Return {
    /// A redirect, and where it leads in Weir's words.
    Redirect { to: String, status: u16 },
    /// A response, and its body.
    Response { status: u16, body: String },
    /// One that Weir has no words for.
    Unknown,
}

impl Return {
    /// What a block of a server with this name returns for all of its requests.
    pub(super) fn of_block(block: &[Directive], server_name: &str) -> Option<Self> {
        let all = block
            .iter()
            .find_map(|directive| match directive.name.as_str() {
                "return" => Some((directive, Self::of_return(directive, server_name))),
                "rewrite" => Some((directive, of_rewrite(directive, server_name)?)),
                _ => None,
            });
        let (directive, found) = all?;
        directive.is_reached.set(true);
        Some(found)
    }

    pub(super) fn of_return(directive: &Directive, server_name: &str) -> Self {
        let (code, text) = (directive.argument(0), directive.argument(1));
        match (code.parse::<u16>(), text) {
            (Ok(status @ (301 | 302 | 303 | 307 | 308)), url) if !url.is_empty() => {
                redirect(url, status, server_name)
            }
            (Ok(status), body) if (200..600).contains(&status) && !(300..400).contains(&status) => {
                match body.contains('$') {
                    true => Self::Unknown,
                    false => Self::Response {
                        status,
                        body: body.to_owned(),
                    },
                }
            }
            (Err(_), "") => redirect(code, 302, server_name),
            _ => Self::Unknown,
        }
    }

    /// The keys of a route that does the same in the scopes of a location, for one path or several.
    /// No limit of nginx counts its requests.
    pub(super) fn keys(
        &self,
        scopes: &Scopes<'_>,
        path: Option<&str>,
        location: &Directive,
        configuration: &mut Configuration,
    ) -> Option<Keys> {
        let (key, value) = match self {
            Self::Redirect { to, status } => ("redirect", json!({"to": to, "status": status})),
            Self::Response { status, body } if body.is_empty() => {
                ("response", json!({"status": status}))
            }
            Self::Response { status, body } => {
                let headers = headers_of_text(scopes, (*status, path), location, configuration);
                (
                    "response",
                    json!({"status": status, "headers": headers, "body": body}),
                )
            }
            Self::Unknown => return None,
        };
        let limits = ("limits".to_owned(), json!([]));
        Some(Keys::from_iter([(key.to_owned(), value), limits]))
    }

    /// The path that a redirect on the same host leads to, without a slash at its end.
    pub(super) fn path(&self) -> Option<&str> {
        let Self::Redirect { to, .. } = self else {
            return None;
        };
        let hosts = [
            "{{ scheme }}://{{ host }}",
            "https://{{ host }}",
            "http://{{ host }}",
        ];
        let path = hosts
            .iter()
            .find_map(|it| to.strip_prefix(it))
            .unwrap_or(to);
        let path = path.split(['?', '{']).next().unwrap_or(path);
        path.starts_with('/').then(|| path.trim_end_matches('/'))
    }

    /// Where it leads by HTTPS with the same path: the host, which may be that of the request, and
    /// the port.
    pub(super) fn https(&self) -> Option<(&str, Option<u16>)> {
        let Self::Redirect { to, .. } = self else {
            return None;
        };
        let rest = to.strip_prefix("https://")?;
        let ends = ["{{ uri }}", "{{ path }}", "/", ""];
        let authority = ends.iter().find_map(|end| rest.strip_suffix(end))?;
        match authority.rsplit_once(':') {
            Some((host, port)) => Some((host, Some(port.parse().ok()?))),
            None => Some((authority, None)),
        }
        .filter(|(host, _)| !host.contains('/'))
    }
}

fn redirect(url: &str, status: u16, server_name: &str) -> Return {
    let is_name = server_name.contains('.') && !server_name.contains(['~', '*', '$', '{']);
    let name = if is_name { server_name } else { "$host" };
    let url = url.replace("$server_name", name.trim_start_matches('.'));
    let is_url = url.starts_with('/') || url.contains("://") || url.starts_with("$scheme");
    // Both parts of a request's path and query, as they were sent.
    let url = url.replace("$uri$is_args$args", "$request_uri");
    let url = url.replace("$request_uri?", "$request_uri");
    match template(&url).filter(|_| is_url) {
        Some(to) => Return::Redirect { to, status },
        None => Return::Unknown,
    }
}

/// A `rewrite` of all paths that leads elsewhere.
fn of_rewrite(directive: &Directive, server_name: &str) -> Option<Return> {
    let status = match directive.argument(2) {
        "permanent" => 301,
        "redirect" => 302,
        _ => return None,
    };
    let to = directive.argument(1);
    let to = match directive.argument(0) {
        "^" | ".*" | "^.*$" => to.to_owned(),
        "^(.*)$" | "^(.*)" | "(.*)" => to.replace("$1", "$request_uri"),
        "^/(.*)$" | "^/(.*)" => to.replace("/$1", "$request_uri"),
        _ => return None,
    };
    Some(redirect(to.trim_end_matches('?'), status, server_name))
}

/// Whether a server does nothing but redirect to HTTPS: to which host and port. Challenges of ACME
/// may have a location.
pub(super) fn only_https(server: &Directive) -> Option<(String, Option<u16>)> {
    let mut target = None;
    let name = server_name(&server.block);
    let mut note = |it: &Return| match it.https() {
        Some((host, port)) => {
            target.get_or_insert((host.to_owned(), port));
            true
        }
        None => matches!(it, Return::Response { status, .. } if *status >= 400),
    };
    let mut is_redirect = Return::of_block(&server.block, name).is_none_or(|it| note(&it));
    for condition in named(&server.block, "if") {
        let own = named(&condition.block, "return").next();
        is_redirect &= own.is_some_and(|it| note(&Return::of_return(it, name)));
    }
    for location in named(&server.block, "location") {
        let is_challenge = location
            .arguments
            .iter()
            .any(|it| it.contains("/.well-known/"));
        let own = Return::of_block(&location.block, name);
        is_redirect &= own.map_or(is_challenge, |it| note(&it));
    }
    target.filter(|_| is_redirect)
}
