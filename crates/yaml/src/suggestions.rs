//! "Did you mean": the known name that is nearest to an unknown one.

use strsim::damerau_levenshtein;

/// How many known names are compared with the unknown ones of a configuration.
const MAX_COMPARISONS: usize = 20_000;

/// More names than this are not listed.
const MAX_LISTED: usize = 12;

/// A longer name is not a misspelling, and comparing takes time with the square of the length.
const LONGEST_NAME: usize = 64;

/// What other gateways call what is known here by another name.
const SYNONYMS: [(&str, &str); 13] = [
    ("match", "path path_regex host methods query case"),
    (
        "address",
        "ip client_ip remote_addr $remote_addr $binary_remote_addr remote_address client \
         source_ip ip_address",
    ),
    (
        "account",
        "user user_id api_key apikey key token consumer customer tenant client_id credential",
    ),
    ("host", "hostname http_host server_name vhost"),
    ("route", "endpoint service"),
    ("global", "all any everyone everybody server"),
    ("method", "verb http_method"),
    ("per", "key by descriptor keys"),
    (
        "count",
        "requests limit max max_requests requests_per_unit average tokens",
    ),
    ("period", "window interval duration unit time seconds"),
    ("burst", "capacity size max_burst"),
    (
        "servers",
        "url urls server address addresses target targets backends endpoints",
    ),
    (
        "upstream",
        "backend service proxy_pass to cluster destination",
    ),
];

/// Help with an unknown name: the nearest known one, or else all that are known.
pub fn suggest<'n>(unknown: &str, known: impl IntoIterator<Item = &'n str>) -> Option<String> {
    let known: Vec<&str> = known.into_iter().collect();
    remedy(unknown, &known).or_else(|| match best_match(unknown, &known) {
        Some(name) => Some(format!("did you mean \"{name}\"?")),
        None => list(&known),
    })
}

/// Help with what other gateways write in this place, where another name alone would not do.
fn remedy(unknown: &str, known: &[&str]) -> Option<String> {
    let has = |name| known.contains(&name);
    Some(match unknown {
        _ if synonym(unknown, known) == Some("match") => {
            format!("write it below `match`, as in `match: {{{unknown}: ...}}`")
        }
        "timeout" | "timeouts" if has("response_timeout") => {
            "choose `connect_timeout`, `response_timeout`, `body_timeout` or `total_timeout`".into()
        }
        "weight" | "weights" if has("servers") => {
            "each server has a weight of its own: `servers: [{url: URL, weight: 2}]`".into()
        }
        "status" | "status_code" | "code" | "message" | "response" | "rejected_code"
            if has("burst") && has("per") =>
        {
            "what a denied request gets is said on a route, or under `defaults` for all: \
             `on_denied: {reject: {status: 503}}`"
                .into()
        }
        "exempt" | "except" | "exclude" | "skip" | "whitelist" | "allowlist" | "allow"
            if has("burst") && has("per") =>
        {
            "clients that no limit holds are listed in gateway.yaml: `allow: {addresses: \
             [10.0.0.0/8]}`; those that may send more have an override"
                .into()
        }
        _ if has("reject") && unknown.parse().is_ok_and(|it| (200..600).contains(&it)) => {
            format!("for another status than 429, write `{{reject: {{status: {unknown}}}}}`")
        }
        _ => return None,
    })
}

/// The known name that an unknown one was most likely written for.
pub fn best_match<'n>(unknown: &str, known: &[&'n str]) -> Option<&'n str> {
    synonym(unknown, known).or_else(|| nearest(unknown, known))
}

/// Help with the unknown names of a whole configuration. Many unknown names among many known
/// ones would take a time that grows with their square, so only the first of them are compared.
#[derive(Debug)]
pub struct Suggestions {
    /// How many names may still be compared.
    comparisons: usize,
}

impl Default for Suggestions {
    fn default() -> Self {
        Self {
            comparisons: MAX_COMPARISONS,
        }
    }
}

impl Suggestions {
    /// As [`suggest`], unless enough names have been compared.
    pub fn suggest<'n>(
        &mut self,
        unknown: &str,
        known: impl IntoIterator<Item = &'n str>,
    ) -> Option<String> {
        if self.comparisons == 0 {
            return None;
        }
        let known: Vec<&str> = known.into_iter().collect();
        self.comparisons = self.comparisons.saturating_sub(known.len());
        suggest(unknown, known)
    }
}

/// The nearest name, when no more than a third of its letters differ. A name of one letter
/// resembles only itself.
fn nearest<'n>(unknown: &str, known: &[&'n str]) -> Option<&'n str> {
    let folded = unknown.to_lowercase();
    known
        .iter()
        .filter(|name| may_be_near(&folded, name))
        .map(|name| (damerau_levenshtein(&folded, &name.to_lowercase()), *name))
        .filter(|(distance, name)| is_near(*distance, name.chars().count()))
        .min()
        .map(|(_, name)| name)
}

/// Whether the lengths alone do not tell two names apart.
fn may_be_near(unknown: &str, name: &str) -> bool {
    let (length, other) = (unknown.chars().count(), name.chars().count());
    length.max(other) <= LONGEST_NAME && is_near(length.abs_diff(other), other)
}

/// What the name stands for that another gateway would have in this place.
fn synonym<'n>(unknown: &str, known: &[&'n str]) -> Option<&'n str> {
    let folded = unknown.to_lowercase().replace('-', "_");
    let of_others = SYNONYMS.iter();
    let of_others = of_others.filter(|(_, all)| all.split(' ').any(|word| word == folded));
    let mut ours = of_others.filter_map(|(ours, _)| known.iter().find(|name| *name == ours));
    ours.next().copied()
}

fn is_near(distance: usize, letters: usize) -> bool {
    distance <= letters.div_ceil(3) && distance < letters
}

/// All known names, when they are few.
fn list(known: &[&str]) -> Option<String> {
    match known {
        [] => None,
        [only] => Some(format!("the only one known here is \"{only}\"")),
        _ if known.len() > MAX_LISTED => None,
        _ => Some(format!("known here: {}", known.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_is_recognised_whatever_its_case() {
        let known = ["RequestsPerAddress", "LoginsPerAddress"];
        assert_eq!(
            suggest("requestPerAdress", known).as_deref(),
            Some("did you mean \"RequestsPerAddress\"?")
        );
    }

    #[test]
    fn a_name_that_resembles_none_gets_the_list() {
        assert_eq!(
            suggest("colour", ["host", "path"]).as_deref(),
            Some("known here: host, path")
        );
        assert_eq!(suggest("colour", []), None);
        assert_eq!(
            suggest("X", ["a", "L"]).as_deref(),
            Some("known here: a, L")
        );
        assert_eq!(
            suggest("l", ["a", "L"]).as_deref(),
            Some("did you mean \"L\"?")
        );
    }

    #[test]
    fn a_word_of_other_gateways_is_translated() {
        let sources = ["address", "account", "host", "header"];
        for (word, ours) in [
            ("ip", "address"),
            ("remote_addr", "address"),
            ("Client-IP", "address"),
            ("user", "account"),
            ("api_key", "account"),
        ] {
            let help = format!("did you mean \"{ours}\"?");
            assert_eq!(suggest(word, sources), Some(help), "{word}");
        }
        assert_eq!(
            suggest("ip", ["id"]).as_deref(),
            Some("did you mean \"id\"?")
        );
    }

    #[test]
    fn a_name_that_is_too_long_to_be_a_slip_is_compared_with_none() {
        let (name, known) = ("a".repeat(65), "a".repeat(64));
        assert!(nearest(&name, &[&known]).is_none());
        assert!(nearest(&name[1..], &[&known]).is_some());
    }

    /// Ten thousand unknown names among as many known ones took half a minute.
    #[test]
    fn however_many_names_are_unknown_only_so_many_known_ones_are_looked_at() {
        let known: Vec<String> = (0..3_000).map(|n| format!("Limit{n}")).collect();
        let looked_at = std::cell::Cell::new(0);
        let mut suggestions = Suggestions::default();
        let answers = (0..10_000).map(|n| {
            let names = known.iter().map(String::as_str);
            let counted = names.inspect(|_| looked_at.set(looked_at.get() + 1));
            suggestions.suggest(&format!("Limits{n}"), counted)
        });
        assert_eq!(answers.flatten().count(), 7);
        assert_eq!(looked_at.get(), 7 * 3_000);
    }

    #[test]
    fn a_long_list_of_names_is_not_told() {
        let names: Vec<String> = (0..40).map(|n| format!("Limit{n}")).collect();
        assert_eq!(
            suggest("zzzzzzzzzz", names.iter().map(String::as_str)),
            None
        );
    }
}
