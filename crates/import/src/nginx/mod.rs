//! nginx: servers and locations as routes, zones as limits.

mod cases;
mod client_address;
mod denials;
mod headers;
mod limits;
mod listeners;
mod locations;
mod maps;
mod networks;
mod parse;
mod responses;
mod returns;
mod scopes;
mod untranslated;
mod zones;

use std::collections::HashSet;
use std::path::Path;

use serde_json::json;

use self::cases::{MAX_CONDITIONS, MethodRules, Watched};
use self::client_address::Realip;
use self::limits::Limits;
use self::listeners::{Addresses, Groups, is_default};
use self::locations::{Location, closed, contested, is_closed, is_laxer, is_limited, locations};
use self::maps::Case;
use self::parse::{Directive, parse};
use self::returns::{CLOSE, Return};
use self::scopes::{Scopes, named};
use crate::configuration::{Configuration, Keys};
use crate::difference::Effect;
use crate::source::{ImportError, MAX_ROUTES, Place};

/// Translates `nginx.conf`, or a file that it includes in its block `http`.
///
/// # Errors
/// When the file or an included one is malformed.
pub(crate) fn import(path: &Path, text: &str) -> Result<Configuration, ImportError> {
    let mut configuration = Configuration::default();
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut directives = parse(path, text, (folder, 0), &mut configuration)?;
    for http in directives.iter_mut().filter(|it| it.name == "http") {
        listeners::spread_tls(&mut http.block);
        listeners::join_sockets(&mut http.block);
    }
    listeners::spread_tls(&mut directives);
    listeners::join_sockets(&mut directives);
    let http = named(&directives, "http").next();
    let http = http.map_or(&directives[..], |http| &http.block);
    let mut importer = Importer {
        http,
        limits: Limits::new(http, &mut configuration),
        configuration,
    };
    let servers: Vec<_> = named(http, "server").collect();
    let groups = Groups::new(&servers);
    let realip = Realip::of_servers(http, &groups.served, &mut importer.configuration);
    listeners::write(
        &groups,
        (http, folder),
        &realip,
        &mut importer.configuration,
    );
    importer.configuration.keys.extend(realip.keys());
    importer.servers(&groups)?;
    if let ([], [first, ..]) = (&groups.served[..], &groups.redirecting[..]) {
        importer
            .configuration
            .serve_nothing(&first.place, "`server`")?;
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
    /// Routes for the servers that listen on the same addresses: Weir's do not differ by listener.
    fn servers(&mut self, groups: &Groups<'_>) -> Result<(), ImportError> {
        let servers = &groups.served;
        let default = servers
            .iter()
            .position(|server| is_default(server))
            .unwrap_or(0);
        let mut known = HashSet::new();
        let mut hosts: Vec<Vec<Option<String>>> = Vec::new();
        let mut unknown = None;
        for (index, server) in servers.iter().enumerate() {
            let (mut own, without_equal) = self.hosts(server);
            own.retain(|host| known.insert(host.to_lowercase()));
            if index != default {
                unknown = unknown.or(without_equal);
                if own.is_empty() || is_default(server) {
                    let what = "gets no requests but those for the hosts of its routes";
                    let remedy = "the default server has the others: write routes by hand";
                    server.report(Effect::Differs, what, remedy, &mut self.configuration);
                }
            }
            hosts.push(own.into_iter().map(Some).collect());
        }
        for (index, (server, mut hosts)) in servers.iter().zip(hosts).enumerate() {
            match unknown {
                Some(names) if index == default => {
                    let what = "responds with 403 for all hosts that no route names";
                    let remedy = "delete the route for any host to give them to the default server";
                    names.report(Effect::Differs, what, remedy, &mut self.configuration);
                    self.close(server, None)?;
                }
                _ => hosts.extend((index == default).then_some(None)),
            }
            self.server(server, &hosts)?;
        }
        let served = servers.first().map(|server| Addresses::of(server));
        for server in &groups.left_out {
            let what = "is left out: it does not listen on the same addresses as the others";
            let remedy = "Weir's routes do not differ by listener: import it into another gateway";
            server.report(Effect::LeavesOut, what, remedy, &mut self.configuration);
            let own = Addresses::of(server);
            if served.as_ref().is_none_or(|served| own.is_disjoint(served)) {
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
        let mut locations: Vec<_> = locations
            .into_iter()
            .filter_map(|location| self.with_keys(location))
            .collect();
        let ends: Vec<_> = locations.iter().filter_map(|(it, _)| it.end()).collect();
        let ends: HashSet<&str> = ends.into_iter().collect();
        for (location, keys) in &locations {
            location.report_paths(keys, &ends, &mut self.configuration);
        }
        self.close_spellings(&mut locations);
        self.report_spellings(server, &locations);
        let beside = locations.iter().filter(|(it, keys)| it.limits_beside(keys));
        let beside = beside.filter_map(|(it, keys)| {
            let is_for_one_case = it.is_for_one_case(keys, &locations);
            Some((it.beside(is_for_one_case)?, keys.clone()))
        });
        // What is closed goes before expressions, and what is limited behind them.
        let (closed, limited): (Vec<_>, Vec<_>) = beside.partition(|(_, keys)| is_closed(keys));
        locations.splice(0..0, closed);
        locations.extend(limited);
        let contested = contested(&locations, server)?;
        let paths = locations.iter();
        let paths: Vec<_> = paths
            .map(|(location, _)| location.paths(&locations, &contested))
            .collect();
        for host in hosts {
            for ((location, keys), paths) in locations.iter().zip(&paths) {
                let is_for_one_case = location.is_for_one_case(keys, &locations);
                let all = Keys::new();
                let variants = location.variants.iter();
                let variants = variants.map(|(matches, keys)| (matches, keys));
                for path in paths {
                    for (matches, keys) in variants.clone().chain([(&all, keys)]) {
                        let host_and_path = (host.as_deref(), path.as_str());
                        self.route(host_and_path, location, is_for_one_case, (matches, keys))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// A location with the keys of its routes; none for one that Weir cannot tell from another.
    fn with_keys<'l>(&mut self, mut location: Location<'l>) -> Option<(Location<'l>, Keys)> {
        let rules = MethodRules::new(&location.scopes);
        let returned = location.returned();
        if let Some(returned) = &returned
            && let Some(keys) = self.returned(&location, returned)?
        {
            return Some((location, keys));
        }
        let target = location.target(self.http, &mut self.configuration);
        let scopes = location.scopes.clone();
        let watched = Watched::new(&rules, &self.limits, &scopes);
        if watched.has_more {
            let what = format!(
                "has limits by more than {MAX_CONDITIONS} headers and parameters, of which Weir \
                 looks at those alone"
            );
            let remedy = "write routes with `headers` in their `match` by hand";
            let directive = location.directive;
            directive.report(Effect::LeavesOut, &what, remedy, &mut self.configuration);
        }
        let mut keys_of = |case: &Case<'_>| {
            let status = rules.response(case.method).filter(|_| !is_closed(&target));
            let mut keys = match status {
                Some((status, _)) => closed(status),
                None => target.clone(),
            };
            match status {
                Some((_, false)) => keys.extend([("limits".to_owned(), json!([]))]),
                _ => keys.extend(self.limits.keys(&scopes, case, &mut self.configuration)),
            }
            keys
        };
        let keys = keys_of(&Case::default());
        location.variants = watched.variants(keys_of);
        Some((location, keys))
    }

    /// The keys of a location that returns: none within if Weir has no words for it, and none if
    /// the location is left out.
    fn returned(&mut self, location: &Location<'_>, returned: &Return) -> Option<Option<Keys>> {
        self.limits.mark_reached(&location.scopes);
        let directive = location.directive;
        if location.is_path_of(returned) {
            let what = "is left out: its redirect leads to a path that Weir takes for the same";
            let remedy = "nothing: the location of the other path has its requests";
            directive.report(Effect::Differs, what, remedy, &mut self.configuration);
            return None;
        }
        if matches!(returned, Return::Response { status: CLOSE, .. }) {
            let what = "closes the connection in nginx, and Weir responds";
            let remedy = "`block: {addresses: [...], on_denied: drop}` closes connections";
            directive.report(Effect::Differs, what, remedy, &mut self.configuration);
        }
        let configuration = &mut self.configuration;
        Some(returned.keys(
            &location.scopes,
            location.one_path(),
            directive,
            configuration,
        ))
    }

    /// Says once that Weir takes several spellings for one path, where that matters.
    fn report_spellings(&mut self, server: &Directive, locations: &[(Location<'_>, Keys)]) {
        let (limited, others): (Vec<_>, Vec<_>) =
            locations.iter().partition(|(_, keys)| is_limited(keys));
        let is_other = |it: &Location<'_>| it.path != "/*" && it.path_regex.is_none();
        if let Some((location, _)) = limited.iter().find(|(it, _)| is_other(it))
            && !others.is_empty()
        {
            let path = location.path.trim_end_matches("/*");
            let what = format!(
                "limits other spellings of a path as well, such as `{}/x` and `{path}\\x`; \
                 `/x/..{path}/x` gets 400",
                path.to_uppercase(),
            );
            let remedy =
                "nothing, unless the app tells them apart: say `case: sensitive` in `match`";
            server.report(Effect::Differs, &what, remedy, &mut self.configuration);
        }
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
                    directive.report(Effect::Opens, what, remedy, &mut self.configuration);
                }
                continue;
            }
            let what = "has the requests for its path with and without a slash at the end";
            let remedy = "nginx tells the two apart, and Weir does not: give both the same";
            let directive = location.directive;
            directive.report(Effect::Differs, what, remedy, &mut self.configuration);
            let closed = same.iter().find(|(_, keys)| is_closed(keys));
            if let Some((_, closed)) = closed.filter(|_| !is_closed(keys)) {
                keys.clone_from(closed);
                location.variants.clear();
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
                    names.report(Effect::Differs, &what, remedy, &mut self.configuration);
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
        (others, keys): (&Keys, &Keys),
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
        matches.extend(others.clone());
        let directive = location.directive;
        let above = format!("{}: {}", directive.place, directive.written());
        let place = &directive.place;
        if !self.configuration.add_route(place, &above, matches, keys)? {
            let remedy = "routes do not differ by listener or case: run two gateways";
            let what = "is left out: its host and path are taken";
            directive.report(Effect::LeavesOut, what, remedy, &mut self.configuration);
        }
        Ok(())
    }
}
