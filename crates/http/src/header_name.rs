//! The names of header lines.

use http::HeaderName;
use http::header::{self, InvalidHeaderName};

/// The name of a header line, in any case.
///
/// Those that most heads have are found by comparing them with their usual spellings, which takes a
/// fourth of the instructions of [`HeaderName::from_bytes`], and a tenth for the names that `http`
/// has no constant for, which would each take memory.
///
/// # Errors
/// When it has a byte that no name may have, or is too long.
pub fn parse(name: &[u8]) -> Result<HeaderName, InvalidHeaderName> {
    usual(name).map_or_else(|| HeaderName::from_bytes(name), Ok)
}

macro_rules! find {
    ($name:expr; $($lower:literal | $capital:literal => $found:expr,)*) => {
        match $name {
            $($lower | $capital => Some(const { $found }),)*
            _ => None,
        }
    };
}

/// A name in one of the spellings that clients and servers have for it. The length leaves few of
/// them.
#[inline]
fn usual(name: &[u8]) -> Option<HeaderName> {
    match name.len() {
        4 => find!(name;
            b"host" | b"Host" => header::HOST,
            b"date" | b"Date" => header::DATE,
            b"etag" | b"ETag" => header::ETAG,
            b"vary" | b"Vary" => header::VARY,
        ),
        6 => find!(name;
            b"accept" | b"Accept" => header::ACCEPT,
            b"cookie" | b"Cookie" => header::COOKIE,
            b"server" | b"Server" => header::SERVER,
            b"origin" | b"Origin" => header::ORIGIN,
        ),
        7 => find!(name;
            b"referer" | b"Referer" => header::REFERER,
        ),
        8 => find!(name;
            b"location" | b"Location" => header::LOCATION,
            b"priority" | b"Priority" => HeaderName::from_static("priority"),
        ),
        9 => find!(name;
            b"sec-ch-ua" | b"Sec-Ch-Ua" => HeaderName::from_static("sec-ch-ua"),
        ),
        10 => find!(name;
            b"user-agent" | b"User-Agent" => header::USER_AGENT,
            b"connection" | b"Connection" => header::CONNECTION,
            b"set-cookie" | b"Set-Cookie" => header::SET_COOKIE,
        ),
        12 => find!(name;
            b"content-type" | b"Content-Type" => header::CONTENT_TYPE,
            b"x-request-id" | b"X-Request-Id" => HeaderName::from_static("x-request-id"),
        ),
        13 => find!(name;
            b"authorization" | b"Authorization" => header::AUTHORIZATION,
            b"cache-control" | b"Cache-Control" => header::CACHE_CONTROL,
            b"last-modified" | b"Last-Modified" => header::LAST_MODIFIED,
            b"if-none-match" | b"If-None-Match" => header::IF_NONE_MATCH,
            b"accept-ranges" | b"Accept-Ranges" => header::ACCEPT_RANGES,
        ),
        14 => find!(name;
            b"content-length" | b"Content-Length" => header::CONTENT_LENGTH,
            b"sec-fetch-site" | b"Sec-Fetch-Site" => HeaderName::from_static("sec-fetch-site"),
            b"sec-fetch-mode" | b"Sec-Fetch-Mode" => HeaderName::from_static("sec-fetch-mode"),
            b"sec-fetch-dest" | b"Sec-Fetch-Dest" => HeaderName::from_static("sec-fetch-dest"),
            b"sec-fetch-user" | b"Sec-Fetch-User" => HeaderName::from_static("sec-fetch-user"),
        ),
        15 => find!(name;
            b"accept-encoding" | b"Accept-Encoding" => header::ACCEPT_ENCODING,
            b"accept-language" | b"Accept-Language" => header::ACCEPT_LANGUAGE,
            b"x-forwarded-for" | b"X-Forwarded-For" => HeaderName::from_static("x-forwarded-for"),
        ),
        16 => find!(name;
            b"content-encoding" | b"Content-Encoding" => header::CONTENT_ENCODING,
            b"sec-ch-ua-mobile" | b"Sec-Ch-Ua-Mobile" => HeaderName::from_static("sec-ch-ua-mobile"),
        ),
        17 => find!(name;
            b"transfer-encoding" | b"Transfer-Encoding" => header::TRANSFER_ENCODING,
            b"if-modified-since" | b"If-Modified-Since" => header::IF_MODIFIED_SINCE,
            b"x-forwarded-proto" | b"X-Forwarded-Proto" =>
                HeaderName::from_static("x-forwarded-proto"),
        ),
        18 => find!(name;
            b"sec-ch-ua-platform" | b"Sec-Ch-Ua-Platform" =>
                HeaderName::from_static("sec-ch-ua-platform"),
        ),
        25 => find!(name;
            b"upgrade-insecure-requests" | b"Upgrade-Insecure-Requests" =>
                header::UPGRADE_INSECURE_REQUESTS,
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As words begin: in capitals.
    fn capitalized(name: &str) -> String {
        let words = name.split('-').map(|word| {
            let (first, rest) = word.split_at(word.len().min(1));
            first.to_uppercase() + rest
        });
        words.collect::<Vec<_>>().join("-")
    }

    #[test]
    fn no_name_is_taken_for_another_in_any_case() {
        let names = "host date etag vary accept cookie server origin referer location priority \
            sec-ch-ua user-agent connection set-cookie content-type x-request-id authorization \
            cache-control last-modified if-none-match accept-ranges content-length sec-fetch-site \
            sec-fetch-mode sec-fetch-dest sec-fetch-user accept-encoding accept-language \
            x-forwarded-for content-encoding sec-ch-ua-mobile transfer-encoding if-modified-since \
            x-forwarded-proto sec-ch-ua-platform upgrade-insecure-requests te from x-api-key";
        for name in names.split_whitespace() {
            for spelling in [
                name.to_owned(),
                capitalized(name),
                name.to_uppercase(),
                name.replace("tag", "Tag"),
            ] {
                let parsed = parse(spelling.as_bytes()).unwrap();
                assert_eq!(parsed, HeaderName::from_bytes(name.as_bytes()).unwrap());
                assert_eq!(parsed.as_str(), name);
            }
        }
        for wrong in ["", "a b", "host:", "h\u{f6}st"] {
            assert!(parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
