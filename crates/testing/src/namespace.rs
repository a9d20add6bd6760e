//! Tests in a network namespace of their own, where each address of some networks is this
//! machine's, and filters of sockets are allowed.

#![allow(
    clippy::print_stderr,
    reason = "who reads the output of a test has to know what it left out"
)]

use std::env;
use std::process::Command;

/// Says to a test that it runs in the namespace.
const WITHIN: &str = "WEIR_TEST_NAMESPACE";

/// Runs the test whose name has `test` in it in a namespace with these networks. There it gets them;
/// the caller outside gets nothing, and returns.
///
/// Where this machine lets nobody make a namespace, the test runs here, on networks of loopback
/// addresses alone.
pub fn with(networks: &[&str], test: &str) -> Option<Vec<String>> {
    match env::var(WITHIN) {
        Ok(networks) => Some(networks.split(' ').map(str::to_owned).collect()),
        Err(_) if is_allowed() => {
            run_within(networks, test);
            None
        }
        Err(_) => {
            eprintln!("no namespace can be made: {test} runs on loopback addresses alone");
            Some(vec!["127.64.0.0/10".to_owned()])
        }
    }
}

fn unshare() -> Command {
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--net"]);
    unshare
}

fn is_allowed() -> bool {
    unshare()
        .args(["ip", "link", "set", "lo", "up"])
        .output()
        .is_ok_and(|output| output.status.success())
}

fn run_within(networks: &[&str], test: &str) {
    let routes: String = networks
        .iter()
        .map(|network| format!("ip route add local {network} dev lo && "))
        .collect();
    let script =
        format!("ip link set lo up && {routes} exec \"$0\" --nocapture --test-threads 1 \"$1\"");
    let output = unshare()
        .args(["sh", "-c", &script])
        .arg(env::current_exe().unwrap())
        .arg(test)
        .env(WITHIN, networks.join(" "))
        .output()
        .expect("apt-get install util-linux iproute2");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success() && out.contains("1 passed"),
        "{out}\n{err}"
    );
}
