//! What is left out of what operators see: secrets, logins and queries of URLs, values of headers, and
//! names of accounts.

/// What stands in the place of a secret.
pub const HIDDEN: &str = "***";

/// The keys below which values of headers and queries stand, by their names.
pub const VALUES: [&str; 4] = ["add", "headers", "query", "set"];

/// The keys of secrets proper. A configuration that has one there is refused.
pub const SECRETS: [&str; 5] = ["hash_key", "hmac_key", "password", "secret", "token"];

/// The keys of names of accounts.
const ACCOUNTS: [&str; 2] = ["accounts", "ids"];

/// The headers whose values are secrets, or parts of their names, in lower case.
const SECRET_HEADERS: [&str; 4] = ["api-key", "apikey", "authorization", "cookie"];

/// The part of a line that an excerpt of a configuration shows, if any: none of a line that may hold a
/// secret, and at most a key where the path of the value is not known, as in an error of syntax.
pub fn shown_part<'l>(path: &str, line: &'l str) -> Option<&'l str> {
    let end = match path {
        "" => line.find(':')? + 1,
        _ => line.len(),
    };
    line.get(..end).filter(|part| !may_show_secret(path, part))
}

/// Whether a line of a configuration may hold a secret, by the names in it, by its URLs, or by the
/// path of the value that stands there. Names count wherever they stand, also within longer ones such
/// as `tokens`: a line that is in error need not be YAML.
pub fn may_show_secret(path: &str, line: &str) -> bool {
    let is_part = |char: char| char.is_ascii_alphanumeric() || char == '_';
    let is_secret = |text: &str| {
        let text = text.to_ascii_lowercase();
        let mut words = text.split(|char| !is_part(char));
        let mut names = SECRETS.iter().chain(&SECRET_HEADERS);
        let is_value = |word| VALUES.contains(&word) || ACCOUNTS.contains(&word);
        names.any(|name| text.contains(name)) || words.any(is_value)
    };
    // Without its scheme, a URL may have a login all the same.
    is_secret(path) || is_secret(line) || line.contains('@') || without_passwords(line) != line
}

/// A text without the user names, the passwords and the queries of the URLs in it. A password may have
/// any character, also blanks, quotes, `/` and `?` if it is written wrongly, so the last `@` ends it.
pub fn without_passwords(text: &str) -> String {
    redacted(text, |_| true)
}

/// The same of a message, where URLs without quotes are examples.
pub fn redacted_message(message: &str) -> String {
    redacted(message, |is_quoted| is_quoted)
}

fn redacted(text: &str, hides_query: impl Fn(bool) -> bool) -> String {
    let mut pieces = text.split("://");
    let mut shown = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let is_scheme = |char: char| char.is_ascii_alphanumeric() || "+-.".contains(char);
        let quote = shown.trim_end_matches(is_scheme).chars().next_back();
        let quote = quote.filter(|char| matches!(char, '"' | '\'' | '`'));
        shown.push_str("://");
        let server = match piece.rsplit_once('@') {
            Some((_, server)) => {
                shown.push_str(HIDDEN);
                shown.push('@');
                server
            }
            None => piece,
        };
        let end = match quote {
            Some(quote) => server.rfind(quote),
            None => server.find(char::is_whitespace),
        };
        let (url, behind) = server.split_at(end.unwrap_or(server.len()));
        match url.split_once('?') {
            Some((url, _)) if hides_query(quote.is_some()) => {
                shown.push_str(url);
                shown.push('?');
                shown.push_str(HIDDEN);
            }
            _ => shown.push_str(url),
        }
        shown.push_str(behind);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_with_a_secret_is_an_excerpt_however_it_is_written() {
        for (path, line) in [
            ("admin", "admin: {tokens: {alice: opensesame}, prot: 1}"),
            ("admin.tokens.alice", "    alice: opensesame"),
            ("routs", r#"{"hash_key": "open sesame", "routs": []}"#),
            ("hash_key", "hash_key : open sesame"),
            (
                "routes[0].request_headers",
                "{set: {x-key: opensesame}, ad: {}}",
            ),
            ("routes[0].request_headers.set.x-key", "  x-key: opensesame"),
            ("otlp.headers.x-key", "    x-key: opensesame"),
            ("", "    Authorization: \"Bearer opensesame"),
            ("", "    set-cookie: opensesame"),
            (
                "upstreams.app.servers[0]",
                "  - deploy:opensesame@10.0.0.5:3000",
            ),
            (
                "block.accounts[0]",
                "block: {accounts: [sk_live, {fil: x}]}",
            ),
            ("[0].Calls.brust", "- Calls: {ids: [sk_live], brust: 3}"),
            ("otlp", "otlp: {x-apikey: opensesame, fil: x}"),
            ("", "opensesame"),
        ] {
            assert_eq!(shown_part(path, line), None, "{path}: {line}");
        }
        // Nothing tells that it stands below `set`.
        let unclosed = "    x-team: \"open: sesame";
        assert_eq!(shown_part("", unclosed), Some("    x-team:"));
        for (path, line) in [
            (
                "upstreams.app",
                "  app: {servers: [\"http://127.0.0.1:3000\"]}",
            ),
            (
                "limits[0].per",
                "  - {per: address, burst: 1, offset: 2, settings: 3}",
            ),
        ] {
            assert_eq!(shown_part(path, line), Some(line), "{path}");
        }
    }

    #[test]
    fn no_login_and_no_query_of_a_url_is_shown_wherever_it_stands() {
        for (text, shown) in [
            ("redis://10.0.0.5:6379/2", "redis://10.0.0.5:6379/2"),
            ("redis://app:pa:ss@r:6379", "redis://***@r:6379"),
            ("rediss://:p@ss/w@r", "rediss://***@r"),
            ("https://h/keys?key=abc", "https://h/keys?***"),
            (
                "`redis://a:b@c` is wrong; write \"redis://d:e@f\"",
                "`redis://***@c` is wrong; write \"redis://***@f\"",
            ),
            ("a@b", "a@b"),
            ("http://u:a?b@h/k", "http://***@h/k"),
            (
                "\"http://u:a 'b\"c@h/k\" is no URL",
                "\"http://***@h/k\" is no URL",
            ),
            (
                "`http://h/k?key=a b` is no URL",
                "`http://h/k?***` is no URL",
            ),
            (
                "\"http://h\" is not; is \"app\"?",
                "\"http://h\" is not; is \"app\"?",
            ),
        ] {
            assert_eq!(without_passwords(text), shown);
        }
    }
}
