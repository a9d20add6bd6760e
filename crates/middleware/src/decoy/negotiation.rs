//! The forms that a response can have: compressed, a range, or only the status that nothing has
//! changed, or that something has (RFC 9110, sections 8.4, 13 and 14).
//!
//! A client that is shown an entity tag may ask with it, and one that is told `accept-ranges` may
//! ask for a range. A decoy that treats all of them alike is found out where the app does not. So
//! it does what the route's real responses have been seen to do, and what they promise where no
//! client has asked yet.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, ETAG, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE,
    IF_UNMODIFIED_SINCE, LAST_MODIFIED, ORIGIN, RANGE,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use weir_http::list;
use weir_rules::preflighted;

/// The request's part in the form of its response.
#[derive(Clone, Debug, Default)]
pub struct Negotiation {
    pub(super) is_head: bool,
    is_get: bool,
    /// None for all other methods.
    pub(super) options: Option<OptionsKind>,
    /// Makes apps allow a browser to read the response.
    pub(super) origin: Option<HeaderValue>,
    pub(super) accepts_gzip: bool,
    if_match: Option<HeaderValue>,
    if_unmodified_since: Option<HeaderValue>,
    if_none_match: Option<HeaderValue>,
    if_modified_since: Option<HeaderValue>,
    range: Option<HeaderValue>,
    if_range: Option<HeaderValue>,
}

/// The two uses of OPTIONS, which apps respond to in different places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OptionsKind {
    /// Asks whether a page of another origin may send a request.
    Preflight,
    /// Asks for the methods of a resource.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseForm {
    Full(FullResponse),
    /// 304.
    NotModified,
    /// 206.
    Partial,
    /// 412.
    PreconditionFailed,
}

/// The kind of request that a full response is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FullResponse {
    /// By GET or HEAD.
    pub(super) is_read: bool,
    /// With gzip accepted.
    pub(super) is_compressed: bool,
}

impl FullResponse {
    pub(super) fn with_other_methods(self) -> Self {
        Self {
            is_read: !self.is_read,
            ..self
        }
    }

    pub(super) fn with_compression(self, is_compressed: bool) -> Self {
        Self {
            is_compressed,
            ..self
        }
    }
}

/// The part of a body that a request gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Selection {
    Full,
    NotModified,
    Range(Range<usize>),
    Unsatisfiable,
    PreconditionFailed,
}

/// Keeps the first of several lines.
fn keep_first(kept: &mut Option<HeaderValue>, value: &HeaderValue) {
    kept.get_or_insert_with(|| value.clone());
}

impl Negotiation {
    /// Reads the method and the headers of a request.
    pub fn new(method: &Method, headers: &HeaderMap) -> Self {
        let is_head = *method == Method::HEAD;
        let is_get = *method == Method::GET;
        let asks = is_get || is_head;
        let mut said = Self {
            is_head,
            is_get,
            options: (*method == Method::OPTIONS).then(|| match preflighted(method, headers) {
                Some(_) => OptionsKind::Preflight,
                None => OptionsKind::Other,
            }),
            ..Self::default()
        };
        // Requests have few headers, so one pass costs less than a look-up for each name.
        for (name, value) in headers {
            match *name {
                ORIGIN => keep_first(&mut said.origin, value),
                ACCEPT_ENCODING => said.accepts_gzip |= accepts_gzip(value),
                IF_MATCH if asks => keep_first(&mut said.if_match, value),
                IF_UNMODIFIED_SINCE if asks => keep_first(&mut said.if_unmodified_since, value),
                IF_NONE_MATCH if asks => keep_first(&mut said.if_none_match, value),
                IF_MODIFIED_SINCE if asks => keep_first(&mut said.if_modified_since, value),
                RANGE if is_get => keep_first(&mut said.range, value),
                IF_RANGE if is_get => keep_first(&mut said.if_range, value),
                _ => {}
            }
        }
        said
    }

    pub(super) fn full(&self) -> FullResponse {
        FullResponse {
            is_read: self.is_get || self.is_head,
            is_compressed: self.accepts_gzip,
        }
    }

    /// The form of a response of this status, if `full` is the status of a full one.
    pub(super) fn form(&self, status: StatusCode, full: StatusCode) -> Option<ResponseForm> {
        match status {
            _ if status == full => Some(ResponseForm::Full(self.full())),
            _ if full != StatusCode::OK => None,
            StatusCode::NOT_MODIFIED => Some(ResponseForm::NotModified),
            StatusCode::PARTIAL_CONTENT => Some(ResponseForm::Partial),
            StatusCode::PRECONDITION_FAILED if self.has_precondition() => {
                Some(ResponseForm::PreconditionFailed)
            }
            _ => None,
        }
    }

    fn has_precondition(&self) -> bool {
        self.if_match.is_some() || self.if_unmodified_since.is_some()
    }

    /// Whether the preconditions exclude a response with these headers.
    fn precondition_fails(&self, response: &HeaderMap) -> bool {
        match (&self.if_match, &self.if_unmodified_since) {
            (Some(tags), _) => {
                let tag = response.get(ETAG);
                // A weak tag is the same as none here (RFC 9110, section 13.1.1).
                let is_same = |tag: &HeaderValue| {
                    let is_weak = tag.as_bytes().starts_with(b"W/");
                    tags == "*" || !is_weak && has_tag(tags, tag)
                };
                tag.is_some_and(|tag| !is_same(tag))
            }
            (None, Some(since)) => {
                let changed = response.get(LAST_MODIFIED).and_then(date);
                let dates = changed.zip(date(since));
                dates.is_some_and(|(at, since)| at > since)
            }
            (None, None) => false,
        }
    }

    /// Whether the client has the response with these headers.
    fn is_unmodified(&self, response: &HeaderMap) -> bool {
        match (&self.if_none_match, &self.if_modified_since) {
            (Some(tags), _) => response.get(ETAG).is_some_and(|tag| has_tag(tags, tag)),
            (None, Some(since)) => {
                let changed = response.get(LAST_MODIFIED).and_then(date);
                changed
                    .zip(date(since))
                    .is_some_and(|(at, since)| at <= since)
            }
            (None, None) => false,
        }
    }

    /// The wanted ranges of the body, unless `If-Range` is about another body.
    fn range(&self, response: &HeaderMap) -> Option<&str> {
        let has_same = |condition: &HeaderValue| {
            let validators = [response.get(ETAG), response.get(LAST_MODIFIED)];
            let is_weak = condition.as_bytes().starts_with(b"W/");
            !is_weak && validators.contains(&Some(condition))
        };
        if !self.if_range.as_ref().is_none_or(has_same) {
            return None;
        }
        self.range.as_ref()?.to_str().ok()?.strip_prefix("bytes=")
    }
}

/// The conditional and range headers that a route has been seen to ignore. Decoys show no more than
/// real responses do, so all that they show is honoured unless the route was seen to ignore it.
#[derive(Debug, Default)]
pub(super) struct IgnoredHeaders {
    preconditions: AtomicBool,
    tags: AtomicBool,
    dates: AtomicBool,
    ranges: AtomicBool,
}

impl IgnoredHeaders {
    pub(super) fn inherit(&self, earlier: &Self) {
        let copy = |to: &AtomicBool, from: &AtomicBool| {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        };
        copy(&self.preconditions, &earlier.preconditions);
        copy(&self.tags, &earlier.tags);
        copy(&self.dates, &earlier.dates);
        copy(&self.ranges, &earlier.ranges);
    }

    /// Learns which conditional headers apps ignore.
    pub(super) fn learn(
        &self,
        negotiation: &Negotiation,
        form: ResponseForm,
        response: &HeaderMap,
    ) {
        let is_full = matches!(form, ResponseForm::Full(_));
        if form == ResponseForm::PreconditionFailed
            || is_full && negotiation.precondition_fails(response)
        {
            self.preconditions.store(is_full, Ordering::Relaxed);
        }
        if form == ResponseForm::NotModified || is_full && negotiation.is_unmodified(response) {
            self.condition(negotiation)
                .store(is_full, Ordering::Relaxed);
        }
        let asks = || {
            negotiation
                .range(response)
                .is_some_and(|range| range.contains('-'))
        };
        if form == ResponseForm::Partial || is_full && asks() {
            self.ranges.store(is_full, Ordering::Relaxed);
        }
    }

    /// The flag of the condition that counts in a request: the tag, where there is one.
    fn condition(&self, negotiation: &Negotiation) -> &AtomicBool {
        match negotiation.if_none_match {
            Some(_) => &self.tags,
            None => &self.dates,
        }
    }

    /// The part of a body of this length that the request gets, if these are the headers of the
    /// whole.
    pub(super) fn select(
        &self,
        negotiation: &Negotiation,
        response: &HeaderMap,
        length: usize,
        serves_ranges: bool,
    ) -> Selection {
        if !self.preconditions.load(Ordering::Relaxed) && negotiation.precondition_fails(response) {
            return Selection::PreconditionFailed;
        }
        if !self.condition(negotiation).load(Ordering::Relaxed)
            && negotiation.is_unmodified(response)
        {
            return Selection::NotModified;
        }
        let serves_ranges = serves_ranges
            || response
                .get(ACCEPT_RANGES)
                .is_some_and(|unit| unit == "bytes");
        if !serves_ranges || self.ranges.load(Ordering::Relaxed) || !negotiation.is_get {
            return Selection::Full;
        }
        negotiation
            .range(response)
            .map_or(Selection::Full, |range| byte_range(range, length))
    }
}

/// The part of a body that a single range names; the full body for several ranges.
fn byte_range(range: &str, length: usize) -> Selection {
    let Some((first, last)) = range.split_once('-') else {
        return Selection::Full;
    };
    let (first, last) = (first.trim(), last.trim());
    let bytes = match (first.parse::<usize>(), last.parse::<usize>()) {
        (Ok(first), Ok(last)) if first <= last => first..length.min(last.saturating_add(1)),
        (Ok(first), Err(_)) if last.is_empty() => first..length,
        (Err(_), Ok(last)) if first.is_empty() => length.saturating_sub(last)..length,
        _ => return Selection::Full,
    };
    if bytes.is_empty() {
        return Selection::Unsatisfiable;
    }
    Selection::Range(bytes)
}

/// Whether one of the tags is this one, be they weak or not. Quotes keep one from being a part of
/// another.
fn has_tag(tags: &HeaderValue, tag: &HeaderValue) -> bool {
    let (Ok(tags), Ok(tag)) = (tags.to_str(), tag.to_str()) else {
        return false;
    };
    tags.trim() == "*" || tags.contains(tag.trim_start_matches("W/"))
}

fn date(value: &HeaderValue) -> Option<std::time::SystemTime> {
    httpdate::parse_http_date(value.to_str().ok()?).ok()
}

/// Whether `accept-encoding` lists gzip, with a weight above zero.
fn accepts_gzip(value: &HeaderValue) -> bool {
    let mut codings = list::members(value).filter_map(|coding| str::from_utf8(coding).ok());
    codings.any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let is_none = |weight: &str| weight.parse().is_ok_and(|weight: f32| weight == 0.0);
        let weight = weight.trim().strip_prefix("q=");
        matches!(
            name.trim().to_ascii_lowercase().as_str(),
            "gzip" | "x-gzip" | "*"
        ) && !weight.is_some_and(is_none)
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let field = |&(name, value)| {
            let name = HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        };
        fields.iter().map(field).collect()
    }

    fn get(fields: &[(&'static str, &'static str)]) -> Negotiation {
        Negotiation::new(&Method::GET, &headers(fields))
    }

    const FULL: ResponseForm = ResponseForm::Full(FullResponse {
        is_read: true,
        is_compressed: false,
    });

    const SHOWN: &[(&str, &str)] = &[
        ("etag", "W/\"abc\""),
        ("last-modified", "Sat, 21 Nov 2026 10:00:00 GMT"),
        ("accept-ranges", "bytes"),
    ];

    fn select(negotiation: &Negotiation) -> Selection {
        IgnoredHeaders::default().select(negotiation, &headers(SHOWN), 10, false)
    }

    #[test]
    fn who_has_what_would_be_sent_is_told_that_it_has() {
        for (fields, selection) in [
            (&[("if-none-match", "\"abc\"")][..], Selection::NotModified),
            (
                &[("if-none-match", "\"x\", W/\"abc\"")],
                Selection::NotModified,
            ),
            (&[("if-none-match", "*")], Selection::NotModified),
            (&[("if-none-match", "\"xabc\"")], Selection::Full),
            (&[("if-none-match", "\"abcd\"")], Selection::Full),
            (
                &[("if-modified-since", "Sat, 21 Nov 2026 10:00:00 GMT")],
                Selection::NotModified,
            ),
            (
                &[("if-modified-since", "Sat, 21 Nov 2026 09:59:59 GMT")],
                Selection::Full,
            ),
            // The tag counts, where there is one.
            (
                &[
                    ("if-none-match", "\"x\""),
                    ("if-modified-since", "Sat, 21 Nov 2026 10:00:00 GMT"),
                ],
                Selection::Full,
            ),
            (
                &[("range", "bytes=0-1"), ("if-none-match", "\"abc\"")],
                Selection::NotModified,
            ),
        ] {
            assert_eq!(select(&get(fields)), selection, "{fields:?}");
        }
        let fields = headers(&[("if-none-match", "\"abc\"")]);
        let post = Negotiation::new(&Method::POST, &fields);
        assert_eq!(select(&post), Selection::Full);
        let head = Negotiation::new(&Method::HEAD, &fields);
        assert_eq!(select(&head), Selection::NotModified);
    }

    #[test]
    fn who_wants_another_body_than_there_is_gets_none() {
        let strong = headers(&[
            ("etag", "\"abc\""),
            ("last-modified", "Sat, 21 Nov 2026 10:00:00 GMT"),
        ]);
        let before = "Sat, 21 Nov 2026 09:59:59 GMT";
        let at = "Sat, 21 Nov 2026 10:00:00 GMT";
        for (fields, selection) in [
            (&[("if-match", "\"abc\"")][..], Selection::Full),
            (&[("if-match", "\"x\", \"abc\"")], Selection::Full),
            (&[("if-match", "*")], Selection::Full),
            (&[("if-match", "\"x\"")], Selection::PreconditionFailed),
            (&[("if-unmodified-since", at)], Selection::Full),
            (
                &[("if-unmodified-since", before)],
                Selection::PreconditionFailed,
            ),
            (&[("if-unmodified-since", "no date")], Selection::Full),
            // The tag counts, where there is one.
            (
                &[("if-match", "\"abc\""), ("if-unmodified-since", before)],
                Selection::Full,
            ),
            (
                &[("if-match", "\"x\""), ("if-none-match", "\"abc\"")],
                Selection::PreconditionFailed,
            ),
        ] {
            let ignored = IgnoredHeaders::default();
            let found = ignored.select(&get(fields), &strong, 10, false);
            assert_eq!(found, selection, "{fields:?}");
        }
        // A weak tag is none that a body could be held to.
        assert_eq!(
            select(&get(&[("if-match", "W/\"abc\"")])),
            Selection::PreconditionFailed
        );
        let wanting = get(&[("if-match", "\"x\"")]);
        let untagged = IgnoredHeaders::default().select(&wanting, &HeaderMap::new(), 10, false);
        assert_eq!(untagged, Selection::Full);
    }

    #[test]
    fn an_app_that_does_not_heed_preconditions_has_decoys_that_do_not() {
        let ignored = IgnoredHeaders::default();
        let select = |wants: &Negotiation| ignored.select(wants, &headers(SHOWN), 10, false);
        let wanting = get(&[("if-match", "\"x\"")]);
        ignored.learn(&get(&[("if-match", "*")]), FULL, &headers(SHOWN));
        assert_eq!(select(&wanting), Selection::PreconditionFailed);
        ignored.learn(&wanting, FULL, &headers(SHOWN));
        assert_eq!(select(&wanting), Selection::Full);
        let later = IgnoredHeaders::default();
        later.inherit(&ignored);
        let inherited = later.select(&wanting, &headers(SHOWN), 10, false);
        assert_eq!(inherited, Selection::Full);
        ignored.learn(
            &wanting,
            ResponseForm::PreconditionFailed,
            &HeaderMap::new(),
        );
        assert_eq!(select(&wanting), Selection::PreconditionFailed);
    }

    #[test]
    fn who_asks_for_a_part_gets_it() {
        for (range, selection) in [
            ("bytes=0-3", Selection::Range(0..4)),
            ("bytes=4-", Selection::Range(4..10)),
            ("bytes=-3", Selection::Range(7..10)),
            ("bytes=-30", Selection::Range(0..10)),
            ("bytes=8-100", Selection::Range(8..10)),
            ("bytes=0-18446744073709551615", Selection::Range(0..10)),
            ("bytes=10-", Selection::Unsatisfiable),
            ("bytes=-0", Selection::Unsatisfiable),
            ("bytes=3-1", Selection::Full),
            ("bytes=0-1,3-4", Selection::Full),
            ("bytes=a-", Selection::Full),
            ("lines=0-1", Selection::Full),
        ] {
            assert_eq!(select(&get(&[("range", range)])), selection, "{range}");
        }
        let head = Negotiation::new(&Method::HEAD, &headers(&[("range", "bytes=0-3")]));
        assert_eq!(select(&head), Selection::Full);
        let none = headers(&[("etag", "\"abc\"")]);
        let range = get(&[("range", "bytes=0-3")]);
        let ignored = IgnoredHeaders::default();
        assert_eq!(ignored.select(&range, &none, 10, false), Selection::Full);
        assert_eq!(
            ignored.select(&range, &none, 10, true),
            Selection::Range(0..4)
        );
    }

    #[test]
    fn a_part_of_another_body_is_not_sent() {
        let range = |condition| get(&[("range", "bytes=0-3"), ("if-range", condition)]);
        let response = headers(&[("etag", "\"abc\""), ("accept-ranges", "bytes")]);
        let select =
            |wants: &Negotiation| IgnoredHeaders::default().select(wants, &response, 10, false);
        assert_eq!(select(&range("\"abc\"")), Selection::Range(0..4));
        assert_eq!(select(&range("\"x\"")), Selection::Full);
        assert_eq!(select(&range("W/\"abc\"")), Selection::Full);
    }

    #[test]
    fn what_real_answers_do_not_do_is_not_done() {
        let ignored = IgnoredHeaders::default();
        let select = |wants: &Negotiation| ignored.select(wants, &headers(SHOWN), 10, false);
        let conditional = get(&[("if-none-match", "\"abc\"")]);
        let other = get(&[("if-none-match", "\"x\"")]);
        let range = get(&[("range", "bytes=0-3")]);
        ignored.learn(&other, FULL, &headers(SHOWN));
        assert_eq!(select(&conditional), Selection::NotModified);
        ignored.learn(&conditional, FULL, &headers(SHOWN));
        assert_eq!(select(&conditional), Selection::Full);
        assert_eq!(select(&range), Selection::Range(0..4));
        ignored.learn(&conditional, ResponseForm::NotModified, &HeaderMap::new());
        assert_eq!(select(&conditional), Selection::NotModified);
        ignored.learn(&range, FULL, &headers(SHOWN));
        assert_eq!(select(&range), Selection::Full);
        let later = IgnoredHeaders::default();
        later.inherit(&ignored);
        assert_eq!(
            later.select(&range, &headers(SHOWN), 10, true),
            Selection::Full
        );
        ignored.learn(&range, ResponseForm::Partial, &HeaderMap::new());
        assert_eq!(select(&range), Selection::Range(0..4));
    }

    #[test]
    fn an_app_may_heed_tags_and_no_dates_or_dates_and_no_tags() {
        let tag = get(&[("if-none-match", "\"abc\"")]);
        let date = get(&[("if-modified-since", "Sat, 21 Nov 2026 10:00:00 GMT")]);
        for (heeded, other) in [(&tag, &date), (&date, &tag)] {
            let ignored = IgnoredHeaders::default();
            for _ in 0..2 {
                ignored.learn(other, FULL, &headers(SHOWN));
                ignored.learn(heeded, ResponseForm::NotModified, &HeaderMap::new());
                let select =
                    |wants: &Negotiation| ignored.select(wants, &headers(SHOWN), 10, false);
                assert_eq!(select(heeded), Selection::NotModified);
                assert_eq!(select(other), Selection::Full);
            }
        }
    }

    #[test]
    fn gzip_is_for_those_who_accept_it() {
        for accepted in ["gzip", "br, GZIP;q=0.5", "*", "deflate,x-gzip"] {
            assert!(
                get(&[("accept-encoding", accepted)]).accepts_gzip,
                "{accepted}"
            );
        }
        for other in ["identity", "br", "gzip;q=0", "gzip; q=0.000, br", ""] {
            assert!(!get(&[("accept-encoding", other)]).accepts_gzip, "{other}");
        }
        assert!(!get(&[]).accepts_gzip);
    }

    #[test]
    fn answers_of_other_statuses_are_forms_of_a_200_alone() {
        let negotiation = get(&[("accept-encoding", "gzip")]);
        let form = |status, full| {
            let status = StatusCode::from_u16(status).unwrap();
            negotiation.form(status, StatusCode::from_u16(full).unwrap())
        };
        let full = |is_read, is_compressed| {
            Some(ResponseForm::Full(FullResponse {
                is_read,
                is_compressed,
            }))
        };
        assert_eq!(form(200, 200), full(true, true));
        assert_eq!(form(304, 200), Some(ResponseForm::NotModified));
        assert_eq!(form(206, 200), Some(ResponseForm::Partial));
        assert_eq!(form(404, 200), None);
        assert_eq!(form(412, 200), None, "no client asked for that");
        let wanting = get(&[("if-match", "\"x\"")]);
        let failed = wanting.form(StatusCode::PRECONDITION_FAILED, StatusCode::OK);
        assert_eq!(failed, Some(ResponseForm::PreconditionFailed));
        assert_eq!(form(304, 201), None);
        assert_eq!(
            get(&[]).form(StatusCode::CREATED, StatusCode::CREATED),
            full(true, false)
        );
    }
}
