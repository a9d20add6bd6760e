//! From a path to settings.

use std::io::ErrorKind;
use std::path::Path;

use serde::de::DeserializeOwned;

use super::diagnostics::{Diagnostic, Diagnostics, Location, Severity};
use super::inputs::Inputs;
use super::lower::{Lowering, Written};
use super::schema::Gateway;
use super::settings::Settings;
use super::yaml::{Document, Placed, Sources};
use crate::rules::HashKey;
use crate::time::{Clock, SystemClock};

const SMALLEST: &str = "\
the smallest useful gateway.yaml is:
  upstreams:
    app: {servers: [\"http://127.0.0.1:3000\"]}
  routes:
    - {match: {path: \"/*\"}, upstream: app, limits: [RequestsPerAddress]}";

/// The folder of limits, unless told otherwise.
const DEFAULT_LIMITS: &str = "limits";

/// What came of reading a configuration.
#[derive(Debug)]
pub struct Reading {
    /// The files that were read, or looked for.
    pub inputs: Inputs,
    /// The settings, or all errors of all files, and the warnings as well.
    pub outcome: Result<Settings, Diagnostics>,
}

/// Loads the configuration at `path`, with the limits that it names.
///
/// `process_key` hashes what may be a secret where no `hash_key` is configured. Give the same one
/// for as long as the process lives: with another, every account is a stranger.
///
/// # Errors
/// All errors of all files at once, and the warnings as well.
pub fn load(path: &Path, process_key: &HashKey) -> Result<Settings, Diagnostics> {
    read(path, process_key).outcome
}

/// Loads as [`load`] does, and tells which files that took, whatever came of it.
pub fn read(path: &Path, process_key: &HashKey) -> Reading {
    let mut files = Files::default();
    let gateway = files.gateway(path);
    let lowered = gateway.and_then(|gateway| files.lower(path, gateway, process_key));
    files.found.sort();
    let outcome = match lowered {
        Some(settings) if !files.found.has_errors() => Ok(Settings {
            warnings: files.found,
            ..settings
        }),
        _ => Err(files.found),
    };
    Reading {
        inputs: files.inputs,
        outcome,
    }
}

/// Loads the configuration at `path` to see whether it is fit, and not to serve it.
///
/// # Errors
/// As [`load`].
pub fn check(path: &Path) -> Result<Settings, Diagnostics> {
    load(path, &HashKey::random())
}

/// The files that were read so far, and what was found.
#[derive(Default)]
struct Files {
    inputs: Inputs,
    sources: Sources,
    found: Diagnostics,
}

impl Files {
    fn gateway(&mut self, path: &Path) -> Option<Placed<Gateway>> {
        let Some(text) = self.text(path) else {
            self.report(path, "there is no such file")
                .remedy("name it with --config, or run in its folder");
            return None;
        };
        self.read(path, &text?, SMALLEST)
    }

    fn lower(
        &mut self,
        path: &Path,
        gateway: Placed<Gateway>,
        process_key: &HashKey,
    ) -> Option<Settings> {
        let folder = path.parent().unwrap_or(Path::new(""));
        let limits = gateway
            .limits
            .as_ref()
            .map_or(DEFAULT_LIMITS, |it| it.as_str());
        let limits = folder.join(limits);
        let defaults = limits.join("defaults.yaml");
        let written = Written {
            defaults: self.defaults(&defaults, &gateway),
            overrides: self.overrides(&limits.join("overrides.yaml")),
            limits_file: defaults.display().to_string(),
            gateway,
        };
        let mut lowering = Lowering {
            now: SystemClock.now(),
            sources: &self.sources,
            folder,
            inputs: &mut self.inputs,
            found: Diagnostics::default(),
        };
        let settings = lowering.settings(&written, process_key);
        self.found.append(lowering.found);
        settings
    }

    /// The limits. There need be none when no route asks for one.
    fn defaults<T: DeserializeOwned>(&mut self, path: &Path, gateway: &Gateway) -> Option<T> {
        match self.text(path) {
            Some(text) => self.read(path, &text?, "define a limit, such as:\n  RequestsPerAddress: {per: address, burst: 20, count: 100, period: 1m}"),
            None if gateway.limits.is_none() && !gateway.uses_limits() => None,
            None => {
                self.report(path, "there is no such file")
                    .remedy("limits are defined there; `limits` in gateway.yaml names the folder");
                None
            }
        }
    }

    /// The overrides; none when the file is in error.
    fn overrides<T: DeserializeOwned + Default>(&mut self, path: &Path) -> Option<T> {
        let Some(text) = self.text(path) else {
            return Some(T::default());
        };
        let errors = self.found.count(Severity::Error);
        let document = self.parse(path, &text?);
        if document.root_is_there() {
            return self.deserialize(document);
        }
        // A file of nothing but comments overrides nothing, as a missing one does.
        (self.found.count(Severity::Error) == errors).then(T::default)
    }

    /// The text of a file; none when there is no such file, `Some(None)` when it is unreadable.
    fn text(&mut self, path: &Path) -> Option<Option<String>> {
        match self.inputs.read(path) {
            Ok(text) => Some(Some(text)),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => {
                self.report(path, format!("the file cannot be read: {error}"));
                Some(None)
            }
        }
    }

    fn read<T: DeserializeOwned>(&mut self, path: &Path, text: &str, remedy: &str) -> Option<T> {
        let errors = self.found.count(Severity::Error);
        let document = self.parse(path, text);
        let empty = !document.root_is_there();
        if empty && self.found.count(Severity::Error) == errors {
            self.report(path, "the file is empty").remedy(remedy);
        }
        self.deserialize(document)
    }

    fn parse(&mut self, path: &Path, text: &str) -> Document {
        let file = path.display().to_string();
        Document::parse(self.sources.next_id(), &file, text, &mut self.found)
    }

    fn deserialize<T: DeserializeOwned>(&mut self, mut document: Document) -> Option<T> {
        let read = document.read(&mut self.found);
        self.sources.add(document);
        read
    }

    fn report(&mut self, path: &Path, message: impl Into<String>) -> &mut Diagnostic {
        let location = Location {
            file: path.display().to_string(),
            ..Location::default()
        };
        self.found.push(Diagnostic::error(location, message))
    }
}

impl Gateway {
    fn uses_limits(&self) -> bool {
        let routes = self.routes.iter().map(|it| &it.limits);
        let defaults = self.defaults.iter().map(|it| &it.limits);
        routes
            .chain(defaults)
            .flatten()
            .any(|limits| !limits.is_empty())
    }
}
