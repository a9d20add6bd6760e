//! Loading whole configurations.

mod acme;
mod balancing;
mod bans;
mod boulder;
mod bounds;
mod compression;
mod counting;
mod documented;
mod errors;
mod in_flight;
mod loading;
mod prefetch;
mod redis;
mod routing;
mod tls;
mod upstreams;
mod warnings;

use std::fs;

use tempfile::TempDir;

use super::*;
use crate::rules::HashKey;

/// A key as the tests of reloading and of `explain` need it: the same each time.
pub(crate) fn key() -> HashKey {
    HashKey::from_bytes(b"the key of these tests").unwrap()
}

/// A folder with configuration files, gone with the test.
pub(crate) struct Folder(TempDir);

impl Folder {
    /// A folder with these files, each a path and a text.
    pub(crate) fn with(files: &[(&str, &str)]) -> Self {
        let folder = Self(TempDir::new().unwrap());
        for (path, text) in files {
            folder.write(path, text);
        }
        folder
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        self.write_bytes(path, text.as_bytes());
    }

    pub(crate) fn write_bytes(&self, path: &str, contents: &[u8]) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }

    pub(crate) fn gateway(&self) -> std::path::PathBuf {
        self.0.path().join("gateway.yaml")
    }

    pub(crate) fn load(&self) -> Result<Settings, Diagnostics> {
        load(&self.gateway(), &key())
    }

    /// The settings, of a configuration without errors.
    pub(crate) fn settings(&self) -> Settings {
        self.load().unwrap_or_else(|found| panic!("{found}"))
    }

    /// All findings, with paths relative to the folder.
    pub(crate) fn findings(&self) -> String {
        let found = match self.load() {
            Ok(settings) => settings.warnings,
            Err(found) => found,
        };
        self.relative(&found.to_string())
    }

    /// A text without the folder's own path.
    pub(crate) fn relative(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.0.path().display()), "")
    }
}

/// The smallest configuration of the README.
pub(crate) const SMALLEST: &str = r#"
upstreams:
  app: {servers: ["http://127.0.0.1:3000"]}
routes:
  - match: {path: "/*"}
    upstream: app
    limits: [RequestsPerAddress]
"#;

/// The limits that go with it.
pub(crate) const DEFAULTS: &str = r"
RequestsPerAddress: {per: address, burst: 20, count: 100, period: 1m}
";
