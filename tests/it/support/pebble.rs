//! Pebble, the ACME server of Let's Encrypt for tests, with a DNS server to which every name is
//! this machine.

use std::fs;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::json;
use tempfile::TempDir;

use super::tls::{self, Certificate};
use super::{Response, eventually, free_port, get};

/// The id and the key of an account that Pebble can be told of.
pub(crate) const EXTERNAL_ACCOUNT: (&str, &str) = (
    "kid-1",
    "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W",
);

/// What Pebble is started with.
#[derive(Clone, Copy)]
pub(crate) struct PebbleSettings {
    /// How long certificates are valid, in seconds.
    pub(crate) validity: u32,
    /// Whether it takes only accounts that are bound to the external one.
    pub(crate) bound: bool,
}

impl Default for PebbleSettings {
    fn default() -> Self {
        Self {
            validity: 30 * 24 * 3600,
            bound: false,
        }
    }
}

/// A running Pebble, killed when it is dropped.
pub(crate) struct Pebble {
    folder: TempDir,
    certificate: Certificate,
    port: u16,
    management: u16,
    dns: u16,
    /// Where it looks at challenges: the ports that the gateway is to listen on.
    pub(crate) http: u16,
    pub(crate) tls: u16,
    processes: Vec<Child>,
}

impl Pebble {
    /// Prepares one that does not run yet.
    pub(crate) fn prepare(settings: PebbleSettings) -> Self {
        let pebble = Self {
            folder: TempDir::with_prefix("weir-pebble-").expect("a temporary folder"),
            certificate: Certificate::of("localhost"),
            port: free_port(),
            management: free_port(),
            dns: free_port(),
            http: free_port(),
            tls: free_port(),
            processes: Vec::new(),
        };
        let mut config = json!({
            "listenAddress": format!("127.0.0.1:{}", pebble.port),
            "managementListenAddress": format!("127.0.0.1:{}", pebble.management),
            "certificate": "cert.pem",
            "privateKey": "key.pem",
            "httpPort": pebble.http,
            "tlsPort": pebble.tls,
            "certificateValidityPeriod": settings.validity,
            "externalAccountBindingRequired": settings.bound,
        });
        if settings.bound {
            let (id, key) = EXTERNAL_ACCOUNT;
            config["externalAccountMACKeys"] = json!({ id: key });
        }
        let config = json!({ "pebble": config }).to_string();
        for (name, text) in [
            ("config.json", &config),
            ("cert.pem", &pebble.certificate.certificate),
            ("key.pem", &pebble.certificate.key),
        ] {
            fs::write(pebble.folder.path().join(name), text).expect("a file");
        }
        pebble
    }

    pub(crate) fn start(settings: PebbleSettings) -> Self {
        let mut pebble = Self::prepare(settings);
        pebble.run();
        pebble
    }

    /// Starts it with authorities of its own and no accounts.
    pub(crate) fn run(&mut self) {
        let dns = format!("127.0.0.1:{}", self.dns);
        let mut server = Command::new("pebble-challtestsrv");
        server.args(["-dns01", &dns, "-defaultIPv6", "", "-management", ""]);
        server.args(["-http01", "", "-https01", "", "-tlsalpn01", ""]);
        let mut pebble = Command::new("pebble");
        pebble.args(["-config", "config.json", "-strict", "-dnsserver", &dns]);
        // Each order is to see a challenge answered, at once. By itself Pebble refuses one nonce in
        // twenty, and an order is given up at the third refusal of one.
        pebble
            .env("PEBBLE_VA_NOSLEEP", "1")
            .env("PEBBLE_AUTHZREUSE", "0")
            .env("PEBBLE_WFE_NONCEREJECT", "0");
        for mut command in [server, pebble] {
            command.current_dir(self.folder.path());
            command.stdout(Stdio::null()).stderr(Stdio::null());
            let process = command.spawn().unwrap_or_else(|error| {
                panic!("{command:?} cannot be started ({error}): `apt-get install pebble`")
            });
            self.processes.push(process);
        }
        eventually("Pebble", || self.get(self.port, "/dir"));
    }

    pub(crate) fn kill(&mut self) {
        for mut process in self.processes.drain(..) {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// The keys of `acme` by which a gateway finds it.
    pub(crate) fn keys(&self) -> String {
        format!(
            "directory: \"https://localhost:{}/dir\", ca: ca.pem",
            self.port
        )
    }

    /// What `ca.pem` holds.
    pub(crate) fn ca(&self) -> &str {
        &self.certificate.certificate
    }

    /// The authority of the certificates that it signs.
    pub(crate) fn root(&self) -> CertificateDer<'static> {
        let page = self.get(self.management, "/roots/0").expect("the root");
        CertificateDer::from_pem_slice(page.text().as_bytes()).expect("a certificate")
    }

    fn get(&self, port: u16, path: &str) -> Option<Response> {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let config = self.certificate.trusted(&["http/1.1"]);
        let mut client = tls::connect(address, "localhost", &config).ok()?;
        let response = client.try_send(&get(path)).ok()?;
        Some(response).filter(|response| response.status == 200)
    }
}

impl Drop for Pebble {
    fn drop(&mut self) {
        self.kill();
    }
}
