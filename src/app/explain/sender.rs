//! Who sends the request: client address and account.

use std::fmt::{self, Write};
use std::net::IpAddr;

use http::HeaderMap;

use crate::config::Settings;
use crate::rules::{Account, AccountRules, AccountSource, AddressHeader, Client, ClientRules};

/// Writes the client's address and whose word that is.
pub(super) fn write_client(
    out: &mut String,
    settings: &Settings,
    peer: IpAddr,
    headers: &HeaderMap,
) -> Result<Client, fmt::Error> {
    let rules = &settings.client;
    let client = rules.client(peer, headers);
    let header = header_name(rules);
    let given = headers.contains_key(header);
    let why = match (client.peer_is_trusted, given) {
        (true, true) if client.address == client.peer => {
            format!("the peer is a trusted proxy, but its {header} names no client")
        }
        (true, true) => format!(
            "named by {header}, which trusted proxy {} wrote",
            client.peer
        ),
        (true, false) => format!("the peer is a trusted proxy, but it sent no {header}"),
        (false, true) => format!("the peer is no trusted proxy, so its {header} is not believed"),
        (false, false) => "the peer itself".to_owned(),
    };
    writeln!(out, "\nclient: {}\n  {why}", client.address)?;
    Ok(client)
}

fn header_name(rules: &ClientRules) -> &str {
    match &rules.header {
        AddressHeader::XForwardedFor => "x-forwarded-for",
        AddressHeader::Forwarded => "forwarded",
        AddressHeader::Single(name) => name.as_str(),
    }
}

/// Writes the account and the source that named it.
pub(super) fn write_account(
    out: &mut String,
    settings: &Settings,
    headers: &HeaderMap,
) -> Result<Option<Account>, fmt::Error> {
    let rules = &settings.account;
    let found = rules.sources.iter().find_map(|source| {
        let alone = AccountRules {
            sources: vec![source.clone()],
            ..rules.clone()
        };
        alone.account(headers).map(|account| (account, source))
    });
    if let Some((account, source)) = found {
        writeln!(
            out,
            "account: {}\n  named by the {}",
            account.id,
            name(source)
        )?;
        return Ok(Some(account));
    }
    let asked: Vec<String> = rules.sources.iter().map(name).collect();
    if asked.is_empty() {
        writeln!(out, "account: none, as none is configured")?;
    } else {
        writeln!(out, "account: none\n  asked for: {}", asked.join(", "))?;
    }
    Ok(None)
}

fn name(source: &AccountSource) -> String {
    match source {
        AccountSource::Header(name) => format!("header {name}"),
        AccountSource::Bearer => "bearer token".to_owned(),
        AccountSource::Cookie(name) => format!("cookie {name}"),
        AccountSource::Jwt(_) => "verified JWT".to_owned(),
    }
}
