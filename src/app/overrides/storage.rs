//! Where overrides by the admin API are kept: in Redis, where all gateways see them, or with the
//! memory store in a file of their own.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;
use tokio::task::spawn_blocking;

use crate::store::{Redis, StoreError, Table, TableChange};

/// The name of the table in Redis.
const TABLE: &str = "overrides";

/// What the file says of itself to whoever opens it.
const ABOUT: &str = "Written by weir for PUT /v1/overrides. Change it by `weir override`, as the \
                     gateway replaces it as a whole.";

/// A larger file was not written by a gateway.
const MAX_FILE_BYTES: u64 = 8 << 20;

/// Why overrides cannot be read or kept.
#[derive(Debug, Error)]
pub(crate) enum StorageError {
    /// Redis does not answer, or refuses.
    #[error("{}", with_sources(.0))]
    Redis(#[from] StoreError),
    /// The file cannot be read or written.
    #[error("{path}: {cause}; let the gateway's user read and write it, and the folder that it is in, \
             or name another by `admin: {{overrides_file: PATH}}`", path = .path.display())]
    File { path: PathBuf, cause: io::Error },
    /// The file was not written by a gateway, or something else has written to it since.
    #[error("{path}: {cause}; it is left as it is, so correct it, or move it away", path = .path.display())]
    Corrupt {
        path: PathBuf,
        cause: serde_json::Error,
    },
}

fn with_sources(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

impl StorageError {
    /// Whether Redis's user lacks a right, which it hardly gets within a second.
    pub(super) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Redis(StoreError::Forbidden(_)))
    }
}

/// A table of texts with a version.
pub(super) enum Storage {
    Redis(Redis),
    File(PathBuf),
    /// There is no admin listener that could set any.
    Nowhere,
}

impl Storage {
    /// The version; none if nothing was ever kept, or all of it is lost.
    pub(super) async fn version(&self) -> Result<Option<String>, StorageError> {
        match self {
            Self::Redis(redis) => Ok(redis.table_version(TABLE).await?),
            Self::File(path) => blocking(path, stamp).await,
            Self::Nowhere => Ok(None),
        }
    }

    pub(super) async fn table(&self) -> Result<Table, StorageError> {
        match self {
            Self::Redis(redis) => Ok(redis.table(TABLE).await?),
            Self::File(path) => blocking(path, read_file).await,
            Self::Nowhere => Ok(Table::default()),
        }
    }

    /// Changes what is of this version, and tells the next version. None, and nothing is changed, if
    /// it is of another.
    pub(super) async fn change(
        &self,
        version: Option<&str>,
        change: TableChange,
    ) -> Result<Option<String>, StorageError> {
        match self {
            Self::Redis(redis) => {
                let next = format!("{:032x}", rand::random::<u128>());
                let changed = redis.change_table(TABLE, version, &change, &next).await?;
                Ok(changed.then_some(next))
            }
            Self::File(path) => {
                let version = version.map(str::to_owned);
                blocking(path, move |path| {
                    change_file(path, version.as_deref(), change)
                })
                .await
            }
            Self::Nowhere => Ok(None),
        }
    }
}

/// Does what may take long on a thread where nobody waits.
async fn blocking<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce(&Path) -> Result<T, StorageError> + Send + 'static,
) -> Result<T, StorageError> {
    let path = path.to_owned();
    let at = path.clone();
    let done = spawn_blocking(move || work(&at)).await;
    // The task fails only when the runtime ends.
    done.unwrap_or_else(|error| Err(failed(&path, io::Error::other(error))))
}

fn failed(path: &Path, cause: io::Error) -> StorageError {
    StorageError::File {
        path: path.to_owned(),
        cause,
    }
}

/// The file's contents.
#[derive(Deserialize, Serialize)]
struct Kept {
    about: String,
    /// By limit and id, as in Redis.
    overrides: BTreeMap<String, Value>,
}

/// What tells that the file was replaced: each write makes a file of its own.
fn stamp(path: &Path) -> Result<Option<String>, StorageError> {
    match fs::metadata(path) {
        Ok(found) => Ok(Some(format!(
            "{}-{}-{}-{}.{:09}",
            found.dev(),
            found.ino(),
            found.size(),
            found.mtime(),
            found.mtime_nsec()
        ))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(path, error)),
    }
}

/// Reads the file; an empty table if there is none.
pub(super) fn read_file(path: &Path) -> Result<Table, StorageError> {
    // What is written after this look differs from it, be it read below or not.
    let version = stamp(path)?;
    if version.is_none() {
        return Ok(Table::default());
    }
    let is_too_large = || -> io::Result<bool> { Ok(fs::metadata(path)?.len() > MAX_FILE_BYTES) };
    if is_too_large().map_err(|error| failed(path, error))? {
        return Err(failed(path, ErrorKind::FileTooLarge.into()));
    }
    let bytes = fs::read(path).map_err(|error| failed(path, error))?;
    let kept: Kept = serde_json::from_slice(&bytes).map_err(|cause| StorageError::Corrupt {
        path: path.to_owned(),
        cause,
    })?;
    let texts = kept.overrides.into_iter();
    Ok(Table {
        version,
        texts: texts
            .map(|(field, value)| (field, value.to_string()))
            .collect(),
    })
}

/// Replaces the file while no other process does, as during a restart without a pause.
fn change_file(
    path: &Path,
    version: Option<&str>,
    change: TableChange,
) -> Result<Option<String>, StorageError> {
    let at = |error| failed(path, error);
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let folder = File::open(folder).map_err(at)?;
    folder.lock().map_err(at)?;
    let mut table = read_file(path)?;
    if table.version.as_deref() != version {
        return Ok(None);
    }
    table.texts.extend(change.set);
    for field in change.deleted {
        table.texts.remove(&field);
    }
    replace(path, &table.texts).map_err(at)?;
    // The name is on disk, too, only once its folder is.
    folder.sync_all().map_err(at)?;
    stamp(path)
}

/// Writes another file and gives it the name, so that there is a whole one at any time.
fn replace(path: &Path, texts: &BTreeMap<String, String>) -> io::Result<()> {
    let overrides = texts
        .iter()
        .map(|(field, text)| Ok((field.clone(), serde_json::from_str(text)?)));
    let kept = Kept {
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
    let mut text = serde_json::to_string_pretty(&kept)?;
    text.push('\n');
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&next, path)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn set(field: &str, text: &str) -> TableChange {
        TableChange {
            set: BTreeMap::from([(field.to_owned(), text.to_owned())]),
            deleted: Vec::new(),
        }
    }

    async fn texts(storage: &Storage) -> Vec<(String, String)> {
        storage.table().await.unwrap().texts.into_iter().collect()
    }

    #[tokio::test]
    async fn a_file_holds_what_was_changed_and_each_change_has_another_version() {
        let folder = TempDir::new().unwrap();
        let storage = Storage::File(folder.path().join("o.json"));
        assert_eq!(storage.version().await.unwrap(), None);
        assert_eq!(storage.table().await.unwrap(), Table::default());
        let first = storage.change(None, set("L:a", "{\"burst\":1}")).await;
        let first = first.unwrap().unwrap();
        assert_eq!(storage.version().await.unwrap().as_ref(), Some(&first));
        let second = storage.change(Some(&first), set("L:b", "{}")).await;
        let second = second.unwrap().unwrap();
        assert_ne!(first, second);
        let expected = [("L:a", "{\"burst\":1}"), ("L:b", "{}")];
        let expected = expected.map(|(field, text)| (field.to_owned(), text.to_owned()));
        assert_eq!(texts(&storage).await, expected);
        let deletion = TableChange {
            deleted: vec!["L:a".to_owned()],
            ..TableChange::default()
        };
        assert!(
            storage
                .change(Some(&second), deletion)
                .await
                .unwrap()
                .is_some()
        );
        assert_eq!(texts(&storage).await, expected[1..]);
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    #[tokio::test]
    async fn a_change_by_an_old_version_changes_nothing() {
        let folder = TempDir::new().unwrap();
        let storage = Storage::File(folder.path().join("o.json"));
        let first = storage.change(None, set("L:a", "{}")).await.unwrap();
        for old in [None, Some("another")] {
            assert_eq!(storage.change(old, set("L:b", "{}")).await.unwrap(), None);
        }
        assert_eq!(storage.version().await.unwrap(), first);
        assert_eq!(texts(&storage).await.len(), 1);
    }

    #[tokio::test]
    async fn changes_by_two_processes_at_once_lose_nothing() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("o.json");
        let write = |name: &'static str| {
            let storage = Storage::File(path.clone());
            tokio::spawn(async move {
                for number in 0..20 {
                    loop {
                        let version = storage.version().await.unwrap();
                        let change = set(&format!("{name}:{number}"), "{}");
                        let changed = storage.change(version.as_deref(), change).await;
                        if changed.unwrap().is_some() {
                            break;
                        }
                    }
                }
            })
        };
        let (one, other) = tokio::join!(write("a"), write("b"));
        one.and(other).unwrap();
        assert_eq!(texts(&Storage::File(path.clone())).await.len(), 40);
    }

    #[tokio::test]
    async fn a_file_that_no_gateway_wrote_is_named_and_left_as_it_is() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("o.json");
        let storage = Storage::File(path.clone());
        for garbage in ["", "{\"overrides\": {\"L:a\":", "- L: {burst: 1}\n", "[]"] {
            fs::write(&path, garbage).unwrap();
            let error = storage.table().await.unwrap_err().to_string();
            assert!(
                error.contains("o.json") && error.contains("move it away"),
                "{error}"
            );
            let version = storage.version().await.unwrap();
            let changed = storage.change(version.as_deref(), set("L:a", "{}")).await;
            assert!(changed.is_err());
            assert_eq!(fs::read_to_string(&path).unwrap(), garbage);
        }
    }

    #[tokio::test]
    async fn a_folder_that_is_not_there_is_told_with_a_remedy() {
        let folder = TempDir::new().unwrap();
        let storage = Storage::File(folder.path().join("missing/o.json"));
        let error = storage.change(None, set("L:a", "{}")).await.unwrap_err();
        assert!(error.to_string().contains("admin: {overrides_file: PATH}"));
    }
}
