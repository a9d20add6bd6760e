//! `gateway.yaml` as a whole, and what is there once: listeners, clients, the store and logs.

pub mod account;
mod capabilities;
mod clients;
mod decide;
mod drawn_shares;
pub(crate) mod envoy;
mod https;
pub mod listen;
pub mod process;
mod response_steps;
pub(super) mod schema;
mod secrets;

use std::sync::Arc;

use super::access::Access;
use super::limits::{WrittenLimits, limits, warn_of_limits};
use super::named::Named;
use super::routes::{
    LoweredRoute, drawn_shares, limits_of_routes, routes, shedding, upstreams, warn_of_routes,
};
use super::settings::{DEFAULT_GRACE, EnvoyService, Settings};
use super::until::now;
use account::account_rules;
pub(crate) use clients::lacks_accounts;
use clients::{
    client_rules, ipv6_prefix, nat64_prefixes, refuse_unasked_certificates, request_id,
    warn_of_clients,
};
use decide::{decide, warn_of_decisions};
pub(crate) use drawn_shares::Share;
use drawn_shares::warn_of_drawn_shares;
use envoy::{envoy, limits_of_descriptors};
use https::warn_of_redirects;
use listen::{admin_dashboard, admin_hosts, listen, warn_of_open_admin};
use process::{LogAccount, process};
use response_steps::response_steps;
use secrets::{admin_tokens, hash_key, require_key};

use schema::Gateway;
use weir_rules::{AccountRules, AccountWildcards, HashKey};
use weir_yaml::{Diagnostics, Lowered, Lowering, Spanned, all};

/// The files of a configuration, read but not yet understood.
pub(super) struct ParsedFiles {
    pub(super) gateway: Spanned<Gateway>,
    pub(super) limits: WrittenLimits,
}

/// Lowers everything. `process_key` hashes when no key is configured.
pub(crate) fn settings(
    cx: &mut Lowering<'_>,
    written: &ParsedFiles,
    process_key: &HashKey,
) -> Lowered<Settings> {
    let gateway = &written.gateway;
    let process = process(cx, gateway);
    let listen = listen(cx, gateway);
    let decide = decide(cx, gateway);
    let admin_tokens = admin_tokens(cx, gateway.admin.as_ref());
    let admin_hosts = admin_hosts(cx, gateway.admin.as_ref());
    let admin_dashboard = admin_dashboard(cx, gateway.admin.as_ref());
    warn_of_open_admin(cx, gateway.admin.as_ref());
    let client = client_rules(cx, gateway.client_address.as_ref());
    let key = hash_key(cx, gateway.hash_key.as_ref());
    let fingerprint = key.as_ref().ok().and_then(Option::as_ref);
    let hash_key_fingerprint = fingerprint.map(HashKey::fingerprint);
    let key = key.map(|key| key.unwrap_or_else(|| process_key.clone()));
    let log = gateway.log.as_ref();
    let mut jwks = Vec::new();
    let account = account_rules(
        cx,
        &mut jwks,
        gateway.account.as_ref().map(|account| account.as_slice()),
        &key,
        log.and_then(|log| log.account) == Some(LogAccount::Plain),
    );
    refuse_unasked_certificates(cx, gateway);
    let request_id = request_id(cx, gateway);
    let prefix = ipv6_prefix(cx, gateway.client_address.as_ref());
    let upstreams = upstreams(cx, gateway, prefix);
    let key = key.unwrap_or_else(|_| process_key.clone());
    let mut uses = limits_of_routes(gateway);
    uses.extend(limits_of_descriptors(gateway));
    let nat64 = nat64_prefixes(gateway.client_address.as_ref());
    let table = limits(cx, &written.limits, &uses, key, (prefix, nat64));
    let named = Named::read(cx, gateway, table, upstreams);
    let table = &named.table;
    let routes = routes(cx, gateway, &named);
    let envoy = envoy(cx, gateway, table, &routes);
    let mut access = Access::read(cx, gateway, &named, &routes);
    let shedding = shedding(cx, gateway, table);
    let limits = routes.iter().flat_map(LoweredRoute::limits);
    let of_descriptors = envoy.as_ref().ok().and_then(Option::as_ref);
    let of_descriptors = of_descriptors.into_iter().flat_map(EnvoyService::limits);
    let limits: Vec<_> = limits.chain(of_descriptors).cloned().collect();
    require_key(cx, gateway, &limits, access.hashed());
    let shares = access.shares(gateway).chain(drawn_shares(gateway));
    warn_of_drawn_shares(cx, gateway, &routes, shares);
    let listening = listen.as_deref().unwrap_or_default();
    access.fit(cx, gateway, listening);
    warn_of_clients(cx, gateway);
    let response_steps = response_steps(cx, gateway, listening);
    warn_of_redirects(cx, gateway, listening);
    let is_alone = process.as_ref().is_ok_and(|it| !it.store.is_shared());
    warn_of_limits(cx, table, is_alone);
    warn_of_routes(cx, gateway, &named, &routes, listening);
    warn_of_decisions(cx, gateway, &account, &routes);
    access.warn_of_undecided(cx, gateway);
    let wildcards = AccountWildcards::from_limits(limits.iter().map(AsRef::as_ref));
    Ok(Settings {
        process: process?,
        listen: listen?.into_iter().chain(decide?).collect(),
        grace: gateway.grace.map_or(DEFAULT_GRACE, |span| span.0),
        admin_tokens: admin_tokens?,
        admin_hosts: admin_hosts?,
        admin_dashboard: admin_dashboard?,
        watch: gateway.watch.unwrap_or(true),
        client: client?,
        account: AccountRules {
            wildcards,
            ..account?
        },
        hash_key_fingerprint,
        jwks,
        log_queries: log.and_then(|log| log.query).unwrap_or_default(),
        log_denied_per_second: log.and_then(|log| log.denied_per_second),
        parameters: named.table.parameters(),
        override_rules: named.table.override_rules(),
        upstreams: named.upstreams.into_settings()?,
        routes: all(routes.into_iter().map(|route| route.settings))?,
        envoy: envoy?,
        shedding: shedding?,
        response_steps: response_steps?,
        request_id: request_id?,
        access: access.into_settings()?,
        known_overrides: Arc::default(),
        overrides: Arc::default(),
        files: Vec::new(),
        limits_file: None,
        loaded_at: now(cx),
        warnings: Diagnostics::default(),
    })
}
