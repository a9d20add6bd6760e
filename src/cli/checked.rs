//! A configuration that was checked: what would be served, and what is wrong or doubtful.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use weir_config::{Settings, StoreSettings};
use weir_middleware::Treatment;
use weir_yaml::{Diagnostic, Diagnostics, Location, pluralized};

use super::BAD_CONFIGURATION;
use super::excerpt::SourceFiles;
use crate::app;

/// What came of checking a configuration.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) file: String,
    /// What would be served; none if there are errors.
    pub(super) summary: Option<String>,
    /// What is worth knowing of a configuration that is right.
    pub(super) notes: Vec<String>,
    pub(super) diagnostics: Diagnostics,
}

impl Checked {
    /// Checks the configuration at `path`.
    pub(super) fn read(path: &Path) -> Self {
        let file = weir_yaml::display_name(path);
        match weir_config::check(path) {
            Ok(settings) => Self::loaded(file, settings),
            Err(diagnostics) => Self {
                file,
                summary: None,
                notes: Vec::new(),
                diagnostics,
            },
        }
    }

    fn loaded(file: String, mut settings: Settings) -> Self {
        let mut diagnostics = std::mem::take(&mut settings.warnings);
        if let Some(warning) = app::too_many_servers(&settings) {
            let location = Location {
                file: file.clone(),
                ..Location::default()
            };
            diagnostics.push(Diagnostic::warning(location, warning));
        }
        Self {
            file,
            summary: Some(summary(&settings)),
            notes: notes(&settings),
            diagnostics,
        }
    }

    /// The report for people; `show` writes each diagnostic.
    pub(super) fn text(&self, show: impl FnMut(&Diagnostic) -> String) -> String {
        let Some(summary) = &self.summary else {
            return self.diagnostics.report(show);
        };
        let mut text = match self.diagnostics.is_empty() {
            true => format!("{}: {summary}; configuration OK", self.file),
            false => {
                let warnings = pluralized(self.diagnostics.iter().count(), "warning");
                let found = self.diagnostics.report(show);
                format!(
                    "{found}\n{}: {summary}; configuration OK, with {warnings}",
                    self.file
                )
            }
        };
        for note in &self.notes {
            text.push('\n');
            text.push_str(note);
        }
        text
    }

    /// Prints the report for people: to standard error if there are errors.
    pub(super) fn print(&self) {
        let is_loaded = self.summary.is_some();
        let is_terminal = match is_loaded {
            true => io::stdout().is_terminal(),
            false => io::stderr().is_terminal(),
        };
        let mut sources = SourceFiles::default();
        let text = self.text(|diagnostic| match is_terminal {
            true => diagnostic.with_excerpt(sources.excerpt(diagnostic).as_deref()),
            false => diagnostic.to_string(),
        });
        // A closed stream is not a failure: its reader does not want more.
        let _ = match is_loaded {
            true => writeln!(io::stdout(), "{text}"),
            false => writeln!(io::stderr(), "{text}"),
        };
    }

    pub(super) fn exit_code(&self, is_strict: bool) -> ExitCode {
        if self.summary.is_none() {
            ExitCode::from(BAD_CONFIGURATION)
        } else if is_strict && !self.diagnostics.is_empty() {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        }
    }
}

fn notes(settings: &Settings) -> Vec<String> {
    let mut notes = prefetch_bounds(settings);
    notes.extend(withheld_counters(settings));
    notes
}

/// The names of the routes to an app on which some clients get decoys.
fn routes_with_decoys(settings: &Settings) -> Vec<&str> {
    let on_all = settings.access.treatments().any(Treatment::is_invented);
    let routes = settings.routes.iter().filter(|route| {
        let on_route = route.policy.on_denied.looks_real();
        route.upstream.is_some() && (on_all || on_route)
    });
    routes.map(|route| &*route.policy.name).collect()
}

/// What clients do not get of the app where some get decoys.
fn withheld_counters(settings: &Settings) -> Option<String> {
    let routes = routes_with_decoys(settings);
    let which = match routes.len() {
        0 => return None,
        1 => format!("route {}", routes.concat()),
        all if all == settings.routes.len() => "all routes".to_owned(),
        some => format!("{some} routes, such as {}", routes.first()?),
    };
    Some(format!(
        "{which}: some clients get decoys, so none gets headers in which the app counts, such as \
         X-RateLimit-Remaining"
    ))
}

/// A line for each limit of which units are prefetched: how far it may be off.
fn prefetch_bounds(settings: &Settings) -> Vec<String> {
    if !settings.process.store.is_shared() {
        return Vec::new();
    }
    let lines = settings.prefetched().map(|(name, units)| {
        format!(
            "{name}: prefetched; N gateways admit at most N x {units} units beyond the limit, per bucket"
        )
    });
    lines.collect()
}

/// A summary of the configuration in one line.
fn summary(settings: &Settings) -> String {
    let limits = settings.limits();
    let overrides = limits.iter().map(|limit| limit.overrides().count()).sum();
    let store = match &settings.process.store {
        StoreSettings::Memory(_) => "the memory store".to_owned(),
        StoreSettings::Redis(store) => store.redis.to_string(),
    };
    format!(
        "{}, {}, {} in use with {}, {store}",
        pluralized(settings.routes.len(), "route"),
        pluralized(settings.upstreams.len(), "upstream"),
        pluralized(limits.len(), "limit"),
        pluralized(overrides, "overridden id"),
    )
}
