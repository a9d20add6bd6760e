//! What only a new process can change.

mod log;
pub mod otlp;
mod store;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use rustix::fs::{Access, access};
use weir_logging::LogSettings;
use weir_server::HttpSettings;
use weir_yaml::{Lowered, Lowering, Spanned};

use self::log::log;
pub(super) use self::log::{Log, LogAccount};
pub(super) use self::otlp::Telemetry;
use self::otlp::{OtlpSettings, otlp};
pub(super) use self::store::Store;
use self::store::store;
pub use self::store::{RedisStore, StoreSettings};
use super::schema::{Gateway, Workers};

/// Where overrides by the admin API are kept, unless told otherwise: not in the folder of limits,
/// whose files are the operator's own.
const DEFAULT_OVERRIDES_FILE: &str = "admin-overrides.json";

/// Each worker is a thread with its own connections; more than this is surely a mistake.
const MAX_WORKERS: usize = 1024;

/// What a process keeps until it ends. When a reload brings other values, they need a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessSettings {
    /// Where the admin listener is.
    pub admin: Option<SocketAddr>,
    /// Where overrides by the admin API are kept; none where they are in Redis, or there is no
    /// admin listener.
    pub overrides_file: Option<PathBuf>,
    /// The number of threads.
    pub workers: NonZeroUsize,
    /// What clients' connections may do. Without `max_connections`, the limit of file descriptors
    /// says how many there may be.
    pub connections: HttpSettings,
    /// What remembers buckets.
    pub store: StoreSettings,
    /// What is logged, and how.
    pub log: LogSettings,
    /// Where traces and metrics are sent, if they are.
    pub otlp: Option<OtlpSettings>,
}

pub(super) fn process(cx: &mut Lowering<'_>, gateway: &Gateway) -> Lowered<ProcessSettings> {
    let admin = gateway
        .admin
        .as_ref()
        .map(|admin| cx.required(&admin.address));
    let workers = workers(cx, gateway.workers.as_ref());
    let store = store(cx, gateway.store.as_ref());
    let overrides_file = overrides_file(cx, gateway);
    let log = log(cx, gateway.log.as_ref());
    let otlp = otlp(cx, gateway.telemetry.as_ref());
    Ok(ProcessSettings {
        admin: admin.transpose()?.map(|address| address.0),
        overrides_file: overrides_file?,
        workers: workers?,
        connections: gateway.connections.clone().unwrap_or_default(),
        store: store?,
        log: log?,
        otlp: otlp?,
    })
}

/// Where overrides by the admin API are kept, unless they are in Redis.
fn overrides_file(cx: &mut Lowering<'_>, gateway: &Gateway) -> Lowered<Option<PathBuf>> {
    let Some(admin) = &gateway.admin else {
        return Ok(None);
    };
    let redis = gateway
        .store
        .as_ref()
        .and_then(|store| store.redis.as_ref());
    let file = match (&admin.overrides_file, redis) {
        (Some(written), Some(_)) => {
            let message = "overrides by the admin API are kept in Redis, and not in a file";
            return Err(cx.error(written.span, message).help("leave it out"));
        }
        (None, Some(_)) => return Ok(None),
        (Some(written), None) if written.is_empty() => {
            let error = cx.error(written.span, "the path is empty");
            return Err(error.help("name a file that the gateway may write, or leave it out"));
        }
        (Some(written), None) => cx.folder.join(&written.value),
        (None, None) => cx.folder.join(DEFAULT_OVERRIDES_FILE),
    };
    // The folder of a name alone is the working directory.
    let folder = match file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    if let Err(cause) = access(folder, Access::WRITE_OK | Access::EXEC_OK) {
        let span = admin
            .overrides_file
            .as_ref()
            .map_or(admin.address.span, |file| file.span);
        let folder = folder.display();
        let message = format!("the admin API cannot keep overrides in {folder}: {cause}");
        cx.warn(span, message).help(
            "name a file in a folder that the gateway's user may write by `admin: {overrides_file: \
             PATH}`, such as /var/lib/weir/overrides.json",
        );
    }
    Ok(Some(file))
}

fn workers(cx: &mut Lowering<'_>, workers: Option<&Spanned<Workers>>) -> Lowered<NonZeroUsize> {
    let auto = || available_parallelism().unwrap_or(NonZeroUsize::MIN);
    match workers {
        Some(workers) if workers.value != "auto" => {
            let number = workers.value.parse().ok();
            let number = number.filter(|number: &NonZeroUsize| number.get() <= MAX_WORKERS);
            number.ok_or_else(|| {
                let found = &workers.value;
                let message = format!("expected auto or 1 to {MAX_WORKERS}, found `{found}`");
                cx.error(workers.span, message).into()
            })
        }
        _ => Ok(auto()),
    }
}
