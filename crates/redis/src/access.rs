//! How to log in to servers, and which servers to trust.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, fs, io};

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};

use super::endpoint::RedisUrlError;
use super::login::Login;

/// Who to log in as.
///
/// Shown for debugging, it leaves out the password.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RedisLogin {
    /// The user; the default user without one.
    pub username: Option<LoginPart>,
    /// The password, if there is one.
    pub password: Option<LoginPart>,
}

/// A user name or a password.
#[derive(Clone, PartialEq, Eq)]
pub enum LoginPart {
    /// The text itself.
    Text(String),
    /// The file that holds it, which is read for each connection.
    File(PathBuf),
}

impl LoginPart {
    fn read(&self, what: &str) -> io::Result<String> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(path) => read_line(what, path),
        }
    }
}

impl RedisLogin {
    /// The same, where this says nothing, as `other`.
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            username: self.username.or(other.username),
            password: self.password.or(other.password),
        }
    }
}

impl fmt::Debug for RedisLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let username = self.username.as_ref().map(|username| match username {
            LoginPart::Text(text) => text.clone(),
            LoginPart::File(path) => path.display().to_string(),
        });
        f.debug_struct("RedisLogin")
            .field("username", &username)
            .field("password", &self.password.as_ref().map(|_| "***"))
            .finish()
    }
}

/// The credentials for all servers of a store, and the certificates that these must show.
#[derive(Clone)]
pub(super) struct Access {
    pub(super) login: RedisLogin,
    pub(super) database: i64,
    pub(super) tls: Option<Trust>,
}

#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Trust {
    pub(super) authorities: Authorities,
    /// The name that certificates state in place of the address that was connected to.
    pub(super) name: Option<ServerName<'static>>,
}

#[derive(Clone, Default)]
pub(super) enum Authorities {
    #[default]
    Public,
    Given(Arc<RootCertStore>),
    /// The text of a file, which may change while the gateway runs.
    File(PathBuf),
}

impl PartialEq for Authorities {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Public, Self::Public) => true,
            (Self::Given(one), Self::Given(other)) => Arc::ptr_eq(one, other),
            (Self::File(one), Self::File(other)) => one == other,
            _ => false,
        }
    }
}

impl Eq for Authorities {}

impl Access {
    /// How to log in now. It may read files.
    pub(super) fn read_login(&self) -> io::Result<Login> {
        let RedisLogin { username, password } = &self.login;
        let read = |part: &Option<LoginPart>, what| {
            let part = part.as_ref().map(|part| part.read(what));
            part.transpose()
        };
        Ok(Login {
            username: read(username, "user name")?,
            password: read(password, "password")?,
            database: self.database,
        })
    }

    /// The authorities to trust now. It may read a file.
    pub(super) fn read_authorities(&self) -> io::Result<Arc<RootCertStore>> {
        match self.tls.as_ref().map(|tls| &tls.authorities) {
            Some(Authorities::File(path)) => {
                let found = authorities(read_file("CA", path)?.as_bytes());
                found.map(Arc::new).map_err(io::Error::other)
            }
            Some(Authorities::Given(given)) => Ok(Arc::clone(given)),
            Some(Authorities::Public) | None => Ok(Arc::new(
                webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect(),
            )),
        }
    }

    /// The name that the certificate of a server at this host must state.
    pub(super) fn server_name(&self, host: &str) -> io::Result<ServerName<'static>> {
        let name = self.tls.as_ref().and_then(|tls| tls.name.clone());
        name.map_or_else(
            || ServerName::try_from(host.to_owned()).map_err(io::Error::other),
            Ok,
        )
    }
}

/// The text of a file without the line end that editors put after it.
fn read_line(what: &str, path: &Path) -> io::Result<String> {
    match read_file(what, path)?.trim_end_matches(['\r', '\n']) {
        "" => Err(io::Error::other(format!(
            "the {what} file {} is empty",
            path.display()
        ))),
        line => Ok(line.to_owned()),
    }
}

fn read_file(what: &str, path: &Path) -> io::Result<String> {
    let read = || match fs::metadata(path)?.is_file() {
        true => fs::read_to_string(path),
        false => Err(io::Error::other("not a regular file")),
    };
    read().map_err(|error| {
        let why = format!("the {what} file {} cannot be read: {error}", path.display());
        io::Error::new(error.kind(), why)
    })
}

/// The certificates of a PEM file, of which there must be one at least.
pub(super) fn authorities(pem: &[u8]) -> Result<RootCertStore, RedisUrlError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| unusable_ca(&error))?;
        roots
            .add(certificate)
            .map_err(|error| unusable_ca(&error))?;
    }
    if roots.is_empty() {
        return Err(unusable_ca(&"the file holds no PEM certificate"));
    }
    Ok(roots)
}

pub(super) fn unusable_ca(error: &dyn fmt::Display) -> RedisUrlError {
    RedisUrlError::Ca(error.to_string())
}
