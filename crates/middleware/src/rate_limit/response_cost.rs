//! The cost that a response's body says, read as the body passes to the client.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName};
use http_body::Frame;
use smallvec::SmallVec;
use weir_rules::{EventUnits, JsonUnits, MeasuredCost, cost_header};

/// The units that a response's body states, in the order of the charges.
pub(super) type StatedUnits = SmallVec<[Option<u64>; 1]>;

/// Reads what one charge goes by.
#[derive(Default)]
pub(super) struct CostReader {
    json: Option<JsonReader>,
    trailer: Option<HeaderName>,
    stated_by_trailer: Option<u64>,
}

enum JsonReader {
    Texts(JsonUnits),
    Events(EventUnits),
}

impl CostReader {
    /// A reader of what this cost goes by, in a body with these headers.
    pub(super) fn new(measured: &MeasuredCost, headers: &HeaderMap) -> Self {
        Self {
            json: JsonReader::new(measured, headers),
            trailer: measured.response_trailer.clone(),
            stated_by_trailer: None,
        }
    }

    /// Whether the body cannot state the cost.
    pub(super) fn reads_nothing(&self) -> bool {
        self.json.is_none() && self.trailer.is_none()
    }

    pub(super) fn read(&mut self, frame: &Frame<Bytes>) {
        if let (Some(json), Some(data)) = (&mut self.json, frame.data_ref()) {
            json.read(data);
        }
        if let (Some(name), Some(trailers)) = (&self.trailer, frame.trailers_ref()) {
            self.stated_by_trailer = cost_header(trailers, name);
        }
    }

    /// Removes from trailers what is not for the client.
    pub(super) fn conceal(&self, trailers: &mut HeaderMap) {
        if let Some(name) = &self.trailer {
            trailers.remove(name);
        }
    }

    /// The units that were stated.
    pub(super) fn units(&mut self) -> Option<u64> {
        let by_json = self.json.as_mut().and_then(JsonReader::units);
        by_json.or(self.stated_by_trailer)
    }
}

impl JsonReader {
    /// A coded body says nothing.
    fn new(measured: &MeasuredCost, headers: &HeaderMap) -> Option<Self> {
        let is_plain = headers
            .get(CONTENT_ENCODING)
            .is_none_or(|coding| coding.as_bytes().eq_ignore_ascii_case(b"identity"));
        if measured.response_json.is_empty() || !is_plain {
            return None;
        }
        let media_type = headers.get(CONTENT_TYPE)?.to_str().ok()?;
        let essence = media_type.split(';').next()?.trim().to_ascii_lowercase();
        let pointers = Arc::clone(&measured.response_json);
        match essence.as_str() {
            "text/event-stream" => Some(Self::Events(EventUnits::new(pointers))),
            "application/json"
            | "application/x-ndjson"
            | "application/ndjson"
            | "application/jsonl" => Some(Self::Texts(JsonUnits::new(pointers))),
            other => other
                .ends_with("+json")
                .then(|| Self::Texts(JsonUnits::new(pointers))),
        }
    }

    fn read(&mut self, data: &[u8]) {
        match self {
            Self::Texts(texts) => texts.read(data),
            Self::Events(events) => events.read(data),
        }
    }

    fn units(&mut self) -> Option<u64> {
        match self {
            Self::Texts(texts) => {
                texts.end();
                texts.units()
            }
            Self::Events(events) => {
                events.end();
                events.units()
            }
        }
    }
}
