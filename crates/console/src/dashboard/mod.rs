//! The dashboard: one page, which asks the admin API by itself. Its files are part of the binary.
//!
//! The files hold nothing of the gateway, and so everybody may have them; what they ask for needs
//! the token, or this machine.

use bytes::Bytes;
use http::Response;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http_body_util::Full;

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// By path: the media type, and the contents.
const FILES: [(&str, &str, &str); 11] = [
    ("/", HTML, include_str!("index.html")),
    (
        "/dashboard.svg",
        "image/svg+xml",
        include_str!("dashboard.svg"),
    ),
    ("/dashboard.css", STYLE, include_str!("dashboard.css")),
    (
        "/dashboard.panels.css",
        STYLE,
        include_str!("dashboard.panels.css"),
    ),
    ("/dashboard.js", SCRIPT, include_str!("dashboard.js")),
    (
        "/dashboard.api.js",
        SCRIPT,
        include_str!("dashboard.api.js"),
    ),
    (
        "/dashboard.charts.js",
        SCRIPT,
        include_str!("dashboard.charts.js"),
    ),
    (
        "/dashboard.findings.js",
        SCRIPT,
        include_str!("dashboard.findings.js"),
    ),
    (
        "/dashboard.fleet.js",
        SCRIPT,
        include_str!("dashboard.fleet.js"),
    ),
    (
        "/dashboard.subject.js",
        SCRIPT,
        include_str!("dashboard.subject.js"),
    ),
    (
        "/dashboard.tables.js",
        SCRIPT,
        include_str!("dashboard.tables.js"),
    ),
];

/// Nothing but these files may be loaded and run, nothing else asked, and no page may show this one
/// in a frame. A text that becomes markup is an error even where it could do nothing.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";

const HEADERS: [(HeaderName, &str); 7] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    // Another version has other files of the same names.
    (CACHE_CONTROL, "no-store"),
];

/// Whether this path is the dashboard's.
pub fn has(path: &str) -> bool {
    !path.starts_with("/v1/")
}

/// The file at a path, with its headers.
pub fn file(path: &str) -> Option<Response<Full<Bytes>>> {
    let file = FILES.iter().find(|(known, ..)| *known == path);
    let (_, media_type, contents) = file?;
    let mut response = Response::new(Full::from(*contents));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    Some(response)
}
