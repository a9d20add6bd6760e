//! What the commands print, and their exit codes.

use std::os::unix::fs::PermissionsExt;

use weir_config::testing::{DEFAULTS, Folder, SMALLEST};

use super::checked::Checked;
use super::*;
use http::StatusCode;

const GATEWAY: &str = r#"
hash_key: {file: hash.key}
client_address: {trusted_proxies: [10.0.0.0/8]}
account: [{header: x-api-key}, {cookie: session}]
upstreams:
  app: {servers: ["http://127.0.0.1:3000"]}
  demo: {builtin: echo}
decoys:
  sent: {status: 201, headers: {content-type: application/json}, body: '{"team":"{{ path.team }}"}'}
routes:
  - name: rest
    match: {path: "/*"}
    upstream: demo
    limits: []
  - name: login
    match: {host: app.example.com, path: /login, methods: [POST]}
    upstream: app
    limits: [RequestsPerAddress, LoginsPerAccount]
  - name: invite
    match: {path: "/teams/{team}/invites"}
    upstream: app
    limits: [RequestsPerAddress, {limit: InvitesPerAccount, cost: 2, missing: deny}]
    on_denied: {shadow: sent}
"#;

const LIMITS: &str = r"
RequestsPerAddress: {per: address, burst: 20, count: 100, period: 1m}
LoginsPerAccount: {per: account, burst: 5, count: 10, period: 1h}
InvitesPerAccount: {per: [account, 'path:team'], burst: 25, count: 25, period: 24h}
";

const OVERRIDES: &str = r#"
- RequestsPerAddress:
    burst: 200
    count: 1000
    period: 1m
    ids:
      - {id: "2001:db8:0:17::/64", comment: the office}
- LoginsPerAccount: {burst: 50, count: 100, period: 1h, ids: [acme]}
"#;

fn folder() -> Folder {
    Folder::with(&[
        ("gateway.yaml", GATEWAY),
        ("hash.key", "0123456789abcdef"),
        ("limits/defaults.yaml", LIMITS),
        ("limits/overrides.yaml", OVERRIDES),
    ])
}

/// What `weir check` prints where standard output is no terminal.
fn said(folder: &Folder) -> String {
    Checked::read(&folder.gateway()).text(ToString::to_string)
}

/// What `weir explain` prints with these arguments.
fn explained(args: &[&str]) -> String {
    let args = [&["weir", "explain"], args].concat();
    let cli = Cli::try_parse_from(args).unwrap();
    match cli.command {
        Some(Command::Explain(request)) => request.explain(&folder().gateway()).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn help(command: Option<&str>) -> String {
    let mut cli = Cli::command().term_width(100);
    let command = match command {
        Some(name) => cli.find_subcommand_mut(name).unwrap(),
        None => &mut cli,
    };
    command.render_long_help().to_string()
}

#[test]
fn the_help_names_the_commands() {
    insta::assert_snapshot!(help(None), @r#"
    Weir is a reverse proxy that decides, for every HTTP request, whether its client has sent too much

    Usage: weir [OPTIONS] [COMMAND]

    Commands:
      run          Serve, which is the default. SIGTERM and SIGINT drain, SIGHUP reloads, SIGUSR2 restarts
      init         Write a configuration to begin with, from flags or three questions
      import       Translate the configuration of nginx, or HTTPRoutes of Kubernetes, and list the differences
      check        Read the whole configuration and report every error and everything doubtful
      explain      Say what would become of a request: its route, its limits and their buckets, and why
      top          List the subjects that send most, are denied most, or are nearest to a limit
      gateways     List the gateways that share the Redis, and how their configurations differ
      bucket       Show, reset or refund the bucket of a subject
      ban          Show, add or lift the ban of a subject
      override     List, set or delete overrides of limits
      replay       Say what the configuration would have decided about the requests of access logs
      suggest      Suggest limits for routes that have none, by access logs
      health       End with 0 if the gateway that runs is alive, and with 1 if not
      completions  Print the completions of a shell
      man          Print or write the man pages
      schema       Print the JSON Schema by which editors complete a file
      help         Print this message or the help of the given subcommand(s)

    Options:
      -c, --config <FILE>
              The configuration, or - for standard input
              
              [default: gateway.yaml]

          --takeover
              Take the place of the gateway of the same user that listens there, without losing a connection

      -h, --help
              Print help

      -V, --version
              Print version
    "#);
}

#[test]
fn explain_has_its_own_help() {
    insta::assert_snapshot!(help(Some("explain")), @r#"
    Say what would become of a request: its route, its limits and their buckets, and why

    Usage: weir explain [OPTIONS] --path <PATH> --ip <IP>
           weir explain [OPTIONS] --domain <DOMAIN> --entry <KEY=VALUE>

    Options:
          --method <METHOD>
              The method
              
              [default: GET]

          --path <PATH>
              The path, with the query if there is one

          --ip <IP>
              The address that the connection comes from

          --host <HOST>
              The host that is asked

          --header <NAME:VALUE>
              A header field; may be given several times

          --domain <DOMAIN>
              In place of a request: the domain of a descriptor that Envoy sends

          --entry <KEY=VALUE>
              An entry of the descriptor; may be given several times

      -h, --help
              Print help
    "#);
}

#[test]
fn check_says_what_was_loaded() {
    let folder = folder();
    let said = said(&folder);
    insta::assert_snapshot!(folder.relative(&said), @"
    gateway.yaml: 3 routes, 2 upstreams, 3 limits in use with 2 overridden ids, the memory store; configuration OK
    route invite: some clients get decoys, so none gets headers in which the app counts, such as X-RateLimit-Remaining
    ");
}

#[test]
fn check_says_what_is_doubtful_before_what_was_loaded() {
    let folder = Folder::with(&[("gateway.yaml", SMALLEST), ("limits/defaults.yaml", LIMITS)]);
    let said = said(&folder);
    insta::assert_snapshot!(folder.relative(&said), @r#"
    limits/defaults.yaml:3:1: warning: LoginsPerAccount: no route uses this limit
      list it under a route's `limits`, or under `defaults`
    limits/defaults.yaml:4:1: warning: InvitesPerAccount: no route uses this limit
      list it under a route's `limits`, or under `defaults`
    0 errors, 2 warnings
    gateway.yaml: 1 route, 1 upstream, 1 limit in use with 0 overridden ids, the memory store; configuration OK, with 2 warnings
    "#);
}

#[test]
fn check_says_everything_that_is_wrong() {
    let folder = Folder::with(&[
        ("gateway.yaml", &format!("lisen: []{SMALLEST}")),
        ("limits/defaults.yaml", &DEFAULTS.replace("20", "0")),
    ]);
    let said = said(&folder);
    insta::assert_snapshot!(folder.relative(&said), @r#"
    gateway.yaml:1:1: lisen: unknown key "lisen"
      did you mean "listen"?
    limits/defaults.yaml:2:43: RequestsPerAddress.burst: burst must be at least 1
    2 errors, 0 warnings
    "#);
}

#[test]
fn explain_shows_the_route_the_client_and_every_limit() {
    insta::assert_snapshot!(explained(&[
        "--method=POST", "--path=/login", "--ip=203.0.113.9", "--host=app.example.com",
        "--header=x-api-key: acme",
    ]), @r#"
    POST /login from 203.0.113.9

    route: login
      matches host app.example.com, path /login, method POST
      is more specific than rest, which matches path /*
      goes to upstream app

    client: 203.0.113.9
      the peer itself
    account: 41dafd041fa88f6a2abda85bf3564aa2
      named by the header x-api-key

    limit RequestsPerAddress: applies
      is counted per address/64
      bucket RequestsPerAddress:203.0.113.9
      burst 20, count 100, period 1m, cost 1
      one unit comes back every 600ms; an empty bucket is full after 12s

    limit LoginsPerAccount: applies
      is counted per account
      bucket LoginsPerAccount:41dafd041fa88f6a2abda85bf3564aa2
      burst 50, count 100, period 1h, cost 1
      one unit comes back every 36s; an empty bucket is full after 30m
      overridden for acme

    on denial: 429 Too Many Requests with a problem document
    ratelimit_headers: draft
    "#);
}

#[test]
fn explain_says_which_address_a_client_behind_a_translator_has() {
    let explained = explained(&[
        "--method=POST",
        "--path=/login",
        "--ip=64:ff9b::203.0.113.9",
        "--host=app.example.com",
    ]);
    let client = "client: 203.0.113.9\n  the peer, whose 64:ff9b::cb00:7109 stands for it\n";
    assert!(explained.contains(client), "{explained}");
    assert!(
        explained.contains("bucket RequestsPerAddress:203.0.113.9\n"),
        "{explained}"
    );
}

#[test]
fn explain_shows_what_a_request_lacks() {
    insta::assert_snapshot!(explained(&["--path=/teams/red/invites?x=1", "--ip=203.0.113.9"]), @r#"
    GET /teams/red/invites?x=1 from 203.0.113.9

    route: invite
      matches path /teams/{team}/invites
      captures team = red
      is more specific than rest, which matches path /*
      goes to upstream app

    client: 203.0.113.9
      the peer itself
    account: none
      asked for: header x-api-key, cookie session

    limit RequestsPerAddress: is not asked, as InvitesPerAccount denies

    limit InvitesPerAccount: denies, as the request has no account

    on denial: shadow ban: decoy sent (201 Created), nothing is forwarded
    ratelimit_headers: none
    "#);
}

#[test]
fn explain_shows_whose_word_on_the_address_is_taken() {
    let forwarded = "--header=x-forwarded-for: 2001:db8:0:17::1, 10.0.0.2";
    let login = [
        "--method=POST",
        "--path=/login",
        "--host=app.example.com",
        forwarded,
    ];
    insta::assert_snapshot!(explained(&[&login[..], &["--ip=10.0.0.1"]].concat()), @r#"
    POST /login from 10.0.0.1

    route: login
      matches host app.example.com, path /login, method POST
      is more specific than rest, which matches path /*
      goes to upstream app

    client: 2001:db8:0:17::1
      named by x-forwarded-for, which trusted proxy 10.0.0.1 wrote
    account: none
      asked for: header x-api-key, cookie session

    limit RequestsPerAddress: applies
      is counted per address/64
      bucket RequestsPerAddress:2001:db8:0:17::/64
      burst 200, count 1000, period 1m, cost 1
      one unit comes back every 60ms; an empty bucket is full after 12s
      overridden for 2001:db8:0:17::/64: the office

    limit LoginsPerAccount: skipped, as the request has no account

    on denial: 429 Too Many Requests with a problem document
    ratelimit_headers: draft
    "#);
    let untrusted = explained(&["--path=/", "--ip=192.0.2.1", forwarded]);
    assert!(
        untrusted.contains("client: 192.0.2.1\n  the peer is not a trusted proxy"),
        "{untrusted}"
    );
    let silent = explained(&["--path=/", "--ip=10.0.0.1"]);
    assert!(silent.contains("it sent no x-forwarded-for"), "{silent}");
}

#[test]
fn a_route_without_limits_says_so() {
    let said = explained(&["--path=/", "--ip=203.0.113.9"]);
    assert!(said.contains("limits: none"), "{said}");
}

/// Runs the command line with these arguments; `run` fails with 1.
fn exit_code(args: &[&str]) -> ExitCode {
    let args = ["weir"].iter().chain(args).map(OsString::from);
    run_command(args, |_, _| Err(RunError::ForcedShutdown))
}

#[test]
fn the_exit_code_is_0_for_fine_2_for_what_the_caller_got_wrong_and_else_what_run_says() {
    let folder = folder();
    let path = folder.gateway();
    let path = path.to_str().unwrap();
    assert_eq!(exit_code(&["check", "--config", path]), ExitCode::SUCCESS);
    assert_eq!(exit_code(&["--version"]), ExitCode::SUCCESS);
    assert_eq!(
        exit_code(&["check", "--config", "/nowhere.yaml"]),
        ExitCode::from(2)
    );
    assert_eq!(exit_code(&["explain", "--path", "/"]), ExitCode::from(2));
    assert_eq!(exit_code(&["serve"]), ExitCode::from(2));
    assert_eq!(exit_code(&[]), ExitCode::FAILURE);
    assert_eq!(exit_code(&["run"]), ExitCode::FAILURE);
}

#[test]
fn a_check_of_two_configurations_is_refused_in_every_order() {
    let folder = folder();
    let path = folder.gateway();
    let path = path.to_str().unwrap();
    for args in [
        &["--config", path, "check", path][..],
        &["check", "--config", path, path],
        &["check", path, "--config", path],
    ] {
        assert_eq!(exit_code(args), ExitCode::from(2), "{args:?}");
    }
    assert_eq!(exit_code(&["check", path]), ExitCode::SUCCESS);
    assert_eq!(exit_code(&["--config", path, "check"]), ExitCode::SUCCESS);
}

/// Docker reserves 2 for health checks.
#[test]
fn health_never_ends_with_2_for_a_configuration_that_cannot_be_read() {
    for args in [&["health"][..], &["health", "--ready"]] {
        let args = [args, &["--config", "/nowhere.yaml"]].concat();
        assert_eq!(exit_code(&args), ExitCode::FAILURE);
    }
    assert_eq!(
        exit_code(&["top", "--config", "/nowhere.yaml"]),
        ExitCode::from(2)
    );
}

#[test]
fn run_gets_the_path_and_gateway_yaml_is_the_default() {
    for (args, expected) in [
        (&["weir"][..], "gateway.yaml"),
        (&["weir", "--config", "a.yaml"], "a.yaml"),
        (&["weir", "run", "--config", "b.yaml"], "b.yaml"),
    ] {
        let mut seen = PathBuf::new();
        run_command(args.iter().map(OsString::from), |path, takeover| {
            assert!(!takeover);
            seen = path.to_owned();
            Ok(())
        });
        assert_eq!(seen, Path::new(expected));
    }
}

#[test]
fn run_takes_over_where_it_is_told_to() {
    for args in [
        &["weir", "--takeover"][..],
        &["weir", "run", "--takeover"],
        &["weir", "run", "--config", "b.yaml", "--takeover"],
    ] {
        let mut told = false;
        run_command(args.iter().map(OsString::from), |_, takeover| {
            told = takeover;
            Ok(())
        });
        assert!(told, "{args:?}");
    }
}

#[test]
fn explain_says_what_a_request_without_a_value_gets() {
    let gateway = SMALLEST.replace("limits: [", "limits: [{limit: ByKey, missing: deny}, ");
    let limits =
        format!("{DEFAULTS}ByKey: {{per: 'header:x-key', burst: 1, count: 1, period: 1s}}\n");
    let key = format!("hash_key: {{file: hash.key}}\n{gateway}");
    let folder = Folder::with(&[
        ("gateway.yaml", &key),
        ("hash.key", "0123456789abcdef"),
        ("limits/defaults.yaml", &limits),
    ]);
    let cli = Cli::try_parse_from(["weir", "explain", "--path=/", "--ip=203.0.113.9"]).unwrap();
    let Some(Command::Explain(request)) = cli.command else {
        panic!("another command");
    };
    let told = request.explain(&folder.gateway()).unwrap();
    let denial = "limit ByKey: denies, as the request has no header:x-key\n  with 403 Forbidden\n";
    assert!(told.contains(denial), "{told}");
}

#[test]
fn explain_shows_which_limit_a_descriptor_meets() {
    let gateway = format!(
        "decide:\n  address: 127.0.0.1:9000\n  trusted_proxies: [127.0.0.1]\n  envoy:\n  - domain: \
         edge\n    descriptors:\n    - key: tenant\n      descriptors: [{{key: path, value: '/a*', \
         limit: {{limit: Costly, cost: 2}}}}]\n    - {{key: remote_address, limit: \
         RequestsPerAddress}}{SMALLEST}"
    );
    let limits =
        format!("{DEFAULTS}Costly: {{per: 'path:tenant', burst: 4, count: 4, period: 1h}}\n");
    let overrides = "- Costly: {burst: 9, count: 9, period: 1h, ids: [gold]}\n";
    let folder = Folder::with(&[
        ("gateway.yaml", &gateway),
        ("limits/defaults.yaml", &limits),
        ("limits/overrides.yaml", overrides),
    ]);
    let explained = |domain: &str, entries: &[&str]| {
        let entries = entries.iter().flat_map(|entry| ["--entry", *entry]);
        let args = ["weir", "explain", "--domain", domain]
            .into_iter()
            .chain(entries);
        let cli = Cli::try_parse_from(args).unwrap();
        let Some(Command::Explain(args)) = cli.command else {
            panic!("another command");
        };
        args.explain(&folder.gateway()).unwrap()
    };
    insta::assert_snapshot!(explained("edge", &["tenant=gold", "path=/a=b"]), @r"
    tenant=gold, path=/a=b of edge

    rule: tenant, path=/a*

    limit Costly: applies
      is counted per path:tenant
      bucket Costly:gold
      burst 9, count 9, period 1h, cost 2
      one unit comes back every 6m40s; an empty bucket is full after 1h
      overridden for gold
    note: no hash_key is configured, so each process has hashes of its own
    ");
    for (domain, entries, said) in [
        (
            "edge",
            &["tenant=gold"][..],
            "no rule limits such a descriptor",
        ),
        (
            "elsewhere",
            &["tenant=gold"],
            "only these domains have any: edge",
        ),
        (
            "edge",
            &["remote_address=x"],
            "as the request has no address",
        ),
    ] {
        let told = explained(domain, entries);
        assert!(told.contains(said), "{told}");
    }
    for args in [
        &["--domain=a"][..],
        &["--entry=a=b"],
        &["--domain=a", "--entry=a", "--path=/"],
    ] {
        let args = [&["weir", "explain"], args].concat();
        assert!(Cli::try_parse_from(&args).is_err(), "{args:?}");
    }
}

#[test]
fn explain_shows_how_a_limit_is_used_and_on_whom_it_is_enforced() {
    let gateway = r#"
upstreams: {app: {servers: ["http://127.0.0.1:3000"]}}
routes:
  - match: {path: "/*"}
    upstream: app
    limits:
      - {limit: Failed, spend_on: {status: [401, 5xx]}, enforce: 10%}
      - {limit: Failed, refund_on: {status: 500-503}, enforce: false}
      - {limit: Failed, cost: {response_header: x-used, request_header: x-cost, request_bytes: 1KiB, default: 3}}
      - {limit: Failed, cost: {request_bytes: 1KiB}, kind: check_only, enforce: 90%}
      - {limit: Failed, kind: spend_only}
      - {limit: Failed, enabled: false}
      - {limit: Named, enforce: 50%}
"#;
    let folder = Folder::with(&[
        ("gateway.yaml", gateway),
        (
            "limits/defaults.yaml",
            "Failed: {per: address, burst: 5, count: 5, period: 1h}\n\
             Named: {per: 'query:q', missing: deny, burst: 5, count: 5, period: 1h}\n",
        ),
    ]);
    let args = [
        "weir",
        "explain",
        "--path=/",
        "--ip=203.0.113.9",
        "--header=content-length: 5000",
    ];
    let cli = Cli::try_parse_from(args).unwrap();
    let Some(Command::Explain(request)) = cli.command else {
        panic!("another command");
    };
    let told = request.explain(&folder.gateway()).unwrap();
    let (_, limits) = told.split_once("\n\n").unwrap();
    insta::assert_snapshot!(limits, @r#"
    route: /*
      matches path /*
      goes to upstream app

    client: 203.0.113.9
      the peer itself
    account: none, as none is configured

    limit Failed: applies
      is counted per address/64
      bucket Failed:203.0.113.9
      burst 5, count 5, period 1h, cost 1
      one unit comes back every 12m; an empty bucket is full after 1h
      takes its cost when the response is 401, 5xx
      dry run: is enforced on 10%, this subject not included

    limit Failed: applies
      is counted per address/64
      bucket Failed:203.0.113.9
      burst 5, count 5, period 1h, cost 1
      one unit comes back every 12m; an empty bucket is full after 1h
      gives its cost back when the response is 500-503
      dry run: is enforced on no subject

    limit Failed: applies
      is counted per address/64
      bucket Failed:203.0.113.9
      burst 5, count 5, period 1h, cost 5 until the response says it
      one unit comes back every 12m; an empty bucket is full after 1h
      the cost is said by the response's x-used, or else the request's x-cost, or else each 1KiB of the body, or else 3
      denies this request even while its bucket is full, with 429 Too Many Requests

    limit Failed: applies
      is counted per address/64
      bucket Failed:203.0.113.9
      burst 5, count 5, period 1h, cost 5
      one unit comes back every 12m; an empty bucket is full after 1h
      the cost is said by each 1KiB of the body, or else 1
      check only: denies without room, and takes nothing
      is enforced on 90%, this subject included
      denies this request even while its bucket is full, with 429 Too Many Requests

    limit Failed: applies
      is counted per address/64
      bucket Failed:203.0.113.9
      burst 5, count 5, period 1h, cost 1
      one unit comes back every 12m; an empty bucket is full after 1h
      spend only: never denies, and takes what fits

    limit Failed: is switched off

    limit Named: would deny, as the request has no query:q
      is enforced on 50%

    on denial: 429 Too Many Requests with a problem document
    ratelimit_headers: draft
    note: no hash_key is configured, so each process has hashes of its own
    "#);
}

#[test]
fn explain_shows_which_override_applies_and_why_and_which_has_ended() {
    let overrides = "
- RequestsPerAddress: {burst: 300, count: 300, period: 1m, ids: [{id: 203.0.0.0/8, comment: a partner}]}
- RequestsPerAddress: {burst: 400, count: 400, period: 1m, until: 2001-12-31, ids: [203.0.113.0/24]}
- InvitesPerAccount: {burst: 30, count: 30, period: 1h, until: 2200-12-31, ids: [ac*]}
- InvitesPerAccount: {burst: 40, count: 40, period: 1h, ids: ['acme:blue']}
";
    let limits = LIMITS.replace("{per: address,", "{per: address, id: 5,");
    let folder = folder();
    folder.write("limits/defaults.yaml", &limits);
    folder.write("limits/overrides.yaml", overrides);
    let args = [
        "weir",
        "explain",
        "--path=/teams/red/invites",
        "--ip=203.0.113.9",
        "--header=x-api-key: acme",
    ];
    let Some(Command::Explain(request)) = Cli::try_parse_from(args).unwrap().command else {
        panic!("another command");
    };
    let told = request.explain(&folder.gateway()).unwrap();
    let limits = told.split("\n\n").filter(|part| part.starts_with("limit "));
    let limits: Vec<&str> = limits.collect();
    insta::assert_snapshot!(limits.join("\n\n"), @r"
    limit RequestsPerAddress: applies
      is counted per address/64
      bucket 5:203.0.113.9
      burst 300, count 300, period 1m, cost 1
      one unit comes back every 200ms; an empty bucket is full after 1m
      overridden for 203.0.0.0/8 (a network): a partner
      the override for 203.0.113.0/24 ended at 2002-01-01T00:00:00Z, and does not apply

    limit InvitesPerAccount: applies
      is counted per account and path:team
      bucket InvitesPerAccount:41dafd041fa88f6a2abda85bf3564aa2:red
      burst 30, count 30, period 1h, cost 2
      one unit comes back every 2m; an empty bucket is full after 1h
      overridden for ac* (a wildcard, any path:team), until 2201-01-01T00:00:00Z
    ");
}

/// `login` was taken for a host, and the answer was that for `/`.
#[test]
fn explain_takes_nothing_but_a_path_for_a_path() {
    let folder = folder();
    let path = folder.gateway();
    let config = path.to_str().unwrap();
    let parsed = |path: &str| {
        let args = ["weir", "explain", "--config", config, "--ip=203.0.113.9"];
        Cli::try_parse_from(args.into_iter().chain(["--path", path]))
    };
    for (path, help) in [
        ("login", "a path begins with a slash: /login"),
        ("app.example.com/login", "a path begins with a slash"),
        ("http://app.example.com/login", "the host with --host"),
        ("", "a path begins with a slash"),
        ("/a b", "a blank as %20"),
    ] {
        let error = parsed(path).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(help), "{error}");
    }
    assert!(parsed("/login?next=http://x/").is_ok());
    assert!(parsed("//x/login?y").is_ok());
    let args = [
        "explain",
        "--config",
        config,
        "--ip=203.0.113.9",
        "--path=login",
    ];
    assert_eq!(exit_code(&args), ExitCode::from(2));
}

/// Limits were said to apply to what no limit ever sees.
#[test]
fn explain_says_what_is_refused_whoever_asks() {
    for (method, path, status) in [
        ("GET", "/a/../login", StatusCode::BAD_REQUEST),
        ("POST", "/a/%2e%2E/login", StatusCode::BAD_REQUEST),
        ("TRACE", "/login", StatusCode::NOT_IMPLEMENTED),
        ("CONNECT", "/login", StatusCode::NOT_IMPLEMENTED),
    ] {
        let method = format!("--method={method}");
        let path = format!("--path={path}");
        let told = explained(&[&method, &path, "--ip=203.0.113.9"]);
        assert!(
            told.contains(&format!("refused: {status} for every client")),
            "{told}"
        );
        assert!(
            !told.contains("applies") && !told.contains("route:"),
            "{told}"
        );
    }
    insta::assert_snapshot!(explained(&["--path=/x/../login", "--ip=203.0.113.9"]), @"
    GET /x/../login from 203.0.113.9

    refused: 400 Bad Request for every client
      The path must not lead upward; resolve its `..` segments before you send it.
      no limit counts it, no ban holds it, and no upstream gets it
    ");
    let two_hosts = [
        "--path=/",
        "--ip=203.0.113.9",
        "--header=host: a",
        "--header=host: b",
    ];
    assert!(explained(&two_hosts).contains("refused: 400 Bad Request"));
    let last = [
        "--method=OPTIONS",
        "--path=*",
        "--ip=203.0.113.9",
        "--header=max-forwards: 0",
    ];
    assert!(explained(&last).contains("refused: 204 No Content"));
    assert!(!explained(&["--path=/login", "--ip=203.0.113.9"]).contains("refused"));
}

#[test]
fn check_says_how_far_a_limit_may_be_off_that_gateways_prefetch() {
    let gateway = format!("store: {{redis: {{url: \"redis://127.0.0.1:6379/0\"}}}}\n{SMALLEST}");
    let limit = "RequestsPerAddress: \
        {per: address, burst: 20000, count: 20000, period: 1s, prefetch: 1%}";
    let files = [("gateway.yaml", &*gateway), ("limits/defaults.yaml", limit)];
    let folder = Folder::with(&files);
    let said = said(&folder);
    insta::assert_snapshot!(folder.relative(&said), @r"
    gateway.yaml: 1 route, 1 upstream, 1 limit in use with 0 overridden ids, Redis at 127.0.0.1:6379; configuration OK
    RequestsPerAddress: prefetched; N gateways admit at most N x 200 units beyond the limit, per bucket
    ");
}

#[test]
fn explain_shows_what_a_route_makes_of_a_request() {
    let gateway = r#"
upstreams: {app: {servers: ["http://127.0.0.1:3000"]}}
hash_key: {file: hash.key}
routes:
  - name: api
    match: {path: "/api/{team}/*"}
    upstream: app
    limits: []
    rewrite: {strip_prefix: /api, add_prefix: /v2}
    request_headers: {set: {x-team: "{{ path.team }}"}, remove: [cookie]}
    response_headers: {add: {x-route: "{{ route }}"}}
  - {name: old, match: {path: "/old/*"}, redirect: "https://{{ host }}/new", limits: []}
  - {name: gone, match: {path: /gone}, response: {status: 410, body: no}, limits: []}
"#;
    let folder = Folder::with(&[("gateway.yaml", gateway), ("hash.key", "0123456789abcdef")]);
    let route = |path: &str| {
        let args = ["weir", "explain", "--ip", "203.0.113.9", "--path", path];
        let args = [&args[..], &["--host", "app.example.com"]].concat();
        let Some(Command::Explain(request)) = Cli::try_parse_from(args).unwrap().command else {
            panic!("another command");
        };
        let text = request.explain(&folder.gateway()).unwrap();
        let section = text.split("\n\n").nth(1).unwrap();
        section.to_owned()
    };
    insta::assert_snapshot!(route("/API//red/x?q"), @r"
    route: api
      matches path /api/{team}/*
      captures team = red
      goes to upstream app
      as /v2/red/x?q
      removes request header cookie
      request header x-team: red
      response header x-route: api
    ");
    insta::assert_snapshot!(route("/old/x"), @r"
    route: old
      matches path /old/*
      is redirected to https://app.example.com/new (302 Found)
    ");
    insta::assert_snapshot!(route("/gone"), @r"
    route: gone
      matches path /gone
      is answered with 410 Gone and a fixed body of 2 bytes
    ");
}

#[test]
fn a_value_that_is_given_without_its_option_gets_a_tip() {
    let tip = |args: &[&str]| {
        let error = Cli::try_parse_from(args).unwrap_err();
        usage_tip(&error)
    };
    for (args, told) in [
        (&["weir", "explain", "/login"][..], "'--path /login'"),
        (
            &["weir", "explain", "--path", "/", "192.0.2.1"],
            "'--ip 192.0.2.1'",
        ),
        (&["weir", "explain", "--path", "/"], "'--ip 203.0.113.9'"),
        (
            &["weir", "override", "set", "L", "acme", "10/1m"],
            "'--burst 10 --count 10 --period 1m'",
        ),
    ] {
        let tip = tip(args).unwrap_or_default();
        assert!(tip.ends_with(told), "{args:?}: {tip}");
    }
    let expected = Some("tip: name a configuration with '--config other.yaml'".to_owned());
    for command in ["run", "top"] {
        assert_eq!(tip(&["weir", command, "other.yaml"]), expected, "{command}");
    }
    assert_eq!(tip(&["weir", "run", "--cnofig"]), None);
    let units = ["weir", "bucket", "refund", "Logins", "192.0.2.1", "2"];
    assert_eq!(tip(&units), None, "no configuration");
}

/// A folder with two errors and a warning.
fn faulty() -> Folder {
    let gateway = SMALLEST
        .replace("upstream: app", "upstream: ap")
        .replace("/*", "/a,b:*/x");
    let limits = format!("{DEFAULTS}Unused: {{per: adress, burst: 1, count: 1, period: 1s}}\n");
    Folder::with(&[
        ("gateway.yaml", &gateway),
        ("limits/defaults.yaml", &limits),
    ])
}

#[test]
fn the_report_as_json_has_each_diagnostic_with_its_place() {
    let folder = faulty();
    let report = report::json(&Checked::read(&folder.gateway()), None);
    let counts = ["valid", "errors", "warnings"].map(|key| report[key].to_string());
    assert_eq!(counts, ["false", "3", "2"]);
    let second = folder.relative(&format!("{:#}", report["diagnostics"][1]));
    insta::assert_snapshot!(second, @r#"
    {
      "severity": "error",
      "file": "gateway.yaml",
      "line": 6,
      "column": 15,
      "path": "routes[0].upstream",
      "message": "unknown upstream \"ap\"",
      "help": "did you mean \"app\"?"
    }
    "#);
    let folder = self::folder();
    let report = report::json(&Checked::read(&folder.gateway()), None);
    assert_eq!(report["valid"], true);
    assert_eq!(report["diagnostics"], serde_json::json!([]));
    assert!(report["summary"].as_str().unwrap().starts_with("3 routes"));
}

/// A message of two lines, or a comma in a name, ended the annotation.
#[test]
fn annotations_for_github_keep_to_a_line_and_escape_what_ends_a_property() {
    let folder = faulty();
    let report = report::github(&Checked::read(&folder.gateway()));
    insta::assert_snapshot!(folder.relative(&report), @r#"
    ::error file=gateway.yaml,line=5,col=19,title=weir check::routes[0].match.path: "a,b:*" has a '*' within%0Awrite {name} for one segment, or end the path with "/*"
    ::error file=gateway.yaml,line=6,col=15,title=weir check::routes[0].upstream: unknown upstream "ap"%0Adid you mean "app"?
    ::error file=limits/defaults.yaml,line=3,col=15,title=weir check::Unused.per: unknown source "adress"%0Adid you mean "address"?
    ::warning file=gateway.yaml,line=3,col=3,title=weir check::upstreams.app: nothing uses this upstream
    ::warning file=limits/defaults.yaml,line=3,col=1,title=weir check::Unused: no route uses this limit%0Alist it under a route's `limits`, or under `defaults`
    3 errors, 2 warnings
    "#);
    let odd = Folder::with(&[("a,b:c%.yaml", "{}")]);
    let path = odd.gateway().with_file_name("a,b:c%.yaml");
    let report = report::github(&Checked::read(&path));
    assert!(report.contains("a%2Cb%3Ac%25.yaml,"), "{report}");
}

#[test]
fn the_sarif_log_has_a_result_for_each_diagnostic() {
    let folder = faulty();
    let report = report::sarif(&Checked::read(&folder.gateway()));
    let results = report["runs"][0]["results"].as_array().unwrap();
    let first = folder.relative(&format!("{:#}", results[0]));
    insta::assert_snapshot!(first, @r#"
    {
      "ruleId": "configuration-error",
      "level": "error",
      "message": {
        "text": "routes[0].match.path: \"a,b:*\" has a '*' within\nwrite {name} for one segment, or end the path with \"/*\""
      },
      "locations": [
        {
          "physicalLocation": {
            "artifactLocation": {
              "uri": "file://gateway.yaml"
            },
            "region": {
              "startLine": 5,
              "startColumn": 19
            }
          },
          "logicalLocations": [
            {
              "fullyQualifiedName": "routes[0].match.path"
            }
          ]
        }
      ]
    }
    "#);
    assert_eq!(results.len(), 5);
    let odd = Folder::with(&[("a b#.yaml", "{}")]);
    let path = odd.gateway().with_file_name("a b#.yaml");
    let report = report::sarif(&Checked::read(&path)).to_string();
    assert!(report.contains("/a%20b%23.yaml"), "{report}");
}

#[test]
fn only_strict_checks_fail_for_warnings_and_an_error_is_worse() {
    let doubtful = Folder::with(&[("gateway.yaml", SMALLEST), ("limits/defaults.yaml", LIMITS)]);
    let path = doubtful.gateway();
    let path = path.to_str().unwrap();
    assert_eq!(exit_code(&["check", path]), ExitCode::SUCCESS);
    for format in ["text", "json", "github", "sarif"] {
        let args = ["check", "--strict", "--format", format, path];
        assert_eq!(exit_code(&args), ExitCode::FAILURE);
    }
    let fine = folder();
    let path = fine.gateway();
    assert_eq!(
        exit_code(&["check", "--strict", path.to_str().unwrap()]),
        ExitCode::SUCCESS
    );
    let bad = faulty();
    let path = bad.gateway();
    for strict in [&["--strict"][..], &[]] {
        let args = [&["check", path.to_str().unwrap()], strict].concat();
        assert_eq!(exit_code(&args), ExitCode::from(2));
    }
}

#[test]
fn the_version_says_what_was_built() {
    let long = version::long();
    assert!(long.starts_with(env!("CARGO_PKG_VERSION")));
    for part in ["\ncommit: ", "\nfeatures: gateway", "\nplatform: "] {
        assert!(long.contains(part), "{long}");
    }
}

#[test]
fn completions_know_each_command_and_there_is_a_man_page_for_each() {
    let mut script = Vec::new();
    clap_complete::generate(
        clap_complete::Shell::Bash,
        &mut Cli::command(),
        "weir",
        &mut script,
    );
    let script = String::from_utf8(script).unwrap();
    let folder = Folder::with(&[]);
    let pages = folder.gateway().with_file_name("man");
    assert_eq!(
        exit_code(&["man", pages.to_str().unwrap()]),
        ExitCode::SUCCESS
    );
    for command in Cli::command().get_subcommands() {
        let name = command.get_name();
        assert!(script.split_whitespace().any(|word| word == name), "{name}");
        assert!(pages.join(format!("weir-{name}.1")).exists(), "{name}");
    }
    assert!(pages.join("weir.1").exists());
}

/// Runs `weir init` with these flags. They say all that it would ask for, as tests may have a
/// terminal.
fn init(folder: &Folder, flags: &[&str]) -> ExitCode {
    let path = folder.gateway();
    let args = [&["init", "--config", path.to_str().unwrap()], flags].concat();
    exit_code(&args)
}

#[test]
fn a_configuration_by_init_has_what_the_flags_say_and_nothing_to_complain_about() {
    let folder = Folder::with(&[]);
    let flags = [
        "--upstream=http://10.0.0.7:3000",
        "--limit=5/s",
        "--redis=redis://10.0.0.8:6379/0",
        "--listen=0.0.0.0:80",
    ];
    assert_eq!(init(&folder, &flags), ExitCode::SUCCESS);
    let settings = folder.settings();
    assert!(settings.warnings.is_empty(), "{}", settings.warnings);
    assert_eq!(settings.listen[0].address.to_string(), "0.0.0.0:80");
    assert!(
        said(&folder).contains("Redis at 10.0.0.8:6379"),
        "{}",
        said(&folder)
    );
    let told = {
        let args = ["weir", "explain", "--path=/", "--ip=203.0.113.9"];
        let Some(Command::Explain(request)) = Cli::try_parse_from(args).unwrap().command else {
            panic!("another command");
        };
        request.explain(&folder.gateway()).unwrap()
    };
    assert!(told.contains("burst 5, count 5, period 1s"), "{told}");
}

#[test]
fn no_one_else_reads_a_configuration_by_init_that_holds_a_password() {
    for (redis, is_private) in [
        ("--redis=redis://:hunter2@10.0.0.8:6379/0", true),
        ("--redis=redis://10.0.0.8:6379/0", false),
    ] {
        let folder = Folder::with(&[]);
        let flags = ["--upstream=http://10.0.0.7:3000", "--limit=5/s", redis];
        assert_eq!(init(&folder, &flags), ExitCode::SUCCESS);
        let text = std::fs::read_to_string(folder.gateway()).unwrap();
        assert_eq!(text.contains("hunter2"), is_private);
        let metadata = std::fs::metadata(folder.gateway()).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o077 == 0, is_private);
        assert_eq!(text.contains("# Only its owner"), is_private, "{text}");
    }
}

#[test]
fn nothing_that_is_imported_from_the_examples_gets_a_warning() {
    for example in ["nginx.conf", "http_routes.yaml"] {
        let source = format!(
            "{}/crates/import/src/tests/{example}",
            env!("CARGO_MANIFEST_DIR")
        );
        let folder = Folder::with(&[]);
        let path = folder.gateway();
        let path = path.to_str().unwrap();
        let args = ["import", "--accept-loss", "--config", path, &source];
        assert_eq!(exit_code(&args), ExitCode::SUCCESS);
        let settings = folder.settings();
        assert!(settings.warnings.is_empty(), "{}", settings.warnings);
    }
}

#[test]
fn init_never_overwrites_a_file_and_writes_nothing_that_would_not_load() {
    for file in ["gateway.yaml", "limits/defaults.yaml"] {
        let folder = Folder::with(&[(file, "mine")]);
        let code = init(
            &folder,
            &[
                "--upstream=http://127.0.0.1:3000",
                "--limit=1/s",
                "--memory",
            ],
        );
        assert_eq!(code, ExitCode::FAILURE);
        let path = folder.gateway().with_file_name(file);
        assert_eq!(std::fs::read_to_string(path).unwrap(), "mine");
        let others = folder.gateway().with_file_name("schema");
        assert!(!others.exists());
    }
    let folder = Folder::with(&[]);
    for flags in [
        ["--upstream=ftp://x", "--limit=1/s", "--memory"],
        [
            "--upstream=http://127.0.0.1:3000",
            "--limit=1/s",
            "--redis=nowhere",
        ],
    ] {
        assert_eq!(init(&folder, &flags), ExitCode::from(2), "{flags:?}");
        assert!(!folder.gateway().exists());
    }
}
