//! The file in which overrides by the admin API are kept beside the memory store: a list as Redis has
//! it, of one machine.

use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;
use tokio::task::spawn_blocking;

use super::KeptOverride;
use crate::app::shared_list::millis;
use crate::store::{ChangedList, SharedEntry, SharedLists, StoreError, StoreFuture};
use crate::time::Timestamp;

/// What the file says of itself to whoever opens it.
const ABOUT: &str = "Written by weir for PUT /v1/overrides. Change it by `weir override`, as the \
                     gateway replaces it as a whole.";

/// A larger file was not written by a gateway.
const MAX_FILE_BYTES: u64 = 8 << 20;

/// Why the file cannot be read or written.
#[derive(Debug, Error)]
pub(crate) enum FileError {
    #[error("{path}: {cause}; let the gateway's user read and write it, and the folder that it is in, \
             or name another by `admin: {{overrides_file: PATH}}`", path = .path.display())]
    System { path: PathBuf, cause: io::Error },
    /// The file was not written by a gateway, or something else has written to it since.
    #[error("{path}: {cause}; it is left as it is, so correct it, or move it away", path = .path.display())]
    Corrupt {
        path: PathBuf,
        cause: serde_json::Error,
    },
}

impl From<FileError> for StoreError {
    fn from(error: FileError) -> Self {
        Self::Failed(Box::new(error))
    }
}

/// The one list of a file. Its name does not matter.
pub(super) struct OverridesFile(PathBuf);

impl OverridesFile {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Does what may take long on a thread of its own.
    fn blocking<T: Send + Unpin + 'static>(
        &self,
        work: impl FnOnce(&Path) -> Result<T, FileError> + Send + 'static,
    ) -> StoreFuture<T> {
        let path = self.0.clone();
        StoreFuture::waiting(async move {
            let done = spawn_blocking(move || work(&path)).await;
            // The task fails only when the runtime ends.
            let done = done.map_err(|error| StoreError::Failed(Box::new(error)))?;
            Ok(done?)
        })
    }
}

impl SharedLists for OverridesFile {
    fn change(
        &self,
        _: &str,
        add: Vec<SharedEntry>,
        remove: Vec<String>,
        now: Timestamp,
    ) -> StoreFuture<ChangedList> {
        self.blocking(move |path| change(path, add, &remove, now))
    }

    fn version(&self, _: &str) -> StoreFuture<u64> {
        self.blocking(version)
    }

    fn entries(
        &self,
        _: &str,
        from: u64,
        skip: usize,
        count: usize,
    ) -> StoreFuture<Vec<SharedEntry>> {
        self.blocking(move |path| {
            let all = read(path)?.into_iter();
            let lasting = all.filter(|entry| entry.until >= from);
            Ok(lasting.skip(skip).take(count).collect())
        })
    }
}

fn failed(path: &Path, cause: io::Error) -> FileError {
    FileError::System {
        path: path.to_owned(),
        cause,
    }
}

/// The file's contents.
#[derive(Deserialize, Serialize)]
struct Contents {
    about: String,
    overrides: Vec<Value>,
}

/// What tells that the file was replaced: each write makes a file of its own.
fn version(path: &Path) -> Result<u64, FileError> {
    match fs::metadata(path) {
        Ok(found) => {
            let mut hasher = DefaultHasher::new();
            (found.dev(), found.ino(), found.size()).hash(&mut hasher);
            (found.mtime(), found.mtime_nsec()).hash(&mut hasher);
            Ok(hasher.finish().max(1))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
        Err(error) => Err(failed(path, error)),
    }
}

/// Reads the file, in the order of the ends; nothing if there is none.
pub(super) fn read(path: &Path) -> Result<Vec<SharedEntry>, FileError> {
    let length = match fs::metadata(path) {
        Ok(found) => found.len(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(path, error)),
    };
    if length > MAX_FILE_BYTES {
        return Err(failed(path, ErrorKind::FileTooLarge.into()));
    }
    let bytes = fs::read(path).map_err(|error| failed(path, error))?;
    let contents: Contents =
        serde_json::from_slice(&bytes).map_err(|cause| FileError::Corrupt {
            path: path.to_owned(),
            cause,
        })?;
    let entries = contents.overrides.into_iter();
    let mut entries: Vec<_> = entries.map(|value| entry(value.to_string())).collect();
    entries.sort_unstable();
    Ok(entries)
}

fn entry(text: String) -> SharedEntry {
    let kept = KeptOverride::parse(&text);
    SharedEntry {
        until: kept.map_or(u64::MAX, |kept| kept.end()),
        text,
    }
}

/// Replaces the file while no other process does, as during a restart without a pause.
fn change(
    path: &Path,
    add: Vec<SharedEntry>,
    remove: &[String],
    now: Timestamp,
) -> Result<ChangedList, FileError> {
    let at = |error| failed(path, error);
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let folder = File::open(folder).map_err(at)?;
    folder.lock().map_err(at)?;
    let before = version(path)?;
    let mut entries = read(path)?;
    let count = entries.len();
    entries.retain(|entry| entry.until >= millis(now) && !remove.contains(&entry.text));
    let removed = (count - entries.len()) as u64;
    entries.retain(|entry| add.iter().all(|added| added.text != entry.text));
    entries.extend(add);
    replace(path, &entries).map_err(at)?;
    // The name is on disk, too, only once its folder is.
    folder.sync_all().map_err(at)?;
    Ok(ChangedList {
        removed,
        before,
        after: version(path)?,
    })
}

/// Writes another file and gives it the name, so that there is a whole one at any time.
fn replace(path: &Path, entries: &[SharedEntry]) -> io::Result<()> {
    let overrides = entries
        .iter()
        .map(|entry| serde_json::from_str(&entry.text));
    let contents = Contents {
        about: ABOUT.to_owned(),
        overrides: overrides.collect::<Result<_, serde_json::Error>>()?,
    };
    let mut next = path.as_os_str().to_owned();
    next.push(".next");
    let next = PathBuf::from(next);
    // Ids may be secrets.
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&next)?;
    let mut text = serde_json::to_string_pretty(&contents)?;
    text.push('\n');
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&next, path)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    const NOW: Timestamp = Timestamp::from_nanos(1_000_000_000);

    fn kept(id: &str) -> SharedEntry {
        entry(format!("{{\"id\":\"{id}\",\"limit\":\"L\"}}"))
    }

    async fn all(file: &OverridesFile) -> Vec<SharedEntry> {
        file.entries("", 0, 0, 100).await.unwrap()
    }

    #[tokio::test]
    async fn a_file_holds_what_was_changed_and_each_change_has_another_version() {
        let folder = TempDir::new().unwrap();
        let file = OverridesFile::new(folder.path().join("o.json"));
        assert_eq!(file.version("").await.unwrap(), 0);
        assert!(all(&file).await.is_empty());
        let mut versions = vec![0];
        let mut changed = async |add: Vec<SharedEntry>, remove: Vec<String>| {
            let changed = file.change("", add, remove, NOW).await.unwrap();
            let version = file.version("").await.unwrap();
            assert_eq!(Some(&changed.before), versions.last());
            assert_eq!(changed.after, version);
            assert!(!versions.contains(&version));
            versions.push(version);
            changed.removed
        };
        let (a, b) = (kept("a"), kept("b"));
        assert_eq!(changed(vec![a.clone()], vec![]).await, 0);
        assert_eq!(changed(vec![b.clone()], vec![]).await, 0);
        assert_eq!(all(&file).await, [a.clone(), b.clone()]);
        assert_eq!(
            file.entries("", 0, 1, 5).await.unwrap(),
            std::slice::from_ref(&b)
        );
        let texts = vec![a.text.clone(), "another".to_owned()];
        assert_eq!(changed(vec![b.clone()], texts).await, 1);
        assert_eq!(all(&file).await, [b]);
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    #[tokio::test]
    async fn changes_by_two_processes_at_once_lose_nothing() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("o.json");
        let write = |name: &'static str| {
            let file = OverridesFile::new(path.clone());
            tokio::spawn(async move {
                for number in 0..20 {
                    let add = vec![kept(&format!("{name}{number}"))];
                    file.change("", add, vec![], NOW).await.unwrap();
                }
            })
        };
        let (one, other) = tokio::join!(write("a"), write("b"));
        one.and(other).unwrap();
        assert_eq!(all(&OverridesFile::new(path.clone())).await.len(), 40);
    }

    #[tokio::test]
    async fn a_file_that_no_gateway_wrote_is_named_and_left_as_it_is() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("o.json");
        let file = OverridesFile::new(path.clone());
        for garbage in [
            "",
            "{\"overrides\": [{\"limit\":",
            "- L: {burst: 1}\n",
            "[]",
        ] {
            fs::write(&path, garbage).unwrap();
            let error = file.entries("", 0, 0, 1).await.unwrap_err();
            let error = std::error::Error::source(&error).unwrap().to_string();
            assert!(
                error.contains("o.json") && error.contains("move it away"),
                "{error}"
            );
            let changed = file.change("", vec![kept("a")], vec![], NOW).await;
            assert!(changed.is_err());
            assert_eq!(fs::read_to_string(&path).unwrap(), garbage);
        }
    }

    #[tokio::test]
    async fn a_folder_that_is_not_there_is_told_with_a_remedy() {
        let folder = TempDir::new().unwrap();
        let file = OverridesFile::new(folder.path().join("missing/o.json"));
        let error = file.change("", vec![kept("a")], vec![], NOW).await;
        let error = error.unwrap_err();
        let error = std::error::Error::source(&error).unwrap().to_string();
        assert!(error.contains("admin: {overrides_file: PATH}"), "{error}");
    }
}
