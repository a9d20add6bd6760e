//! The command line, and the configuration that is checked in.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use tempfile::TempDir;

use crate::support::gateway::WEIR;
use crate::support::page::blocks;
use crate::support::*;

fn weir(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(WEIR);
    command.current_dir(folder).args(arguments);
    command.output().expect("the weir binary")
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn check_has_nothing_to_complain_about_in_what_is_checked_in() {
    let output = weir(root(), &["check"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(
        stdout(&output),
        "gateway.yaml: 3 routes, 1 upstream, 4 limits in use with 3 overridden ids, \
         the memory store; configuration OK\n\
         route invite: some clients get decoys, so none gets headers in which the app counts, such \
         as X-RateLimit-Remaining\n"
    );
    assert_eq!(stderr(&output), "");
}

#[test]
fn check_tells_every_error_with_its_place_and_ends_with_2() {
    let folder = Setup::with_upstreams("{app: {servers: [\"ftp://x\"]}}")
        .limits(&["L: {per: adress, burst: 1, count: 1, period: 1h}"])
        .overrides("- L: {burst: 1, count: 1, period: 1h, ids: [1.2.3.4], idz: 1}")
        .routes(&["{match: {}, upstream: ap, limits: [M]}"])
        .key("lisen: []")
        .written();
    let output = weir(folder.path(), &["check"]);
    assert_eq!(output.status.code(), Some(2));
    let told = format!("{}{}", stdout(&output), stderr(&output));
    for part in [
        "gateway.yaml:",
        "limits/defaults.yaml:1",
        "limits/overrides.yaml:1",
        "lisen",
        "listen",
        "adress",
        "address",
        "idz",
        "ftp://x",
    ] {
        assert!(told.contains(part), "{part} in {told}");
    }
    let served = weir(folder.path(), &[]);
    assert_eq!(
        served.status.code(),
        Some(2),
        "a bad configuration is not served"
    );
    assert!(stderr(&served).contains("lisen"));
}

#[test]
fn a_missing_file_or_an_unknown_command_ends_with_2() {
    let folder = TempDir::new().unwrap();
    for arguments in [
        &["check"][..],
        &["run"],
        &["--config", "other.yaml"],
        &["frobnicate"],
        &["explain", "--ip", "nobody"],
    ] {
        let output = weir(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!stderr(&output).is_empty(), "{arguments:?}");
    }
    let version = weir(folder.path(), &["--version"]);
    assert_eq!(version.status.code(), Some(0));
}

#[test]
fn a_port_that_is_taken_ends_with_1_and_says_why() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let upstream = Upstream::start();
    let folder = Setup::before(&upstream).written();
    let file = folder.path().join("gateway.yaml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replacen("127.0.0.1:0", &address, 1)).unwrap();
    for (arguments, expected) in [
        (
            &[][..],
            "another process listens there: if it is a gateway of yours, `weir run --takeover` takes \
             its place; otherwise write another port under `listen`",
        ),
        // It told those to take over who had done so.
        (
            &["run", "--takeover"],
            "no gateway of this user serves {address}, whose place `--takeover` would take: write \
             another port under `listen`",
        ),
    ] {
        let output = weir(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(1));
        let (told, expected) = (stderr(&output), expected.replace("{address}", &address));
        assert!(told.contains(&expected), "{told}");
        assert!(told.contains("(`ss -ltnp` says who listens)"), "{told}");
    }
    // The address of the admin API is another key's.
    let admin = format!("admin: {{address: \"{address}\"}}");
    let lines = text.lines().map(|line| match line.starts_with("admin") {
        true => admin.as_str(),
        false => line,
    });
    fs::write(&file, lines.collect::<Vec<_>>().join("\n")).unwrap();
    let output = weir(folder.path(), &[]);
    let told = stderr(&output);
    let expected = "another process listens there: write another port under `admin`";
    assert!(told.contains(expected), "{told}");
}

#[test]
fn explain_says_which_route_limits_and_buckets_a_request_has() {
    let output = weir(
        root(),
        &[
            "explain",
            "--method",
            "POST",
            "--path",
            "/teams/red/invites",
            "--ip",
            "192.0.2.17",
            "--header",
            "x-api-key:acme",
        ],
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let told = stdout(&output);
    for part in [
        "POST /teams/red/invites from 192.0.2.17",
        "route: invite",
        "captures team = red",
        "goes to upstream demo (the demo upstream)",
        "InvitesPerAddress:192.0.2.17",
        "InvitesPerAccount:",
        "contract of 2026",
        "shadow ban: decoy invite-sent (200 OK), nothing is forwarded",
    ] {
        assert!(told.contains(part), "{part} in {told}");
    }
    assert!(
        !told.contains("InvitesPerAccount:acme"),
        "a bucket has a hash: {told}"
    );
}

/// The configuration that is checked in, on ports that are free.
fn checked_in() -> TempDir {
    let folder = TempDir::with_prefix("weir-it-").unwrap();
    fs::create_dir(folder.path().join("limits")).unwrap();
    for file in [
        "gateway.yaml",
        "limits/defaults.yaml",
        "limits/overrides.yaml",
    ] {
        let text = fs::read_to_string(root().join(file)).unwrap();
        let text = text
            .replace("127.0.0.1:8080\n", "127.0.0.1:0\n")
            .replace("127.0.0.1:9901", "\"127.0.0.1:0\"");
        fs::write(folder.path().join(file), text).unwrap();
    }
    folder
}

#[test]
fn what_is_checked_in_does_what_its_comments_say() {
    let gateway = Gateway::start(checked_in());
    // The demo upstream shows the request as it receives it.
    let response = gateway.send(&get("/hello?a=b"));
    assert_eq!(response.status, 200);
    assert!(
        response
            .field("ratelimit")
            .unwrap()
            .starts_with("\"RequestsPerAddress\";r=19;t=")
    );
    assert_eq!(
        response.lines("ratelimit-policy"),
        ["\"RequestsPerAddress\";q=20;w=12"]
    );
    let echo = response.json();
    assert_eq!(
        (&echo["path"], &echo["query"]),
        (&"/hello".into(), &"a=b".into())
    );
    let forwarded = serde_json::json!(["x-forwarded-for", "127.0.0.1"]);
    assert!(echo["headers"].as_array().unwrap().contains(&forwarded));

    // The sixth login at once is refused.
    let login = request("POST", "/login");
    assert_eq!(gateway.statuses(&login, 6), [200, 200, 200, 200, 200, 429]);

    // The fourth invitation gets the decoy, which looks like one of the upstream's.
    let mut client = gateway.client();
    let invite = request("POST", "/teams/red/invites");
    let real: Vec<_> = (0..3).map(|_| client.send(&invite)).collect();
    let decoy = client.send(&invite);
    assert!(real.iter().all(|it| it.json()["method"] == "POST"));
    assert_eq!(decoy.json()["team"], "red");
    assert_eq!(decoy.json()["status"], "sent");
    assert_eq!(
        (decoy.status, decoy.names()),
        (real[2].status, real[2].names())
    );
    assert_eq!(decoy.field("server"), real[2].field("server"));
    assert_eq!(decoy.field("ratelimit"), None);
    assert_eq!(gateway.admin(&get("/readyz")).status, 200);
}

#[test]
fn a_name_given_by_config_is_read_from_elsewhere_with_paths_relative_to_it() {
    let folder = checked_in();
    let path = folder.path().join("gateway.yaml");
    let output = weir(root(), &["check", "--config", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

/// With the system's allocator, a request among many connections costs a quarter more.
#[cfg(feature = "jemalloc")]
#[test]
fn the_command_allocates_by_jemalloc() {
    let mut command = Command::new(WEIR);
    command.arg("--version");
    command.env("_RJEM_MALLOC_CONF", "stats_print:true");
    let output = command.output().expect("the weir binary");
    assert!(stderr(&output).contains("jemalloc statistics"));
}

/// What a command prints that asks a gateway, and how it ends.
fn asked(gateway: &Gateway, arguments: &[&str]) -> (Option<i32>, String) {
    let admin = gateway.admin_address().to_string();
    let arguments: Vec<&str> = arguments
        .iter()
        .copied()
        .chain(["--admin", &admin])
        .collect();
    let output = weir(gateway.folder(), &arguments);
    (
        output.status.code(),
        format!("{}{}", stdout(&output), stderr(&output)),
    )
}

/// A gateway whose limit "L" has passed two requests of this machine and denied a third.
fn with_a_denied_client(upstream: &Upstream) -> Gateway {
    let gateway = Setup::before(upstream)
        .limits(&["L: {per: address, burst: 2, count: 1, period: 1000h}"])
        .limited_by("L")
        .start();
    assert_eq!(gateway.statuses(&get("/"), 3), [200, 200, 429]);
    gateway
}

#[test]
fn commands_show_and_change_what_a_gateway_counts() {
    let upstream = Upstream::start();
    until_left(MINUTE, HOUR);
    let gateway = with_a_denied_client(&upstream);
    let (code, top) = asked(&gateway, &["top", "--sort", "denied", "--period", "hour"]);
    assert_eq!(code, Some(0), "{top}");
    // What needs attention stands above it.
    let table = top.split("\n\n").last().unwrap();
    let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    // The rate is over the time since the start, which is another each time.
    let [limit, subject, requests, denied, _rate, used] = row[..] else {
        panic!("{table}");
    };
    assert_eq!(
        [limit, subject, requests, denied, used],
        ["L", "127.0.0.1", "3", "1", "100%"]
    );
    let (_, json) = asked(&gateway, &["top", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["subjects"][0]["subject"], "127.0.0.1");

    let (_, shown) = asked(&gateway, &["bucket", "get", "L", "127.0.0.1"]);
    assert!(shown.contains("remaining: 0\n"), "{shown}");
    let (_, refunded) = asked(&gateway, &["bucket", "refund", "L", "127.0.0.1"]);
    assert!(refunded.contains("remaining: 1\n"), "{refunded}");
    let (_, reset) = asked(&gateway, &["bucket", "reset", "L", "127.0.0.1"]);
    assert!(reset.contains("remaining: 2\n"), "{reset}");

    let (code, refused) = asked(&gateway, &["bucket", "get", "M", "127.0.0.1"]);
    assert_eq!(code, Some(1));
    assert!(refused.contains("No route uses a limit \"M\""), "{refused}");
    let (_, refused) = asked(&gateway, &["ban", "add", "abusers", "192.0.2.1"]);
    assert!(refused.contains("`bans: {abusers: {"), "{refused}");
}

/// A command on a terminal of its own.
struct OnTerminal {
    script: Child,
    keys: ChildStdin,
    shown: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl OnTerminal {
    fn start(folder: &Path, arguments: &str) -> Self {
        Self::start_command(folder, &format!("{WEIR} {arguments}"))
    }

    fn start_command(folder: &Path, command: &str) -> Self {
        let command = format!("stty cols 120 rows 20; echo pid:$$.; exec {command}");
        let mut script = Command::new("script")
            .current_dir(folder)
            .args(["-qefc", &command, "/dev/null"])
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script, of util-linux");
        let shown = Arc::<Mutex<Vec<u8>>>::default();
        let mut output = script.stdout.take().unwrap();
        let for_thread = Arc::clone(&shown);
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = output.read(&mut bytes) {
                for_thread.lock().unwrap().extend(&bytes[..read]);
            }
        });
        let keys = script.stdin.take().unwrap();
        Self {
            script,
            keys,
            shown,
            reader,
        }
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    fn shows(&self, text: &str) {
        eventually(text, || self.shown().contains(text).then_some(()));
    }

    fn pid(&self) -> String {
        let shown = self.shown();
        let pid = shown.split("pid:").nth(1).unwrap();
        pid.split('.').next().unwrap().to_owned()
    }

    /// Waits for the end, and until all that was shown has been read.
    fn ended(&mut self) -> ExitStatus {
        let ended = eventually("the end", || self.script.try_wait().unwrap());
        eventually("all that was shown", || {
            self.reader.is_finished().then_some(())
        });
        ended
    }

    /// Waits for the end, at which the terminal has to be as it was.
    fn ends_well(mut self) {
        let ended = self.ended();
        let shown = self.shown();
        assert!(ended.success(), "{ended}: {shown}");
        assert!(shown.contains("\x1b[?1049l"), "{shown}");
    }
}

#[test]
fn the_subjects_on_a_terminal_are_live_and_the_terminal_is_restored() {
    let upstream = Upstream::start();
    let mut gateway = Setup::before(&upstream)
        .limits(&["L: {per: address, burst: 2, count: 1, period: 1000h}"])
        .limited_by("L")
        .start();
    let arguments = format!("top --admin {}", gateway.admin_address());
    let mut by_key = OnTerminal::start(gateway.folder(), &arguments);
    let by_signal = OnTerminal::start(gateway.folder(), &arguments);
    by_key.shows("last minute, all limits");
    by_signal.shows("last minute, all limits");
    assert!(by_key.shown().contains("\x1b[?1049h"), "{}", by_key.shown());
    assert_eq!(gateway.statuses(&get("/"), 3), [200, 200, 429]);
    by_key.shows("127.0.0.1");
    by_key.keys.write_all(b"d").unwrap();
    // Of what is drawn again, only what has changed is sent.
    by_key.shows("d, last minute");
    gateway.signal("TERM");
    gateway.ended();
    by_key.shows("no gateway answers");
    by_key.keys.write_all(b"q").unwrap();
    by_key.ends_well();
    let pid = by_signal.pid();
    let killed = Command::new("kill").args(["-TERM", &pid]).status();
    assert!(killed.unwrap().success());
    by_signal.ends_well();
}

#[test]
fn a_command_that_finds_no_gateway_says_where_it_looked() {
    let upstream = Upstream::start();
    let folder = Setup::before(&upstream).written();
    // Nothing listens at the first port.
    let output = weir(folder.path(), &["top", "--admin", "127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(1));
    let told = stderr(&output);
    assert!(
        told.starts_with("no gateway answers at 127.0.0.1:1: "),
        "{told}"
    );
    let output = weir(
        folder.path(),
        &["top", "--token-file", "no.token", "--admin", "127.0.0.1:1"],
    );
    assert!(
        stderr(&output).starts_with("no.token: "),
        "{}",
        stderr(&output)
    );
}

/// A gateway that is started from what `weir init` wrote, with the questions answered on a terminal.
#[test]
fn three_answers_on_a_terminal_are_a_gateway_that_limits_an_app() {
    let upstream = Upstream::start();
    let folder = TempDir::with_prefix("weir-it-").unwrap();
    let mut terminal = OnTerminal::start(folder.path(), "init --listen 127.0.0.1:0");
    terminal.shows("Where is the app?");
    let app = format!("http://{}\n", upstream.address());
    terminal.keys.write_all(app.as_bytes()).unwrap();
    terminal.shows("How many requests");
    terminal.keys.write_all(b"2/1h\n").unwrap();
    terminal.shows("Which Redis");
    terminal.keys.write_all(b"\n").unwrap();
    let ended = terminal.ended();
    assert!(ended.success(), "{}", terminal.shown());
    assert!(
        terminal.shown().contains("configuration OK"),
        "{}",
        terminal.shown()
    );

    let path = folder.path().join("gateway.yaml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("127.0.0.1:9901", "127.0.0.1:0")).unwrap();
    let gateway = Gateway::start(folder);
    assert_eq!(gateway.statuses(&get("/"), 3), [200, 200, 429]);
}

/// In a bad hour there was nothing to ban with, and nothing to look at.
#[test]
fn what_init_writes_bans_by_hand_at_once_and_has_a_dashboard() {
    let upstream = Upstream::start();
    let folder = TempDir::with_prefix("weir-it-").unwrap();
    let app = format!("http://{}", upstream.address());
    let output = weir(
        folder.path(),
        &[
            "init",
            "--upstream",
            &app,
            "--limit",
            "100/1000h",
            "--listen",
            "127.0.0.1:0",
        ],
    );
    assert!(output.status.success(), "{}", stderr(&output));
    let path = folder.path().join("gateway.yaml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("127.0.0.1:9901", "127.0.0.1:0")).unwrap();
    let gateway = Gateway::start(folder);
    let admin = gateway.admin_address().to_string();
    let told = gateway.tells("try: curl");
    let first: Vec<&str> = told.lines().take(2).collect();
    assert!(first[0].starts_with("weir listens on "), "{told}");
    assert_eq!(first[1], format!("dashboard: http://{admin}/"));
    assert!(
        told.contains("abusers: by hand (`weir ban add abusers ...`), per address/64"),
        "{told}"
    );
    let page = gateway.admin(&get("/"));
    assert_eq!(
        (page.status, page.field("content-type")),
        (200, Some("text/html; charset=utf-8"))
    );
    assert_eq!(gateway.send(&get("/")).status, 200);
    let ban = |arguments: &[&str]| {
        let all = [&["ban"], arguments, &["--admin", &admin]].concat();
        let output = weir(gateway.folder(), &all);
        assert!(output.status.success(), "{}", stderr(&output));
    };
    ban(&["add", "abusers", "127.0.0.1"]);
    assert_eq!(gateway.send(&get("/")).status, 429);
    ban(&["lift", "abusers", "127.0.0.1"]);
    assert_eq!(gateway.send(&get("/")).status, 200);
    // Whatever a client does, it is banned by hand alone.
    assert_eq!(gateway.statuses(&get("/"), 25).last(), Some(&429));
    let listed = weir(gateway.folder(), &["ban", "list", "--admin", &admin]);
    assert!(
        !stdout(&listed).contains("127.0.0.1"),
        "{}",
        stdout(&listed)
    );
}

/// As every page has it, with a line below that the question would take.
#[test]
fn no_line_of_a_pasted_block_is_taken_for_an_answer_to_a_question_of_init() {
    let pages = ["README.md", "docs/INSTALL.md", "docs/TUTORIAL.md"];
    let blocks = pages.into_iter().flat_map(blocks);
    let lines: Vec<String> = blocks
        .flat_map(|block| block.text.lines().map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|line| {
            let command = line.strip_prefix("$ ").unwrap_or(&line);
            Some(command.strip_prefix("weir init --")?.to_owned())
        })
        .collect();
    assert!(lines.len() >= 3, "{lines:?}");
    for options in lines {
        let folder = TempDir::with_prefix("weir-it-").unwrap();
        let mut terminal = OnTerminal::start_command(folder.path(), "bash --norc");
        let pasted = format!("{WEIR} init --{options}\n{WEIR} check\nexit 7\n");
        terminal.keys.write_all(pasted.as_bytes()).unwrap();
        let ended = terminal.ended();
        let shown = terminal.shown();
        assert_eq!(ended.code(), Some(7), "{options}: {shown}");
        assert_eq!(
            shown.matches("configuration OK").count(),
            2,
            "{options}: {shown}"
        );
    }
}

#[test]
fn a_typo_in_the_file_of_a_gateway_that_runs_takes_no_command_away() {
    let upstream = Upstream::start();
    let gateway = with_a_denied_client(&upstream);
    let path = gateway.folder().join("gateway.yaml");
    let text = fs::read_to_string(&path).unwrap();
    let admin = gateway.admin_address().to_string();
    let text = text.replacen(
        "admin: {address: \"127.0.0.1:0\"",
        &format!("admin: {{address: \"{admin}\""),
        1,
    );
    assert!(text.contains(&admin), "{text}");
    for typo in ["upstreems: {}\n", "routes: [{match: {\n", "\t- no YAML\n"] {
        fs::write(&path, format!("{text}{typo}")).unwrap();
        assert_eq!(
            weir(gateway.folder(), &["check"]).status.code(),
            Some(2),
            "{typo}"
        );
        for command in [
            &["top", "--once"][..],
            &["bucket", "get", "L", "127.0.0.1"],
            &["bucket", "reset", "L", "127.0.0.1"],
            &["override", "list"],
            &["health"],
        ] {
            let output = weir(gateway.folder(), command);
            assert!(
                output.status.success(),
                "{typo}{command:?}: {}",
                stderr(&output)
            );
        }
    }
    fs::write(&path, text.replace(&admin, "nowhere")).unwrap();
    let output = weir(gateway.folder(), &["top", "--once"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("--admin ADDRESS"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_check_on_a_terminal_points_to_the_column_and_in_a_pipe_it_does_not() {
    let folder = Setup::with_upstreams("{app: {servers: [\"http://127.0.0.1:1\"]}}")
        .routes(&["{match: {path: \"/*\"}, upstream: ap}"])
        .written();
    let mut terminal = OnTerminal::start(folder.path(), "check gateway.yaml");
    terminal.shows("1 error, ");
    let ended = terminal.ended();
    assert_eq!(ended.code(), Some(2));
    let shown = terminal.shown();
    let lines: Vec<&str> = shown.lines().collect();
    let caret = lines.iter().position(|line| line.trim_end().ends_with('^'));
    let caret = caret.unwrap_or_else(|| panic!("{shown}"));
    let column = lines[caret].find('^').unwrap();
    assert!(lines[caret - 1][column..].starts_with("ap"), "{shown}");

    let piped = weir(folder.path(), &["check", "gateway.yaml"]);
    assert!(!stderr(&piped).contains('^'), "{}", stderr(&piped));
}

#[test]
fn health_is_0_for_a_gateway_that_serves_and_1_for_one_that_is_gone() {
    let upstream = Upstream::start();
    let mut gateway = Setup::before(&upstream).start();
    assert_eq!(
        asked(&gateway, &["health"]),
        (Some(0), "alive\n".to_owned())
    );
    assert_eq!(asked(&gateway, &["health", "--ready"]).0, Some(0));
    gateway.signal("TERM");
    gateway.ended();
    let (code, told) = asked(&gateway, &["health"]);
    assert_eq!(code, Some(1), "{told}");
}

#[test]
fn a_check_of_standard_input_or_of_two_files_is_what_it_seems_to_be() {
    let folder = checked_in();
    for arguments in [
        ["check", "gateway.yaml", "--config", "other.yaml"],
        ["--config", "other.yaml", "check", "gateway.yaml"],
    ] {
        let output = weir(folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
    let text = fs::File::open(folder.path().join("gateway.yaml")).unwrap();
    let mut command = Command::new(WEIR);
    let command = command.current_dir(folder.path()).args(["check", "-"]);
    let output = command.stdin(text).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("standard input: 3 routes"));
}
