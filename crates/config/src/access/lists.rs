//! The lists of clients that are allowed and blocked.

use weir_rules::{AccessList, AccessLists, IdWarning, looks_hashed};
use weir_yaml::{Location, Lowered, Lowering, Spanned, WordOr, message_and_help};

use super::schema::{self, ListFile};
use crate::addresses::{Network, NetworkError};
use crate::gateway::lacks_accounts;
use crate::gateway::schema::Gateway;
use crate::limits::LimitTable;

/// How many errors of one file are reported; the wrong file would have thousands.
const MOST_ERRORS: usize = 10;

type ListSchema = Option<Vec<Spanned<WordOr<ListFile>>>>;

/// Both lists. Accounts are hashed with the key of `table`, as requests' accounts are.
pub(crate) fn access_lists(
    cx: &mut Lowering<'_>,
    gateway: &Spanned<Gateway>,
    table: &LimitTable,
) -> Lowered<AccessLists> {
    let default = schema::Allow::default();
    let allow = gateway.allow.as_ref().map_or(&default, |list| &list.value);
    let allow = access_list(cx, &allow.addresses, &allow.accounts, gateway, table);
    let default = schema::Block::default();
    let block = gateway.block.as_ref().map_or(&default, |list| &list.value);
    let block = access_list(cx, &block.addresses, &block.accounts, gateway, table);
    Ok(AccessLists {
        allow: allow?,
        block: block?,
    })
}

/// A list of these addresses and accounts.
pub(crate) fn access_list(
    cx: &mut Lowering<'_>,
    addresses: &ListSchema,
    accounts: &ListSchema,
    gateway: &Spanned<Gateway>,
    table: &LimitTable,
) -> Lowered<AccessList> {
    if let Some(first) = accounts.as_ref().and_then(|accounts| accounts.first())
        && lacks_accounts(cx, gateway)
    {
        cx.error(first.span, "no request names an account")
            .help("say under `account` where requests name their account");
    }
    let everything = |network: &ipnet::IpNet| network.prefix_len() == 0;
    let (key, nat64) = (&table.key, &table.nat64);
    let network = |text: &str| {
        let network = text.parse().and_then(|it: Network| it.known_to(nat64));
        match network {
            Ok(Network(network)) => Ok(network),
            Err(error) => Err(NetworkError::to_string(&error)),
        }
    };
    let networks = entries(cx, addresses, network, |_| None, everything);
    let account = |id: &str| key.hash_of(id).map_err(|error| error.to_string());
    let accounts = entries(cx, accounts, account, warn_if_hashed, |_| false);
    Ok(AccessList::new(networks?, accounts?))
}

fn entries<T>(
    cx: &mut Lowering<'_>,
    list: &ListSchema,
    parse: impl Fn(&str) -> Result<T, String>,
    warning: impl Fn(&str) -> Option<IdWarning>,
    is_everything: impl Fn(&T) -> bool,
) -> Lowered<Vec<T>> {
    let mut all = Ok(Vec::new());
    for item in list.iter().flatten() {
        let entries = match &item.value {
            WordOr::Word(text) => {
                if let Some(warning) = warning(text) {
                    cx.warn_of(item.span, &warning);
                }
                cx.ok(item.span, parse(text)).map(|entry| vec![entry])
            }
            WordOr::More(list) => entries_of_file(cx, &list.file, &parse, &warning),
        };
        if entries.iter().flatten().any(&is_everything) {
            cx.warn(item.span, "every address is on this list")
                .help("name the networks that are meant");
        }
        all = all.and_then(|mut all| {
            all.append(&mut entries?);
            Ok(all)
        });
    }
    all
}

fn entries_of_file<T>(
    cx: &mut Lowering<'_>,
    file: &Spanned<String>,
    parse: impl Fn(&str) -> Result<T, String>,
    warning: impl Fn(&str) -> Option<IdWarning>,
) -> Lowered<Vec<T>> {
    let text = cx.read_file(file, file.span)?;
    let mut entries = Vec::new();
    let mut fit = Ok(());
    let mut errors = 0_usize;
    let mut warnings = 0_usize;
    // The byte order mark that editors on Windows write does not belong to the first entry.
    let text = text.trim_start_matches('\u{feff}');
    for (index, line) in text.lines().enumerate() {
        let entry = without_comment(line);
        if entry.is_empty() {
            continue;
        }
        let location = || Location {
            file: cx.folder.join(&file.value).display().to_string(),
            position: Some((index + 1, 1)),
            path: String::new(),
        };
        if let Some(warning) = warning(entry) {
            warnings += 1;
            if warnings <= MOST_ERRORS {
                cx.warn_at(location(), &warning);
            }
        }
        match parse(entry) {
            Ok(entry) => entries.push(entry),
            Err(error) => {
                errors += 1;
                if errors <= MOST_ERRORS {
                    let (message, help) = message_and_help(&error);
                    let error = cx.diagnostics.error(location(), message);
                    fit = Err(error.maybe_help(help));
                }
            }
        }
    }
    if let Some(more) = warnings.checked_sub(MOST_ERRORS).filter(|more| *more > 0) {
        let message = format!("{more} more lines of {} look like hashes", file.value);
        cx.warn(file.span, message);
    }
    if let Some(more) = errors.checked_sub(MOST_ERRORS).filter(|more| *more > 0) {
        let message = format!("{more} more lines of {} are in error", file.value);
        cx.error(file.span, message);
    }
    fit.map(|()| entries)
}

fn warn_if_hashed(name: &str) -> Option<IdWarning> {
    looks_hashed(name).then(|| IdWarning::LooksHashed(name.to_ascii_lowercase()))
}

/// A comment begins with `#`, at the start of a line or behind a blank: a secret may have one
/// inside.
fn without_comment(line: &str) -> &str {
    let starts = |(at, _): &(usize, &str)| {
        let before = line.get(..*at).unwrap_or_default();
        before.is_empty() || before.ends_with([' ', '\t'])
    };
    let comment = line.match_indices('#').find(starts);
    let end = comment.map_or(line.len(), |(at, _)| at);
    line.get(..end).unwrap_or(line).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_begins_at_the_start_of_a_line_or_behind_a_blank() {
        for (line, entry) in [
            ("# all of it", ""),
            ("  10.0.0.1  # ours", "10.0.0.1"),
            ("key#1", "key#1"),
            ("key#1 #2", "key#1"),
            ("\t", ""),
        ] {
            assert_eq!(without_comment(line), entry, "{line:?}");
        }
    }
}
