//! The list of directives that are not translated.

use std::collections::BTreeSet;

use super::parse::Directive;
use crate::configuration::Configuration;
use crate::difference::Effect;
use crate::source::Place;

/// Directives that are translated, or are said of elsewhere.
const TRANSLATED: &str = "http server location upstream limit_req_zone limit_req limit_req_status \
    limit_req_dry_run limit_req_log_level limit_conn_zone limit_conn limit_conn_status \
    limit_conn_dry_run limit_conn_log_level proxy_pass listen server_name map geo allow \
    auth_basic_user_file internal events client_max_body_size real_ip_recursive";

/// Blocks whose content is no directive, or concerns the block alone.
const OPAQUE: &str = "map geo types if limit_except events upstream split_clients stream mail";

/// What leaving out a directive does that decides who or how much comes in, and what to do about it.
fn effect(directive: &Directive) -> Option<(Effect, &'static str, &'static str)> {
    use Effect::{Differs, LeavesOut, Opens};
    Some(match directive.name.as_str() {
        "deny" if directive.denies_all() => return None,
        "deny" => (
            Opens,
            "these clients are let in",
            "`block: {addresses: [...]}` keeps clients out of all routes",
        ),
        "satisfy" => (
            Differs,
            "a location with a guard or `deny all` responds with 403 to everyone",
            "let the app decide who may come in, or `client_auth` of a listener",
        ),
        "valid_referers" => (
            Opens,
            "requests of any referer are let in",
            "let the app decide who may come in, or `client_auth` of a listener",
        ),
        "set_real_ip_from" | "real_ip_header" => (
            Opens,
            "the client is the peer of the connection, and all clients of a proxy are exempt or \
             let in where it is",
            "say who the client is: `client_address: {trusted_proxies: [...], header: ...}`",
        ),
        "if" => (
            Opens,
            "requests that it would deny, limit or send elsewhere are treated as all others",
            "write a route with `methods`, `headers` or `query` in its `match`",
        ),
        "limit_except" => (
            Opens,
            "the methods that it keeps out are let in",
            "write a route with `methods`, `headers` or `query` in its `match`",
        ),
        "return" | "rewrite" => (
            Differs,
            "the path stays, and its location or upstream decides",
            "write a route with `redirect`, `response` or `rewrite`; for HTTPS, say \
             `redirect_to_https: true` on a listener",
        ),
        "proxy_set_header" => (
            Differs,
            "no location that forwards has it",
            "say `request_headers: {set: ...}` on the route, or `remove` it there",
        ),
        "stream" | "mail" => (
            LeavesOut,
            "nothing of it is served",
            "Weir speaks HTTP: leave it to nginx",
        ),
        "limit_rate" | "limit_rate_after" => (
            LeavesOut,
            "responses are as fast as they can be",
            "Weir does not limit bandwidth",
        ),
        name if name.contains("limit") => (
            LeavesOut,
            "it limits nothing",
            "docs/LIMITS.md says how to choose a limit",
        ),
        _ => return None,
    })
}

/// Lists all directives that are not translated: those that concern limits or access one by one,
/// and the names of the others.
pub(super) fn list(directives: &[Directive], file: &Place, configuration: &mut Configuration) {
    let mut others = BTreeSet::new();
    walk(directives, &mut others, configuration);
    others.remove("deny");
    if !others.is_empty() {
        let names: Vec<&str> = others.into_iter().collect();
        let what = format!("not translated, and not judged: {}", names.join(", "));
        let remedy = "docs/CONFIG.md has keys for headers, compression, time-outs, TLS and logs; see to \
                      those that limit or keep out clients";
        configuration.differ(Effect::Differs, file, ("", &what), remedy);
    }
}

fn walk<'d>(
    directives: &'d [Directive],
    others: &mut BTreeSet<&'d str>,
    configuration: &mut Configuration,
) {
    let is_of = |names: &str, name: &str| names.split(' ').any(|other| other == name);
    for directive in directives {
        let name = directive.name.as_str();
        let limits = matches!(name, "limit_req" | "limit_conn");
        let guards = directive.denies_all() || directive.is_guard() && !directive.has("off");
        let is_reached = directive.is_reached.get();
        if (limits || guards) && !is_reached {
            let remedy = "write the limit, or who may come in, on the routes that it is for";
            directive.report(
                Effect::LeavesOut,
                "holds for no route",
                remedy,
                configuration,
            );
        }
        match effect(directive) {
            _ if directive.is_guard() || is_of(TRANSLATED, name) => {}
            // A `deny` of some clients is looked at, and not translated.
            _ if is_reached && name != "deny" => {}
            Some((effect, what, remedy)) => {
                let what = format!("is not translated: {what}");
                directive.report(effect, &what, remedy, configuration);
            }
            None => {
                others.insert(name);
            }
        }
        if !is_of(OPAQUE, name) {
            walk(&directive.block, others, configuration);
        }
    }
}
