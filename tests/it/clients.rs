//! Real clients, as `tests/clients` has them, that are denied: those that wait as they are told pass in
//! the end and are not banned, and one that does not wait is. SDKs show the reason that the recipe for
//! them gives.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use http::HeaderValue;

use crate::grpc;
use crate::support::browser::Browser;
use crate::support::recipe::Recipe;
use crate::support::upstream::{Received, text};
use crate::support::*;

/// A unit comes back in this time.
const PERIOD: &str = "2s";

/// Where each request is a process of its own, which takes a second or two to start.
const PERIOD_OF_PROCESSES: &str = "10s";

/// The ban that docs/config/bans.md shows.
const BAN: &str = "bans: {abusers: {per: address, strikes: {limits: L, count: 10, period: 1m}, \
                   for: 10m}}";

/// Bans who comes once before the waits of so many workers are over: whoever obeys is never banned,
/// and would be at its first denials if each of them counted.
fn ban(workers: usize) -> String {
    format!(
        "bans: {{abusers: {{per: address, for: 10m, \
         strikes: {{limits: L, workers: {workers}, count: 1, period: 1m}}}}}}"
    )
}

/// An app whose answers all of the clients understand.
fn app() -> Upstream {
    Upstream::answering(|received: &Received| {
        let is_index = received.target.starts_with("/simple/");
        let mut answer = text(match is_index {
            true => "<!DOCTYPE html><a href=\"a_package-1-py3-none-any.whl\">a package</a>",
            false => "{\"object\":\"list\",\"data\":[],\"has_more\":false}",
        });
        for (name, value) in [
            (
                "content-type",
                if is_index {
                    "text/html"
                } else {
                    "application/json"
                },
            ),
            // What a hub says of a file.
            ("etag", "\"1\""),
            ("x-repo-commit", "0123456789012345678901234567890123456789"),
        ] {
            answer
                .headers_mut()
                .insert(name, HeaderValue::from_static(value));
        }
        answer
    })
}

fn limited(setup: Setup, period: &str, ban: &str) -> Setup {
    let limit = format!("L: {{per: address, burst: 1, count: 1, period: {period}}}");
    setup.limits(&[&limit]).limited_by("L").key(ban)
}

/// Where the programs of the clients are; none, and a word about it, if they are not installed.
pub(crate) fn programs() -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let is_there = built.join("clients/installed").exists();
    if !is_there {
        eprintln!("NOT TESTED: real clients, which tests/clients/install.sh installs.");
    }
    is_there.then(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients"))
}

/// Lets a client send so many requests, one after the other.
fn send(programs: &Path, client: &str, gateway: &Gateway, count: usize) -> Output {
    run(
        programs,
        client,
        &format!("http://{}", gateway.address()),
        count,
        2,
    )
}

/// The same to a URL, with so many retries of an SDK.
pub(crate) fn run(
    programs: &Path,
    client: &str,
    url: &str,
    count: usize,
    retries: usize,
) -> Output {
    let mut command = Command::new("timeout");
    command.args(["60", "bash"]).arg(programs.join("client.sh"));
    command.args([client, url, &count.to_string()]);
    command.env("RETRIES", retries.to_string());
    command.env(
        "CARGO_TARGET_DIR",
        Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap(),
    );
    command.stdin(Stdio::null()).output().expect("bash")
}

/// How many requests were decided so.
fn decided(gateway: &Gateway, decision: &str) -> usize {
    let lines = gateway.log();
    lines
        .iter()
        .filter(|line| line["decision"] == decision)
        .count()
}

/// A client passes in the end, is told to wait at least once, and is denied no more often than it
/// passes.
fn obeys(client: &str) {
    obeys_each(client, PERIOD);
}

/// The same where a unit comes back in this time.
fn obeys_each(client: &str, period: &str) {
    let app = app();
    obeys_before(client, &limited(Setup::before(&app), period, &ban(1)), 1);
}

fn obeys_before(client: &str, setup: &Setup, denials: usize) {
    let Some(programs) = programs() else { return };
    let gateway = setup.start();
    // Where each request is a process of its own, none may come too early on a slow machine.
    let mut runs = 0;
    let (passed, denied) = eventually("a client that is denied", || {
        let output = send(&programs, client, &gateway, 3);
        assert!(output.status.success(), "{client}: {output:?}");
        runs += 1;
        let counts = eventually("the last line of the log", || {
            let passed = decided(&gateway, "allowed");
            (passed >= 3 * runs).then(|| (passed, decided(&gateway, "denied")))
        });
        Some(counts).filter(|(_, denied)| *denied > 0)
    });
    assert!(
        denied <= denials * passed,
        "{passed} passed, {denied} were denied"
    );
    assert_eq!(gateway.times_logged("ban begun"), 0);
}

#[test]
fn curl_with_its_option_to_retry_passes_in_the_end() {
    obeys_each("curl-retry", PERIOD_OF_PROCESSES);
}

#[test]
fn pip_passes_in_the_end() {
    obeys_each("pip", PERIOD_OF_PROCESSES);
}

#[test]
fn urllib3_passes_in_the_end() {
    obeys("py-urllib3");
}

/// It asks once more at once before it waits, and waits a second longer than `t`.
#[test]
fn huggingface_hub_passes_in_the_end() {
    let app = app();
    let setup = limited(Setup::before(&app), PERIOD, &ban(2));
    obeys_before("py-huggingface_hub", &setup, 2);
}

#[test]
fn openai_and_anthropic_of_python_pass_in_the_end() {
    obeys("py-openai");
    obeys("py-anthropic");
}

#[test]
fn openai_and_anthropic_of_node_pass_in_the_end() {
    obeys("js-openai");
    obeys("js-anthropic");
}

#[test]
fn got_passes_in_the_end() {
    obeys("js-got");
}

#[test]
fn ky_passes_in_the_end() {
    obeys("js-ky");
}

#[test]
fn axios_passes_in_the_end_with_axios_retry() {
    obeys("js-axios-retry");
}

#[test]
fn the_retry_agent_of_undici_passes_in_the_end() {
    obeys("js-undici");
}

/// It reads no `Retry-After`, but a Unix time in `X-RateLimit-Reset`.
#[test]
fn octokit_with_throttling_passes_in_the_end_where_it_is_told_a_time() {
    let app = app();
    let setup = limited(Setup::before(&app), PERIOD, &ban(1));
    let setup = setup.key("defaults: {ratelimit_headers: x-ratelimit-epoch}");
    obeys_before("js-octokit", &setup, 1);
}

#[test]
fn grpc_js_passes_in_the_end_with_a_retry_policy_for_denials() {
    http2::run(async {
        let (server, _reporter) = grpc::serve();
        let setup = limited(grpc::before(server, ""), PERIOD, &ban(1));
        let client = move || obeys_before("js-grpc-js-retry", &setup, 1);
        tokio::task::spawn_blocking(client).await.unwrap();
    });
}

/// Browsers try a stream of events again where a connection ends, and never where it is denied.
#[test]
fn an_event_source_of_chromium_that_is_denied_is_closed_until_the_page_opens_another() {
    let upstream = Upstream::answering(|received: &Received| {
        let is_stream = received.target == "/events";
        let mut answer = text(if is_stream {
            "retry: 10\ndata: 1\n\n"
        } else {
            "<title>a page</title>"
        });
        let media = if is_stream {
            "text/event-stream"
        } else {
            "text/html"
        };
        answer
            .headers_mut()
            .insert("content-type", HeaderValue::from_static(media));
        answer
    });
    // The page asks how long to wait while it waits.
    let gateway = limited(Setup::before(&upstream), PERIOD, &ban(2))
        .routes(&[
            "{name: events, match: {path: /events}, upstream: app, limits: [L]}",
            "{name: page, match: {}, upstream: app, limits: []}",
        ])
        .start();
    let browser = Browser::start();
    browser.open(&format!("http://{}/", gateway.address()));
    browser.run("window.source = new EventSource('/events')");
    browser.wait("source.readyState === EventSource.CLOSED");
    let denied = || decided(&gateway, "denied");
    assert_eq!(
        eventually("the denial", || Some(denied()).filter(|it| *it > 0)),
        1
    );
    // Where the period is over by now, this one passes, and the next has to wait for a whole one.
    browser.run(
        "fetch('/events').then((response) => {
            const wait = Number(response.headers.get('retry-after') ?? 2);
            setTimeout(() => {
                const another = new EventSource('/events');
                another.onopen = () => { window.opened = true; another.close(); };
            }, 1000 * wait);
        })",
    );
    browser.wait("window.opened");
    // The one that asked how long to wait may have been the second.
    assert!(denied() <= 2, "{:?}", gateway.access("/events"));
    assert_eq!(gateway.times_logged("ban begun"), 0);
}

#[test]
fn a_client_that_hammers_is_banned() {
    let Some(programs) = programs() else { return };
    let app = app();
    let gateway = limited(Setup::before(&app), PERIOD, BAN).start();
    let mut sent = 0;
    eventually("a ban", || {
        let output = send(&programs, "py-hammer", &gateway, 60);
        assert!(output.status.success(), "{output:?}");
        sent += 60;
        (gateway.times_logged("ban begun") > 0).then_some(())
    });
    let denied = decided(&gateway, "denied");
    assert!(
        (10..sent).contains(&denied),
        "{denied} denials before the ban"
    );
}

/// Ten denials were ten strikes, also of a client that had waited as it was told each time.
#[test]
fn a_client_that_waits_out_more_denials_than_a_ban_has_strikes_is_not_banned() {
    let Some(programs) = programs() else { return };
    let app = app();
    let setup = Setup::before(&app).limited_by("L").key(BAN);
    let gateway = setup
        .limits(&["L: {per: address, burst: 1, count: 1, period: 1s}"])
        .start();
    let denied = eventually("more denials than strikes", || {
        let output = send(&programs, "py-urllib3", &gateway, 12);
        assert!(output.status.success(), "{output:?}");
        Some(decided(&gateway, "denied")).filter(|denied| *denied > 10)
    });
    assert!(denied <= app.count(), "{denied} denials");
    assert_eq!(gateway.times_logged("ban begun"), 0);
}

/// The recipe was tried by plain requests alone, and not by an SDK.
#[test]
fn sdks_show_the_reason_of_a_denial_by_the_recipe_for_them() {
    let Some(programs) = programs() else { return };
    let app = app();
    let gateway = Recipe::named("Errors that SDKs show").start(&app);
    for (client, path) in [
        ("py-openai", "/v1"),
        ("js-openai", "/v1"),
        ("py-anthropic", ""),
        ("js-anthropic", ""),
        ("js-octokit", "/v1"),
    ] {
        let url = format!("http://{}{path}", gateway.address());
        let shown = eventually("an SDK that is denied", || {
            let output = run(&programs, client, &url, 100, 0);
            let shown = String::from_utf8_lossy(&output.stderr).into_owned();
            (!output.status.success()).then_some(shown)
        });
        assert!(
            shown.contains("You send too many requests; see Retry-After."),
            "{client}: {shown}"
        );
    }
}
