//! `gateway.yaml` as a whole, and what is there once: listeners, clients, the store and logs.

mod acme;
pub(crate) mod capabilities;
mod clients;
mod decide;
mod drawn_shares;
mod envoy;
mod https;
mod listen;
pub(super) mod schema;
mod secrets;
mod store;
mod telemetry;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::available_parallelism;

use rustix::fs::{Access, access};

use super::access::Access;
use super::limits::{WrittenLimits, enforcement, limits, warn_of_limits, warn_of_prefetch};
use super::named::Named;
use super::routes::{
    LoweredRoute, client_priorities, drawn_shares, limits_of_routes, routes, upstreams,
    warn_of_routes,
};
use super::settings::{DEFAULT_GRACE, EnvoyService, ProcessSettings, Settings};
use super::until::now;
pub(crate) use clients::lacks_accounts;
use clients::{
    account_rules, client_rules, ipv6_prefix, nat64_prefixes, refuse_unasked_certificates,
    request_id, warn_of_clients,
};
use decide::{decide, warn_of_decisions};
pub(crate) use drawn_shares::Share;
use drawn_shares::warn_of_drawn_shares;
pub(crate) use envoy::ROUTE as ENVOY_ROUTE;
use envoy::{envoy, limits_of_descriptors};
use https::{hsts, warn_of_redirects};
use listen::{admin_dashboard, admin_hosts, listen, warn_of_open_admin};
pub(crate) use secrets::secret;
use secrets::{admin_tokens, hash_key, require_key};
use store::store;
use telemetry::otlp;

use schema::{Gateway, Log, Workers};
use weir_middleware::{ErrorPages, ResponseSteps};
use weir_rules::{AccountRules, AccountWildcards, HashKey};
use weir_telemetry::LogSettings;
use weir_yaml::{Diagnostics, Lowered, Lowering, Spanned, all};

/// Where overrides by the admin API are kept, unless told otherwise: not in the folder of limits,
/// whose files are the operator's own.
const DEFAULT_OVERRIDES_FILE: &str = "admin-overrides.json";

/// Each worker is a thread with its own connections; more than this is surely a mistake.
const MAX_WORKERS: usize = 1024;

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
        log.and_then(|log| log.account) == Some(schema::LogAccount::Plain),
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
    let envoy = envoy(cx, gateway, table);
    let mut access = Access::read(cx, gateway, &named, &routes);
    let priorities = client_priorities(cx, gateway, table);
    let of_all = enforcement(gateway.enforce.as_ref());
    let overload = gateway.overload.as_ref();
    let overload = overload.map(|keys| keys.lower(cx, of_all)).transpose();
    let error_pages = ErrorPages::read(cx, gateway.errors.as_ref());
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
    let hsts = hsts(cx, gateway, listening);
    warn_of_redirects(cx, gateway, listening);
    warn_of_limits(cx, table);
    if matches!(&process, Ok(process) if !process.store.is_shared()) {
        warn_of_prefetch(cx, table);
    }
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
        priorities: priorities?,
        overload: overload?,
        response_steps: ResponseSteps::default()
            .with(hsts?)
            .with(Some(error_pages?)),
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

fn process(cx: &mut Lowering<'_>, gateway: &Gateway) -> Lowered<ProcessSettings> {
    let admin = gateway
        .admin
        .as_ref()
        .map(|admin| cx.required(&admin.address));
    let workers = workers(cx, gateway.workers.as_ref());
    let store = store(cx, gateway.store.as_ref());
    let overrides_file = overrides_file(cx, gateway);
    let log = log(cx, gateway.log.as_ref());
    let otlp = otlp(cx, gateway);
    Ok(ProcessSettings {
        admin: admin.transpose()?.map(|address| address.0),
        overrides_file: overrides_file?,
        workers: workers?,
        connections: gateway.connections.clone().unwrap_or_default(),
        store: store?,
        log: log?,
        otlp: otlp?,
    })
}

/// Where overrides by the admin API are kept, unless they are in Redis.
fn overrides_file(cx: &mut Lowering<'_>, gateway: &Gateway) -> Lowered<Option<PathBuf>> {
    let Some(admin) = &gateway.admin else {
        return Ok(None);
    };
    let redis = gateway
        .store
        .as_ref()
        .and_then(|store| store.redis.as_ref());
    let file = match (&admin.overrides_file, redis) {
        (Some(written), Some(_)) => {
            let message = "overrides by the admin API are kept in Redis, and not in a file";
            return Err(cx.error(written.span, message).help("leave it out"));
        }
        (None, Some(_)) => return Ok(None),
        (Some(written), None) if written.is_empty() => {
            let error = cx.error(written.span, "the path is empty");
            return Err(error.help("name a file that the gateway may write, or leave it out"));
        }
        (Some(written), None) => cx.folder.join(&written.value),
        (None, None) => cx.folder.join(DEFAULT_OVERRIDES_FILE),
    };
    // The folder of a name alone is the working directory.
    let folder = match file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    if let Err(cause) = access(folder, Access::WRITE_OK | Access::EXEC_OK) {
        let span = admin
            .overrides_file
            .as_ref()
            .map_or(admin.address.span, |file| file.span);
        let folder = folder.display();
        let message = format!("the admin API cannot keep overrides in {folder}: {cause}");
        cx.warn(span, message).help(
            "name a file in a folder that the gateway's user may write by `admin: {overrides_file: \
             PATH}`, such as /var/lib/weir/overrides.json",
        );
    }
    Ok(Some(file))
}

fn workers(cx: &mut Lowering<'_>, workers: Option<&Spanned<Workers>>) -> Lowered<NonZeroUsize> {
    let auto = || available_parallelism().unwrap_or(NonZeroUsize::MIN);
    match workers {
        Some(workers) if workers.value != "auto" => {
            let number = workers.value.parse().ok();
            let number = number.filter(|number: &NonZeroUsize| number.get() <= MAX_WORKERS);
            number.ok_or_else(|| {
                let found = &workers.value;
                let message = format!("expected auto or 1 to {MAX_WORKERS}, found `{found}`");
                cx.error(workers.span, message).into()
            })
        }
        _ => Ok(auto()),
    }
}

fn log(cx: &mut Lowering<'_>, log: Option<&Log>) -> Lowered<LogSettings> {
    let mut settings = LogSettings::default();
    let Some(log) = log else {
        return Ok(settings);
    };
    if let Some(format) = log.format {
        settings.format = format.0;
    }
    if let Some(access) = &log.access {
        settings.access = access.value;
    }
    if let Some(format) = &log.access_format {
        if !settings.access {
            let error = cx.error(format.span, "`access: false` leaves nothing to format");
            return Err(error.help("remove one of the two"));
        }
        settings.access_format = Some(format.0.0.clone());
    }
    if let Some(level) = &log.level {
        settings.level.clone_from(&level.value);
        cx.ok(level.span, settings.check())?;
    }
    Ok(settings)
}
