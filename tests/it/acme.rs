//! Certificates by ACME: from a real ACME server, which looks at the challenges.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;

use crate::support::pebble::{EXTERNAL_ACCOUNT, Pebble, PebbleSettings};
use crate::support::tls::{self, Authority, Certificate, Secure, shown, trusting_roots};
use crate::support::*;

pub(crate) const DOMAIN: &str = "a.example.com";

/// A gateway with a plain listener and one with this `tls`, where Pebble looks at challenges.
pub(crate) fn setup(pebble: &Pebble, upstream: &Upstream, tls: &str) -> Setup {
    let Pebble {
        http, tls: port, ..
    } = pebble;
    Setup::before(upstream)
        .file("ca.pem", pebble.ca())
        .listening(&format!(
            "[{{address: \"127.0.0.1:{http}\"}}, {{address: \"127.0.0.1:{port}\", tls: {tls}}}]"
        ))
}

/// The usual keys, and more of them.
pub(crate) fn acme(pebble: &Pebble, more: &str) -> String {
    let keys = pebble.keys();
    format!("{{acme: {{domains: {DOMAIN}, {keys}, {more}}}}}")
}

fn connect(pebble: &Pebble, config: &Arc<ClientConfig>) -> io::Result<Client<Secure>> {
    let address = SocketAddr::from(([127, 0, 0, 1], pebble.tls));
    tls::connect(address, DOMAIN, config)
}

/// Waits for a certificate that Pebble has signed.
pub(crate) fn connected(pebble: &Pebble) -> Client<Secure> {
    let config = trusting_roots(&[pebble.root()], &["http/1.1"]);
    eventually("a certificate", || connect(pebble, &config).ok())
}

fn ready(gateway: &Gateway) -> (u16, String) {
    let answer = gateway.admin(&get("/readyz"));
    (answer.status, answer.text().trim().to_owned())
}

fn orders(gateway: &Gateway, outcome: &str) -> f64 {
    let labels = format!("{{domain=\"{DOMAIN}\",outcome=\"{outcome}\"}}");
    let metric = format!("weir_acme_orders_total{labels}");
    gateway.metric(&metric).unwrap_or_default()
}

/// Every request counts towards a limit of one: a challenge must not.
fn limited(setup: Setup) -> Setup {
    setup
        .limits(&["L: {per: address, burst: 1, count: 1, period: 1h}"])
        .limited_by("L")
}

#[test]
fn each_challenge_yields_a_certificate_and_never_reaches_limits_or_the_app() {
    for challenge in ["tls-alpn-01", "http-01"] {
        let (pebble, upstream) = (Pebble::start(PebbleSettings::default()), Upstream::start());
        let tls = acme(
            &pebble,
            &format!("challenge: {challenge}, email: me@example.com"),
        );
        let gateway = limited(setup(&pebble, &upstream, &tls)).start();
        let mut client = connected(&pebble);
        assert_eq!(upstream.count(), 0, "{challenge}");
        assert_eq!(client.send(&get("/")).status, 200, "{challenge}");
        assert_eq!(client.send(&get("/")).status, 429, "{challenge}");
        gateway.logs("certificate obtained", 1);
        let line = gateway.log();
        let line = line
            .iter()
            .find(|line| line["message"] == "certificate obtained");
        assert_eq!(line.unwrap()["challenge"], challenge);
        let (succeeded, failed) = (orders(&gateway, "success"), orders(&gateway, "failure"));
        assert_eq!((succeeded, failed), (1.0, 0.0), "{challenge}");
        assert_eq!(ready(&gateway), (200, "ready".to_owned()));
        let expiry = gateway.metric("weir_tls_certificate_expiry_timestamp_seconds");
        assert!(expiry.unwrap() > 0.0, "{challenge}");
    }
}

/// Nothing that keeps strangers out, or leads them elsewhere, keeps the authority from looking: it
/// has no certificate to show, and comes from any address.
#[test]
fn neither_certificates_of_clients_nor_blocks_nor_redirects_are_in_the_way_of_a_challenge() {
    for challenge in ["tls-alpn-01", "http-01"] {
        let (pebble, upstream) = (Pebble::start(PebbleSettings::default()), Upstream::start());
        let tls = acme(&pebble, &format!("challenge: {challenge}"));
        let Pebble {
            http, tls: port, ..
        } = &pebble;
        let authority = Authority::new("clients");
        let _gateway = Setup::before(&upstream)
            .file("ca.pem", pebble.ca())
            .file("clients.pem", &authority.pem())
            .listening(&format!(
                "[{{address: \"127.0.0.1:{http}\", redirect_to_https: true}}, \
                 {{address: \"127.0.0.1:{port}\", tls: {tls}, client_auth: {{ca: clients.pem}}}}]"
            ))
            .key("block: {addresses: [127.0.0.0/8]}")
            .start();
        let red = authority.sign("red", 1);
        let shown = red.shown_to_any(&[pebble.root()], &["http/1.1"]);
        let mut client = eventually("a certificate", || connect(&pebble, &shown).ok());
        assert_eq!(client.send(&get("/")).status, 403, "{challenge}");
        let token = "/.well-known/acme-challenge/token";
        let plain = SocketAddr::from(([127, 0, 0, 1], *http));
        let redirected = Client::connect(plain).send(&get(token));
        assert_eq!(redirected.status, 308, "{challenge}: of nobody");
        let stranger = trusting_roots(&[pebble.root()], &["http/1.1"]);
        let refused = connect(&pebble, &stranger).and_then(|mut client| client.try_send(&get("/")));
        assert!(refused.is_err(), "{challenge}");
        assert_eq!(upstream.count(), 0, "{challenge}");
    }
}

#[test]
fn challenges_of_nobody_are_requests_like_others_and_end_handshakes() {
    let (pebble, upstream) = (Pebble::start(PebbleSettings::default()), Upstream::start());
    let gateway = setup(&pebble, &upstream, &acme(&pebble, "")).start();
    let _client = connected(&pebble);
    let path = "/.well-known/acme-challenge/token";
    assert_eq!(gateway.send(&get(path)).status, 200);
    assert_eq!(upstream.last().target, path);
    let config = trusting_roots(&[pebble.root()], &["acme-tls/1"]);
    let error = connect(&pebble, &config).err().unwrap().to_string();
    assert!(error.contains("NoApplicationProtocol"), "{error}");
}

#[test]
fn accounts_can_be_bound_to_one_at_the_authority() {
    let settings = PebbleSettings {
        bound: true,
        ..PebbleSettings::default()
    };
    let (pebble, upstream) = (Pebble::start(settings), Upstream::start());
    let unbound = setup(&pebble, &upstream, &acme(&pebble, "")).start();
    unbound.logs("no certificate can be obtained yet", 1);
    assert!(unbound.log_text().contains("externalAccountRequired"));
    drop(unbound);
    let (id, key) = EXTERNAL_ACCOUNT;
    let eab = format!("eab: {{key_id: {id}, hmac_key: {{file: eab.key}}}}");
    let setup = setup(&pebble, &upstream, &acme(&pebble, &eab)).file("eab.key", key);
    let _gateway = setup.start();
    assert_eq!(connected(&pebble).send(&get("/")).status, 200);
}

#[test]
fn a_certificate_is_renewed_in_time_and_no_connection_notices() {
    let settings = PebbleSettings {
        validity: 15,
        ..PebbleSettings::default()
    };
    let (mut pebble, upstream) = (Pebble::start(settings), Upstream::start());
    let gateway = setup(&pebble, &upstream, &acme(&pebble, "")).start();
    let mut before = connected(&pebble);
    let config = trusting_roots(&[pebble.root()], &["http/1.1"]);
    gateway.logs("certificate obtained", 2);
    let renewed = connected(&pebble);
    assert_ne!(shown(&before), shown(&renewed));
    assert_eq!(before.send(&get("/")).status, 200);
    assert_eq!(orders(&gateway, "failure"), 0.0);

    // Without the authority, the old one is shown until its end.
    pebble.kill();
    gateway.logs("the certificate cannot be renewed yet", 1);
    let last = connect(&pebble, &config).map(|client| shown(&client));
    match last {
        Ok(last) => assert_ne!(last, shown(&before)),
        // This machine was slow, and it has expired.
        Err(error) => assert!(error.to_string().contains("xpired"), "{error}"),
    }
    assert!(orders(&gateway, "failure") > 0.0);
    // Readiness says when there is none that is valid.
    eventually("the end of the last certificate", || {
        let (status, text) = ready(&gateway);
        assert_eq!(status, 200);
        text.contains("without a valid certificate for a.example.com")
            .then_some(())
    });
}

#[test]
fn a_gateway_serves_without_its_authority_and_gets_the_certificate_when_it_is_back() {
    let mut pebble = Pebble::prepare(PebbleSettings::default());
    let upstream = Upstream::start();
    let gateway = setup(&pebble, &upstream, &acme(&pebble, "")).start();
    gateway.logs("no certificate can be obtained yet", 1);
    assert_eq!(gateway.send(&get("/")).status, 200, "plain HTTP");
    let config = Certificate::of(DOMAIN).trusted(&[]);
    let error = connect(&pebble, &config).err().unwrap().to_string();
    assert!(error.contains("alert"), "{error}");
    let without = "ready, without a valid certificate for a.example.com";
    assert_eq!(ready(&gateway), (200, without.to_owned()));
    pebble.run();
    assert_eq!(connected(&pebble).send(&get("/")).status, 200);
    assert_eq!(ready(&gateway), (200, "ready".to_owned()));
}

#[test]
fn a_certificate_outlives_restarts_and_reloads_and_is_not_ordered_again() {
    let (mut pebble, upstream) = (Pebble::start(PebbleSettings::default()), Upstream::start());
    let gateway = setup(&pebble, &upstream, &acme(&pebble, "")).start();
    let first = shown(&connected(&pebble));
    let config = trusting_roots(&[pebble.root()], &["http/1.1"]);
    let same = || assert_eq!(shown(&connect(&pebble, &config).unwrap()), first);
    let text = gateway.read("gateway.yaml");
    gateway.write("gateway.yaml", &format!("{text}\ngrace: 29s\n"));
    gateway.reload();
    same();
    only_its_user_may_read(&gateway);

    let successor = gateway.successor();
    same();
    drop(gateway);
    same();
    assert_eq!(orders(&successor, "success"), 0.0);
    pebble.kill();
    let folder = successor.folder().to_owned();
    let third = successor.successor();
    drop(successor);
    assert!(folder.exists());
    assert_eq!(shown(&connect(&pebble, &config).unwrap()), first);
    assert_eq!(ready(&third), (200, "ready".to_owned()));
    assert_eq!(orders(&third, "failure"), 0.0);
}

fn only_its_user_may_read(gateway: &Gateway) {
    let folder = gateway.folder().join("acme");
    assert_eq!(folder.metadata().unwrap().mode() & 0o777, 0o700);
    let server = folder.read_dir().unwrap().next().unwrap().unwrap().path();
    let files = server.read_dir().unwrap().map(|file| file.unwrap());
    let mut names: Vec<_> = files
        .map(|file| {
            assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600, "{file:?}");
            file.file_name().into_string().unwrap()
        })
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["a.example.com.pem", "account.json", "lock"]);
}

#[test]
fn an_authority_that_has_lost_the_account_gets_another() {
    let (mut pebble, upstream) = (Pebble::start(PebbleSettings::default()), Upstream::start());
    let gateway = setup(&pebble, &upstream, &acme(&pebble, "")).start();
    let (first, old_root) = (shown(&connected(&pebble)), pebble.root());
    pebble.kill();
    pebble.run();
    assert_ne!(pebble.root(), old_root);
    // A second domain is ordered with the account that is kept.
    let text = gateway.read("gateway.yaml");
    let both = text.replace(DOMAIN, "[a.example.com, b.example.com]");
    gateway.write("gateway.yaml", &both);
    gateway.reload();
    gateway.logs("certificate obtained", 2);
    let config = trusting_roots(&[pebble.root()], &["http/1.1"]);
    let address = SocketAddr::from(([127, 0, 0, 1], pebble.tls));
    let mut client = tls::connect(address, "b.example.com", &config).unwrap();
    assert_eq!(client.send(&get("/")).status, 200);
    let config = trusting_roots(&[old_root], &["http/1.1"]);
    assert_eq!(shown(&connect(&pebble, &config).unwrap()), first);
}

#[test]
fn a_reload_can_put_acme_in_the_place_of_files() {
    let (pebble, upstream) = (Pebble::start(PebbleSettings::default()), Upstream::start());
    let file = Certificate::of(DOMAIN);
    let gateway = setup(&pebble, &upstream, "{certificate: 1.pem, key: 1.key}")
        .file("1.pem", &file.certificate)
        .file("1.key", &file.key)
        .start();
    let trusted = file.trusted(&["http/1.1"]);
    assert_eq!(shown(&connect(&pebble, &trusted).unwrap()), file.der());
    let text = gateway.read("gateway.yaml");
    let tls = acme(&pebble, "challenge: http-01");
    let text = text.replace("{certificate: 1.pem, key: 1.key}", &tls);
    gateway.write("gateway.yaml", &text);
    gateway.reload();
    let obtained: CertificateDer<'_> = shown(&connected(&pebble));
    assert_ne!(obtained, file.der());
    // And back.
    let text = text.replace(&tls, "{certificate: 1.pem, key: 1.key}");
    gateway.write("gateway.yaml", &text);
    gateway.reload();
    assert_eq!(shown(&connect(&pebble, &trusted).unwrap()), file.der());
}
