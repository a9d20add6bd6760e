//! `http3` on a listener.

use weir_server::AltService;
use weir_testing::certificates::Certificate;

use super::routing::folder;
use crate::testing::Folder;

const TLS: &str = "tls: {certificate: a.pem, key: a.key}";

/// A gateway with this listener beside its address.
fn listening(keys: &str) -> Folder {
    let listen = format!("listen: [{{address: \"127.0.0.1:8443\", {keys}}}]");
    let folder = folder(&listen, "match: {}, upstream: app");
    let certificate = Certificate::of("a.example.com");
    folder.write("a.pem", &certificate.certificate);
    folder.write("a.key", &certificate.key);
    folder
}

#[test]
fn what_cannot_speak_it_is_refused_with_a_remedy() {
    for (keys, told, remedy) in [
        ("http3: true", "HTTP/3 is always encrypted", "add `tls`"),
        (
            "http3: {port: 443}",
            "HTTP/3 is always encrypted",
            "add `tls`",
        ),
        (
            &format!("{TLS}, proxy_protocol: {{trusted: [10.0.0.1]}}, http3: true"),
            "the PROXY protocol does not say who a client of HTTP/3 is",
            "a listener of its own",
        ),
        (
            &format!("{TLS}, http3: maybe"),
            "expected true, false or keys, found `maybe`",
            "write `http3: true`",
        ),
        (&format!("{TLS}, http3: {{port: 0}}"), "http3.port", ""),
        (
            &format!("{TLS}, client_auth: {{ca: a.pem}}, http3: {{early_data: true}}"),
            "early data comes before the certificate of its client",
            "leave one of them out",
        ),
        (
            &format!("{TLS}, http3: {{early_data: maybe}}"),
            "http3.early_data",
            "",
        ),
    ] {
        let found = listening(keys).findings();
        assert!(found.contains("listen[0].http3"), "{keys}: {found}");
        assert!(found.contains(told), "{keys}: {found}");
        assert!(found.contains(remedy), "{keys}: {found}");
    }
}

#[test]
fn a_build_without_it_names_the_feature() {
    let found = listening(&format!("{TLS}, http3: true")).findings();
    match cfg!(feature = "http3") {
        true => assert_eq!(found, "0 errors, 0 warnings"),
        false => assert!(found.contains("--features http3"), "{found}"),
    }
}

#[test]
fn it_can_be_withdrawn_in_any_build() {
    let settings = listening(&format!("{TLS}, http3: false")).settings();
    let listener = &settings.listen[0];
    assert_eq!(listener.alt_service, Some(AltService::Withdrawn));
    assert!(listener.to_string().ends_with(" without HTTP/3"));
    let settings = listening(TLS).settings();
    assert_eq!(settings.listen[0].alt_service, None);
}

#[cfg(feature = "http3")]
#[test]
fn what_clients_are_told_is_the_listeners_port_for_a_day_and_no_early_data_unless_it_is_said() {
    let told = |http3: &str| {
        let settings = listening(&format!("{TLS}, http3: {http3}")).settings();
        assert!(settings.listen[0].to_string().ends_with(" with HTTP/3"));
        match settings.listen[0].alt_service {
            Some(AltService::Announced {
                port,
                max_age,
                early_data,
            }) => (port.map(std::num::NonZero::get), max_age, early_data),
            _ => panic!("no HTTP/3"),
        }
    };
    let day = std::time::Duration::from_secs(86_400);
    assert_eq!(told("true"), (None, day, false));
    assert_eq!(told("{max_age: 1h}"), (None, day / 24, false));
    assert_eq!(told("{port: 443}"), (Some(443), day, false));
    assert_eq!(told("{early_data: true}"), (None, day, true));
    assert_eq!(told("{early_data: false}"), (None, day, false));
}
