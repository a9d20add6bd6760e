//! Explains which list the client is on, and which bans apply to the request.

use std::fmt::{self, Write};

use weir_config::Settings;
use weir_middleware::{BanPolicy, Treatment};
use weir_rules::{Access, ListEntry, RequestAttributes};
use weir_yaml::HumanDuration;

use crate::app::wording::{in_words, write_enforcement};

/// Writes which list the client is on. Then nothing else matters.
pub(super) fn write_list(
    out: &mut String,
    settings: &Settings,
    facts: &RequestAttributes<'_>,
) -> fmt::Result {
    let access = &settings.access;
    let account = facts.account.map(|account| account.id);
    match access.lists.access(facts.client, account) {
        Access::Unlisted => Ok(()),
        Access::Allowed(listed) => {
            writeln!(out, "\nallow: {}", entry(listed))?;
            writeln!(
                out,
                "  so no limit counts it, and no ban or block list holds it"
            )
        }
        Access::Blocked(listed) => {
            writeln!(out, "\nblock: {}", entry(listed))?;
            write!(out, "  the blocked get ")?;
            write_treatment(out, &access.blocked)
        }
    }
}

fn entry(listed: ListEntry) -> String {
    match listed {
        ListEntry::Network(network) => format!("the client is in {network}"),
        ListEntry::Account(id) => format!("the account {id} is listed"),
    }
}

pub(super) fn write_bans(
    out: &mut String,
    settings: &Settings,
    facts: &RequestAttributes<'_>,
) -> fmt::Result {
    for policy in &settings.access.bans {
        write_ban(out, policy, facts)?;
    }
    Ok(())
}

fn write_ban(out: &mut String, policy: &BanPolicy, facts: &RequestAttributes<'_>) -> fmt::Result {
    let ban = &policy.ban;
    let (name, per) = (ban.name(), in_words(ban.per()));
    let Some(subject) = ban.subject(facts) else {
        return writeln!(out, "\nban {name}: skipped, as the request has no {per}");
    };
    let key = ban.ban_key(&subject);
    writeln!(out, "\nban {name}: watches, per {per}")?;
    writeln!(out, "  bucket {key}")?;
    match policy.has_strikes() {
        true => {
            write_strikes(out, policy, facts)?;
            write_terms(out, policy)?;
        }
        false => {
            let first = HumanDuration(ban.schedule().first());
            writeln!(
                out,
                "  bans by hand alone, for {first} unless told otherwise"
            )?;
        }
    }
    write!(out, "  the banned get ")?;
    write_treatment(out, &policy.treatment)?;
    write_enforcement(out, policy.enforcement, &key)
}

fn write_strikes(
    out: &mut String,
    policy: &BanPolicy,
    facts: &RequestAttributes<'_>,
) -> fmt::Result {
    let mut strikes = Vec::new();
    if !policy.limits.is_empty() {
        let limits = policy.limits.join(" and ");
        strikes.push(match policy.workers {
            0 => format!("denials by {limits}"),
            workers => format!(
                "denials by {limits}, but for the first {workers} of a client that does not wait \
                 (`workers`)"
            ),
        });
    }
    if !policy.statuses.is_empty() {
        strikes.push(format!("answers of {}", policy.statuses));
    }
    if policy.paths.matches(facts.uri.path()) {
        strikes.push("this path".to_owned());
    } else if !policy.paths.is_empty() {
        strikes.push("other paths than this".to_owned());
    }
    writeln!(out, "  strikes: {}", strikes.join("; "))
}

fn write_terms(out: &mut String, policy: &BanPolicy) -> fmt::Result {
    let (ban, schedule) = (&policy.ban, policy.ban.schedule());
    let (count, period) = (ban.strikes().burst(), HumanDuration(ban.period()));
    let lengths: Vec<String> = schedule
        .lengths()
        .iter()
        .map(|length| HumanDuration(*length).to_string())
        .collect();
    write!(
        out,
        "  {count} in {period} ban for {}",
        lengths.join(", then ")
    )?;
    match schedule.forget() {
        Some(forget) => writeln!(
            out,
            "; an offence is forgotten after {}",
            HumanDuration(forget)
        ),
        None => writeln!(out),
    }
}

fn write_treatment(out: &mut String, treatment: &Treatment) -> fmt::Result {
    writeln!(out, "{}", treatment.describe())
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Method};

    use crate::app::{explain, request_head};
    use weir_config::testing::{DEFAULTS, Folder};

    const GATEWAY: &str = r#"
allow: {addresses: [10.0.0.0/8]}
block: {addresses: [198.51.100.0/24], on_denied: drop}
account: [{header: x-api-key}]
upstreams: {app: {servers: ["http://127.0.0.1:3000"]}, honeypot: {builtin: echo}}
decoys: {nothing: {}}
bans:
  abusers:
    per: address
    strikes: {limits: [RequestsPerAddress], status: [404, 5xx], paths: /trap, count: 10, period: 1m}
    for: 10m
    factor: 4
    on_denied: {shadow: nothing}
    enforce: false
  customers:
    per: account
    strikes: {paths: /trap, count: 1, period: 1h}
    for: 1h
    on_denied: {divert: honeypot}
routes:
  - {name: app, match: {path: "/app/*"}, upstream: app, limits: [RequestsPerAddress]}
"#;

    fn explained(path: &str, peer: &str) -> String {
        explained_by(GATEWAY, path, peer)
    }

    fn explained_by(gateway: &str, path: &str, peer: &str) -> String {
        let folder = Folder::with(&[
            ("gateway.yaml", gateway),
            ("limits/defaults.yaml", DEFAULTS),
        ]);
        let uri = path.parse().unwrap();
        let peer = peer.parse().unwrap();
        let request = request_head(Method::GET, uri, HeaderMap::new());
        explain(&folder.gateway(), (&request, peer)).unwrap()
    }

    #[test]
    fn bans_are_explained_beside_limits() {
        insta::assert_snapshot!(explained("/app/1", "203.0.113.9"), @r#"
        GET /app/1 from 203.0.113.9

        route: app
          matches path /app/*
          goes to upstream app

        client: 203.0.113.9
          the peer itself
        account: none
          asked for: header x-api-key

        limit RequestsPerAddress: applies
          is counted per address/64
          bucket RequestsPerAddress:203.0.113.9
          burst 20, count 100, period 1m, cost 1
          one unit comes back every 600ms; an empty bucket is full after 12s

        ban abusers: watches, per address/64
          bucket :ban:abusers:203.0.113.9
          strikes: denials by RequestsPerAddress, but for the first 20 of a client that does not wait (`workers`); answers of 404, 5xx; other paths than this
          10 in 1m ban for 10m, then 40m, then 2h40m, then 10h40m, then 1d; an offence is forgotten after 1d
          the banned get decoy nothing (200 OK) wherever a route matches; nothing is forwarded
          dry run: is enforced on no subject

        ban customers: skipped, as the request has no account

        on denial: 429 Too Many Requests with a problem document
        ratelimit_headers: draft
        note: no hash_key is configured, so each process has hashes of its own
        "#);
    }

    #[test]
    fn a_ban_by_hand_is_explained_without_strikes() {
        let strikes = "    per: account\n    strikes: {paths: /trap, count: 1, period: 1h}\n";
        assert!(GATEWAY.contains(strikes));
        let by_hand = GATEWAY.replace(strikes, "    per: address\n");
        let text = explained_by(&by_hand, "/trap", "203.0.113.9");
        let (_, own) = text.split_once("\nban customers: ").unwrap();
        insta::assert_snapshot!(own, @"
        watches, per address/64
          bucket :ban:customers:203.0.113.9
          bans by hand alone, for 1h unless told otherwise
          the banned get the answer of upstream honeypot
        note: no hash_key is configured, so each process has hashes of its own
        ");
    }

    #[test]
    fn it_says_where_the_kernel_drops_connections() {
        let in_kernel = GATEWAY.replace("on_denied: drop", "on_denied: {drop: {in_kernel: auto}}");
        let explained = explained_by(&in_kernel, "/", "198.51.100.9");
        let said = "further ones are dropped by the kernel";
        assert!(explained.contains(said), "{explained}");
    }

    #[test]
    fn bans_are_explained_where_there_is_no_route() {
        insta::assert_snapshot!(explained("/trap", "203.0.113.9"), @r#"
        GET /trap from 203.0.113.9

        route: none matches, so the answer is 404

        client: 203.0.113.9
          the peer itself
        account: none
          asked for: header x-api-key

        ban abusers: watches, per address/64
          bucket :ban:abusers:203.0.113.9
          strikes: denials by RequestsPerAddress, but for the first 20 of a client that does not wait (`workers`); answers of 404, 5xx; this path
          10 in 1m ban for 10m, then 40m, then 2h40m, then 10h40m, then 1d; an offence is forgotten after 1d
          the banned get decoy nothing (200 OK) wherever a route matches; nothing is forwarded
          dry run: is enforced on no subject

        ban customers: skipped, as the request has no account
        note: no hash_key is configured, so each process has hashes of its own
        "#);
    }

    #[test]
    fn who_is_on_a_list_needs_no_further_explanation() {
        insta::assert_snapshot!(explained("/app/1", "10.1.2.3"), @r#"
        GET /app/1 from 10.1.2.3

        route: app
          matches path /app/*
          goes to upstream app

        client: 10.1.2.3
          the peer itself
        account: none
          asked for: header x-api-key

        allow: the client is in 10.0.0.0/8
          so no limit counts it, and no ban or block list holds it
        note: no hash_key is configured, so each process has hashes of its own
        "#);
        insta::assert_snapshot!(explained("/app/1", "198.51.100.9"), @r#"
        GET /app/1 from 198.51.100.9

        route: app
          matches path /app/*
          goes to upstream app

        client: 198.51.100.9
          the peer itself
        account: none
          asked for: header x-api-key

        block: the client is in 198.51.100.0/24
          the blocked get no answer: the connection is closed
        note: no hash_key is configured, so each process has hashes of its own
        "#);
    }
}
