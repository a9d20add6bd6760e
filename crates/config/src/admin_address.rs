//! Where the admin listener is, by a file that may be in error elsewhere: the gateway goes on with
//! the configuration that it has, and whoever mends the file needs the commands that ask it.

use std::net::SocketAddr;
use std::path::Path;

use serde::Deserialize;

use weir_yaml::{Diagnostics, Document, Inputs, STANDARD_INPUT};

use super::addresses::ListenAddress;

/// The key of `gateway.yaml` under which it stands.
const KEY: &str = "admin:";

/// All of `gateway.yaml` that is read here.
#[derive(Deserialize)]
struct Gateway {
    admin: Option<Admin>,
}

#[derive(Deserialize)]
struct Admin {
    address: Option<ListenAddress>,
}

/// The address of the admin listener of the configuration at `path`, if it has one.
///
/// # Errors
/// All errors of the configuration, where it does not tell the address.
pub fn admin_address(path: &Path) -> Result<Option<SocketAddr>, Diagnostics> {
    let mut inputs = Inputs::default();
    let text = match path == Path::new(STANDARD_INPUT) {
        true => inputs.read_standard_input(),
        false => inputs.read(path),
    };
    let text = text.unwrap_or_default();
    match alone(&text).or_else(|| alone(&lines_of_key(&text))) {
        Some(address) => Ok(Some(address)),
        None => Ok(super::check(path)?.process.admin),
    }
}

/// The address in a text whose other keys may be in error.
fn alone(text: &str) -> Option<SocketAddr> {
    let mut unreported = Diagnostics::default();
    let mut document = Document::parse(0, "", text, &mut unreported);
    let gateway: Gateway = document.read(&mut unreported).ok()??;
    Some(gateway.admin?.address?.0)
}

/// The lines of the key alone, where a text as a whole is no YAML.
fn lines_of_key(text: &str) -> String {
    let mut lines = text.lines().skip_while(|line| !line.starts_with(KEY));
    let first = lines.next();
    let below =
        lines.take_while(|line| line.starts_with([' ', '\t', '#', '}']) || line.trim().is_empty());
    first
        .into_iter()
        .chain(below)
        .fold(String::new(), |text, line| text + line + "\n")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn address_in(text: &str) -> Result<Option<SocketAddr>, Diagnostics> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gateway.yaml");
        fs::write(&path, text).unwrap();
        admin_address(&path)
    }

    #[test]
    fn an_error_elsewhere_hides_no_admin_listener() {
        let admin = "admin: {address: \"127.0.0.1:9901\"}\n";
        let below = "admin:\n  # for us\n\n  address: 127.0.0.1:9901\n  dashbord: true\n";
        for admin in [admin, below] {
            for error in [
                "",
                "unknown: 1\n",
                "upstreams: [\n",
                "routes:\n  - match: {path: \"/*\"\n    upstream: app\n",
                "listen: ${ADDRESS}\n",
                "routes:\n\t- x\n",
            ] {
                for text in [format!("{admin}{error}"), format!("{error}{admin}")] {
                    let found = address_in(&text);
                    let expected = "127.0.0.1:9901".parse().unwrap();
                    assert!(
                        matches!(found, Ok(Some(found)) if found == expected),
                        "{text}"
                    );
                }
            }
        }
    }

    #[test]
    fn an_address_in_error_is_told() {
        let told = address_in("admin: {address: nine}\n")
            .unwrap_err()
            .to_string();
        assert!(told.contains("not an IP address and a port"), "{told}");
        assert!(address_in("routs: []\n").is_err());
    }

    #[test]
    fn a_configuration_without_an_admin_listener_has_none() {
        let text = "upstreams: {app: {servers: [\"http://127.0.0.1:3000\"]}}\n\
                    routes: [{match: {path: \"/*\"}, upstream: app}]\n";
        assert!(matches!(address_in(text), Ok(None)));
    }
}
