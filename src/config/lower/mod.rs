//! From what is written to what runs: every reference resolved, every value parsed, every error
//! reported.
//!
//! A part that is in error yields nothing, and the parts that need it say no more about it. So a
//! file with five errors is told of five.

mod access;
mod account;
mod bans;
mod book;
mod client;
mod cost;
mod decoys;
mod describe;
mod enforcement;
mod fields;
mod in_flight;
mod limit_use;
mod limits;
mod listen;
mod overrides;
mod policy;
mod process;
mod quota;
mod routes;
mod secret;
mod store;
mod treatment;
mod upstreams;

use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::str::FromStr;

use http::StatusCode;

use super::diagnostics::{Diagnostic, Diagnostics};
use super::inputs::Inputs;
use super::nearest::suggest;
use super::schema;
use super::settings::Settings;
use super::warnings;
use super::yaml::{Place, Placed, Sources};
use crate::middleware::GateSettings;
use crate::rules::{AccountRules, AccountWildcards, HashKey};
use crate::time::Timestamp;

pub(super) use book::Book;
pub(super) use routes::LoweredRoute;

/// The files of a configuration, read but not yet understood.
pub(super) struct Written {
    pub(super) gateway: Placed<schema::Gateway>,
    pub(super) defaults: Option<schema::Defaults>,
    /// Empty when there is no such file; none when it is in error.
    pub(super) overrides: Option<schema::Overrides>,
    /// Where limits are defined, for remedies.
    pub(super) limits_file: String,
}

/// What every part of the lowering needs.
pub(super) struct Lowering<'s> {
    pub(super) sources: &'s Sources,
    /// The folder of `gateway.yaml`, which paths are relative to.
    pub(super) folder: &'s Path,
    /// Where files are read through, so that they are watched.
    pub(super) inputs: &'s mut Inputs,
    pub(super) found: Diagnostics,
    /// The present, to tell what has ended.
    pub(super) now: Timestamp,
}

impl Lowering<'_> {
    /// Lowers everything. `process_key` hashes when no key is configured.
    pub(super) fn settings(
        &mut self,
        written: &Written,
        process_key: &HashKey,
    ) -> Option<Settings> {
        let gateway = &written.gateway;
        let process = self.process(gateway);
        let listen = self.listen(gateway);
        let admin_token = self.admin_token(gateway.admin.as_ref());
        let client = self.client_rules(gateway.client_address.as_ref());
        let key = self.hash_key(gateway.hash_key.as_ref());
        let key = key.map(|key| key.unwrap_or_else(|| process_key.clone()));
        let account = self.account_rules(
            gateway.account.as_ref().map(|it| it.as_slice()),
            key.as_ref(),
        );
        let upstreams = self.upstreams(&gateway.upstreams);
        let decoys = self.decoys(gateway.decoys.as_ref());
        let book = key.map(|key| self.limits(written, key));
        let mut book = book.unwrap_or_else(|| self.limits(written, process_key.clone()));
        let routes = self.routes(gateway, &mut book, &upstreams, &decoys);
        let bans = self.bans(gateway, &book, &routes, &upstreams, &decoys);
        let access = self.access_lists(gateway, &book.key);
        let blocked = gateway.block.as_ref().and_then(|it| it.on_denied.as_ref());
        let blocked = self.treatment(blocked, StatusCode::FORBIDDEN, &upstreams, &decoys);
        self.require_shared_key(gateway, &routes, &bans);
        warnings::all(self, written, &book, &routes);
        let limits = routes.iter().flat_map(LoweredRoute::limits);
        let wildcards = AccountWildcards::of(limits.map(AsRef::as_ref));
        Some(Settings {
            process: process?,
            listen: listen?,
            grace: gateway
                .grace
                .map_or(super::settings::DEFAULT_GRACE, |span| span.0),
            admin_token: admin_token?,
            watch: gateway.watch.unwrap_or(true),
            client: client?,
            account: AccountRules {
                wildcards,
                ..account?
            },
            upstreams: upstreams.into_settings()?,
            routes: routes
                .into_iter()
                .map(LoweredRoute::into_settings)
                .collect::<Option<_>>()?,
            gate: GateSettings {
                access: access?,
                blocked: blocked?,
                bans: bans.into_iter().collect::<Option<_>>()?,
            },
            parameters: book.parameters(),
            warnings: Diagnostics::default(),
        })
    }

    /// Reports an error.
    pub(super) fn error(&mut self, place: Place, message: impl Into<String>) -> &mut Diagnostic {
        let location = self.sources.location(place);
        self.found.push(Diagnostic::error(location, message))
    }

    /// Reports a warning.
    pub(super) fn warn(&mut self, place: Place, message: impl Into<String>) -> &mut Diagnostic {
        let location = self.sources.location(place);
        self.found.push(Diagnostic::warning(location, message))
    }

    /// Passes a result's value on and reports its error, at a place. Other modules say what is
    /// wrong and, behind a semicolon, what to do about it.
    fn ok<T, E: Display>(&mut self, place: Place, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.refuse(place, &error)).ok()
    }

    fn refuse(&mut self, place: Place, error: &dyn Display) {
        let message = error.to_string();
        let (what, remedy) = message.split_once("; ").unwrap_or((&message, ""));
        let finding = self.error(place, what);
        if !remedy.is_empty() {
            finding.remedy(remedy);
        }
    }

    /// Parses a text as `what`.
    fn parse<T: FromStr>(&mut self, text: &Placed<String>, what: &str) -> Option<T> {
        let parsed = text.value.parse();
        if parsed.is_err() {
            self.error(text.place, format!("`{}` is not {what}", text.value));
        }
        parsed.ok()
    }

    /// Reports that a name is unknown, unless it is one of `known` that is itself in error.
    fn unknown(&mut self, kind: &str, name: &Placed<String>, known: &[&str], hint: &str) {
        if known.contains(&name.value.as_str()) {
            return;
        }
        let nearest = suggest(name, known.iter().copied());
        let remedy = match nearest {
            Some(nearest) if hint.is_empty() => nearest,
            Some(question) if question.ends_with('?') => format!("{question} {hint}"),
            Some(known) => format!("{known}; {hint}"),
            None => hint.to_owned(),
        };
        self.error(name.place, format!("unknown {kind} \"{}\"", name.value))
            .remedy(remedy);
    }

    /// A list that has to have items. One whose items are all in error is told of those only.
    fn filled<'w, T>(
        &mut self,
        list: &'w Placed<Vec<T>>,
        message: &str,
        remedy: &str,
    ) -> Option<&'w [T]> {
        if self.sources.is_empty_at(list.place) {
            self.error(list.place, message).remedy(remedy);
        }
        (!list.value.is_empty()).then_some(list.value.as_slice())
    }

    /// Reads a text that the configuration names, relative to its folder.
    fn read_file(&mut self, path: &str, place: Place) -> Option<String> {
        let full = self.folder.join(path);
        let read = self.inputs.read(&full);
        self.was_read(&full, place, read)
    }

    /// Reads a file that the configuration names and that need not be a text.
    fn read_bytes(&mut self, path: &str, place: Place) -> Option<Vec<u8>> {
        let full = self.folder.join(path);
        let read = self.inputs.read_bytes(&full);
        self.was_read(&full, place, read)
    }

    fn was_read<T>(&mut self, path: &Path, place: Place, read: io::Result<T>) -> Option<T> {
        let error = match read {
            Ok(contents) => return Some(contents),
            Err(error) => error,
        };
        let finding = self.error(place, format!("{} cannot be read: {error}", path.display()));
        match error.kind() {
            ErrorKind::PermissionDenied => {
                finding
                    .remedy("let the user that the gateway runs as read it, and enter its folders");
            }
            // It is there, but is something else.
            ErrorKind::InvalidData | ErrorKind::IsADirectory => {}
            _ => {
                finding.remedy("paths are relative to the folder of gateway.yaml");
            }
        }
        None
    }
}
