//! Certificates of listeners.

use weir_testing::certificates::{Authority, Certificate, openssl};

use super::*;

const TWO: &str = "\
listen:
  - {address: 127.0.0.1:8080}
  - address: 127.0.0.1:8443
    tls: {certificate: a.pem, key: a.key}
";

fn folder(listen: &str, files: &[(&str, &str)]) -> Folder {
    let gateway = format!("{listen}{SMALLEST}");
    let folder = Folder::with(&[
        ("gateway.yaml", &gateway),
        ("limits/defaults.yaml", DEFAULTS),
    ]);
    for (path, text) in files {
        folder.write(path, text);
    }
    folder
}

#[test]
fn a_listener_may_have_certificates_and_their_files_are_watched() {
    let pair = Certificate::of("a.example.com");
    let files = [("a.pem", &*pair.certificate), ("a.key", &*pair.key)];
    let folder = folder(TWO, &files);
    let reading = read(&folder.gateway(), &key(), None);
    let settings = reading.outcome.unwrap();
    assert!(settings.warnings.is_empty(), "{}", settings.warnings);
    let [plain, secure] = settings.listen.as_slice() else {
        panic!("{:?}", settings.listen);
    };
    assert!(plain.certificates.is_none() && secure.certificates.is_some());
    assert_eq!(secure.to_string(), "127.0.0.1:8443 with TLS");
    for (path, _) in files {
        let before = read(&folder.gateway(), &key(), None).inputs;
        assert_eq!(before.stamps(), before.stamps_now());
        folder.write(path, "another");
        assert_ne!(before.stamps(), before.stamps_now());
    }
}

#[test]
fn clients_show_certificates_where_a_listener_says_whose() {
    let pair = Certificate::of("a");
    let authority = Authority::new("test");
    let findings = |auth: &str, tls: bool, account: &str| {
        let tls = if tls {
            ", tls: {certificate: a.pem, key: a.key}"
        } else {
            ""
        };
        let listen = format!("listen: [{{address: 127.0.0.1:8443{tls}{auth}}}]\n{account}");
        let files = [
            ("a.pem", &*pair.certificate),
            ("a.key", &*pair.key),
            ("ca.pem", &authority.pem()),
            ("revoked.pem", &authority.revoke(&[])),
        ];
        folder(&listen, &files).findings()
    };
    let named = "account: [{certificate: subject_cn}]\nhash_key: {file: a.key}\n";
    for auth in [
        "{ca: ca.pem}",
        "{ca: ca.pem, crl: revoked.pem, mode: optional}",
    ] {
        let auth = format!(", client_auth: {auth}");
        assert_eq!(findings(&auth, true, named), "0 errors, 0 warnings");
    }
    for (auth, tls, found) in [
        (
            ", client_auth: {ca: ca.pem}",
            false,
            "client_auth: clients show certificates by TLS alone",
        ),
        (
            ", client_auth: {ca: a.key}",
            true,
            "client_auth.ca: a.key contains no certificate",
        ),
        (
            ", client_auth: {ca: ca.pem, crl: ca.pem}",
            true,
            "client_auth.crl: ca.pem contains no revocation list",
        ),
        (", client_auth: {}", true, "the key \"ca\" is missing"),
        (
            "",
            true,
            "account[0]: no listener asks clients for certificates",
        ),
    ] {
        let findings = findings(auth, tls, named);
        assert!(findings.contains(found), "{findings}");
        assert!(findings.ends_with("1 error, 0 warnings"), "{findings}");
    }
}

#[test]
fn a_listener_requires_proxy_headers_of_the_networks_that_it_names() {
    let listen = |trusted: &str| {
        let item = format!("{{address: 127.0.0.1:8080, proxy_protocol: {{trusted: {trusted}}}}}");
        folder(&format!("listen: [{item}]\n"), &[])
    };
    let settings = listen("[10.0.0.0/8, \"::ffff:192.0.2.0/120\"]").settings();
    let [listener] = settings.listen.as_slice() else {
        panic!("{:?}", settings.listen);
    };
    let trusted = ["10.0.0.0/8", "192.0.2.0/24"].map(|network| network.parse().unwrap());
    assert_eq!(listener.proxy_protocol.as_deref(), Some(&trusted[..]));
    assert_eq!(
        listener.to_string(),
        "127.0.0.1:8080 with the PROXY protocol"
    );
    for (trusted, found) in [
        ("[]", "trusted: no peer may send a PROXY header\n  name the"),
        (
            "[10.0.0.1/8]",
            "trusted[0]: `10.0.0.1/8` is an address within",
        ),
        (
            "[0.0.0.0/0]",
            "warning: listen[0].proxy_protocol.trusted[0]: every client",
        ),
    ] {
        let findings = listen(trusted).findings();
        assert!(findings.contains(found), "{findings}");
    }
}

#[test]
fn keys_of_all_usual_forms_are_read() {
    let work = TempDir::new().unwrap();
    openssl(&work, &["genrsa", "-out", "pkcs8", "2048"]);
    openssl(
        &work,
        &["rsa", "-in", "pkcs8", "-traditional", "-out", "pkcs1"],
    );
    // With the curve's parameters before the key.
    openssl(
        &work,
        &["ecparam", "-name", "prime256v1", "-genkey", "-out", "sec1"],
    );
    openssl(
        &work,
        &["genpkey", "-algorithm", "ed25519", "-out", "ed25519"],
    );
    let begins = [
        ("pkcs8", "-----BEGIN PRIVATE KEY"),
        ("pkcs1", "-----BEGIN RSA PRIVATE KEY"),
        ("sec1", "-----BEGIN EC PARAMETERS"),
        ("ed25519", "-----BEGIN PRIVATE KEY"),
    ];
    for (key, begin) in begins {
        let request = [
            "req", "-x509", "-new", "-key", key, "-out", "pem", "-days", "30",
        ];
        openssl(&work, &[&request[..], &["-subj", "/CN=a"]].concat());
        let text = |name| fs::read_to_string(work.path().join(name)).unwrap();
        let files = [("a.pem", &*text("pem")), ("a.key", &*text(key))];
        assert!(files[1].1.starts_with(begin), "{}", files[1].1);
        let folder = folder(TWO, &files);
        assert_eq!(folder.findings(), "0 errors, 0 warnings", "{key}");
    }
}

#[test]
fn every_certificate_that_is_of_no_use_is_told_at_once() {
    let listen = "\
listen:
  - address: 127.0.0.1:1
    tls:
      - {certificate: missing.pem, key: missing.key}
      - {certificate: a.key, key: a.pem}
      - {certificate: a.pem, key: b.key}
      - {certificate: a.pem, key: encrypted.key}
      - {certificate: broken.pem, key: a.key}
      - {certificate: nonsense.pem, key: nonsense.key}
  - {address: 127.0.0.1:2, tls: {certificate: a.pem}}
  - {address: 127.0.0.1:3, tls: []}
  - {address: 127.0.0.1:4, tls: true}
";
    let (a, b) = (Certificate::of("a"), Certificate::of("b"));
    let work = TempDir::new().unwrap();
    fs::write(work.path().join("key"), &a.key).unwrap();
    let encrypt = ["pkey", "-in", "key", "-aes256", "-passout", "pass:secret"];
    openssl(&work, &[&encrypt[..], &["-out", "encrypted"]].concat());
    let encrypted = fs::read_to_string(work.path().join("encrypted")).unwrap();
    let (half, _) = a.certificate.split_at(a.certificate.len() / 2);
    let nonsense = |kind| format!("-----BEGIN {kind}-----\nAAAA\n-----END {kind}-----\n");
    let folder = folder(
        listen,
        &[
            ("a.pem", &a.certificate),
            ("a.key", &a.key),
            ("b.key", &b.key),
            ("encrypted.key", &encrypted),
            ("broken.pem", half),
            ("nonsense.pem", &nonsense("CERTIFICATE")),
            ("nonsense.key", &nonsense("PRIVATE KEY")),
        ],
    );
    insta::assert_snapshot!(folder.findings(), @r#"
    gateway.yaml:4:23: listen[0].tls[0].certificate: missing.pem cannot be read: No such file or directory (os error 2)
      paths are relative to the folder of gateway.yaml
    gateway.yaml:4:41: listen[0].tls[0].key: missing.key cannot be read: No such file or directory (os error 2)
      paths are relative to the folder of gateway.yaml
    gateway.yaml:5:23: listen[0].tls[1].certificate: a.key contains no certificate
      it must be PEM, which begins with -----BEGIN CERTIFICATE-----
    gateway.yaml:5:35: listen[0].tls[1].key: a.pem contains no private key
      it must be PEM, which begins with -----BEGIN PRIVATE KEY-----
    gateway.yaml:6:35: listen[0].tls[2].key: b.key is not the key of the certificate
      the first certificate of a chain must be the server's own
    gateway.yaml:7:35: listen[0].tls[3].key: encrypted.key contains an encrypted key, which the gateway has no password for
      decrypt it with `openssl pkey`, and let only the gateway read the file
    gateway.yaml:8:23: listen[0].tls[4].certificate: broken.pem is broken: it ends within a section
    gateway.yaml:9:23: listen[0].tls[5].certificate: nonsense.pem contains a certificate that cannot be used: BadEncoding
      `openssl x509 -text` shows what it is, which must be X.509 of version 3
    gateway.yaml:9:42: listen[0].tls[5].key: nonsense.key contains a key that cannot be used: failed to parse private key as RSA, ECDSA, or EdDSA
      RSA of 2048 to 8192 bits, ECDSA and Ed25519 can be
    gateway.yaml:10:28: listen[1].tls: the key "key" is missing
      name the files of both the certificate and its private key
    gateway.yaml:11:28: listen[2].tls: there is no certificate
      write {certificate: PATH, key: PATH} or {acme: DOMAIN}
    gateway.yaml:12:33: listen[3].tls: expected keys and values, found `true`
      its keys are certificate, key, acme
    12 errors, 0 warnings
    "#);
}

#[test]
fn of_files_that_are_not_pem_is_told_how_to_make_it_of_them() {
    let pair = Certificate::of("a");
    let work = TempDir::new().unwrap();
    fs::write(work.path().join("a.pem"), &pair.certificate).unwrap();
    fs::write(work.path().join("a.key"), &pair.key).unwrap();
    let made = |command: &str| {
        openssl(&work, &command.split(' ').collect::<Vec<_>>());
        fs::read(work.path().join("made")).unwrap()
    };
    let pkcs12 = made("pkcs12 -export -in a.pem -inkey a.key -passout pass: -out made");
    let folder = folder(TWO, &[]);
    for (certificate, key) in [
        (
            made("x509 -in a.pem -outform DER -out made"),
            made("pkey -in a.key -outform DER -out made"),
        ),
        (
            made("crl2pkcs7 -nocrl -certfile a.pem -outform DER -out made"),
            made("genpkey -algorithm ed25519 -outform DER -out made"),
        ),
        (pkcs12.clone(), pkcs12),
    ] {
        folder.write_bytes("a.pem", &certificate);
        folder.write_bytes("a.key", &key);
        insta::allow_duplicates! {
            insta::assert_snapshot!(folder.findings(), @"
            gateway.yaml:4:24: listen[1].tls.certificate: a.pem is not PEM but binary
              `openssl x509 -inform DER` makes PEM of it, and `openssl pkcs12 -nokeys` of PKCS#12
            gateway.yaml:4:36: listen[1].tls.key: a.key is not PEM but binary
              `openssl pkey -inform DER` makes PEM of it, and `openssl pkcs12 -nocerts -noenc` of PKCS#12
            2 errors, 0 warnings
            ");
        }
    }
}

#[test]
fn a_path_that_is_right_is_not_blamed() {
    let listen = TWO.replace("a.pem", "limits");
    let folder = folder(&listen, &[]);
    folder.write("a.key", "");
    folder.write_bytes("limits/overrides.yaml", b"\xff");
    insta::assert_snapshot!(folder.findings(), @"
    gateway.yaml:4:24: listen[1].tls.certificate: limits cannot be read: Is a directory (os error 21)
    gateway.yaml:4:37: listen[1].tls.key: a.key contains no private key
      it must be PEM, which begins with -----BEGIN PRIVATE KEY-----
    limits/overrides.yaml: the file cannot be read: it is not text in UTF-8: invalid utf-8 sequence of 1 bytes from index 0
    3 errors, 0 warnings
    ");
}

#[test]
fn what_stands_around_a_certificate_need_not_be_utf8() {
    let pair = Certificate::of("a");
    let folder = folder(TWO, &[("a.key", &pair.key)]);
    let attributes = b"Bag Attributes\n    friendlyName: Z\xfcrich\n";
    let file = [&attributes[..], pair.certificate.as_bytes()].concat();
    folder.write_bytes("a.pem", &file);
    assert_eq!(folder.findings(), "0 errors, 0 warnings");
}

#[test]
fn a_certificate_of_the_first_version_is_refused_with_a_hint() {
    let pair = Certificate::of("a");
    let first = include_str!("testdata/version1.pem");
    let folder = folder(TWO, &[("a.pem", first), ("a.key", &pair.key)]);
    insta::assert_snapshot!(folder.findings(), @"
    gateway.yaml:4:24: listen[1].tls.certificate: a.pem contains a certificate that cannot be used: UnsupportedCertVersion
      `openssl x509 -text` shows what it is, which must be X.509 of version 3
    1 error, 0 warnings
    ");
}

#[test]
fn a_certificate_that_is_not_valid_yet_is_warned_of() {
    let pair = Certificate::of("a");
    let future = include_str!("testdata/future.pem");
    let folder = folder(TWO, &[("a.pem", future), ("a.key", &pair.key)]);
    let found = folder.findings();
    let warning = "the certificate in a.pem is not valid before 2100-01-01T00:00:00Z\n  \
                   look at this machine's clock\n";
    assert!(found.contains(warning), "{found}");
}

#[test]
fn a_certificate_that_has_expired_or_soon_will_is_warned_of() {
    let expired = include_str!("testdata/expired.pem");
    let soon = Certificate::lasting("a.example.com", 13);
    let files = [("a.pem", &*soon.certificate), ("a.key", &*soon.key)];
    let folder = folder(TWO, &files);
    let found = folder.findings();
    let warning = "gateway.yaml:4:24: warning: listen[1].tls.certificate: \
                   the certificate in a.pem expires at 20";
    assert!(found.starts_with(warning), "{found}");
    assert!(found.ends_with("0 errors, 1 warning"), "{found}");

    folder.write("a.pem", expired);
    let found = folder.findings();
    let warning = "the certificate in a.pem expired at 2026-02-01T00:00:00Z\n  \
                   renew it; a file that changes is loaded without a restart\n";
    assert!(found.contains(warning), "{found}");
}
