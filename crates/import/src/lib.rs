//! `weir import`: a file of nginx, or HTTPRoutes of the Kubernetes Gateway API, as a configuration of
//! Weir.
//!
//! [`import`] tells the two apart by their content. Each has a folder that lowers the file to a
//! `Configuration`, which writes the YAML. Nothing that concerns limits or access is left out without
//! a [`Difference`].

#![forbid(unsafe_code)]

mod configuration;
mod difference;
mod flow;
mod http_route;
mod nginx;
mod source;
#[cfg(test)]
mod tests;

use std::path::Path;

pub use self::configuration::Imported;
pub use self::difference::{Difference, Effect};
pub use self::source::{ImportError, Place};

/// Reads a file and translates it.
///
/// # Errors
/// When the file cannot be read, is malformed, or has nothing that Weir could serve.
pub fn import(path: &Path) -> Result<Imported, ImportError> {
    import_text(path, &source::read(path)?)
}

/// The same for a text, as if it stood at `path`.
fn import_text(path: &Path, text: &str) -> Result<Imported, ImportError> {
    if text.starts_with("name,id,") {
        let what = "this is CSV, as Boulder dumps its database of overrides, and none of a gateway; \
                    docs/config/limits.md says what of Boulder's Weir reads";
        return Err(ImportError::Malformed(Place::new(path, 1), what.to_owned()));
    }
    let configuration = match is_kubernetes(text) {
        true => http_route::import(path, text)?,
        false => nginx::import(path, text)?,
    };
    match configuration.has_routes() {
        true => Ok(configuration.imported(path)),
        false => Err(ImportError::Nothing(path.to_owned())),
    }
}

/// Objects of Kubernetes say their `apiVersion` and `kind`, in YAML or in JSON.
fn is_kubernetes(text: &str) -> bool {
    let is_key = |line: &str| line.starts_with("apiVersion:") || line.starts_with("kind:");
    text.trim_start().starts_with('{') || text.lines().any(is_key)
}

/// A file of nginx or of Kubernetes, which includes no other.
///
/// # Panics
/// When what is written is not YAML.
#[cfg(any(test, fuzzing, feature = "fuzzing"))]
#[expect(clippy::expect_used, reason = "an invariant that breaks is a panic")]
pub fn fuzz_import(input: &[u8]) {
    let text = String::from_utf8_lossy(input).replace("include", "exclude");
    if let Ok(imported) = import_text(Path::new("fuzzed"), &text) {
        let texts = [
            Some(imported.gateway),
            Some(imported.defaults),
            imported.overrides,
        ];
        for text in texts.into_iter().flatten() {
            let _: serde_json::Value = serde_yaml::from_str(&text).expect("YAML");
        }
    }
}
