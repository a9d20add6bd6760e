//! Stands in for `decoy` in a build without the feature `decoys`: the same names, and no values.
//! A policy then cannot shadow-ban, and the layers need no second version.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Response, Uri};
use http_body::Frame;
use weir_http::request::HttpRequest;

use crate::ResponseBody;
use crate::backend::PendingTasks;
use crate::response_body::BodyReader;

/// An invented response, which does not exist in this build.
#[derive(Debug)]
pub struct Decoy(Infallible);

/// A decoy on a route, which does not exist in this build.
#[derive(Debug)]
pub struct Shadow(Infallible);

impl Shadow {
    pub(crate) fn new(decoy: Arc<Decoy>) -> Self {
        match decoy.0 {}
    }

    pub(crate) fn inherit(&self, _: &Self) {
        match self.0 {}
    }

    pub(crate) fn learn<B>(&self, _: &Response<B>, _: &ResponseSample) {
        match self.0 {}
    }

    pub(crate) async fn respond<R>(
        self: Arc<Self>,
        _: impl HttpRequest,
    ) -> Response<ResponseBody<R>> {
        match self.0 {}
    }
}

/// What learns from a packed body, which does not exist in this build.
pub(crate) struct GzipHeadReader(Infallible);

impl GzipHeadReader {
    pub(crate) fn new(_: &[Arc<Shadow>], _: &HeaderMap) -> Option<Box<Self>> {
        None
    }
}

impl BodyReader for GzipHeadReader {
    fn read(&mut self, _: &mut Frame<Bytes>) {
        match self.0 {}
    }

    fn end(self: Box<Self>) -> PendingTasks {
        match self.0 {}
    }
}

/// Keeps nothing back where there are no decoys.
pub(crate) fn withhold<'s>(_: &mut HeaderMap, _: impl Iterator<Item = &'s Shadow> + Clone) {}

/// A hash of a request's target.
pub(crate) fn target(_: &Uri) -> u64 {
    0
}

/// The request's part in the form of its response.
#[derive(Clone, Debug)]
pub(crate) struct Negotiation;

impl Negotiation {
    pub(crate) fn new(_: &Method, _: &HeaderMap) -> Self {
        Self
    }
}

/// The circumstances of a real response.
#[derive(Clone, Debug)]
#[expect(dead_code, reason = "nothing learns from it")]
pub(crate) struct ResponseSample {
    pub(crate) negotiation: Negotiation,
    pub(crate) client: u64,
    pub(crate) target: u64,
    pub(crate) latency: Option<Duration>,
}
