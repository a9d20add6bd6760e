//! Who the client is behind a proxy: `set_real_ip_from` and `real_ip_header`.

use serde_json::json;

use super::networks::Network;
use super::parse::Directive;
use super::scopes::{Scopes, named};
use crate::configuration::{Configuration, Keys};
use crate::difference::Effect;

/// The header of the PROXY protocol.
const PROXY_PROTOCOL: &str = "proxy_protocol";

const REMEDY: &str =
    "say who the client is: `client_address: {trusted_proxies: [...], header: ...}`";

/// The proxies that are trusted to say who the client is, and by which header.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Realip {
    networks: Vec<String>,
    header: String,
}

impl Realip {
    /// What holds for all of the servers. Weir asks the same for all requests.
    pub(super) fn of_servers(
        http: &[Directive],
        servers: &[&Directive],
        configuration: &mut Configuration,
    ) -> Self {
        let scopes = servers
            .iter()
            .map(|server| Scopes(vec![http, &server.block]));
        let scopes: Vec<_> = scopes.collect();
        let mut all = scopes.iter().map(Self::of_server);
        let first = all.next().unwrap_or_default();
        let is_same = all.all(|other| other == first);
        let is_own = |server: &&Directive| has_location_with_own(&server.block);
        if !is_same || servers.iter().any(is_own) {
            return Self::default();
        }
        let is_any = |network: &String| network.ends_with("/0");
        let is_left_out =
            scopes.iter().any(|it| first.is_last_alone(it)) && first.networks.iter().any(is_any);
        for scopes in &scopes {
            first.report(scopes, is_left_out, configuration);
        }
        if is_left_out { Self::default() } else { first }
    }

    /// Whether nginx takes the last address of a list, where Weir walks on past trusted proxies.
    fn is_last_alone(&self, scopes: &Scopes<'_>) -> bool {
        self.header == "x-forwarded-for"
            && !self.networks.is_empty()
            && scopes.value("real_ip_recursive") != "on"
    }

    fn of_server(scopes: &Scopes<'_>) -> Self {
        let networks = scopes.all(&["set_real_ip_from"]).into_iter();
        let networks = networks.filter_map(|it| Network::parse(it.argument(0)));
        let mut networks: Vec<_> = networks.map(|it| it.to_string()).collect();
        networks.sort();
        networks.dedup();
        let header = match scopes.value("real_ip_header") {
            "" => "x-real-ip".to_owned(),
            header => header.to_ascii_lowercase(),
        };
        Self { networks, header }
    }

    /// Says what is otherwise, and that nothing else is.
    fn report(&self, scopes: &Scopes<'_>, is_left_out: bool, configuration: &mut Configuration) {
        for directive in scopes.all(&["set_real_ip_from"]) {
            directive.is_reached.set(true);
            if Network::parse(directive.argument(0)).is_none() {
                let what = "is not translated: such a peer is the client itself";
                directive.report(Effect::Opens, what, REMEDY, configuration);
            }
        }
        let headers = scopes.all(&["real_ip_header"]);
        for directive in &headers {
            directive.is_reached.set(true);
        }
        let Some(directive) = headers.last() else {
            return;
        };
        if is_left_out {
            let what = "is left out: it takes the last address, and Weir would take the first, which \
                        clients choose where all are trusted proxies";
            directive.report(Effect::LeavesOut, what, REMEDY, configuration);
        } else if self.is_last_alone(scopes) {
            let what = "takes the last address, and Weir the last that is no trusted proxy, which a \
                        client of a trusted network chooses";
            let remedy = "trust the addresses of proxies alone, and no network that has clients: \
                          `real_ip_recursive on` is what Weir does";
            directive.report(Effect::Opens, what, remedy, configuration);
        }
    }

    /// The load balancers of listeners with the PROXY protocol.
    pub(super) fn balancers(&self) -> Option<&[String]> {
        let is_meant = self.header == PROXY_PROTOCOL && !self.networks.is_empty();
        is_meant.then_some(&self.networks)
    }

    /// The key `client_address`.
    pub(super) fn keys(&self) -> Keys {
        let is_meant = self.header != PROXY_PROTOCOL && !self.networks.is_empty();
        let value = json!({"trusted_proxies": self.networks, "header": self.header});
        Keys::from_iter(is_meant.then(|| ("client_address".to_owned(), value)))
    }
}

/// Whether a location within a block says by itself who the client is.
fn has_location_with_own(block: &[Directive]) -> bool {
    named(block, "location").any(|location| {
        let mut own = location.block.iter();
        own.any(|it| it.name == "set_real_ip_from" || it.name == "real_ip_header")
            || has_location_with_own(&location.block)
    })
}
