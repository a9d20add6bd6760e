//! The checked-in configuration, the examples and the reference hold to the code.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use weir_testing::certificates::{Authority, Certificate};
use weir_yaml::Severity;

use super::json_schema::all_keys;
use super::*;

/// Limits of the examples.
const CALLS: &str = "\
CallsPerAccount: {per: account, burst: 10, count: 60, period: 1m}
FailedLoginsPerAccount: {per: account, burst: 5, count: 5, period: 1h}
TokensPerAccount: {per: account, burst: 10000, count: 10000, period: 1h}
KilobytesPerAccount: {per: account, burst: 10000, count: 10000, period: 1h}
NewOrdersPerAccount: {burst: 300, count: 300, period: 180m}
CertificatesPerDomain: {burst: 2, count: 2, period: 2160h}
CertificatesPerDomainPerAccount: {burst: 9, count: 9, period: 168h}
";

/// A user as `htpasswd -B` writes it.
const USERS: &str = "red:$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW";

/// A key set with one public key.
const KEYS: &str = r#"{"keys": [{"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "kid": "1",
"x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

pub(super) fn top_level(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

/// A page of the reference.
pub(super) struct Page {
    /// Its path within `docs`.
    pub(super) path: String,
    pub(super) text: String,
}

/// The pages of the reference as the book lists them: docs/CONFIG.md, and those of docs/config/.
pub(super) fn reference() -> Vec<Page> {
    let summary = fs::read_to_string(top_level("docs/SUMMARY.md")).unwrap();
    let links = summary.lines().filter_map(|line| {
        let (_, link) = line.trim().strip_suffix(')')?.rsplit_once("](")?;
        Some(link.to_owned())
    });
    let of_reference = links.filter(|path| path == "CONFIG.md" || path.starts_with("config/"));
    let page = |path: String| {
        let text = fs::read_to_string(top_level("docs").join(&path)).unwrap();
        Page { path, text }
    };
    of_reference.map(page).collect()
}

/// Every key that there is.
fn keys() -> BTreeSet<String> {
    all_keys().into_iter().map(|(name, _)| name).collect()
}

/// The YAML blocks of the reference, each with the file that its first line names.
pub(super) fn examples() -> Vec<(String, String)> {
    let pages = reference();
    let blocks = pages
        .iter()
        .flat_map(|page| page.text.split("```yaml\n").skip(1));
    blocks
        .map(|block| {
            let yaml = block.split("```").next().unwrap();
            let first = yaml.lines().next().unwrap();
            let file = first.strip_prefix("# ").expect(first);
            (file.to_owned(), yaml.to_owned())
        })
        .collect()
}

#[test]
fn the_checked_in_configuration_loads_without_a_warning() {
    let settings =
        load(&top_level("gateway.yaml"), &key()).unwrap_or_else(|found| panic!("{found}"));
    assert!(settings.warnings.is_empty(), "{}", settings.warnings);
    assert!(settings.upstreams.iter().any(|upstream| upstream.is_demo));
}

#[test]
fn every_key_of_the_schema_is_in_an_example() {
    let examples: String = examples().into_iter().map(|(_, yaml)| yaml).collect();
    let words: BTreeSet<&str> = examples
        .split(|letter: char| !(letter.is_alphanumeric() || letter == '_'))
        .collect();
    let keys = keys();
    let lacking: Vec<_> = keys.iter().filter(|key| !words.contains(&***key)).collect();
    assert!(
        lacking.is_empty(),
        "docs/CONFIG.md and docs/config/ show no example of {lacking:?}"
    );
}

/// An example of gateway.yaml gets what it lacks; the others stand beside one that uses all of
/// their limits.
#[test]
fn every_example_of_the_reference_loads() {
    let examples = examples();
    assert!(
        examples.len() > 10,
        "only {} examples were found",
        examples.len()
    );
    for (file, yaml) in examples {
        let folder = beside(&file, &yaml);
        let findings = folder.findings();
        if yaml.contains("telemetry:") && !cfg!(feature = "otlp") {
            assert!(
                findings.contains("cargo install --path . --features otlp"),
                "{findings}"
            );
            continue;
        }
        if yaml.contains("http3: ") && !cfg!(feature = "http3") {
            assert!(
                findings.contains("cargo install --path . --features http3"),
                "{findings}"
            );
            continue;
        }
        assert!(folder.load().is_ok(), "{yaml}\n{findings}");
    }
}

/// What says all there is to say by being there.
const MAY_BE_EMPTY: [&str; 5] = ["bearer", "comment", "reject", "tarpit", "drop"];

/// A value may get lost in a template or an edit. An override then went without a word, and a
/// gateway with `redis:` had the memory store.
#[test]
fn a_key_that_is_left_empty_is_an_error_with_a_place_wherever_it_stands() {
    for (file, yaml) in examples() {
        let folder = beside(&file, &yaml);
        let whole = match file.as_str() {
            "gateway.yaml" => completed(&yaml),
            _ => yaml,
        };
        let root: serde_yaml::Value = serde_yaml::from_str(&whole).unwrap();
        for (path, emptied) in emptied(&root) {
            folder.write(&file, &serde_yaml::to_string(&emptied).unwrap());
            let key = path.rsplit('.').next().unwrap();
            let told = match folder.load() {
                Ok(_) => MAY_BE_EMPTY.contains(&key),
                Err(found) => found.iter().any(|found| {
                    let parent = path.rsplit_once('.').map_or("", |(parent, _)| parent);
                    found.severity == Severity::Error
                        && found.location.position.is_some()
                        && found.location.path.starts_with(parent)
                }),
            };
            assert!(told, "{file}: {path}\n{}", folder.findings());
        }
    }
}

/// The document with nothing in the place of each value in turn, and what that value's path is.
fn emptied(root: &serde_yaml::Value) -> Vec<(String, serde_yaml::Value)> {
    use serde_yaml::Value;
    match root {
        Value::Mapping(map) => {
            let mut all = Vec::new();
            for (key, value) in map {
                let name = key
                    .as_str()
                    .map_or_else(|| format!("{key:?}"), str::to_owned);
                let with = |inner| {
                    let mut map = map.clone();
                    map.insert(key.clone(), inner);
                    Value::Mapping(map)
                };
                all.push((name.clone(), with(Value::Null)));
                for (path, inner) in emptied(value) {
                    let dot = if path.starts_with('[') { "" } else { "." };
                    all.push((format!("{name}{dot}{path}"), with(inner)));
                }
            }
            all
        }
        Value::Sequence(list) => {
            let mut all = Vec::new();
            for (at, value) in list.iter().enumerate() {
                let items = emptied(value).into_iter();
                all.extend(items.map(|(path, inner)| {
                    let mut list = list.clone();
                    list[at] = inner;
                    let dot = if path.starts_with('[') { "" } else { "." };
                    (format!("[{at}]{dot}{path}"), Value::Sequence(list))
                }));
            }
            all
        }
        _ => Vec::new(),
    }
}

pub(super) fn beside(file: &str, yaml: &str) -> Folder {
    let checked_in = fs::read_to_string(top_level("limits/defaults.yaml")).unwrap();
    let defaults = format!("{checked_in}\n{CALLS}");
    let mut gateway = "account: [{header: x-api-key}]\n".to_owned();
    if file == "gateway.yaml" {
        gateway = completed(yaml);
    } else {
        gateway += SMALLEST;
    }
    let pair = Certificate::of("example.com");
    let authority = Authority::new("test");
    let folder = Folder::with(&[
        ("gateway.yaml", &gateway),
        ("limits/defaults.yaml", &defaults),
        ("fullchain.pem", &pair.certificate),
        ("privkey.pem", &pair.key),
        ("users.htpasswd", USERS),
        ("example.org.pem", &pair.certificate),
        ("example.org.key", &pair.key),
        ("app-ca.pem", &pair.certificate),
        ("weir.pem", &pair.certificate),
        ("weir.key", &pair.key),
        ("clients-ca.pem", &authority.pem()),
        ("revoked.pem", &authority.revoke(&[])),
        ("collector-ca.pem", &authority.pem()),
        ("collector.token", "Bearer 0123456789abcdef"),
        ("hash.key", "0123456789abcdef0123456789abcdef"),
        ("jwt.key", "0123456789abcdef0123456789abcdef"),
        ("eab.key", "MDEyMzQ1Njc4OWFiY2RlZg"),
        ("admin.token", "0123456789abcdef0123456789abcdef"),
        ("alice.token", "123456789abcdef0123456789abcdef0"),
        ("grafana.token", "23456789abcdef0123456789abcdef01"),
        ("redis.password", "open sesame"),
        ("sentinel.password", "open sesame too"),
        ("redis-ca.pem", include_str!("testdata/ca.pem")),
        ("keys.json", KEYS),
        ("pages/slow-down.html", "<h1>Slow down</h1>"),
        ("pages/sorry.html", "<h1>Sorry</h1>"),
        ("partners.txt", "acme # the first\n"),
        ("servers.yaml", "- http://10.0.0.5:3000\n"),
        ("sticky.key", "0123456789abcdef0123456789abcdef"),
        (
            "blocked.txt",
            "# of today\n198.51.100.0/24\n2001:db8:bad::/48\n",
        ),
    ]);
    if file != "gateway.yaml" {
        folder.write(file, yaml);
    }
    folder
}

/// An example with the sections that it leaves out.
pub(super) fn completed(yaml: &str) -> String {
    let mut gateway = yaml.to_owned();
    let sections = [
        ("account:", "account: [{header: x-api-key}]\n"),
        (
            "upstreams:",
            "upstreams: {app: {servers: [\"http://127.0.0.1:3000\"]}}\n",
        ),
        (
            "routes:",
            "routes: [{match: {}, upstream: app, limits: []}]\n",
        ),
    ];
    for (key, section) in sections {
        if !yaml.lines().any(|line| line.starts_with(key)) {
            gateway += section;
        }
    }
    gateway
}

/// A ConfigMap's entry: the indented lines after its name.
fn entry(manifest: &str, name: &str) -> String {
    let head = format!("\n  {name}: |\n");
    let (_, rest) = manifest.split_once(&head).expect(name);
    let lines = rest
        .lines()
        .take_while(|line| line.is_empty() || line.starts_with("    "));
    lines
        .map(|line| line.get(4..).unwrap_or_default().to_owned() + "\n")
        .collect()
}

/// The Secret's variable is not there in a test, so a file takes its place.
#[test]
fn the_configuration_for_kubernetes_loads_without_a_warning() {
    let manifest = fs::read_to_string(top_level("deploy/kubernetes.yaml")).unwrap();
    let secrets = [("hash_key", "WEIR_HASH_KEY"), ("token", "WEIR_ADMIN_TOKEN")];
    let mut gateway = entry(&manifest, "gateway.yaml");
    for (key, variable) in secrets {
        let written = format!("{key}: {{env: {variable}}}");
        assert!(
            gateway.contains(&written) && manifest.contains(&format!("- name: {variable}")),
            "{gateway}"
        );
        gateway = gateway.replace(&written, &format!("{key}: {{file: hash.key}}"));
    }
    let folder = Folder::with(&[
        ("gateway.yaml", &gateway),
        ("limits/defaults.yaml", &entry(&manifest, "defaults.yaml")),
        ("hash.key", "0123456789abcdef0123456789abcdef"),
    ]);
    assert_eq!(folder.findings(), "0 errors, 0 warnings");
    let settings = folder.settings();
    let listen = settings.listen.iter().map(|listen| &listen.address);
    for address in listen.chain(&settings.process.admin) {
        let port = format!("containerPort: {}", address.port());
        assert!(manifest.contains(&port), "{port}");
    }
}

/// Configurations that packages, Compose and the chart begin with; a file takes the place of the
/// variables, which are not there in a test.
#[test]
fn the_configurations_to_deploy_load_without_a_warning() {
    let read = |path: &str| fs::read_to_string(top_level(path)).unwrap();
    let values: serde_yaml::Value = serde_yaml::from_str(&read("deploy/helm/values.yaml")).unwrap();
    let of_chart = |key: &str| values[key].as_str().unwrap().to_owned();
    for (gateway, defaults, overrides) in [
        (
            read("deploy/debian/gateway.yaml"),
            read("deploy/debian/defaults.yaml"),
            "[]".to_owned(),
        ),
        (
            read("deploy/compose/gateway.yaml"),
            read("deploy/compose/limits/defaults.yaml"),
            "[]".to_owned(),
        ),
        (
            of_chart("gateway"),
            of_chart("limits"),
            of_chart("overrides"),
        ),
    ] {
        let gateway = gateway
            .replace("{env: WEIR_HASH_KEY}", "{file: hash.key}")
            .replace("{env: WEIR_ADMIN_TOKEN}", "{file: hash.key}");
        let folder = Folder::with(&[
            ("gateway.yaml", &gateway),
            ("limits/defaults.yaml", &defaults),
            ("limits/overrides.yaml", &overrides),
            ("hash.key", "0123456789abcdef0123456789abcdef"),
        ]);
        assert_eq!(folder.findings(), "0 errors, 0 warnings", "{gateway}");
    }
}

/// Editors would mark nothing, and say nothing of it.
#[test]
fn each_configuration_that_is_checked_in_names_a_schema_that_is_there() {
    for path in [
        "gateway.yaml",
        "limits/defaults.yaml",
        "limits/overrides.yaml",
        "deploy/compose/gateway.yaml",
        "deploy/compose/limits/defaults.yaml",
        "deploy/debian/gateway.yaml",
        "deploy/debian/defaults.yaml",
    ] {
        let text = fs::read_to_string(top_level(path)).unwrap();
        let first = text.lines().next().unwrap();
        let schema = first
            .strip_prefix("# yaml-language-server: $schema=")
            .expect(path);
        // Where packages put it, there is no file before one is installed.
        let schema = schema.replace("/usr/share/weir", top_level("docs").to_str().unwrap());
        let found = top_level(path).parent().unwrap().join(schema);
        assert!(found.is_file(), "{path}: {}", found.display());
    }
}

/// The README's configuration, of two blocks, loads without a warning.
#[test]
fn the_example_of_the_readme_loads_without_a_warning() {
    let readme = fs::read_to_string(top_level("README.md")).unwrap();
    let blocks: Vec<&str> = readme
        .split("```yaml\n")
        .skip(1)
        .filter_map(|block| block.split("```").next())
        .collect();
    let [gateway, defaults] = blocks.as_slice() else {
        panic!("{} blocks of YAML", blocks.len());
    };
    assert!(
        gateway.starts_with("# gateway.yaml\n") && defaults.starts_with("# limits/defaults.yaml\n")
    );
    let folder = Folder::with(&[
        ("gateway.yaml", gateway),
        ("limits/defaults.yaml", defaults),
    ]);
    assert_eq!(folder.findings(), "0 errors, 0 warnings");
}

/// The service checks a configuration before it starts with it or reloads it, and kills no later
/// than a drain may take.
#[test]
fn the_systemd_service_checks_what_it_is_about_to_load() {
    let unit = fs::read_to_string(top_level("deploy/weir.service")).unwrap();
    let values = |key: &str| -> Vec<String> {
        let prefix = format!("{key}=");
        let lines = unit.lines().filter_map(|line| line.strip_prefix(&prefix));
        lines.map(str::to_owned).collect()
    };
    let config = "--config /etc/weir/gateway.yaml";
    let check = format!("/usr/bin/weir check {config}");
    assert_eq!(values("ExecStartPre"), [check.as_str()]);
    assert_eq!(values("ExecStart"), [format!("/usr/bin/weir run {config}")]);
    assert_eq!(
        values("ExecReload"),
        [check.as_str(), "/bin/kill -HUP $MAINPID"]
    );
    let timeout: u64 = values("TimeoutStopSec")[0].parse().unwrap();
    let grace = Folder::with(&[
        ("gateway.yaml", SMALLEST),
        ("limits/defaults.yaml", DEFAULTS),
    ])
    .settings()
    .grace;
    assert!(timeout > grace.as_secs(), "{timeout} {grace:?}");
}

#[test]
fn the_examples_beside_other_proxies_load_without_a_warning_and_fit_together() {
    let example = |file: &str| {
        let path = top_level("deploy/examples").join(file);
        fs::read_to_string(path).unwrap()
    };
    let folder = Folder::with(&[("gateway.yaml", &example("gateway.yaml"))]);
    assert_eq!(folder.findings(), "0 errors, 0 warnings");
    let listen = folder.settings().listen;
    let [listener] = listen.as_slice() else {
        panic!("{listen:?}");
    };
    let address = listener.address;
    let dynamic: serde_yaml::Value =
        serde_yaml::from_str(&example("traefik/dynamic.yaml")).unwrap();
    let middleware = &dynamic["http"]["middlewares"]["weir"]["forwardAuth"];
    assert_eq!(
        middleware["address"],
        format!("http://{address}/forward-auth")
    );
    assert_eq!(middleware["trustForwardHeader"], false);
    assert_eq!(dynamic["http"]["routers"]["app"]["middlewares"][0], "weir");
    let file: serde_yaml::Value = serde_yaml::from_str(&example("traefik/traefik.yaml")).unwrap();
    assert_eq!(file["providers"]["file"]["filename"], "dynamic.yaml");
    assert!(example("nginx/app.conf").contains(&format!("server {address};")));
    assert!(example("caddy/Caddyfile").contains(&format!("reverse_proxy {address} {{")));
}
