//! nginx: servers and locations as routes, zones as limits.

mod limits;
mod locations;
mod parse;
mod scopes;
mod untranslated;
mod zones;

use std::net::SocketAddr;
use std::path::Path;

use serde_json::json;

use self::limits::Limits;
use self::locations::{Location, add_locations};
use self::parse::{Directive, parse};
use self::scopes::{Scopes, named};
use crate::configuration::{Configuration, Keys};
use crate::source::{ImportError, Place};

/// Translates `nginx.conf`, or a file that it includes in its block `http`.
///
/// # Errors
/// When the file or an included one is malformed.
pub(crate) fn import(path: &Path, text: &str) -> Result<Configuration, ImportError> {
    let mut configuration = Configuration::default();
    let folder = path.parent().unwrap_or(Path::new(""));
    let directives = parse(path, text, (folder, 0), &mut configuration)?;
    let http = named(&directives, "http").next();
    let http = http.map_or(&directives[..], |http| &http.block);
    let mut importer = Importer {
        http,
        limits: Limits::new(http, &mut configuration),
        configuration,
    };
    // Requests for other hosts go to the default server of nginx, which is the first without one.
    let has_locations = |server: &&Directive| named(&server.block, "location").next().is_some();
    let servers: Vec<_> = named(http, "server").filter(has_locations).collect();
    let is_default = |server: &&Directive| {
        named(&server.block, "listen").any(|listen| listen.has("default_server"))
    };
    let default = servers.iter().position(is_default).unwrap_or(0);
    for (index, server) in servers.iter().enumerate() {
        importer.listen(server);
        importer.server(server, index == default);
    }
    let mut configuration = importer.configuration;
    untranslated::list(&directives, &Place::new(path, 1), &mut configuration);
    Ok(configuration)
}

struct Importer<'d> {
    http: &'d [Directive],
    limits: Limits,
    configuration: Configuration,
}

impl Importer<'_> {
    /// The addresses on which a server listens, but for those with TLS.
    fn listen(&mut self, server: &Directive) {
        for listen in named(&server.block, "listen") {
            let is_plain = !listen.has("ssl") && !listen.has("proxy_protocol");
            match address(listen.argument(0)).filter(|_| is_plain) {
                Some(address) if self.configuration.listen.contains(&address) => {}
                Some(address) => self.configuration.listen.push(address),
                None => {
                    let remedy = "add a listener with `tls: {certificate: FILE, key: FILE}` or \
                                  `proxy_protocol: {trusted: [...]}`, at an IP address";
                    listen.report("is left out", remedy, &mut self.configuration);
                }
            }
        }
    }

    /// Routes for the locations of a server: for each of its hosts, or for any host.
    fn server(&mut self, server: &Directive, is_default: bool) {
        let hosts = if is_default {
            vec![None]
        } else {
            self.hosts(server)
        };
        let scopes = Scopes(vec![self.http, &server.block]);
        let mut locations = Vec::new();
        add_locations(
            &server.block,
            &scopes,
            &mut self.configuration,
            &mut locations,
        );
        let with_keys = locations.into_iter().map(|location| {
            let mut keys = location.target(self.http, &mut self.configuration);
            keys.extend(self.limits.keys(&location.scopes, &mut self.configuration));
            (location, keys)
        });
        let locations: Vec<_> = with_keys.collect();
        for host in hosts {
            for (location, keys) in &locations {
                self.route(host.as_deref(), location, keys);
                // An expression goes before prefixes in nginx, and behind them in Weir.
                let is_before = |(prefix, other): &&(Location<'_>, Keys)| {
                    location.path_regex.is_some() && prefix.yields_to_regex && other != keys
                };
                for (prefix, _) in locations.iter().filter(is_before) {
                    let path = prefix.path.clone();
                    let both = Location {
                        path,
                        ..location.clone()
                    };
                    self.route(host.as_deref(), &both, keys);
                }
            }
        }
    }

    fn hosts(&mut self, server: &Directive) -> Vec<Option<String>> {
        let mut hosts = Vec::new();
        for names in named(&server.block, "server_name") {
            let is_name = |name: &&String| !matches!(name.as_str(), "_" | "");
            for name in names.arguments.iter().filter(is_name) {
                if name.starts_with('~') || name.ends_with('*') {
                    let what = format!("has no equal for `{name}`");
                    let remedy = "a `host` is whole, or `*.` and a domain: repeat the routes";
                    names.report(&what, remedy, &mut self.configuration);
                    continue;
                }
                let below = name.strip_prefix('.').map(|name| format!("*.{name}"));
                hosts.extend(below.map(Some));
                hosts.push(Some(name.trim_start_matches('.').to_owned()));
            }
        }
        hosts
    }

    fn route(&mut self, host: Option<&str>, location: &Location<'_>, keys: &Keys) {
        let mut matches = Keys::new();
        matches.extend(host.map(|host| ("host".to_owned(), json!(host))));
        matches.insert("path".to_owned(), json!(location.path));
        if let Some((regex, is_case_sensitive)) = &location.path_regex {
            matches.insert("path_regex".to_owned(), json!(regex));
            let case = is_case_sensitive.then(|| ("case".to_owned(), json!("sensitive")));
            matches.extend(case);
        }
        let directive = location.directive;
        let above = format!("{}: {}", directive.place, directive.written());
        if !self.configuration.add_route(&above, matches, keys) {
            let remedy = "routes do not differ by listener or case: run two gateways";
            let what = "is left out: its host and path are taken";
            directive.report(what, remedy, &mut self.configuration);
        }
    }
}

/// An address and port as Weir has them.
fn address(listen: &str) -> Option<String> {
    let (host, port) = match listen.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port),
        _ if listen.parse::<u16>().is_ok() => ("*", listen),
        _ => (listen, "80"),
    };
    let host = match host {
        "*" => "0.0.0.0",
        "localhost" => "127.0.0.1",
        host => host,
    };
    let address = format!("{host}:{port}");
    address.parse::<SocketAddr>().is_ok().then_some(address)
}
