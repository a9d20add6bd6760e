//! `weir import`: what it writes does what its source does.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::support::front::{Front, NGINX};
use crate::support::gateway::WEIR;
use crate::support::tls::{self, Certificate};
use crate::support::upstream::{Received, text};
use crate::support::*;

/// Included by nginx.conf, where another gateway listens on PORT and the app on APP.
const SITE: &str = r#"
geo $limited { default 1; 127.0.2.0/24 0; }
map $limited $client { 0 ""; 1 $binary_remote_addr; }
limit_req_zone $client zone=clients:1m rate=1r/m;
limit_req_zone $request_method zone=methods:1m rate=1r/m;
limit_req_status 429;

upstream app { server APP; }

server {
    listen 127.0.0.1:PORT default_server;
    limit_req zone=clients burst=3 nodelay;
    proxy_set_header Host $host;

    location / { proxy_pass http://app; }
    location /api/ {
        limit_req zone=clients burst=1 nodelay;
        limit_req zone=methods burst=5 nodelay;
        limit_req_status 503;
        proxy_pass http://app/v2/;
    }
    location = /login { limit_req zone=clients; proxy_pass http://app; }
    location ~ \.gif$ { limit_req zone=clients burst=2 nodelay; proxy_pass http://app; }
    location /free/ { limit_req zone=clients burst=3 nodelay; limit_req_dry_run on; proxy_pass http://app; }
    location /private/ { deny all; proxy_pass http://app; }
}

server {
    listen 127.0.0.1:PORT;
    server_name other.example;
    location / { internal; }
}
"#;

fn weir(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(WEIR);
    let output = command.current_dir(folder).args(arguments).output();
    output.expect("the weir binary")
}

/// Imports a file of a folder and checks the result, in which all that is `replaced` is another
/// text afterwards.
fn imported(folder: TempDir, file: &str, replaced: &[(&str, &str)]) -> (Gateway, String) {
    let output = weir(folder.path(), &["import", "--accept-loss", file]);
    let told = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{told}");
    let checked = weir(folder.path(), &["check", "--strict"]);
    assert!(checked.status.success(), "{told}\n{checked:?}");
    let path = folder.path().join("gateway.yaml");
    let mut text = fs::read_to_string(&path).unwrap();
    for (usual, other) in replaced.iter().chain(&[("127.0.0.1:9901", "127.0.0.1:0")]) {
        assert!(text.contains(usual), "no {usual} in {text}");
        text = text.replace(usual, other);
    }
    fs::write(&path, text).unwrap();
    (Gateway::start(folder), told)
}

fn send(address: SocketAddr, client: [u8; 2], request: &Request) -> (u16, String) {
    let source = Ipv4Addr::new(127, 0, client[0], client[1]);
    let response = Client::connect_from(source, address).send(request);
    let told = match response.status {
        200 => response.text().to_owned(),
        _ => String::new(),
    };
    (response.status, told)
}

/// Nothing comes back meanwhile, so the order in which both are asked makes no difference.
#[test]
fn an_imported_nginx_conf_admits_denies_and_rewrites_nothing_otherwise() {
    let upstream = Upstream::answering(|request: &Received| text(&request.target));
    let port = free_port();
    let site = SITE
        .replace("APP", &upstream.address().to_string())
        .replace("PORT", &port.to_string());
    let nginx = Front::nginx_in(&[("nginx.conf", NGINX), ("app.conf", &site)], port);
    let folder = TempDir::with_prefix("weir-import-").unwrap();
    fs::write(folder.path().join("nginx.conf"), NGINX).unwrap();
    fs::write(folder.path().join("app.conf"), &site).unwrap();
    let listens = format!("127.0.0.1:{port}");
    let (gateway, told) = imported(folder, "nginx.conf", &[(&listens, "127.0.0.1:0")]);
    assert!(
        told.contains("nginx.conf:1: not translated, and not judged"),
        "{told}"
    );
    for (client, paths) in [
        // The address, and how often each path is asked for.
        ([1, 1], &[("/a?b=c", 6)][..]),
        ([1, 2], &[("/api/x", 4), ("/api/y?z", 1)]),
        ([1, 3], &[("/login", 3), ("/api/x", 1)]),
        ([1, 4], &[("/pictures/a.gif", 5), ("/free/a", 9)]),
        ([1, 5], &[("/private/a", 1), ("/other", 2)]),
        ([2, 1], &[("/a", 9), ("/login", 3)]),
    ] {
        for (path, times) in paths {
            for time in 0..*times {
                let request = get(path);
                let theirs = send(nginx.address(), client, &request);
                let ours = send(gateway.address(), client, &request);
                assert_eq!(ours, theirs, "{client:?} {path} {time}");
            }
        }
    }
    let elsewhere = get("/a").with("host", "other.example");
    for address in [nginx.address(), gateway.address()] {
        assert_eq!(send(address, [1, 6], &elsewhere).0, 404);
    }
}

/// Sends both the same requests in the same order: of a client so many by a method to a host and
/// path, with headers behind it. Sixty of them, and nothing comes back meanwhile.
fn answer_alike(site: &str, requests: &[(u8, &str, &str, usize)]) {
    let upstream = Upstream::answering(|request: &Received| {
        let real_ip = request
            .headers
            .get("x-real-ip")
            .map_or("none", |it| it.to_str().unwrap());
        text(&format!("{} {real_ip}", request.target))
    });
    let port = free_port();
    let site = site
        .replace("APP", &upstream.address().to_string())
        .replace("PORT", &format!("127.0.0.1:{port}"));
    let nginx = Front::nginx_in(&[("nginx.conf", NGINX), ("app.conf", &site)], port);
    let folder = TempDir::with_prefix("weir-import-").unwrap();
    fs::write(folder.path().join("nginx.conf"), NGINX).unwrap();
    fs::write(folder.path().join("app.conf"), &site).unwrap();
    let listens = format!("127.0.0.1:{port}");
    let (gateway, told) = imported(folder, "nginx.conf", &[(&listens, "127.0.0.1:0")]);
    let sum: usize = requests.iter().map(|(.., times)| times).sum();
    assert_eq!(sum, 60, "{requests:?}");
    for (client, method, url, times) in requests {
        let mut words = url.split(' ');
        let target = words.next().unwrap();
        let (host, path) = target.split_at(target.find('/').unwrap());
        let headers: Vec<_> = words.map(|word| word.split_once('=').unwrap()).collect();
        for time in 0..*times {
            let mut sent = request(method, path).with("host", host);
            for (name, value) in &headers {
                sent = sent.with(name, value);
            }
            if *method == "POST" {
                sent = sent.with("content-length", "0");
            }
            let [theirs, ours] = [nginx.address(), gateway.address()].map(|address| {
                let source = Ipv4Addr::new(127, 0, 1, *client);
                let response = Client::connect_from(source, address).send(&sent);
                let location = response.field("location").map(str::to_owned);
                let own =
                    ["content-type", "x-page"].map(|name| response.field(name).map(str::to_owned));
                // Pages that nothing is said about are nginx's own.
                let is_own = response.status == 200 || own[1].is_some();
                let body = is_own.then(|| (response.text().to_owned(), own));
                (response.status, location, body)
            });
            assert_eq!(ours, theirs, "{client} {method} {url} {time}\n{told}");
        }
    }
}

#[test]
fn a_limit_for_one_method_denies_what_nginx_denies() {
    answer_alike(
        "map $request_method $key { default \"\"; POST $binary_remote_addr; }
         limit_req_zone $key zone=posts:1m rate=1r/m;
         limit_req_status 429;
         server {
             listen PORT;
             location / { limit_req zone=posts burst=4 nodelay; proxy_pass http://APP; }
             location /read/ { limit_except GET { deny all; } proxy_pass http://APP; }
             location /only/ { if ($request_method = POST) { return 405; } proxy_pass http://APP; }
         }",
        &[
            (1, "GET", "a.test/x", 10),
            (1, "POST", "a.test/x", 12),
            (1, "PUT", "a.test/x", 3),
            (2, "POST", "a.test/x", 8),
            (3, "GET", "a.test/read/x", 6),
            (3, "POST", "a.test/read/x", 4),
            (3, "DELETE", "a.test/read/x", 4),
            (4, "GET", "a.test/only/x", 6),
            (4, "POST", "a.test/only/x", 7),
        ],
    );
}

#[test]
fn each_server_has_its_own_count_by_its_name_and_a_nameless_one_has_none() {
    answer_alike(
        "limit_req_zone $server_name zone=servers:1m rate=1r/m;
         limit_req_status 429;
         server { listen PORT; location / { limit_req zone=servers burst=2 nodelay; proxy_pass http://APP; } }
         server { listen PORT; server_name a.test;
             location / { limit_req zone=servers burst=5 nodelay; proxy_pass http://APP; } }
         server { listen PORT; server_name b.test;
             location / { limit_req zone=servers burst=5 nodelay; proxy_pass http://APP; } }",
        &[
            (1, "GET", "a.test/x", 10),
            (2, "GET", "a.test/x", 10),
            (1, "GET", "b.test/x", 15),
            (1, "GET", "other.test/x", 25),
        ],
    );
}

#[test]
fn what_nginx_returns_is_neither_counted_nor_forwarded() {
    answer_alike(
        "limit_req_zone $binary_remote_addr zone=all:1m rate=1r/m;
         limit_req_status 429;
         limit_req zone=all burst=3 nodelay;
         server {
             listen PORT;
             server_name a.test;
             location / { proxy_set_header X-Real-IP $remote_addr; proxy_pass http://APP; }
             location /gone/ { return 410; }
             location /old/ { return 301 https://b.test$request_uri; }
             location = /health { return 200 good; }
             location = /json { default_type application/json; return 200 '{}'; }
             location /login { proxy_pass http://APP; }
         }
         server { listen PORT; server_name www.a.test; return 302 http://a.test$request_uri; }",
        &[
            (1, "GET", "a.test/gone/x", 9),
            (1, "GET", "a.test/old/x?y=z", 9),
            (1, "GET", "www.a.test/x", 9),
            (1, "GET", "a.test/health", 4),
            (1, "GET", "a.test/json", 4),
            (1, "GET", "a.test/x", 9),
            (2, "GET", "a.test/login", 8),
            (3, "GET", "a.test/loginx", 8),
        ],
    );
}

#[test]
fn clients_that_geo_or_a_map_leaves_out_are_those_that_nginx_leaves_out() {
    answer_alike(
        "geo $w { default 1; ::1 0; 127.0.1.128/25 0; 127.0.1.200 1; 10.0.0.1/8 0; }
         map $w $by_network { 0 \"\"; 1 $binary_remote_addr; }
         map $remote_addr $by_address { 127.0.1.7 \"\"; default $binary_remote_addr; }
         limit_req_zone $by_network zone=networks:1m rate=1r/m;
         limit_req_zone $by_address zone=addresses:1m rate=1r/m;
         limit_req_zone $binary_remote_addr$request_uri zone=pages:1m rate=1r/m;
         limit_req_status 429;
         server {
             listen PORT;
             location / { limit_req zone=networks burst=4 nodelay; proxy_pass http://APP; }
             location /a/ { limit_req zone=addresses burst=2 nodelay; proxy_pass http://APP; }
             location = /page { limit_req zone=pages burst=1 nodelay; proxy_pass http://APP; }
         }",
        &[
            (1, "GET", "a.test/x", 9),
            (129, "GET", "a.test/x", 12),
            (200, "GET", "a.test/x", 9),
            (7, "GET", "a.test/a/x", 10),
            (8, "GET", "a.test/a/x", 10),
            (9, "GET", "a.test/page", 10),
        ],
    );
}

#[test]
fn limits_by_two_headers_deny_what_nginx_denies_of_each_choice_of_them() {
    answer_alike(
        "map $http_x_key $by_key { '' ''; default $http_x_key; }
         map $http_x_cdn $by_cdn { '' $binary_remote_addr; default $http_x_cdn; }
         limit_req_zone $by_key zone=keys:1m rate=1r/m;
         limit_req_zone $by_cdn zone=clients:1m rate=1r/m;
         limit_req_status 429;
         server {
             listen PORT;
             limit_req zone=keys burst=3 nodelay;
             limit_req zone=clients burst=5 nodelay;
             location / { proxy_pass http://APP; }
         }",
        &[
            (1, "GET", "a.test/x", 9),
            (2, "GET", "a.test/x x-key=a", 9),
            (3, "GET", "a.test/x x-cdn=c", 9),
            (4, "GET", "a.test/x x-key=b x-cdn=d", 9),
            (5, "GET", "a.test/x x-key=a x-cdn=e", 8),
            (6, "GET", "a.test/x x-cdn=c", 8),
            (6, "GET", "a.test/x x-key=f", 8),
        ],
    );
}

#[test]
fn a_denied_client_gets_the_page_that_it_gets_from_nginx() {
    answer_alike(
        "limit_req_zone $binary_remote_addr zone=a:1m rate=1r/m;
         limit_req zone=a burst=1 nodelay;
         server {
             listen PORT;
             location / { proxy_pass http://APP; }
             location /kept/ { error_page 503 @text; proxy_pass http://APP; }
             location /own/ { error_page 503 = @text; proxy_pass http://APP; }
             location /other/ { error_page 502 503 =420 /page; proxy_pass http://APP; }
             location /plain/ { error_page 503 =420 @plain; proxy_pass http://APP; }
             location /away/ { error_page 503 https://b.test/slow; proxy_pass http://APP; }
             location /moved/ { error_page 503 =301 https://b.test/slow; proxy_pass http://APP; }
             location /file/ { error_page 503 /50x.html; proxy_pass http://APP; }
             location @text { default_type application/json; add_header X-Page a always;
                 add_header X-No b; return 418 '{\"slow\": 1}'; }
             location = /page { add_header X-Page b always; return 200 page; }
             location @plain { return 429; }
         }",
        &[
            (1, "GET", "a.test/x", 4),
            (2, "GET", "a.test/kept/x", 8),
            (3, "GET", "a.test/own/x", 8),
            (4, "GET", "a.test/other/x", 8),
            (5, "GET", "a.test/plain/x", 8),
            (6, "GET", "a.test/away/x", 8),
            (7, "GET", "a.test/moved/x", 8),
            (8, "POST", "a.test/kept/x", 8),
        ],
    );
}

/// The type goes by the extension of the page, and some headers by the status that clients get.
#[test]
fn a_denied_client_gets_the_type_and_the_headers_that_it_gets_from_nginx() {
    answer_alike(
        "limit_req_zone $binary_remote_addr zone=a:1m rate=1r/m;
         limit_req zone=a burst=1 nodelay;
         server {
             listen PORT;
             types { application/json json; text/x-slow SLOW; }
             location / { proxy_pass http://APP; }
             location /json/ { error_page 503 =429 /slow.json; proxy_pass http://APP; }
             location /upper/ { error_page 503 =429 /slow.JSON; proxy_pass http://APP; }
             location /slow/ { error_page 503 /a.b/page.slow; proxy_pass http://APP; }
             location /html/ { error_page 503 =429 /slow.html; proxy_pass http://APP; }
             location /fine/ { error_page 503 =200 /good; proxy_pass http://APP; }
             location = /slow.json { add_header X-Page a always; return 200 '{}'; }
             location = /slow.JSON { add_header X-Page b always; default_type text/x; return 200 a; }
             location = /a.b/page.slow { add_header X-Page c always; return 200 slow; }
             location = /slow.html { add_header X-Page d always; default_type text/x; return 200 a; }
             location = /good { add_header X-Page e; return 200 good; }
         }
         server {
             listen PORT;
             server_name b.test;
             location / { error_page 503 =429 /slow.html; proxy_pass http://APP; }
             location = /slow.html { add_header X-Page f always; return 200 a; }
             location = /a.jpg { return 200 a; }
             location = /a.png { return 200 a; }
         }",
        &[
            (1, "GET", "a.test/x", 4),
            (2, "GET", "a.test/json/x", 8),
            (3, "GET", "a.test/upper/x", 8),
            (4, "GET", "a.test/slow/x", 8),
            (5, "GET", "a.test/html/x", 8),
            (6, "GET", "a.test/fine/x", 8),
            (7, "GET", "b.test/x", 8),
            (8, "GET", "b.test/a.jpg", 4),
            (8, "GET", "b.test/a.png", 4),
        ],
    );
}

#[test]
fn a_body_that_nginx_refuses_is_refused() {
    let upstream = Upstream::start();
    let port = free_port();
    let site = format!(
        "server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://{app}; }}
         location /up/ {{ client_max_body_size 3m; proxy_pass http://{app}; }} }}",
        app = upstream.address()
    );
    let nginx = Front::nginx_in(&[("nginx.conf", NGINX), ("app.conf", &site)], port);
    let folder = TempDir::with_prefix("weir-import-").unwrap();
    fs::write(folder.path().join("nginx.conf"), NGINX).unwrap();
    fs::write(folder.path().join("app.conf"), &site).unwrap();
    let listens = format!("127.0.0.1:{port}");
    let (gateway, _) = imported(folder, "nginx.conf", &[(&listens, "127.0.0.1:0")]);
    let length = 1_500_000;
    for address in [nginx.address(), gateway.address()] {
        // The body is not sent, so that no reset hides the response.
        let head = request("POST", "/").with("content-length", &length.to_string());
        let mut client = Client::connect(address);
        client.write(&head.bytes()).unwrap();
        assert_eq!(client.read("POST").unwrap().status, 413, "{address}");
        let sent = post("/up/", &"a".repeat(length));
        assert_eq!(
            Client::connect(address).send(&sent).status,
            200,
            "{address}"
        );
    }
}

/// The redirect stood first, and the app, its limits and TLS were gone.
#[test]
fn the_usual_site_redirects_and_serves_by_tls_what_nginx_serves() {
    let upstream = Upstream::answering(|request: &Received| text(&request.target));
    let certificate = Certificate::of("s.test");
    let [plain, secure] = [free_port(), free_port()];
    let site = format!(
        "limit_req_zone $binary_remote_addr zone=a:1m rate=1r/m;
         server {{ listen 127.0.0.1:{plain}; server_name s.test;
             location / {{ return 301 https://$host:{secure}$request_uri; }} }}
         server {{ listen 127.0.0.1:{secure} ssl; server_name s.test;
             ssl_certificate site.pem; ssl_certificate_key site.key;
             location / {{ limit_req zone=a burst=20 nodelay; proxy_pass http://{}; }} }}",
        upstream.address()
    );
    let files = [
        ("nginx.conf", NGINX),
        ("app.conf", &*site),
        ("site.pem", &*certificate.certificate),
        ("site.key", &*certificate.key),
    ];
    let nginx = Front::nginx_in(&files, plain);
    let folder = TempDir::with_prefix("weir-import-").unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let ours = [free_port(), free_port()];
    let replaced = [(plain, ours[0]), (secure, ours[1])];
    let replaced = replaced.map(|(from, to)| (from.to_string(), to.to_string()));
    let replaced: Vec<_> = replaced.iter().map(|(from, to)| (&**from, &**to)).collect();
    let (gateway, told) = imported(folder, "nginx.conf", &replaced);
    assert!(told.contains("none of which opens anything"), "{told}");
    let config = tls::trusting(&[&certificate], &[]);
    let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    for (to, secure_to, port) in [
        (at(plain), at(secure), secure),
        (at(ours[0]), at(ours[1]), ours[1]),
    ] {
        let sent = get("/x?y").with("host", "s.test");
        let response = Client::connect(to).send(&sent);
        let location = format!("https://s.test:{port}/x?y");
        assert!(matches!(response.status, 301 | 308), "{}", response.status);
        assert_eq!(response.field("location"), Some(&*location));
        let mut statuses = Vec::new();
        for _ in 0..60 {
            let mut client = tls::connect(secure_to, "s.test", &config).unwrap();
            statuses.push(client.send(&sent).status);
        }
        let mut expected = vec![200; 21];
        expected.resize(60, 503);
        assert_eq!(statuses, expected);
    }
    drop((nginx, gateway));
}

/// The first server looked plain, so that the other one was left out, or both were open.
#[test]
fn a_listen_without_tls_has_it_where_another_server_of_its_address_says_so() {
    let upstream = Upstream::answering(|request: &Received| text(&request.target));
    let certificate = Certificate::of("s.test");
    let port = free_port();
    let site = format!(
        "server {{ listen 127.0.0.1:{port}; server_name a.test;
             location / {{ proxy_pass http://{app}/a/; }} }}
         server {{ listen 127.0.0.1:{port} ssl; server_name s.test;
             ssl_certificate site.pem; ssl_certificate_key site.key;
             location / {{ proxy_pass http://{app}/s/; }} }}",
        app = upstream.address()
    );
    // Both are clients of the one certificate.
    let site = site.replace(
        "server_name a.test;",
        "server_name a.test; ssl_certificate site.pem; ssl_certificate_key site.key;",
    );
    let files = [
        ("nginx.conf", NGINX),
        ("app.conf", &*site),
        ("site.pem", &*certificate.certificate),
        ("site.key", &*certificate.key),
    ];
    let nginx = Front::nginx_in(&files, port);
    let folder = TempDir::with_prefix("weir-import-").unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let listens = format!("127.0.0.1:{port}");
    let (gateway, told) = imported(folder, "nginx.conf", &[(&listens, "127.0.0.1:0")]);
    let config = tls::trusting(&[&certificate], &[]);
    for address in [nginx.address(), gateway.address()] {
        for (host, answer) in [("a.test", "/a/x"), ("s.test", "/s/x")] {
            let sent = get("/x").with("host", host);
            let mut client = tls::connect(address, "s.test", &config).unwrap();
            assert_eq!(client.send(&sent).text(), answer, "{address} {told}");
            assert_eq!(
                Client::connect(address).send(&sent).status,
                400,
                "{address}"
            );
        }
    }
}

/// A pipeline must not go on with a gateway that lacks a limit.
#[test]
fn an_import_that_loses_a_limit_says_so_first_and_by_its_exit_status() {
    let folder = TempDir::with_prefix("weir-import-").unwrap();
    let location = "proxy_set_header X-A $a; proxy_pass http://127.0.0.1:3000;";
    let locations: String = (0..20)
        .map(|number| format!("    location /{number}/ {{ {location} }}\n"))
        .collect();
    let text = format!(
        "limit_req_zone $request_uri zone=a:1m;\nserver {{\n    listen 127.0.0.1:8080;\n{locations}    \
         location /last/ {{ limit_req zone=a; {location} }}\n}}\n"
    );
    fs::write(folder.path().join("nginx.conf"), text).unwrap();
    let output = weir(folder.path(), &["import", "nginx.conf"]);
    assert_eq!(output.status.code(), Some(3));
    let told = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = told.lines().take(10).collect();
    let lines = lines.join("\n");
    for expected in [
        "differences to look at. Those that leave out a server or a limit, or let more in, come first: 2",
        "zone=a:1m` has no equal",
        "`limit_req zone=a` limits nothing",
    ] {
        assert!(lines.contains(expected), "{expected}: {told}");
    }
    assert_eq!(told.matches("proxy_set_header X-A").count(), 1, "{told}");
    let again = [
        "import",
        "--config",
        "again/gateway.yaml",
        "--accept-loss",
        "nginx.conf",
    ];
    assert_eq!(weir(folder.path(), &again).status.code(), Some(0));
}

const HTTP_ROUTES: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: younger, namespace: shop, creationTimestamp: "2026-02-01T00:00:00Z"}
spec:
  hostnames: [shop.example.com]
  rules:
  - matches: [{path: {type: PathPrefix, value: /cart}}]
    backendRefs: [{name: younger, port: 80}]
  - matches:
    - {path: {type: PathPrefix, value: /cart}, method: POST}
    filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /basket}}}]
    backendRefs: [{name: younger, port: 80}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: older, namespace: shop, creationTimestamp: "2026-01-01T00:00:00Z"}
spec:
  hostnames: ["*.example.com", shop.example.com]
  rules:
  - matches: [{path: {type: PathPrefix, value: /cart}}, {path: {type: Exact, value: /cart/now}}]
    backendRefs: [{name: older, port: 80}]
"#;

#[test]
fn imported_http_routes_lead_no_request_to_another_service() {
    let older =
        Upstream::answering(|request: &Received| text(&format!("older {}", request.target)));
    let younger =
        Upstream::answering(|request: &Received| text(&format!("younger {}", request.target)));
    let folder = TempDir::with_prefix("weir-import-").unwrap();
    fs::write(folder.path().join("routes.yaml"), HTTP_ROUTES).unwrap();
    let (gateway, told) = imported(
        folder,
        "routes.yaml",
        &[
            ("older.shop.svc:80", &older.address().to_string()),
            ("younger.shop.svc:80", &younger.address().to_string()),
            ("0.0.0.0:8080", "127.0.0.1:0"),
        ],
    );
    assert!(
        told.contains("HTTPRoute shop/younger, rules[0]: a route is left out"),
        "{told}"
    );
    for (method, host, path, expected) in [
        // Of equal matches, the older route has the requests.
        ("GET", "shop.example.com", "/cart/1", "older /cart/1"),
        // A method is more than none, whoever is older.
        ("POST", "shop.example.com", "/cart/1", "younger /basket/1"),
        // An exact path is more than a prefix with a method.
        ("POST", "shop.example.com", "/cart/now", "older /cart/now"),
        ("POST", "a.example.com", "/cart/1", "older /cart/1"),
    ] {
        let request = request(method, path)
            .with("host", host)
            .with("content-length", "0");
        assert_eq!(
            gateway.send(&request).text(),
            expected,
            "{method} {host} {path}"
        );
    }
    let nowhere = get("/cart").with("host", "example.org");
    assert_eq!(gateway.send(&nowhere).status, 404);
}

/// Each pair of rules matches a request, and the API's text says which of them has it.
#[test]
fn no_request_takes_another_rule_than_the_gateway_api_says() {
    let route = |namespace: &str, created: &str, rules: &[(&str, &str)]| {
        let rules = rules.iter().map(|(rule, matches)| {
            format!(
                "  - matches: [{{{matches}}}]\n    filters: [{{type: RequestRedirect, \
                 requestRedirect: {{hostname: won.example, path: {{type: ReplaceFullPath, \
                 replaceFullPath: /{rule}}}}}}}]\n"
            )
        });
        format!(
            "---\nkind: HTTPRoute\nmetadata: {{name: r, namespace: {namespace}{created}}}\n\
             spec:\n  rules:\n{}",
            rules.collect::<String>()
        )
    };
    let path = |kind: &str, value: &str| format!("path: {{type: {kind}, value: {value}}}");
    let named = |key: &str, names: &[&str]| {
        let names = names
            .iter()
            .map(|name| format!("{{name: {name}, value: x}}, "));
        format!(", {key}: [{}]", names.collect::<String>())
    };
    let (headers, query) = (
        named("headers", &["a", "b"]),
        named("queryParams", &["a", "b"]),
    );
    let prefix = |value: &str, rest: &str| path("PathPrefix", value) + rest;
    let all = format!(", method: POST{headers}{query}");
    let younger = [
        ("prefix", prefix("/exact", &all)),
        ("exact", path("Exact", "/exact")),
        ("short", prefix("/long", &all)),
        ("long", prefix("/long/er", "")),
        ("no-method", prefix("/method", &format!("{headers}{query}"))),
        ("method", prefix("/method", ", method: POST")),
        ("parameters", prefix("/headers", &query)),
        ("header", prefix("/headers", &named("headers", &["a"]))),
        (
            "one",
            prefix("/count", &(named("headers", &["a"]) + &query)),
        ),
        ("two", prefix("/count", &headers)),
        ("parameter", prefix("/query", &named("queryParams", &["a"]))),
        ("both", prefix("/query", &query)),
        ("late", prefix("/age", "")),
        ("first", prefix("/order", "")),
        ("second", prefix("/order", "")),
    ];
    let younger: Vec<_> = younger
        .iter()
        .map(|(rule, matches)| (*rule, &**matches))
        .collect();
    let (age, name) = (prefix("/age", ""), prefix("/name", ""));
    let files = [
        route(
            "z",
            ", creationTimestamp: \"2026-02-01T00:00:00Z\"",
            &younger,
        ),
        route(
            "z-old",
            ", creationTimestamp: \"2026-01-01T00:00:00Z\"",
            &[("old", &age)],
        ),
        // `-` comes before the slash between the namespace and the name.
        route("a", "", &[("a", &name)]),
        route("a-b", "", &[("a-b", &name)]),
    ];
    let folder = TempDir::with_prefix("weir-import-").unwrap();
    fs::write(folder.path().join("routes.yaml"), files.concat()).unwrap();
    let (gateway, _) = imported(folder, "routes.yaml", &[("0.0.0.0:8080", "127.0.0.1:0")]);
    for (path, rule) in [
        ("/exact", "exact"),
        ("/long/er/x", "long"),
        ("/method", "method"),
        ("/headers", "header"),
        ("/count", "two"),
        ("/query", "both"),
        ("/age", "old"),
        ("/order", "first"),
        ("/name", "a-b"),
    ] {
        let request = request("POST", &format!("{path}?a=x&b=x")).with("content-length", "0");
        let response = gateway.send(&request.with("a", "x").with("b", "x"));
        let location = response.field("location").unwrap_or_default();
        assert!(
            location.ends_with(&format!("won.example/{rule}")),
            "{path}: {location}"
        );
    }
}

#[test]
fn an_import_overwrites_no_file_and_writes_none_for_what_it_cannot_read() {
    let folder = TempDir::with_prefix("weir-import-").unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("nginx.conf", "server { location / { internal; }");
    write("empty.conf", "events {}");
    for (file, code, told) in [
        ("nginx.conf", 2, "nginx.conf:1: "),
        ("empty.conf", 2, "there is no `server`"),
        ("missing.conf", 1, "missing.conf: "),
    ] {
        let output = weir(folder.path(), &["import", file]);
        assert_eq!(output.status.code(), Some(code), "{file}");
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains(told), "{errors}");
        assert!(!folder.path().join("gateway.yaml").exists());
    }
    write("nginx.conf", "server { location / { internal; } }");
    write("gateway.yaml", "mine");
    let output = weir(folder.path(), &["import", "nginx.conf"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        fs::read_to_string(folder.path().join("gateway.yaml")).unwrap(),
        "mine"
    );
}
