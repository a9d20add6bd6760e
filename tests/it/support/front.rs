//! Proxies of others: those that ask Weir about each request and forward it themselves (nginx, Caddy
//! and Envoy, configured by the files in `deploy/examples`), and those that limit by themselves.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use weir_testing::{eventually, free_port};

use super::{Client, Request, Response};

/// Where the files say that Weir decides, and where the app is.
const WEIR: &str = "127.0.0.1:9000";
const APP: &str = "127.0.0.1:3000";

/// What nginx needs to run as any user, in a folder of its own.
pub(crate) const NGINX: &str = "user root;
daemon off;
pid nginx.pid;
error_log stderr;
worker_processes 2;
events {}
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    include app.conf;
}
";

/// What keeps Caddy from ports and folders that others use.
const CADDY: &str = "{
	admin off
	persist_config off
	auto_https off
	default_bind 127.0.0.1
	log {
		level ERROR
	}
}
";

/// A running proxy, killed when it is dropped.
pub(crate) struct Front {
    process: Child,
    address: SocketAddr,
    _folder: TempDir,
}

impl Front {
    /// nginx in front of this app, which asks Weir at this address.
    pub(crate) fn nginx(weir: SocketAddr, app: SocketAddr) -> Self {
        Self::nginx_with(weir, app, str::to_owned)
    }

    /// The same with another text of its file.
    pub(crate) fn nginx_with(
        weir: SocketAddr,
        app: SocketAddr,
        edit: impl FnOnce(&str) -> String,
    ) -> Self {
        Self::nginx_serving(&edit(&example("nginx/app.conf", weir, app)))
    }

    /// nginx with this text in its block `http`, in which it listens on port 80.
    pub(crate) fn nginx_serving(text: &str) -> Self {
        let port = free_port();
        let text = listening_at(text, port);
        Self::nginx_in(&[("nginx.conf", NGINX), ("app.conf", &text)], port)
    }

    /// nginx as Debian sets it up, where the file for it has been copied to `conf.d`; none where it is
    /// not set up so. `default_site` is its site that greets.
    pub(crate) fn nginx_of_debian(
        weir: SocketAddr,
        app: SocketAddr,
        default_site: bool,
    ) -> Option<Self> {
        let set_up = existing("/etc/nginx/sites-available/default".into());
        let set_up = tested("nginx as Debian sets it up", set_up)?;
        let (port, folder) = (free_port(), TempDir::with_prefix("weir-nginx-").unwrap());
        let own = folder.path().display().to_string();
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let temporary = temporary.map(|kind| format!("{kind}_temp_path {own}/{kind};\n"));
        // The same with folders of its own, by any user.
        let main = fs::read_to_string("/etc/nginx/nginx.conf")
            .expect("a file")
            .replace("user www-data;", "user root;")
            .replace("http {\n", &format!("http {{\n{}", temporary.concat()))
            .replace("/run/nginx.pid", &format!("{own}/nginx.pid"))
            .replace("/var/log/nginx", &own)
            .replace("/etc/nginx/conf.d", &format!("{own}/conf.d"))
            .replace("/etc/nginx/sites-enabled", &format!("{own}/sites-enabled"));
        fs::create_dir(folder.path().join("conf.d")).expect("a folder");
        fs::create_dir(folder.path().join("sites-enabled")).expect("a folder");
        let recipe = listening_at(&example("nginx/app.conf", weir, app), port);
        let mut files = vec![("nginx.conf", main), ("conf.d/app.conf", recipe)];
        if default_site {
            let site = fs::read_to_string(set_up).expect("a file");
            files.push(("sites-enabled/default", listening_at(&site, port)));
        }
        let files: Vec<_> = files
            .iter()
            .map(|(name, text)| (*name, text.as_str()))
            .collect();
        let mut command = Command::new(nginx());
        command.args(["-e", "stderr", "-g", "daemon off;"]);
        command.args(["-c", &format!("{own}/nginx.conf")]);
        Some(Self::launch_with(command, folder, &files, port))
    }

    /// nginx with these files, of which the first includes the others.
    pub(crate) fn nginx_in(files: &[(&str, &str)], port: u16) -> Self {
        let folder = TempDir::with_prefix("weir-nginx-").expect("a temporary folder");
        let mut command = Command::new(nginx());
        let prefix = folder.path().display().to_string();
        command.args(["-e", "stderr", "-p", &prefix, "-c", "nginx.conf"]);
        Self::launch_with(command, folder, files, port)
    }

    /// HAProxy with this file, in which it listens on port 80.
    pub(crate) fn haproxy(text: &str) -> Option<Self> {
        let program = installed("haproxy").or_else(|| existing("/usr/sbin/haproxy".into()));
        let program = tested("the limits of HAProxy", program)?;
        let port = free_port();
        let text = text.replace("bind :80\n", &format!("bind 127.0.0.1:{port}\n"));
        let mut command = Command::new(program);
        command.args(["-db", "-f", "haproxy.cfg"]);
        let folder = TempDir::with_prefix("weir-haproxy-").expect("a temporary folder");
        let files = [("haproxy.cfg", text.as_str())];
        Some(Self::launch_with(command, folder, &files, port))
    }

    /// Envoy with this file, in which it listens on port 80.
    pub(crate) fn envoy_with(text: &str) -> Option<Self> {
        let program = tested("the limits of Envoy", tool("envoy"))?;
        let port = free_port();
        let text = text.replace("port_value: 80}", &format!("port_value: {port}}}"));
        let mut command = Command::new(program);
        command.args(["-c", "envoy.yaml", "--concurrency", "2", "-l", "error"]);
        command.args(["--use-dynamic-base-id"]);
        let folder = TempDir::with_prefix("weir-envoy-").expect("a temporary folder");
        let files = [("envoy.yaml", text.as_str())];
        Some(Self::launch_with(command, folder, &files, port))
    }

    /// Node.js with this module, which listens on port 80, and with the packages that
    /// `tests/run.sh` installs.
    pub(crate) fn node(text: &str) -> Option<Self> {
        let packages = built_tools().join("node_modules");
        let is_there = packages.join("express-rate-limit").is_dir();
        let program = installed("node").filter(|_| is_there);
        let program = tested("the limits of express-rate-limit", program)?;
        let port = free_port();
        let text = text.replace("listen(80", &format!("listen({port}"));
        let mut command = Command::new(program);
        command.arg("server.mjs");
        let folder = TempDir::with_prefix("weir-node-").expect("a temporary folder");
        symlink(packages, folder.path().join("node_modules")).expect("a link");
        let files = [("server.mjs", text.as_str())];
        Some(Self::launch_with(command, folder, &files, port))
    }

    /// The same with Caddy; none where it is not installed.
    pub(crate) fn caddy(weir: SocketAddr, app: SocketAddr) -> Option<Self> {
        Self::caddy_with(weir, app, str::to_owned)
    }

    /// The same with another text of its file.
    pub(crate) fn caddy_with(
        weir: SocketAddr,
        app: SocketAddr,
        edit: impl FnOnce(&str) -> String,
    ) -> Option<Self> {
        let program = tested("decisions for Caddy", tool("caddy"))?;
        let port = free_port();
        let folder = TempDir::with_prefix("weir-caddy-").expect("a temporary folder");
        let site = format!(":{port} {{");
        let text = edit(&read_example("caddy/Caddyfile"));
        let text = at_addresses(&text, weir, app).replace(":80 {", &site);
        fs::write(folder.path().join("Caddyfile"), format!("{CADDY}{text}")).expect("a file");
        let mut command = Command::new(program);
        command.args(["run", "--adapter", "caddyfile", "--config", "Caddyfile"]);
        command.env("HOME", folder.path());
        Some(Self::launch(command, folder, port))
    }

    /// The same with Envoy.
    pub(crate) fn envoy(weir: SocketAddr, app: SocketAddr) -> Option<Self> {
        let (weir, app) = (addressed(weir), addressed(app));
        let text = read_example("envoy/envoy.yaml")
            .replace(
                "address: 0.0.0.0, port_value",
                "address: 127.0.0.1, port_value",
            )
            .replace("address: 127.0.0.1, port_value: 9000}", &weir)
            .replace("address: 127.0.0.1, port_value: 3000}", &app)
            // No machine is so slow that a decision is not waited for.
            .replace("timeout: 0.25s", "timeout: 60s");
        Self::envoy_with(&text)
    }

    fn launch_with(command: Command, folder: TempDir, files: &[(&str, &str)], port: u16) -> Self {
        for (name, text) in files {
            fs::write(folder.path().join(name), text).expect("a file");
        }
        Self::launch(command, folder, port)
    }

    fn launch(mut command: Command, folder: TempDir, port: u16) -> Self {
        let mut process = command
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("the proxy");
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        eventually("a proxy that has started", || {
            if let Some(status) = process.try_wait().unwrap() {
                panic!("the proxy ended at once: {status}");
            }
            TcpStream::connect(address).ok()
        });
        Self {
            process,
            address,
            _folder: folder,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends a request by a connection of its own.
    pub(crate) fn send(&self, request: &Request) -> Response {
        Client::connect(self.address).send(request)
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        // nginx ends its workers with it only if it is asked to end.
        let pid = self.process.id().to_string();
        let _ = Command::new("kill").args(["-s", "TERM", &pid]).status();
        let until = Instant::now() + Duration::from_secs(30);
        while matches!(self.process.try_wait(), Ok(None)) && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A site of nginx that listens at this port of the loopback alone, and not on port 80.
fn listening_at(site: &str, port: u16) -> String {
    let lines = site.lines().filter(|line| !line.contains("listen [::]:80"));
    let site = lines.collect::<Vec<_>>().join("\n");
    site.replace("listen 80", &format!("listen 127.0.0.1:{port}"))
}

/// A file of `deploy/examples` with these addresses.
fn example(file: &str, weir: SocketAddr, app: SocketAddr) -> String {
    at_addresses(&read_example(file), weir, app)
}

fn at_addresses(text: &str, weir: SocketAddr, app: SocketAddr) -> String {
    assert!(text.contains(WEIR) && text.contains(APP), "{text}");
    text.replace(WEIR, &weir.to_string())
        .replace(APP, &app.to_string())
}

/// An address as Envoy's files have it.
fn addressed(address: SocketAddr) -> String {
    let (ip, port) = (address.ip(), address.port());
    format!("address: {ip}, port_value: {port}}}")
}

/// The text of a file of `deploy/examples`.
pub(crate) fn read_example(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/examples");
    fs::read_to_string(folder.join(file)).expect("an example")
}

/// The blocks of docs/INTEGRATIONS.md in this language, which is a proxy's.
pub(crate) fn documented_for(proxy: &str) -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/INTEGRATIONS.md");
    let page = fs::read_to_string(page).expect("the page");
    let fence = format!("```{proxy}\n");
    let blocks = page.split(&fence).skip(1);
    let blocks = blocks.map(|block| block.split("```").next().unwrap_or_default());
    blocks.map(str::to_owned).collect()
}

/// Debian has it in a folder that is in the path of root alone.
fn nginx() -> PathBuf {
    let found = installed("nginx").or_else(|| existing("/usr/sbin/nginx".into()));
    found.expect("tests need the Debian package `nginx-light`")
}

/// `tests/run.sh` installs it below the folder of what is built.
fn tool(name: &str) -> Option<PathBuf> {
    installed(name).or_else(|| existing(built_tools().join("bin").join(name)))
}

fn built_tools() -> PathBuf {
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    built.expect("the folder of what is built").join("tools")
}

/// The program that a test needs; one that is not installed is said to be missing.
fn tested(what: &str, program: Option<PathBuf>) -> Option<PathBuf> {
    if program.is_none() {
        eprintln!("NOT TESTED: {what}, as a program for it is not installed");
    }
    program
}

fn installed(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).find_map(|folder| existing(folder.join(program)))
}

fn existing(path: PathBuf) -> Option<PathBuf> {
    path.is_file().then_some(path)
}
