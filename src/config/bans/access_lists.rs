//! The lists of who is allowed and blocked.

use ipnet::IpNet;

use super::schema::{self, ListFile};
use crate::config::diagnostics::{Location, Lowered, Reported};
use crate::config::gateway::schema::Gateway;
use crate::config::lowering::Lowering;
use crate::config::yaml::{Spanned, WordOr};
use crate::rules::{AccessList, AccessLists, HashKey, IdError, IdWarning, looks_hashed};

/// How many errors of one file are reported; the wrong file would have thousands.
const MOST_ERRORS: usize = 10;

/// A list as it is written.
type Written = Option<Vec<Spanned<WordOr<ListFile>>>>;

/// One entry of a list, or why there is none.
type Entry<T> = Result<T, (String, Option<String>)>;

/// Both lists. Accounts are hashed with `key`, as requests' accounts are.
pub(crate) fn access_lists(
    cx: &mut Lowering<'_>,
    gateway: &Spanned<Gateway>,
    key: &HashKey,
) -> Lowered<AccessLists> {
    let default = schema::Allow::default();
    let allow = gateway.allow.as_ref().map_or(&default, |list| &list.value);
    let allow = access_list(cx, &allow.addresses, &allow.accounts, gateway, key);
    let default = schema::Block::default();
    let block = gateway.block.as_ref().map_or(&default, |list| &list.value);
    let block = access_list(cx, &block.addresses, &block.accounts, gateway, key);
    Ok(AccessLists {
        allow: allow?,
        block: block?,
    })
}

fn access_list(
    cx: &mut Lowering<'_>,
    addresses: &Written,
    accounts: &Written,
    gateway: &Spanned<Gateway>,
    key: &HashKey,
) -> Lowered<AccessList> {
    if let Some(first) = accounts.as_ref().and_then(|accounts| accounts.first())
        && cx.lacks_accounts(gateway)
    {
        cx.error(first.span, "no request names an account")
            .help("say under `account` where requests name their account");
    }
    let networks = entries(
        cx,
        addresses,
        network,
        |_| None,
        |network| network.prefix_len() == 0,
    );
    let account = |id: &str| key.hash_of(id).map_err(|error| parted(&error));
    let accounts = entries(cx, accounts, account, hashed, |_| false);
    Ok(AccessList::new(networks?, accounts?))
}

fn entries<T>(
    cx: &mut Lowering<'_>,
    written: &Written,
    parse: impl Fn(&str) -> Entry<T>,
    doubt: impl Fn(&str) -> Option<IdWarning>,
    is_everything: impl Fn(&T) -> bool,
) -> Lowered<Vec<T>> {
    let mut all = Ok(Vec::new());
    for item in written.iter().flatten() {
        let found = match &item.value {
            WordOr::Word(text) => {
                if let Some(doubt) = doubt(text) {
                    cx.doubt(item.span, &doubt);
                }
                inline_entry(cx, item, text, &parse).map(|one| vec![one])
            }
            WordOr::More(list) => entries_of_file(cx, &list.file, &parse, &doubt),
        };
        if found.iter().flatten().any(&is_everything) {
            cx.warn(item.span, "every address is on this list")
                .help("name the networks that are meant");
        }
        all = all.and_then(|mut all| {
            all.append(&mut found?);
            Ok(all)
        });
    }
    all
}

fn inline_entry<T>(
    cx: &mut Lowering<'_>,
    item: &Spanned<WordOr<ListFile>>,
    text: &str,
    parse: impl Fn(&str) -> Entry<T>,
) -> Lowered<T> {
    parse(text).map_err(|(message, help)| cx.error(item.span, message).maybe_help(help))
}

/// The entries of a file, one on each line.
fn entries_of_file<T>(
    cx: &mut Lowering<'_>,
    file: &Spanned<String>,
    parse: impl Fn(&str) -> Entry<T>,
    doubt: impl Fn(&str) -> Option<IdWarning>,
) -> Lowered<Vec<T>> {
    let text = cx.read_file(file, file.span)?;
    let mut entries = Vec::new();
    let mut fit = Ok(());
    let mut errors = 0_usize;
    let mut doubts = 0_usize;
    // The byte order mark that editors on Windows write does not belong to the first entry.
    let text = text.trim_start_matches('\u{feff}');
    for (index, line) in text.lines().enumerate() {
        let entry = without_comment(line);
        if entry.is_empty() {
            continue;
        }
        if let Some(doubt) = doubt(entry) {
            doubts += 1;
            if doubts <= MOST_ERRORS {
                let location = line_of(cx, file, index + 1);
                cx.doubt_at(location, &doubt);
            }
        }
        match parse(entry) {
            Ok(entry) => entries.push(entry),
            Err(error) => {
                errors += 1;
                if errors <= MOST_ERRORS {
                    fit = Err(error_in_list(cx, file, index + 1, error));
                }
            }
        }
    }
    if let Some(more) = doubts.checked_sub(MOST_ERRORS).filter(|more| *more > 0) {
        let message = format!("{more} more lines of {} look like hashes", file.value);
        cx.warn(file.span, message);
    }
    if let Some(more) = errors.checked_sub(MOST_ERRORS).filter(|more| *more > 0) {
        let message = format!("{more} more lines of {} are in error", file.value);
        cx.error(file.span, message);
    }
    fit.map(|()| entries)
}

fn error_in_list(
    cx: &mut Lowering<'_>,
    file: &str,
    line: usize,
    (message, help): (String, Option<String>),
) -> Reported {
    let location = line_of(cx, file, line);
    cx.found.error(location, message).maybe_help(help)
}

fn line_of(cx: &Lowering<'_>, file: &str, line: usize) -> Location {
    Location {
        file: cx.folder.join(file).display().to_string(),
        position: Some((line, 1)),
        path: String::new(),
    }
}

/// Whether a name is rather the hash of one.
fn hashed(name: &str) -> Option<IdWarning> {
    looks_hashed(name).then(|| IdWarning::LooksHashed(name.to_ascii_lowercase()))
}

/// What is wrong with an id, and what to do about it.
fn parted(error: &IdError) -> (String, Option<String>) {
    let message = error.to_string();
    match message.split_once("; ") {
        Some((what, help)) => (what.to_owned(), Some(help.to_owned())),
        None => (message, None),
    }
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

fn network(text: &str) -> Entry<IpNet> {
    let what = "is not an address or a network, such as 10.0.0.0/8";
    let network = text
        .parse::<std::net::IpAddr>()
        .map(IpNet::from)
        .or_else(|_| text.parse::<IpNet>())
        .map_err(|_| (format!("`{text}` {what}"), None))?;
    if network.addr() != network.network() {
        let message = format!("`{text}` is an address within its network");
        return Err((message, Some(format!("write `{}`", network.trunc()))));
    }
    Ok(network)
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
