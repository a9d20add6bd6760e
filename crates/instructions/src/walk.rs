//! Which files run for one forwarded request: callgrind over a gateway as users start it, and the
//! files of the functions that run for the request and never while the gateway idles. They are held
//! to the list of docs/WALKS.md.
//!
//! A function belongs to the file of the longest module path in its name. What is inlined has no
//! name, so the gateway has to be built without optimization. Destructors that the compiler writes
//! are nobody's.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;
use weir_testing::client::get;
use weir_testing::{Client, eventually, free_port};

use super::gateway;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The list is in this section of this page, in tables below a heading for each stage.
const PAGE: &str = "docs/WALKS.md";
const SECTION: &str = "\n## A request\n";

const WARM_UP: usize = 3;

/// Longer than the rarest work of a gateway without requests, which is done every five seconds.
const IDLE: Duration = Duration::from_secs(6);

/// A response has been logged, and its connection closed, after so long.
const SETTLED: Duration = Duration::from_millis(700);

/// What else happens at some time happens less often than for each of so many requests.
const REQUESTS: usize = 3;

/// On a machine that has little time for it, what belongs to a request may come later than
/// [`SETTLED`]. So the page is wrong only if so many walks in a row differ from it.
const ATTEMPTS: usize = 3;

/// Prints which files run for a request through this gateway, and fails if the page lists others.
pub(crate) fn check(binary: &str) -> ExitCode {
    let stages = stages();
    let listed: BTreeSet<&str> = stages
        .iter()
        .flat_map(|(_, files)| files)
        .copied()
        .collect();
    let is_as_listed = |walk: &Walk| {
        walk.files
            .keys()
            .map(String::as_str)
            .eq(listed.iter().copied())
    };
    let mut ran = Walk::of_request(&Gateway::start(binary));
    for _ in 1..ATTEMPTS {
        if !is_as_listed(&ran) {
            ran = Walk::of_request(&Gateway::start(binary));
        }
    }
    for (stage, files) in &stages {
        println!("{stage}: {}", files.len());
        for file in files {
            let missing = if ran.files.contains_key(*file) {
                ""
            } else {
                " DID NOT RUN"
            };
            println!("    {file}{missing}");
        }
    }
    let unlisted = ran
        .files
        .iter()
        .filter(|(file, _)| !listed.contains(file.as_str()));
    let unlisted: Vec<_> = unlisted.collect();
    for (file, functions) in &unlisted {
        println!("NOT LISTED: {file}");
        functions
            .iter()
            .for_each(|function| println!("    {function}"));
    }
    println!(
        "{} files run; one calls another of another crate {} times",
        ran.files.len(),
        ran.crossings
    );
    match is_as_listed(&ran) {
        true => ExitCode::SUCCESS,
        false => {
            println!("{PAGE} does not list the files that run");
            ExitCode::FAILURE
        }
    }
}

/// The stages of the page, and the files below each.
fn stages() -> Vec<(&'static str, Vec<&'static str>)> {
    let page = std::fs::read_to_string(Path::new(ROOT).join(PAGE)).unwrap();
    let (_, section) = page.leak().split_once(SECTION).unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let stages = section.split("\n### ").skip(1);
    let files = |stage: &'static str| {
        let rows = stage.lines().filter_map(|line| line.strip_prefix("| `"));
        rows.filter_map(|row| row.split('`').next()).collect()
    };
    stages
        .map(|stage| (stage.lines().next().unwrap(), files(stage)))
        .collect()
}

/// A gateway in callgrind, before an upstream.
struct Gateway {
    process: Child,
    address: SocketAddr,
    folder: TempDir,
}

impl Gateway {
    /// Starts one with a limit per address, in memory, and sends it the first requests.
    fn start(binary: &str) -> Self {
        let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let folder = tempfile::tempdir().unwrap();
        write_configuration(folder.path(), address, upstream.local_addr().unwrap());
        thread::spawn(move || {
            loop {
                gateway::upstream(&upstream, Duration::ZERO);
            }
        });
        let process = Command::new("valgrind")
            .args(["--quiet", "--tool=callgrind", "--dump-line=no"])
            .arg(format!(
                "--callgrind-out-file={}",
                folder.path().join("profile").display()
            ))
            .arg(binary)
            .arg("--config")
            .arg(folder.path().join("gateway.yaml"))
            .stdout(Stdio::null())
            .spawn();
        // From here on it is ended by `drop`, also if it never listens.
        let mut gateway = Self {
            process: process.expect("valgrind, installed"),
            address,
            folder,
        };
        eventually("a gateway that listens", || {
            let ended = gateway.process.try_wait().unwrap();
            assert!(ended.is_none(), "{binary} has ended");
            Client::try_connect(address).ok()
        });
        (0..WARM_UP).for_each(|_| gateway.serve_request());
        gateway
    }

    /// Sends a request on a connection of its own.
    fn serve_request(&self) {
        let response = Client::connect(self.address).send(&get("/"));
        assert_eq!(response.status, 200);
        thread::sleep(SETTLED);
    }

    /// What has run since the last call.
    fn profile(&self, number: usize) -> Profile {
        let pid = format!("--pid={}", self.process.id());
        let dump = Command::new("vgdb")
            .arg(pid)
            .arg("dump")
            .stderr(Stdio::null())
            .status();
        assert!(dump.expect("vgdb, a part of valgrind").success());
        let file = self.folder.path().join(format!("profile.{number}"));
        Profile::parse(&std::fs::read_to_string(file).unwrap())
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // Its number may be another's by now.
        if let Ok(Some(_)) = self.process.try_wait() {
            return;
        }
        // Valgrind removes the files by which it is controlled, if it is let.
        let pid = self.process.id().to_string();
        let _ = Command::new("kill").arg(pid).status();
        let _ = self.process.wait();
    }
}

fn write_configuration(folder: &Path, listen: SocketAddr, upstream: SocketAddr) {
    let gateway = format!(
        "listen: [{{address: '{listen}'}}]\n\
         workers: 1\n\
         upstreams: {{app: {{servers: ['http://{upstream}']}}}}\n\
         routes: [{{name: all, match: {{path: '/*'}}, upstream: app, limits: [PerAddress]}}]\n\
         limits: {{PerAddress: {{per: address, burst: 100, count: 100, period: 1m}}}}\n"
    );
    std::fs::write(folder.join("gateway.yaml"), gateway).unwrap();
}

/// The functions that ran, and which called which.
struct Profile {
    functions: BTreeSet<String>,
    calls: BTreeSet<(String, String)>,
}

impl Profile {
    /// Parses callgrind's format, in which a name is written out only where it is first used.
    fn parse(text: &str) -> Self {
        let mut names: HashMap<&str, &str> = HashMap::new();
        let (mut functions, mut calls) = (BTreeSet::new(), BTreeSet::new());
        let (mut current, mut called) = (String::new(), String::new());
        for line in text.lines() {
            if let Some(reference) = line.strip_prefix("fn=") {
                current = named(&mut names, reference);
            } else if let Some(reference) = line.strip_prefix("cfn=") {
                called = named(&mut names, reference);
            } else if line.starts_with("calls=") {
                calls.insert((current.clone(), called.clone()));
            } else if line
                .starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first))
            {
                functions.insert(current.clone());
            }
        }
        Self { functions, calls }
    }
}

/// The files of ours that run for a request.
struct Walk {
    /// With the functions that ran.
    files: BTreeMap<String, BTreeSet<String>>,
    /// The pairs of files of which one calls the other directly, and which are of two crates.
    crossings: usize,
}

impl Walk {
    fn of_request(gateway: &Gateway) -> Self {
        // What has run until here is the start.
        gateway.profile(1);
        thread::sleep(IDLE);
        let idle = gateway.profile(2);
        let profile = |number| {
            gateway.serve_request();
            gateway.profile(3 + number)
        };
        let requests: Vec<_> = (0..REQUESTS).map(profile).collect();
        let runs_always = |function: &str| {
            let mut requests = requests.iter();
            requests.all(|request| request.functions.contains(function))
        };
        let first = requests.first().unwrap();
        let own = first.functions.difference(&idle.functions);
        let own: BTreeSet<_> = own.filter(|function| runs_always(function)).collect();
        let crates = crates();
        let mut files: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for function in &own {
            if let Some((_, file)) = place(function, &crates) {
                files.entry(file).or_default().insert((*function).clone());
            }
        }
        let calls = first.calls.iter();
        let calls = calls.filter(|(from, to)| own.contains(from) && own.contains(to));
        let places =
            calls.filter_map(|(from, to)| Some((place(from, &crates)?, place(to, &crates)?)));
        let crossings: BTreeSet<_> = places.filter(|(from, to)| from.0 != to.0).collect();
        Self {
            files,
            crossings: crossings.len(),
        }
    }
}

/// The folder of each of our crates, by the crate's name in paths.
fn crates() -> HashMap<String, PathBuf> {
    let of_crate = |folder: std::fs::DirEntry| {
        let name = folder.file_name().into_string().unwrap();
        let name = format!("weir_{}", name.replace('-', "_"));
        (
            name,
            Path::new("crates").join(folder.file_name()).join("src"),
        )
    };
    let folders = std::fs::read_dir(Path::new(ROOT).join("crates")).unwrap();
    let crates = folders.map(|folder| of_crate(folder.unwrap()));
    crates
        .chain([("weir".to_owned(), PathBuf::from("src"))])
        .collect()
}

/// The crate of a function, and its file.
fn place(function: &str, crates: &HashMap<String, PathBuf>) -> Option<(String, String)> {
    let mut paths = candidates(function).into_iter().map(leading_path);
    let (folder, path) = paths.find_map(|path| {
        let first = path.split("::").next()?;
        Some((crates.get(first)?, path))
    })?;
    let parts: Vec<&str> = path.split("::").collect();
    let file = (1..=parts.len()).rev().find_map(|length| {
        let module = folder.join(parts[1..length].join("/"));
        let root = (length == 1).then(|| folder.join("lib.rs"));
        let mut files = [module.with_extension("rs"), module.join("mod.rs")]
            .into_iter()
            .chain(root);
        files.find(|file| Path::new(ROOT).join(file).is_file())
    })?;
    Some((parts[0].to_owned(), file.display().to_string()))
}

/// The paths by which a function's file may be found: its own, or the implementing type and the trait.
fn candidates(function: &str) -> Vec<&str> {
    let Some(inner) = function.strip_prefix('<') else {
        return vec![function];
    };
    let mut depth = 1;
    let end = inner.char_indices().find(|(at, character)| {
        match character {
            '<' => depth += 1,
            '>' if !inner[..*at].ends_with('-') => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    let inner = end.map_or(inner, |(at, _)| &inner[..at]);
    match inner.rsplit_once(" as ") {
        Some((implementor, of)) => vec![implementor.trim_start_matches(['&', '<']), of],
        None => vec![inner],
    }
}

/// What a path has before its generic arguments and closures.
fn leading_path(path: &str) -> &str {
    let end =
        path.find(|character: char| !(character.is_alphanumeric() || "_:".contains(character)));
    path[..end.unwrap_or(path.len())].trim_end_matches(':')
}

/// The name of `(number) name`, or that of an earlier `(number)`.
fn named<'a>(names: &mut HashMap<&'a str, &'a str>, reference: &'a str) -> String {
    let (number, name) = reference.split_once(' ').unwrap_or((reference, ""));
    match name.is_empty() {
        true => names[number].to_owned(),
        false => {
            names.insert(number, name);
            name.to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(function: &str) -> Option<String> {
        Some(place(function, &crates())?.1)
    }

    #[test]
    fn a_function_is_attributed_to_the_file_of_its_module_or_type_or_trait() {
        for (function, expected) in [
            ("weir::app::worker::run::{{closure}}", "src/app/worker.rs"),
            ("weir_http::line::push", "crates/http/src/line.rs"),
            (
                "weir_middleware::rate_limit::shed::<impl weir_middleware::rate_limit::RateLimit<S>>::shed",
                "crates/middleware/src/rate_limit/shed.rs",
            ),
            (
                "<weir_correlate::Correlate<S> as tower_service::Service<Q>>::call",
                "crates/correlate/src/lib.rs",
            ),
            (
                "<weir_limit::gcra::Gcra>::decide::<weir_store::memory::Table>",
                "crates/limit/src/gcra.rs",
            ),
            (
                "<F as weir_logging::json::Visitor>::visit",
                "crates/logging/src/json.rs",
            ),
        ] {
            assert_eq!(file(function).as_deref(), Some(expected), "{function}");
        }
    }

    #[test]
    fn a_function_of_a_library_is_never_attributed_to_what_it_is_used_for() {
        for function in [
            "core::ptr::drop_in_place<weir_proxy::error::ProxyError>",
            "<core::option::Option<weir_limit::quota::Quota> as core::clone::Clone>::clone",
            "<alloc::sync::Arc<dyn weir_store::Store>>::clone",
            "weirdly::named",
        ] {
            assert_eq!(file(function), None, "{function}");
        }
    }
}
