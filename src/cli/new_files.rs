//! Configuration files that commands write, and that never take the place of others.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use weir_yaml::Diagnostics;

use super::shell::SchemaFile;

/// Where packages put the schemas.
const INSTALLED_SCHEMAS: &str = "/usr/share/weir/schema";

/// The permissions of a file that all may read, as far as the user's mask lets them.
pub(super) const FOR_ALL: u32 = 0o666;

/// The permissions of a file that only its owner may read.
pub(super) const FOR_OWNER: u32 = 0o600;

/// Why nothing was written.
#[derive(Debug, Error)]
pub(super) enum WriteError {
    /// The configuration would not load.
    #[error("{}", errors(.0))]
    Configuration(Diagnostics),
    #[error("{} exists already, and no file is overwritten; name one in another folder with --config", .0.display())]
    Exists(PathBuf),
    #[error("a configuration is written to a file; name one with --config")]
    StandardInput,
    #[error("{}: {cause}", path.display())]
    Failed { path: PathBuf, cause: io::Error },
}

/// The errors alone: warnings are about files that are not written.
fn errors(found: &Diagnostics) -> String {
    found.error_lines().collect::<Vec<_>>().join("\n")
}

/// The files of a new configuration, in the order of writing.
#[derive(Debug)]
pub(super) struct NewFiles {
    config: PathBuf,
    files: Vec<(PathBuf, String)>,
    /// The permissions of the configuration.
    mode: u32,
}

impl NewFiles {
    /// A configuration at `config` with its limits beside it, and what editors need to complete
    /// both.
    pub(super) fn new(config: &Path, gateway: &str, defaults: &str) -> Self {
        let mut files = Self {
            config: config.to_owned(),
            files: Vec::new(),
            mode: FOR_ALL,
        };
        files.add(config, "schema", SchemaFile::Gateway, gateway);
        let limits = files.folder().join("limits/defaults.yaml");
        files.add(&limits, "../schema", SchemaFile::Defaults, defaults);
        files
    }

    /// The same with overrides beside the limits.
    pub(super) fn with_overrides(mut self, overrides: &str) -> Self {
        let path = self.folder().join("limits/overrides.yaml");
        self.add(&path, "../schema", SchemaFile::Overrides, overrides);
        self
    }

    fn folder(&self) -> PathBuf {
        self.config.parent().unwrap_or(Path::new("")).to_owned()
    }

    /// Adds a file and, unless a package has put it in its place, the schema that its first line
    /// names, at `schemas` from the file's folder.
    fn add(&mut self, path: &Path, schemas: &str, schema: SchemaFile, text: &str) {
        let is_installed = Path::new(INSTALLED_SCHEMAS).is_dir();
        let place = if is_installed {
            INSTALLED_SCHEMAS
        } else {
            schemas
        };
        let name = schema.file_name();
        let line = format!("# yaml-language-server: $schema={place}/{name}\n");
        self.files.push((path.to_owned(), line + text.trim_start()));
        if !is_installed {
            let path = self.folder().join("schema").join(name);
            self.files.push((path, schema.text().to_owned()));
        }
    }

    /// Lets only the user read the configuration.
    pub(super) fn private(mut self) -> Self {
        self.mode = FOR_OWNER;
        self
    }

    /// Whether only the user may read the configuration.
    pub(super) fn is_private(&self) -> bool {
        self.mode == FOR_OWNER
    }

    /// Writes all of them, or no file and no folder: a configuration that would not load is not written.
    ///
    /// # Errors
    /// When one exists, or cannot be written, or when they would not load.
    pub(super) fn write(&self) -> Result<(), WriteError> {
        if self.config == Path::new("-") {
            return Err(WriteError::StandardInput);
        }
        if let Some((path, _)) = self.files.iter().find(|(path, _)| path.exists()) {
            return Err(WriteError::Exists(path.clone()));
        }
        let files: HashMap<PathBuf, Vec<u8>> = self
            .files
            .iter()
            .map(|(path, text)| (path.clone(), text.clone().into_bytes()))
            .collect();
        weir_config::check_with(&self.config, files).map_err(WriteError::Configuration)?;
        let folders = self
            .files
            .iter()
            .flat_map(|(path, _)| path.ancestors().skip(1));
        let mut new_folders: Vec<&Path> = folders.filter(|folder| !folder.exists()).collect();
        // Those within others come first.
        new_folders.sort_unstable_by(|one, other| other.cmp(one));
        for (written, (path, text)) in self.files.iter().enumerate() {
            let mode = match *path == self.config {
                true => self.mode,
                false => FOR_ALL,
            };
            let write = |file: &mut File| file.write_all(text.as_bytes());
            if let Err(cause) = write_new(path, mode, write) {
                for (path, _) in self.files.iter().take(written) {
                    let _ = fs::remove_file(path);
                }
                for folder in new_folders {
                    let _ = fs::remove_dir(folder);
                }
                let path = path.clone();
                return Err(WriteError::Failed { path, cause });
            }
        }
        Ok(())
    }

    /// The names of the files.
    pub(super) fn names(&self) -> String {
        let names: Vec<String> = self
            .files
            .iter()
            .map(|(path, _)| path.display().to_string())
            .collect();
        names.join(", ")
    }
}

/// Makes a file where there is none; a half of it does not stay.
pub(super) fn write_new(
    path: &Path,
    mode: u32,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut options = File::options();
    let mut file = options.write(true).create_new(true).mode(mode).open(path)?;
    write(&mut file).inspect_err(|_| {
        let _ = fs::remove_file(path);
    })
}

#[cfg(test)]
mod tests {
    use weir_config::testing::Folder;

    use super::*;

    #[test]
    fn no_folder_stays_where_a_file_cannot_be_written() {
        let folder = Folder::with(&[("there/schema", "a file")]);
        let there = folder.gateway().with_file_name("there");
        let minimal = "routes: [{match: {path: \"/*\"}, response: {status: 200}, limits: []}]\n";
        let limit = "L: {per: address, burst: 1, count: 1, period: 1s}\n";
        let mut files = NewFiles::new(&there.join("gateway.yaml"), minimal, limit);
        // The schemas may be installed.
        files
            .files
            .push((there.join("schema/more.json"), String::new()));
        let failed = files.write();
        assert!(
            matches!(failed, Err(WriteError::Failed { .. })),
            "{failed:?}"
        );
        let left: Vec<_> = fs::read_dir(&there).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    #[test]
    fn what_is_not_written_is_not_warned_of() {
        let folder = Folder::with(&[]);
        let gateway = "routs: []\nupstreams: {app: {servers: [\"http://127.0.0.1:1\"]}}\n";
        let new = folder.gateway().with_file_name("new").join("gateway.yaml");
        let error = NewFiles::new(&new, gateway, "").write().unwrap_err();
        let told = error.to_string();
        assert!(
            told.contains("routs") && !told.contains("warning"),
            "{told}"
        );
    }

    #[test]
    fn no_half_of_a_file_stays_and_no_file_of_another_is_removed() {
        let folder = Folder::with(&[("mine.yaml", "mine")]);
        let half = folder.gateway().with_file_name("half.yaml");
        let failed = write_new(&half, FOR_ALL, |file| {
            file.write_all(b"half")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert!(!half.exists());
        let mine = folder.gateway().with_file_name("mine.yaml");
        let failed = write_new(&mine, FOR_ALL, |_| Ok(()));
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&mine).unwrap(), "mine");
    }
}
