//! Certificates by ACME.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use weir_testing::certificates::Certificate;

use super::*;
use crate::gateway::listen::acme::{AcmeChallenge, AcmeSettings};

/// A configuration with a plain listener, and one with this `tls`.
fn folder(tls: &str) -> Folder {
    with_listeners(&format!(
        "[{{address: 127.0.0.1:80}}, {{address: 127.0.0.1:443, tls: {tls}}}]"
    ))
}

fn with_listeners(listen: &str) -> Folder {
    Folder::with(&[
        ("gateway.yaml", &format!("listen: {listen}\n{SMALLEST}")),
        ("limits/defaults.yaml", DEFAULTS),
        ("eab.key", "c2VjcmV0\n"),
    ])
}

/// The domains of the second listener, and how the first certificate is obtained.
fn obtained(folder: &Folder) -> (Vec<String>, Arc<AcmeSettings>) {
    let settings = folder.settings();
    let [_, secure] = settings.listen.as_slice() else {
        panic!("{:?}", settings.listen);
    };
    assert!(secure.certificates.is_some(), "it speaks TLS");
    let domains = secure
        .acme
        .iter()
        .map(|certificate| certificate.domain.clone());
    (domains.collect(), Arc::clone(&secure.acme[0].settings))
}

#[test]
fn a_domain_is_enough() {
    let folder = folder("{acme: WWW.example.com}");
    assert_eq!(folder.findings(), "0 errors, 0 warnings");
    let (domains, settings) = obtained(&folder);
    assert_eq!(domains, ["www.example.com"]);
    let lets_encrypt = "https://acme-v02.api.letsencrypt.org/directory";
    assert_eq!(settings.directory, lets_encrypt);
    assert_eq!(settings.cache, folder.gateway().with_file_name("acme"));
    let both = [AcmeChallenge::TlsAlpn01, AcmeChallenge::Http01];
    assert_eq!(settings.challenges, both);
    assert!(
        !settings.cache.exists(),
        "reading a configuration makes nothing"
    );
}

#[test]
fn keys_say_more_of_several_domains() {
    let folder = folder(
        "{acme: [a.example.com, {domains: [b.example.com, c.example.com], \
          directory: \"https://ca.internal:9000/acme/directory\", email: me@example.com, \
          cache: kept/here, challenge: http-01, eab: {key_id: one, hmac_key: {file: eab.key}}}]}",
    );
    assert_eq!(folder.findings(), "0 errors, 0 warnings");
    let settings = folder.settings();
    let acme = &settings.listen[1].acme;
    let domains: Vec<_> = acme.iter().map(|certificate| &certificate.domain).collect();
    assert_eq!(domains, ["a.example.com", "b.example.com", "c.example.com"]);
    let settings = &acme[1].settings;
    assert_eq!(
        settings.directory,
        "https://ca.internal:9000/acme/directory"
    );
    assert_eq!(settings.email.as_deref(), Some("me@example.com"));
    assert_eq!(settings.cache, folder.gateway().with_file_name("kept/here"));
    assert_eq!(settings.challenges, [AcmeChallenge::Http01]);
    let eab = settings.external_account.as_ref().unwrap();
    assert_eq!((&*eab.key_id, &*eab.hmac_key), ("one", &b"secret"[..]));
    assert_eq!(format!("{eab:?}"), "ExternalAccount(\"one\")");
}

#[test]
fn what_cannot_work_is_refused_at_once() {
    let folder = folder(
        "[{acme: \"*.example.com\"}, {acme: 192.0.2.1}, {acme: \"https://example.com\"}, \
          {acme: []}, {acme: localhost}, {acme: a.example.com, certificate: a.pem, key: a.key}, {}, \
          {acme: {domains: b.example.com, directory: \"http://ca/dir\", email: me, \
          eab: {key_id: one, hmac_key: {file: gateway.yaml}}, cache: eab.key/acme}}]",
    );
    insta::assert_snapshot!(folder.findings(), @r"
    gateway.yaml:1:73: listen[1].tls[0].acme: a certificate for `*.example.com` takes a challenge by DNS, which is not supported
      name each domain, or obtain it by another tool, and name its files
    gateway.yaml:1:98: listen[1].tls[1].acme: a certificate for the address 192.0.2.1 cannot be obtained
      name a domain
    gateway.yaml:1:117: listen[1].tls[2].acme: `https://example.com` is not a domain
      write a host name such as www.example.com, without a scheme, a port or a path
    gateway.yaml:1:142: listen[1].tls[3].acme: there is no domain
      write `acme: DOMAIN`
    gateway.yaml:1:160: listen[1].tls[4].acme: no public authority signs a certificate for `localhost`
      write the whole name, or name the `directory` of an authority of your own
    gateway.yaml:1:207: listen[1].tls[5].certificate: a certificate comes from files or by ACME, not both
      leave out `acme`, or `certificate` and `key`
    gateway.yaml:1:227: listen[1].tls[6]: there is no certificate
      write {certificate: PATH, key: PATH} or {acme: DOMAIN}
    gateway.yaml:1:274: listen[1].tls[7].acme.directory: `http://ca/dir` is not the URL of a directory
      it begins with https://; the authority's documentation names it
    gateway.yaml:1:298: listen[1].tls[7].acme.email: `me` is not an address for email
      write one such as admin@example.com, or leave it out
    gateway.yaml:1:321: listen[1].tls[7].acme.eab.hmac_key: the key is not base64url
      write it as the authority shows it
    gateway.yaml:1:361: listen[1].tls[7].acme.cache: certificates cannot be kept in eab.key/acme: eab.key is not a folder
      name a folder by `acme: {domains: DOMAIN, cache: PATH}` that the gateway's user may write to
    11 errors, 0 warnings
    ");
}

#[test]
fn http_01_takes_a_plain_listener() {
    let only = |challenge: &str| {
        with_listeners(&format!(
            "[{{address: 127.0.0.1:443, tls: {{acme: {{domains: a.example.com{challenge}}}}}}}]"
        ))
    };
    let settings = only("").settings();
    let challenges = &settings.listen[0].acme[0].settings.challenges;
    assert_eq!(*challenges, [AcmeChallenge::TlsAlpn01]);
    insta::assert_snapshot!(only(", challenge: http-01").findings(), @r"
    gateway.yaml:1:83: listen[0].tls.acme.challenge: no listener speaks plain HTTP, which http-01 takes
      add `- address: 0.0.0.0:80` to `listen`, or leave `challenge` out
    1 error, 0 warnings
    ");
}

#[test]
fn one_domain_is_obtained_in_one_way() {
    let two = |email: &str| {
        with_listeners(&format!(
            "[{{address: 127.0.0.1:443, tls: {{acme: a.example.com}}}}, {{address: \"[::1]:443\", \
              tls: {{acme: {{domains: a.example.com{email}}}}}}}]"
        ))
    };
    assert_eq!(two("").findings(), "0 errors, 0 warnings");
    let found = two(", email: me@example.com").findings();
    let message = "listen[1]: the certificate for `a.example.com` is obtained in two ways";
    assert!(found.contains(message), "{found}");
}

#[test]
fn certificates_by_acme_stand_beside_those_from_files() {
    let pair = Certificate::of("a");
    let folder = folder("[{acme: b.example.com}, {certificate: a.pem, key: a.key}]");
    folder.write("a.pem", &pair.certificate);
    folder.write("a.key", &pair.key);
    assert_eq!(folder.findings(), "0 errors, 0 warnings");
    let settings = folder.settings();
    assert!(
        settings.listen[1]
            .certificates
            .as_ref()
            .unwrap()
            .expires()
            .is_some()
    );
    assert_eq!(settings.listen[1].acme.len(), 1);
}

#[test]
fn a_folder_that_cannot_be_written_to_is_refused() {
    let folder = folder("{acme: {domains: a.example.com, cache: kept/here}}");
    let kept = folder.gateway().with_file_name("kept");
    fs::create_dir(&kept).unwrap();
    assert_eq!(folder.findings(), "0 errors, 0 warnings");
    fs::set_permissions(&kept, fs::Permissions::from_mode(0o500)).unwrap();
    let found = folder.findings();
    // The superuser may write everywhere.
    if !rustix::process::geteuid().is_root() {
        assert!(found.contains("kept cannot be written to"), "{found}");
    }
    fs::remove_dir(&kept).unwrap();
    fs::write(&kept, "").unwrap();
    let found = folder.findings();
    assert!(found.contains("kept is not a folder"), "{found}");
}
