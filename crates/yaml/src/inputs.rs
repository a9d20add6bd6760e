//! The files that a configuration is read from: whether they were touched since, and whether they
//! say anything else.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::OnceLock;

/// The largest file that is read: two million addresses of a block list, and more.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// The path that stands for standard input, as with other commands.
pub const STANDARD_INPUT: &str = "-";

/// What standard input held. It can be read only once, and reloads and a successor need it again.
static STANDARD_INPUT_BYTES: OnceLock<io::Result<Vec<u8>>> = OnceLock::new();

/// What standard input held, if the configuration was read from there.
pub fn standard_input() -> Option<&'static [u8]> {
    let bytes = STANDARD_INPUT_BYTES.get()?.as_ref();
    bytes.ok().map(Vec::as_slice)
}

/// How messages call the file at this path.
pub fn display_name(path: &Path) -> String {
    match path == Path::new(STANDARD_INPUT) {
        true => "standard input".to_owned(),
        false => path.display().to_string(),
    }
}

/// Every file that was read, or looked for, in the order of reading. A load reads all of its
/// files through this, so whatever it reads can be watched.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    source: Source,
    read: Vec<Input>,
}

/// Where files are read from.
#[derive(Clone, Default)]
enum Source {
    #[default]
    Disk,
    Memory(Arc<HashMap<PathBuf, Vec<u8>>>),
    /// The disk, where these files look as though they had been written.
    DiskWith(Arc<HashMap<PathBuf, Vec<u8>>>),
}

/// Some of the files hold secrets, so none is shown.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disk => "Disk",
            Self::Memory(_) => "Memory",
            Self::DiskWith(_) => "DiskWith",
        })
    }
}

#[derive(Clone, Debug)]
struct Input {
    path: PathBuf,
    stamp: Stamp,
    contents: Contents,
}

/// How files look from outside, to be compared with how they looked before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamps(Vec<Stamp>);

/// What tells that a file was written or replaced; none when there is no such file. Symbolic links
/// are followed, so it changes when one on the way is turned to another target.
type Stamp = Option<FileStamp>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    /// Device and inode.
    file: (u64, u64),
    size: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    /// The same of the inode; `touch` and `cp -p` cannot set it.
    changed: (i64, i64),
}

/// A hash of the contents, or why there is none. A hash takes their place because some of
/// the files hold secrets.
type Contents = Result<u64, ErrorKind>;

impl Inputs {
    /// Inputs that are read from these files, and none from the disk.
    pub fn in_memory(files: HashMap<PathBuf, Vec<u8>>) -> Self {
        Self {
            source: Source::Memory(Arc::new(files)),
            read: Vec::new(),
        }
    }

    /// Inputs that are read from the disk as it would be with these files.
    pub fn on_disk_with(files: HashMap<PathBuf, Vec<u8>>) -> Self {
        Self {
            source: Source::DiskWith(Arc::new(files)),
            read: Vec::new(),
        }
    }

    /// Reads a text and remembers it.
    ///
    /// # Errors
    /// When the file cannot be read, or is not in UTF-8; that is remembered as well.
    pub fn read(&mut self, path: &Path) -> io::Result<String> {
        utf8(self.read_bytes(path)?)
    }

    /// Reads a text from standard input and remembers it. A second read gives the same text.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_standard_input(&mut self) -> io::Result<String> {
        let bytes = STANDARD_INPUT_BYTES.get_or_init(|| read_bounded(io::stdin()));
        let bytes = match bytes {
            Ok(bytes) => Ok(bytes.clone()),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        };
        // No file has an empty path, so this one never changes.
        self.remember(Path::new(""), None, &bytes);
        utf8(bytes?)
    }

    /// Reads a file, whatever it holds, and remembers it.
    ///
    /// # Errors
    /// When the file cannot be read, is larger than 64 MiB, or is a device, a pipe or a folder;
    /// that is remembered as well.
    pub fn read_bytes(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        // What is written after this look differs from it, be it read below or not.
        let (stamp, bytes) = match &self.source {
            Source::Disk => (stamp(path), read_file(path)),
            Source::Memory(files) => {
                let bytes = files.get(path).cloned();
                (None, bytes.ok_or_else(|| ErrorKind::NotFound.into()))
            }
            Source::DiskWith(files) => {
                let bytes = files.get(path).cloned();
                (stamp(path), bytes.map_or_else(|| read_file(path), Ok))
            }
        };
        self.remember(path, stamp, &bytes);
        bytes
    }

    /// Whether there is a file, which is not read and not remembered.
    pub fn has_file(&self, path: &Path) -> bool {
        match &self.source {
            Source::Disk => path.is_file(),
            Source::Memory(files) => files.contains_key(path),
            Source::DiskWith(files) => files.contains_key(path) || path.is_file(),
        }
    }

    fn remember(&mut self, path: &Path, stamp: Stamp, bytes: &io::Result<Vec<u8>>) {
        self.read.push(Input {
            path: path.to_owned(),
            stamp,
            contents: match bytes {
                Ok(bytes) => Ok(hash(bytes)),
                Err(error) => Err(error.kind()),
            },
        });
    }

    /// How the files looked when they were read.
    pub fn stamps(&self) -> Stamps {
        Stamps(self.read.iter().map(|input| input.stamp).collect())
    }

    /// How they look now.
    pub fn stamps_now(&self) -> Stamps {
        Stamps(self.read.iter().map(|input| stamp(&input.path)).collect())
    }

    /// Whether both are the same files with the same contents.
    pub fn same_contents(&self, other: &Self) -> bool {
        let what = |input: &Input| (input.path.clone(), input.contents);
        self.read.iter().map(what).eq(other.read.iter().map(what))
    }
}

fn stamp(path: &Path) -> Stamp {
    let found = fs::metadata(path).ok()?;
    Some(FileStamp {
        file: (found.dev(), found.ino()),
        size: found.size(),
        modified: (found.mtime(), found.mtime_nsec()),
        changed: (found.ctime(), found.ctime_nsec()),
    })
}

/// The contents of a regular file. A pipe would keep a reload waiting, and a device never ends.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let found = fs::metadata(path)?;
    // What a folder is, reading it says best.
    if !found.is_file() && !found.is_dir() {
        return Err(io::Error::other("it is not a regular file"));
    }
    read_bounded(File::open(path)?)
}

fn read_bounded(source: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let mebibytes = MAX_FILE_BYTES >> 20;
        let error = format!("it is larger than {mebibytes} MiB");
        return Err(io::Error::new(ErrorKind::FileTooLarge, error));
    }
    Ok(bytes)
}

fn utf8(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let error = format!("it is not text in UTF-8: {}", error.utf8_error());
        io::Error::new(ErrorKind::InvalidData, error)
    })
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    /// What was read of these files of a folder.
    fn read(folder: &TempDir, names: &[&str]) -> Inputs {
        let mut inputs = Inputs::default();
        for name in names {
            let _ = inputs.read(&folder.path().join(name));
        }
        inputs
    }

    fn is_touched(inputs: &Inputs) -> bool {
        inputs.stamps_now() != inputs.stamps()
    }

    #[test]
    fn an_untouched_file_looks_as_it_was_read() {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("a"), "1").unwrap();
        let inputs = read(&folder, &["a", "not-there"]);
        assert!(!is_touched(&inputs));
        assert!(inputs.same_contents(&read(&folder, &["a", "not-there"])));
    }

    #[test]
    fn a_file_that_is_replaced_by_its_like_is_touched_but_says_the_same() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "1").unwrap();
        let inputs = read(&folder, &["a"]);
        fs::write(folder.path().join("new"), "1").unwrap();
        fs::rename(folder.path().join("new"), &path).unwrap();
        assert!(is_touched(&inputs));
        assert!(inputs.same_contents(&read(&folder, &["a"])));
        fs::write(&path, "2").unwrap();
        assert!(!inputs.same_contents(&read(&folder, &["a"])));
    }

    #[test]
    fn files_that_come_and_go_are_noticed() {
        let folder = TempDir::new().unwrap();
        let without = read(&folder, &["a"]);
        fs::write(folder.path().join("a"), "").unwrap();
        assert!(is_touched(&without));
        let with = read(&folder, &["a"]);
        assert!(!with.same_contents(&without));
        fs::remove_file(folder.path().join("a")).unwrap();
        assert!(is_touched(&with));
    }

    #[test]
    fn pipes_devices_folders_and_huge_files_never_stop_or_fill_the_process() {
        let folder = TempDir::new().unwrap();
        let at = |name: &str| folder.path().join(name);
        let made = std::process::Command::new("mkfifo")
            .arg(at("fifo"))
            .status();
        assert!(made.unwrap().success());
        fs::create_dir(at("folder")).unwrap();
        symlink("/dev/zero", at("device")).unwrap();
        let huge = File::create(at("huge")).unwrap();
        huge.set_len(MAX_FILE_BYTES + 1).unwrap();
        for (name, reason) in [
            ("fifo", "regular"),
            ("device", "regular"),
            ("folder", "directory"),
            ("huge", "64 MiB"),
        ] {
            let error = Inputs::default().read(&at(name)).unwrap_err().to_string();
            assert!(error.contains(reason), "{name}: {error}");
        }
        huge.set_len(MAX_FILE_BYTES).unwrap();
        assert!(Inputs::default().read_bytes(&at("huge")).is_ok());
    }

    /// As Kubernetes exchanges the files of a ConfigMap: they are links into a folder that is a
    /// link itself.
    #[test]
    fn a_link_on_the_way_that_is_turned_elsewhere_is_noticed() {
        let folder = TempDir::new().unwrap();
        let at = |name: &str| folder.path().join(name);
        for (version, text) in [("v1", "1"), ("v2", "2")] {
            fs::create_dir(at(version)).unwrap();
            fs::write(at(version).join("a"), text).unwrap();
        }
        symlink("v1", at("..data")).unwrap();
        symlink("..data/a", at("a")).unwrap();
        let inputs = read(&folder, &["a"]);
        symlink("v2", at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
        assert!(is_touched(&inputs));
        assert!(!inputs.same_contents(&read(&folder, &["a"])));
    }
}
