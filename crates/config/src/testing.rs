//! Folders with configuration files, for tests.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    missing_docs,
    reason = "a test may panic, and what is here serves tests alone"
)]

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;
use weir_rules::HashKey;
use weir_yaml::Diagnostics;

use crate::{Settings, load};

/// A key as the tests of reloading and of `explain` need it: the same each time.
pub fn key() -> HashKey {
    HashKey::from_bytes(b"the key of these tests").unwrap()
}

/// A folder with configuration files, gone with the test.
pub struct Folder(TempDir);

impl Folder {
    /// A folder with these files, each a path and a text.
    pub fn with(files: &[(&str, &str)]) -> Self {
        let folder = Self(TempDir::new().unwrap());
        for (path, text) in files {
            folder.write(path, text);
        }
        folder
    }

    pub fn write(&self, path: &str, text: &str) {
        self.write_bytes(path, text.as_bytes());
    }

    pub fn write_bytes(&self, path: &str, contents: &[u8]) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }

    pub fn gateway(&self) -> PathBuf {
        self.0.path().join("gateway.yaml")
    }

    pub fn load(&self) -> Result<Settings, Diagnostics> {
        load(&self.gateway(), &key())
    }

    /// The settings, of a configuration without errors.
    pub fn settings(&self) -> Settings {
        self.load().unwrap_or_else(|found| panic!("{found}"))
    }

    /// All findings, with paths relative to the folder.
    pub fn findings(&self) -> String {
        let found = match self.load() {
            Ok(settings) => settings.warnings,
            Err(found) => found,
        };
        self.relative(&found.to_string())
    }

    /// A text without the folder's own path.
    pub fn relative(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.0.path().display()), "")
    }
}

/// The smallest configuration.
pub const SMALLEST: &str = r#"
upstreams:
  app: {servers: ["http://127.0.0.1:3000"]}
routes:
  - match: {path: "/*"}
    upstream: app
    limits: [RequestsPerAddress]
"#;

/// The limits that go with it.
pub const DEFAULTS: &str = r"
RequestsPerAddress: {per: address, burst: 20, count: 100, period: 1m}
";
