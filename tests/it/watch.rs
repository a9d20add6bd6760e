//! Files that change come into force by themselves.

use std::fs;
use std::os::unix::fs::symlink;

use crate::support::*;

const RELOADED: &str = "configuration reloaded";
const REFUSED: &str = "configuration not reloaded";
const UNCHANGED: &str = "configuration unchanged";

fn limit(burst: u32) -> String {
    format!("L: {{per: address, burst: {burst}, count: 1, period: 1000h}}")
}

fn setup(upstream: &Upstream) -> Setup {
    Setup::before(upstream)
        .limits(&[&limit(5)])
        .limited_by("L")
        .watching()
}

/// Waits until the limit has this burst.
fn has_burst(gateway: &Gateway, burst: u32) {
    let start = format!("\"L\";q={burst};");
    eventually(&start, || {
        let response = gateway.send(&get("/"));
        let policy = response.field("ratelimit-policy")?;
        policy.starts_with(&start).then_some(())
    });
}

/// Whether the log says so exactly as often.
fn logged_by_then(gateway: &Gateway, counts: &[(&str, usize)]) {
    for (message, times) in counts {
        gateway.logs(message, *times);
    }
    for (message, times) in counts {
        assert_eq!(gateway.times_logged(message), *times, "{message}");
    }
}

#[test]
fn a_file_that_is_written_or_replaced_comes_into_force_and_buckets_stay() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    assert_eq!(
        gateway.statuses(&get("/"), 6),
        [200, 200, 200, 200, 200, 429]
    );
    // By its text, as `echo > file` writes it, and by another file that gets its name.
    fs::write(gateway.folder().join("limits/defaults.yaml"), limit(7)).unwrap();
    has_burst(&gateway, 7);
    gateway.write("limits/defaults.yaml", &limit(8));
    has_burst(&gateway, 8);
    // All of the 8 are spent: some by the first requests, some by waiting.
    eventually("an empty bucket", || {
        (gateway.send(&get("/")).status == 429).then_some(())
    });
    assert!(upstream.count() <= 8, "{}", upstream.count());
}

#[test]
fn overrides_that_are_added_and_removed_come_into_force() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let path = gateway.folder().join("limits/overrides.yaml");
    fs::remove_file(&path).unwrap();
    gateway.logs(RELOADED, 1);
    gateway.write(
        "limits/overrides.yaml",
        "- L: {burst: 9, count: 1, period: 1000h, ids: [127.0.0.1]}",
    );
    has_burst(&gateway, 9);
    gateway.write("limits/overrides.yaml", "[]");
    has_burst(&gateway, 5);
}

/// Half-written files are empty for a moment, and so many a mistake looks.
#[test]
fn overrides_stay_when_their_file_is_emptied_or_gone_and_that_is_logged() {
    let upstream = Upstream::start();
    let own = "- L: {burst: 9, count: 1, period: 1000h, ids: [127.0.0.1]}";
    let gateway = setup(&upstream).overrides(own).start();
    has_burst(&gateway, 9);
    gateway.write("limits/overrides.yaml", "");
    gateway.logs(RELOADED, 1);
    gateway.log_tells("the overrides in force are kept");
    has_burst(&gateway, 9);
    fs::remove_file(gateway.folder().join("limits/overrides.yaml")).unwrap();
    gateway.logs(RELOADED, 2);
    has_burst(&gateway, 9);
}

#[test]
fn a_folder_that_is_removed_is_an_error_until_it_is_there_again() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let limits = gateway.folder().join("limits");
    fs::remove_dir_all(&limits).unwrap();
    gateway.logs(REFUSED, 1);
    fs::create_dir(&limits).unwrap();
    gateway.write("limits/defaults.yaml", &limit(6));
    has_burst(&gateway, 6);
}

/// Kubernetes gives a pod the files of a ConfigMap as links into `..data`, a link to a folder, and
/// turns that to another folder when the ConfigMap changes.
#[test]
fn a_config_map_that_changes_comes_into_force_as_a_whole() {
    let upstream = Upstream::start();
    let folder = setup(&upstream).written();
    let at = |name: &str| folder.path().join(name);
    let version = |name: &str, burst| {
        fs::create_dir(at(name)).unwrap();
        fs::copy(at("text"), at(name).join("gateway.yaml")).unwrap();
        fs::write(at(name).join("defaults.yaml"), limit(burst)).unwrap();
    };
    fs::rename(at("gateway.yaml"), at("text")).unwrap();
    fs::remove_dir_all(at("limits")).unwrap();
    version("..v1", 5);
    symlink("..v1", at("..data")).unwrap();
    symlink("..data/gateway.yaml", at("gateway.yaml")).unwrap();
    fs::create_dir(at("limits")).unwrap();
    symlink("../..data/defaults.yaml", at("limits/defaults.yaml")).unwrap();
    let gateway = Gateway::start(folder);
    has_burst(&gateway, 5);

    let at = |name: &str| gateway.folder().join(name);
    fs::create_dir(at("..v2")).unwrap();
    fs::copy(at("text"), at("..v2/gateway.yaml")).unwrap();
    fs::write(at("..v2/defaults.yaml"), limit(6)).unwrap();
    symlink("..v2", at("..data_tmp")).unwrap();
    fs::rename(at("..data_tmp"), at("..data")).unwrap();
    fs::remove_dir_all(at("..v1")).unwrap();
    has_burst(&gateway, 6);
    logged_by_then(&gateway, &[(RELOADED, 1), (REFUSED, 0)]);
}

#[test]
fn a_bad_file_is_reported_once_and_changes_nothing() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let bad = "L: {per: adress, burst: 0, count: 1, period: 1h}\n";
    gateway.write("limits/defaults.yaml", bad);
    gateway.logs(REFUSED, 1);
    for part in [
        "limits/defaults.yaml:1:10",
        "adress",
        "burst must be at least 1",
    ] {
        gateway.log_tells(part);
    }
    assert_eq!(
        gateway.metric("weir_config_loads_total{outcome=\"failure\"}"),
        Some(1.0)
    );
    assert_eq!(gateway.admin(&get("/readyz")).status, 200);
    has_burst(&gateway, 5);

    // Written again with the same errors, it is nothing new; with others, it is.
    gateway.write("limits/defaults.yaml", bad);
    Looked::at(&upstream).again();
    assert_eq!(gateway.times_logged(REFUSED), 1);
    gateway.write("limits/defaults.yaml", "L: {}\n");
    gateway.logs(REFUSED, 2);

    // What is in force needs no reload, but who wrote it wants to know.
    gateway.write("limits/defaults.yaml", &format!("{}\n", limit(5)));
    gateway.logs(UNCHANGED, 1);
    gateway.write("limits/defaults.yaml", &limit(6));
    has_burst(&gateway, 6);
    logged_by_then(&gateway, &[(RELOADED, 1), (REFUSED, 2), (UNCHANGED, 1)]);
}

#[test]
fn files_that_say_the_same_and_files_that_are_not_watched_are_left_alone() {
    let upstream = Upstream::start();
    let gateway = setup(&upstream).start();
    let off = setup(&upstream).key("watch: false").start();
    for gateway in [&gateway, &off] {
        gateway.write("limits/defaults.yaml", &format!("{}\n", limit(5)));
    }
    off.write("limits/overrides.yaml", "- Nonsense: {}\n");
    Looked::at(&upstream).again();
    for gateway in [&gateway, &off] {
        logged_by_then(gateway, &[(RELOADED, 0), (REFUSED, 0), (UNCHANGED, 0)]);
    }
    // Whoever asks gets an answer.
    gateway.signal("HUP");
    gateway.logs(UNCHANGED, 1);
    off.signal("HUP");
    off.logs(REFUSED, 1);
}

#[test]
fn files_of_secrets_are_watched_as_well() {
    let upstream = Upstream::start();
    let folder = setup(&upstream).written();
    let path = folder.path().join("gateway.yaml");
    let text = fs::read_to_string(&path).unwrap();
    let token = "admin: {token: {file: admin.token}, address: \"127.0.0.1:0\"}";
    let text = text.replace("admin: {address: \"127.0.0.1:0\"}", token);
    fs::write(path, text).unwrap();
    fs::write(folder.path().join("admin.token"), "0123456789abcdef").unwrap();
    let gateway = Gateway::start(folder);
    let status = |token: &str| {
        let request = get("/v1/buckets/L/127.0.0.1");
        let request = request.with("authorization", &format!("Bearer {token}"));
        gateway.admin(&request).status
    };
    assert_eq!(status("0123456789abcdef"), 200);
    gateway.write("admin.token", "fedcba9876543210");
    eventually("the new token", || {
        (status("fedcba9876543210") == 200).then_some(())
    });
    assert_eq!(status("0123456789abcdef"), 401);
}

/// Another gateway, by which to tell that all of them have looked at their files.
struct Looked(Gateway);

impl Looked {
    fn at(upstream: &Upstream) -> Self {
        Self(setup(upstream).start())
    }

    /// Returns after two changes of this gateway's own files, one after the other: any other that
    /// looks as often has looked at least once meanwhile.
    fn again(&self) {
        for burst in [6, 7] {
            self.0.write("limits/defaults.yaml", &limit(burst));
            has_burst(&self.0, burst);
        }
    }
}
