//! Certificates by ACME, which connections of QUIC have as those of TCP do.

use super::*;
use crate::acme::{DOMAIN, acme, connected, setup};
use crate::support::pebble::{Pebble, PebbleSettings};
use crate::support::tls::trusting_roots;

#[test]
fn a_certificate_that_is_renewed_is_shown_to_new_connections() {
    let settings = PebbleSettings {
        validity: 15,
        ..PebbleSettings::default()
    };
    let (pebble, upstream) = (Pebble::start(settings), Upstream::start());
    let tls = format!("{}, http3: true", acme(&pebble, ""));
    let gateway = setup(&pebble, &upstream, &tls).start();
    drop(connected(&pebble));
    let config = trusting_roots(&[pebble.root()], &["h3"]);
    let to = SocketAddr::from(([127, 0, 0, 1], pebble.tls));
    http2::run(async {
        let mut before = connect(to, DOMAIN, &config).await;
        assert_eq!(before.get("/").await.unwrap().status(), 200);
        gateway.logs("certificate obtained", 2);
        let mut renewed = connect(to, DOMAIN, &config).await;
        assert_ne!(before.shown(), renewed.shown());
        for client in [&mut before, &mut renewed] {
            assert_eq!(client.get("/").await.unwrap().status(), 200);
        }
    });
}
