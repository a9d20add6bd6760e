//! What a gateway is configured with.

use std::fs;

use tempfile::TempDir;

use super::{Gateway, Upstream, free_port};

/// The files of a configuration. What every test needs is there already: free ports, two workers,
/// and the upstream `app`.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    basis: String,
    upstreams: String,
    top: String,
    routes: String,
    limits: String,
    overrides: String,
    files: Vec<(String, String)>,
}

impl Setup {
    /// A gateway before this upstream.
    pub(crate) fn before(upstream: &Upstream) -> Self {
        let address = upstream.address();
        Self::with_upstreams(&format!("{{app: {{servers: [\"http://{address}\"]}}}}"))
    }

    /// A gateway before these upstreams.
    pub(crate) fn with_upstreams(upstreams: &str) -> Self {
        let basis = "listen: [{address: \"127.0.0.1:0\"}]\n\
                     admin: {address: \"127.0.0.1:0\"}\n\
                     workers: 2\n\
                     watch: false\n";
        Self {
            basis: basis.to_owned(),
            upstreams: upstreams.to_owned(),
            top: String::new(),
            routes: "  - {name: all, match: {}, upstream: app}\n".to_owned(),
            limits: "{}\n".to_owned(),
            overrides: "[]\n".to_owned(),
            files: Vec::new(),
        }
    }

    /// The admin listener has these keys beside its address.
    pub(crate) fn admin(mut self, keys: &str) -> Self {
        let is_other = |line: &&str| !line.starts_with("admin: ");
        let lines: Vec<&str> = self.basis.lines().filter(is_other).collect();
        let admin = format!("admin: {{address: \"127.0.0.1:0\", {keys}}}");
        self.basis = format!("{}\n{admin}\n", lines.join("\n"));
        self
    }

    /// One more key of `gateway.yaml`.
    pub(crate) fn key(mut self, text: &str) -> Self {
        self.top.push_str(text);
        self.top.push('\n');
        self
    }

    /// Where it listens, in place of a free port of 127.0.0.1.
    pub(crate) fn listening(mut self, list: &str) -> Self {
        let usual = "listen: [{address: \"127.0.0.1:0\"}]";
        self.basis = self.basis.replace(usual, &format!("listen: {list}"));
        self
    }

    /// The listeners so far have the same ports at each start, which no other test takes in between.
    pub(crate) fn on_kept_ports(mut self) -> Self {
        let any = "127.0.0.1:0";
        while self.basis.contains(any) {
            let port = format!("127.0.0.1:{}", free_port());
            self.basis = self.basis.replacen(any, &port, 1);
        }
        self
    }

    /// Another text in place of one that every configuration has.
    pub(crate) fn basis_with(mut self, usual: &str, text: &str) -> Self {
        self.basis = self.basis.replace(usual, text);
        self
    }

    /// The gateway loads its files when they change, and not only when a test asks for it.
    pub(crate) fn watching(mut self) -> Self {
        self.basis = self.basis.replace("watch: false\n", "");
        self
    }

    /// The list of routes, an item a line.
    pub(crate) fn routes(mut self, items: &[&str]) -> Self {
        self.routes = items.iter().map(|item| format!("  - {item}\n")).collect();
        self
    }

    /// One route for everything, with these limits.
    pub(crate) fn limited_by(self, limits: &str) -> Self {
        let route = format!("{{name: all, match: {{}}, upstream: app, limits: [{limits}]}}");
        self.routes(&[&route])
    }

    /// `defaults.yaml`, a limit a line.
    pub(crate) fn limits(mut self, lines: &[&str]) -> Self {
        self.limits = lines.iter().map(|line| format!("{line}\n")).collect();
        self
    }

    /// `overrides.yaml`.
    pub(crate) fn overrides(mut self, text: &str) -> Self {
        text.clone_into(&mut self.overrides);
        self
    }

    /// One more file.
    pub(crate) fn file(mut self, name: &str, text: &str) -> Self {
        self.files.push((name.to_owned(), text.to_owned()));
        self
    }

    /// The text of `gateway.yaml`.
    pub(crate) fn gateway_yaml(&self) -> String {
        let Self {
            basis,
            upstreams,
            top,
            routes,
            ..
        } = self;
        format!("{basis}upstreams: {upstreams}\n{top}routes:\n{routes}")
    }

    /// A folder with all of it.
    pub(crate) fn written(&self) -> TempDir {
        let folder = TempDir::with_prefix("weir-it-").expect("a temporary folder");
        let write = |name: &str, text: &str| {
            fs::write(folder.path().join(name), text).expect("a file");
        };
        fs::create_dir(folder.path().join("limits")).expect("a folder");
        write("gateway.yaml", &self.gateway_yaml());
        write("limits/defaults.yaml", &self.limits);
        write("limits/overrides.yaml", &self.overrides);
        for (name, text) in &self.files {
            write(name, text);
        }
        folder
    }

    pub(crate) fn start(&self) -> Gateway {
        Gateway::start(self.written())
    }
}
