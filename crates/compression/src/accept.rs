//! Which coding a client prefers, by its `Accept-Encoding` (RFC 9110, section 12.5.3).

use http::HeaderMap;
use http::header::ACCEPT_ENCODING;
use weir_http::media_type::weight_of;

use super::ContentCoding;

/// The coding that the client wants most, and of equal ones the first that is offered; none if it
/// wants none of them, or the plain body more.
pub(super) fn best(offered: &[ContentCoding], headers: &HeaderMap) -> Option<ContentCoding> {
    if !headers.contains_key(ACCEPT_ENCODING) {
        return None;
    }
    let mut best: Option<(ContentCoding, u16)> = None;
    for &coding in offered {
        let Some(wanted) = quality(headers, coding.name()).filter(|wanted| *wanted > 0) else {
            continue;
        };
        if best.is_none_or(|(_, most)| wanted > most) {
            best = Some((coding, wanted));
        }
    }
    let plain = named(headers, "identity").unwrap_or(0);
    best.filter(|(_, wanted)| *wanted >= plain)
        .map(|(coding, _)| coding)
}

/// The weight of a coding, which may be that of all codings without one of their own.
fn quality(headers: &HeaderMap, name: &str) -> Option<u16> {
    named(headers, name).or_else(|| named(headers, "*"))
}

fn named(headers: &HeaderMap, name: &str) -> Option<u16> {
    weight_of(headers, &ACCEPT_ENCODING, |coding| {
        coding.eq_ignore_ascii_case(name)
            || (name == "gzip" && coding.eq_ignore_ascii_case("x-gzip"))
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use ContentCoding::{Brotli, Gzip, Zstd};

    #[test]
    fn the_greatest_weight_wins_and_then_the_order_of_the_offer() {
        for (accepted, expected) in [
            ("gzip, deflate, br, zstd", Some(Zstd)),
            ("gzip, br", Some(Brotli)),
            ("GZIP ; q=0.5, br;q=0.4", Some(Gzip)),
            ("x-gzip", Some(Gzip)),
            ("zstd;q=0, *;q=0.1", Some(Brotli)),
            ("*", Some(Zstd)),
            ("gzip;q=0.5, identity;q=0.5", Some(Gzip)),
            ("gzip;q=0.5, identity", None),
            ("identity", None),
            ("gzip;q=0", None),
            ("gzip;q=7", None),
            ("*;q=0", None),
            ("deflate", None),
            ("", None),
        ] {
            let value = HeaderValue::from_static(accepted);
            let headers = [(ACCEPT_ENCODING, value)].into_iter().collect();
            assert_eq!(best(&ContentCoding::ALL, &headers), expected, "{accepted}");
        }
        assert_eq!(best(&ContentCoding::ALL, &HeaderMap::new()), None);
        let headers = [(ACCEPT_ENCODING, HeaderValue::from_static("br, gzip"))];
        assert_eq!(
            best(&[Gzip, Brotli], &headers.into_iter().collect()),
            Some(Gzip)
        );
    }
}
