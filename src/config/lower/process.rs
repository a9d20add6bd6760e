//! Sockets, threads and logs: what a process keeps for its whole life.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::thread::available_parallelism;

use super::Lowering;
use crate::config::schema::{Gateway, Listener, Log, LogFormat, Workers};
use crate::config::settings::ProcessSettings;
use crate::config::yaml::Placed;
use crate::telemetry;

/// Where the gateway listens unless it is told.
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// Each worker is a thread with connections of its own; more than this is surely a slip.
const MAX_WORKERS: usize = 1024;

impl Lowering<'_> {
    pub(super) fn process(&mut self, gateway: &Gateway) -> Option<ProcessSettings> {
        let listen = self.listen(gateway.listen.as_ref());
        let admin = gateway.admin.as_ref().map(|it| self.address(&it.address));
        let workers = self.workers(gateway.workers.as_ref());
        let store = self.store(gateway.store.as_ref());
        let log = self.log(gateway.log.as_ref());
        self.each_address_once(gateway);
        Some(ProcessSettings {
            listen: listen?,
            admin: admin.map_or(Some(None), |address| address.map(Some))?,
            workers: workers?,
            store: store?,
            log: log?,
        })
    }

    fn listen(&mut self, listeners: Option<&Placed<Vec<Listener>>>) -> Option<Vec<SocketAddr>> {
        let Some(listeners) = listeners else {
            return Some(vec![DEFAULT_LISTEN]);
        };
        let listeners = self.filled(
            listeners,
            "there is nothing to listen on",
            "add `- address: 127.0.0.1:8080`, or leave `listen` out for that",
        )?;
        let addresses = listeners.iter().map(|it| self.address(&it.address));
        let parsed: Vec<_> = addresses.collect();
        parsed.into_iter().collect()
    }

    fn address(&mut self, address: &Placed<String>) -> Option<SocketAddr> {
        self.parse(
            address,
            "an IP address and a port, such as 0.0.0.0:8080 or [::]:8080",
        )
    }

    /// An address can be listened on once; the system would blame another process for it.
    fn each_address_once(&mut self, gateway: &Gateway) {
        let listen = gateway.listen.iter().flat_map(|listen| &listen.value);
        let listen = listen.map(|it| &it.address);
        let mut taken: Vec<SocketAddr> = Vec::new();
        if gateway.listen.is_none() {
            taken.push(DEFAULT_LISTEN);
        }
        for written in listen.chain(gateway.admin.iter().map(|it| &it.address)) {
            // What is no address is told of already.
            let Ok(address) = written.value.parse::<SocketAddr>() else {
                continue;
            };
            if let Some(other) = taken.iter().find(|other| overlap(**other, address)) {
                let message = format!("{address} is taken already, by {other}");
                self.error(written.place, message)
                    .remedy("choose another port");
            }
            taken.push(address);
        }
    }

    fn workers(&mut self, workers: Option<&Placed<Workers>>) -> Option<NonZeroUsize> {
        let auto = || available_parallelism().unwrap_or(NonZeroUsize::MIN);
        match workers {
            Some(workers) if workers.value != "auto" => {
                let number = workers.value.parse().ok();
                let number = number.filter(|it: &NonZeroUsize| it.get() <= MAX_WORKERS);
                if number.is_none() {
                    let message = format!(
                        "expected auto or 1 to {MAX_WORKERS}, found `{}`",
                        workers.value
                    );
                    self.error(workers.place, message);
                }
                number
            }
            _ => Some(auto()),
        }
    }

    fn log(&mut self, log: Option<&Log>) -> Option<telemetry::LogSettings> {
        let mut settings = telemetry::LogSettings::default();
        let Some(log) = log else {
            return Some(settings);
        };
        settings.format = match log.format {
            None | Some(LogFormat::Auto) => telemetry::LogFormat::Auto,
            Some(LogFormat::Human) => telemetry::LogFormat::Human,
            Some(LogFormat::Json) => telemetry::LogFormat::Json,
        };
        settings.access = log.access.unwrap_or(settings.access);
        if let Some(level) = &log.level {
            settings.level.clone_from(&level.value);
            self.ok(level.place, settings.check())?;
        }
        Some(settings)
    }
}

/// Whether no two sockets can listen on both. Port 0 is another one each time.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let everywhere = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port()
        && one.port() != 0
        && one.is_ipv4() == other.is_ipv4()
        && (everywhere || one.ip() == other.ip())
}
