//! Where compression is configured; its keys have their tests beside them.

use weir_compression::{Compress, Compression};

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
        steps.find::<Compress>().map(|step| step.keys().clone())
    };
    assert_eq!(of("", ""), None);
    assert_eq!(of(", compression: {}", ""), Some(Compression::default()));
    assert_eq!(of(", compression: {}", ", compression: off"), None);
    let own = of(
        ", compression: {min_bytes: 1}",
        ", compression: {types: text/html}",
    );
    let expected = Compression {
        types: vec!["text/html".to_owned()],
        ..Compression::default()
    };
    assert_eq!(own, Some(expected));
}

#[test]
fn it_is_off_or_has_keys() {
    let found = folder("", ", compression: on").findings();
    assert!(
        found.contains("`on` is neither `off` nor keys and values"),
        "{found}"
    );
    assert!(found.contains("1 error, "), "{found}");
}
