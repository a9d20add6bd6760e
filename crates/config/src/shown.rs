//! The configuration as it is shown to operators: what is written, without its secrets.
//!
//! Secrets proper are never written into the configuration: `{file: ...}` and `{env: ...}` say where
//! they are. What may be secret all the same are user names and passwords in URLs, their queries,
//! values of headers, cookies and queries, and the names of accounts, which may be keys of an API.

use serde_json::{Map, Value};
use weir_rules::KeySource;
use weir_yaml::{Diagnostics, Document, HIDDEN, SECRETS, VALUES, without_passwords};

use super::defaults::{FileSchemas, add_defaults};
use super::settings::Settings;

impl Settings {
    /// The files of the configuration by their names, with their secrets hidden; and, with the
    /// schemas of the files, with the defaults of the keys that they leave out.
    pub fn to_json(&self, defaults_of: Option<FileSchemas<'_>>) -> Value {
        let mut files = Map::new();
        for (index, (name, text)) in self.files.iter().enumerate() {
            let mut unreported = Diagnostics::default();
            let document = Document::parse(0, name, text, &mut unreported);
            let mut shown = document.to_json(&|path, text| self.shown(path, text));
            if let Some(schemas) = defaults_of {
                let schema = schemas.of_file(index, name);
                add_defaults(&mut shown, schema, schema);
            }
            files.insert(name.clone(), shown);
        }
        files.into()
    }

    /// What is shown in the place of a value; none if that is the value.
    fn shown(&self, path: &[&str], text: &str) -> Option<String> {
        let (last, above) = path.split_last()?;
        let is_of_request = *last != "present" && above.iter().any(|key| VALUES.contains(key));
        if is_of_request || SECRETS.contains(last) {
            return Some(HIDDEN.to_owned());
        }
        match path {
            [.., limit, "ids"] | [.., limit, "ids", "id"] => self.shown_id(limit, text),
            ["allow" | "block", "accounts"] if !self.account.keeps_names => {
                let is_hash = text.starts_with("hash:");
                (!is_hash).then(|| format!("hash:{}", self.account.key.hash(text.as_bytes())))
            }
            _ => {
                let shown = without_passwords(text);
                (shown != text).then_some(shown)
            }
        }
    }

    /// The id of an override: the names of accounts are as secret as in the log.
    fn shown_id(&self, limit: &str, id: &str) -> Option<String> {
        if self.account.keeps_names {
            return None;
        }
        let Some(limit) = self.limit(limit) else {
            return Some(HIDDEN.to_owned());
        };
        if !limit.per().iter().any(KeySource::is_hashed) {
            return None;
        }
        let key = limit.bucket_of(id);
        Some(key.map_or_else(|_| HIDDEN.to_owned(), |key| limit.id_of(key.as_str())))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::read_in_memory;
    use weir_rules::HashKey;

    /// A configuration with `planted` in every place that takes what may be secret.
    const GATEWAY: &str = r#"
        admin: {address: "127.0.0.1:9901", token: {file: admin.token}}
        hash_key: {file: hash.key}
        account:
          - jwt: {secret: {file: jwt.key}}
          - header: x-api-key
        log: {account: LOG}
        store:
          redis:
            url: "redis://planted-user:planted-password@127.0.0.1:6379/1"
        allow: {accounts: [planted-allowed]}
        block: {accounts: [planted-blocked, {file: blocked.txt}]}
        upstreams:
          app: {servers: ["http://127.0.0.1:3000"]}
        decoys:
          fake: {status: 200, headers: {x-fake: planted-decoy}, body: shown}
        defaults:
          response_headers: {set: {x-all: planted-default}}
        routes:
          - name: first
            match:
              path: /first
              headers: {x-admin: planted-match, x-regex: {regex: planted-regex}, x-has: {present: true}}
              query: {key: planted-query}
            upstream: app
            request_headers:
              set: {authorization: Bearer planted-set}
              add: {file: planted-add}
            limits: [Calls, Addresses]
            on_denied: {reject: {status: 429, headers: {x-why: planted-reject}}}
          - name: away
            match: {path: /away}
            redirect: {to: "https://example.com/?planted=1"}
            headers: draft-03
    "#;

    const DEFAULTS: &str = "\
        Calls: {per: account, burst: 5, count: 1, period: 1h}\n\
        Addresses: {per: address, burst: 5, count: 1, period: 1h}\n";

    const OVERRIDES: &str = "\
        - Calls: {burst: 8, count: 2, period: 1h, ids: [planted-id, {id: planted-two, comment: c}]}\n\
        - Addresses: {burst: 8, count: 2, period: 1h, ids: [203.0.113.9]}\n";

    fn shown(log: &str) -> Value {
        let files = [
            ("gateway.yaml", GATEWAY.replace("LOG", log)),
            ("limits/defaults.yaml", DEFAULTS.to_owned()),
            ("limits/overrides.yaml", OVERRIDES.to_owned()),
            ("admin.token", "planted-0123456789abcdef".to_owned()),
            ("hash.key", "planted-0123456789abcdef".to_owned()),
            (
                "jwt.key",
                "planted-0123456789abcdef0123456789abcdef".to_owned(),
            ),
            ("blocked.txt", "planted-listed\n".to_owned()),
        ];
        let files: HashMap<PathBuf, Vec<u8>> = files
            .into_iter()
            .map(|(name, text)| (name.into(), text.into_bytes()))
            .collect();
        let key = HashKey::from_bytes(&[7; 16]).unwrap();
        let read = read_in_memory(files, Path::new("gateway.yaml"), &key);
        match read.outcome {
            Ok(settings) => settings.to_json(None),
            Err(found) => panic!("{found}"),
        }
    }

    #[test]
    fn no_secret_is_shown_wherever_it_was_planted() {
        let shown = shown("hash");
        let text = shown.to_string();
        assert!(!text.contains("planted"), "{shown:#}");
        let gateway = &shown["gateway.yaml"];
        assert_eq!(gateway["admin"]["token"]["file"], "admin.token");
        let first = &gateway["routes"][0];
        assert_eq!(first["match"]["headers"]["x-has"]["present"], true);
        assert_eq!(first["request_headers"]["set"]["authorization"], "***");
        assert_eq!(gateway["routes"][1]["headers"], "draft-03");
        assert_eq!(
            gateway["store"]["redis"]["url"],
            "redis://***@127.0.0.1:6379/1"
        );
        let overrides = &shown["limits/overrides.yaml"];
        assert_eq!(overrides[1]["Addresses"]["ids"][0], "203.0.113.9");
        assert_eq!(overrides[1]["Addresses"]["burst"], 8);
        let id = overrides[0]["Calls"]["ids"][1]["id"].as_str().unwrap();
        assert!(id.starts_with("hash:"), "{id}");
    }

    #[test]
    fn accounts_are_shown_where_the_log_shows_them() {
        let shown = shown("plain");
        let ids = &shown["limits/overrides.yaml"][0]["Calls"]["ids"];
        assert_eq!(
            (&ids[0], &ids[1]["id"]),
            (&"planted-id".into(), &"planted-two".into())
        );
        assert_eq!(
            shown["gateway.yaml"]["allow"]["accounts"][0],
            "planted-allowed"
        );
    }
}
