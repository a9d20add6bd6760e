//! The folder in which accounts and certificates are kept: a folder in it for each ACME server,
//! which several processes may share. Only their user may read it.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use instant_acme::AccountCredentials;
use serde::{Deserialize, Serialize};
use weir_server::{CertificateError, Chain, Identity, PrivateKey};

use weir_config::gateway::listen::acme::AcmeSettings;

const ACCOUNT: &str = "account.json";

const LOCK: &str = "lock";

/// The folder of one ACME server's account and certificates.
#[derive(Clone, Debug)]
pub(super) struct Cache(PathBuf);

/// An account, and the settings that it was made with.
#[derive(Deserialize, Serialize)]
pub(super) struct StoredAccount {
    pub(super) email: Option<String>,
    pub(super) external_account: Option<String>,
    pub(super) credentials: AccountCredentials,
}

impl StoredAccount {
    /// Whether these settings ask for such an account.
    pub(super) fn fits(&self, settings: &AcmeSettings) -> bool {
        let external_account = settings.external_account.as_ref();
        self.email == settings.email
            && self.external_account == external_account.map(|account| account.key_id.clone())
    }
}

impl Cache {
    pub(super) fn new(settings: &AcmeSettings) -> Self {
        let directory = settings.directory.to_string();
        let server = directory.strip_prefix("https://").unwrap_or(&directory);
        let safe = |letter: char| letter.is_ascii_alphanumeric() || letter == '.';
        let name: String = server
            .chars()
            .map(|letter| if safe(letter) { letter } else { '-' })
            .collect();
        Self(settings.cache.join(name))
    }

    /// The certificate of a domain, if it has been obtained.
    pub(super) fn certificate(&self, domain: &str) -> io::Result<Option<Identity>> {
        let Some(pem) = unless_missing(fs::read(self.certificate_path(domain)))? else {
            return Ok(None);
        };
        identity(&pem).map(Some).map_err(io::Error::other)
    }

    pub(super) fn keep_certificate(&self, domain: &str, pem: &str) -> io::Result<()> {
        self.write(&self.certificate_path(domain), pem.as_bytes())
    }

    /// The account, if it has been made.
    pub(super) fn account(&self) -> io::Result<Option<StoredAccount>> {
        let Some(json) = unless_missing(fs::read(self.0.join(ACCOUNT)))? else {
            return Ok(None);
        };
        Ok(Some(serde_json::from_slice(&json)?))
    }

    pub(super) fn keep_account(&self, account: &StoredAccount) -> io::Result<()> {
        self.write(&self.0.join(ACCOUNT), &serde_json::to_vec(account)?)
    }

    pub(super) fn remove_account(&self) -> io::Result<()> {
        unless_missing(fs::remove_file(self.0.join(ACCOUNT))).map(drop)
    }

    /// The right to order, which one task of one process has at a time; none while another has it.
    /// The system takes it back from a process that ends.
    pub(super) fn try_lock(&self) -> io::Result<Option<File>> {
        self.create()?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(self.0.join(LOCK))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn certificate_path(&self, domain: &str) -> PathBuf {
        self.0.join(format!("{domain}.pem"))
    }

    fn create(&self) -> io::Result<()> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.0)
    }

    /// Replaces a file as a whole: a reader sees the old or the new one, also after a crash.
    fn write(&self, path: &Path, contents: &[u8]) -> io::Result<()> {
        self.create()?;
        // Written under the lock, so no other process has this name; a crash may have left it.
        let new = path.with_extension("new");
        unless_missing(fs::remove_file(&new))?;
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)?;
        file.write_all(contents)?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        File::open(&self.0)?.sync_all()
    }
}

/// The certificate and the key of one file.
pub(super) fn identity(pem: &[u8]) -> Result<Identity, CertificateError> {
    Identity::new(Chain::from_pem(pem)?, PrivateKey::from_pem(pem)?)
}

fn unless_missing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use tempfile::TempDir;
    use weir_testing::certificates::Certificate;
    use weir_testing::eventually;

    use super::*;

    fn cache(folder: &TempDir) -> Cache {
        Cache(folder.path().join("acme").join("server"))
    }

    #[test]
    fn only_the_user_of_the_process_may_read_what_is_kept() {
        let folder = TempDir::new().unwrap();
        let (cache, pair) = (cache(&folder), Certificate::of("a.example.com"));
        let pem = format!("{}{}", pair.key, pair.certificate);
        assert!(cache.certificate("a.example.com").unwrap().is_none());
        // What a crash has left does not matter, nor does its mode.
        cache.create().unwrap();
        fs::write(cache.0.join("a.example.new"), "half").unwrap();
        cache.keep_certificate("a.example.com", &pem).unwrap();
        assert!(cache.certificate("a.example.com").unwrap().is_some());
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&cache.0.join("a.example.com.pem")), 0o600);
        assert_eq!(mode(&cache.0), 0o700);
        assert_eq!(mode(&folder.path().join("acme")), 0o700);
    }

    #[test]
    fn a_file_that_is_no_certificate_with_its_key_is_an_error() {
        let folder = TempDir::new().unwrap();
        let (cache, pair) = (cache(&folder), Certificate::of("a.example.com"));
        for text in ["", &pair.certificate, &pair.key] {
            cache.keep_certificate("a.example.com", text).unwrap();
            assert!(cache.certificate("a.example.com").is_err());
        }
    }

    #[test]
    fn one_at_a_time_has_the_right_to_order() {
        let folder = TempDir::new().unwrap();
        let cache = cache(&folder);
        let held = cache.try_lock().unwrap();
        assert!(held.is_some());
        assert!(cache.try_lock().unwrap().is_none());
        drop(held);
        // A process that another test starts holds the lock from its fork to its exec.
        eventually("the lock again", || cache.try_lock().unwrap());
    }
}
