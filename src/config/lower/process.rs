//! Threads and logs: what a process keeps for its whole life.

use std::num::NonZeroUsize;
use std::thread::available_parallelism;

use super::{Lowered, Lowering};
use crate::config::schema::{Gateway, Log, LogFormat, Workers};
use crate::config::settings::ProcessSettings;
use crate::config::yaml::Spanned;
use crate::telemetry;

/// Each worker is a thread with connections of its own; more than this is surely a slip.
const MAX_WORKERS: usize = 1024;

impl Lowering<'_> {
    pub(super) fn process(&mut self, gateway: &Gateway) -> Lowered<ProcessSettings> {
        let admin = gateway.admin.as_ref().map(|it| self.address(&it.address));
        let workers = self.workers(gateway.workers.as_ref());
        let connections = self.connections(gateway.connections.as_ref());
        let store = self.store(gateway.store.as_ref());
        let log = self.log(gateway.log.as_ref());
        Ok(ProcessSettings {
            admin: admin.transpose()?,
            workers: workers?,
            connections: connections?,
            store: store?,
            log: log?,
        })
    }

    fn workers(&mut self, workers: Option<&Spanned<Workers>>) -> Lowered<NonZeroUsize> {
        let auto = || available_parallelism().unwrap_or(NonZeroUsize::MIN);
        match workers {
            Some(workers) if workers.value != "auto" => {
                let number = workers.value.parse().ok();
                let number = number.filter(|it: &NonZeroUsize| it.get() <= MAX_WORKERS);
                number.ok_or_else(|| {
                    let found = &workers.value;
                    let message = format!("expected auto or 1 to {MAX_WORKERS}, found `{found}`");
                    self.error(workers.span, message).into()
                })
            }
            _ => Ok(auto()),
        }
    }

    fn log(&mut self, log: Option<&Log>) -> Lowered<telemetry::LogSettings> {
        let mut settings = telemetry::LogSettings::default();
        let Some(log) = log else {
            return Ok(settings);
        };
        settings.format = match log.format {
            None | Some(LogFormat::Auto) => telemetry::LogFormat::Auto,
            Some(LogFormat::Human) => telemetry::LogFormat::Text,
            Some(LogFormat::Json) => telemetry::LogFormat::Json,
        };
        settings.access = log.access.unwrap_or(settings.access);
        if let Some(level) = &log.level {
            settings.level.clone_from(&level.value);
            self.ok(level.span, settings.check())?;
        }
        Ok(settings)
    }
}
