//! nginx: servers and locations as routes, zones as limits.

mod limits;
mod locations;
mod parse;
mod scopes;
mod untranslated;
mod zones;

use std::collections::{BTreeSet, HashSet};
use std::net::SocketAddr;
use std::path::Path;

use serde_json::json;

use self::limits::Limits;
use self::locations::{Location, contested, is_closed, is_laxer, locations};
use self::parse::{Directive, parse};
use self::scopes::{Scopes, named};
use crate::configuration::{Configuration, Keys};
use crate::source::{ImportError, MAX_ROUTES, Place};

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
    let servers: Vec<_> = named(http, "server").collect();
    importer.servers(&servers)?;
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
            let is_plain = !is_tls(listen) && !listen.has("proxy_protocol");
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

    /// Routes for the servers that listen on the same addresses: Weir's do not differ by listener.
    fn servers(&mut self, servers: &[&Directive]) -> Result<(), ImportError> {
        let count = |server: &&&Directive| named(&server.block, "location").count();
        let most = servers
            .iter()
            .rev()
            .max_by_key(count)
            .filter(|most| count(most) > 0);
        let Some(addresses) = most.map(|most| addresses(most)) else {
            return Ok(());
        };
        let (servers, others): (Vec<&Directive>, Vec<&Directive>) = servers
            .iter()
            .partition(|server| self::addresses(server) == addresses);
        let default = servers
            .iter()
            .position(|server| is_default(server))
            .unwrap_or(0);
        let mut known = HashSet::new();
        let mut hosts: Vec<Vec<Option<String>>> = Vec::new();
        let mut unknown = None;
        for (index, server) in servers.iter().enumerate() {
            self.listen(server);
            let (mut own, without_equal) = self.hosts(server);
            own.retain(|host| known.insert(host.to_lowercase()));
            if index != default {
                unknown = unknown.or(without_equal);
                if own.is_empty() || is_default(server) {
                    let what = "gets no requests but those for the hosts of its routes";
                    let remedy = "the default server has the others: write routes by hand";
                    server.report(what, remedy, &mut self.configuration);
                }
            }
            hosts.push(own.into_iter().map(Some).collect());
        }
        for (index, (server, mut hosts)) in servers.iter().zip(hosts).enumerate() {
            match unknown {
                Some(names) if index == default => {
                    let what = "responds with 403 for all hosts that no route names";
                    let remedy = "delete the route for any host to give them to the default server";
                    names.report(what, remedy, &mut self.configuration);
                    self.close(server, None)?;
                }
                _ => hosts.extend((index == default).then_some(None)),
            }
            self.server(server, &hosts)?;
        }
        for server in others {
            let what = "is left out: it does not listen on the same addresses as the others";
            let remedy = "Weir's routes do not differ by listener: import it into another gateway";
            server.report(what, remedy, &mut self.configuration);
            if self::addresses(server).is_disjoint(&addresses) {
                continue;
            }
            for host in self.hosts(server).0 {
                if known.insert(host.to_lowercase()) {
                    self.close(server, Some(&host))?;
                }
            }
        }
        Ok(())
    }

    /// Denies all requests for a host, or for any other.
    fn close(&mut self, server: &Directive, host: Option<&str>) -> Result<(), ImportError> {
        let mut matches = Keys::new();
        matches.extend(host.map(|host| ("host".to_owned(), json!(host))));
        matches.insert("path".to_owned(), json!("/*"));
        let keys = Keys::from_iter([("response".to_owned(), json!({"status": 403}))]);
        let above = format!("{}: {}", server.place, server.written());
        let added = self
            .configuration
            .add_route(&server.place, &above, matches, &keys);
        added.map(drop)
    }

    /// Routes for the locations of a server, for each of its hosts, or for any.
    fn server(&mut self, server: &Directive, hosts: &[Option<String>]) -> Result<(), ImportError> {
        let scopes = Scopes(vec![self.http, &server.block]);
        let locations = locations(server, &scopes, &mut self.configuration);
        if locations.len() > MAX_ROUTES {
            return Err(ImportError::TooManyRoutes(server.place.clone()));
        }
        let with_keys = locations.into_iter().map(|location| {
            let mut keys = location.target(self.http, &mut self.configuration);
            keys.extend(self.limits.keys(&location.scopes, &mut self.configuration));
            (location, keys)
        });
        let mut locations: Vec<_> = with_keys.collect();
        self.close_spellings(&mut locations);
        let beside = locations.iter().filter(|(_, keys)| is_closed(keys));
        let beside = beside.filter_map(|(it, keys)| Some((it.beside()?, keys.clone())));
        locations.splice(0..0, beside.collect::<Vec<_>>());
        let contested = contested(&locations, server)?;
        let paths = locations.iter();
        let paths: Vec<_> = paths
            .map(|(location, _)| location.paths(&locations, &contested))
            .collect();
        for host in hosts {
            for ((location, keys), paths) in locations.iter().zip(&paths) {
                let is_for_one_case = location.is_for_one_case(keys, &locations);
                for path in paths {
                    self.route(
                        (host.as_deref(), path.as_str()),
                        location,
                        is_for_one_case,
                        keys,
                    )?;
                }
            }
        }
        Ok(())
    }

    /// Of two locations that Weir takes for one path, such as `/a` and `/a/`, a closed one wins.
    /// One for a path alone has the requests with a slash at the end as well, and says so.
    fn close_spellings(&mut self, locations: &mut [(Location<'_>, Keys)]) {
        let stem = |path: &str| path.trim_end_matches("/*").to_owned();
        let others: Vec<_> = locations
            .iter()
            .filter(|(it, _)| it.path_regex.is_none())
            .map(|(it, keys)| (stem(&it.path), keys.clone()))
            .collect();
        let prefixes = locations.iter().filter(|(it, _)| it.is_prefix());
        let prefixes: Vec<_> = prefixes.cloned().collect();
        for (location, keys) in locations {
            let own = stem(&location.path);
            let is_same = |(path, other): &&(String, Keys)| {
                location.path_regex.is_none() && *path == own && other != keys
            };
            let same: Vec<_> = others.iter().filter(is_same).collect();
            if same.is_empty() {
                let otherwise = location.with_slash(&prefixes);
                if otherwise.is_some_and(|theirs| is_laxer(keys, theirs)) {
                    let what = "has the requests for its path with a slash at the end as well";
                    let remedy = "nginx tells the two apart, and Weir does not: see that both may \
                                  get the same";
                    let directive = location.directive;
                    directive.report(what, remedy, &mut self.configuration);
                }
                continue;
            }
            let what = "has the requests for its path with and without a slash at the end";
            let remedy = "nginx tells the two apart, and Weir does not: give both the same";
            location
                .directive
                .report(what, remedy, &mut self.configuration);
            let closed = same.iter().find(|(_, keys)| is_closed(keys));
            if let Some((_, closed)) = closed.filter(|_| !is_closed(keys)) {
                keys.clone_from(closed);
            }
        }
    }

    /// The hosts of a server, and the names of others that have no equal.
    fn hosts<'s>(&mut self, server: &'s Directive) -> (Vec<String>, Option<&'s Directive>) {
        let (mut hosts, mut without_equal) = (Vec::new(), None);
        for names in named(&server.block, "server_name") {
            let is_name = |name: &&String| !matches!(name.as_str(), "_" | "");
            for name in names.arguments.iter().filter(is_name) {
                if name.starts_with('~') || name.ends_with('*') || name.contains('$') {
                    let what = format!("has no equal for `{name}`");
                    let remedy = "a `host` is whole, or `*.` and a domain: repeat the routes";
                    names.report(&what, remedy, &mut self.configuration);
                    without_equal = Some(names);
                    continue;
                }
                let below = name.strip_prefix('.').map(|name| format!("*.{name}"));
                hosts.extend(below);
                hosts.push(name.trim_start_matches('.').to_owned());
            }
        }
        (hosts, without_equal)
    }

    fn route(
        &mut self,
        (host, path): (Option<&str>, &str),
        location: &Location<'_>,
        is_for_one_case: bool,
        keys: &Keys,
    ) -> Result<(), ImportError> {
        let mut matches = Keys::new();
        matches.extend(host.map(|host| ("host".to_owned(), json!(host))));
        matches.insert("path".to_owned(), json!(path));
        if let Some((regex, is_for_one_case)) = &location.path_regex {
            // With `case`, the route would go before earlier ones.
            let regex = match is_for_one_case {
                true => format!("(?-i:{regex})"),
                false => regex.clone(),
            };
            matches.insert("path_regex".to_owned(), json!(regex));
        }
        matches.extend(is_for_one_case.then(|| ("case".to_owned(), json!("sensitive"))));
        let directive = location.directive;
        let above = format!("{}: {}", directive.place, directive.written());
        let place = &directive.place;
        if !self.configuration.add_route(place, &above, matches, keys)? {
            let remedy = "routes do not differ by listener or case: run two gateways";
            let what = "is left out: its host and path are taken";
            directive.report(what, remedy, &mut self.configuration);
        }
        Ok(())
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

/// The addresses on which a server listens, but for those with TLS if there are others.
fn addresses(server: &Directive) -> BTreeSet<String> {
    let addresses_of = |is_meant: fn(&&Directive) -> bool| -> BTreeSet<String> {
        let listens = named(&server.block, "listen").filter(is_meant);
        let addresses = listens.map(|listen| {
            let written = listen.argument(0);
            let address = address(written).unwrap_or_else(|| written.to_owned());
            address.replace("[::]", "0.0.0.0")
        });
        addresses.collect()
    };
    let plain = addresses_of(|listen| !is_tls(listen));
    match plain.is_empty() {
        true if named(&server.block, "listen").next().is_none() => ["0.0.0.0:80".to_owned()].into(),
        true => addresses_of(|_| true),
        false => plain,
    }
}

fn is_tls(listen: &Directive) -> bool {
    listen.has("ssl") || listen.has("quic")
}

fn is_default(server: &Directive) -> bool {
    named(&server.block, "listen")
        .any(|listen| listen.has("default_server") || listen.has("default"))
}
