//! The source of an import: places in it, and why it cannot be read.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// What editors on Windows begin a file with.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Upper bound on routes, those included that an earlier one leaves no requests.
pub(crate) const MAX_ROUTES: usize = 10_000;

/// Where a directive or an object stands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The file.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
}

impl Place {
    pub(crate) fn new(path: &Path, line: usize) -> Self {
        let file = path.display().to_string();
        Self { file, line }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// Why nothing was translated.
#[derive(Debug, Error)]
pub enum ImportError {
    /// The file, or one that it includes, cannot be read.
    #[error("{}: {cause}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// The file does not have the form of its kind.
    #[error("{0}: {1}")]
    Malformed(Place, String),
    /// The routes would be too many: some are repeated for each host, prefix or match.
    #[error(
        "{0}: the configuration takes more than {MAX_ROUTES} routes from here on, with each \
         expression repeated for each prefix and host; import a part of the file"
    )]
    TooManyRoutes(Place),
    /// There is nothing to translate.
    #[error("{}: there is no `server` with a `location`, and no HTTPRoute with a rule", .0.display())]
    Nothing(PathBuf),
}

/// Reads a regular file: a pipe would keep the command waiting, and a device never ends.
pub(crate) fn read(path: &Path) -> Result<String, ImportError> {
    let text = match fs::metadata(path) {
        Ok(found) if !found.is_file() => Err(io::Error::other("it is not a regular file")),
        // Comments may be in another encoding.
        _ => fs::read(path).map(|bytes| {
            let text = String::from_utf8_lossy(&bytes);
            text.trim_start_matches(BYTE_ORDER_MARK)
                .replace("\r\n", "\n")
        }),
    };
    let path = path.to_owned();
    text.map_err(|cause| ImportError::Unreadable { path, cause })
}
