//! Where servers listen: which of them Weir can serve together, and by which listeners.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};

use super::client_address::Realip;
use super::parse::Directive;
use super::returns::{Return, only_https};
use super::scopes::{Scopes, named, server_name};
use crate::configuration::{Configuration, Keys};
use crate::difference::Effect;

/// Where Weir listens if it cannot listen where the servers do.
const NOWHERE: &str = "127.0.0.1:8080";

const CERTIFICATES: &str = "import on the machine that has the certificate, as a user who may read \
                            its key, or add a listener with `tls: {certificate: FILE, key: FILE}`";

/// The servers of a file, by what becomes of them.
#[derive(Default)]
pub(super) struct Groups<'d> {
    /// Those that Weir serves: they listen on the same addresses.
    pub(super) served: Vec<&'d Directive>,
    /// Those that redirect all requests to HTTPS, on other addresses.
    pub(super) redirecting: Vec<&'d Directive>,
    pub(super) left_out: Vec<&'d Directive>,
}

impl<'d> Groups<'d> {
    /// Weir's routes do not differ by listener, so it serves the servers of one set of addresses:
    /// of that with the most limits, then with the most `proxy_pass`, then with the most locations.
    pub(super) fn new(servers: &[&'d Directive]) -> Self {
        // By TLS, a redirect to HTTPS leads to another host: it is served as a route.
        let is_redirect =
            |server: &&&Directive| only_https(server).is_some() && !listens(server).any(is_tls);
        let (redirecting, others): (Vec<&Directive>, Vec<&Directive>) =
            servers.iter().partition(is_redirect);
        let weight = |addresses: &Addresses| {
            let own = others
                .iter()
                .filter(|it| Addresses::of(it).is_like(addresses));
            let weights = own.map(|server| weight(&server.block));
            weights.fold((0, 0, 0), |sum, it| {
                (sum.0 + it.0, sum.1 + it.1, sum.2 + it.2)
            })
        };
        let all = others.iter().rev().map(|server| Addresses::of(server));
        let heaviest = all.max_by_key(weight).filter(|it| weight(it) > (0, 0, 0));
        let Some(addresses) = heaviest else {
            return Self {
                redirecting,
                left_out: others,
                ..Self::default()
            };
        };
        let is_served = |server: &&Directive| Addresses::of(server).is_like(&addresses);
        let (mut served, mut left_out): (Vec<&Directive>, Vec<&Directive>) =
            others.into_iter().partition(is_served);
        // A route to HTTPS would lead to itself where the same servers have TLS.
        let has_tls = served.iter().any(|server| listens(server).any(is_tls));
        let (mut apart, mut between) = (Vec::new(), Vec::new());
        for server in redirecting {
            match Addresses::of(server).all.is_disjoint(&addresses.all) {
                true => apart.push(server),
                false => between.push(server),
            }
        }
        let joined = if has_tls { &mut left_out } else { &mut served };
        joined.append(&mut between);
        let order = |server: &&Directive| servers.iter().position(|it| std::ptr::eq(*it, *server));
        served.sort_by_key(order);
        Self {
            served,
            redirecting: apart,
            left_out,
        }
    }
}

/// How many limits, `proxy_pass` and locations a block has.
fn weight(block: &[Directive]) -> (usize, usize, usize) {
    block.iter().fold((0, 0, 0), |sum, directive| {
        let within = weight(&directive.block);
        let is = |names: &[&str]| usize::from(names.contains(&directive.name.as_str()));
        (
            sum.0 + within.0 + is(&["limit_req", "limit_conn"]),
            sum.1 + within.1 + is(&["proxy_pass"]),
            sum.2 + within.2 + is(&["location", "return"]),
        )
    })
}

/// Where a server listens.
pub(super) struct Addresses {
    /// Those without TLS, or all if each has TLS.
    main: BTreeSet<String>,
    all: BTreeSet<String>,
    /// The addresses without their ports: a server must not be reached from elsewhere by TLS.
    hosts: BTreeSet<String>,
}

impl Addresses {
    pub(super) fn of(server: &Directive) -> Self {
        let shown = |listen: &Directive| socket(listen).replace("[::]", "0.0.0.0");
        let mut all: BTreeSet<String> = listens(server).map(shown).collect();
        let mut main: BTreeSet<String> = listens(server)
            .filter(|it| !is_tls(it))
            .map(shown)
            .collect();
        if all.is_empty() {
            all.insert("0.0.0.0:80".to_owned());
        }
        if main.is_empty() {
            main.clone_from(&all);
        }
        let host = |address: &String| address.rsplit_once(':').map_or("", |it| it.0).to_owned();
        let hosts = all.iter().map(host).collect();
        Self { main, all, hosts }
    }

    /// Whether Weir can serve both servers together.
    fn is_like(&self, other: &Self) -> bool {
        self.main == other.main && self.hosts == other.hosts
    }

    pub(super) fn is_disjoint(&self, other: &Self) -> bool {
        self.main.is_disjoint(&other.main) && self.all.is_disjoint(&other.all)
    }
}

fn listens(server: &Directive) -> impl Iterator<Item = &Directive> {
    named(&server.block, "listen")
}

fn is_tls(listen: &Directive) -> bool {
    listen.has("ssl") || listen.has("quic")
}

/// Writes `ssl on` as what it does: `listen ... ssl` of the servers that it holds for.
pub(super) fn spread_tls(http: &mut [Directive]) {
    let is_on = |block: &[Directive]| {
        let last = named(block, "ssl").last()?;
        last.is_reached.set(true);
        Some(last.has("on"))
    };
    let is_on_around = is_on(http).unwrap_or_default();
    for server in http.iter_mut().filter(|it| it.name == "server") {
        if !is_on(&server.block).unwrap_or(is_on_around) {
            continue;
        }
        if listens(server).next().is_none() {
            server.block.push(Directive {
                name: "listen".to_owned(),
                arguments: vec!["80".to_owned()],
                block: Vec::new(),
                place: server.place.clone(),
                is_reached: Cell::default(),
            });
        }
        let plain = server.block.iter_mut();
        for listen in plain.filter(|it| it.name == "listen" && !is_tls(it)) {
            listen.arguments.push("ssl".to_owned());
        }
    }
}

/// Gives each `listen` what another one says of the same address: nginx has one socket for both.
pub(super) fn join_sockets(http: &mut [Directive]) {
    for option in ["ssl", "proxy_protocol"] {
        let is_socket = |it: &&Directive| !it.has("quic");
        let servers = http.iter().filter(|it| it.name == "server");
        let sockets = servers.flat_map(listens).filter(is_socket);
        let with = sockets.filter(|it| it.has(option)).map(socket);
        let with: BTreeSet<String> = with.collect();
        let servers = http.iter_mut().filter(|it| it.name == "server");
        for listen in servers.flat_map(|server| &mut server.block) {
            let is_meant = listen.name == "listen" && is_socket(&&*listen);
            if is_meant && !listen.has(option) && with.contains(&socket(listen)) {
                listen.arguments.push(option.to_owned());
            }
        }
    }
}

/// The address of a `listen`, in one of its spellings.
fn socket(listen: &Directive) -> String {
    let written = listen.argument(0);
    address(written).unwrap_or_else(|| written.to_owned())
}

pub(super) fn is_default(server: &Directive) -> bool {
    listens(server).any(|listen| listen.has("default_server") || listen.has("default"))
}

/// Writes the listeners of the served servers, and of those that redirect to HTTPS.
pub(super) fn write(
    groups: &Groups<'_>,
    (http, folder): (&[Directive], &Path),
    realip: &Realip,
    configuration: &mut Configuration,
) {
    let mut listeners = Listeners {
        http,
        folder,
        realip,
        is_alone: groups.served.is_empty(),
        configuration,
    };
    for server in &groups.served {
        listeners.serve(server, &groups.served);
    }
    listeners.redirect(&groups.redirecting);
    let place = groups.served.first().map(|server| server.place.clone());
    if let Some(place) = place.filter(|_| configuration.listen.is_empty()) {
        let what =
            format!("listens at {NOWHERE}, for this machine alone, in place of its addresses");
        let remedy = "write the listeners by hand, with `tls` or `proxy_protocol`";
        configuration.differ(Effect::LeavesOut, &place, ("`server`", &what), remedy);
        configuration.listen.push(json!({"address": NOWHERE}));
    }
}

struct Listeners<'l> {
    http: &'l [Directive],
    /// Paths of files are relative to it.
    folder: &'l Path,
    realip: &'l Realip,
    /// Whether all servers redirect to HTTPS.
    is_alone: bool,
    configuration: &'l mut Configuration,
}

impl Listeners<'_> {
    fn has(&self, address: &str) -> bool {
        let mut listen = self.configuration.listen.iter();
        listen.any(|it| it.get("address").and_then(Value::as_str) == Some(address))
    }

    /// The listeners of a server, which others may share.
    fn serve(&mut self, server: &Directive, all: &[&Directive]) {
        if listens(server).next().is_none() && !self.has("0.0.0.0:80") {
            self.configuration
                .listen
                .push(json!({"address": "0.0.0.0:80"}));
        }
        for listen in listens(server) {
            let Some(address) = address(listen.argument(0)).filter(|_| !listen.has("quic")) else {
                let (effect, remedy) = match listen.has("quic") {
                    true => (
                        Effect::Differs,
                        "Weir speaks HTTP/1.1 and HTTP/2; clients use those",
                    ),
                    false => (
                        Effect::LeavesOut,
                        "Weir listens at IP addresses: give it one",
                    ),
                };
                listen.report(effect, "is left out", remedy, self.configuration);
                continue;
            };
            if self.has(&address) {
                continue;
            }
            let mut keys = Keys::from_iter([("address".to_owned(), json!(address))]);
            if listen.has("ssl") {
                match self.certificates(listen, all) {
                    Ok(certificates) => keys.insert("tls".to_owned(), certificates),
                    Err(why) => {
                        let what = format!("is left out: {why}");
                        listen.report(Effect::LeavesOut, &what, CERTIFICATES, self.configuration);
                        continue;
                    }
                };
            }
            if listen.has("proxy_protocol") && !self.proxy_protocol(listen, &mut keys) {
                continue;
            }
            self.configuration.listen.push(Value::Object(keys));
        }
    }

    /// The load balancers of a listener; false if nobody says who they are.
    fn proxy_protocol(&mut self, listen: &Directive, keys: &mut Keys) -> bool {
        let Some(trusted) = self.realip.balancers() else {
            let remedy = "say which load balancers there are: `proxy_protocol: {trusted: [...]}`";
            listen.report(Effect::LeavesOut, "is left out", remedy, self.configuration);
            return false;
        };
        keys.insert("proxy_protocol".to_owned(), json!({"trusted": trusted}));
        let what = "has no requests of peers without the PROXY protocol in nginx; Weir serves them";
        let remedy = "let a firewall keep others from the port";
        listen.report(Effect::Opens, what, remedy, self.configuration);
        true
    }

    /// The certificates of the servers that listen where one does, that of the default one first.
    ///
    /// # Errors
    /// The error says why there is none.
    fn certificates(
        &mut self,
        listen: &Directive,
        servers: &[&Directive],
    ) -> Result<Value, String> {
        let own = socket(listen);
        let is_same = |server: &&&Directive| listens(server).any(|it| socket(it) == own);
        let mut servers: Vec<_> = servers.iter().filter(is_same).collect();
        servers.sort_by_key(|server| !is_default(server));
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for server in servers {
            let scopes = Scopes(vec![self.http, &server.block]);
            let certificates = scopes.all(&["ssl_certificate"]);
            for (certificate, key) in certificates
                .into_iter()
                .zip(scopes.all(&["ssl_certificate_key"]))
            {
                match self.certificate(certificate, key) {
                    Ok(pair) if found.contains(&pair) => {}
                    Ok(pair) => found.push(pair),
                    Err(error) => missing.push((certificate, error)),
                }
            }
        }
        match (&found[..], missing.first()) {
            ([], Some((_, error))) => return Err(error.clone()),
            ([], None) => return Err("it has no certificate".to_owned()),
            _ => {}
        }
        for (certificate, error) in missing {
            let what = format!("is left out: {error}");
            certificate.report(Effect::LeavesOut, &what, CERTIFICATES, self.configuration);
        }
        let one = found.first().filter(|_| found.len() == 1).cloned();
        Ok(one.unwrap_or(json!(found)))
    }

    /// A certificate with its key, if both can be read here.
    fn certificate(&self, certificate: &Directive, key: &Directive) -> Result<Value, String> {
        let files = [certificate, key].map(|directive| {
            directive.is_reached.set(true);
            let path = self.folder.join(directive.argument(0));
            std::path::absolute(&path).unwrap_or(path)
        });
        for file in &files {
            let opened = match file.metadata().is_ok_and(|found| found.is_file()) {
                true => File::open(file)
                    .map(drop)
                    .map_err(|error| error.to_string()),
                false => Err("there is no such file here".to_owned()),
            };
            opened.map_err(|error| format!("{}: {error}", file.display()))?;
        }
        let [certificate, key] = files.map(|file| file.display().to_string());
        Ok(json!({"certificate": certificate, "key": key}))
    }

    /// Listeners that redirect to HTTPS, for the servers that do nothing else.
    fn redirect(&mut self, servers: &[&Directive]) {
        for server in servers {
            let Some((host, port)) = only_https(server) else {
                continue;
            };
            // Without anything to serve, HTTPS is elsewhere.
            let elsewhere = self.is_alone.then(|| port.unwrap_or(443));
            let Some(port) = self.tls_port(port).or(elsewhere) else {
                let what = "is left out: it redirects to HTTPS, and no listener has `tls`";
                let remedy = "add a listener with `tls`, and one with `redirect_to_https: true`";
                server.report(Effect::LeavesOut, what, remedy, self.configuration);
                continue;
            };
            let target = if port == 443 {
                json!(true)
            } else {
                json!({"port": port})
            };
            let written: Vec<_> = listens(server).map(|it| it.argument(0)).collect();
            let written = if written.is_empty() {
                vec!["80"]
            } else {
                written
            };
            for written in written {
                let address = address(written).filter(|address| !self.has(address));
                let listener = |it| json!({"address": it, "redirect_to_https": target});
                self.configuration.listen.extend(address.map(listener));
            }
            if host != "{{ host }}" && !named_hosts(server).eq([host.as_str()]) {
                let what =
                    format!("redirects to {host} in nginx, and to the requested host in Weir");
                let remedy = "write a route with a `redirect` for the other hosts";
                server.report(Effect::Differs, &what, remedy, self.configuration);
            }
            self.report_redirected(server);
        }
    }

    /// Says which requests to a redirecting server nginx does not redirect.
    fn report_redirected(&mut self, server: &Directive) {
        let name = server_name(&server.block);
        for condition in named(&server.block, "if") {
            let own = named(&condition.block, "return");
            for own in own.filter(|it| Return::of_return(it, name).https().is_some()) {
                condition.is_reached.set(true);
                own.is_reached.set(true);
            }
        }
        let remedy = "serve them from a listener without `redirect_to_https`, by routes";
        match Return::of_block(&server.block, name) {
            Some(Return::Response { status, .. }) => {
                let what =
                    format!("redirects all hosts and paths, of which others get {status} in nginx");
                server.report(Effect::Differs, &what, remedy, self.configuration);
            }
            // It comes before all locations.
            Some(_) => {}
            None => {
                let locations = named(&server.block, "location");
                for location in locations.filter(|it| Return::of_block(&it.block, name).is_none()) {
                    let what = "is left out: the listener redirects all paths";
                    location.report(Effect::LeavesOut, what, remedy, self.configuration);
                }
            }
        }
    }

    /// The port of a listener with TLS: the wanted one, or that of HTTPS, or the first.
    fn tls_port(&self, wanted: Option<u16>) -> Option<u16> {
        let listen = self
            .configuration
            .listen
            .iter()
            .filter(|it| it.get("tls").is_some());
        let addresses = listen.filter_map(|it| it.get("address")?.as_str()?.parse().ok());
        let ports: Vec<u16> = addresses.map(|it: SocketAddr| it.port()).collect();
        let first = ports.first().copied()?;
        Some(
            wanted
                .or(ports.contains(&443).then_some(443))
                .unwrap_or(first),
        )
    }
}

fn named_hosts(server: &Directive) -> impl Iterator<Item = &str> {
    let names = named(&server.block, "server_name");
    names.flat_map(|names| names.arguments.iter().map(String::as_str))
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
