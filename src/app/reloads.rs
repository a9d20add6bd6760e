//! New configurations: when the files change or somebody asks, the whole of it or nothing.
//!
//! Files are looked at once a second, by their metadata. That works wherever files can be: on
//! network file systems and bind mounts, which notify nobody of changes made elsewhere, through
//! links that are turned to another target, and in folders that are removed and made anew.
//! See `docs/decisions/0011-files-are-looked-at.md`.

use std::cell::RefCell;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::announce;
use super::snapshot::{ProcessState, Snapshot};
use crate::config::{self, Inputs, LoadResult, ProcessSettings, Settings, Stamps};
use crate::rules::HashKey;
use crate::telemetry::{ReloadFailed, Unchanged};

/// How often files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Files that changed are read when they have stayed as they are for so long: whoever writes
/// several, or one piece by piece, is given the time to finish.
const QUIET: Duration = Duration::from_millis(100);

/// Where the configuration comes from.
pub(super) struct Source {
    path: PathBuf,
    /// Hashes what may be a secret where no key is configured. It lives as long as the process, or
    /// a reload would make strangers of all accounts.
    key: HashKey,
}

impl Source {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            key: HashKey::random(),
        }
    }

    /// Reads it, to take the place of what is `in_force`.
    pub(super) fn read(&self, in_force: Option<&Settings>) -> LoadResult {
        config::read(&self.path, &self.key, in_force)
    }
}

/// What the process runs with until it ends, whatever is configured meanwhile.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) process: ProcessSettings,
    /// The listeners, in words.
    pub(super) listen: String,
    pub(super) grace: Duration,
}

impl Kept {
    pub(super) fn of(settings: &Settings) -> Self {
        let listen: Vec<_> = settings.listen.iter().map(ToString::to_string).collect();
        Self {
            process: settings.process.clone(),
            listen: listen.join(","),
            grace: settings.grace,
        }
    }
}

/// Brings new configurations into force.
pub(super) struct Reloads {
    source: Source,
    publish: watch::Sender<Arc<Snapshot>>,
    lasting: ProcessState,
    kept: Kept,
    files: RefCell<Files>,
}

/// The files of configurations.
struct Files {
    /// As they were when what is in force was read.
    in_force: Arc<Inputs>,
    /// As they were when they were read last.
    last: Arc<Inputs>,
}

impl Reloads {
    /// `publish` holds the configuration in force, which was read from `inputs`.
    pub(super) fn new(
        source: Source,
        inputs: Inputs,
        publish: watch::Sender<Arc<Snapshot>>,
        lasting: ProcessState,
    ) -> Self {
        let kept = Kept::of(&publish.borrow().settings);
        let inputs = Arc::new(inputs);
        Self {
            source,
            publish,
            lasting,
            kept,
            files: RefCell::new(Files {
                in_force: Arc::clone(&inputs),
                last: inputs,
            }),
        }
    }

    /// Reads the configuration because somebody asks for it, who is told what came of it in any
    /// case.
    pub(super) fn asked(&self) {
        let reading = self.read();
        self.bring_into_force(reading);
    }

    /// Reads the configuration again and again, as its files change. What was said of the same
    /// contents is not said again.
    pub(super) async fn follow_files(&self) -> Infallible {
        loop {
            sleep(LOOK_EVERY).await;
            if self.watches() && self.have_changed().await {
                self.files_changed();
            }
        }
    }

    fn watches(&self) -> bool {
        self.publish.borrow().settings.watch
    }

    /// Whether files look otherwise than when they were read; it then waits until they are quiet.
    async fn have_changed(&self) -> bool {
        let inputs = Arc::clone(&self.files.borrow().last);
        let mut before = inputs.stamps();
        let mut now = look(&inputs).await;
        let changed = now != before;
        while now != before {
            sleep(QUIET).await;
            before = now;
            now = look(&inputs).await;
        }
        changed
    }

    fn files_changed(&self) {
        let reading = self.read();
        let known = reading.inputs.same_contents(&self.files.borrow().last);
        if known {
            self.files.borrow_mut().last = Arc::new(reading.inputs);
        } else {
            self.bring_into_force(reading);
        }
    }

    fn read(&self) -> LoadResult {
        let in_force = Arc::clone(&self.publish.borrow());
        self.source.read(Some(&in_force.settings))
    }

    /// Puts a new configuration into force, or keeps the old one when the new one is in error or is
    /// the old one.
    fn bring_into_force(&self, reading: LoadResult) {
        let inputs = Arc::new(reading.inputs);
        let mut files = self.files.borrow_mut();
        files.last = Arc::clone(&inputs);
        match reading.outcome {
            Err(found) => ReloadFailed { cause: &found }.emit(&self.lasting.metrics),
            Ok(_) if inputs.same_contents(&files.in_force) => {
                Unchanged.emit(&self.lasting.metrics);
            }
            Ok(settings) => {
                files.in_force = inputs;
                self.publish(settings);
            }
        }
    }

    fn publish(&self, settings: Settings) {
        self.lasting.sockets.renew(&settings.listen);
        let snapshot = Arc::new(Snapshot::new(settings, &self.lasting));
        snapshot.inherit(&self.publish.borrow());
        self.publish.send_replace(Arc::clone(&snapshot));
        announce::reloaded(&snapshot.settings, &self.kept, &self.lasting.metrics);
    }
}

/// How the files look now. A file system that hangs shall hold up neither signals nor a drain.
async fn look(inputs: &Arc<Inputs>) -> Stamps {
    let looking = Arc::clone(inputs);
    let seen = spawn_blocking(move || looking.stamps_now()).await;
    // Nobody looks any more when the runtime ends.
    seen.unwrap_or_else(|_| inputs.stamps())
}
