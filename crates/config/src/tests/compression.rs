//! Which responses are compressed, as it is written.

use std::sync::Arc;

use weir_middleware::{Compression, ContentCoding};

use super::*;

fn folder(defaults: &str, route: &str) -> Folder {
    let gateway = format!(
        "defaults: {{limits: [RequestsPerAddress]{defaults}}}\n\
         upstreams: {{app: {{servers: [\"http://a:1\"]}}}}\n\
         routes: [{{match: {{path: \"/*\"}}, upstream: app{route}}}]\n"
    );
    Folder::with(&[
        ("gateway.yaml", &gateway),
        ("limits/defaults.yaml", DEFAULTS),
    ])
}

#[test]
fn responses_are_compressed_where_the_route_or_the_defaults_say_so() {
    let of = |defaults: &str, route: &str| {
        let settings = folder(defaults, route).settings();
        let steps = &settings.routes[0].response_steps;
        steps.find::<Arc<Compression>>().map(|it| (**it).clone())
    };
    assert_eq!(of("", ""), None);
    assert_eq!(of(", compression: {}", ""), Some(Compression::default()));
    assert_eq!(of(", compression: {}", ", compression: off"), None);
    let own = ", compression: {algorithms: [gzip, br], types: Text/HTML, min_bytes: 2KiB}";
    let expected = Compression {
        algorithms: vec![ContentCoding::Gzip, ContentCoding::Brotli],
        types: vec!["text/html".to_owned()],
        min_bytes: 2048,
    };
    assert_eq!(of(", compression: {min_bytes: 1}", own), Some(expected));
}

#[test]
fn what_is_not_understood_is_refused() {
    for (keys, message) in [
        ("{algorithms: []}", "no algorithm compresses nothing"),
        ("{algorithms: deflate}", "deflate"),
        ("{types: [text]}", "`text` is not a media type"),
        (
            "{types: [\"text/html; charset=utf-8\"]}",
            "is not a media type",
        ),
        ("{types: [\"*/*\"]}", "`*/*` is not a media type"),
        ("{min_bytes: few}", "is not a size"),
        ("on", "`on` is neither `off` nor keys and values"),
    ] {
        let found = folder("", &format!(", compression: {keys}")).findings();
        assert!(found.contains(message), "{keys}: {found}");
        assert!(found.contains("1 error, "), "{keys}: {found}");
    }
}
