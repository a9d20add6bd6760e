//! `hsts` and `redirect_to_https`.

use super::routing::folder;

#[test]
fn https_that_is_not_there_is_told() {
    let route = "match: {}, upstream: app";
    let findings = |top: &str| folder(top, route).findings();
    let trusted = "client_address: {trusted_proxies: [10.0.0.1]}";
    let hsts = findings("hsts: {max_age: 1d}");
    assert!(hsts.contains("hsts: nothing comes by HTTPS"), "{hsts}");
    assert_eq!(
        findings(&format!("hsts: {{max_age: 1d}}\n{trusted}")),
        "0 errors, 0 warnings"
    );
    let preload = findings(&format!("hsts: {{max_age: 1d, preload: true}}\n{trusted}"));
    assert!(
        preload.contains("hsts.preload: `preload` needs"),
        "{preload}"
    );
    let listen = |value: &str| {
        format!("listen: [{{address: \"127.0.0.1:80\", redirect_to_https: {value}}}]")
    };
    let warned = findings(&listen("true"));
    assert!(
        warned.contains("warning: listen[0].redirect_to_https: no listener has `tls`"),
        "{warned}"
    );
    assert!(warned.contains("redirected for ever"), "{warned}");
    assert_eq!(findings(&listen("false")), "0 errors, 0 warnings");
    let with_port = format!("{}\n{trusted}", listen("{port: 8443}"));
    let settings = folder(&with_port, route).settings();
    let redirect = settings.listen[0].redirect_to_https.as_ref().unwrap();
    assert_eq!(
        redirect.to().to_string(),
        "https://{{ host }}:8443{{ uri }}"
    );
    assert!(
        settings.listen[0]
            .to_string()
            .ends_with(" redirecting to HTTPS")
    );
    for (value, told) in [
        ("8443", "expected true, false or a port"),
        ("{port: 0}", "redirect_to_https.port"),
    ] {
        let found = findings(&listen(value));
        assert!(found.contains(told) && found.contains("1 error"), "{found}");
    }
}
