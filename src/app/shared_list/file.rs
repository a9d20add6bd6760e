//! A list in a file, for a gateway whose buckets are in memory: as Redis has it, of one machine.

use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, ErrorKind, Write};
use std::marker::PhantomData;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::de::Error as _;
use serde_json::{Map, Value};
use thiserror::Error;
use weir_limit::time::Timestamp;
use weir_runtime::blocking;
use weir_store::{ChangedList, SharedEntry, SharedLists, StoreError, StoreFuture};

use super::{FOR_GOOD, ListEntry, apply_change};

/// An entry of a list that may be in a file.
pub(in crate::app) trait FileEntry: ListEntry {
    /// Explains the file to whoever opens it.
    const ABOUT: &'static str;
    /// The setting that names another file.
    const SETTING: &'static str;
}

/// A larger file was not written by a gateway.
const MAX_FILE_BYTES: u64 = 8 << 20;

/// Why the file cannot be read or written.
#[derive(Debug, Error)]
pub(in crate::app) enum FileError {
    #[error("{path}: {cause}; let the gateway's user read and write it, and the folder that it is in, \
             or name another by `{setting}`", path = .path.display())]
    System {
        path: PathBuf,
        cause: io::Error,
        setting: &'static str,
    },
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

/// The one list of a file.
pub(in crate::app) struct ListFile<E>(Arc<CachedFile<E>>);

/// The file, and its contents.
struct CachedFile<E> {
    path: PathBuf,
    /// The version that was read or written last, and its entries in the order of the ends. The
    /// file is read again only when another process has changed it.
    cached: Mutex<(u64, Vec<SharedEntry>)>,
    entry: PhantomData<E>,
}

impl<E: FileEntry> ListFile<E> {
    pub(in crate::app) fn new(path: PathBuf) -> Self {
        Self(Arc::new(CachedFile {
            path,
            cached: Mutex::default(),
            entry: PhantomData,
        }))
    }

    /// Works on the file on a thread of its own, as that may take long.
    fn blocking<T: Send + Unpin + 'static>(
        &self,
        work: impl FnOnce(&CachedFile<E>) -> Result<T, FileError> + Send + 'static,
    ) -> StoreFuture<T> {
        let file = Arc::clone(&self.0);
        StoreFuture::waiting(async move { Ok(blocking::run(move || work(&file)).await?) })
    }
}

impl<E: FileEntry> SharedLists for ListFile<E> {
    fn change(
        &self,
        _: &str,
        add: Vec<SharedEntry>,
        remove: Vec<String>,
        now: Timestamp,
    ) -> StoreFuture<ChangedList> {
        self.blocking(move |file| file.change(add, &remove, now))
    }

    fn version(&self, _: &str) -> StoreFuture<u64> {
        self.blocking(|file| version::<E>(&file.path))
    }

    fn entries(
        &self,
        _: &str,
        from: u64,
        skip: usize,
        count: usize,
    ) -> StoreFuture<Vec<SharedEntry>> {
        self.blocking(move |file| {
            let mut cached = file.cached.lock();
            file.read(&mut cached)?;
            let lasting = cached.1.iter().filter(|entry| entry.until >= from);
            Ok(lasting.skip(skip).take(count).cloned().collect())
        })
    }
}

impl<E: FileEntry> CachedFile<E> {
    /// Reads the file unless its contents are cached, and returns its version.
    fn read(&self, cached: &mut (u64, Vec<SharedEntry>)) -> Result<u64, FileError> {
        let version = version::<E>(&self.path)?;
        if cached.0 != version {
            *cached = (version, read_file::<E>(&self.path)?);
        }
        Ok(version)
    }

    /// Replaces the file while no other process does, as during a restart without a pause.
    fn change(
        &self,
        add: Vec<SharedEntry>,
        remove: &[String],
        now: Timestamp,
    ) -> Result<ChangedList, FileError> {
        let path = &self.path;
        let failed = |error| failed::<E>(path, error);
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let folder = File::open(folder).map_err(failed)?;
        folder.lock().map_err(failed)?;
        let mut cached = self.cached.lock();
        let before = self.read(&mut cached)?;
        // If what follows fails, the file is read again.
        let (_, mut entries) = std::mem::take(&mut *cached);
        let removed = apply_change(&mut entries, add, remove, now);
        replace::<E>(path, &entries).map_err(failed)?;
        // The name is on disk, too, only once its folder is.
        folder.sync_all().map_err(failed)?;
        let after = version::<E>(path)?;
        *cached = (after, entries);
        Ok(ChangedList {
            removed,
            before,
            after,
        })
    }
}

fn failed<E: FileEntry>(path: &Path, cause: io::Error) -> FileError {
    FileError::System {
        path: path.to_owned(),
        cause,
        setting: E::SETTING,
    }
}

/// What tells that the file was replaced: each write makes a file of its own.
fn version<E: FileEntry>(path: &Path) -> Result<u64, FileError> {
    match fs::metadata(path) {
        Ok(found) => {
            let mut hasher = DefaultHasher::new();
            (found.dev(), found.ino(), found.size()).hash(&mut hasher);
            (found.mtime(), found.mtime_nsec()).hash(&mut hasher);
            Ok(hasher.finish().max(1))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
        Err(error) => Err(failed::<E>(path, error)),
    }
}

/// Reads the file, in the order of the ends; nothing if there is none.
pub(in crate::app) fn read_file<E: FileEntry>(path: &Path) -> Result<Vec<SharedEntry>, FileError> {
    let length = match fs::metadata(path) {
        Ok(found) => found.len(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed::<E>(path, error)),
    };
    if length > MAX_FILE_BYTES {
        return Err(failed::<E>(path, ErrorKind::FileTooLarge.into()));
    }
    let bytes = fs::read(path).map_err(|error| failed::<E>(path, error))?;
    let entries = parse::<E>(&bytes).map_err(|cause| FileError::Corrupt {
        path: path.to_owned(),
        cause,
    })?;
    let entries = entries.into_iter();
    let mut entries: Vec<_> = (entries.map(|value| entry::<E>(value.to_string()))).collect();
    entries.sort_unstable();
    // Somebody who edits the file may have left a text twice.
    entries.dedup();
    Ok(entries)
}

fn parse<E: FileEntry>(bytes: &[u8]) -> serde_json::Result<Vec<Value>> {
    let mut members: Map<String, Value> = serde_json::from_slice(bytes)?;
    let entries = members.remove(E::LIST);
    serde_json::from_value(entries.ok_or_else(|| serde_json::Error::missing_field(E::LIST))?)
}

fn entry<E: ListEntry>(text: String) -> SharedEntry {
    let entry = E::parse(&text);
    SharedEntry {
        until: entry.map_or(FOR_GOOD, |entry| entry.end()),
        text,
    }
}

/// Writes another file and gives it the name, so that there is a whole one at any time.
fn replace<E: FileEntry>(path: &Path, entries: &[SharedEntry]) -> io::Result<()> {
    // Each text is JSON.
    let texts: Vec<_> = entries.iter().map(|entry| entry.text.as_str()).collect();
    let texts = texts.join(",\n    ");
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
    write!(
        file,
        "{{\n  \"about\": \"{}\",\n  \"{}\": [\n    {texts}\n  ]\n}}\n",
        E::ABOUT,
        E::LIST
    )?;
    file.sync_all()?;
    fs::rename(&next, path)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::super::tests::Note;
    use super::*;

    const NOW: Timestamp = Timestamp::from_nanos(1_000_000_000);

    fn kept(id: &str) -> SharedEntry {
        entry::<Note>(format!("{{\"id\":\"{id}\",\"set_at\":1}}"))
    }

    async fn all(file: &ListFile<Note>) -> Vec<SharedEntry> {
        file.entries("", 0, 0, 100).await.unwrap()
    }

    #[tokio::test]
    async fn a_file_holds_what_was_changed_and_each_change_has_another_version() {
        let folder = TempDir::new().unwrap();
        let file = ListFile::<Note>::new(folder.path().join("o.json"));
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
    async fn a_file_is_read_again_only_when_another_process_has_changed_it() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("o.json");
        let (file, other) = (
            ListFile::<Note>::new(path.clone()),
            ListFile::<Note>::new(path),
        );
        file.change("", vec![kept("a")], vec![], NOW).await.unwrap();
        // What only this process can know tells whether it has read the file.
        file.0.cached.lock().1.push(kept("b"));
        file.change("", vec![kept("c")], vec![], NOW).await.unwrap();
        let three = ["a", "b", "c"].map(kept);
        assert_eq!(all(&file).await, three);
        assert_eq!(all(&other).await, three);
        let last = vec![three[0].text.clone()];
        other.change("", vec![], last, NOW).await.unwrap();
        assert_eq!(all(&file).await, three[1..]);
    }

    /// One that is no override was warned of again at each change.
    #[tokio::test]
    async fn a_text_that_stands_twice_in_the_file_is_never_read_as_two() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("o.json");
        let texts = [kept("a").text, "[]".to_owned()].join(",");
        fs::write(&path, format!("{{\"notes\": [{texts},{texts}]}}")).unwrap();
        let both = [kept("a"), entry::<Note>("[]".to_owned())];
        let mut read = all(&ListFile::<Note>::new(path)).await;
        read.sort_unstable_by(|one, other| other.text.cmp(&one.text));
        assert_eq!(read, both);
    }

    #[tokio::test]
    async fn changes_by_two_processes_at_once_lose_nothing() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("o.json");
        let write = |name: &'static str| {
            let file = ListFile::<Note>::new(path.clone());
            tokio::spawn(async move {
                for number in 0..20 {
                    let add = vec![kept(&format!("{name}{number}"))];
                    file.change("", add, vec![], NOW).await.unwrap();
                }
            })
        };
        let (one, other) = tokio::join!(write("a"), write("b"));
        one.and(other).unwrap();
        assert_eq!(all(&ListFile::<Note>::new(path.clone())).await.len(), 40);
    }

    #[tokio::test]
    async fn a_file_that_no_gateway_wrote_is_named_and_left_as_it_is() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("o.json");
        let file = ListFile::<Note>::new(path.clone());
        for garbage in ["", "{\"notes\": [{\"id\":", "- L: {burst: 1}\n", "[]"] {
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
        let file = ListFile::<Note>::new(folder.path().join("missing/o.json"));
        let error = file.change("", vec![kept("a")], vec![], NOW).await;
        let error = error.unwrap_err();
        let error = std::error::Error::source(&error).unwrap().to_string();
        assert!(error.contains("notes: {file: PATH}"), "{error}");
    }
}
