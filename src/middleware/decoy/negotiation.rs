//! The forms that an answer can have: compressed, or no more than a part of itself, or no more than
//! the word that nothing has changed, or that something has (RFC 9110, sections 8.4, 13 and 14).
//!
//! A client that is shown an entity tag may ask with it, and one that is told `accept-ranges` may
//! ask for a part. A decoy that answers all of them alike is found out where the app does not. So
//! it does what the route's real answers have been seen to do, and what they promise where no
//! client has asked yet.

use std::io::Write;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, ETAG, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE,
    IF_UNMODIFIED_SINCE, LAST_MODIFIED, ORIGIN, RANGE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use crate::rules::preflighted;

/// What a request says of the form of its answer.
#[derive(Clone, Debug, Default)]
pub struct Requested {
    pub(super) is_head: bool,
    is_get: bool,
    /// None for all other methods.
    pub(super) options: Option<OptionsKind>,
    /// What makes apps tell a browser that it may read the answer.
    pub(super) origin: Option<HeaderValue>,
    /// Whether the answer may be compressed by gzip.
    pub(super) accepts_gzip: bool,
    if_match: Option<HeaderValue>,
    unmodified_since: Option<HeaderValue>,
    none_match: Option<HeaderValue>,
    modified_since: Option<HeaderValue>,
    range: Option<HeaderValue>,
    if_range: Option<HeaderValue>,
}

/// What a request by OPTIONS asks for: apps answer the two in different places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OptionsKind {
    /// A browser's question whether a page of another origin may send a request.
    Preflight,
    /// What can be done with a resource.
    Other,
}

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Whole(Whole),
    /// 304.
    NotModified,
    /// 206.
    Partial,
    /// 412.
    Failed,
}

/// To whom a whole answer is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Whole {
    /// To one that reads, by GET or HEAD, and changes nothing.
    pub(super) is_read: bool,
    /// To one that accepts gzip.
    pub(super) is_coded: bool,
}

impl Whole {
    /// The same for the other methods.
    pub(super) fn of_other_methods(self) -> Self {
        Self {
            is_read: !self.is_read,
            ..self
        }
    }

    /// The same for clients that accept gzip, or do not.
    pub(super) fn coded(self, is_coded: bool) -> Self {
        Self { is_coded, ..self }
    }
}

/// What a request gets of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Selected {
    Whole,
    NotModified,
    Part(Range<usize>),
    /// None of the parts that were asked for.
    Nothing,
    /// Nothing, as the client wants another body than there is.
    Failed,
}

impl Requested {
    /// What a request with this method and these fields says.
    pub fn of(method: &Method, headers: &HeaderMap) -> Self {
        let is_head = *method == Method::HEAD;
        let is_get = *method == Method::GET;
        let accepts_gzip = headers.get_all(ACCEPT_ENCODING).iter().any(accepts_gzip);
        let asks = is_get || is_head;
        let of = |name: HeaderName, asks: bool| asks.then(|| headers.get(name).cloned())?;
        Self {
            is_head,
            is_get,
            options: (*method == Method::OPTIONS).then(|| match preflighted(method, headers) {
                Some(_) => OptionsKind::Preflight,
                None => OptionsKind::Other,
            }),
            origin: of(ORIGIN, true),
            accepts_gzip,
            if_match: of(IF_MATCH, asks),
            unmodified_since: of(IF_UNMODIFIED_SINCE, asks),
            none_match: of(IF_NONE_MATCH, asks),
            modified_since: of(IF_MODIFIED_SINCE, asks),
            range: of(RANGE, is_get),
            if_range: of(IF_RANGE, is_get),
        }
    }

    /// What a whole answer to the request is.
    pub(super) fn whole(&self) -> Whole {
        Whole {
            is_read: self.is_get || self.is_head,
            is_coded: self.accepts_gzip,
        }
    }

    /// The form that an answer of this status has, if `whole` is the status of a whole one.
    pub(super) fn form(&self, status: StatusCode, whole: StatusCode) -> Option<Form> {
        match status {
            _ if status == whole => Some(Form::Whole(self.whole())),
            _ if whole != StatusCode::OK => None,
            StatusCode::NOT_MODIFIED => Some(Form::NotModified),
            StatusCode::PARTIAL_CONTENT => Some(Form::Partial),
            StatusCode::PRECONDITION_FAILED if self.has_precondition() => Some(Form::Failed),
            _ => None,
        }
    }

    /// Whether the client wants an answer only as long as nothing has changed.
    fn has_precondition(&self) -> bool {
        self.if_match.is_some() || self.unmodified_since.is_some()
    }

    /// Whether the client wants something else than what would be sent with these fields.
    fn fails(&self, answer: &HeaderMap) -> bool {
        match (&self.if_match, &self.unmodified_since) {
            (Some(tags), _) => {
                let tag = answer.get(ETAG);
                // A weak tag is the same as none here (RFC 9110, section 13.1.1).
                let is_same = |tag: &HeaderValue| {
                    let is_weak = tag.as_bytes().starts_with(b"W/");
                    tags == "*" || !is_weak && lists(tags, tag)
                };
                tag.is_some_and(|tag| !is_same(tag))
            }
            (None, Some(since)) => {
                let changed = answer.get(LAST_MODIFIED).and_then(date);
                let dates = changed.zip(date(since));
                dates.is_some_and(|(at, since)| at > since)
            }
            (None, None) => false,
        }
    }

    /// Whether the client has what would be sent with these fields.
    fn is_met(&self, answer: &HeaderMap) -> bool {
        match (&self.none_match, &self.modified_since) {
            (Some(tags), _) => answer.get(ETAG).is_some_and(|tag| lists(tags, tag)),
            (None, Some(since)) => {
                let changed = answer.get(LAST_MODIFIED).and_then(date);
                changed
                    .zip(date(since))
                    .is_some_and(|(at, since)| at <= since)
            }
            (None, None) => false,
        }
    }

    /// The parts of a body that the client asks for, unless it has another body's beginning.
    fn range(&self, answer: &HeaderMap) -> Option<&str> {
        let has_same = |condition: &HeaderValue| {
            let validators = [answer.get(ETAG), answer.get(LAST_MODIFIED)];
            let is_weak = condition.as_bytes().starts_with(b"W/");
            !is_weak && validators.contains(&Some(condition))
        };
        if !self.if_range.as_ref().is_none_or(has_same) {
            return None;
        }
        self.range.as_ref()?.to_str().ok()?.strip_prefix("bytes=")
    }
}

/// What a route has been seen not to do. Decoys tell no more than real answers, so that what they
/// show is done unless it was seen otherwise.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    preconditions: AtomicBool,
    tags: AtomicBool,
    dates: AtomicBool,
    ranges: AtomicBool,
}

impl Refusals {
    pub(super) fn inherit(&self, earlier: &Self) {
        let copy = |to: &AtomicBool, from: &AtomicBool| {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        };
        copy(&self.preconditions, &earlier.preconditions);
        copy(&self.tags, &earlier.tags);
        copy(&self.dates, &earlier.dates);
        copy(&self.ranges, &earlier.ranges);
    }

    /// Learns from an answer of this form, with these fields, to a request that wanted this.
    pub(super) fn learn(&self, requested: &Requested, form: Form, answer: &HeaderMap) {
        let is_whole = matches!(form, Form::Whole(_));
        if form == Form::Failed || is_whole && requested.fails(answer) {
            self.preconditions.store(is_whole, Ordering::Relaxed);
        }
        if form == Form::NotModified || is_whole && requested.is_met(answer) {
            self.condition(requested).store(is_whole, Ordering::Relaxed);
        }
        let asks = || {
            requested
                .range(answer)
                .is_some_and(|range| range.contains('-'))
        };
        if form == Form::Partial || is_whole && asks() {
            self.ranges.store(is_whole, Ordering::Relaxed);
        }
    }

    /// What is known of the condition that counts in a request: the tag, where there is one.
    fn condition(&self, requested: &Requested) -> &AtomicBool {
        match requested.none_match {
            Some(_) => &self.tags,
            None => &self.dates,
        }
    }

    /// What the request gets of a body of this length, which would be sent with these fields.
    pub(super) fn select(
        &self,
        requested: &Requested,
        answer: &HeaderMap,
        length: usize,
        gives_parts: bool,
    ) -> Selected {
        if !self.preconditions.load(Ordering::Relaxed) && requested.fails(answer) {
            return Selected::Failed;
        }
        if !self.condition(requested).load(Ordering::Relaxed) && requested.is_met(answer) {
            return Selected::NotModified;
        }
        let gives_parts = gives_parts
            || answer
                .get(ACCEPT_RANGES)
                .is_some_and(|unit| unit == "bytes");
        if !gives_parts || self.ranges.load(Ordering::Relaxed) || !requested.is_get {
            return Selected::Whole;
        }
        requested
            .range(answer)
            .map_or(Selected::Whole, |range| part(range, length))
    }
}

/// The part of a body that a single range names. Several may be answered by the whole.
fn part(range: &str, length: usize) -> Selected {
    let Some((first, last)) = range.split_once('-') else {
        return Selected::Whole;
    };
    let (first, last) = (first.trim(), last.trim());
    let part = match (first.parse::<usize>(), last.parse::<usize>()) {
        (Ok(first), Ok(last)) if first <= last => first..length.min(last.saturating_add(1)),
        (Ok(first), Err(_)) if last.is_empty() => first..length,
        (Err(_), Ok(last)) if first.is_empty() => length.saturating_sub(last)..length,
        _ => return Selected::Whole,
    };
    if part.is_empty() {
        return Selected::Nothing;
    }
    Selected::Part(part)
}

/// Whether one of the tags is this one, be they weak or not. Quotes keep one from being a part of
/// another.
fn lists(tags: &HeaderValue, tag: &HeaderValue) -> bool {
    let (Ok(tags), Ok(tag)) = (tags.to_str(), tag.to_str()) else {
        return false;
    };
    tags.trim() == "*" || tags.contains(tag.trim_start_matches("W/"))
}

fn date(value: &HeaderValue) -> Option<std::time::SystemTime> {
    httpdate::parse_http_date(value.to_str().ok()?).ok()
}

/// Whether `accept-encoding` lists gzip, and not as what must not come.
fn accepts_gzip(value: &HeaderValue) -> bool {
    let mut codings = value.to_str().unwrap_or_default().split(',');
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

/// The body as gzip makes it.
pub(super) fn compress(body: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    // Writing to a vector never fails.
    let _ = encoder.write_all(body);
    encoder.finish().unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let field = |&(name, value)| {
            let name = HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        };
        fields.iter().map(field).collect()
    }

    fn get(fields: &[(&'static str, &'static str)]) -> Requested {
        Requested::of(&Method::GET, &headers(fields))
    }

    const WHOLE: Form = Form::Whole(Whole {
        is_read: true,
        is_coded: false,
    });

    const SHOWN: &[(&str, &str)] = &[
        ("etag", "W/\"abc\""),
        ("last-modified", "Sat, 21 Nov 2026 10:00:00 GMT"),
        ("accept-ranges", "bytes"),
    ];

    fn select(requested: &Requested) -> Selected {
        Refusals::default().select(requested, &headers(SHOWN), 10, false)
    }

    #[test]
    fn who_has_what_would_be_sent_is_told_that_it_has() {
        for (fields, selected) in [
            (&[("if-none-match", "\"abc\"")][..], Selected::NotModified),
            (
                &[("if-none-match", "\"x\", W/\"abc\"")],
                Selected::NotModified,
            ),
            (&[("if-none-match", "*")], Selected::NotModified),
            (&[("if-none-match", "\"xabc\"")], Selected::Whole),
            (&[("if-none-match", "\"abcd\"")], Selected::Whole),
            (
                &[("if-modified-since", "Sat, 21 Nov 2026 10:00:00 GMT")],
                Selected::NotModified,
            ),
            (
                &[("if-modified-since", "Sat, 21 Nov 2026 09:59:59 GMT")],
                Selected::Whole,
            ),
            // The tag counts, where there is one.
            (
                &[
                    ("if-none-match", "\"x\""),
                    ("if-modified-since", "Sat, 21 Nov 2026 10:00:00 GMT"),
                ],
                Selected::Whole,
            ),
            (
                &[("range", "bytes=0-1"), ("if-none-match", "\"abc\"")],
                Selected::NotModified,
            ),
        ] {
            assert_eq!(select(&get(fields)), selected, "{fields:?}");
        }
        let fields = headers(&[("if-none-match", "\"abc\"")]);
        let post = Requested::of(&Method::POST, &fields);
        assert_eq!(select(&post), Selected::Whole);
        let head = Requested::of(&Method::HEAD, &fields);
        assert_eq!(select(&head), Selected::NotModified);
    }

    #[test]
    fn who_wants_another_body_than_there_is_gets_none() {
        let strong = headers(&[
            ("etag", "\"abc\""),
            ("last-modified", "Sat, 21 Nov 2026 10:00:00 GMT"),
        ]);
        let before = "Sat, 21 Nov 2026 09:59:59 GMT";
        let at = "Sat, 21 Nov 2026 10:00:00 GMT";
        for (fields, selected) in [
            (&[("if-match", "\"abc\"")][..], Selected::Whole),
            (&[("if-match", "\"x\", \"abc\"")], Selected::Whole),
            (&[("if-match", "*")], Selected::Whole),
            (&[("if-match", "\"x\"")], Selected::Failed),
            (&[("if-unmodified-since", at)], Selected::Whole),
            (&[("if-unmodified-since", before)], Selected::Failed),
            (&[("if-unmodified-since", "no date")], Selected::Whole),
            // The tag counts, where there is one.
            (
                &[("if-match", "\"abc\""), ("if-unmodified-since", before)],
                Selected::Whole,
            ),
            (
                &[("if-match", "\"x\""), ("if-none-match", "\"abc\"")],
                Selected::Failed,
            ),
        ] {
            let refusals = Refusals::default();
            let found = refusals.select(&get(fields), &strong, 10, false);
            assert_eq!(found, selected, "{fields:?}");
        }
        // A weak tag is none that a body could be held to.
        assert_eq!(select(&get(&[("if-match", "W/\"abc\"")])), Selected::Failed);
        let wanting = get(&[("if-match", "\"x\"")]);
        let untagged = Refusals::default().select(&wanting, &HeaderMap::new(), 10, false);
        assert_eq!(untagged, Selected::Whole);
    }

    #[test]
    fn an_app_that_does_not_heed_preconditions_has_decoys_that_do_not() {
        let refusals = Refusals::default();
        let select = |wants: &Requested| refusals.select(wants, &headers(SHOWN), 10, false);
        let wanting = get(&[("if-match", "\"x\"")]);
        refusals.learn(&get(&[("if-match", "*")]), WHOLE, &headers(SHOWN));
        assert_eq!(select(&wanting), Selected::Failed);
        refusals.learn(&wanting, WHOLE, &headers(SHOWN));
        assert_eq!(select(&wanting), Selected::Whole);
        let later = Refusals::default();
        later.inherit(&refusals);
        let inherited = later.select(&wanting, &headers(SHOWN), 10, false);
        assert_eq!(inherited, Selected::Whole);
        refusals.learn(&wanting, Form::Failed, &HeaderMap::new());
        assert_eq!(select(&wanting), Selected::Failed);
    }

    #[test]
    fn who_asks_for_a_part_gets_it() {
        for (range, selected) in [
            ("bytes=0-3", Selected::Part(0..4)),
            ("bytes=4-", Selected::Part(4..10)),
            ("bytes=-3", Selected::Part(7..10)),
            ("bytes=-30", Selected::Part(0..10)),
            ("bytes=8-100", Selected::Part(8..10)),
            ("bytes=0-18446744073709551615", Selected::Part(0..10)),
            ("bytes=10-", Selected::Nothing),
            ("bytes=-0", Selected::Nothing),
            ("bytes=3-1", Selected::Whole),
            ("bytes=0-1,3-4", Selected::Whole),
            ("bytes=a-", Selected::Whole),
            ("lines=0-1", Selected::Whole),
        ] {
            assert_eq!(select(&get(&[("range", range)])), selected, "{range}");
        }
        let head = Requested::of(&Method::HEAD, &headers(&[("range", "bytes=0-3")]));
        assert_eq!(select(&head), Selected::Whole);
        let none = headers(&[("etag", "\"abc\"")]);
        let range = get(&[("range", "bytes=0-3")]);
        let refusals = Refusals::default();
        assert_eq!(refusals.select(&range, &none, 10, false), Selected::Whole);
        assert_eq!(
            refusals.select(&range, &none, 10, true),
            Selected::Part(0..4)
        );
    }

    #[test]
    fn a_part_of_another_body_is_not_sent() {
        let range = |condition| get(&[("range", "bytes=0-3"), ("if-range", condition)]);
        let answer = headers(&[("etag", "\"abc\""), ("accept-ranges", "bytes")]);
        let select = |wants: &Requested| Refusals::default().select(wants, &answer, 10, false);
        assert_eq!(select(&range("\"abc\"")), Selected::Part(0..4));
        assert_eq!(select(&range("\"x\"")), Selected::Whole);
        assert_eq!(select(&range("W/\"abc\"")), Selected::Whole);
    }

    #[test]
    fn what_real_answers_do_not_do_is_not_done() {
        let refusals = Refusals::default();
        let select = |wants: &Requested| refusals.select(wants, &headers(SHOWN), 10, false);
        let conditional = get(&[("if-none-match", "\"abc\"")]);
        let other = get(&[("if-none-match", "\"x\"")]);
        let range = get(&[("range", "bytes=0-3")]);
        refusals.learn(&other, WHOLE, &headers(SHOWN));
        assert_eq!(select(&conditional), Selected::NotModified);
        refusals.learn(&conditional, WHOLE, &headers(SHOWN));
        assert_eq!(select(&conditional), Selected::Whole);
        assert_eq!(select(&range), Selected::Part(0..4));
        refusals.learn(&conditional, Form::NotModified, &HeaderMap::new());
        assert_eq!(select(&conditional), Selected::NotModified);
        refusals.learn(&range, WHOLE, &headers(SHOWN));
        assert_eq!(select(&range), Selected::Whole);
        let later = Refusals::default();
        later.inherit(&refusals);
        assert_eq!(
            later.select(&range, &headers(SHOWN), 10, true),
            Selected::Whole
        );
        refusals.learn(&range, Form::Partial, &HeaderMap::new());
        assert_eq!(select(&range), Selected::Part(0..4));
    }

    #[test]
    fn an_app_may_heed_tags_and_no_dates_or_dates_and_no_tags() {
        let tag = get(&[("if-none-match", "\"abc\"")]);
        let date = get(&[("if-modified-since", "Sat, 21 Nov 2026 10:00:00 GMT")]);
        for (heeded, other) in [(&tag, &date), (&date, &tag)] {
            let refusals = Refusals::default();
            for _ in 0..2 {
                refusals.learn(other, WHOLE, &headers(SHOWN));
                refusals.learn(heeded, Form::NotModified, &HeaderMap::new());
                let select = |wants: &Requested| refusals.select(wants, &headers(SHOWN), 10, false);
                assert_eq!(select(heeded), Selected::NotModified);
                assert_eq!(select(other), Selected::Whole);
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
        let requested = get(&[("accept-encoding", "gzip")]);
        let form = |status, whole| {
            let status = StatusCode::from_u16(status).unwrap();
            requested.form(status, StatusCode::from_u16(whole).unwrap())
        };
        let whole = |is_read, is_coded| Some(Form::Whole(Whole { is_read, is_coded }));
        assert_eq!(form(200, 200), whole(true, true));
        assert_eq!(form(304, 200), Some(Form::NotModified));
        assert_eq!(form(206, 200), Some(Form::Partial));
        assert_eq!(form(404, 200), None);
        assert_eq!(form(412, 200), None, "no client asked for that");
        let wanting = get(&[("if-match", "\"x\"")]);
        let failed = wanting.form(StatusCode::PRECONDITION_FAILED, StatusCode::OK);
        assert_eq!(failed, Some(Form::Failed));
        assert_eq!(form(304, 201), None);
        assert_eq!(
            get(&[]).form(StatusCode::CREATED, StatusCode::CREATED),
            whole(true, false)
        );
    }
}
