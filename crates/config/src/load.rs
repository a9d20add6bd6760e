//! From a path to settings.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use weir_limit::time::{Clock, SystemClock};
use weir_rules::HashKey;
use weir_yaml::{
    Diagnostic, Diagnostics, Document, ErrorBuilder, FileId, Inputs, Location, Lowered, Lowering,
    Reported, STANDARD_INPUT, Sources, Span, Spanned, Suggestions, WordOr, display_name,
};

use super::gateway::schema::Gateway;
use super::gateway::{ParsedFiles, settings};
use super::limits::WrittenLimits;
use super::limits::schema::{Defaults, Overrides};
use super::settings::Settings;

const SMALLEST: &str = "\
the smallest useful gateway.yaml is:
  upstreams:
    app: {servers: [\"http://127.0.0.1:3000\"]}
  routes:
    - {match: {path: \"/*\"}, upstream: app, limits: [RequestsPerAddress]}
  limits:
    RequestsPerAddress: {per: address, burst: 20, count: 100, period: 1m}";

const A_SERVER: &str = "write a list of servers, such as:\n  - http://10.0.0.5:3000";

const A_LIMIT: &str = "\
define a limit, such as:
  RequestsPerAddress: {per: address, burst: 20, count: 100, period: 1m}";

/// The folder of limits, unless told otherwise.
const DEFAULT_LIMITS: &str = "limits";

/// What the package for Debian installs, and its service serves.
const INSTALLED: &str = "/etc/weir/gateway.yaml";

/// Where a configuration may be that is not at `path`.
fn where_to_find(path: &Path, installed: &Path) -> String {
    let mut places = String::from("name it with --config, or run in its folder");
    if path != installed && installed.exists() {
        places += &format!("; the installed one is --config {}", installed.display());
    }
    places + "; `weir init` writes a new one"
}

/// What came of reading a configuration.
#[derive(Debug)]
pub struct LoadResult {
    /// The files that were read, or looked for.
    pub inputs: Inputs,
    /// The settings, or all errors of all files, and the warnings as well.
    pub outcome: Result<Settings, Diagnostics>,
}

/// Loads the configuration at `path`, with the limits that it names; from standard input when the
/// path is `-`.
///
/// `process_key` hashes what may be a secret where no `hash_key` is configured. Give the same one
/// for as long as the process lives: with another, every account is a stranger.
///
/// # Errors
/// All errors of all files at once, and the warnings as well.
pub fn load(path: &Path, process_key: &HashKey) -> Result<Settings, Diagnostics> {
    read(path, process_key, None).outcome
}

/// Loads as [`load`] does, and tells which files that took, whatever came of it.
///
/// With a configuration that is `in_force`, its overrides stay when the file of overrides is empty
/// or missing: a file that is being written looks like that, and many clients would get other
/// limits by mistake. Let's Encrypt's Boulder keeps them, too.
pub fn read(path: &Path, process_key: &HashKey, in_force: Option<&Settings>) -> LoadResult {
    read_from(Inputs::default(), path, process_key, in_force)
}

/// Loads as [`read`] does for the first time, from these files in place of the disk.
pub fn read_in_memory(
    files: HashMap<PathBuf, Vec<u8>>,
    path: &Path,
    process_key: &HashKey,
) -> LoadResult {
    read_from(Inputs::in_memory(files), path, process_key, None)
}

/// `gateway.yaml`, and after lines of `---` `defaults.yaml` and `overrides.yaml`.
#[cfg(any(test, fuzzing, feature = "fuzzing"))]
pub fn fuzz_configuration(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else {
        return;
    };
    let names = [
        "gateway.yaml",
        "limits/defaults.yaml",
        "limits/overrides.yaml",
    ];
    let texts = text.splitn(names.len(), "\n---\n");
    let files = names.iter().zip(texts);
    let files: HashMap<_, _> = files
        .map(|(name, text)| (Path::new(name).to_owned(), text.as_bytes().to_vec()))
        .collect();
    let Some(key) = HashKey::from_bytes(&[0; 16]) else {
        return;
    };
    let read = || read_in_memory(files.clone(), Path::new("gateway.yaml"), &key).outcome;
    match (read(), read()) {
        (Ok(settings), Ok(_)) => assert_eq!(settings.warnings.count(weir_yaml::Severity::Error), 0),
        (Err(diagnostics), Err(again)) => {
            assert_ne!(
                diagnostics.count(weir_yaml::Severity::Error),
                0,
                "refused without an error"
            );
            assert_eq!(diagnostics.to_string(), again.to_string());
        }
        _ => unreachable!("the same files are the same configuration"),
    }
}

fn read_from(
    inputs: Inputs,
    path: &Path,
    process_key: &HashKey,
    in_force: Option<&Settings>,
) -> LoadResult {
    let mut files = Loader {
        inputs,
        in_force: in_force
            .map(|in_force| Arc::clone(&in_force.overrides))
            .unwrap_or_default(),
        ..Loader::default()
    };
    let gateway = files.gateway(path);
    let lowered = gateway.and_then(|gateway| files.lower(path, gateway, process_key));
    files.diagnostics.sort();
    let fit = lowered.and_then(|settings| files.diagnostics.reported().map_or(Ok(settings), Err));
    let outcome = match fit {
        Ok(settings) => Ok(Settings {
            overrides: files.overrides,
            files: files.texts,
            limits_file: files.limits_file,
            warnings: files.diagnostics,
            ..settings
        }),
        Err(Reported { .. }) => Err(files.diagnostics),
    };
    LoadResult {
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

/// Checks as [`check`] does what the configuration would be with these files written.
///
/// # Errors
/// As [`load`].
pub fn check_with(path: &Path, files: HashMap<PathBuf, Vec<u8>>) -> Result<Settings, Diagnostics> {
    read_from(Inputs::on_disk_with(files), path, &HashKey::random(), None).outcome
}

/// The files that were read so far, and the diagnostics about them.
#[derive(Default)]
struct Loader {
    inputs: Inputs,
    sources: Sources,
    diagnostics: Diagnostics,
    /// The text of the overrides that are in force until this configuration is; empty when there
    /// are none.
    in_force: Arc<str>,
    /// The text of this configuration's overrides; empty when there are none.
    overrides: Arc<str>,
    /// The texts that were read.
    texts: Vec<(String, Arc<str>)>,
    /// As in [`Settings`].
    limits_file: Option<PathBuf>,
    /// The file of overrides, if it is empty or missing and those in force are kept.
    retained: Option<FileId>,
}

impl Loader {
    fn gateway(&mut self, path: &Path) -> Lowered<Spanned<Gateway>> {
        let text = match path == Path::new(STANDARD_INPUT) {
            true => self.inputs.read_standard_input(),
            false => self.inputs.read(path),
        };
        let Some(text) = self.unless_missing(path, text)? else {
            let report = self.report(path, "there is no such file");
            return Err(report.help(where_to_find(path, Path::new(INSTALLED))));
        };
        self.read_filled(path, &text, SMALLEST)
    }

    fn lower(
        &mut self,
        path: &Path,
        mut gateway: Spanned<Gateway>,
        process_key: &HashKey,
    ) -> Lowered<Settings> {
        let folder = path.parent().unwrap_or(Path::new(""));
        let limits = self.limits(path, folder, &mut gateway);
        self.servers_files(folder, &mut gateway.value);
        let written = ParsedFiles { gateway, limits };
        let mut lowering = Lowering {
            now: Duration::from_nanos(SystemClock.now().as_nanos()),
            sources: &self.sources,
            folder,
            inputs: &mut self.inputs,
            diagnostics: Diagnostics::default(),
            suggestions: Suggestions::default(),
            retained: self.retained,
        };
        let lowered = settings(&mut lowering, &written, process_key);
        self.diagnostics.append(lowering.diagnostics);
        lowered
    }

    /// Reads the files of servers in the place of the lists that they stand for.
    fn servers_files(&mut self, folder: &Path, gateway: &mut Gateway) {
        let upstreams = gateway
            .upstreams
            .iter_mut()
            .flat_map(|all| &mut all.value.0);
        for (_, upstream) in upstreams {
            let upstream = &mut upstream.value;
            let Some(file) = upstream
                .servers_file
                .as_ref()
                .filter(|_| upstream.servers.is_none())
            else {
                continue;
            };
            let path = folder.join(&file.value);
            let text = self.text(&path).and_then(|text| {
                text.ok_or_else(|| {
                    let report = self.report(&path, "there is no such file");
                    report.help("`servers_file` names it, relative to the folder of gateway.yaml")
                })
            });
            match text.and_then(|text| self.read_filled(&path, &text, A_SERVER)) {
                Ok(servers) => upstream.servers = Some(servers),
                Err(reported) => upstream.servers_file_error = Some(reported),
            }
        }
    }

    /// The limits and overrides: those of `gateway.yaml` at `path`, or of the two files of a
    /// folder.
    fn limits(
        &mut self,
        path: &Path,
        folder: &Path,
        gateway: &mut Spanned<Gateway>,
    ) -> WrittenLimits {
        // What is wrong with `limits` hides nothing that the default folder has.
        let in_error = self.sources.key_in_error(gateway.span, &["limits"]);
        let gateway = &mut gateway.value;
        let limits = gateway
            .limits
            .take()
            .map(|limits| (limits.span, limits.value));
        let named = match limits {
            Some((span, WordOr::More(value))) => {
                self.warn_of_unread(&folder.join(DEFAULT_LIMITS));
                return WrittenLimits {
                    defaults: Ok(Some(Spanned { span, value })),
                    overrides: Ok(gateway.overrides.take()),
                    name: display_name(path),
                };
            }
            Some((_, WordOr::Word(named))) => Some(named),
            None => None,
        };
        let limits = folder.join(named.as_deref().unwrap_or(DEFAULT_LIMITS));
        let (defaults, overrides) = (limits.join("defaults.yaml"), limits.join("overrides.yaml"));
        if let Some(inline) = &gateway.overrides {
            self.refuse_inline_overrides(inline.span, &overrides);
        }
        let needed = in_error.is_none() && (named.is_some() || gateway.uses_limits());
        let read = self.defaults(&defaults, needed);
        self.limits_file = Some(defaults.clone());
        WrittenLimits {
            defaults: read.and_then(|read| match (read, in_error) {
                (None, Some(reported)) => Err(reported),
                (read, _) => Ok(read),
            }),
            overrides: self.overrides(&overrides),
            name: display_name(&defaults),
        }
    }

    /// Files of limits that look as though they were in force.
    fn warn_of_unread(&mut self, limits: &Path) {
        for file in ["defaults.yaml", "overrides.yaml"] {
            let path = limits.join(file);
            if self.inputs.has_file(&path) {
                self.warn(
                    &path,
                    "this file is not read: gateway.yaml has its own `limits`",
                )
                .help("move what it says there, or delete the file");
            }
        }
    }

    /// Two places for overrides would need an order between them.
    fn refuse_inline_overrides(&mut self, span: Span, overrides: &Path) {
        let location = self.sources.location(span);
        let message = "`overrides` stands here, while the limits are in a folder";
        let help = format!(
            "move it to {}, or the limits into `limits`",
            overrides.display()
        );
        let _: Reported = self.diagnostics.error(location, message).help(help);
    }

    /// The limits of a file. There need be none when no route asks for one.
    fn defaults(&mut self, path: &Path, needed: bool) -> Lowered<Option<Defaults>> {
        match self.text(path)? {
            Some(text) => self.read_filled(path, &text, A_LIMIT).map(Some),
            None if !needed => Ok(None),
            None => {
                let report = self.report(path, "there is no such file");
                Err(report.help(
                    "limits are defined there, or in gateway.yaml; `limits` has them or names \
                     the folder",
                ))
            }
        }
    }

    /// The overrides. A file of nothing but comments overrides nothing, as a missing one does.
    fn overrides(&mut self, path: &Path) -> Lowered<Option<Overrides>> {
        let text = self.text(path)?;
        let read: Option<Overrides> = match &text {
            Some(text) if is_dump_of_boulder(text) => {
                let message = "this is CSV, as Boulder dumps its database of overrides";
                let error = self.report(path, message).help(
                    "its ids are those of buckets: write a list of `LIMIT: {burst: ..., count: ..., \
                     period: ..., ids: [...]}`, or set each by the admin API",
                );
                return Err(error);
            }
            Some(text) => self.read(path, text)?,
            None => None,
        };
        match (read, text) {
            (Some(overrides), Some(text)) if !overrides.is_empty() => {
                self.overrides = text.into();
                Ok(Some(overrides))
            }
            (Some(none), _) => {
                if !self.in_force.is_empty() {
                    self.warn(path, "nothing is overridden any more");
                }
                Ok(Some(none))
            }
            (None, _) if !self.in_force.is_empty() => self.retain_overrides(path),
            (None, None) => Ok(None),
            (None, Some(_)) => {
                self.warn(path, "the file overrides nothing")
                    .help("write `[]` if that is meant");
                Ok(None)
            }
        }
    }

    fn retain_overrides(&mut self, path: &Path) -> Lowered<Option<Overrides>> {
        self.warn(
            path,
            "the file is empty or missing; the overrides in force are kept",
        )
        .help("write `[]` if nothing is to be overridden");
        self.overrides = Arc::clone(&self.in_force);
        self.retained = Some(self.sources.next_id());
        let text = Arc::clone(&self.in_force);
        let as_before = PathBuf::from(format!("{} as it was", path.display()));
        self.read(&as_before, &text)
    }

    /// The text of a file; none when there is no such file.
    fn text(&mut self, path: &Path) -> Lowered<Option<String>> {
        let text = self.inputs.read(path);
        self.unless_missing(path, text)
    }

    fn unless_missing(&mut self, path: &Path, text: io::Result<String>) -> Lowered<Option<String>> {
        match text {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self
                .report(path, format!("the file cannot be read: {error}"))
                .into()),
        }
    }

    /// Reads a file that must not be empty.
    fn read_filled<T: DeserializeOwned>(
        &mut self,
        path: &Path,
        text: &str,
        help: &str,
    ) -> Lowered<T> {
        match self.read(path, text)? {
            Some(read) => Ok(read),
            None => Err(self.report(path, "the file is empty").help(help)),
        }
    }

    /// Reads a file; none when there is nothing in it.
    fn read<T: DeserializeOwned>(&mut self, path: &Path, text: &str) -> Lowered<Option<T>> {
        let file = display_name(path);
        self.texts.push((file.clone(), text.into()));
        let mut document =
            Document::parse(self.sources.next_id(), &file, text, &mut self.diagnostics);
        let read = document.read(&mut self.diagnostics);
        self.sources.add(document);
        read
    }

    fn warn(&mut self, path: &Path, message: impl Into<String>) -> &mut Diagnostic {
        let location = file_location(path);
        self.diagnostics
            .push(Diagnostic::warning(location, message))
    }

    fn report(&mut self, path: &Path, message: impl Into<String>) -> ErrorBuilder<'_> {
        self.diagnostics.error(file_location(path), message)
    }
}

fn is_dump_of_boulder(text: &str) -> bool {
    let mut lines = text.trim_start_matches('\u{feff}').lines();
    lines
        .next()
        .is_some_and(|line| line.starts_with("name,id,"))
}

fn file_location(path: &Path) -> Location {
    Location {
        file: display_name(path),
        ..Location::default()
    }
}

impl Gateway {
    fn uses_limits(&self) -> bool {
        let routes = self.routes.iter().map(|route| &route.limits);
        let defaults = self.defaults.iter().map(|defaults| &defaults.limits);
        let mut listed = routes.chain(defaults).flatten();
        let asked = self.decide.as_ref();
        let by_envoy = asked.is_some_and(|decide| decide.envoy.is_some());
        by_envoy || listed.any(|limits| !limits.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_of_the_package_is_named_where_there_is_one() {
        let folder = tempfile::TempDir::new().unwrap();
        let (path, installed) = (
            Path::new("gateway.yaml"),
            folder.path().join("installed.yaml"),
        );
        let told = where_to_find(path, &installed);
        assert!(!told.contains("installed"), "{told}");
        std::fs::write(&installed, "").unwrap();
        let option = format!("; the installed one is --config {}; ", installed.display());
        let told = where_to_find(path, &installed);
        assert!(told.contains(&option), "{told}");
        assert!(told.ends_with("`weir init` writes a new one"), "{told}");
    }
}
